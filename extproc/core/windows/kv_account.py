"""Whether the engine's KV cache will hold what is inside and one request more: reckoned ahead, from our own
accounts.

A request holds its prompt and what it has produced, and goes on growing; when the gauge shows that the cache is full
it is too late, and the engine preempts. So the tokens held are expected at 20 points h = 0..2048 output tokens
ahead:

    contribution[h] = s * (prompt + slots * (g + h + 8)),    s = S((g + h) / estimate) / S(g / estimate)

with g the output tokens so far and S the survival of output / estimate (`survival`); the 8 is half a block. A
request that has outlived all that were seen (S(g / estimate) = 0) counts for another g / 4 tokens. Where several
choices are asked for the prompt is held once and the output by each slot; `estimate` and g are of one choice.

Tokens are not seen one by one: g is time since the first token by the pace (`inside.TokenClock`), at most 4
estimates.

    may go      when at no h  kcal * (sum over ours + the new one's) > ceiling * kpen * C
    ceiling     0.92, or the policy's max_kv_usage if that is less. 0.95 gave ten times the preemptions, and no more
                tokens
    C           tokens that the cache holds, from the page; where it does not tell, the first reading of usage that is
                over 0.3 or taken while ours are steady: C = ours / usage. Before that, and without usage, there is no
                limit
    kcal        usage * C / most of ours in the last 6 s, in 0.1..4 and only at a usage over 0.05: what we do not know
                of (foreign requests, wrong estimates, shared prefixes). Rises by half of the gap a second; falls by a
                tenth, and only while ours are steady within 10 %
    kpen        penalty: 0.05 down (to 0.5) in each second with preemptions, 0.005 a second up after ten without

    part        of the endpoint that this replica may use, where several share it: the limit on ours is so much of the
                whole, and of the usage that kcal goes by so much is ours as our slots are of all of ours

    beyond      prompt + 8 * slots > max(ceiling * C, ceiling * kpen * C / kcal): by our estimate it can never fit.
                Such a request is neither held nor counted: the engine knows its own limit and refuses it, and one that
                it runs all the same shows that the estimate (from bytes) was wrong; kcal sees what it holds. Expected
                output does not put a request beyond: one with a long or wide answer runs well enough alone
    large       contribution > a quarter of the limit on ours. Turnover frees that much at once in an engine that is
                nearly empty only, so such a request is owed its turn (see `due`)

It needs no fresh page, so it works through an outage.

Cost. Summing 20 points over all that is inside for each release is too dear. (1) Sums of prompts, slots and
estimates, kept at each release, bound every point from above; while that bound is below the limit nothing else is
looked at. (2) Else the points are worked out anew, at most every 0.2 s, over cells of requests of about the same
estimate (a quarter of an octave) and progress (an eighth of the estimate); sums in a cell are exact, only S is taken
at its mean. In between the releases add to their peak what they can take at most. (3) Only when that reaches the
limit, contributions of what has come and gone since are added and taken off point by point.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

from extproc.core.model import Request
from extproc.core.windows.inside import Inside, TokenClock
from extproc.core.windows.survival import Survival

CEILING = 0.92
HORIZON = (0, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048)
HALF_BLOCK = 8
LARGE = 0.25  # of the limit
MOST_PROGRESS = 4  # estimates
_OUTLIVED = MOST_PROGRESS + MOST_PROGRESS / 4  # estimates that one which has outlived all others may reach
_RECOMPUTE_S = 0.2
_STEADY_S = 6.0
_CALIBRATION = (0.1, 4.0)
_PENDING = 256  # more of them than it costs to start anew


class KvAccount:
    """`inside` is the caller's: all of ours in the engine. Enter after it is put there, leave after it is gone."""

    def __init__(self, inside: Mapping[Request, Inside], clock: TokenClock) -> None:
        self._inside = inside
        self._clock = clock
        self._prompts = 0.0  # sums over `inside`
        self._slots = 0
        self._outputs = 0.0
        self.survival = Survival()
        self.reset()

    def reset(self) -> None:
        """Another engine: what was learnt of its cache is void."""
        self.capacity: float | None = None  # C
        self.calibration = 1.0
        self.penalty = 1.0
        self.limit = math.inf  # of our own expected tokens
        self.part = 1.0  # 0..1
        self.most_alone = math.inf  # no request with a prompt beyond can ever fit
        self._ceiling = CEILING
        self._preempted_at = self._penalised_at = -math.inf
        self._own: deque[tuple[float, float]] = deque()  # (time, tokens of ours), over 6 s
        self._points = [0.0] * len(HORIZON)
        self._peak = 0.0  # no point is above it
        self._active = False  # the points are in use
        self._computed_at = 0.0
        self._pending: list[tuple[int, Inside, float]] = []  # (1 came or -1 went, which, its progress)
        self._refused: tuple[float, int, float] | None = None

    # -- at each release --------------------------------------------------------------------------

    def enter(self, each: Inside) -> None:
        self._prompts += each.prompt
        self._slots += each.slots
        self._outputs += each.slots * each.estimate
        if self._active:
            self._peak += self._most(each.prompt, each.slots, each.estimate)
            self._await(1, each, 0.0)

    def leave(self, each: Inside, now: float) -> None:
        self._slots -= each.slots
        if self._slots:
            self._prompts -= each.prompt
            self._outputs -= each.slots * each.estimate
        else:  # no rounding is carried on
            self._prompts = self._outputs = 0.0
        if self._active:
            self._refused = None
            self._await(-1, each, self._progress(each, self._clock.at(now)))

    def fits(self, prompt: float, slots: int, estimate: float, now: float) -> bool:
        """Whether one more request has room."""
        limit = self.limit
        held = self._prompts + prompt + HALF_BLOCK * (self._slots + slots)
        outputs = self._outputs + slots * estimate
        reach = self.survival.longest
        if held + (reach if reach > _OUTLIVED else _OUTLIVED) * outputs <= limit:
            return True
        if held + MOST_PROGRESS * outputs + HORIZON[-1] * (self._slots + slots) <= limit:
            return True
        return self._fits_closely(prompt, slots, estimate, now)

    def is_beyond(self, prompt: float, slots: int) -> bool:
        """Whether a request can never fit, by our estimate."""
        return prompt + HALF_BLOCK * slots > self.most_alone

    def is_large(self, prompt: float, slots: int, estimate: float) -> bool:
        """Whether one that has no room needs more than what others free from time to time."""
        return self._most(prompt, slots, estimate) > LARGE * self.limit

    def _fits_closely(self, prompt: float, slots: int, estimate: float, now: float) -> bool:
        if not self._active or now - self._computed_at >= _RECOMPUTE_S:
            self.survival.refresh()
            self._points = self._work_out(now)
            self._active = True
            self._peak = max(self._points)
            self._computed_at = now
            self._pending.clear()
            self._refused = None
        most = self._most(prompt, slots, estimate)
        if self._peak + most <= self.limit:
            return True
        asked = (prompt, slots, estimate)
        if asked == self._refused:
            return False  # and nothing has changed since
        for sign, each, progress in self._pending:
            self._add(self._points, sign, each.prompt, each.slots, each.estimate, progress)
        self._pending.clear()
        self._peak = max(0.0, *self._points)
        if self._peak + most <= self.limit:
            return True
        if self._peak_with(self._points, prompt, slots, estimate) <= self.limit:
            return True
        self._refused = asked
        return False

    # -- what is learnt ---------------------------------------------------------------------------

    def on_page(
        self,
        seconds: float,
        usage: float | None,
        capacity: int | None,
        preemptions: float | None,
        ceiling: float,
        now: float,
        *,
        mine: float = 1.0,
    ) -> None:
        """`seconds` since the page before (0: nothing new), `preemptions` since then; `ceiling` is the policy's.
        `mine`: share of this replica in the slots of all that share the endpoint."""
        self._ceiling = min(CEILING, ceiling)
        if seconds > 0.0:
            self._learn_penalty(preemptions or 0.0, min(seconds, 1.0), now)
        if capacity is not None:
            self.capacity = float(capacity)
        if usage is not None and seconds > 0.0:
            self._learn_calibration(usage, mine, min(seconds, 1.0), now)
        self._set_limit()

    def retarget(self, ceiling: float) -> None:
        """Another `ceiling` of the policy."""
        self._ceiling = min(CEILING, ceiling)
        self._set_limit()

    def take_part(self, part: float) -> None:
        """Of the endpoint, 0..1."""
        if part != self.part:
            self.part = part
            self._set_limit()

    def _set_limit(self) -> None:
        if self.capacity is not None:
            whole = self._ceiling * self.penalty * self.capacity / self.calibration
            self.limit = whole * self.part
            self.most_alone = max(self._ceiling * self.capacity, whole)
        self._refused = None

    def _learn_penalty(self, preemptions: float, seconds: float, now: float) -> None:
        if preemptions > 0:
            self._preempted_at = now
            if now - self._penalised_at >= 1.0:
                self._penalised_at = now
                self.penalty = max(0.5, self.penalty - 0.05)
        elif now - self._preempted_at > 10.0:
            self.penalty = min(1.0, self.penalty + 0.005 * seconds)

    def _learn_calibration(self, usage: float, mine: float, seconds: float, now: float) -> None:
        recent = self._own
        recent.append((now, self.held(now)))
        while recent[0][0] < now - _STEADY_S:
            recent.popleft()
        least = min(tokens for _, tokens in recent)
        most = max(tokens for _, tokens in recent)
        if usage <= 0.05 or most <= 0.0 or mine <= 0.0:
            return
        steady = most - least < 0.1 * most and now - recent[0][0] >= _STEADY_S - 1.0
        if self.capacity is None:
            if usage > 0.3 or steady:
                self.capacity = most / (usage * mine)
            return
        low, high = _CALIBRATION
        found = min(max(usage * mine * self.capacity / most, low), high)
        if found > self.calibration:
            self.calibration += (1.0 - 0.5**seconds) * (found - self.calibration)
        elif steady:
            self.calibration += (1.0 - 0.9**seconds) * (found - self.calibration)

    def held(self, now: float) -> float:
        """Tokens that ours hold now. O(inside)."""
        tokens = self._clock.at(now)
        return sum(e.prompt + e.slots * (self._progress(e, tokens) + HALF_BLOCK) for e in self._inside.values())

    # -- to look at, without a trace --------------------------------------------------------------

    def expected(self, now: float) -> float:
        """The most tokens that the cache is expected to hold at any point ahead, foreign ones included."""
        return self.calibration * max(self._work_out(now))

    def expected_with(
        self, prompt: float, slots: int, estimate: float, now: float, without: Sequence[Inside] = ()
    ) -> float:
        """As `expected`, with one request more, and without some."""
        return self.calibration * self._peak_with(self._work_out(now, without), prompt, slots, estimate)

    @property
    def ceiling(self) -> float | None:
        """What `expected` may reach, in tokens."""
        return None if self.capacity is None else self._ceiling * self.penalty * self.capacity * self.part

    # -- inside -----------------------------------------------------------------------------------

    def _await(self, sign: int, each: Inside, progress: float) -> None:
        if len(self._pending) < _PENDING:
            self._pending.append((sign, each, progress))
        else:
            self._active = False
            self._pending.clear()

    def _most(self, prompt: float, slots: int, estimate: float) -> float:
        """No point of a request without progress is above it."""
        return prompt + slots * (HALF_BLOCK + self.survival.area * estimate)

    @staticmethod
    def _progress(each: Inside, tokens: float) -> float:
        """By the clock at `tokens`."""
        return min(max(0.0, tokens - each.start), MOST_PROGRESS * each.estimate) if each.answered else 0.0

    def _work_out(self, now: float, without: Sequence[Inside] = ()) -> list[float]:
        tokens = self._clock.at(now)
        cells: dict[int, list[float]] = {}
        for each in self._inside.values():
            if without and each in without:
                continue
            estimate, slots = each.estimate, each.slots
            progress = self._progress(each, tokens)
            if each.bucket < 0:
                each.bucket = int(4.0 * math.log2(estimate)) * 64
            key = each.bucket + int(8.0 * progress / estimate)
            cell = cells.get(key)
            if cell is None:
                cells[key] = [slots, each.prompt, slots * estimate, slots * progress]
            else:
                cell[0] += slots
                cell[1] += each.prompt
                cell[2] += slots * estimate
                cell[3] += slots * progress
        points = [0.0] * len(HORIZON)
        for n, prompts, estimates, progresses in cells.values():
            self._add(points, 1, prompts, n, estimates / n, progresses / n)
        return points

    def _add(
        self, points: list[float], sign: int, prompts: float, slots: float, estimate: float, progress: float
    ) -> None:
        """A request, or a cell of them, to each point."""
        ratios = self.survival.ratios
        count = len(ratios)
        alive = count - bisect_right(ratios, progress / estimate)
        base = sign * (prompts + slots * (progress + HALF_BLOCK))
        each = sign * slots
        if alive == 0:
            for i, ahead in enumerate(HORIZON):
                if ahead > progress / 4:
                    return
                points[i] += base + each * ahead
        else:
            for i, ahead in enumerate(HORIZON):
                left = count - bisect_right(ratios, (progress + ahead) / estimate)
                if left == 0:
                    return
                points[i] += left / alive * (base + each * ahead)

    def _peak_with(self, points: list[float], prompt: float, slots: int, estimate: float) -> float:
        points = points.copy()
        self._add(points, 1, prompt, slots, estimate, 0.0)
        return max(points)
