"""The release window of one endpoint: how many requests it may hold.

    state       R: estimated running capacity.  foreign: requests inside that are not ours.
                in_flight: ours, exact, since each is tied to the life of a stream.
    window      W(q) = R + q, with q the standing queue that a class may keep inside the engine.
    release     while in_flight + foreign < min(W, W_tpot); an endpoint with nothing of ours inside
                always accepts one request, whatever its gauges say.
    end         in_flight falls and the scheduler dispatches at once: completions are the clock.
    scrape      the page corrects what we know, it never grants: something waits -> the running
                requests are the capacity; full and nothing waits -> probe (double in slow start,
                then +10 %), but only on a page that has seen our requests.
    TPOT        over the limit: W_tpot falls to 0.9 of itself; under 95 % of it: +2 %, at least 1.
                It is the difference of a histogram's sum and count between two scrapes; no new
                samples means unknown, not slow.
    KV          usage over its limit or new preemptions: R = running - 1 and no probing for 10 s.
    stale       page older than 3 intervals: W = R (keep the batch full, give up the standing queue);
                older than 30 s: half of R, still clocked by completions. Never 0, never unlimited.

This is the first controller: right on engines with few slots, up to 40 % short on large ones.

Facts that shaped it, measured on vLLM: gauges lag by 60-110 ms, in a burst by 0.4-0.9 s, so slow
start must not believe a page from before the burst; `running` dips between finish and admission, so
the largest of the last readings counts; an exponential tail of foreign load blocks a slot for a
second, so it is rounded to whole requests.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from extproc.core.model import Sample, WindowPolicy

_STALE_INTERVALS = 3
_OUTAGE_S = 30.0
_KV_HOLD_S = 10.0
_HISTORY_S = 5.0  # how far back our own in-flight count is compared with a lagging gauge
_HISTORY_GRAIN_S = 0.01
_PROBE_S = 5.0
_LAG_S = 1.0  # gauges of a busy vLLM show a burst after 0.4-0.9 s
_SUSPECT_S = 2.0
_BROKE_S = 1.0
_DIPS = 3  # readings of `running` over which its dips are bridged


class Stance(Enum):
    """What the window goes by."""

    STARTING = "starting"  # not read yet
    FRESH = "fresh"
    STALE = "stale"
    OUTAGE = "outage"
    DOWN = "down"  # the endpoint refuses or breaks connections


@dataclass(frozen=True, slots=True)
class WindowView:
    """The window's state, for status, metrics and explanations."""

    endpoint: str
    stance: Stance
    capacity: float  # R
    foreign: int
    in_flight: int
    tpot_window: float | None  # W_tpot; None: TPOT has never been over its limit
    tpot_s: float | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    age_s: float | None  # since the last good page


class Window:
    """See the module's docstring. `now` is in seconds; counts are engine slots."""

    def __init__(self, endpoint: str, policy: WindowPolicy, now: float) -> None:
        self.endpoint = endpoint
        self.policy = policy
        self.in_flight = 0
        self.guests = 0  # of these, slots let into an overfull window
        self.guest_turn = 1  # goes up when the window is no longer overfull: those from before are guests no more
        self.last_take = 0  # number of the last release to it, to go round among equals
        self.removed = False
        self._added_at = now
        self._down = False
        self._attempted = False
        self._fresh_start()

    def _fresh_start(self) -> None:
        self._capacity = self.policy.start
        self._slow_start = True
        self._foreign = 0.0
        self._foreign_known = False
        self._tpot_window: float | None = None
        self._tpot: float | None = None
        self._kv_hold_until = float("-inf")
        self._suspect_at = self._broke_at = float("-inf")
        self._last: Sample | None = None
        self._read_at: float | None = None
        self._running: deque[int] = deque(maxlen=_DIPS)
        self._turned = 0  # slots freed since the capacity was last changed, or something waited
        self._turn_began = float("-inf")
        self._history: deque[tuple[float, int]] = deque([(float("-inf"), self.in_flight)])

    # -- what may be released ---------------------------------------------------------------------

    @property
    def foreign(self) -> int:
        return int(self._foreign + 0.5)

    @property
    def load(self) -> int:
        return self.in_flight + self.foreign

    @property
    def tpot_s(self) -> float | None:
        return self._tpot

    def stance(self, now: float) -> Stance:
        if self._down or now - self._suspect_at < _SUSPECT_S:
            return Stance.DOWN
        if self._read_at is None:
            waiting_for_first = not self._attempted and now - self._added_at < self.policy.first_scrape_grace_s
            return Stance.STARTING if waiting_for_first else Stance.OUTAGE
        age = now - self._read_at
        if age > _OUTAGE_S:
            return Stance.OUTAGE
        # Where nothing of ours is inside the page is read more seldom, and tells enough.
        idle = self.in_flight == 0
        interval = self.policy.idle_scrape_interval_s if idle else self.policy.scrape_interval_s
        return Stance.STALE if age > _STALE_INTERVALS * interval + 0.5 else Stance.FRESH

    def limit(self, q: float, now: float) -> float:
        """Slots that may be taken, ours and foreign ones together, for a class with standing queue `q`."""
        return self._limit(q, self.stance(now))

    def accepts(self, slots: int, q: float, now: float) -> bool:
        """Whether a request of `slots` may go now, for a class with standing queue `q`."""
        stance = self.stance(now)
        if not self._usable(stance):
            return False
        limit, inside = self._limit(q, stance), self._inside(stance)
        if self.in_flight > 0:
            # A wide request does not wait until the engine has run dry: it may go when a slot would idle.
            idle_slot = slots > 1 and inside < min(limit, self._capacity)
            return idle_slot or inside + slots <= limit
        # Nothing of ours inside: one goes whatever its width. Gauges of some engines stay high for ever
        # after all requests were aborted, so foreign load alone does not hold a probe back for long.
        return inside < limit or now - self._history[-1][0] > _PROBE_S

    def may_overtake(self, slots: int, q: float, most: int, now: float) -> bool:
        """Whether a tenant with nothing inside may exceed a full window, by `most` slots.

        A window can be overfull through no doing of the tenant: an engine may hold more than we knew of, from a list of
        prompts or work that is not ours. Then `most` such guests may be inside at a time, or one, however wide."""
        stance = self.stance(now)
        if not self._usable(stance):
            return False
        limit, inside = self._limit(q, stance), self._inside(stance)
        if inside + slots <= limit + most:
            return True
        return inside > limit + most and (self.guests == 0 or self.guests + slots <= most)

    def _usable(self, stance: Stance) -> bool:
        return not self.removed and stance not in (Stance.DOWN, Stance.STARTING)

    def _limit(self, q: float, stance: Stance) -> float:
        if stance in (Stance.DOWN, Stance.STARTING):
            return 0.0
        if stance is Stance.OUTAGE:
            limit = max(self.policy.floor, self._capacity / 2)
        else:
            limit = self._capacity + (q if stance is Stance.FRESH else 0.0)
        return limit if self._tpot_window is None else min(limit, self._tpot_window)

    def _inside(self, stance: Stance) -> int:
        """In an outage the last reading of foreign load is worth nothing; our own count is all there is."""
        return self.in_flight if stance is Stance.OUTAGE else self.load

    def revive(self, now: float) -> None:
        """The endpoint was removed and is back, perhaps with another engine behind the address."""
        self.removed = False
        self._added_at = now
        self._down = self._attempted = False
        self._fresh_start()

    # -- what happens -----------------------------------------------------------------------------

    def take(self, slots: int, now: float, *, number: int = 0, most: float | None = None) -> int:
        """`number`: of the release, counted up over all endpoints. `most`: what a full window may be exceeded to, for
        one that overtakes; None: there was room. Returns what `free` is to be told."""
        guest = 0
        if most is not None and self._inside(self.stance(now)) > most:
            guest = self.guest_turn
            self.guests += slots
        self.in_flight += slots
        self.last_take = number
        self._note(now)
        return guest

    def free(self, slots: int, now: float, *, guest: int = 0) -> None:
        self.in_flight -= slots
        if guest == self.guest_turn:
            self.guests -= slots
        self._turned += slots
        if self.in_flight < 0:
            raise AssertionError(f"{self.endpoint}: in flight {self.in_flight}")
        self._note(now)
        self._end_of_overfull()

    def _end_of_overfull(self) -> None:
        if self.guests and self.load <= self._capacity:
            self.guests, self.guest_turn = 0, self.guest_turn + 1

    def on_unreachable(self, now: float, *, broke: bool) -> None:
        """A connection to the endpoint failed; or it `broke`, which only counts when it is the second within a second:
        one alone may be the fault of its request. Nothing goes there before a page has been read, or two seconds have
        passed: a dead engine refuses faster than any other answers, and would be sent all that waits."""
        if broke and now - self._broke_at > _BROKE_S:
            self._broke_at = now
        else:
            self._suspect_at = now

    def on_failure(self, refused: bool) -> None:
        self._attempted = True
        if refused:
            self._down = True

    def on_sample(self, sample: Sample, q: float, asked: float, now: float) -> None:
        """`q` is the largest standing queue that a class of the pool aims at; `asked` the one that the
        next request in line aims at, less the slots it takes beyond one. The window is full when that
        request finds no room: for a class without a standing queue that is at R, not at R + q."""
        self._attempted = True
        if self._down:
            # Another process, or the same one anew: what was learnt is void.
            self._down = False
            self._fresh_start()
        last, self._last, self._read_at = self._last, sample, now
        if sample.started > self._suspect_at:
            self._suspect_at = float("-inf")
        own_then, own_max = self._own(sample.started)
        if sample.waiting == 0:
            self._running.clear()
        self._running.append(sample.running)
        self._learn_foreign(sample, own_max)
        self._learn_tpot(sample, last)
        self._learn_capacity(sample, last, own_then, q, asked, now)
        self._end_of_overfull()

    # -- inside -----------------------------------------------------------------------------------

    def _note(self, now: float) -> None:
        history = self._history
        if now - history[-1][0] < _HISTORY_GRAIN_S:
            history[-1] = (history[-1][0], self.in_flight)
        else:
            history.append((now, self.in_flight))
        # One entry from before the horizon stays: it tells the count at the horizon.
        while len(history) > 1 and history[1][0] < now - _HISTORY_S:
            history.popleft()

    def _own(self, at: float) -> tuple[int, int]:
        """Our in-flight count at time `at`, and the largest one from five seconds before it until now."""
        largest = self.in_flight
        then = before = self._history[0][1]
        for when, count in self._history:
            if when <= at:
                then = count
            if when >= at - _HISTORY_S:
                largest = max(largest, count)
            else:
                before = count  # it still held when the five seconds began
        return then, max(largest, before)

    def _learn_foreign(self, sample: Sample, own_max: int) -> None:
        seen = max(0, sample.waiting + sample.running - own_max)
        if not self._foreign_known:
            self._foreign, self._foreign_known = float(seen), True
            return
        gap = seen - self._foreign
        self._foreign += (0.5 if gap > 0 else 0.3) * gap
        if self._foreign < 0.2:
            self._foreign = 0.0

    def _learn_tpot(self, sample: Sample, last: Sample | None) -> None:
        if last is None or sample.itl_sum is None or sample.itl_count is None:
            return
        if last.itl_sum is None or last.itl_count is None:
            return
        tokens, seconds = sample.itl_count - last.itl_count, sample.itl_sum - last.itl_sum
        if not (tokens > 0 and seconds >= 0 and math.isfinite(seconds)):
            # Nothing was produced, the engine was restarted, or the figures are no numbers: unknown,
            # and an idle one must open.
            if self._tpot_window is not None and sample.running + sample.waiting == 0:
                self._tpot_window = None
            return
        tpot = self._tpot = seconds / tokens
        limit = self.policy.max_tpot_s
        if tpot > limit:
            current = self._tpot_window if self._tpot_window is not None else float(max(self.load, 1))
            self._tpot_window = max(self.policy.floor, 0.9 * current)
        elif tpot < 0.95 * limit and self._tpot_window is not None:
            self._tpot_window += max(1.0, 0.02 * self._tpot_window)
            if self._tpot_window > self.policy.ceiling:
                self._tpot_window = None

    def _learn_capacity(
        self, sample: Sample, last: Sample | None, own_then: int, q: float, asked: float, now: float
    ) -> None:
        preempted = (
            last is not None
            and sample.preemptions is not None
            and last.preemptions is not None
            and sample.preemptions > last.preemptions
        )
        running = max(self._running)
        if preempted or (sample.kv_usage is not None and sample.kv_usage > self.policy.max_kv_usage):
            self._capacity = min(self._capacity, sample.running - 1.0)
            self._slow_start = False
            self._kv_hold_until = now + _KV_HOLD_S
        elif sample.waiting > 0:
            self._slow_start = False
            self._begin_turn(now)
            if running > 0:  # else the page was taken between finish and admission: it tells nothing of slots
                wide = sample.waiting > 2 * q
                self._capacity = running if wide else self._capacity + (running - self._capacity) / 2
        elif now >= self._kv_hold_until and not self._slow():
            inside = own_then + self.foreign
            full = inside > 0 and own_then >= 0.9 * (self._capacity + asked - self.foreign)
            if full and (sample.running >= inside - 1 or self._turned_over(inside, now)):
                self._capacity = (
                    2 * self._capacity if self._slow_start else self._capacity + max(1.0, self._capacity / 10)
                )
                self._begin_turn(now)
        self._capacity = min(max(self._capacity, self.policy.floor), self.policy.ceiling)

    def _slow(self) -> bool:
        return self._tpot is not None and self._tpot > self.policy.max_tpot_s

    def _begin_turn(self, now: float) -> None:
        self._turned, self._turn_began = 0, now

    def _turned_over(self, inside: int, now: float) -> bool:
        """Whether a whole window of requests has come and gone for longer than gauges lag, and nothing waits: the
        page has seen them, though it never shows requests that are done within one step."""
        return self._turned >= inside and now - self._turn_began >= _LAG_S

    def view(self, now: float) -> WindowView:
        last = self._last
        return WindowView(
            endpoint=self.endpoint,
            stance=self.stance(now),
            capacity=self._capacity,
            foreign=self.foreign,
            in_flight=self.in_flight,
            tpot_window=self._tpot_window,
            tpot_s=self._tpot,
            running=None if last is None else last.running,
            waiting=None if last is None else last.waiting,
            kv_usage=None if last is None else last.kv_usage,
            age_s=None if self._read_at is None else now - self._read_at,
        )
