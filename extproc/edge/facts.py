"""What is known of a request: headers, what Envoy's own filters took out of the body, size and time; and what is in
the body, where it comes here. Everything that a client writes is checked for type and range here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from google.protobuf.struct_pb2 import Struct, Value

from extproc.core.model import MAX_SLOTS, MAX_TOKENS
from extproc.edge.body_facts import read as read_body
from extproc.edge.wire import Scalar, headers_of, scalars
from extproc.pb.wire.v1 import ext_proc_pb2

FACTS = "fairlane.request"  # metadata namespace that json_to_metadata and the Lua filter write
ATTRIBUTES = "envoy.filters.http.ext_proc"  # under this key, also for filters of another name

# The first given one counts: chat, completions, responses, TGI.
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
_BYTES_PER_TOKEN = 4.0
_TOKENS_PER_IMAGE = 576.0  # of a 336 x 336 picture in patches of 14 x 14; usage puts it right
_BYTES_PER_AUDIO_TOKEN = 400.0  # 50 tokens a second, of 16 to 32 KB
_MOST_PREFIXES = 8
_LONGEST_ID = 256  # characters; a longer id is a client's own, and is remembered beyond the request
_NOTHING: dict[str, Scalar] = {}
_NO_ATTRIBUTES: Mapping[str, Value] = {}


@dataclass(slots=True)
class Facts:
    """Not to be changed once made, but by `forget`; frozen dataclasses cost a microsecond more for each group."""

    headers: Mapping[str, str]
    metadata: Mapping[str, Struct]  # of the forwarded namespaces
    attributes: Mapping[str, Value]  # that the filter asks for
    method: str
    path: str  # without the query
    request_id: str  # Envoy's; a client may have chosen it. Empty: Envoy did not say
    known: bool  # the facts of the body came with the headers, or the body has been read
    model: str | None
    malformed: str | None  # why the body cannot be read or names no model; None: it does
    stream: bool
    max_output: int | None  # tokens
    n: int  # sequences that the engine runs for it
    usage_asked: bool  # the client has said whether a stream is to carry its token count
    body_bytes: int
    prompt_tokens: int | None  # where more is known than the body's size
    prefix: tuple[int, ...]  # chained hashes of the prompt's beginnings, shortest first
    arrival: float | None  # seconds since the epoch, by Envoy's clock; None: Envoy did not say

    def forget(self) -> None:
        """What was read from is let go, with the whole message that it is a part of. Whether it is compressed stays."""
        encoding = self.headers.get("content-encoding")
        self.headers = {} if encoding is None else {"content-encoding": encoding[:_LONGEST_ID]}
        self.metadata, self.attributes, self.model = {}, {}, None

    @property
    def is_form(self) -> bool:
        return self.headers.get("content-type", "").lstrip().lower().startswith("multipart/")

    @property
    def compressed(self) -> bool:
        """So its header says; engines do not look at it."""
        return self.headers.get("content-encoding", "").strip().lower() not in ("", "identity")


# Headers that this module and its callers look at, whatever the configuration.
HEADERS = frozenset({":method", ":path", "content-type", "content-encoding"})


def read(message: ext_proc_pb2.ProcessingRequest, wanted: Container[str] | None = None) -> Facts:
    """Facts of a `request_headers` message. Never raises for what a client can send. `wanted`: names of the headers to
    take, `HEADERS` among them; None: all."""
    metadata = message.metadata_context.filter_metadata
    told, asked = metadata.get(FACTS), message.attributes.get(ATTRIBUTES)
    facts = _NOTHING if told is None else scalars(told)
    attributes = _NO_ATTRIBUTES if asked is None else asked.fields
    size, at, request_id = attributes.get("request.size"), attributes.get("request.time"), attributes.get("request.id")
    headers = headers_of(message.request_headers, wanted)
    model, text_bytes = facts.get("model"), facts.get("text_bytes")
    max_output = None
    for name in _LIMITS:
        if name in facts and (max_output := _count(facts[name], MAX_TOKENS)) is not None:
            break
    return Facts(
        headers=headers,
        metadata=metadata,
        attributes=attributes,
        method=headers.get(":method", ""),
        path=headers.get(":path", "").partition("?")[0],
        request_id="" if request_id is None else _id(request_id.string_value),
        known=bool(facts) and "error" not in facts,
        model=model if isinstance(model, str) and model else None,
        malformed=_malformed(facts.get("error"), model),
        stream=facts.get("stream") is True,
        max_output=max_output,
        n=_sequences(facts.get("n"), facts.get("prompts")),
        usage_asked="include_usage" in facts,
        body_bytes=0 if size is None else _count(size.number_value or size.string_value, 2**48) or 0,
        prompt_tokens=None if text_bytes is None else _prompt_tokens(text_bytes, facts.get("images")),
        prefix=_prefix(facts["prefix"]) if "prefix" in facts else (),
        arrival=None if at is None else _time(at.string_value),
    )


def with_body(facts: Facts, body: bytes) -> Facts:
    """The same request, its body having been read."""
    headers = facts.headers
    found = read_body(headers.get("content-type", ""), headers.get("content-encoding", ""), body)
    model = _scalar(found.model)
    return replace(
        facts,
        known=True,
        model=model if isinstance(model, str) and model else None,
        malformed=found.malformed or _malformed(None, model),
        stream=found.stream,
        max_output=_count(_scalar(found.max_output), MAX_TOKENS),
        n=_sequences(_scalar(found.n), float(found.prompts)),
        usage_asked=found.stream_options_given,
        body_bytes=len(body),
        prompt_tokens=_prompt_tokens(
            found.text_bytes + found.file_bytes * _BYTES_PER_TOKEN / _BYTES_PER_AUDIO_TOKEN, float(found.images)
        )
        if found.text_bytes or found.file_bytes
        else None,
        prefix=found.prefix,
    )


def _id(said: str) -> str:
    return said if len(said) <= _LONGEST_ID else ""


def _malformed(error: Scalar, model: Scalar) -> str | None:
    if error is not None:
        return "the body is not JSON"
    if model is None:
        return "the body is no JSON object that names a model, or its content-type is not application/json"
    if not isinstance(model, str):
        return "`model` is not a string"
    return None if model else "`model` is empty"


def _scalar(value: object) -> Scalar:
    """A member of a parsed body, as Envoy's filter would give it."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return None


def _sequences(n: Scalar, prompts: Scalar) -> int:
    """Each choice of each prompt runs by itself."""
    if n is None and prompts is None:
        return 1
    return min((_count(n, MAX_SLOTS) or 1) * (_count(prompts, MAX_SLOTS) or 1), MAX_SLOTS)


def _prompt_tokens(text_bytes: Scalar, images: Scalar) -> int | None:
    if isinstance(text_bytes, bool) or not isinstance(text_bytes, float) or not text_bytes >= 0:
        return None
    pictures = images if isinstance(images, float) and images > 0 else 0.0
    return int(min(max(1.0, text_bytes / _BYTES_PER_TOKEN + pictures * _TOKENS_PER_IMAGE), float(MAX_TOKENS)))


def _prefix(value: Scalar) -> tuple[int, ...]:
    if not isinstance(value, str) or not value:
        return ()
    try:
        return tuple(int(each, 16) for each in value.split(",")[:_MOST_PREFIXES])
    except ValueError:
        return ()


def _count(value: Scalar, most: int) -> int | None:
    """A whole number of at least 1, clamped to `most`. JSON from clients says 12, 12.0 or "12"."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not number >= 1:  # also NaN
        return None
    return int(min(number, float(most)))


def _time(value: str) -> float | None:
    """Envoy writes `2026-11-29T22:10:28.93649+00:00`, with as many digits as it needs."""
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
