"""Rows of the dashboard that are about the engines, and about Fairlane itself."""

from __future__ import annotations

from dashboard_panel import (
    ENDPOINT,
    POOL,
    RATE,
    SERVICE,
    Panel,
    Query,
    Row,
    lines,
    quantile,
    rate,
    table,
)

STANCES = ("fresh", "stale", "outage", "starting", "down", "stalled")  # numbered from 1
_STANCE = " or ".join(
    f'{number} * (max by (pool, endpoint) (fairlane_endpoint_stance{{{ENDPOINT}, stance="{stance}"}}) == 1)'
    for number, stance in enumerate(STANCES, 1)
)
_STANCE_COLOURS = ("green", "yellow", "orange", "blue", "red", "purple")

WINDOWS = Row(
    "Windows",
    (
        lines(
            "Window of $endpoint",
            "Slots inside, ours and others', against the limit; R is what the engine is believed to run at once, q the "
            "standing queue beyond it.",
            "short",
            (f"fairlane_endpoint_in_flight_slots{{{ENDPOINT}}}", "ours {{instance}}"),
            (f"fairlane_endpoint_foreign_requests{{{ENDPOINT}}}", "foreign {{instance}}"),
            (f"fairlane_endpoint_limit_slots{{{ENDPOINT}}}", "limit {{instance}}"),
            (f"fairlane_endpoint_capacity_slots{{{ENDPOINT}}}", "R {{instance}}"),
            (f"fairlane_endpoint_queue_target_requests{{{ENDPOINT}}}", "q {{instance}}"),
            stacked=True,
            dashed="limit|R|q",
            repeat="endpoint",
        ),
        lines(
            "Room by endpoint",
            "Slots that may be taken now.",
            "short",
            (f"fairlane_endpoint_room_slots{{{ENDPOINT}}}", "{{endpoint}} {{instance}}"),
        ),
        Panel(
            "Stance by endpoint",
            "What each window goes by.",
            "short",
            (Query(_STANCE, "{{endpoint}}"),),
            kind="state-timeline",
            mappings={
                str(number): (stance, colour)
                for number, (stance, colour) in enumerate(zip(STANCES, _STANCE_COLOURS, strict=True), 1)
            },
        ),
        lines(
            "Age of metrics pages",
            "Time since the last good page of each endpoint. Long intervals are normal when idle.",
            "s",
            (f"fairlane_endpoint_scrape_age_seconds{{{ENDPOINT}}}", "{{endpoint}} {{instance}}"),
        ),
        lines(
            "Pages not read",
            "By cause; docs/engines.md has each kind.",
            "cps",
            (rate("fairlane_scrape_failures_total", ENDPOINT, "endpoint, kind"), "{{endpoint}} {{kind}}"),
        ),
        Panel(
            "Windows at their floor",
            "Endpoints whose window is as small as it may become.",
            "short",
            (Query(f"max by (pool, endpoint) (fairlane_endpoint_at_floor{{{ENDPOINT}}})", "{{endpoint}}"),),
            kind="state-timeline",
            mappings={"0": ("above", "green"), "1": ("at floor", "orange")},
        ),
        lines(
            "Endpoints",
            "By the last answer of where they come from, and its age.",
            "short",
            (f"fairlane_endpoints{{{POOL}}}", "{{pool}} {{instance}}"),
        ),
        lines(
            "Age and failures of endpoint sources",
            "Since a pool's endpoints were last known right; a list is as old as "
            "the process. Failures are counted over five minutes.",
            "s",
            (f"fairlane_endpoint_source_age_seconds{{{POOL}}}", "{{pool}} age {{instance}}"),
            (f"increase(fairlane_endpoint_source_failures_total{{{POOL}}}[5m])", "{{pool}} failures {{instance}}"),
        ),
        lines(
            "Time to read a page",
            "Of the last scrape.",
            "s",
            (f"fairlane_scrape_duration_seconds{{{ENDPOINT}}}", "{{endpoint}} {{instance}}"),
        ),
        lines(
            "Pages read",
            "Of each endpoint's metrics.",
            "cps",
            (rate("fairlane_scrapes_total", ENDPOINT, "endpoint"), "{{endpoint}}"),
        ),
    ),
)

ENGINES = Row(
    "Engine signals",
    (
        lines(
            "Running",
            "Requests in each engine's batch, as scraped.",
            "short",
            (f"max by (pool, endpoint) (fairlane_endpoint_running_requests{{{ENDPOINT}}})", "{{endpoint}}"),
        ),
        lines(
            "Waiting in the engine",
            "Requests in each engine's own queue, as scraped.",
            "short",
            (f"max by (pool, endpoint) (fairlane_endpoint_waiting_requests{{{ENDPOINT}}})", "{{endpoint}}"),
        ),
        lines(
            "KV cache in use",
            "As scraped.",
            "percentunit",
            (f"max by (pool, endpoint) (fairlane_endpoint_kv_usage_ratio{{{ENDPOINT}}})", "{{endpoint}}"),
            most=1.0,
        ),
        lines(
            "Time per output token",
            "Between the last two pages.",
            "s",
            (f"max by (pool, endpoint) (fairlane_endpoint_tpot_seconds{{{ENDPOINT}}})", "{{endpoint}}"),
        ),
        lines(
            "Window by time per output token",
            "W: slots that the latency limit allows. Nothing is shown while it sets none.",
            "short",
            (f"max by (pool, endpoint) (fairlane_endpoint_tpot_window_slots{{{ENDPOINT}}})", "{{endpoint}}"),
        ),
        lines(
            "Failed and turned away",
            "Requests that engines failed (500 and above, broken connections) or refused for want of room.",
            "reqps",
            (rate("fairlane_endpoint_failed_requests_total", ENDPOINT, "endpoint"), "{{endpoint}} failed"),
            (rate("fairlane_endpoint_turned_away_requests_total", ENDPOINT, "endpoint"), "{{endpoint}} turned away"),
        ),
        table(
            "How engines are read and told priorities",
            "The dialect of each page; through what, and which number goes first.",
            f"max by (pool, endpoint, dialect) (fairlane_dialect_info{{{ENDPOINT}}})",
            f"max by (pool, endpoint, via, first) (fairlane_priority_told_info{{{ENDPOINT}}})",
            width=16,
        ),
        lines(
            "Choices that Envoy ignored",
            "Requests that it sent to another endpoint: its list is another.",
            "reqps",
            (rate("fairlane_ignored_choices_total", POOL, "pool"), "{{pool}}"),
        ),
    ),
)

OPERATIONS = Row(
    "Operations",
    (
        lines(
            "Event loop lag",
            "How late timers come: every step of a request waits for so long.",
            "s",
            (quantile(0.5, "fairlane_loop_lag_seconds", SERVICE, "instance"), "{{instance}} p50"),
            (quantile(0.99, "fairlane_loop_lag_seconds", SERVICE, "instance"), "{{instance}} p99"),
        ),
        lines(
            "CPU",
            "Of each process; one core is 100 %.",
            "percentunit",
            (f"rate(process_cpu_seconds_total{{{SERVICE}}}{RATE})", "{{instance}}"),
        ),
        lines(
            "Memory",
            "Resident, of each process.",
            "bytes",
            (f"process_resident_memory_bytes{{{SERVICE}}}", "{{instance}}"),
        ),
        lines(
            "Faults",
            "Inside Fairlane, by where they came up. None is expected.",
            "cps",
            (rate("fairlane_faults_total", SERVICE, "where"), "{{where}}"),
        ),
        lines(
            "Let through",
            "Requests that were not scheduled, and why; `fault` is one to look at.",
            "reqps",
            (rate("fairlane_passed_requests_total", SERVICE, "why"), "{{why}}"),
            stacked=True,
        ),
        lines(
            "Open streams and pages",
            "Streams of Envoy's filters, one or two for each request; live pages that are open.",
            "short",
            (f"fairlane_open_streams{{{SERVICE}}}", "{{instance}} streams"),
            (f"fairlane_page_watchers{{{SERVICE}}}", "{{instance}} pages"),
        ),
        lines(
            "Leaked slots, untracked",
            "Slots that no stream holds: 0, or a fault. Requests whose second stream did not come, over five minutes.",
            "short",
            (f"fairlane_leaked_slots{{{POOL}}}", "{{pool}} leaked {{instance}}"),
            (f"increase(fairlane_untracked_requests_total{{{SERVICE}}}[5m])", "untracked {{instance}}"),
        ),
        lines(
            "Access log",
            "Entries by what was made of them; `other_process` belongs to another replica.",
            "cps",
            (rate("fairlane_access_log_entries_total", SERVICE, "kind"), "{{kind}}"),
        ),
        lines(
            "Bodies edited, classes clamped",
            "Bodies by outcome: anything but `edited` went as the client wrote it. "
            "Clamped: asked for a class that the tenant may not use.",
            "reqps",
            (rate("fairlane_body_edits_total", SERVICE, "outcome"), "{{outcome}}"),
            (rate("fairlane_clamped_requests_total", SERVICE), "clamped"),
        ),
        lines(
            "Configuration",
            "Revision in force, settings changed live, temporary ones that could not be undone.",
            "short",
            (f"fairlane_config_revision{{{SERVICE}}}", "{{instance}} revision"),
            (f"fairlane_config_overrides{{{SERVICE}}}", "{{instance}} changed live"),
            (f"fairlane_config_expiries_failed{{{SERVICE}}}", "{{instance}} not undone"),
        ),
        Panel(
            "File and state",
            "Whether the configuration file can be used as it is, and changes can be made live.",
            "short",
            (
                Query(f"fairlane_config_file_good{{{SERVICE}}}", "{{instance}} file"),
                Query(f"1 - fairlane_state_read_only{{{SERVICE}}}", "{{instance}} state"),
            ),
            kind="state-timeline",
            mappings={"0": ("broken", "red"), "1": ("good", "green")},
        ),
        lines(
            "Configuration age",
            "Since the file in force was read.",
            "s",
            (f"time() - fairlane_config_loaded_timestamp_seconds{{{SERVICE}}}", "{{instance}}"),
        ),
        lines(
            "Certificates",
            "Until a port's certificate expires. Empty without TLS.",
            "s",
            (f"fairlane_certificate_expiry_timestamp_seconds{{{SERVICE}}} - time()", "{{instance}} {{port}}"),
        ),
        lines(
            "Configuration changes by outcome",
            "Changes made through the admin API, and attempts.",
            "cps",
            (rate("fairlane_config_changes_total", SERVICE, "outcome"), "{{outcome}}"),
        ),
        lines(
            "Telemetry left out",
            "Log lines, spans and series that were dropped: requests are not affected.",
            "cps",
            (rate("fairlane_log_lines_left_out_total", SERVICE, "kind"), "lines {{kind}}"),
            (rate("fairlane_spans_dropped_total", SERVICE, "reason"), "spans {{reason}}"),
            (rate("fairlane_series_left_out_total", SERVICE), "series"),
        ),
        lines(
            "Impossible values reported",
            "Figures of engines (pages, token counts) and clocks that cannot be true: they were clamped or dropped.",
            "cps",
            (rate("fairlane_absurd_values_total", POOL, "pool, kind"), "{{pool}} {{kind}}"),
        ),
        table(
            "Build and pools",
            "Versions; the mode and the traffic of each pool.",
            f"fairlane_build_info{{{SERVICE}}}",
            f"fairlane_pool_info{{{POOL}}}",
            width=24,
        ),
    ),
)

REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "Active",
            "Which replicas take traffic. In mode standby one does.",
            "short",
            (Query(f"fairlane_cluster_active{{{SERVICE}}}", "{{instance}}"),),
            kind="state-timeline",
            mappings={"0": ("stands by", "blue"), "1": ("active", "green")},
        ),
        Panel(
            "Store",
            "Whether the store by which the replicas meet answers.",
            "short",
            (
                Query(f"fairlane_cluster_store_lost{{{SERVICE}}}", "{{instance}}"),
                Query(f"2 * fairlane_cluster_id_in_use{{{SERVICE}}}", "{{instance}} id"),
            ),
            kind="state-timeline",
            mappings={"0": ("good", "green"), "1": ("lost", "red"), "2": ("id in use", "red")},
        ),
        lines(
            "Replicas that live",
            "As each of them sees it, and how many there should be.",
            "short",
            (f"fairlane_cluster_replicas{{{SERVICE}}}", "{{instance}}"),
            (f"max(fairlane_cluster_expected_replicas{{{SERVICE}}})", "expected"),
            dashed="expected",
        ),
        lines(
            "Age of what is known",
            "Since the store's last answer. Longer when nothing waits or runs.",
            "s",
            (f"fairlane_cluster_exchange_age_seconds{{{SERVICE}}}", "{{instance}}"),
        ),
        lines(
            "Time of an exchange",
            "Until the store has answered.",
            "s",
            (quantile(0.5, "fairlane_cluster_exchange_seconds", SERVICE, "instance"), "{{instance}} p50"),
            (quantile(0.99, "fairlane_cluster_exchange_seconds", SERVICE, "instance"), "{{instance}} p99"),
        ),
        lines(
            "Exchanges",
            "With the store; those that failed, by cause.",
            "cps",
            (rate("fairlane_cluster_exchanges_total", SERVICE, "instance"), "{{instance}}"),
            (rate("fairlane_cluster_exchange_failures_total", SERVICE, "instance, kind"), "{{instance}} {{kind}}"),
        ),
        lines(
            "Claim of $endpoint",
            "Cluster mode shared: slots that each replica may hold, and holds.",
            "short",
            (f"fairlane_endpoint_claim_slots{{{ENDPOINT}}}", "may {{instance}}"),
            (
                f"fairlane_endpoint_in_flight_slots{{{ENDPOINT}}} and fairlane_endpoint_claim_slots{{{ENDPOINT}}}",
                "holds {{instance}}",
            ),
            dashed="may",
            repeat="endpoint",
        ),
        lines(
            "Held by others",
            "Slots, as each replica last heard.",
            "short",
            (f"fairlane_endpoint_others_slots{{{ENDPOINT}}}", "{{endpoint}} {{instance}}"),
        ),
        lines(
            "Bytes, and what could not be read",
            "Of all replicas, to and from the store; messages of others that could not be read.",
            "Bps",
            (rate("fairlane_cluster_bytes_total", SERVICE, "direction"), "{{direction}}"),
            (rate("fairlane_cluster_bad_messages_total", SERVICE, "instance"), "{{instance}} not read"),
        ),
        lines(
            "Streams at a replica that stands by",
            "They are served. Envoy sends some when no replica is healthy.",
            "cps",
            (rate("fairlane_cluster_standby_streams_total", SERVICE, "instance"), "{{instance}}"),
        ),
        table(
            "Cluster",
            "Mode, name and id of each replica; other versions in the store.",
            f"fairlane_cluster_info{{{SERVICE}}}",
            f"fairlane_cluster_other_versions{{{SERVICE}}}",
            width=16,
        ),
    ),
    collapsed=True,
)
