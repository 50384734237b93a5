"""What an access-log entry says about a request's tokens.

Facts that shaped it: a stream that the engine sheds ends as 200 with an SSE error, and only the metadata
shows it; a client that leaves a plain request gives code 0; tokens of an abandoned stream come only if
the stream carried them in every chunk; `/v1/messages` abandoned gives the prompt alone.
"""

from __future__ import annotations

from extproc.core.events import Usage
from extproc.core.model import MAX_TOKENS, Source
from extproc.edge.wire import Scalar, scalar
from extproc.pb.wire.v1 import access_log_pb2

TICKET = "x-fairlane-ticket"
USAGE = "fairlane.usage"  # metadata namespace that the response filters write


def ticket_of(entry: access_log_pb2.HTTPAccessLogEntry) -> str | None:
    return entry.request.request_headers.get(TICKET) or None


def endpoint_failed(entry: access_log_pb2.HTTPAccessLogEntry) -> bool:
    """Whether the endpoint that was chosen did not take the connection, or broke it. Where Envoy has gone on to another
    one, the answer is good, and the number of attempts tells."""
    common = entry.common_properties
    flags = common.response_flags
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return False  # the client left first
    return (
        flags.upstream_connection_failure
        or flags.upstream_connection_termination
        or flags.upstream_remote_reset
        or common.upstream_request_attempt_count > 1
    )


def read(entry: access_log_pb2.HTTPAccessLogEntry, ticket: str) -> Usage:
    """Never raises for what an engine can send."""
    metadata = entry.common_properties.metadata.filter_metadata
    fields = metadata[USAGE].fields if USAGE in metadata else {}
    prompt, output = _tokens(scalar(fields, "prompt_tokens")), _tokens(scalar(fields, "completion_tokens"))
    if output is not None:
        return Usage(ticket, Source.USAGE, prompt, _tokens(scalar(fields, "cached_tokens")) or 0, output)
    code = entry.response.response_code.value
    # 499 is Envoy's own word for a client that left: what ran until then was served.
    failed = "error_code" in fields or "error_type" in fields or (code >= 400 and code != 499)
    return Usage(ticket, Source.ERROR if failed else Source.TIME, prompt)


def _tokens(value: Scalar) -> int | None:
    if isinstance(value, bool) or not isinstance(value, float) or not value >= 0:
        return None
    return int(min(value, float(MAX_TOKENS)))
