"""The recommended controller, for small and large engines alike: slots, latency, KV and prefill, each by its own
account.

    may go      while in_flight + foreign < min(R + q, W), and KV and prefill have room (`base` says what goes at all)
    W           by inter-token latency, see `latency`; no limit while the page has no histogram of it
    KV          see `kv_account`;  prefill: see `prefill`;  what needs an almost empty engine for either: see `due`
    STALE       min(R, W): keep the batch full, give up the standing queue
    OUTAGE      0.8 of that, by our own count alone

R, the engine's slots, is learnt where engines have few; on large ones it hardly ever binds:

    something waits     R = running if more than 2q wait, else half way to it. `running` is the most of the last three
                        readings while something waits; 0 tells nothing of slots
    nothing waits       and R is filled to 0.9, by our count when the page was asked for, and by the page itself: R
                        doubles until something has waited, then + 10 %, at least 1
    the page itself     running >= 0.9 R and >= in_flight + foreign - 1: it has seen our requests. vLLM's page shows a
                        burst after 0.4-0.9 s; until then it says that nothing waits. Or a whole window of ours has
                        come and gone for over a second (see `base`)
    too slow            a page whose own latency is over the limit does not raise R
    max_num_seqs        where the policy gives it, R starts there and is never probed beyond
    other replicas      until something has waited, R is at least what they have found: a replica that begins while the
                        others fill an engine would have nothing until its own probing has come as far. Not of an engine
                        that was away: what the others know may be of the one before

q is the class's standing queue: a class without one fills R and no more. Limits are rounded up to whole requests:
one goes while fewer than the limit are inside.

Order on a page: foreign load and latency deltas (`base`), slots, W, then KV and the prefill limit, which is P
(clamped to 1,024..16,384; 8,192 until a regression tells), and the prompts of a standing queue more, where one has
been seen within 20 s: they wait in the engine because we want them to.

Where replicas share the endpoint, the accounts of KV and prefill hold the requests of one replica alone, so it has that
part of both that its claim is of the slots.

Published as simulated on five engine models; what the real vLLM showed since (start of 8, pages from before a burst,
dips, one-step answers, whole foreign requests) is in. Left out: memory of several mixes. W is in requests and the
mix in tokens, so a swing from chat to code overshoots until the next pages; the prefill limit bounds it. A foreign
burst of a hundred requests will preempt; nothing here stops it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from extproc.core.model import Request, Sample, WindowPolicy
from extproc.core.windows.base import MOST_PACE_S, Window
from extproc.core.windows.change import Change
from extproc.core.windows.due import Due
from extproc.core.windows.inside import Inside, TokenClock
from extproc.core.windows.kv_account import KvAccount
from extproc.core.windows.latency import Latency
from extproc.core.windows.prefill import LIMITS, START_LIMIT, Answers, Prefill
from extproc.core.windows.view import Hold, Stance

_FRESH, _OUTAGE = Stance.FRESH, Stance.OUTAGE
_OUTAGE_SHARE = 0.8
_FILLED = 0.9
_QUIET_S = 20.0
_RECENT = 0.01  # weight of a release in the means of prompts and outputs


class Adaptive(Window):
    """`answers`: how first tokens are known, to measure what each way costs; None: by the best that there is."""

    name = "adaptive"

    def __init__(self, endpoint: str, policy: WindowPolicy, now: float, *, answers: Answers | None = None) -> None:
        self._inside_now: dict[Request, Inside] = {}
        self._beyond: dict[Request, Inside] = {}  # inside as well, but the KV account does not count them
        self._clock = TokenClock()
        self.kv = KvAccount(self._inside_now, self._clock)
        self.prefill = Prefill(self._clock, answers)
        self._due = Due()
        self._mean_prompt = self._mean_output = 0.0  # tokens, of recent releases
        super().__init__(endpoint, policy, now)

    def _reset(self) -> None:
        policy = self.policy
        self.capacity = policy.start if policy.max_num_seqs is None else float(policy.max_num_seqs)
        self._slow_start = True
        self._waited_at = -math.inf  # something waited, last
        self.latency = Latency(policy.start)
        self.kv.reset()
        self.prefill.reset()
        self._budget = self._most_unanswered = self.prefill.limit = START_LIMIT  # P
        self._freed_before = self._freed
        self._bound()

    def _bound(self) -> None:
        policy = self.policy
        ceiling = policy.ceiling if policy.max_num_seqs is None else min(policy.ceiling, float(policy.max_num_seqs))
        self.capacity = max(min(self.capacity, ceiling), min(policy.floor, ceiling))
        self.latency.bound(max(1.0, policy.floor), policy.ceiling)

    def reconfigure(self, policy: WindowPolicy, now: float) -> None:
        if policy.max_num_seqs is not None and policy.max_num_seqs != self.policy.max_num_seqs:
            self.capacity = float(policy.max_num_seqs)
        if policy.max_tpot_s != self.policy.max_tpot_s:
            self.latency.retarget(policy.max_tpot_s)
        if policy.max_kv_usage != self.policy.max_kv_usage:
            self.kv.retarget(policy.max_kv_usage)
        super().reconfigure(policy, now)

    # -- what may be released ---------------------------------------------------------------------

    def _limit(self, q: float, stance: Stance, /) -> float:
        slots = self.capacity
        if stance is _FRESH:
            slots += q
        window = self.latency.window
        limit = slots if slots < window else window
        if stance is _OUTAGE:
            limit = max(1.0, self.policy.floor, _OUTAGE_SHARE * limit)
        return float(math.ceil(limit))

    def _fits(self, request: Request, now: float) -> bool:
        prefill, due = self.prefill, self._due
        if due.request is not None and due.holds_back(request, now):
            return False
        prompt = request.prompt_tokens
        # As `Prefill.holds` begins, without calling it: this runs for each release.
        if prefill.requests and prefill.tokens + prompt > prefill.limit and prefill.holds(prompt, now):
            if prompt > prefill.limit:
                due.refused(request, "prefill", now)
            else:
                due.asked(request, now)
            return False
        kv = self.kv
        if kv.limit == math.inf:
            return True
        slots = request.slots
        estimate = request.output_tokens / slots
        if estimate < 1.0:
            estimate = 1.0
        if kv.fits(prompt, slots, estimate, now) or kv.is_beyond(prompt, slots):
            return True
        if kv.is_large(prompt, slots, estimate):
            due.refused(request, "kv", now)
        return False

    def _full(self, inside: int, q: float, stance: Stance, /) -> Hold:
        limit = self._limit_in(q, stance)
        slots = self.capacity + (q if stance is _FRESH else 0.0)
        if self.latency.window >= slots:
            return Hold("slots", inside, limit, "requests")
        note = "the latency limit is below the engine's own step time" if self.latency.below_step else ""
        return Hold("latency", inside, limit, "requests", note)

    def _hold(self, request: Request, now: float, without: Sequence[Request]) -> Hold | None:
        prefill, kv = self.prefill, self.kv
        prompt = request.prompt_tokens
        found = [self._inside_now.get(other) or self._beyond.get(other) for other in without]
        gone = [inside for inside in found if inside is not None]
        if self.owed(now) not in (None, request):
            return self._turn(request, now)
        if not prefill.has_room(prompt, gone):
            return Hold("prefill", prefill.tokens + prompt, prefill.limit, "tokens")
        ceiling = kv.ceiling
        if ceiling is not None and not kv.is_beyond(prompt, request.slots):
            each = max(1.0, request.output_tokens / request.slots)
            expected = kv.expected_with(prompt, request.slots, each, now, gone)
            if expected > ceiling:
                return Hold("kv", expected, ceiling, "tokens")
        return None

    def owed(self, now: float) -> Request | None:
        due = self._due  # mostly nobody is: each look in vain asks
        return None if due.request is None else due.owed(now)

    def _asked(self, request: Request, now: float) -> None:
        if request is self._due.request:
            self._due.asked(request, now)

    def _turn(self, request: Request, now: float) -> Hold:
        prefill, kv = self.prefill, self.kv
        if self._due.by == "kv" and kv.ceiling is not None:
            return Hold("kv_turn", kv.expected(now), kv.ceiling, "tokens")
        return Hold("prefill_turn", prefill.tokens + request.prompt_tokens, prefill.limit, "tokens")

    # -- what happens -----------------------------------------------------------------------------

    def take(self, request: Request, now: float, *, number: int = 0, most: float | None = None) -> int:
        guest = Window.take(self, request, now, number=number, most=most)  # `super` takes longer, and each request asks
        slots, prompt = request.slots, request.prompt_tokens
        output = request.output_tokens / slots
        if output < 1.0:
            output = 1.0
        if self._mean_output == 0.0:
            self._mean_prompt, self._mean_output = prompt, output
        self._mean_prompt += _RECENT * (prompt - self._mean_prompt)
        self._mean_output += _RECENT * (output - self._mean_output)
        each = Inside(slots, prompt, output, now)
        kv = self.kv
        if kv.is_beyond(prompt, slots):
            self._beyond[request] = each
        else:
            self._inside_now[request] = each
            kv.enter(each)
        self.prefill.enter(each, now)
        if request is self._due.request:
            self._due.gone()
        return guest

    def first_token(self, request: Request, now: float) -> None:
        each = self._inside_now.get(request) or self._beyond.get(request)
        if each is not None:
            self.prefill.first_token(each, now)

    def free(self, request: Request, now: float) -> None:
        Window.free(self, request, now)
        each = self._inside_now.pop(request, None)
        if each is not None:
            self.prefill.leave(each, now)
            self.kv.leave(each, now)
        elif (each := self._beyond.pop(request, None)) is not None:
            self.prefill.leave(each, now)

    def share(
        self, claim: float, others: int, freed: int, until: float, now: float, gone: int = 0, known: float = 0.0
    ) -> None:
        super().share(claim, others, freed, until, now, gone, known)
        self._take_part(now)

    def _take_over(self, known: float) -> None:
        if self.lives == 1 and self._slow_start and known > self.capacity:  # of an engine that others know as well
            self.capacity = known
            if self.latency.itl_s is None:
                self.latency.window = max(self.latency.window, known)
            self._bound()

    def _take_part(self, now: float) -> None:
        """Of the KV cache and of the unanswered prompts as much is ours as of the slots."""
        most, part = self._most_unanswered, 1.0
        if self.claim < math.inf:
            slots = max(self.claim, float(self.in_flight), 1.0)
            part = min(1.0, slots / max(1.0, self.limit(0.0, now) - self.unknown))
        self.kv.take_part(part)
        self.prefill.limit = most if part == 1.0 else max(LIMITS[0], part * most)

    def observed(self, request: Request, prompt_tokens: int | None, output_tokens: int | None) -> None:
        if prompt_tokens is not None and request.prompt_tokens > 0:
            self.prefill.observed(request.prompt_tokens, prompt_tokens)
        if output_tokens is not None:
            slots, expected = request.slots, request.output_tokens
            self.kv.survival.observe(output_tokens / (slots if slots > expected else expected))

    # -- what a page teaches ----------------------------------------------------------------------

    def _learn(
        self, page: Sample, last: Sample | None, changed: Change, own_then: int, q: float, _asked: float, now: float, /
    ) -> None:
        policy = self.policy
        if page == last:
            return  # the same page again
        self._learn_slots(page, own_then, q, now)
        freed, self._freed_before = self._freed - self._freed_before, self._freed
        latency = self.latency
        if page.itl_sum is None:
            latency.window = math.inf
        elif latency.window == math.inf:
            latency.window = max(policy.start, float(self.load))
        steady = self._mean_prompt / self._mean_output if self._mean_output else 0.0
        latency.on_page(
            changed,
            page.running if last is None else (page.running + last.running) / 2,
            self.load,
            freed,
            policy.max_tpot_s,
            (max(1.0, policy.floor), policy.ceiling),
            steady,
            now,
        )
        self._set_pace(page, last, changed, now)
        own = self.in_flight
        self.kv.on_page(
            changed.seconds,
            page.kv_usage,
            page.kv_capacity_tokens,
            changed.preemptions,
            policy.max_kv_usage,
            now,
            mine=own / (own + self.others) if self.others else 1.0,
        )
        if latency.prompt_budget is not None:
            self._budget = min(max(latency.prompt_budget, LIMITS[0]), LIMITS[1])
        prefill = self.prefill
        prefill.prompt_s = latency.prompt_s
        prefill.step_s = self.pace_s if latency.decode_s is None else latency.decode_s
        # Of what the page tells of prompts that is ours: not what other replicas had inside.
        mine = own_then - self.others
        share = mine / (own_then + self.unknown) if mine > 0 else 0.0
        prefill.on_page(
            changed, page.ttft_count is not None, page.prompt_tokens is not None, page.waiting, share, page.started, now
        )
        queueing = now - self._waited_at <= _QUIET_S
        self._most_unanswered = self._budget + (q * self._mean_prompt if queueing else 0.0)
        self._take_part(now)

    def _learn_slots(self, page: Sample, own_then: int, q: float, now: float) -> None:
        running = max(self._running)
        capacity = self.capacity
        if page.waiting > 0:
            self._slow_start = False
            self._waited_at = now
            self._begin_turn(now)
            if running > 0:  # else it was taken between finish and admission
                capacity = float(running) if page.waiting > 2 * q else capacity + (running - capacity) / 2
        else:
            inside = own_then + self.unknown
            slow = self._page_tpot is not None and self._page_tpot > self.policy.max_tpot_s
            if own_then > 0 and inside >= _FILLED * capacity and not slow:
                seen = page.running >= _FILLED * capacity and page.running >= inside - 1
                if seen or self._turned_over(inside, now):
                    capacity = 2 * capacity if self._slow_start else capacity + max(1.0, capacity / 10)
                    self._begin_turn(now)
        self.capacity = capacity
        self._bound()

    def _set_pace(self, page: Sample, last: Sample | None, changed: Change, now: float) -> None:
        """Seconds per output token: of the histogram, smoothed; without one, of what ran by the tokens made."""
        pace = self.latency.itl_s
        if page.itl_sum is None and last is not None and changed.output_tokens and changed.seconds > 0.0:
            pace = (page.running + last.running) / 2 * changed.seconds / changed.output_tokens
        if pace is None or pace <= 0.0:
            return
        if pace > MOST_PACE_S:
            self.absurd += page.itl_sum is None  # else it is counted already
            return
        self.pace_s = pace
        self._clock.set_pace(pace, now)

    def _parts(self, now: float) -> dict[str, Any]:
        latency, kv, prefill = self.latency, self.kv, self.prefill
        return {
            "floor": self._floor(),
            "tpot_window": None if latency.window == math.inf else latency.window,
            "margin": latency.margin,
            "itl_s": latency.itl_s,
            "decoding": latency.decoding,
            "prefill_s": latency.prompt_s,
            "below_step": latency.below_step,
            "prefill_limit": prefill.limit,
            "unanswered": prefill.requests,
            "unanswered_tokens": prefill.tokens,
            "answers": prefill.in_use.value,
            "kv_expected": None if kv.capacity is None else kv.expected(now),
            "kv_ceiling": kv.ceiling,
        }
