"""Prompt tokens released and not yet answered by a first token: no more than the engine reads in two steps or so.

Prompts that wait for their prefill are `waiting` in the engine; each step that reads them makes all that decode
wait. So

    may go      when nothing is unanswered, or unanswered tokens + its prompt <= `limit`

A prompt that is larger than the limit goes alone, when nothing is unanswered: requests behind it would wait behind
the same chunk in the engine. Other classes could pass it for ever, so after a while it is its turn, see `due`.

What tells of a first token. An answer streams past us in some profiles only, so there are substitutes. The end of the
stream answers a request in any case.

    FIRST_TOKEN     `first_token` is called
    COUNT           growth of the page's count of times to first token: one for each sequence
    PROMPTS         growth of its prompt tokens (they count when a prefill is done, for each sequence), over `ratio`:
                    tokens for each that we estimated, from what answers tell of their prompts
    FORECAST        prompts are read one after the other: a request has its first token prompt * c after the one before
                    it, or after its release and one and a half steps; c seconds for each prompt token (0 while it is
                    not known), a step as long as one without prefill. After the one before it: so a burst is read off
                    as fast as the engine reads. As many as the last page shows waiting in the engine are not read yet
    END             nothing does: a request counts as answered at once, and the limit never binds

By default whatever comes first counts: a first token, growth (the count where there is one), the forecast where a
step's length is known. Where first tokens are seen they are exact, and the forecast only stands in for answers that do
not stream: it has to be over twice as late, and a second more. So it has to be for a prompt beyond 16,384 tokens, which
takes many steps, so that two of them are not together. With neither a page for 5 s nor forecast nor first tokens it is
END.

Growth alone is not enough, though it cannot be wrong: it comes once a page and late, and the limit is what the engine
reads in two steps, so between two pages nothing more could go. On pages of a second that are a second late that costs
large engines half of their throughput; the forecast costs them next to nothing.

A page's growth is attributed to the requests that were inside when it was asked for, first come first served, less the
share of foreign requests. What was answered by other means within its lag (5 s) is taken off first, since the growth
that shows it is still to come; growth beyond all that is unanswered is not ours, and growth over a gap of 5 s between
two pages is nobody's. A request that leaves before its first token never shows: one that was inside for over 2 s is
taken to have been counted long ago, so an error of one heals when the request that bears it has ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum

from extproc.core.windows.change import Change
from extproc.core.windows.inside import Inside, TokenClock

START_LIMIT = 8192.0
LIMITS = (1024.0, 16384.0)  # prompt tokens; no limit is beyond the second, so what is goes alone always
_LAG_S = 5.0
_YOUNG_S = 2.0
_SEEN_S = 60.0  # how long a first token that was seen tells that they can be
_GRAIN_S = 0.01
_RATIO = (0.2, 5.0)
_RATIO_KEEP = 0.98


class Answers(Enum):
    """What tells of first tokens."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - no password
    COUNT = "ttft_count"
    PROMPTS = "prompt_tokens"
    FORECAST = "forecast"
    END = "end"


class Prefill:
    """`only`: go by this one alone, to measure what it costs; None: by the best that there is."""

    def __init__(self, clock: TokenClock, only: Answers | None = None) -> None:
        self._clock = clock
        self._only = only
        self.limit = START_LIMIT  # tokens
        self.requests = 0  # unanswered
        self.tokens = 0.0
        self._queue: deque[Inside] = deque()  # as released; answered ones stay until they surface
        self._true = self._estimated = 4096.0  # prompt tokens of what has ended, the older ones fading
        self.reset()

    def reset(self) -> None:
        """Another engine."""
        self.step_s: float | None = None  # of a step without prefill
        self.prompt_s: float | None = None  # c
        self._read_until = -math.inf  # when the last one that was answered had been read
        self._set_counting(Answers.END if self._only is None else self._only)
        self._seen_at = -math.inf
        self._credit = 0.0  # growth that is still to be attributed
        self._early: deque[list[float]] = deque()  # [when, growth] of what was answered before its growth came
        self._page_at = -math.inf
        self._waiting = 0.0  # of ours in the engine's queue, by the last page

    # -- at each release --------------------------------------------------------------------------

    def enter(self, each: Inside, now: float) -> None:
        if self._counting_none and not self._seen(now):
            each.answered = True
            each.start = self._clock.at(now)
            return
        self.requests += 1
        self.tokens += each.prompt
        self._queue.append(each)

    def holds(self, prompt: float, now: float) -> bool:
        """Whether a request has to wait, with something of ours inside."""
        # `has_room` without its argument: this runs for each release.
        if not self.requests or self.tokens + prompt <= self.limit:
            return False
        self._forecast(now)
        return self.requests > 0 and self.tokens + prompt > self.limit

    def has_room(self, prompt: float, without: Sequence[Inside] = ()) -> bool:
        """As `holds` begins, without a trace. `without`: requests inside that are taken to be gone."""
        gone = [each.prompt for each in without if not each.answered]
        return self.requests == len(gone) or self.tokens - sum(gone) + prompt <= self.limit

    def first_token(self, each: Inside, now: float) -> None:
        if self._only is None or self._only is Answers.FIRST_TOKEN:
            self._seen_at = self._read_until = now
            if not each.answered:
                self._answer_early(each, now, now)

    def observed(self, estimate: float, tokens: float) -> None:
        """What a prompt really was."""
        self._true = _RATIO_KEEP * self._true + tokens
        self._estimated = _RATIO_KEEP * self._estimated + estimate

    def leave(self, each: Inside, now: float) -> None:
        if each.answered:
            return
        if now - each.released < _YOUNG_S:
            self._answer_early(each, now, now)
        else:
            self._answer(each, now)

    # -- pages ------------------------------------------------------------------------------------

    def on_page(
        self,
        changed: Change,
        counted: bool,
        tokens_counted: bool,
        waiting: int,
        share: float,
        started: float,
        now: float,
    ) -> None:
        """`counted`: the page has a count of first tokens; `tokens_counted`: of prompt tokens. `waiting`: in the
        engine's queue. `share` of ours in what is inside. `started`: when the page was asked for."""
        self._waiting = waiting * share
        if self._only is None and counted:
            self._set_counting(Answers.COUNT)
        elif self._only is None and tokens_counted:
            self._set_counting(Answers.PROMPTS)
        elif self._only in (None, Answers.FORECAST):
            self._set_counting(Answers.END if self.step_s is None else Answers.FORECAST)
        if len(self._queue) > 64 + 4 * self.requests:
            self._queue = deque(e for e in self._queue if not e.answered)
        self._page_at = now
        if changed.restarted:
            self._credit = 0.0
            self._early.clear()
        grown = None
        if self._counting is Answers.COUNT:
            grown = changed.first_tokens
        elif self._counting is Answers.PROMPTS and changed.prompt_tokens is not None:
            grown = changed.prompt_tokens / self.ratio
        if grown is not None and 0.0 < changed.seconds <= _LAG_S:
            self._attribute(grown * share, started, now)
        self._forecast(now)

    @property
    def in_use(self) -> Answers:
        if self._only is not None:
            return self._only
        if self._seen(self._page_at):
            return Answers.FIRST_TOKEN
        return self._counting if self.step_s is None else Answers.FORECAST

    @property
    def ratio(self) -> float:
        """Prompt tokens that the page grows by for each that we estimated."""
        low, high = _RATIO
        return min(max(self._true / self._estimated, low), high)

    # -- inside -----------------------------------------------------------------------------------

    def _seen(self, now: float) -> bool:
        return now - self._seen_at < _SEEN_S

    def _answer(self, each: Inside, at: float) -> None:
        each.answered = True
        each.start = self._clock.at(at)
        self.requests -= 1
        self.tokens = self.tokens - each.prompt if self.requests else 0.0

    def _answer_early(self, each: Inside, at: float, now: float) -> None:
        """Before a page has shown it."""
        self._answer(each, at)
        if self._pages_tell:
            growth = each.slots if self._by_count else each.slots * each.prompt
            early = self._early
            if early and now - early[-1][0] < _GRAIN_S:
                early[-1][1] += growth
            else:
                early.append([now, growth])

    def _set_counting(self, by: Answers) -> None:
        self._counting = by
        # Asked at each release; looking a member up in its enum costs more than the rest.
        self._counting_none = by is Answers.END
        self._by_count = by is Answers.COUNT
        self._pages_tell = self._by_count or by is Answers.PROMPTS

    def _attribute(self, grown: float, started: float, now: float) -> None:
        credit = self._credit + grown
        early = self._early
        while early and early[0][0] < started - _LAG_S:
            early.popleft()
        while early and credit > 0.0:
            taken = min(credit, early[0][1])
            credit -= taken
            early[0][1] -= taken
            if early[0][1] <= 0.0:
                early.popleft()
        queue = self._queue
        while queue and credit > 0.0:
            each = queue[0]
            if not each.answered:
                growth = each.slots if self._by_count else each.slots * each.prompt
                if each.released >= started or credit < 0.999 * growth:
                    break
                credit -= growth
                self._answer(each, now)
            queue.popleft()
        # A remainder may be the first part of the next one's; what no request of ours is left to take is not ours.
        waits = bool(queue) and queue[0].released < started
        self._credit = max(0.0, credit) if waits else 0.0

    def _forecast(self, now: float) -> None:
        """What should have its first token by now has it."""
        if self._only not in (None, Answers.FORECAST, Answers.END):
            return
        step, each_token, seen = self.step_s, self.prompt_s or 0.0, self._seen(now)
        recent = now - self._page_at < _LAG_S
        if step is None and self._pages_tell and recent:
            return
        queue = self._queue
        while queue and not (recent and self.requests <= self._waiting):
            each = queue[0]
            if not each.answered:
                if step is None:
                    due = each.released + (_LAG_S if seen else 0.0)
                else:
                    due = max(self._read_until, each.released + 1.5 * step) + each.prompt * each_token
                if now < (2.0 * due - each.released + 1.0 if seen or each.prompt > LIMITS[1] else due):
                    return
                self._read_until = due
                self._answer_early(each, due, now)
            queue.popleft()
