"""Rows of the dashboard that are about requests: what waits, why, and what is served."""

from __future__ import annotations

from dashboard_panel import (
    CLASS,
    ENDPOINT,
    POOL,
    RATE,
    SERVICE,
    Panel,
    Query,
    Row,
    lines,
    number,
    quantile,
    rate,
    sum_of,
    table,
)

_WARN_AT_ONE = ((None, "green"), (1.0, "red"))
_RELEASED = f'{CLASS}, outcome="released"'
_REFUSED_SHARE = (
    f"sum(rate(fairlane_refused_requests_total{{{SERVICE}}}{RATE})) / (sum(rate(fairlane_refused_requests_total"
    f"{{{SERVICE}}}{RATE})) + (sum(rate(fairlane_released_requests_total{{{SERVICE}}}{RATE})) or vector(0)))"
)

OVERVIEW = Row(
    "Overview",
    (
        number("Held", "Requests that wait now.", "short", sum_of("fairlane_held_requests", CLASS)),
        number(
            "In flight",
            "Engine slots held by requests of ours.",
            "short",
            sum_of("fairlane_class_in_flight_slots", CLASS),
        ),
        number(
            "Released",
            "Requests sent on to an engine, each second.",
            "reqps",
            rate("fairlane_released_requests_total", CLASS),
        ),
        number(
            "Refused",
            "Refused requests, of those refused or released, in all pools.",
            "percentunit",
            _REFUSED_SHARE,
            thresholds=((None, "green"), (0.01, "yellow"), (0.05, "red")),
        ),
        number(
            "Wait, p95", "Wait of released requests.", "s", quantile(0.95, "fairlane_queue_wait_seconds", _RELEASED)
        ),
        number(
            "Endpoints not fresh",
            "Endpoints whose metrics page is old, cannot be read, or shows no progress.",
            "short",
            f'sum(fairlane_endpoint_stance{{{ENDPOINT}, stance!="fresh"}})',
            thresholds=_WARN_AT_ONE,
        ),
        number(
            "Nothing released for",
            "Longest time for which something waits in a pool and nothing has gone. 0: nothing waits, or nothing may "
            "go.",
            "s",
            f"max(fairlane_queue_stalled_seconds{{{POOL}}})",
            thresholds=((None, "green"), (30.0, "yellow"), (60.0, "red")),
        ),
        number(
            "Faults, 1 h",
            "Faults inside Fairlane in the last hour. None is expected.",
            "short",
            f"sum(increase(fairlane_faults_total{{{SERVICE}}}[1h]))",
            thresholds=_WARN_AT_ONE,
        ),
        lines(
            "Held requests by class",
            "Requests that wait.",
            "short",
            (sum_of("fairlane_held_requests", CLASS, "pool, class"), "{{pool}} {{class}}"),
            stacked=True,
        ),
        lines(
            "In flight by class",
            "Engine slots held; a request with n > 1 holds several.",
            "short",
            (sum_of("fairlane_class_in_flight_slots", CLASS, "pool, class"), "{{pool}} {{class}}"),
            stacked=True,
        ),
        lines(
            "Released by class",
            "Requests sent on to an engine.",
            "reqps",
            (rate("fairlane_released_requests_total", CLASS, "pool, class"), "{{pool}} {{class}}"),
            stacked=True,
        ),
        lines(
            "Wait by class",
            "Time from a request's first arrival to its release: median, p95, p99, and the class's wait_objective, if"
            " it "
            "has one.",
            "s",
            *(
                (
                    quantile(share, "fairlane_queue_wait_seconds", _RELEASED, "pool, class"),
                    f"{{{{pool}}}} {{{{class}}}} {name}",
                )
                for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ),
            (
                f"max by (pool, class) (fairlane_class_wait_objective_seconds{{{CLASS}}})",
                "{{pool}} {{class}} objective",
            ),
            dashed="objective",
            width=12,
        ),
        Panel(
            "Wait of released requests",
            "How many waited for how long.",
            "s",
            (Query(rate("fairlane_queue_wait_seconds_bucket", _RELEASED, "le"), "{{le}}"),),
            kind="heatmap",
            width=12,
        ),
        lines(
            "Refusals by reason",
            "Requests answered without an engine, in all pools.",
            "reqps",
            (rate("fairlane_refused_requests_total", SERVICE, "reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Wait before a refusal",
            "p95, by reason: how long clients waited for a no.",
            "s",
            (quantile(0.95, "fairlane_queue_wait_seconds", f'{CLASS}, outcome!="released"', "outcome"), "{{outcome}}"),
        ),
        lines(
            "Left, evicted, handed over",
            "Requests whose client left while held; that made room for a more urgent class; let go at a shutdown for "
            "another replica.",
            "reqps",
            (rate("fairlane_cancelled_requests_total", POOL, "pool"), "{{pool}} left"),
            (rate("fairlane_evicted_requests_total", CLASS, "pool, class"), "{{pool}} {{class}} evicted"),
            (rate("fairlane_handed_over_requests_total", POOL, "pool"), "{{pool}} handed over"),
        ),
    ),
)

CLASSES = Row(
    "Classes",
    (
        Panel(
            "What holds each class",
            "The cause that holds the class's next request. Nothing is shown while nothing waits. docs/admin.md, "
            "`fairlane ctl explain`.",
            "short",
            (
                Query(
                    f"max by (pool, class, hold) (fairlane_class_hold{{{CLASS}}}) == 1",
                    "{{pool}} {{class}}: {{hold}}",
                ),
            ),
            kind="state-timeline",
            width=12,
            mappings={"1": ("holds", "orange")},
        ),
        lines(
            "Gates closed",
            "Endpoints at which a gate of the class is closed. Only gates that are set.",
            "short",
            (
                f"max by (pool, class, gate) (fairlane_class_gate_closed_endpoints{{{CLASS}}})",
                "{{pool}} {{class}} {{gate}}",
            ),
            width=12,
        ),
        lines(
            "Service by class",
            "Cost of settled requests, in the pool's cost units.",
            "short",
            (rate("fairlane_settled_cost_total", CLASS, "pool, class"), "{{pool}} {{class}}"),
            stacked=True,
        ),
        lines(
            "Estimated / final cost",
            "Of requests whose tokens were counted: median and p90. 1 is right.",
            "none",
            (quantile(0.5, "fairlane_estimate_ratio", CLASS, "pool, class"), "{{pool}} {{class}} p50"),
            (quantile(0.9, "fairlane_estimate_ratio", CLASS, "pool, class"), "{{pool}} {{class}} p90"),
        ),
        lines(
            "Settled by source",
            "Where final costs come from: usage and stream are counted; time and estimate are guesses.",
            "reqps",
            (rate("fairlane_settled_requests_total", CLASS, "source"), "{{source}}"),
            stacked=True,
        ),
        lines(
            "Queue in use",
            "Held requests, of max_queued of the class and of the pool.",
            "percentunit",
            (
                f"fairlane_held_requests{{{CLASS}}} / on (job, instance, pool, class) "
                f"fairlane_class_max_queued_requests{{{CLASS}}}",
                "{{pool}} {{class}}",
            ),
            (
                f"sum by (job, instance, pool) (fairlane_held_requests{{{POOL}}}) / on (job, instance, pool) "
                f"fairlane_pool_max_queued_requests{{{POOL}}}",
                "{{pool}}, all classes",
            ),
            (
                f"fairlane_held_bytes{{{POOL}}} / on (job, instance, pool) fairlane_pool_max_queued_bytes{{{POOL}}}",
                "{{pool}}, bytes",
            ),
            most=1.0,
        ),
        lines(
            "Slots and max_in_flight",
            "Slots of classes that have a limit, and the limit.",
            "short",
            (
                f"fairlane_class_in_flight_slots{{{CLASS}}} and on (job, instance, pool, class) "
                f"fairlane_class_max_in_flight_slots{{{CLASS}}}",
                "{{pool}} {{class}}",
            ),
            (f"fairlane_class_max_in_flight_slots{{{CLASS}}}", "{{pool}} {{class}} limit"),
            dashed="limit",
        ),
        lines(
            "Priorities that engines were told",
            "By number: the class's, plus what the tenant has inside.",
            "reqps",
            (rate("fairlane_released_priority_total", CLASS, "priority"), "{{priority}}"),
            stacked=True,
        ),
        table(
            "Limits in force",
            "Of each class; what is not set has no row.",
            *(
                f'label_replace(max by (pool, class) (fairlane_class_{name}{{{CLASS}}}), "limit", "{name}", "", "")'
                for name in (
                    "max_queued_requests",
                    "max_queued_bytes",
                    "max_queued_tokens",
                    "max_in_flight_slots",
                    "max_waiting_requests",
                    "queue_timeout_seconds",
                    "min_share_ratio",
                    "wait_objective_seconds",
                )
            ),
        ),
    ),
)

FAIRNESS = Row(
    "Fairness",
    (
        lines(
            "Jain's index",
            "Of the last minute, over tenants that had something waiting all the time, by service / weight. "
            "1: equal; 1/n: one has it all. Nothing is shown where fewer than two compete.",
            "none",
            (f"min by (pool, class) (fairlane_class_jain_index{{{CLASS}}})", "{{pool}} {{class}}"),
            most=1.0,
        ),
        lines(
            "Tag spread",
            "Between the tenant who has had most and the one who has had least, cost units / weight.",
            "short",
            (f"max by (pool, class) (fairlane_class_tag_spread{{{CLASS}}})", "{{pool}} {{class}}"),
        ),
        lines(
            "Competing tenants",
            "Those that had something waiting all the time, and all with state.",
            "short",
            (f"max by (pool, class) (fairlane_class_competing_tenants{{{CLASS}}})", "{{pool}} {{class}} competing"),
            (f"max by (pool, class) (fairlane_flows{{{CLASS}}})", "{{pool}} {{class}} with state"),
        ),
        lines(
            "Service by tenant",
            "Settled cost of tenants that have series of their own, and of all others.",
            "short",
            (f"topk(10, {rate('fairlane_tenant_settled_cost_total', POOL, 'pool, tenant')})", "{{pool}} {{tenant}}"),
            stacked=True,
            width=6,
        ),
        lines(
            "Held by tenant",
            "Requests that wait, of named tenants.",
            "short",
            (
                f"topk(10, {sum_of('fairlane_tenant_held_requests', POOL, 'pool, tenant')})",
                "{{pool}} {{tenant}}",
            ),
            width=6,
        ),
        lines(
            "Mean wait by tenant",
            "Of released requests.",
            "s",
            (
                f"topk(10, {rate('fairlane_tenant_queue_wait_seconds_total', POOL, 'pool, tenant')} / "
                f"({rate('fairlane_tenant_released_requests_total', POOL, 'pool, tenant')} > 0))",
                "{{pool}} {{tenant}}",
            ),
            width=6,
        ),
        lines(
            "Refusals by tenant",
            "Of tenants that have series of their own, and of all others.",
            "reqps",
            (
                f"topk(10, {rate('fairlane_tenant_refused_requests_total', POOL, 'pool, tenant')})",
                "{{pool}} {{tenant}}",
            ),
            width=6,
        ),
    ),
)

TOKENS = Row(
    "Tokens",
    (
        lines(
            "Tokens served",
            "As counted in answers: prompt (those from a cache among them), cached, output.",
            "short",
            (rate("fairlane_settled_tokens_total", CLASS, "kind"), "{{kind}} each second"),
        ),
        lines(
            "Tokens released and waiting",
            "Estimates: sent on each second, and in the queues.",
            "short",
            (rate("fairlane_released_tokens_total", CLASS), "released each second"),
            (sum_of("fairlane_held_tokens", CLASS), "waiting"),
        ),
        lines(
            "Cost waiting",
            "Estimate, in the pool's cost units.",
            "short",
            (sum_of("fairlane_held_cost", CLASS, "pool, class"), "{{pool}} {{class}}"),
            stacked=True,
        ),
        lines(
            "Cached share of prompts",
            "As engines report it with answers.",
            "percentunit",
            (
                f'sum by (pool) (rate(fairlane_settled_tokens_total{{{CLASS}, kind="cached"}}{RATE})) / '
                f'(sum by (pool) (rate(fairlane_settled_tokens_total{{{CLASS}, kind="prompt"}}{RATE})) > 0)',
                "{{pool}}",
            ),
            most=1.0,
        ),
        lines(
            "Prefix cache hits",
            "Of the prompt tokens that each engine looked up, as its page says.",
            "percentunit",
            (
                f"{rate('fairlane_endpoint_prefix_hit_tokens_total', ENDPOINT, 'pool, endpoint')} / "
                f"({rate('fairlane_endpoint_prefix_query_tokens_total', ENDPOINT, 'pool, endpoint')} > 0)",
                "{{endpoint}}",
            ),
            most=1.0,
        ),
        lines(
            "Bodies held",
            "Bytes of the bodies of requests that wait; they lie in Envoy's memory.",
            "bytes",
            (sum_of("fairlane_held_bytes", POOL, "pool"), "{{pool}}"),
        ),
    ),
)

OBSERVED = Row(
    "Observe mode",
    (
        lines(
            "What would become of requests",
            "Of pools in mode observe, where requests pass: by outcome.",
            "reqps",
            (
                rate("fairlane_observed_requests_total", CLASS, "pool, class, outcome"),
                "{{pool}} {{class}} {{outcome}}",
            ),
        ),
        lines(
            "How long they would wait",
            "p95, by class.",
            "s",
            (quantile(0.95, "fairlane_observed_wait_seconds", CLASS, "pool, class"), "{{pool}} {{class}}"),
        ),
        lines(
            "How many would wait, and priorities",
            "Requests that would be held now; numbers that the engine would be told.",
            "short",
            (sum_of("fairlane_observed_held_requests", CLASS, "pool, class"), "{{pool}} {{class}} held"),
            (rate("fairlane_observed_priority_total", CLASS, "priority"), "priority {{priority}} each second"),
        ),
    ),
    collapsed=True,
)
