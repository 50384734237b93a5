"""What an access-log entry says about a request's tokens, and about the endpoint that it went to.

Facts that shaped it:
- A stream that the engine sheds ends as 200 with an SSE error, and only the metadata shows it.
- A client that leaves a plain request gives code 0; tokens of an abandoned stream come only if the stream carried them
  in every chunk; `/v1/messages` abandoned gives the prompt alone.
- A 503 may be the engine's, Envoy's or Fairlane's own. Only the engine's has the details `via_upstream`; flags do not
  tell, as Envoy adds one (URX) to an engine's answer when its retries are used up.
- The entry has how often Envoy tried, and the endpoint that it tried last. An address that its cluster does not have is
  stepped over without being counted as a try.
- Why an earlier try failed is not in the entry. Nothing but a refused connection is tried again, unless Envoy is told
  to retry an engine's 429 and 503 as well; so the endpoint that was named is taken for one that cannot be reached until
  its next page, which is as long as a pause would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from extproc.config.units import ip_port
from extproc.core.events import Failed, TurnedAway, Unreachable, Usage
from extproc.core.model import MAX_TOKENS, Source
from extproc.edge.no_room import CODES, says_failure, says_no_room
from extproc.edge.wire import Scalar, scalars
from extproc.pb.wire.v1 import access_log_pb2

TICKET = "x-fairlane-ticket"
USAGE = "fairlane.usage"  # metadata namespace that the response filters write


def ticket_of(entry: access_log_pb2.HTTPAccessLogEntry) -> str | None:
    return entry.request.request_headers.get(TICKET) or None


@dataclass(slots=True)
class Said:
    """What an entry says of its request."""

    usage: Usage
    faults: tuple[Unreachable | TurnedAway | Failed, ...]  # of endpoints: which did not take the request, or broke off
    ignored: str | None  # where it went in place of the endpoint that was named, though Envoy tried once only
    unedited: str | None  # why Envoy's Lua filter left a body as it was that was to be edited


_NOTHING: dict[str, Scalar] = {}
_LONGEST_ADDRESS = 64  # characters; an IPv6 address with a zone has fewer
_UNEDITED = ("compressed", "no_object")  # it becomes a label, so nothing else gets through


def read(entry: access_log_pb2.HTTPAccessLogEntry, ticket: str, named: str | None = None) -> Said:
    """Never raises for what an engine can send. `named`: the endpoint that its release named, as "ip:port"; None: it is
    not known any more, or Envoy chose."""
    common = entry.common_properties
    metadata = common.metadata.filter_metadata
    told = metadata.get(USAGE)
    fields = _NOTHING if told is None else scalars(told)
    flags = common.response_flags if common.HasField("response_flags") else None
    why = fields.get("body_edit")
    used = _endpoint(common)
    elsewhere = used is not None and used != named
    faults: list[Unreachable | TurnedAway | Failed] = []
    ignored = None
    if elsewhere and named is not None:
        if common.upstream_request_attempt_count > 1:
            faults.append(Unreachable(ticket))
        elif common.upstream_request_attempt_count == 1:
            ignored = used
    fault = (None if flags is None else _unreachable(flags, ticket)) or _no_answer(entry, ticket, fields)
    if fault is not None:
        faults.append(replace(fault, endpoint=used) if elsewhere else fault)
    counted = _usage(entry, ticket, fields, flags)
    return Said(
        replace(counted, endpoint=used) if elsewhere else counted,
        tuple(faults),
        ignored,
        why if isinstance(why, str) and why in _UNEDITED else None,
    )


def _endpoint(common: access_log_pb2.AccessLogCommon) -> str | None:
    """That Envoy tried last."""
    if not common.HasField("upstream_remote_address"):
        return None
    at = common.upstream_remote_address.socket_address
    return _spelt(at.address, at.port_value) if len(at.address) <= _LONGEST_ADDRESS else None


@lru_cache(maxsize=4096)
def _spelt(address: str, port: int) -> str | None:
    try:
        return ip_port(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    except ValueError:
        return None  # a socket of another kind


def _no_answer(
    entry: access_log_pb2.HTTPAccessLogEntry, ticket: str, fields: dict[str, Scalar]
) -> TurnedAway | Failed | None:
    """What the engine gave in place of one."""
    code = entry.response.response_code.value
    if code < 400:
        if not fields:
            return None
        told, kind = fields.get("error_code"), fields.get("error_type")
        return TurnedAway(ticket) if says_no_room(told, kind) else Failed(ticket) if says_failure(told) else None
    if entry.response.response_code_details != "via_upstream":
        return None
    return TurnedAway(ticket) if code in CODES else Failed(ticket) if says_failure(code) else None


def _unreachable(flags: access_log_pb2.ResponseFlags, ticket: str) -> Unreachable | None:
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return None  # the client left first
    if flags.upstream_connection_failure:
        return Unreachable(ticket)
    return Unreachable(ticket, broke=True) if _broke(flags) else None


def _broke(flags: access_log_pb2.ResponseFlags) -> bool:
    return flags.upstream_connection_termination or flags.upstream_remote_reset


def _usage(
    entry: access_log_pb2.HTTPAccessLogEntry,
    ticket: str,
    fields: dict[str, Scalar],
    flags: access_log_pb2.ResponseFlags | None,
) -> Usage:
    prompt, output = _tokens(fields.get("prompt_tokens")), _tokens(fields.get("completion_tokens"))
    cached = _tokens(fields.get("cached_tokens")) or 0
    if "cache_read_tokens" in fields or "cache_creation_tokens" in fields:
        # Anthropic's input_tokens are what was neither read from the cache nor written to it.
        cached = _tokens(fields.get("cache_read_tokens")) or 0
        prompt = (prompt or 0) + cached + (_tokens(fields.get("cache_creation_tokens")) or 0)
    if output is None and prompt is not None and (total := _tokens(fields.get("total_tokens"))) is not None:
        output = max(0, total - prompt)  # embeddings of some engines name no completion_tokens
    if output is not None:
        return Usage(ticket, Source.USAGE, prompt, cached, output)
    # 499 is Envoy's own word for a client that left: what ran until then was served.
    if flags is not None and _broke(flags):
        # It ran until then. Were it free of charge, a tenant whose requests break engines would always be next.
        return Usage(ticket, Source.TIME, prompt)
    code = entry.response.response_code.value
    if "error_code" in fields or "error_type" in fields or (code >= 400 and code != 499):
        return Usage(ticket, Source.ERROR, prompt)
    gone = code in (0, 499) or (
        flags is not None and (flags.downstream_connection_termination or flags.downstream_remote_reset)
    )
    # One that closes after the last byte has had all there was.
    left = gone and not entry.common_properties.HasField("time_to_last_downstream_tx_byte")
    return Usage(ticket, Source.ABORT if left else Source.TIME, prompt)


def _tokens(value: Scalar) -> int | None:
    if isinstance(value, bool) or not isinstance(value, float) or not value >= 0:
        return None
    return int(min(value, float(MAX_TOKENS)))
