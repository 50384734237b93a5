"""The books of one endpoint that every controller keeps, and the order in which a window decides.

    in_flight   ours, in engine slots, exact, since each is tied to the life of a stream
    foreign     requests in the engine that are not ours: smoothed max(0, waiting + running - the most of ours in the
                last five seconds), rising by 0.5 and falling by 0.3 of the gap a page, in whole requests (a tail of a
                tenth would block a slot for a second). The first page is taken as it is
    others      of foreign, where replicas share the endpoint: slots that the others hold, by their word (`share`). Of a
                page they count as ours, and what is left is `unknown`. Where they come to be known after a page has
                shown them, that page is put right
    claim       slots that ours may hold, where replicas share the endpoint, until `claim_until`
    limit(q)    slots that may be taken by ours and foreign ones together; q: the class's standing queue
    stance      what the window goes by:
        STARTING    not read yet, for `first_scrape_grace_s` or until a read has failed: nothing is released
        FRESH       the page is at most three scrapes old (and half a second); with more than two replicas scrapes are
                    farther apart, see `pages`
        STALE       it is older: whatever it showed may be gone
        OUTAGE      it is older than 30 s, or was never read. `policy.outage`: degrade, hold (nothing), open (as FRESH).
                    The last reading of foreign load is worth nothing then; our own count is all there is
        DOWN        nothing listens there (until a page is read: then all that was learnt is void), or connections to
                    it failed (until a page asked for afterwards is read, or for two seconds: a dead engine refuses
                    faster than any other answers, and would be sent all that waits). A connection that breaks counts
                    when it is the second within a second: one alone may be the fault of its request
        STALLED     its pages come, show work, and no progress with it, see `stall`. With progress all is learnt anew

A request may go

    never       to a removed endpoint, to one that is STARTING or DOWN, or in an OUTAGE whose policy is to hold; or
                while it is left alone, having refused or failed requests, see `backoff`; nor beyond the claim or after
                it, but for a request of several slots while one of the claim would idle;
    seldom      to a STALLED one: when nothing of ours has been inside for a minute, one, to see;
    always      when nothing of ours is inside, nor of other replicas, whatever its size and width, unless another is
                owed the turn (that one goes then, or is forgotten after a second). Foreign load that fills the window
                holds it back too, but for five seconds without a change of ours at most: gauges of some engines stay
                high for ever after all requests were aborted;
    else        if in_flight + foreign + its slots <= limit (a request of several slots also when one would idle: it is
                not to wait until the engine has run dry), and if the controller's further accounts (`_hold`) have
                room.

Overtaking. With a full window a newcomer waits for two completions, one to be released and one to get a slot. So a
tenant with nothing inside may exceed a full window by `most` slots, and a full claim by as many. A window can also be
overfull through no doing of the tenant (a list of prompts released as one, work that is not ours): then `most` such
guests may be inside at a time, or one, however wide. Guests are guests until the load is within R again.

Facts that shaped it, measured on vLLM: gauges lag by 60-110 ms, in a burst by 0.4-0.9 s; `running` is taken after
the finished have gone and before the next are admitted, so it dips, and while something waits the largest of the
last three readings counts. Requests done within one step never show: that a whole window of them has come and gone
for longer than gauges lag, and nothing waits, also proves that the page has seen them.

Pages are cleaned first, see `change`; one older than the page before it is dropped and counted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from extproc.core.model import Gates, Outage, Request, Sample, WindowPolicy
from extproc.core.windows.backoff import FAILED, REFUSED, Backoff
from extproc.core.windows.change import Change, change, cleaned
from extproc.core.windows.gates import closed_gate
from extproc.core.windows.history import GRAIN_S, History
from extproc.core.windows.pages import stretch
from extproc.core.windows.stall import Stall
from extproc.core.windows.turned_away import TurnedAway
from extproc.core.windows.view import Hold, Stance, WindowView

if TYPE_CHECKING:
    from extproc.core.windows.pool_load import PoolLoad

STALE_INTERVALS = 3
STALE_SLACK_S = 0.5
OUTAGE_S = 30.0
PROBE_S = 5.0
LAG_S = 1.0  # gauges of a busy vLLM show a burst after 0.4-0.9 s
SUSPECT_S = 2.0
BROKE_S = 1.0
SHRINK = 0.1  # weight of a page on which fewer run while something waits
MOST_PACE_S = 60.0  # for each output token; no engine is slower: such a pace is dropped and counted
TRY_S = 60.0
DIPS = 3  # readings of `running` over which its dips are bridged

_NEVER = float("-inf")
# On the path of each release: looking a member up in its enum costs more than all else in a line.
_STARTING, _FRESH, _STALE, _OUTAGE, _DOWN, _STALLED = (
    Stance.STARTING,
    Stance.FRESH,
    Stance.STALE,
    Stance.OUTAGE,
    Stance.DOWN,
    Stance.STALLED,
)
_HOLD, _OPEN = Outage.HOLD, Outage.OPEN
_BOOKS = (
    *("in_flight", "guests", "guest_turn", "last_take", "removed", "absurd", "foreign", "tpot_s", "ttft_s", "pace_s"),
    *("freed", "unknown", "shares", "others", "claim", "claim_until", "readers", "_fresh_to"),
    *("_added_at", "_down", "_attempted", "_history", "_foreign", "_foreign_known", "_page_tpot", "_page_ttft"),
    *("_suspect_at", "_broke_at", "_last", "_read_at", "_fresh_until", "_running", "_stall", "_turned_away"),
    *("_refusals", "_failures", "left_until", "hangs", "lives", "kv_usage", "turned_away", "failed"),
)


class Window:
    """Base of the controllers. `now` is in seconds, counts are engine slots. A subclass fills in the underscored
    methods of the last section; it reads the books and leaves them alone."""

    name = "base"
    counts_foreign = True

    def __init__(self, endpoint: str, policy: WindowPolicy, now: float) -> None:
        self.endpoint = endpoint
        self.policy = policy
        self.in_flight = 0
        self.freed = 0  # slots of ours, ever
        self.shares = False  # with other replicas
        self.others = 0  # slots that other replicas hold
        self.claim = math.inf  # slots of ours that may be inside
        self.claim_until = math.inf  # nothing goes after it; -infinity: there has been no word of the others yet
        self.readers = 1  # replicas that read the engine's pages, each for itself
        self.guests = 0  # of these, slots let into an overfull window
        self.guest_turn = 1  # goes up when the window is no longer overfull: those from before are guests no more
        self.last_take = 0  # number of the last release to it, to go round among equals
        self.removed = False
        self.lives = 0  # goes up when all that was learnt is void: another engine, or the same one anew
        self.pool_load: PoolLoad | None = None  # counts foreign load, where that is done for all endpoints together
        self.absurd = 0
        self.turned_away = self.failed = 0  # requests, ever
        self._added_at = now
        self._down = False
        self._attempted = False
        self._history = History()
        self._freed = 0  # slots of ours and of other replicas, since this controller began
        self._fresh_start()

    def _fresh_start(self) -> None:
        """All that was learnt is void. Our own books stay: they are tied to streams."""
        self.lives += 1
        self.capacity = 0.0  # R; the subclass's
        self.unknown = 0  # requests inside that are of no replica
        self.foreign = self.others
        self.kv_usage = 0.0  # of the last page, 0..1; 0 where it is not known
        self.tpot_s: float | None = None  # of the last page that had tokens
        self.ttft_s: float | None = None
        self.pace_s: float | None = None  # seconds per output token of one request, last known
        self._foreign = 0.0
        self._foreign_known = False
        self._page_tpot: float | None = None  # of the last page alone
        self._page_ttft: float | None = None
        self._suspect_at = self._broke_at = _NEVER
        self._last: Sample | None = None
        self._read_at: float | None = None
        self._fresh_to = _NEVER  # up to then the stance is FRESH
        self._fresh_until = _NEVER  # and the claim holds: without looking closer
        self._limits: dict[float, float] = {}  # by q, while FRESH; they change with pages and the policy alone
        self._running: deque[int] = deque(maxlen=DIPS)
        self._slots: float | None = None  # that ran while something waited; None: nothing has waited yet
        self._turn_from = self._freed  # slots freed when the capacity was last changed, or something waited
        self._turn_began = _NEVER
        self._stall = Stall()
        self.hangs = False  # it is STALLED, as far as the last page tells
        self._turned_away = TurnedAway()
        self._refusals, self._failures = Backoff(REFUSED), Backoff(FAILED)
        self.left_until = _NEVER  # nothing is sent before, see `backoff`
        self._reset()

    # -- what may be released ---------------------------------------------------------------------

    @property
    def load(self) -> int:
        return self.in_flight + self.foreign

    @property
    def stretch(self) -> float:
        """How many times `policy.scrape_interval_s` is between two pages."""
        return stretch(self.readers, self.policy)

    @property
    def adapters(self) -> tuple[tuple[str, ...], int | None]:
        """(LoRA adapters that the last page shows, how many fit into a batch). None: it does not tell."""
        last = self._last
        return ((), None) if last is None else (last.adapters or (), last.max_adapters)

    def stance(self, now: float) -> Stance:
        if self._down or now - self._suspect_at < SUSPECT_S:
            return _DOWN
        if self.hangs:
            return _STALLED
        if self._read_at is None:
            waiting_for_first = not self._attempted and now - self._added_at < self.policy.first_scrape_grace_s
            return _STARTING if waiting_for_first else _OUTAGE
        age = now - self._read_at
        if age > OUTAGE_S:
            return _OUTAGE
        # Where nothing of ours is inside the page is read more seldom, and tells enough.
        idle = self.in_flight == 0
        interval = self.policy.idle_scrape_interval_s if idle else self.policy.scrape_interval_s * self.stretch
        return _STALE if age > STALE_INTERVALS * interval + STALE_SLACK_S else _FRESH

    def limit(self, q: float, now: float) -> float:
        """Slots that may be taken, ours and foreign ones together, for a class with standing queue `q`."""
        if now <= self._fresh_until and not self.removed:  # as below: this runs for each release
            return self._limits.get(q) or self._limit_anew(q)
        stance = self.stance(now)
        return self._limit_in(q, stance) if self._usable(stance) else 0.0

    def slots(self, now: float) -> float:
        """Slots that the engine is known to run at once. `limit` without a standing queue goes beyond it by what
        probing adds; once something has waited it is known how many run then."""
        limit = self.limit(0.0, now)
        return limit if self._slots is None else min(limit, math.ceil(self._slots))

    def accepts(self, request: Request, q: float, now: float) -> bool:
        """Whether `request` may go now, for a class with standing queue `q`."""
        # As `_usable`, `_limit_in` and `_inside` say, without calling them: this runs for each release.
        if now <= self._fresh_until and not self.removed:
            limit = self._limits.get(q) or self._limit_anew(q)
            own = self.in_flight
            inside = own + self.foreign
        else:
            if now > self.claim_until:
                return False
            stance = self.stance(now)
            if not self._usable(stance):
                return stance is _STALLED and self._may_try(now)
            limit, own, inside = self._limit_in(q, stance), self.in_flight, self._inside(stance)
        if self.left_until > now:
            return False
        if self.shares and self._claim_is_full(own, request.slots):
            self._asked(request, now)
            return False
        if own == 0:
            if self.owed(now) not in (None, request):
                return False
            if not self.others:
                return inside < limit or self._may_probe(now)
            # The controller's further accounts are of ours alone, and hold nothing.
            slots = request.slots
            return inside + slots <= limit or (slots > 1 and inside < limit and inside < self.capacity)
        slots = request.slots
        if inside + slots > limit and not (slots > 1 and inside < limit and inside < self.capacity):
            self._asked(request, now)
            return False
        return self._fits(request, now)

    def fits(self, request: Request, now: float) -> bool:
        """As `accepts`, but for the slots, where these are counted for all endpoints together."""
        if not self._usable(self.stance(now)) or self.left_until > now:
            return False
        return self.owed(now) in (None, request) if self.in_flight == 0 else self._fits(request, now)

    def no_room(self, request: Request, now: float) -> None:
        """`request` asked for a place, and all endpoints together have none."""
        self._asked(request, now)

    def may_overtake(self, request: Request, q: float, most: int, now: float) -> bool:
        """Whether a tenant with nothing inside may exceed a full window, by `most` slots."""
        stance = self.stance(now)
        if not self._usable(stance) or self.left_until > now:
            return False
        limit, inside, slots = self._limit_in(q, stance), self._inside(stance), request.slots
        if self.shares and (now > self.claim_until or self.claim < max(1, self.in_flight + slots - most)):
            return False  # without a slot of its own it would always have one in this way, whatever its part is
        room = inside + slots <= limit + most
        if not room and inside > limit + most:
            room = self.guests == 0 or self.guests + slots <= most
        if self.in_flight == 0:
            return room and self.owed(now) in (None, request)
        return room and self._fits(request, now)

    def owed(self, now: float) -> Request | None:  # noqa: ARG002 - for subclasses
        """A request that was refused for long enough: all else is held back here until it has gone or is asked for no
        more. The scheduler is to ask for it also while a request of a higher class stands before it."""
        return None

    def gate(self, gates: Gates, now: float) -> Hold | None:
        """The first of a class's gates that is closed here; None as well where the page is not fresh."""
        last = self._last
        if last is None or self.stance(now) is not _FRESH:
            return None
        return closed_gate(gates, last, self._page_tpot, self._page_ttft)

    def why_not(self, request: Request, q: float, now: float, without: Sequence[Request] = ()) -> Hold | None:
        """Which part holds `request` back; None: it may go. Says what `accepts` does, at leisure and without a trace.
        `without`: requests inside that are taken to be gone."""
        stance = self.stance(now)
        if not self._usable(stance):
            if stance is _STALLED and self._may_try(now):
                return None if now <= self.claim_until else self._no_share(self.in_flight)
            age = 0.0 if self._read_at is None else now - self._read_at
            if stance is _STALLED and self._stall.since is not None:
                age = now - self._stall.since
            return Hold("stance", age, 0.0, "s", "removed" if self.removed else stance.value)
        if self.left_until > now:
            return Hold("backoff", self.left_until - now, 0.0, "s")
        gone = sum(other.slots for other in without)
        own, limit, slots = self.in_flight - gone, self._limit_in(q, stance), request.slots
        inside = self._inside(stance) - gone
        if now > self.claim_until or self._claim_is_full(own, slots):
            return self._no_share(own)
        if own == 0:
            if self.owed(now) not in (None, request):
                return self._hold(request, now, without)
            if not self.others and (inside < limit or self._may_probe(now)):
                return None
            if not self.others:
                return Hold("foreign", inside, limit, "requests")
        if inside + slots > limit and not (slots > 1 and inside < limit and inside < self.capacity):
            if inside > own and own + slots <= limit and inside - own > self.others:
                return Hold("foreign", inside, limit, "requests")
            return self._full(inside, q, stance)
        return None if own == 0 else self._hold(request, now, without)

    def _claim_is_full(self, own: int, slots: int) -> bool:
        """For a request of so many slots; a wide one may go while a slot of the claim would idle."""
        return own + slots > self.claim and not (slots > 1 and own < self.claim)

    def _no_share(self, own: int) -> Hold:
        """What holds a request back that this replica's claim has no room for. `own`: slots that ours hold."""
        if self.claim_until == _NEVER:
            return Hold("share", own, 0.0, "requests", "waits for word from the store")
        if own + 1 <= self.claim:
            return Hold("share", own, self.claim, "requests", "its claim is over: no word from the store in time")
        note = f"this replica's part is used up; other replicas hold {self.others}"
        return Hold("share", own, self.claim, "requests", note)

    def _may_probe(self, now: float) -> bool:
        return now - max(self._history.changed_at, self._added_at) > PROBE_S

    def _may_try(self, now: float) -> bool:
        """Whether a STALLED endpoint gets one request, to see."""
        if self.removed or self.in_flight or self.others or self._stall.since is None:
            return False
        return now - max(self._stall.since, self._history.changed_at) > TRY_S

    def opens_at(self, now: float) -> float:
        """When a pause ends that nothing but time ends; infinite: there is none."""
        until = max(self.left_until, self._suspect_at + SUSPECT_S)
        return until if until > now and not self.removed else math.inf

    def here(self, now: float) -> bool:
        """Whether there is an engine that may be sent something, now or when it has room."""
        return not self.removed and self.stance(now) not in (_DOWN, _STALLED)

    def _usable(self, stance: Stance) -> bool:
        if self.removed or stance is _DOWN or stance is _STARTING or stance is _STALLED:
            return False
        return stance is not _OUTAGE or self.policy.outage is not _HOLD

    def _limit_anew(self, q: float) -> float:
        limit = self._limits[q] = min(self._limit(q, _FRESH), self._turned_away.most)
        return limit

    def _limit_in(self, q: float, stance: Stance) -> float:
        """Under a stance that releases at all."""
        limit = self._limit(q, _FRESH if stance is _OUTAGE and self.policy.outage is _OPEN else stance)
        return min(limit, self._turned_away.most)

    def _inside(self, stance: Stance) -> int:
        return self.in_flight + (self.others if stance is _OUTAGE else self.foreign)

    # -- what happens -----------------------------------------------------------------------------

    def take(self, request: Request, now: float, *, number: int = 0, most: float | None = None) -> int:
        """`number`: of the release, counted up over all endpoints. `most`: what a full window may be exceeded to, for
        one that overtakes; None: there was room. Returns what the request's `guest` is to be."""
        guest = 0
        if most is not None and self._inside(self.stance(now)) > most:
            guest = self.guest_turn
            self.guests += request.slots
        history = self._history
        if now - history.changed_at >= GRAIN_S:
            history.note(self.in_flight + self.others, now)
        self.in_flight += request.slots
        self.last_take = number
        return guest

    def first_token(self, request: Request, now: float) -> None:
        """The first token of `request` has been seen."""

    def free(self, request: Request, now: float) -> None:
        """The stream of `request` is over."""
        slots = request.slots
        history = self._history
        if now - history.changed_at >= GRAIN_S:
            history.note(self.in_flight + self.others, now)
        self.in_flight -= slots
        self.freed += slots
        self._freed += slots
        if self.in_flight < 0:
            raise AssertionError(f"{self.endpoint}: in flight {self.in_flight}")
        if self.guests:
            if request.guest == self.guest_turn:
                self.guests -= slots
            self._end_of_overfull()

    def share(
        self, claim: float, others: int, freed: int, until: float, now: float, gone: int = 0, known: float = 0.0
    ) -> None:
        """Word of the other replicas: they hold `others` slots, and have freed `freed` since the last word. Ours may
        hold `claim`, up to the time `until`. `gone`: slots of replicas that have died since. They count as foreign, or
        all these would be filled anew before a page shows that the engine has no room for them. `known`: slots that the
        engine runs at once, as far as the others have seen: a window that has just begun takes it over."""
        if known:
            self._take_over(known)
        rises = others > self.others
        if others != self.others:
            history = self._history
            if now - history.changed_at >= GRAIN_S:
                history.note(self.in_flight + self.others, now)
            self.others = others
        if gone and self.counts_foreign:
            self._history.less(gone)
            self._foreign += gone
            self._foreign_known = False  # the next page says how many
            self.unknown = int(self._foreign + 0.5)
        self._freed += freed
        self.shares, self.claim, self.claim_until = True, claim, until
        last = self._last
        if rises and self.unknown and last is not None:
            # Their requests may have been on the page before the word of them came.
            _, most = self._history.around(last.started, self.in_flight + others)
            self._foreign = min(self._foreign, max(0.0, float(last.waiting + last.running - most)))
            self.unknown = int(self._foreign + 0.5)
        if self.foreign != others + self.unknown:
            self.foreign = others + self.unknown
            self._end_of_overfull()
        self._fresh(self._fresh_to)

    def _take_over(self, known: float) -> None:
        """For controllers that learn."""

    def read_by(self, replicas: int) -> None:
        """So many replicas read the engine's pages now."""
        if replicas != self.readers:
            self.readers = replicas
            if self._read_at is not None and self._fresh_to != _NEVER:
                self._fresh(self._read_at + self._fresh_s())

    def await_word(self) -> None:
        """There are other replicas, and there has been no word of them yet: nothing may go."""
        self.shares, self.claim, self.claim_until, self._fresh_until = True, 0.0, _NEVER, _NEVER

    def common_limit(self, q: float, now: float) -> float:
        """Slots that all replicas together may hold, as far as this one knows. 0: nothing may go there."""
        stance = self.stance(now)
        if not self._usable(stance) or self.left_until > now:
            return 0.0
        limit = min(self._limit_in(q, stance), max(self.policy.ceiling, self.capacity))
        if stance is not _OUTAGE:
            limit -= self.unknown
        if limit < 1.0 and not self.in_flight and not self.others and self._may_probe(now):
            return 1.0
        return max(0.0, limit)

    def observed(self, request: Request, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """What `request` really took is known, before or after its stream is over."""

    def served(self) -> None:
        """It has answered a request, and counted its tokens."""
        self._stall.lives()
        self._refusals.over()
        self._failures.over()
        self.left_until = _NEVER

    def on_unreachable(self, now: float, *, broke: bool) -> None:
        """A connection to the endpoint failed; or it `broke`."""
        if broke and now - self._broke_at > BROKE_S:
            self._broke_at = now
        else:
            self._suspect_at = now
            self._fresh(_NEVER)
        if broke:
            self.on_failed(now)

    def on_failed(self, now: float) -> None:
        """It failed a request: 500 and above but for want of room, or a connection that broke."""
        self.failed += 1
        self._failures.note(now)
        self.left_until = max(self._refusals.until, self._failures.until)

    def on_turned_away(self, slots: int, now: float) -> None:
        """The engine has refused one of ours, of that many slots, which may still count as inside: it has no room."""
        self.turned_away += 1
        self._turned_away.note(max(0, self.in_flight + self.foreign - slots), now)
        self._refusals.note(now)
        self.left_until = max(self._refusals.until, self._failures.until)
        self._limits.clear()

    def on_failure(self, refused: bool) -> None:
        """The page could not be read. `refused`: nothing listens there any more."""
        self._attempted = True
        if refused:
            self._down = True
            self._fresh(_NEVER)

    def revive(self, now: float) -> None:
        """The endpoint was removed and is back, perhaps with another engine behind the address."""
        self.removed = False
        self._added_at = now
        self._down = self._attempted = False
        self._fresh_start()

    def reconfigure(self, policy: WindowPolicy, now: float) -> None:  # noqa: ARG002 - for subclasses
        """What was learnt stays, within the new bounds. For another controller see `windows.renewed`."""
        if policy.stalled_after_s != self.policy.stalled_after_s:
            self._stall.judge(policy.stalled_after_s, self._read_at)
            self.hangs = self._stall.since is not None
            self._fresh(_NEVER)
        self.policy = policy
        if self._read_at is not None and self._fresh_to != _NEVER:
            self._fresh(self._read_at + self._fresh_s())
        self._bound()
        self._limits.clear()

    def adopt(self, other: Window, released: Iterable[Request], now: float) -> None:
        """Take over the books of `other`, a window on the same endpoint, which holds `released` requests."""
        for request in released:  # into the controller's own accounts
            self.take(request, request.released_at)
            if request.first_token_at is not None:
                self.first_token(request, request.first_token_at)
        for name in _BOOKS:
            setattr(self, name, getattr(other, name))
        policy, self.policy = self.policy, other.policy  # what the books say was found by that one
        self.reconfigure(policy, now)

    def on_sample(self, sample: Sample, q: float, asked: float, now: float) -> None:
        """The page was read. `q` is the largest standing queue that a class of the pool aims at; `asked` the one that
        the next request in line aims at, less the slots it takes beyond one."""
        self._attempted = True
        page, bad = cleaned(sample)
        if page is None or (not self._down and self._last is not None and page.started < self._last.started):
            self.absurd += max(bad, 1)
            return
        if self._down:
            # Another process, or the same one anew: what was learnt is void.
            self._down = False
            self._fresh_start()
        last, self._last, self._read_at = self._last, page, now
        if page.started > self._suspect_at:
            self._suspect_at = _NEVER
        # Where Envoy chooses, nobody knows whether what we count here is here.
        own = self.in_flight + self.others if self.pool_load is None else 0
        if self._stall.on_page(page, last, own, self.policy.stalled_after_s, now):
            self._fresh_start()  # it has come back: as one that was down
            self._read_at, self._last, last = now, page, None
        self.hangs = self._stall.since is not None
        fresh = self._suspect_at == _NEVER and not self.hangs
        self._fresh(now + self._fresh_s() if fresh else _NEVER)
        if self._turned_away.on_page(now):
            self._limits.clear()
        if last is not None and (page.progress, page.generation_tokens) != (last.progress, last.generation_tokens):
            self._failures.over()
            self.left_until = self._refusals.until
        own_then, own_max = self._history.around(page.started, self.in_flight + self.others)
        most_inside = own_max + page.running + page.waiting
        if last is not None:
            most_inside += last.running + last.waiting
        changed, worse = change(last, page, most_inside)
        self.absurd += bad + worse
        if page.waiting == 0:
            self._running.clear()
        self._running.append(page.running)
        if self._slots is not None and page.running > self._slots:
            self._slots = float(page.running)
        elif page.waiting > 0 and (running := max(self._running)):
            self._slots = running if self._slots is None else self._slots + SHRINK * (running - self._slots)
        self._learn_foreign(page, own_max, now)
        self._learn_latency(changed)
        self.kv_usage = min(1.0, page.kv_usage or 0.0)
        self._learn(page, last, changed, own_then, q, asked, now)
        self._limits.clear()
        self._end_of_overfull()

    # -- inside -----------------------------------------------------------------------------------

    def _fresh_s(self) -> float:
        """For how long a page is fresh at least, whatever is in flight."""
        shorter = min(self.policy.scrape_interval_s * self.stretch, self.policy.idle_scrape_interval_s)
        return STALE_INTERVALS * shorter + STALE_SLACK_S

    def _fresh(self, until: float) -> None:
        self._fresh_to = until
        self._fresh_until = until if until < self.claim_until else self.claim_until

    def _end_of_overfull(self) -> None:
        if self.guests and self.in_flight + self.foreign <= self.capacity:
            self.guests, self.guest_turn = 0, self.guest_turn + 1

    def _learn_foreign(self, page: Sample, own_max: int, now: float) -> None:
        if not self.counts_foreign:
            return
        if self.pool_load is not None:
            self._foreign_known = False
            self.pool_load.on_page(self.endpoint, page.waiting + page.running, page.started, now)
            return
        seen = max(0, page.waiting + page.running - own_max)
        if not self._foreign_known:
            self._foreign, self._foreign_known = float(seen), True
        else:
            gap = seen - self._foreign
            self._foreign += (0.5 if gap > 0 else 0.3) * gap
            if self._foreign < 0.2:
                self._foreign = 0.0
        self.unknown = int(self._foreign + 0.5)
        self.foreign = self.others + self.unknown

    def _learn_latency(self, changed: Change) -> None:
        self._page_tpot = self._page_ttft = None
        if changed.itl_s is not None and changed.itl_tokens:
            self._page_tpot = self.tpot_s = changed.itl_s / changed.itl_tokens
            if self.tpot_s <= MOST_PACE_S:
                self.pace_s = self.tpot_s
            else:
                self.absurd += 1
        if changed.ttft_s is not None and changed.first_tokens:
            self._page_ttft = self.ttft_s = changed.ttft_s / changed.first_tokens

    def _begin_turn(self, now: float) -> None:
        self._turn_from, self._turn_began = self._freed, now

    def _turned_over(self, inside: int, now: float) -> bool:
        """Whether a whole window of requests has come and gone for longer than gauges lag, and nothing waits: the
        page has seen them, though it never shows requests that are done within one step."""
        return self._freed - self._turn_from >= inside and now - self._turn_began >= LAG_S

    def _floor(self) -> float | None:
        """For controllers that open and close: to how little. None: an engine has no more slots than that."""
        slots = self.policy.max_num_seqs
        return None if slots is not None and slots <= self.policy.floor else self.policy.floor

    # -- the controller ---------------------------------------------------------------------------

    def _reset(self) -> None:
        """Set the controller's own state to its start."""

    def _bound(self) -> None:
        """The policy is another: bring the controller's own state within it."""

    def _limit(self, q: float, stance: Stance, /) -> float:
        """Slots under FRESH, STALE or OUTAGE (to degrade)."""
        raise NotImplementedError

    def _fits(self, request: Request, now: float) -> bool:  # noqa: ARG002 - for subclasses
        """Whether the controller's further accounts have room, with something of ours inside."""
        return True

    def _asked(self, request: Request, now: float) -> None:
        """`request` was refused, since there are no slots for it."""

    def _hold(self, request: Request, now: float, without: Sequence[Request]) -> Hold | None:  # noqa: ARG002 - for subclasses
        """As `_fits`, with what holds it."""
        return None

    def _full(self, inside: int, q: float, stance: Stance, /) -> Hold:
        """What the slots are limited by."""
        return Hold("slots", inside, self._limit_in(q, stance), "requests")

    def _learn(
        self, page: Sample, last: Sample | None, changed: Change, own_then: int, q: float, asked: float, now: float, /
    ) -> None:
        """From a page, its predecessor and what changed. `own_then`: ours, of all replicas, when the page was asked
        for; beyond these `unknown` are inside."""

    def _parts(self, now: float) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """What only this controller has to show, by field of `WindowView`."""
        return {"tpot_window": None}

    def view(self, now: float, q: float = 0.0) -> WindowView:
        """`q`: the standing queue to tell the limit for."""
        last, stance = self._last, self.stance(now)
        opens = self._usable(stance) and self.left_until <= now
        limit = self._limit_in(q, stance) if opens else 0.0
        return WindowView(
            endpoint=self.endpoint,
            stance=stance,
            capacity=self.capacity,
            foreign=self.foreign,
            in_flight=self.in_flight,
            tpot_s=self.tpot_s,
            running=None if last is None else last.running,
            waiting=None if last is None else last.waiting,
            kv_usage=None if last is None else last.kv_usage,
            age_s=None if self._read_at is None else now - self._read_at,
            controller=self.name,
            guests=self.guests,
            ttft_s=self.ttft_s,
            absurd=self.absurd,
            prefix_queries=None if last is None else last.prefix_queries,
            prefix_hits=None if last is None else last.prefix_hits,
            turned_away=self.turned_away,
            failed=self.failed,
            turned_away_limit=None if self._turned_away.most == math.inf else self._turned_away.most,
            queue_target=q,
            limit=min(limit, max(self.policy.ceiling, self.capacity)),  # one controller opens without end
            others=self.others,
            claim=None if self.claim == math.inf else self.claim if now <= self.claim_until else 0.0,
            **self._parts(now),
        )
