"""What is known of a request at its header message: headers, facts that Envoy's own filters took out
of the body, size and time. Everything that comes from a client is checked for type and range here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.struct_pb2 import Struct

from extproc.core.model import MAX_SLOTS, MAX_TOKENS
from extproc.edge.wire import Scalar, headers_of, scalar
from extproc.pb.wire.v1 import ext_proc_pb2

FACTS = "fairlane.request"  # metadata namespace that json_to_metadata writes
ATTRIBUTES = "envoy.filters.http.ext_proc"  # under this key, also for filters of another name

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # the first given one counts


@dataclass(frozen=True, slots=True)
class Facts:
    headers: Mapping[str, str]
    metadata: Mapping[str, Struct]  # of the forwarded namespaces
    model: str | None
    malformed: str | None  # why the body cannot be read or names no model; None: it does
    max_output: int | None  # tokens
    n: int
    body_bytes: int
    arrival: float | None  # seconds since the epoch, by Envoy's clock; None: Envoy did not say


def read(message: ext_proc_pb2.ProcessingRequest) -> Facts:
    """Facts of a `request_headers` message. Never raises for what a client can send."""
    metadata = message.metadata_context.filter_metadata
    facts = metadata[FACTS].fields if FACTS in metadata else {}
    attributes = message.attributes[ATTRIBUTES].fields if ATTRIBUTES in message.attributes else {}
    model = scalar(facts, "model")
    return Facts(
        headers=headers_of(message.request_headers),
        metadata=metadata,
        model=model if isinstance(model, str) and model else None,
        malformed=_malformed(scalar(facts, "error"), model),
        max_output=next((n for n in (_count(scalar(facts, k), MAX_TOKENS) for k in _LIMITS) if n is not None), None),
        n=_count(scalar(facts, "n"), MAX_SLOTS) or 1,
        body_bytes=_count(scalar(attributes, "request.size"), 2**48) or 0,
        arrival=_time(scalar(attributes, "request.time")),
    )


def _malformed(error: Scalar, model: Scalar) -> str | None:
    if error is not None:
        return "the body is not JSON"
    if model is None:
        return "the body is no JSON object that names a model, or its content-type is not application/json"
    if not isinstance(model, str):
        return "`model` is not a string"
    return None if model else "`model` is empty"


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


def _time(value: Scalar) -> float | None:
    """Envoy writes `2026-11-29T22:10:28.93649+00:00`, with as many digits as it needs."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
