"""A pool that several replicas share: what their words do to turns, caps, shares and priorities."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scheduler_case import (
    E1,
    E2,
    FIRST_CHARGE,
    Case,
    a_class,
    a_fixed_pool,
    a_pool,
    a_sample,
    drain,
    fill,
    released,
    two_classes,
)
from test_scheduler_replay import a_random_event

from extproc.core.events import (
    Effect,
    EndpointAdded,
    EndpointShare,
    Event,
    FlowShare,
    Reconfigure,
    Release,
    Scraped,
    Synced,
)
from extproc.core.explanation import Explanation, Hold, explain
from extproc.core.model import INSIDE, Gates, Pick, PickPolicy, PoolPolicy, TenantPolicy, Traffic, WindowPolicy
from extproc.core.player import Player
from extproc.core.recording import Clock, Header, Names, Record, event_from_plain, event_to_plain
from extproc.core.scheduler import Scheduler
from extproc.core.view import view


def shared(*classes: Any, slots: int = 4, **changes: Any) -> PoolPolicy:
    return a_fixed_pool(*classes, slots=slots, shared=True, **changes)


def word(claim: float = math.inf, others: int = 0, *, endpoint: str = E1, **fields: Any) -> Synced:
    share = EndpointShare(endpoint, claim, others, fields.pop("freed", 0), fields.pop("gone", 0))
    values: dict[str, Any] = {"replicas": 2, "until": math.inf} | fields
    return Synced(endpoints=(share,), **values)


def held_by(flows: dict[tuple[str, str], int], **fields: Any) -> Synced:
    return word(flows=tuple(FlowShare(cls, tenant, 0.0, n) for (cls, tenant), n in flows.items()), **fields)


def told_of(case: Case, name: str) -> Explanation:
    told = explain(case.scheduler, name, case.now)
    assert told is not None
    return told


# -- claims -----------------------------------------------------------------------------------------


def test_nothing_goes_before_the_first_word_and_then_what_the_claim_allows() -> None:
    case = Case(shared(overtake=0))
    for i in range(4):
        assert case.arrive(f"r{i}", f"t{i}") == []
    assert "waits for word from the store" in told_of(case, "r0").sentence
    assert released(case.apply(word(2.0, 1))) == ["r0", "r1"]
    assert (case.scheduler.windows[E1].in_flight, case.scheduler.queued) == (2, 2)
    assert released(case.apply(word(3.0, 1))) == ["r2"]


def test_nobody_overtakes_before_the_first_word() -> None:
    case = Case(shared(overtake=4))
    assert case.arrive("r0") == []


def test_newcomers_overtake_a_full_claim_by_so_many_and_no_more() -> None:
    case = Case(a_pool(start=20.0, overtake=1, shared=True))
    for i in range(5):
        case.arrive(f"r{i}", f"t{i}")
    assert released(case.apply(word(2.0, 5))) == ["r0", "r1", "r2"]
    assert case.tick() == []
    assert released(case.end("r0")) == ["r3"]


def test_one_with_something_at_another_replica_does_not_overtake() -> None:
    case = Case(a_pool(start=20.0, overtake=1, shared=True))
    case.apply(held_by({("interactive", "b"): 1}, claim=1.0, others=1))
    case.arrive("r0", "a")
    assert case.arrive("r1", "b") == []
    case.apply(held_by({("interactive", "b"): 0}, claim=1.0))
    assert case.scheduler.windows[E1].in_flight == 2


def test_nothing_goes_after_the_claims_are_over_until_there_is_word_again() -> None:
    case = Case(shared())
    case.apply(word(4.0, until=case.now + 2.0))
    fill(case, 1)
    case.now += 2.1
    case.page()
    assert case.arrive("late") == []
    assert "its claim is over: no word from the store in time" in told_of(case, "late").sentence
    assert released(case.apply(word(4.0, until=case.now + 2.0))) == ["late"]


def test_an_endpoint_that_comes_waits_for_a_word_about_it() -> None:
    case = Case(shared(slots=1))
    case.apply(word(4.0))
    fill(case, 1)
    case.arrive("next")
    assert case.add(E2) == []
    assert case.page(E2) == []
    assert released(case.apply(word(1.0, endpoint=E2))) == ["next"]
    # One that comes back while streams of its earlier life run waits as well.
    case.remove(E2)
    case.arrive("third")
    case.add(E2)
    case.page(E2)
    case.end("next")
    assert case.scheduler.queued == 1


def test_what_the_others_leave_is_what_goes() -> None:
    """The window takes 4 of all replicas together, whatever the claim says."""
    case = Case(shared(slots=4))
    case.apply(word(4.0, 3))
    for i in range(3):
        case.arrive(f"r{i}")
    assert case.scheduler.windows[E1].in_flight == 1
    case.apply(word(4.0, 2))
    assert case.scheduler.windows[E1].in_flight == 2


# -- turns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"promote_after_s": 50.0}, {"gates": Gates(max_kv_usage=0.9)}])
def test_a_lower_class_waits_for_a_higher_one_elsewhere(changes: dict[str, Any]) -> None:
    """In the quick way to the next turn, which goes where no class has anything special, and in the other."""
    case = Case(shared(*two_classes(max_waiting=3, **changes)))
    case.apply(word(closed_above=0))
    assert case.scheduler.plain is (not changes)
    assert case.arrive("low", cls="batch") == []
    told = told_of(case, "low")
    assert (told.hold, told.name) == (Hold.HIGHER_CLASS_ELSEWHERE, "interactive")
    assert told.estimated_wait_s is None
    (seen,) = [c for c in view(case.scheduler, case.now).classes if c.name == "batch"]
    assert seen.hold == "higher_class_elsewhere"
    assert released(case.arrive("high")) == ["high"]
    assert released(case.apply(word(closed_above=2))) == ["low"]


def test_promotion_and_min_share_go_all_the_same() -> None:
    case = Case(shared(*two_classes(max_waiting=3, promote_after_s=5.0)))
    case.apply(word(closed_above=0))
    case.arrive("low", cls="batch")
    assert released(case.tick(5.0)) == ["low"]

    case = Case(shared(*two_classes(max_waiting=3, min_share=0.1)))
    case.apply(word(closed_above=0))
    case.arrive("low", cls="batch")
    assert released(case.apply(word(closed_above=0, served={"interactive": 10.0}))) == ["low"]


def test_promotion_passes_no_class_that_a_higher_one_elsewhere_holds() -> None:
    """Batch counts as default, which interactive of another replica holds as well."""
    classes = (a_class(), a_class("default", 1), a_class("batch", 2, promote_after_s=5.0))
    case = Case(shared(*classes))
    case.apply(word(closed_above=0))
    case.arrive("low", cls="batch")
    assert released(case.tick(5.0)) == []
    assert released(case.apply(word(closed_above=1))) == ["low"]


def test_releases_of_others_count_for_promote_every() -> None:
    """Batch has one turn in eight, and one more may be late; then seven of the other replica's, then eight and eight,
    of which half are for us."""
    case = Case(shared(*two_classes(promote_after_s=5.0)))
    case.apply(word(closed_above=0))
    for name in "abcd":
        case.arrive(name, cls="batch")
    assert released(case.tick(5.0)) == ["a", "b"]
    assert released(case.apply(word(closed_above=0, released=6))) == []
    assert released(case.apply(word(closed_above=0, released=1))) == ["c"]
    assert released(case.apply(word(closed_above=0, released=8, ageing=0.5))) == []
    assert released(case.apply(word(closed_above=0, released=8, ageing=0.5))) == ["d"]


def test_min_share_counts_what_others_have_served_of_the_class() -> None:
    """A tenth. After what interactive had elsewhere batch has its turn; after one of its own there it has had it."""
    cost = FIRST_CHARGE

    def second_turn(*served: dict[str, float]) -> str:
        case = Case(shared(*two_classes(max_waiting=3, min_share=0.1), slots=1))
        case.apply(word())
        fill(case, 1)
        case.arrive("high")
        case.arrive("low", cls="batch")
        for each in served:
            case.apply(word(served=each))
        return released(case.end("fill-interactive-0"))[0]

    assert second_turn({"interactive": cost}) == "low"
    assert second_turn({"interactive": cost}, {"batch": cost}) == "high"


def test_a_cap_of_a_class_counts_what_others_hold() -> None:
    case = Case(shared(a_class(max_in_flight=3), a_class("batch", 2)))
    case.apply(held_by({("interactive", "x"): 2}, others=2))
    case.arrive("r0")
    assert case.arrive("r1") == []
    told = told_of(case, "r1")
    assert (told.hold, told.value, told.limit) == (Hold.CLASS_CAP, 3, 3)
    assert released(case.arrive("low", cls="batch")) == ["low"]  # a class at its cap lets the next one go
    assert released(case.apply(held_by({("interactive", "x"): 1}, others=1))) == ["r1"]


def test_a_cap_of_a_tenant_counts_what_it_holds_elsewhere() -> None:
    case = Case(shared(tenants={"a": TenantPolicy(max_in_flight=2)}))
    case.apply(held_by({("interactive", "a"): 1}))
    case.arrive("r0", "a")
    assert case.arrive("r1", "a") == []
    told = told_of(case, "r1")
    assert (told.hold, told.value, told.limit) == (Hold.TENANT_CAP, 2, 2)
    assert released(case.apply(held_by({("interactive", "a"): 0}))) == ["r1"]


def test_headroom_counts_what_higher_classes_hold_elsewhere() -> None:
    """Of 10 slots interactive holds 6 elsewhere for so long that batch may hold less than the rest."""
    case = Case(shared(*two_classes(max_waiting=3, headroom=0.05, queue_timeout_s=1e9), slots=10))
    flows = {("interactive", "x"): 6}
    for _ in range(200):
        case.now += 1.0
        case.page()
        case.apply(held_by(flows, others=6))
    for i in range(10):
        case.arrive(f"b{i}", cls="batch")
    batch = case.scheduler.by_name["batch"]
    assert batch.queue.in_flight == 0  # 6, and by chance 10 of them
    told = told_of(case, "b0")
    assert (told.hold, told.value, told.limit) == (Hold.HEADROOM, 0, 0)
    for _ in range(2_000):
        case.now += 1.0
        case.page()
        case.apply(held_by({("interactive", "x"): 0}))
    assert batch.queue.in_flight == 10


def test_the_priority_counts_what_the_tenant_has_inside_elsewhere() -> None:
    case = Case(shared(slots=9))
    case.apply(held_by({("interactive", "a"): 2}))
    (first,) = [e for e in case.arrive("r0", "a") if isinstance(e, Release)]
    (other,) = [e for e in case.arrive("r1", "b") if isinstance(e, Release)]
    assert (first.priority, other.priority) == (2, 0)


def test_a_tenant_that_others_serve_waits_longer_here() -> None:
    case = Case(shared(slots=1))
    case.apply(word())
    inside = fill(case, 1)
    for i in range(6):
        case.arrive(f"a{i}", "a")
        case.arrive(f"b{i}", "b")
    case.apply(word(flows=(FlowShare("interactive", "a", 4 * FIRST_CHARGE, 1),)))
    assert [name[0] for name in drain(case, inside, 9)] == list("bbbb" + "ababa")


def test_a_class_that_is_gone_takes_what_others_hold_of_it_along() -> None:
    policy = shared(*two_classes())
    case = Case(policy)
    case.apply(held_by({("batch", "a"): 2, ("interactive", "a"): 1}))
    assert case.scheduler.elsewhere == {"a": 3}
    case.reconfigure(replace(policy, classes=policy.classes[:1]))
    assert case.scheduler.elsewhere == {"a": 1}
    case.apply(held_by({("batch", "a"): 7}))  # it is none of ours any more
    assert case.scheduler.elsewhere == {"a": 1}


# -- what is told -----------------------------------------------------------------------------------


def test_the_view_tells_of_the_others() -> None:
    case = Case(shared())
    unknown = view(case.scheduler, case.now).share
    assert unknown is not None
    assert (unknown.replicas, unknown.claim) == (None, 0.0)
    case.apply(word(3.0, 2, replicas=4, until=case.now + 5.0, closed_above=1, lost_since=case.now - 1.0))
    fill(case, 1)
    case.now += 2.0
    seen = view(case.scheduler, case.now)
    assert seen.share is not None
    share = seen.share
    assert (share.replicas, share.age_s, share.left_s, share.lost_s) == (4, 2.0, 3.0, 3.0)
    assert (share.closed_above, share.others, share.claim) == (1, 2, 3.0)
    (endpoint,) = seen.endpoints
    assert (endpoint.claim, endpoint.others, endpoint.foreign, endpoint.room) == (3.0, 2, 2, 1.0)
    assert view(Case(a_pool()).scheduler, case.now).share is None


def test_the_explanation_tells_whose_the_slots_are() -> None:
    case = Case(shared(slots=9))
    case.apply(word(1.0, 3, lost_since=case.now - 7.0))
    fill(case, 1)
    case.arrive("next", "filler")
    told = told_of(case, "next")
    assert (told.hold, told.name, told.value, told.limit) == (Hold.WINDOW, "share", 1.0, 1.0)
    assert "holds 1 of ours, 3 of other replicas and 0 others, limit 9.0" in told.sentence
    assert "(share: 1 of 1, this replica's part is used up; other replicas hold 3)" in told.sentence
    assert "the store has not answered for 7.0 s" in told.sentence


# -- bad input --------------------------------------------------------------------------------------


def test_a_pool_that_is_not_shared_goes_on_as_before() -> None:
    case = Case(a_fixed_pool(*two_classes(min_share=0.1), slots=4))
    case.apply(word(0.0, 9, closed_above=-1, served={"batch": 5.0}, flows=(FlowShare("batch", "a", 5.0, 9),)))
    assert released(case.arrive("r0")) == ["r0"]
    assert (case.scheduler.shared, case.scheduler.share_v) == (None, FIRST_CHARGE)
    assert view(case.scheduler, case.now).counts["share"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        word(math.nan),
        word(-1.0),
        word(4.0, -3),
        word(4.0, 10**12),
        word(4.0, flows=(FlowShare("interactive", "a", math.nan, 0),)),
        word(4.0, flows=(FlowShare("interactive", "a", -1.0, 0),)),
        word(4.0, flows=(FlowShare("interactive", "a", 1e300, 0),)),
        word(4.0, flows=(FlowShare("interactive", "a", 0.0, -1),)),
        word(4.0, served={"interactive": math.inf}),
    ],
)
def test_what_cannot_be_is_counted_and_taken_as_nothing(bad: Synced) -> None:
    case = Case(shared(*two_classes(min_share=0.1)))
    case.apply(bad)
    assert view(case.scheduler, case.now).counts["share"] == 1
    assert (case.scheduler.elsewhere, case.scheduler.share_v) == ({}, 0.0)
    case.arrive("r0", "a")
    case.apply(word(4.0))
    assert case.scheduler.queued == 0


def test_claims_until_nobody_knows_when_are_over() -> None:
    case = Case(shared())
    case.apply(word(4.0, until=math.nan))
    case.now += 0.1
    assert case.arrive("r0") == []


@pytest.mark.parametrize("now", [True, False])
def test_sharing_does_not_begin_or_cease_in_a_running_pool(now: bool) -> None:
    policy = replace(a_pool(), shared=now)
    case = Case(policy)
    with pytest.raises(ValueError, match="restart it"):
        case.apply(Reconfigure(replace(policy, shared=not now)))


def test_envoy_does_not_pick_in_a_pool_that_is_shared() -> None:
    with pytest.raises(ValueError, match=r"while Envoy picks its endpoints.*let Fairlane pick them"):
        Scheduler(a_pool(shared=True, pick=PickPolicy(by=Pick.ENVOY)))


# -- the same events, the same effects --------------------------------------------------------------


def a_random_word(rng: random.Random, now: float) -> Synced:
    flows = tuple(
        FlowShare(rng.choice(["interactive", "batch"]), tenant, rng.choice([0.0, 90.0, 2_000.0]), rng.randrange(3))
        for tenant in rng.sample("abcdefgh", 2)
    )
    return Synced(
        rng.randrange(1, 4),
        rng.choice([math.inf, now + 0.4, now + 2.0]),
        tuple(EndpointShare(e, float(rng.randrange(9)), rng.randrange(6), rng.randrange(3)) for e in (E1, E2)),
        flows,
        {"batch": rng.choice([0.0, 100.0])},
        rng.choice([None, None, 0, 2]),
        rng.choice([None, None, now - 1.0]),
    )


TRAFFIC = [Traffic.PAUSED, *[Traffic.OPEN] * 5]
LIFE = a_pool(*two_classes(min_share=0.1), max_queued=30, window=WindowPolicy(start=4.0))


def a_life(policy: PoolPolicy, words: Callable[[random.Random, float], Synced] | None) -> Case:
    case, rng, telling, ids = Case(policy, endpoints=()), random.Random(11), random.Random(12), ["none"]
    for endpoint in (E1, E2):
        case.apply(EndpointAdded(endpoint))
        case.apply(Scraped(endpoint, a_sample(0, 0, case.now)))
    for _ in range(1_200):
        case.now += rng.choice([0.0, 0.01, 0.3, 1.0])
        event = a_random_event(rng, ids, case.now)
        if isinstance(event, Reconfigure):
            event = Reconfigure(replace(event.policy, shared=policy.shared, traffic=rng.choice(TRAFFIC)))
        case.apply(event)
        inside = [r.id for r in case.scheduler.requests.values() if r.state in INSIDE]
        if inside and rng.random() < 0.5:
            case.end(inside[0])
        if words is not None:
            case.apply(words(telling, case.now))
        case.tick()
    return case


@pytest.mark.slow
def test_alone_it_decides_as_one_that_shares_with_nobody() -> None:
    def all_is_ours(_: random.Random, __: float) -> Synced:
        return Synced(1, math.inf, tuple(EndpointShare(e, math.inf, 0) for e in (E1, E2)))

    alone, sharing = a_life(LIFE, None), a_life(replace(LIFE, shared=True), all_is_ours)
    assert sharing.effects == alone.effects
    assert len(released(alone.effects)) > 200


@pytest.mark.slow
def test_words_make_no_difference_to_a_pool_that_is_not_shared() -> None:
    alone, told = a_life(LIFE, None), a_life(LIFE, a_random_word)
    assert told.effects == alone.effects


@pytest.mark.slow
@pytest.mark.parametrize("names", [Names(), Names("00ff", None)])
def test_a_recorded_life_is_played_again(names: Names) -> None:
    case = Case(replace(LIFE, shared=True), endpoints=(), checked=False)
    life = a_life(replace(LIFE, shared=True), a_random_word)
    header = Header("0", "r", 1, "m", Clock(0.0, 0.0), (), names.policy(replace(LIFE, shared=True)), names.salt)
    player = Player(header)
    effects: list[list[Effect]] = []
    for event, now in life.events:
        effects.append(case.scheduler.apply(event, now))
        again = event_from_plain(event_to_plain(event, names))
        if not names.hashed:
            assert again == event
            player.play(Record(now, again, tuple(effects[-1])))
        else:
            tenants = {f.tenant for f in again.flows} if isinstance(again, Synced) else set()
            assert not tenants & set("abcdefgh")
    assert [effect for each in effects for effect in each] == life.effects
    assert player.result.same
    assert any(isinstance(event, Synced) for event, _ in life.events)


# -- nothing waits for ever -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_waits_for_ever_once_claims_allow(seed: int) -> None:
    """Wide ones, long prompts and capped tenants; words at random for a while, then words that leave it one slot."""
    policy = replace(
        LIFE,
        shared=True,
        tenants={"a": TenantPolicy(max_in_flight=1), "b": TenantPolicy(rate=2_000.0)},
        classes=two_classes(min_share=0.1, queue_timeout_s=1e9),
    )
    case, rng = Case(policy, checked=False), random.Random(seed)
    inside: list[str] = []

    def apply(event: Event) -> None:
        inside.extend(released(case.apply(event)))

    apply(word(2.0, 2))
    for i in range(60):
        fields = {"body_bytes": rng.choice([100, 4_000, 400_000]), "n": rng.choice([1, 1, 4]), "timeout_s": None}
        inside += released(case.arrive(f"r{i}", rng.choice("abcd"), rng.choice(["interactive", "batch"]), **fields))
        case.now += 0.1
        apply(a_random_word(rng, case.now))
    apply(held_by({(cls, tenant): 0 for cls in ("interactive", "batch") for tenant in "abcdefgh"}))
    for _ in range(2_000):
        if not case.scheduler.queued:
            return
        case.now += 0.25
        others = case.scheduler.windows[E1].others
        apply(Scraped(E1, a_sample(len(inside) + others, 0, case.now, kv_usage=0.1)))
        apply(word(1.0, 2, until=case.now + 2.0))
        if inside:
            inside += released(case.end(inside.pop(0)))
    raise AssertionError(f"{case.scheduler.queued} still wait: {told_of(case, next(iter(case.scheduler.requests)))}")
