"""A class's own thresholds on an endpoint's signals.

`max_waiting` closes at the threshold, the others above it. What is unknown closes nothing: an idle engine must open.
Latencies are those of the last page alone, and unknown if it had no tokens.
"""

from __future__ import annotations

from extproc.core.model import Gates, Sample
from extproc.core.windows.view import Hold


def closed_gate(gates: Gates, page: Sample, tpot_s: float | None, ttft_s: float | None) -> Hold | None:
    """The first of `gates` that is closed by a fresh `page` and its latencies; None: all are open."""
    if gates.max_waiting is not None and page.waiting >= gates.max_waiting:
        return Hold("max_waiting", page.waiting, gates.max_waiting, "requests")
    for name, value, limit, unit in (
        ("max_tpot", tpot_s, gates.max_tpot_s, "s"),
        ("max_kv_usage", page.kv_usage, gates.max_kv_usage, "ratio"),
        ("max_ttft", ttft_s, gates.max_ttft_s, "s"),
    ):
        if value is not None and limit is not None and value > limit:
            return Hold(name, value, limit, unit)
    return None
