"""The window by inter-token latency: Little's law, no model of the engine.

Between two pages the histogram of inter-token latency grows by dS seconds and dC tokens, in dt seconds. Over sums
that forget with a time constant of 4 s:

    n = dS/dt       requests that decode, on average (Little); or the mean of the `running` gauge if that is less
    y = dS/dC       mean inter-token latency
    W = n * L / y   requests at which it would be the limit L

For any step time a + b*n with a >= 0, n * L / y is below the right window while y < L and above it while y > L.
Iterating it cannot overshoot, and shrinks the error by a/L each time. n and y come from the same page, so lag delays
it but does not unsettle it. It equals L * token rate. No additive increase, no engine constant, no table for a slow
start.

    under the limit     W towards max(W, n L / y) by 0.3 of the gap a second, at once if that is over 1.5 W. A window
                        that is not used is not evidence: over twice the most inside (fading over 60 s) it shrinks
                        towards that
    over it             W = min(W, max(1, n L / y)), at once

L is the policy's limit times a margin m that learns how noisy the mix is: 0.01 a second down while the mean over 10
s is over the limit (but not for 10 s after more was inside than W and a quarter: an overshoot that only completions
can drain says nothing of m), 0.001 up while it is not and the window is full; in 0.75..0.95.

Prefill. A step with prompt tokens in it is longer for all, and right after the first releases nearly all work is
prefill. A regression on each page's own figures, dS/dC ~ t1 + t2 * dS/dt / 100 + t3 * (dP/dt * dS/dC) / 1000 (dP:
prompt tokens whose prefill is done), gives c = t3 / 1000, the seconds that a prompt token adds to a step: weighted
min(1, dC/50), forgetting over 120 s, a ridge of 1e-4, negative terms dropped one by one. With it y is split, and
what is held to the limit is the larger of y and the y once prefill has its steady share, with the mean prompt and
output of recent releases:

    y_dec = y * (1 - min(0.9, c * prompt tokens a second))
    y_ss  = y_dec + c * n * prompt / output

and P = 2 * (m L - y_dec) / c is what prompts may be unanswered for a step to stay within the limit: one that runs,
one in line. W is not read off the regression line itself: at saturation n hardly moves, and slope and intercept
cannot be told apart; the ratio needs neither.

Rates are by the second where the published ones are by the page of a second, and the regression sees seconds: prompt
tokens count when their prefill is done, and over shorter spans that is in another one than the tokens that it held up.
Pages on which nothing ran and no token came are left out altogether: they would say that few decode. A gauge that shows
less than half of Little's n is not believed: it is read between finish and admission, and can be 0 for ever. Where the
page has a histogram but answers are done in one step, no token is ever counted, and W would stay at its start: it
doubles when a whole window has come and gone for over a second on pages without a token.

Where it does not hold: concave or stepped latency (padded batches) can make it cycle by one step of m. A limit below
the engine's own step time takes W to a handful, and nothing could help; `below_step` says so. With several tokens a
step n is wrong, but limit * token rate still holds.
"""

from __future__ import annotations

import math
from collections import deque

from extproc.core.windows.change import Change
from extproc.core.windows.step_time import StepTime

_TAU_S = 4.0
_GAIN = 0.3
_MARGIN = (0.75, 0.95)
_JUDGED_S = 10.0  # of latency, for the margin
_DRAIN_S = 10.0
_USED_TAU_S = 60.0
_HANDFUL = 4.0
_TURN_S = 1.0
_SECOND = 1.0
_STUCK = 20.0  # times the limit: no step, but an engine that hung


class Latency:
    """Times are in seconds. `window` is inf while the page has no histogram of inter-token latency."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.window = start  # W
        self.margin = _MARGIN[1]  # m
        self.itl_s: float | None = None  # y
        self.decode_s: float | None = None  # y_dec
        self.decoding: float | None = None  # n
        self.prompt_s: float | None = None  # c
        self.prompt_budget: float | None = None  # P, not yet clamped
        self.below_step = False
        self._held_s: float | None = None  # what was last held to the limit: y, or y_ss
        self._steps = StepTime()
        self._used = 0.0
        self._drain_at = self._over_at = -math.inf
        self._freed = 0  # slots, since a page had a token
        self._silent_since: float | None = None
        self.restart()

    def restart(self) -> None:
        """The engine's counters began anew. What was learnt stays."""
        self._sum = self._tokens = self._time = self._prompts = self._ran = 0.0
        self._second = [0.0] * 4  # dS, dC, dP, dt that the regression has not seen yet
        self._recent: deque[tuple[float, float, float]] = deque()  # (time, dS, dC) over 10 s

    def on_page(
        self,
        changed: Change,
        running: float,
        inside: int,
        freed: int,
        limit: float,
        bounds: tuple[float, float],
        steady: float,
        now: float,
    ) -> None:
        """`running`: mean of the gauge over the time. `inside`: ours and foreign ones. `freed`: slots of ours since the
        last page. `limit` in seconds; `bounds` of the window. `steady`: prompt tokens for each output token."""
        if changed.restarted:
            self.restart()
        dt, spent, tokens = changed.seconds, changed.itl_s, changed.itl_tokens
        if spent is None or tokens is None or dt <= 0.0:
            return
        if tokens <= 0.0:
            self._silent(freed, bounds[1], now)
            if running <= 0.0:
                return
        prompts = changed.prompt_tokens or 0.0
        keep = math.exp(-dt / _TAU_S)
        self._sum = keep * self._sum + spent
        self._tokens = keep * self._tokens + tokens
        self._time = keep * self._time + dt
        self._prompts = keep * self._prompts + prompts
        self._ran = keep * self._ran + running * dt
        if tokens <= 0.0:
            return
        self._silent_since = None
        self._regress(spent, tokens, prompts, dt, limit)
        y = self.itl_s = self._sum / self._tokens
        n = self._sum / self._time
        gauge = self._ran / self._time
        if n / 2 <= gauge < n:
            n = gauge
        self.decoding = n
        c = self.prompt_s or 0.0
        y_decode = self.decode_s = y * (1.0 - min(0.9, c * self._prompts / self._time))
        self._held_s = max(y, y_decode + c * n * steady)
        self._settle(self._held_s, n, inside, limit, bounds, dt, now)
        self._learn_margin(spent, tokens, inside, limit, dt, now)
        self.prompt_budget = 2.0 * (self.margin * limit - y_decode) / c if c > 0.0 else None

    def bound(self, low: float, high: float) -> None:
        if self.window != math.inf:
            self.window = min(max(self.window, low), high)

    def retarget(self, limit: float) -> None:
        """Another limit, seconds: W is at once what the last page says of it, and the next one goes on from there."""
        y, n, window = self._held_s, self.decoding, self.window
        if y is None or n is None or window == math.inf:
            return
        aim = self.margin * limit
        right = n * aim / max(y, 1e-9)
        self.window = max(window, right) if y <= aim else min(window, max(1.0, right))

    # -- inside -----------------------------------------------------------------------------------

    def _regress(self, spent: float, tokens: float, prompts: float, dt: float, limit: float) -> None:
        together = self._second
        for i, figure in enumerate((spent, tokens, prompts, dt)):
            together[i] += figure
        spent, tokens, prompts, dt = together
        if dt < _SECOND - 0.01:
            return
        self._second = [0.0] * 4
        if spent < _STUCK * limit * tokens:
            self.prompt_s = self._steps.add(spent / tokens, spent / dt, prompts / dt, min(1.0, tokens / 50.0), dt)

    def _settle(
        self, y: float, n: float, inside: int, limit: float, bounds: tuple[float, float], dt: float, now: float
    ) -> None:
        aim = self.margin * limit
        right = n * aim / max(y, 1e-9)
        window = self.window
        if inside > 1.25 * window + 2.0:
            self._drain_at = now
        self._used = max(self._used * math.exp(-dt / _USED_TAU_S), float(inside))
        if y <= aim:
            target = max(window, right)
            gain = 1.0 - (1.0 - _GAIN) ** min(dt, 1.0)
            window = target if target > 1.5 * window else window + gain * (target - window)
            if window > 2.0 * self._used and window > right and window > self._start:
                window = max(self._start, right, window * math.exp(-dt / _USED_TAU_S))
        else:
            window = min(window, max(1.0, right))
        self.window = min(max(window, bounds[0]), bounds[1])

    def _learn_margin(self, spent: float, tokens: float, inside: int, limit: float, dt: float, now: float) -> None:
        recent = self._recent
        recent.append((now, spent, tokens))
        full = now - recent[0][0] >= _JUDGED_S - dt
        while recent[0][0] <= now - _JUDGED_S and len(recent) > 1:
            recent.popleft()
        mean = sum(s for _, s, _ in recent) / sum(t for _, _, t in recent)
        seconds = min(dt, 1.0)
        low, high = _MARGIN
        if full and mean > limit:
            if now - self._drain_at > _DRAIN_S:
                self.margin = max(low, self.margin - 0.01 * seconds)
        elif full and inside >= 0.9 * self.window:
            self.margin = min(high, self.margin + 0.001 * seconds)
        self.below_step = mean > limit and self.window <= _HANDFUL

    def _silent(self, freed: int, ceiling: float, now: float) -> None:
        """A page without a token. `freed` since the one before."""
        if self._silent_since is None:
            self._silent_since, self._freed = now, 0
            return
        self._freed += freed
        if self._freed >= self.window and now - self._silent_since >= _TURN_S:
            self.window = min(2.0 * self.window, ceiling)
            self._silent_since, self._freed = now, 0
