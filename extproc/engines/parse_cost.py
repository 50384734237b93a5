"""What reading a page costs: CPU time of our parser, beside that of prometheus-client's on the same page."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median

from prometheus_client.parser import text_string_to_metric_families

from extproc.engines.exposition import parse


@dataclass(frozen=True, slots=True)
class ParseCost:
    """Medians, in seconds of CPU time for one page."""

    page_bytes: int
    parse_s: float  # ours
    prometheus_client_s: float

    @property
    def ratio(self) -> float:
        """How many times as long prometheus-client takes."""
        return self.prometheus_client_s / self.parse_s


def parse_cost(page: bytes, wanted: AbstractSet[str], *, runs: int = 200) -> ParseCost:
    """Parses a page `runs` times for the wanted names, and a tenth as often with prometheus-client, which reads all.

    Raises MetricsError if the page cannot be read, and ValueError where prometheus-client refuses it."""
    text = page.decode()
    return ParseCost(
        page_bytes=len(page),
        parse_s=_median_s(lambda: parse(page, wanted), runs),
        prometheus_client_s=_median_s(lambda: list(text_string_to_metric_families(text)), max(1, runs // 10)),
    )


def _median_s(work: Callable[[], object], runs: int) -> float:
    work()  # compiles the expression, warms the caches
    spent = []
    for _ in range(runs):
        before = time.thread_time()
        work()
        spent.append(time.thread_time() - before)
    return median(spent)
