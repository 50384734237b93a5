"""Writes docs/plots/*.csv and *.svg, and the tables of figures in docs/tuning.md, from runs in virtual time.

    python tools/gen_plots.py              all of them: half a minute
    python tools/gen_plots.py weights      these
    python tools/gen_plots.py --draw       no runs: drawn anew from the CSV files

The runs are in `plots_runs`. A drawing and a table are made of the CSV file alone, so tests can compare them.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import plots_runs
from plots_runs import Row
from plots_svg import Panel, Plot, Rows, draw

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PLOTS_FOLDER = DOCS / "tuning.md", DOCS / "plots"

_TPS = "output tokens a second"
_TTFT = "time to first token (s)"

PLOTS: dict[str, tuple[Callable[[], list[Row]], Plot]] = {
    "noisy": (
        plots_runs.noisy,
        Plot(
            "A burst of one tenant, with and without Fairlane",
            (
                Panel(
                    "The four others: longest wait of what was sent in each 10 s",
                    "since_s",
                    "sent (s)",
                    _TTFT,
                    {"straight to the engine": "polite_direct_s", "through Fairlane": "polite_fairlane_s"},
                ),
                Panel(
                    "The burst of 400: answers that have begun after each 10 s",
                    "since_s",
                    "time (s)",
                    "answers begun",
                    {"straight to the engine": "noisy_direct_begun", "through Fairlane": "noisy_fairlane_begun"},
                ),
            ),
        ),
    ),
    "weights": (
        plots_runs.weights,
        Plot(
            "Share of the service by weight",
            (
                Panel(
                    "Three tenants that always have something waiting",
                    "weight",
                    "weight of a (b and c: 1)",
                    "share of the service (%)",
                    {"a": "a", "a, by its weight": "a_due", "b, and c": "b"},
                ),
            ),
        ),
    ),
    "tenant-cap": (
        plots_runs.tenant_cap,
        Plot(
            "A tenant's max_in_flight: waits of others, and work of the engine",
            (
                Panel(
                    "Time to first token of another tenant",
                    "max_in_flight",
                    "max_in_flight of the busy tenant (slots)",
                    _TTFT,
                    {"p50": "people_ttft_p50_s", "p95": "people_ttft_p95_s"},
                ),
                Panel(
                    "Work of the engine",
                    "max_in_flight",
                    "max_in_flight of the busy tenant (slots)",
                    _TPS,
                    {"both tenants": "output_tokens_per_s"},
                ),
            ),
        ),
    ),
    "max-waiting": (
        plots_runs.max_waiting,
        Plot(
            "The standing queue inside the engine: waits and throughput",
            (
                Panel(
                    "Time to first token, p95, of a tenant with few requests",
                    "max_waiting",
                    "max_waiting (requests in the engine's own queue)",
                    _TTFT,
                    {"the engine heeds priorities": "ttft_p95_priority_s", "it does not": "ttft_p95_fcfs_s"},
                ),
                Panel(
                    "Work of the engine",
                    "max_waiting",
                    "max_waiting (requests in the engine's own queue)",
                    _TPS,
                    {"the engine heeds priorities": "output_tokens_per_s"},
                ),
            ),
        ),
    ),
    "max-tpot": (
        plots_runs.max_tpot,
        Plot(
            "The limit on time per output token: pace and throughput",
            (
                Panel(
                    "Pace that readers see",
                    "max_tpot_ms",
                    "max_tpot (ms)",
                    "time per output token (ms)",
                    {"p95": "tpot_p95_ms"},
                ),
                Panel("Work of the engine", "max_tpot_ms", "max_tpot (ms)", _TPS, {"output": "output_tokens_per_s"}),
            ),
        ),
    ),
    "start": (
        plots_runs.start,
        Plot(
            "How soon a new engine is full, by window.start",
            (
                Panel(
                    "A new engine of 128 slots, with 600 requests that wait",
                    "seconds",
                    "time since it was added (s)",
                    "requests running",
                    {f"start: {first}": f"start_{first}" for first in (4, 8, 32, 128)},
                ),
            ),
        ),
    ),
    "min-share": (
        plots_runs.min_share,
        Plot(
            "min_share of batch, behind chat at 90 % of the capacity",
            (
                Panel(
                    "What batch gets",
                    "min_share",
                    "min_share of batch (%)",
                    "share of the service (%)",
                    {"batch": "batch_share"},
                ),
                Panel(
                    "What chat waits",
                    "min_share",
                    "min_share of batch (%)",
                    _TTFT,
                    {"p50": "chat_ttft_p50_s", "p95": "chat_ttft_p95_s"},
                ),
            ),
        ),
    ),
    "headroom": (
        plots_runs.headroom,
        Plot(
            "headroom of batch, behind chat at half of the capacity",
            (
                Panel(
                    "What chat waits",
                    "headroom",
                    "headroom of batch (share of chat that may find no slot)",
                    _TTFT,
                    {"p95": "chat_ttft_p95_s", "p95, no headroom": "chat_ttft_p95_s_without"},
                    log_x=True,
                ),
                Panel(
                    "Work of the engine, both classes",
                    "headroom",
                    "headroom of batch (share of chat that may find no slot)",
                    _TPS,
                    {"with headroom": "output_tokens_per_s", "no headroom": "output_tokens_per_s_without"},
                    log_x=True,
                ),
            ),
        ),
    ),
    "preempt-after": (
        plots_runs.preempt_after,
        Plot(
            "preempt_after of chat, behind batch answers of a minute",
            (
                Panel(
                    "Time to first token of chat, p95",
                    "preempt_after_s",
                    "preempt_after of chat (s)",
                    _TTFT,
                    {
                        "chat has max_waiting 0": "ttft_p95_q0_s",
                        "chat has max_waiting 3": "ttft_p95_q3_s",
                        "max_waiting 3, nothing evicted": "ttft_p95_q3_s_without",
                    },
                ),
                Panel(
                    "Batch answers a minute, max_waiting 0",
                    "preempt_after_s",
                    "preempt_after of chat (s)",
                    "answers a minute",
                    {
                        "finished": "served_per_min_q0",
                        "evicted, to be sent again": "evicted_per_min_q0",
                        "finished, nothing evicted": "served_per_min_q0_without",
                    },
                ),
            ),
        ),
    ),
    "queue-timeout": (
        plots_runs.queue_timeout,
        Plot(
            "queue_timeout: refusals and waits, under lasting and passing overload",
            (
                Panel(
                    "Refused with 503 queue_timeout",
                    "queue_timeout_s",
                    "queue_timeout (s)",
                    "refused (%)",
                    {"1.5 times the capacity, always": "always_refused", "a burst of half a minute": "burst_refused"},
                ),
                Panel(
                    "Time to first token of the others, p95",
                    "queue_timeout_s",
                    "queue_timeout (s)",
                    _TTFT,
                    {
                        "1.5 times the capacity, always": "always_ttft_p95_s",
                        "a burst of half a minute": "burst_ttft_p95_s",
                    },
                ),
            ),
        ),
    ),
}


def to_csv(rows: Sequence[Row]) -> str:
    """Three significant digits, so that another machine's last bits do not show; nothing for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([["" if value is None else number(value) for value in row.values()] for row in rows])
    return out.getvalue()


def number(value: float) -> str:
    """As it stands in the files: 0.0031, 5.23, 529, 1840."""
    digits = f"{value:.3g}"
    return f"{float(digits):.0f}" if "e+" in digits else digits


def from_csv(content: str) -> Rows:
    return [
        {name: float(cell) if cell else None for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(content))
    ]


def table(content: str) -> str:
    """The CSV as Markdown. Columns that never change say nothing about the knob; they stand below it."""
    head, *body = csv.reader(io.StringIO(content))
    fixed = {n for n in range(len(head)) if len(body) > 1 and len({row[n] for row in body}) == 1}
    lines = [[name for n, name in enumerate(head) if n not in fixed], ["---:"] * (len(head) - len(fixed))]
    lines += [[cell for n, cell in enumerate(row) if n not in fixed] for row in body]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    same = ", ".join(f"`{head[n]}` {body[0][n]}" for n in sorted(fixed))
    below = textwrap.wrap(f"In all rows: {same}.", 120) if same else []
    return "\n".join([text, "", *below]).rstrip()


def with_tables(page: str) -> str:
    """The page with the table of each CSV between its two marks. Raises ValueError for a plot without marks."""
    for key in PLOTS:
        pattern = rf"(<!-- figures: plots/{key}\.csv -->\n).*?(<!-- end -->)"
        made = table((PLOTS_FOLDER / f"{key}.csv").read_text())
        page, count = re.subn(
            pattern, lambda found, made=made: f"{found[1]}\n{made}\n\n{found[2]}", page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{PAGE} has {count} places for the figures of {key}: there must be one")
    return page


def main(arguments: Sequence[str]) -> None:
    keys = [each for each in arguments if not each.startswith("-")] or list(PLOTS)
    PLOTS_FOLDER.mkdir(exist_ok=True)
    for key in keys:
        measure, plot = PLOTS[key]
        file = PLOTS_FOLDER / f"{key}.csv"
        if "--draw" not in arguments:
            file.write_text(to_csv(measure()))
        file.with_suffix(".svg").write_text(draw(plot, from_csv(file.read_text())))
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
