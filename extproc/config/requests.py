"""Which requests are queued, and what becomes of those that cannot be read or placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_validator

from extproc.config.section import Section
from extproc.config.units import Bytes, size_text, written_size

# What makes an engine work: OpenAI's, Anthropic's and TGI's ways to ask for it.
QUEUED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/generate",
    "/generate_stream",
)

# A body comes in one message of gRPC, whose length is an int32, and there are headers around it (`edge.server`).
LARGEST_BODY = 2043 * 1024**2

QueuedPath = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"^\*?/[^*?#]*$"}, mode="validation")]


class Requests(Section):
    """`pass`: forwarded as they came; those that might run on an engine all the same wait their turn like any other."""

    queued: Annotated[list[QueuedPath], Field(min_length=1, max_length=200)] = Field(
        default_factory=lambda: [*QUEUED_PATHS]
    )
    malformed: Literal["pass", "reject"] = "pass"
    unknown_model: Literal["pass", "reject"] = "pass"
    max_body: Annotated[Bytes, size_text(LARGEST_BODY)] = 32 * 1024**2
    max_buffered: Bytes = 1024**3  # of all bodies that Fairlane has in its own memory (profiles body and duplex)
    max_streams: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000  # open at a time, one for each request
    include_usage: Literal["leave", "inject"] = "leave"

    @field_validator("max_body")
    @classmethod
    def _one_message(cls, value: int) -> int:
        if value > LARGEST_BODY:
            raise ValueError(f"must be at most {written_size(LARGEST_BODY)}: gRPC has no longer messages")
        return value

    @field_validator("queued")
    @classmethod
    def _paths(cls, value: list[str]) -> list[str]:
        for path in value:
            if not path.removeprefix("*").startswith("/") or "*" in path[1:]:
                raise ValueError(f"{path!r} must be a path such as /v1/completions, or */v1/completions for any prefix")
            if "?" in path or "#" in path:
                raise ValueError(f"{path!r}: a path is given without its query")
        return value


class QueuedPaths:
    """Whether a path is one of those that are queued."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._exact = frozenset(path for path in paths if path.startswith("/"))
        self._endings = tuple(path[1:] for path in paths if path.startswith("*"))

    def __contains__(self, path: str) -> bool:
        """`path`: without its query."""
        return path in self._exact or (bool(self._endings) and path.endswith(self._endings))
