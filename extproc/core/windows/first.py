"""The first controller: slots and AIMD on latency. Right on engines with few slots, up to 40 % short on large ones;
a baseline for the adaptive one.

    state       R (`capacity`): estimated running capacity.  W_tpot: window by latency, once it has been over its limit.
    release     while in_flight + foreign < min(R + q, W_tpot)
    scrape      the page corrects what we know, it never grants: something waits -> the running
                requests are the capacity; full and nothing waits -> probe (double in slow start,
                then +10 %), but only on a page that has seen our requests.
    TPOT        over the limit: W_tpot falls to 0.9 of itself; under 95 % of it: +2 %, at least 1.
                It is the difference of a histogram's sum and count between two scrapes; no new
                samples means unknown, not slow.
                `max_num_seqs`, where given, bounds R.
    KV          usage over its limit or new preemptions: R = running - 1 and no probing for 10 s.
    stale       R alone (keep the batch full, give up the standing queue); in an outage half of it,
                still clocked by completions. Never 0, never unlimited.

Where it falls short: each page over the limit costs 10 % and +2 % a page does not win it back, so single pages with
a long prefill in them hold it far below what the engine can do; KV is known only after it has run out.
"""

from __future__ import annotations

from typing import Any

from extproc.core.model import Sample
from extproc.core.windows.base import Window
from extproc.core.windows.change import Change
from extproc.core.windows.view import Hold, Stance

_KV_HOLD_S = 10.0


class First(Window):
    name = "first"

    def _reset(self) -> None:
        self.capacity = self.policy.start
        self._slow_start = True
        self._tpot_window: float | None = None
        self._kv_hold_until = float("-inf")

    def _bound(self) -> None:
        ceiling = self.policy.ceiling
        if self.policy.max_num_seqs is not None:
            ceiling = min(ceiling, float(self.policy.max_num_seqs))
        self.capacity = min(max(self.capacity, self.policy.floor), ceiling)

    def _limit(self, q: float, stance: Stance, /) -> float:
        if stance is Stance.OUTAGE:
            limit = max(self.policy.floor, self.capacity / 2)
        else:
            limit = self.capacity + (q if stance is Stance.FRESH else 0.0)
        return limit if self._tpot_window is None else min(limit, self._tpot_window)

    def _full(self, inside: int, q: float, stance: Stance, /) -> Hold:
        limit = self._limit_in(q, stance)
        by_latency = self._tpot_window is not None and limit == self._tpot_window
        return Hold("latency" if by_latency else "slots", inside, limit, "requests")

    def _learn(
        self, page: Sample, _last: Sample | None, changed: Change, own_then: int, q: float, asked: float, now: float, /
    ) -> None:
        self._learn_window(page)
        self._learn_capacity(page, changed, own_then, q, asked, now)

    def _learn_window(self, page: Sample) -> None:
        tpot, limit = self._page_tpot, self.policy.max_tpot_s
        if tpot is None:
            # Nothing was produced, the engine was restarted, or the figures are no numbers: unknown, and an idle one
            # must open.
            if page.running + page.waiting == 0:
                self._tpot_window = None
        elif tpot > limit:
            current = self._tpot_window if self._tpot_window is not None else float(max(self.load, 1))
            self._tpot_window = max(self.policy.floor, 0.9 * current)
        elif tpot < 0.95 * limit and self._tpot_window is not None:
            self._tpot_window += max(1.0, 0.02 * self._tpot_window)
            if self._tpot_window > self.policy.ceiling:
                self._tpot_window = None

    def _learn_capacity(self, page: Sample, changed: Change, own_then: int, q: float, asked: float, now: float) -> None:
        """The window is full when the next request in line (`asked`) finds no room: for a class without a standing
        queue that is at R, not at R + q."""
        running = max(self._running)
        if changed.preemptions or (page.kv_usage is not None and page.kv_usage > self.policy.max_kv_usage):
            self.capacity = min(self.capacity, page.running - 1.0)
            self._slow_start = False
            self._kv_hold_until = now + _KV_HOLD_S
        elif page.waiting > 0:
            self._slow_start = False
            self._begin_turn(now)
            if running > 0:  # else the page was taken between finish and admission: it tells nothing of slots
                much = page.waiting > 2 * q
                self.capacity = running if much else self.capacity + (running - self.capacity) / 2
        elif now >= self._kv_hold_until and not self._slow():
            inside = own_then + self.unknown
            full = inside > 0 and own_then >= 0.9 * (self.capacity + asked - self.unknown)
            if full and (page.running >= inside - 1 or self._turned_over(inside, now)):
                self.capacity = 2 * self.capacity if self._slow_start else self.capacity + max(1.0, self.capacity / 10)
                self._begin_turn(now)
        self._bound()

    def _slow(self) -> bool:
        return self.tpot_s is not None and self.tpot_s > self.policy.max_tpot_s

    def _parts(self, _now: float) -> dict[str, Any]:
        return {"floor": self._floor(), "tpot_window": self._tpot_window}
