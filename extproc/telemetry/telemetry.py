"""All that is told of requests, put together: metrics, lines, spans, and what is looked at again and again.

The edge tells `metrics` (what happened, to be counted) and `journal` (what happened to single requests). Switched off,
there is no journal, nothing is sampled, and metrics tell of the process alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from extproc.config.telemetry import Telemetry as Settings
from extproc.core.fairness import Fairness
from extproc.telemetry.change_log import ChangeLog
from extproc.telemetry.history import History
from extproc.telemetry.journal import Journal
from extproc.telemetry.metrics import Metrics
from extproc.telemetry.request_log import RequestLog
from extproc.telemetry.sampler import Sampler, Watched
from extproc.telemetry.traces import Tracer


class Telemetry:
    """To be used from one event loop, which runs when it is made."""

    def __init__(
        self, settings: Settings, metrics: Metrics, version: str, pools: Callable[[], Iterable[Watched]]
    ) -> None:
        """`pools`: those at work. Raises TraceError."""
        self.history = History()
        self.journal: Journal | None = None
        self._metrics = metrics
        self._requests: RequestLog | None = None
        self._sampler: Sampler | None = None
        self._tracer: Tracer | None = None
        metrics.configure(settings.tenants)
        if not settings.enabled:
            return
        self._tracer = Tracer.of(settings.traces, version, metrics.spans_dropped)
        changes = ChangeLog()
        requests = self._requests = RequestLog(settings.log, time.monotonic, metrics.lines_left_out)
        sampler = self._sampler = Sampler(
            asyncio.get_running_loop(),
            pools,
            lag=metrics.loop_lag,
            ticks=[lambda _: requests.tick(time.monotonic())],
            fault=metrics.fault,
            changes=changes,
            history=self.history,
        )
        self.journal = Journal(sampler, requests, changes, self._tracer, metrics.fault, decided=self.history.seen)

    def configure(self, settings: Settings) -> None:
        """Go by `settings` from now on, as far as that needs no restart."""
        self._metrics.configure(settings.tenants)
        if self._requests is not None:
            self._requests.configure(settings.log)

    def fairness(self) -> Mapping[str, Mapping[str, Fairness]]:
        """By pool and class, over the last minute."""
        return {} if self._sampler is None else self._sampler.fairness()

    async def close(self) -> None:
        """Spans that are over are sent, for some seconds at most."""
        if self._sampler is not None:
            self._sampler.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
