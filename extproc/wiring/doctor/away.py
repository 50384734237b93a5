"""When Fairlane is away: how Envoy tries again, and what it does when it gives up.

A held request outlives Fairlane, since nothing was written on its stream: Envoy opens another one, to the same replica
when it is back or to another. So restarts are cheap as long as the retries last and name every way of being away.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Processor, Setup

RETRY_ON = ("connect-failure", "refused-stream", "unavailable", "reset", "reset-before-request")
_RETRY_POLICY = f"""grpc_service:
  retry_policy:
    retry_on: {",".join(RETRY_ON)}
    num_retries: 240
    retry_back_off: {{ base_interval: 0.1s, max_interval: 0.5s }}
    retry_host_predicate:
    - name: envoy.retry_host_predicates.previous_hosts
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
    host_selection_retry_max_attempts: 3"""
# A restart takes some seconds; Envoy chooses each back-off at random below its maximum.
_SHORTEST_AWAY_S = 30.0
_BACK_OFF_S = 0.25  # Envoy's maximum: ten times its base of 25 ms
_STREAMED = (Body.STREAMED, Body.FULL_DUPLEX_STREAMED)


# -- trying again ------------------------------------------------------------------------------------


def _retry_missing(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        inner = each.service.envoy_grpc.retry_policy if each.service.envoy_grpc is not None else None
        if each.service.retry_policy is None and inner is None:
            yield Hit(each.at, "grpc_service has no retry_policy")


def _retry_misplaced(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        inner = each.service.envoy_grpc.retry_policy if each.service.envoy_grpc is not None else None
        if inner is not None and each.service.retry_policy is None:
            yield Hit(each.at, "retry_policy stands in envoy_grpc")


def _retry_on(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        policy = each.service.retry_policy
        if policy is not None:
            given = {word.strip() for word in policy.retry_on.split(",")}
            missing = [word for word in RETRY_ON if word not in given]
            if missing:
                yield Hit(at(each.at, "grpc_service", "retry_policy"), f"retry_on lacks {', '.join(missing)}")


def _retry_span(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        policy = each.service.retry_policy
        if policy is None:
            continue
        count = 1 if policy.num_retries is None else policy.num_retries
        longest = policy.retry_back_off.max_interval if policy.retry_back_off is not None else None
        span = count * (_BACK_OFF_S if longest is None else longest.total_seconds()) / 2
        if span < _SHORTEST_AWAY_S:
            place = at(each.at, "grpc_service", "retry_policy")
            yield Hit(place, f"num_retries is {count}, which lasts for about {span:.3g}s")


def _previous_hosts(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        policy = each.service.retry_policy
        names = [p.name for p in policy.retry_host_predicate] if policy is not None else []
        if policy is not None and _several(setup, each) and not any("previous_hosts" in name for name in names):
            yield Hit(at(each.at, "grpc_service", "retry_policy"), "retry_host_predicate has no previous_hosts")


def _several(setup: Setup, each: Processor) -> bool:
    name = each.service.envoy_grpc.cluster_name if each.service.envoy_grpc is not None else ""
    return name in setup.clusters and setup.clusters[name].several


# -- when Fairlane is away ---------------------------------------------------------------------------


def _cuts_answers(setup: Setup) -> Iterator[Hit]:
    for _, each, mode in setup.modes():
        closed = not each.config.failure_mode_allow
        duplex = mode.request_body == Body.FULL_DUPLEX_STREAMED or mode.response_body in _STREAMED
        if closed and not each.holds_only and mode.response_trailers and not duplex:
            yield Hit(each.at, "failure_mode_allow is off in a filter that follows the answer")


def _open_hold(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.processors:
            if each.holds_only and each.config.failure_mode_allow:
                yield Hit(each.at, "failure_mode_allow is on in a filter that only holds")


def _open_against_on_fault(setup: Setup) -> Iterator[Hit]:
    if setup.config.on_fault != "reject":
        return
    for _, each in setup.holders():
        if each.config.failure_mode_allow and not each.holds_only:
            yield Hit(each.at, "on_fault is reject, and failure_mode_allow is on")


def _duplex_open(setup: Setup) -> Iterator[Hit]:
    for _, each, mode in setup.modes():
        if each.config.failure_mode_allow and mode.request_body == Body.FULL_DUPLEX_STREAMED:
            yield Hit(each.at, "failure_mode_allow with FULL_DUPLEX_STREAMED")


CHECKS = (
    Check(
        "retry_policy_missing",
        Severity.ERROR,
        "A held request outlives Fairlane only if Envoy opens its stream again, which it does by the retry_policy of "
        "grpc_service.",
        _RETRY_POLICY,
        _retry_missing,
    ),
    Check(
        "retry_policy_misplaced",
        Severity.ERROR,
        "Inside envoy_grpc a retry_policy has no effect on ext_proc; it has to stand directly in grpc_service.",
        _RETRY_POLICY,
        _retry_misplaced,
    ),
    Check(
        "retry_on",
        Severity.ERROR,
        "Fairlane goes away in several ways (refused, reset, GOAWAY, no host), and a held request is lost by each that "
        "is not named in retry_on.",
        f"retry_on: {','.join(RETRY_ON)}",
        _retry_on,
    ),
    Check(
        "retry_span",
        Severity.WARNING,
        "When the retries are used up before Fairlane is back, what was held passes unscheduled or fails; the default "
        "is one retry.",
        "num_retries: 240\nretry_back_off: { base_interval: 0.1s, max_interval: 0.5s }",
        _retry_span,
    ),
    Check(
        "retry_previous_hosts",
        Severity.WARNING,
        "Without previous_hosts a retry goes to the replica that has just failed as often as to another.",
        "retry_host_predicate:\n- name: envoy.retry_host_predicates.previous_hosts\n  typed_config:\n"
        '    "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate\n'
        "host_selection_retry_max_attempts: 3",
        _previous_hosts,
    ),
    Check(
        "answers_cut",
        Severity.ERROR,
        "Where a filter that is open to the end of the answer fails closed, the end of Fairlane cuts every answer "
        "that is under way; to refuse unscheduled requests, use two filters (profile strict).",
        "failure_mode_allow: true",
        _cuts_answers,
    ),
    Check(
        "hold_fails_open",
        Severity.ERROR,
        "A filter that only holds is there to let nothing pass unscheduled, and failure_mode_allow lets it pass.",
        "failure_mode_allow: false",
        _open_hold,
    ),
    Check(
        "on_fault_fails_open",
        Severity.WARNING,
        "on_fault: reject refuses what Fairlane cannot schedule, but with failure_mode_allow requests pass "
        "unscheduled while Fairlane is away; profile strict refuses them.",
        "# two filters as in envoy/strict.yaml, or on_fault: pass",
        _open_against_on_fault,
    ),
    Check(
        "full_duplex_fails_open",
        Severity.NOTE,
        "With FULL_DUPLEX_STREAMED Envoy lets a request pass only as long as no piece of its body was sent; later it "
        "fails, and so does what is held there.",
        "# profile standard or body for requests that are to outlive Fairlane",
        _duplex_open,
    ),
)
