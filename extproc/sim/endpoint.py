"""An engine in virtual time as the gateway has it: an address, a front door, and a metrics page that lags."""

from __future__ import annotations

import math
from collections import deque

from extproc.core.model import Sample
from extproc.sim.engine import EngineOptions
from extproc.sim.quick_engine import Page, QuickEngine
from extproc.sim.scene import Engines, Look, Outage


class Endpoint:
    """One engine, its front door and its page."""

    def __init__(self, number: int, engines: Engines, options: EngineOptions) -> None:
        self.number = number
        self.name = f"engine-{number}:8000"
        self.options = options
        self.engine = QuickEngine(options, prefix_cache_tokens=engines.prefix_cache_tokens)
        self.known = False  # the gateway has it on its list
        self.away_until = -math.inf
        self.photo_at = 0.0  # when the last page's state was noted
        self.photos: deque[tuple[float, float]] = deque()  # (time, preemptions)
        self.door_free_at = 0.0
        self.looks: list[Look] = []
        self.outages: list[Outage] = []
        self.tells_kv_capacity = engines.tells_kv_capacity
        self.preemptions_s = engines.lag.preemptions_s

    def page_fails(self, now: float) -> bool:
        return now < self.away_until or any(o.since <= now < o.until for o in self.outages)

    def sample(self, page: Page, at: float, started: float) -> Sample:
        self.photos.append((at, float(page.preemptions)))
        while len(self.photos) > 1 and self.photos[1][0] <= at - self.preemptions_s:
            self.photos.popleft()
        return Sample(
            running=page.running,
            waiting=page.waiting,
            kv_usage=page.kv_usage,
            itl_sum=page.itl_sum,
            itl_count=page.itl_count,
            preemptions=self.photos[0][1] if self.preemptions_s else float(page.preemptions),
            generation_tokens=float(page.generation_tokens),
            prompt_tokens=float(page.prompt_tokens),
            started=started,
            ttft_sum=page.ttft_sum,
            ttft_count=page.ttft_count,
            kv_capacity_tokens=self.options.kv_tokens if self.tells_kv_capacity else None,
        )
