"""What an access-log entry says about a request's tokens.

Facts that shaped it: a stream that the engine sheds ends as 200 with an SSE error, and only the metadata
shows it; a client that leaves a plain request gives code 0; tokens of an abandoned stream come only if
the stream carried them in every chunk; `/v1/messages` abandoned gives the prompt alone.
"""

from __future__ import annotations

from extproc.core.events import Unreachable, Usage
from extproc.core.model import MAX_TOKENS, Source
from extproc.edge.wire import Scalar, scalar
from extproc.pb.wire.v1 import access_log_pb2

TICKET = "x-fairlane-ticket"
USAGE = "fairlane.usage"  # metadata namespace that the response filters write


def ticket_of(entry: access_log_pb2.HTTPAccessLogEntry) -> str | None:
    return entry.request.request_headers.get(TICKET) or None


def unreachable(entry: access_log_pb2.HTTPAccessLogEntry, ticket: str) -> Unreachable | None:
    """Whether the endpoint did not take the connection, or broke it; None: neither. Where Envoy went on to another
    endpoint and got an answer there, the next scrape finds out."""
    flags = entry.common_properties.response_flags
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return None  # the client left first
    if flags.upstream_connection_failure:
        return Unreachable(ticket)
    return Unreachable(ticket, broke=True) if _broke(flags) else None


def _broke(flags: access_log_pb2.ResponseFlags) -> bool:
    return flags.upstream_connection_termination or flags.upstream_remote_reset


def read(entry: access_log_pb2.HTTPAccessLogEntry, ticket: str) -> Usage:
    """Never raises for what an engine can send."""
    metadata = entry.common_properties.metadata.filter_metadata
    fields = metadata[USAGE].fields if USAGE in metadata else {}
    prompt, output = _tokens(scalar(fields, "prompt_tokens")), _tokens(scalar(fields, "completion_tokens"))
    if output is not None:
        return Usage(ticket, Source.USAGE, prompt, _tokens(scalar(fields, "cached_tokens")) or 0, output)
    code = entry.response.response_code.value
    # 499 is Envoy's own word for a client that left: what ran until then was served.
    if _broke(entry.common_properties.response_flags):
        # It ran until then. Were it free of charge, a tenant whose requests break engines would always be next.
        return Usage(ticket, Source.TIME, prompt)
    failed = "error_code" in fields or "error_type" in fields or (code >= 400 and code != 499)
    return Usage(ticket, Source.ERROR if failed else Source.TIME, prompt)


def _tokens(value: Scalar) -> int | None:
    if isinstance(value, bool) or not isinstance(value, float) or not value >= 0:
        return None
    return int(min(value, float(MAX_TOKENS)))
