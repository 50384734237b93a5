"""Every setting of a policy, changed while requests wait: what it opens goes within the same event, and what it closes
stays. One row for each; what can have no effect on what waits says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_pool, fill

from extproc.core.events import Effect, Evict, FirstByte, Refuse, Release
from extproc.core.model import (
    ClassPolicy,
    Controller,
    CostWeights,
    Gates,
    Order,
    Outage,
    PickPolicy,
    PoolPolicy,
    State,
    TenantPolicy,
    Traffic,
    WindowPolicy,
)

PATIENT = {"queue_timeout_s": 1e6}
HIGH, LOW = a_class(**PATIENT), a_class("batch", 2, max_waiting=0, **PATIENT)


@dataclass(frozen=True)
class Door:
    """A setting under which "w" waits (`shut`), and one under which it goes. `waits` brings it about, under `shut`."""

    knob: str
    shut: PoolPolicy
    open: PoolPolicy
    waits: Callable[[Case], object]
    opens: Sequence[str] = ("w",)  # as `told` tells it
    closes: bool = True  # whether what has been opened is closed at once
    read: bool = True  # whether the endpoint's page has been read


@dataclass(frozen=True)
class Turn:
    """A setting that decides who is next, or how: what the next ends of streams release, before and after."""

    knob: str
    before: PoolPolicy
    after: PoolPolicy
    waits: Callable[[Case], object]
    then: Callable[[Release], object]  # what of a release is looked at
    expected: tuple[list[object], list[object]]  # with `before`, with `after`


def told(effects: Sequence[Effect]) -> list[str]:
    """ "r": released; "-r": refused; "!r": evicted."""
    marks = {Release: "", Refuse: "-", Evict: "!"}
    return [marks[type(effect)] + effect.id for effect in effects if type(effect) in marks]


def pool(*classes: ClassPolicy, slots: int = 2, **changes: Any) -> PoolPolicy:
    return a_fixed_pool(*(classes or (HIGH,)), slots=slots, **changes)


def windowed(policy: PoolPolicy | None = None, **changes: Any) -> PoolPolicy:
    """`policy`, else one with an adaptive window of one slot, with another window."""
    policy = policy or a_pool(HIGH, start=1.0)
    return replace(policy, window=replace(policy.window, **changes))


def tenants(**of: Any) -> dict[str, Any]:
    return {"tenants": {name: TenantPolicy(**settings) for name, settings in of.items()}}


# -- how a request comes to wait -----------------------------------------------------------------------


def behind_a_gate(case: Case) -> None:
    """ "first" may go to an engine without a queue only; "w" of the class below does not pass it."""
    case.page(waiting=1)
    case.arrive("first")
    case.arrive("w", "t", "batch")
    case.tick(2.0)
    case.page(waiting=1)


def gated(case: Case, **page: Any) -> None:
    case.page(itl_sum=1.0, itl_count=10.0, ttft_sum=1.0, ttft_count=10.0)
    case.now += 0.2
    case.page(**{"itl_sum": 3.0, "itl_count": 20.0, "ttft_sum": 31.0, "ttft_count": 20.0, "kv_usage": 0.9} | page)
    case.arrive("w")


def one_of_the_same_tenant_inside(case: Case) -> None:
    case.arrive("inside", "t")
    case.arrive("w", "t")


def promoted_once(case: Case) -> None:
    case.page(waiting=1)
    case.arrive("first")
    case.arrive("b0", "t", "batch")
    case.arrive("w", "t", "batch")
    case.now += 2.0
    assert told(case.page(waiting=1)) == ["b0"]


def full_of_batch(case: Case) -> None:
    """The slots are full of batch; the first byte of the first of them has gone out."""
    for i in range(int(case.scheduler.windows[E1].capacity)):
        case.arrive(f"b{i}", f"b{i}", "batch", first_byte_seen=True)
    case.apply(FirstByte("b0"))
    case.arrive("w", "t")
    case.tick(2.0)


def evicted_once(case: Case) -> None:
    full_of_batch(case)
    assert told(case.effects)[-1] == "!b2"
    assert told(case.end("b2")) == ["w"]
    case.arrive("x", "x")
    case.tick(2.0)


def slow_pages(case: Case) -> None:
    """Four decode, each token takes 0.1 s: by Little's law 4 * 0.95 * L / 0.1 may be inside. L = 0.05 s: two."""
    inside = fill(case, 4)
    for second in range(1, 6):
        case.now += 1.0
        case.page(running=4, itl_sum=4.0 * second, itl_count=40.0 * second)
    case.end(inside[0])
    case.arrive("w")


def a_small_cache(case: Case) -> None:
    """Each is expected to take 256 tokens and 256 more. 10 % of 10,000 hold no third."""
    fill(case, 1)
    case.now += 0.5
    case.page(running=1, kv_usage=0.03, kv_capacity_tokens=10_000)
    case.arrive("second", "s")
    case.arrive("third", "s")
    case.arrive("w", "t")


def an_old_page(seconds: float) -> Callable[[Case], None]:
    def waits(case: Case) -> None:
        fill(case, 1)
        case.now += seconds
        case.arrive("w")

    return waits


def a_gate_and_an_old_page(case: Case) -> None:
    case.page(waiting=1)
    case.now += 3.0
    case.arrive("w")


def hung(case: Case) -> None:
    fill(case, 1)
    for _ in range(40):
        case.now += 1.0
        case.page(running=1, progress=5.0)
    case.arrive("w")


def full(count: int = 1) -> Callable[[Case], None]:
    def waits(case: Case) -> None:
        fill(case, count)
        case.arrive("w")

    return waits


GATED = pool(replace(HIGH, idle_only=True), LOW)
PUSHING = (replace(HIGH, preempt_after_s=1.0), replace(LOW, preemptible=True))
KV = replace(a_pool(HIGH, start=50.0), window=WindowPolicy(start=50.0, overtake=0, max_kv_usage=0.1))
TPOT = windowed(start=8.0, max_tpot_s=0.05)

DOORS = [
    Door("pool.traffic", pool(traffic=Traffic.PAUSED), pool(), lambda case: case.arrive("w")),
    Door(
        "pool.default_tenant",
        pool(default_tenant=TenantPolicy(max_in_flight=0)),
        pool(),
        lambda case: case.arrive("w"),
    ),
    Door("pool.tenants", pool(**tenants(t={"max_in_flight": 0})), pool(), lambda case: case.arrive("w", "t")),
    Door(
        "pool.promote_every",
        pool(replace(HIGH, idle_only=True), replace(LOW, promote_after_s=1.0), promote_every=1000),
        pool(replace(HIGH, idle_only=True), replace(LOW, promote_after_s=1.0), promote_every=1),
        promoted_once,
    ),
    Door(
        "pool.preempt_per_s",
        pool(*PUSHING, slots=3, preempt_per_s=0.001),
        pool(*PUSHING, slots=3, preempt_per_s=1.0),
        evicted_once,
        ["!b1"],
    ),
    Door(
        "pool.preempt_after_first_byte",
        pool(*PUSHING, slots=1),
        pool(*PUSHING, slots=1, preempt_after_first_byte=True),
        lambda case: (case.arrive("b", "b", "batch"), case.arrive("w"), case.tick(2.0)),
        ["!b"],
    ),
    Door("class.rank", GATED, pool(replace(HIGH, idle_only=True, rank=3), LOW), behind_a_gate),
    Door("class.max_waiting", a_pool(replace(HIGH, max_waiting=0), start=1.0), a_pool(HIGH, start=1.0), full()),
    Door("class.max_in_flight", pool(replace(HIGH, max_in_flight=1)), pool(), full()),
    Door(
        "class.promote_after_s",
        pool(replace(HIGH, idle_only=True), replace(LOW, promote_after_s=1e5)),
        pool(replace(HIGH, idle_only=True), replace(LOW, promote_after_s=1.0)),
        behind_a_gate,
    ),
    Door(
        "class.headroom",
        pool(HIGH, replace(LOW, headroom=0.01), slots=4),
        pool(HIGH, LOW, slots=4),
        lambda case: (fill(case, 3), case.tick(600.0), case.arrive("w", "t", "batch")),
    ),
    Door("class.idle_only", pool(replace(HIGH, idle_only=True)), pool(), lambda case: gated(case, waiting=1)),
    Door("class.gates", pool(replace(HIGH, gates=Gates(1))), pool(), lambda case: gated(case, waiting=1)),
    Door(
        "gates.max_waiting",
        pool(replace(HIGH, gates=Gates(max_waiting=1))),
        pool(replace(HIGH, gates=Gates(max_waiting=2))),
        lambda case: gated(case, waiting=1),
    ),
    Door(
        "gates.max_tpot_s",  # 2 s for 10 tokens
        pool(replace(HIGH, gates=Gates(max_tpot_s=0.19))),
        pool(replace(HIGH, gates=Gates(max_tpot_s=0.2))),
        gated,
    ),
    Door(
        "gates.max_kv_usage",
        pool(replace(HIGH, gates=Gates(max_kv_usage=0.89))),
        pool(replace(HIGH, gates=Gates(max_kv_usage=0.9))),
        gated,
    ),
    Door(
        "gates.max_ttft_s",  # 30 s for 10 first tokens
        pool(replace(HIGH, gates=Gates(max_ttft_s=2.9))),
        pool(replace(HIGH, gates=Gates(max_ttft_s=3.0))),
        gated,
    ),
    Door("class.preemptible", pool(PUSHING[0], LOW), pool(*PUSHING), full_of_batch, ["!b1"]),
    Door("class.preempt_after_s", pool(HIGH, PUSHING[1]), pool(*PUSHING), full_of_batch, ["!b1"]),
    Door(
        "tenant.max_in_flight",
        pool(**tenants(t={"max_in_flight": 1})),
        pool(**tenants(t={"max_in_flight": 2})),
        one_of_the_same_tenant_inside,
    ),
    Door(
        "tenant.rate",
        pool(**tenants(t={"rate": 0.001})),
        pool(**tenants(t={})),
        one_of_the_same_tenant_inside,
    ),
    Door(
        "tenant.rate_burst",  # 768 were taken
        pool(**tenants(t={"rate": 0.001, "rate_burst": 0.0})),
        pool(**tenants(t={"rate": 0.001, "rate_burst": 1000.0})),
        one_of_the_same_tenant_inside,
    ),
    Door("window.floor", windowed(a_pool(replace(HIGH, max_waiting=0), start=1.0)),
         windowed(a_pool(replace(HIGH, max_waiting=0), start=1.0), floor=2.0), full(),
         closes=False),  # what R has been raised to is what it goes on from, until pages say otherwise
    Door("window.max_tpot_s", TPOT, windowed(TPOT, max_tpot_s=0.5), slow_pages),
    Door("window.max_kv_usage", KV, windowed(KV, max_kv_usage=0.9), a_small_cache, ["w", "third"]),
    Door("window.overtake", pool(slots=1), pool(slots=1, overtake=1), full()),
    Door("window.scrape_interval_s", windowed(), windowed(scrape_interval_s=1.0), an_old_page(2.0)),
    Door(
        "window.idle_scrape_interval_s",
        pool(replace(HIGH, idle_only=True)),
        windowed(pool(replace(HIGH, idle_only=True)), idle_scrape_interval_s=0.25),
        a_gate_and_an_old_page,
    ),
    Door(
        "window.first_scrape_grace_s",
        windowed(first_scrape_grace_s=1e5),
        windowed(first_scrape_grace_s=0.0),
        lambda case: case.arrive("w"),
        read=False,
    ),
    Door(
        "window.controller",
        pool(slots=1),
        windowed(pool(slots=1), controller=Controller.ADAPTIVE, start=4.0),
        full(),
    ),
    Door("window.outage", windowed(outage=Outage.HOLD), windowed(outage=Outage.OPEN), an_old_page(31.0)),
    Door("window.max_num_seqs", windowed(a_pool(LOW), max_num_seqs=1), windowed(a_pool(LOW), max_num_seqs=2),
         lambda case: (fill(case, 1, cls="batch"), case.arrive("w", cls="batch"))),
    Door(
        "window.threshold",
        windowed(controller=Controller.THRESHOLD, threshold=1),
        windowed(controller=Controller.THRESHOLD, threshold=2),
        lambda case: (case.page(waiting=1), fill(case, 1), case.arrive("w")),
    ),
    Door("window.fixed", pool(slots=1), pool(slots=2), full()),
    Door("window.stalled_after_s", windowed(), windowed(stalled_after_s=None), hung),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.knob)
def test_what_a_change_opens_goes_within_the_event(door: Door) -> None:
    case = Case(door.shut, read=door.read)
    door.waits(case)
    if "w" in door.opens:
        assert case.scheduler.requests["w"].state is State.QUEUED
    assert case.tick() == []
    assert told(case.reconfigure(door.open)) == list(door.opens)


@pytest.mark.parametrize("door", [door for door in DOORS if door.closes], ids=lambda door: door.knob)
def test_what_a_change_closes_stays(door: Door) -> None:
    """Opened while the pool is paused, so that nothing uses it, and closed again."""
    case = Case(door.shut, read=door.read)
    door.waits(case)
    assert told(case.reconfigure(replace(door.open, traffic=Traffic.PAUSED))) == []
    assert told(case.reconfigure(door.shut) + case.tick()) == []


# -- who is next -----------------------------------------------------------------------------------------


def queues(*names: str, cls: str = "interactive", **fields: Any) -> Callable[[Case], None]:
    """One inside, and `names` behind it: "a0" is of tenant a."""

    def waits(case: Case) -> None:
        fill(case, 1)
        for name in names:
            case.arrive(name, name[:-1], cls, **fields)

    return waits


def ranks_and_shares(case: Case) -> None:
    queues("a0", "a1", "a2")(case)
    case.arrive("b0", "b", "batch")


def two_sizes(case: Case) -> None:
    fill(case, 1)
    case.arrive("a0", "a", body_bytes=40_000)
    case.arrive("a1", "a", body_bytes=100)


def warm_and_cold(case: Case) -> None:
    """The prompt of b0 is in the engine's cache. a has had as much as b."""
    case.arrive("b-before", "b", prefix=(1, 2))
    for name, prefix in (("a0", (7, 8)), ("b0", (1, 2))):
        case.arrive(name, name[0], prefix=prefix)
    assert "a0" in case.scheduler.requests


def where(case: Case) -> None:
    """E1 has the session, the adapter and the prompt, and a fuller cache; E2 holds less."""
    case.add(E2)
    case.page(E2)
    for name in ("x", "y"):
        case.arrive(name, name, adapter="lora", session=5, prefix=(1, 2, 3))


ONE = pool(slots=1)
TURNS = [
    Turn("class.priority_base", ONE, pool(a_class(priority_base=7, **PATIENT), slots=1), queues("a0"),
         lambda release: release.priority, ([0], [7])),
    Turn("pool.priority_steps", pool(slots=3, priority_steps=4), pool(slots=3, priority_steps=1),
         lambda case: [case.arrive(f"a{i}", "a") for i in range(4)],
         lambda release: release.priority, ([2], [0])),
    Turn("class.min_share", pool(HIGH, LOW, slots=1), pool(HIGH, replace(LOW, min_share=0.5), slots=1),
         ranks_and_shares, lambda release: release.id, (["a0", "a1", "a2", "b0"], ["a0", "b0", "a1", "a2"])),
    Turn("class.order", ONE, pool(replace(HIGH, order=Order.SHORTEST_FIRST), slots=1), two_sizes,
         lambda release: release.id, (["a0", "a1"], ["a1", "a0"])),
    Turn("tenant.weight", ONE, pool(slots=1, **tenants(b={"weight": 4.0})),
         queues("a0", "b0", "a1", "b1", "b2", "b3"), lambda release: release.id[0],
         (["a", "b", "a", "b", "b", "b"], ["a", "b", "b", "b", "b", "a"])),
    Turn("tenant.parent", ONE, pool(slots=1, **tenants(b={"parent": "o"}, c={"parent": "o"})),
         queues("a0", "b0", "c0", "a1", "b1", "c1"), lambda release: release.id[0],
         (["a", "b", "c", "a", "b", "c"], ["a", "b", "a", "c", "b", "c"])),
    Turn("pool.separator", ONE, replace(ONE, separator="/"),
         queues("a0", "o/b0", "o/c0", "a1", "o/b1", "o/c1"), lambda release: release.id[-2],
         (["a", "b", "c", "a", "b", "c"], ["a", "b", "a", "c", "b", "c"])),
    Turn("pool.prefix_slack", ONE, replace(ONE, prefix_slack=1e5), warm_and_cold,
         lambda release: release.id, (["a0", "b0"], ["b0", "a0"])),
]  # fmt: skip


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.knob)
@pytest.mark.parametrize("changed", [False, True], ids=["before", "after"])
def test_what_is_next_is_said_by_the_policy_of_now(turn: Turn, changed: bool) -> None:
    case = Case(turn.before)
    turn.waits(case)
    inside = [r.id for r in case.scheduler.requests.values() if r.endpoint is not None]
    assert case.reconfigure(turn.after if changed else turn.before) == []
    found: list[object] = []
    while case.scheduler.queued:
        releases = [effect for effect in case.end(inside.pop(0)) if isinstance(effect, Release)]
        found += [turn.then(release) for release in releases]
        inside += [release.id for release in releases]
    assert found == turn.expected[changed]


PICKS = {
    "load": ({"load": 1.0}, E2),  # it holds less
    "prefix": ({"prefix": 5.0, "load": 0.0}, "first"),
    "session": ({"session": 5.0, "load": 0.0}, "first"),
    "adapter": ({"adapter": 5.0, "load": 0.0}, "first"),
    "kv_usage": ({"kv_usage": 5.0, "load": 0.0}, E2),
}


@pytest.mark.parametrize("score", PICKS)
def test_where_what_waits_goes_is_said_by_the_scores_of_now(score: str) -> None:
    """One is inside E1, with its prompt, session and adapter, and its cache is fuller. What waits is like it."""
    nothing = {"load": 0.0, "prefix": 0.0, "adapter": 0.0, "session": 0.0, "kv_usage": 0.0}
    policy = pool(slots=8, pick=PickPolicy(**nothing), traffic=Traffic.OPEN)  # type: ignore[arg-type]
    case = Case(policy)
    like = {"adapter": "lora", "session": 5, "prefix": (1, 2, 3)}
    case.arrive("first", "x", **like)
    case.add(E2)
    case.reconfigure(replace(policy, traffic=Traffic.PAUSED))
    case.now += 0.25
    case.page(running=1, kv_usage=0.6, adapters=("lora",), max_adapters=1)
    case.page(E2, kv_usage=0.1, adapters=(), max_adapters=0)
    case.arrive("w", "y", **like)
    changes, expected = PICKS[score]
    (effect,) = case.reconfigure(replace(policy, pick=PickPolicy(**nothing | changes)))  # type: ignore[arg-type]
    assert isinstance(effect, Release)
    assert effect.endpoint == (case.scheduler.requests["first"].endpoint if expected == "first" else expected)


# -- time ------------------------------------------------------------------------------------------------


def test_times_that_are_shortened_end_what_has_waited_for_so_long_and_longer_ones_let_it_wait() -> None:
    """`class.queue_timeout_s`, and `pool.no_endpoint_timeout_s` where no endpoint is there."""
    short, long = pool(a_class(queue_timeout_s=5.0)), pool(a_class(queue_timeout_s=50.0))
    for policy, shorter in (
        (long, short),
        (replace(long, no_endpoint_timeout_s=40.0), replace(long, no_endpoint_timeout_s=5.0)),
    ):
        case = Case(policy, endpoints=())
        case.arrive("w")
        due = case.scheduler.next_deadline()
        case.tick(10.0)
        case.reconfigure(replace(policy, no_endpoint_timeout_s=45.0))
        assert due is not None and case.scheduler.next_deadline() == 145.0
        assert told(case.reconfigure(shorter)) == ["-w"]


def test_a_ceiling_that_is_lowered_holds_at_once_and_a_higher_one_is_grown_into() -> None:
    """`window.ceiling`: what the engine can run between the two is not known before pages have shown it."""
    policy = a_pool(replace(HIGH, max_waiting=0), start=4.0)
    case = Case(policy)
    inside = fill(case, 4)
    case.arrive("w")
    case.reconfigure(windowed(policy, ceiling=2.0))
    assert [told(case.end(name)) for name in inside[:2]] == [[], []]
    assert told(case.end(inside[2])) == ["w"]
    assert case.reconfigure(policy) == []
    assert case.scheduler.windows["10.0.0.1:8000"].capacity == 2.0


# -- a rate that is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 1000.0])
def test_a_debt_of_nobody_who_is_here_refuses_by_the_rate_of_now(rate: float | None) -> None:
    """The tenant has left the tree, and its bucket is 768 in debt: for 768 s by the old rate."""
    policy = pool(a_class(queue_timeout_s=10.0), **tenants(t={"rate": 1.0}))
    case = Case(policy)
    case.arrive("r", "t")
    case.usage("r", 256, 256)
    case.end("r")
    assert told(case.arrive("s", "t")) == ["-s"]
    case.reconfigure(replace(policy, tenants={"t": TenantPolicy(rate=rate)}))
    case.now += 0.768
    assert told(case.arrive("t", "t")) == ["t"]


# -- nothing is left out ---------------------------------------------------------------------------------

_DOOR = "it says who may come in; what waits is in already"
ELSEWHERE = {
    "pool.name": "no setting: another name is another pool",
    "pool.classes": "a row for each of its settings; classes that come and go: test_scheduler_reconfigure",
    "pool.window": "a row for each of its settings",
    "pool.pick": "PICKS; `by` needs a restart",
    "pool.weights": "what waits keeps the estimate that it came with, and is settled by the weights of then",
    "pool.unit": "cannot change while the pool runs: what each has had is counted in it",
    "pool.shared": "cannot change while the pool runs: what other replicas hold is part of its books",
    "pool.max_queued": _DOOR,
    "pool.max_queued_bytes": _DOOR,
    "pool.usage_grace_s": "how long a count may come after a stream: of streams that end from now on",
    "pool.no_endpoint_timeout_s": "test_times_that_are_shortened...",
    "class.name": "no setting: another name is another class",
    "class.queue_timeout_s": "test_times_that_are_shortened...",
    "class.max_queued": _DOOR,
    "class.max_queued_bytes": _DOOR,
    "class.max_queued_tokens": _DOOR,
    "class.overflow": _DOOR,
    "class.fail_fast": _DOOR,
    "tenant.max_queued": _DOOR,
    "tenant.max_queued_bytes": _DOOR,
    "tenant.max_queued_tokens": _DOOR,
    "tenant.burst": "what one that comes back may have saved up; what waits has its place",
    "window.start": "where an endpoint begins of which nothing is known: those that are added from now on",
    "window.ceiling": "test_a_ceiling_that_is_lowered...",
}


def test_no_setting_is_left_out() -> None:
    kinds = {"pool": PoolPolicy, "class": ClassPolicy, "tenant": TenantPolicy, "window": WindowPolicy, "gates": Gates}
    known = {f"{kind}.{field.name}" for kind, cls in kinds.items() for field in fields(cls)}
    rows = [row.knob for row in (*DOORS, *TURNS)]
    assert sorted([*rows, *ELSEWHERE]) == sorted(known)
    assert {field.name for field in fields(PickPolicy)} == {"by", *PICKS}
    assert {field.name for field in fields(CostWeights)} == {"prompt", "cached", "output"}  # pool.weights
