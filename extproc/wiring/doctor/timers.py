"""Clocks that run while a request is held, or that cut what was released.

All were measured on Envoy 1.40: which of them count during a hold, from when, and what the client gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Setup

_MESSAGE_S = 0.2  # Envoy's defaults
_IDLE_S = 300.0
_ROUTE_S = 15.0
# OpenAI's clients give up after ten minutes; an answer may take as long.
_LONG_ANSWER_S = 600.0


def _seconds(duration: timedelta | None, default: float) -> float:
    return default if duration is None else duration.total_seconds()


def _shown(duration: timedelta | None, default: float) -> str:
    return f"{default:g}s by default" if duration is None else f"{duration.total_seconds():g}s"


def _held(setup: Setup) -> str:
    held = f"a request may be held for {setup.longest_s:g}s (the longest queue_timeout)"
    return held if setup.enforcing else f"{held} once a pool is in mode enforce"


def _message_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.holders:
            timeout = each.config.message_timeout
            silent = any(mode.request_body != Body.FULL_DUPLEX_STREAMED for mode in gateway.modes(each))
            if silent and _seconds(timeout, _MESSAGE_S) <= setup.longest_s:
                yield Hit(each.at, f"message_timeout is {_shown(timeout, _MESSAGE_S)}, and {_held(setup)}")


def _stream_idle_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        timeout = gateway.manager.message.stream_idle_timeout
        seconds = _seconds(timeout, _IDLE_S)
        # a route's own value takes its place
        counts = any(r.action is not None and r.action.idle_timeout is None for r in gateway.queued)
        if counts and 0 < seconds <= setup.longest_s:
            shown = _shown(timeout, _IDLE_S)
            yield Hit(gateway.manager.where, f"stream_idle_timeout is {shown}, and {_held(setup)}")


def _route_idle_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            timeout = route.action.idle_timeout if route.action is not None else None
            if timeout is not None and 0 < timeout.total_seconds() <= setup.longest_s:
                yield Hit(at(route.where, "route"), f"idle_timeout is {timeout.total_seconds():g}s, and {_held(setup)}")


def _route_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            timeout = route.action.timeout if route.action is not None else None
            if 0 < _seconds(timeout, _ROUTE_S) < max(setup.longest_s, _LONG_ANSWER_S):
                yield Hit(at(route.where, "route"), f"timeout is {_shown(timeout, _ROUTE_S)}")


def _per_try_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            policy = route.action.retry_policy if route.action is not None else None
            for name in ("per_try_timeout", "per_try_idle_timeout"):
                timeout: timedelta | None = getattr(policy, name, None)
                if 0 < _seconds(timeout, 0.0) < _LONG_ANSWER_S:
                    yield Hit(
                        at(route.where, "route", "retry_policy"), f"{name} is {_shown(timeout, 0)}", f"{name}: 0s"
                    )


def _max_stream_duration(setup: Setup) -> Iterator[Hit]:
    needed = setup.longest_s + _LONG_ANSWER_S
    for gateway in setup.gateways:
        options = gateway.manager.message.common_http_protocol_options
        limit = options.max_stream_duration if options is not None else None
        if 0 < _seconds(limit, 0.0) < needed:
            place = at(gateway.manager.where, "common_http_protocol_options")
            yield Hit(place, f"max_stream_duration is {_shown(limit, 0)}, and {_held(setup)}")
        for route in gateway.queued:
            own = route.action.max_stream_duration if route.action is not None else None
            limit = own.max_stream_duration if own is not None else None
            if 0 < _seconds(limit, 0.0) < needed:
                place = at(route.where, "route", "max_stream_duration")
                yield Hit(place, f"max_stream_duration is {_shown(limit, 0)}, and {_held(setup)}")
    for cluster in setup.fairlane:
        options = cluster.options.message.common_http_protocol_options if cluster.options is not None else None
        limit = options.max_stream_duration if options is not None else None
        if 0 < _seconds(limit, 0.0) < needed:
            place = at(cluster.options_at, "common_http_protocol_options")
            yield Hit(place, f"max_stream_duration of Fairlane's cluster is {_shown(limit, 0)}, and {_held(setup)}")


def _grpc_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.processors:
            if each.service.timeout is not None:
                yield Hit(at(each.at, "grpc_service"), f"timeout is {_shown(each.service.timeout, 0)}")


def _request_timeout(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if _seconds(gateway.manager.message.request_timeout, 0.0) == 0:
            yield Hit(gateway.manager.where, "request_timeout is off")


CHECKS = (
    Check(
        "message_timeout",
        Severity.ERROR,
        "ext_proc's message_timeout runs while a request is held; when it ends the request passes unscheduled, or gets "
        "504 where the filter fails closed.",
        "message_timeout: 3600s   # the most that Envoy takes",
        _message_timeout,
    ),
    Check(
        "stream_idle_timeout",
        Severity.ERROR,
        "A held request is an idle stream, and is answered 504 when stream_idle_timeout ends.",
        "stream_idle_timeout: 0s",
        _stream_idle_timeout,
    ),
    Check(
        "route_idle_timeout",
        Severity.ERROR,
        "A held request is an idle stream, and is answered 504 when the route's idle_timeout ends, which takes the "
        "place of stream_idle_timeout.",
        "idle_timeout: 0s",
        _route_idle_timeout,
    ),
    Check(
        "route_timeout",
        Severity.ERROR,
        "The route's timeout starts when a request is released, and cuts the answer when it ends.",
        "timeout: 0s",
        _route_timeout,
    ),
    Check(
        "per_try_timeout",
        Severity.ERROR,
        "A time-out of one try cuts a long answer, or sends the request to a second engine while the first one works.",
        "per_try_timeout: 0s",
        _per_try_timeout,
    ),
    Check(
        "max_stream_duration",
        Severity.ERROR,
        "max_stream_duration counts the time in the queue and the answer; on Fairlane's cluster it ends the stream "
        "that holds the request.",
        "max_stream_duration: 0s",
        _max_stream_duration,
    ),
    Check(
        "grpc_timeout",
        Severity.NOTE,
        "The timeout of grpc_service has no effect on ext_proc's stream (measured on 1.40): message_timeout is what "
        "counts.",
        "# leave `timeout` out of grpc_service",
        _grpc_timeout,
    ),
    Check(
        "request_timeout",
        Severity.NOTE,
        "A client that stops in the middle of its body holds its connection for ever; request_timeout ends when the "
        "body is there, and so does not count the time in the queue.",
        "request_timeout: 300s",
        _request_timeout,
    ),
)
