"""Where a request goes among the endpoints that have room, and who is next best.

Windows are fixed, 8 slots each unless said otherwise, so fullness is a number of eighths.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_sample

from extproc.core.events import Release, Scraped
from extproc.core.model import Gates, Pick, PickPolicy, PoolPolicy, State
from extproc.core.prefixes import BYTES
from extproc.core.scheduler import Scheduler
from extproc.core.windows.view import Stance
from extproc.edge.body_facts import PREFIX_BYTES

E3, E4, E5 = "10.0.0.3:8000", "10.0.0.4:8000", "10.0.0.5:8000"
HOT = (1, 2, 3)  # the first 2,048 bytes of a prompt


def pool(slots: int = 8, gates: Gates | None = None, **weights: float) -> PoolPolicy:
    cls = a_class(max_waiting=0, gates=gates or Gates())
    return replace(a_fixed_pool(cls, slots=slots), pick=replace(PickPolicy(), **weights))  # type: ignore[arg-type]


def go(case: Case, name: str, tenant: str = "a", **fields: Any) -> Release:
    (effect,) = case.arrive(name, tenant, **fields)
    assert isinstance(effect, Release)
    return effect


def load(case: Case, endpoint: str, count: int) -> None:
    """So many requests inside `endpoint`, drawn there by a session of their own."""
    weights = case.scheduler.policy
    case.reconfigure(replace(weights, pick=PickPolicy(load=0.0, session=1.0)))
    session = hash(endpoint)
    case.scheduler.sessions.sent(session, endpoint)
    for i in range(count):
        assert go(case, f"load-{endpoint}-{i}", session=session).endpoint == endpoint
    case.reconfigure(weights)


def page(case: Case, endpoint: str, **fields: Any) -> None:
    case.apply(Scraped(endpoint, a_sample(0, 0, case.now, **fields)))


def test_the_sizes_are_those_that_the_edge_takes_hashes_of() -> None:
    assert BYTES == PREFIX_BYTES


def test_without_anything_of_its_own_it_goes_to_the_least_full_and_then_to_the_longest_unused() -> None:
    case = Case(pool(), endpoints=(E1, E2, E3))
    assert [go(case, f"r{i}").endpoint for i in range(7)] == [E1, E2, E3, E1, E2, E3, E1]
    case.end("r1")
    case.end("r4")
    assert go(case, "x").endpoint == E2
    assert go(case, "y").endpoint == E2


@pytest.mark.parametrize(("ahead", "where"), [(3, E1), (4, E2)])
def test_a_warm_endpoint_leads_by_its_share_times_the_weights(ahead: int, where: str) -> None:
    """2,048 of 2,340 bytes are warm on E1: with weight 0.5 that is 0.4376, three eighths of the window and not four."""
    case = Case(pool(), endpoints=(E1, E2))
    case.scheduler.prefixes.sent(E1, HOT, case.now)
    load(case, E1, ahead)
    assert go(case, "x", prefix=HOT, body_bytes=2_340).endpoint == where


def test_a_full_endpoint_gets_nothing_however_warm_it_is() -> None:
    case = Case(pool(prefix=1000.0), endpoints=(E1, E2))
    case.scheduler.prefixes.sent(E1, HOT, case.now)
    load(case, E1, 8)
    assert go(case, "x", prefix=HOT, body_bytes=2_048).endpoint == E2


def test_a_prompt_that_everybody_sends_is_soon_everywhere_and_load_decides() -> None:
    """All of the prompt is warm on E1, which so leads by four of eight. The fifth makes E2 warm, which then has less
    inside and goes up to four itself; likewise E3. From then on all are equal but for their load."""
    case = Case(pool(), endpoints=(E1, E2, E3))
    where = [go(case, f"r{i}", prefix=HOT, body_bytes=2_048).endpoint for i in range(24)]
    assert where == [E1] * 4 + [E2] * 4 + [E3] * 4 + [E1, E2, E3] * 4


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    prompts=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    weight=st.sampled_from([0.0, 0.5, 3.0, 1000.0]),
    ends=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_no_window_is_exceeded_and_nobody_waits_for_a_warm_endpoint(
    prompts: list[int], weight: float, ends: list[bool]
) -> None:
    case = Case(pool(slots=3, prefix=weight), endpoints=(E1, E2, E3))
    inside: list[str] = []
    for i, (number, end) in enumerate(zip(prompts, ends, strict=False)):
        effects = case.arrive(f"r{i}", f"t{number}", prefix=(number,), body_bytes=600)
        if end and inside:
            effects += case.end(inside.pop(0))
        inside += [e.id for e in effects if isinstance(e, Release)]
        windows = case.scheduler.windows.values()
        assert max(w.in_flight for w in windows) <= 3
        assert case.scheduler.queued == 0 or sum(w.in_flight for w in windows) == 9


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=80))
def test_who_goes_is_the_same_whatever_the_weights(steps: list[tuple[int, int, bool]]) -> None:
    """One request inside ends at a time, the oldest: the order of release is the fair one."""
    orders = []
    for weight in (0.0, 5.0):
        case = Case(pool(slots=2, prefix=weight, session=weight), endpoints=(E1, E2))
        order: list[str] = []
        inside: list[str] = []
        for i, (tenant, text, end) in enumerate(steps):
            effects = case.arrive(f"r{i}", f"t{tenant}", prefix=(text,), session=text)
            if end and inside:
                effects += case.end(inside.pop(0))
            gone = [e.id for e in effects if isinstance(e, Release)]
            order += gone
            inside += gone
        orders.append(order)
    assert orders[0] == orders[1]


def test_a_session_goes_where_its_last_request_went() -> None:
    case = Case(pool(), endpoints=(E1, E2, E3))
    go(case, "other")
    assert go(case, "first", session=7).endpoint == E2
    assert go(case, "again", session=7).endpoint == E2
    assert go(case, "and again", session=7).endpoint == E2
    case.remove(E2)
    assert go(case, "elsewhere", session=7).endpoint == E3
    case.add(E2)
    case.page(E2)
    assert go(case, "stays", session=7).endpoint == E3


def test_an_adapter_goes_where_it_is_loaded_and_else_where_a_slot_is_free() -> None:
    case = Case(pool(), endpoints=(E1, E2, E3))
    page(case, E1, adapters=("a", "b"), max_adapters=2)
    page(case, E2, adapters=("c",), max_adapters=2)
    page(case, E3, adapters=("d", "e"), max_adapters=2)
    assert go(case, "d", adapter="d").endpoint == E3
    assert go(case, "new", adapter="new").endpoint == E2
    assert go(case, "new again", adapter="new").endpoint == E2  # it was sent there, and no page shows it yet
    # E2 is full of c and new by now, and nobody has a slot for another one: load decides.
    assert go(case, "another", adapter="another").endpoint == E1


def test_a_fuller_cache_counts_for_less_than_a_fuller_window() -> None:
    case = Case(pool(), endpoints=(E1, E2))
    page(case, E1, kv_usage=0.9)
    page(case, E2, kv_usage=0.1)
    # 0.25 * 0.8 = 0.2 is more than one eighth and less than two.
    assert [go(case, f"r{i}").endpoint for i in range(4)] == [E2, E2, E1, E2]
    page(case, E1, kv_usage=None)
    page(case, E2, kv_usage=None)
    assert go(case, "unknown").endpoint == E1


def test_a_closed_gate_keeps_it_from_a_warm_endpoint_and_from_its_fallbacks() -> None:
    case = Case(pool(gates=Gates(max_kv_usage=0.5)), endpoints=(E1, E2, E3))
    case.scheduler.prefixes.sent(E1, HOT, case.now)
    page(case, E1, kv_usage=0.6)
    release = go(case, "x", prefix=HOT, body_bytes=2_048)
    assert (release.endpoint, release.fallbacks) == (E2, (E3,))


def test_fallbacks_are_the_next_best_two_the_best_first() -> None:
    case = Case(pool(), endpoints=(E1, E2, E3, E4, E5))
    for endpoint, count in ((E2, 3), (E3, 1), (E4, 4), (E5, 2)):
        load(case, endpoint, count)
    release = go(case, "x")
    assert (release.endpoint, release.fallbacks) == (E1, (E3, E5))
    case.scheduler.prefixes.sent(E4, HOT, case.now)
    release = go(case, "y", prefix=HOT, body_bytes=2_048)
    # 0.5 for the prefix makes E4's 4/8 as good as nothing inside: before E1 and E3 with 1/8, of which E1 came later.
    assert (release.endpoint, release.fallbacks) == (E4, (E3, E1))


def test_fallbacks_with_room_come_before_a_warm_one_without() -> None:
    case = Case(pool(prefix=1000.0), endpoints=(E1, E2, E3))
    case.scheduler.prefixes.sent(E2, HOT, case.now)
    for endpoint, count in ((E2, 8), (E3, 1)):
        load(case, endpoint, count)
    release = go(case, "x", prefix=HOT, body_bytes=2_048)
    assert (release.endpoint, release.fallbacks) == (E1, (E3, E2))


def test_envoy_tries_as_many_fallbacks_as_it_is_sent() -> None:
    routes = (Path(__file__).parents[2] / "envoy" / "envoy.yaml").read_text()
    case = Case(pool(), endpoints=(E1, E2, E3, E4))
    assert f"num_retries: {len(go(case, 'x').fallbacks)}\n" in routes


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    inside=st.lists(st.integers(0, 3), min_size=2, max_size=7),
    down=st.lists(st.booleans(), min_size=7, max_size=7),
    kv=st.lists(st.integers(0, 4), min_size=7, max_size=7),
)
def test_the_order_is_by_score_load_and_last_use(inside: list[int], down: list[bool], kv: list[int]) -> None:
    """Of windows of 3 slots: those with room by the sum of the docstring, then full ones by their last use."""
    names = [f"10.0.1.{i}:8000" for i in range(len(inside))]
    case = Case(pool(slots=3), endpoints=tuple(names))
    for name, count, quarters in zip(names, inside, kv, strict=False):
        load(case, name, count)
        page(case, name, kv_usage=quarters / 4)
    up = [i for i in range(len(names)) if not down[i]]
    for i, name in enumerate(names):
        if down[i]:
            case.scrape_fails(name, refused=True)
    last_use = {i: sum(inside[: i + 1]) if inside[i] else 0 for i in up}
    room = [i for i in up if inside[i] < 3]
    order = sorted(room, key=lambda i: (inside[i] / 3 + 0.25 * kv[i] / 4, inside[i], last_use[i], i))
    order += sorted(set(up) - set(room), key=lambda i: last_use[i])
    effects = case.arrive("x", "a")
    if not room:
        assert effects == []
        return
    (release,) = effects
    assert isinstance(release, Release)
    assert [release.endpoint, *release.fallbacks] == [names[i] for i in order[:3]]


def test_a_stalled_engine_that_is_tried_is_no_fallback() -> None:
    """It takes one request in a minute, to see; a connection that was refused elsewhere is not for it."""
    policy = pool()
    policy = replace(policy, window=replace(policy.window, stalled_after_s=5.0))
    case = Case(policy, endpoints=(E1, E2, E3))
    for _ in range(70):
        case.now += 1.0
        case.apply(Scraped(E2, a_sample(1, 0, case.now, progress=7.0)))
        page(case, E1)
        page(case, E3)
    assert case.scheduler.windows[E2].stance(case.now) is Stance.STALLED
    assert go(case, "x").fallbacks == (E3,)


def test_fallbacks_need_no_room_but_an_engine_that_can_be_used() -> None:
    case = Case(pool(slots=1), endpoints=(E1, E2, E3))
    load(case, E2, 1)
    case.scrape_fails(E3, refused=True)
    release = go(case, "x")
    assert (release.endpoint, release.fallbacks) == (E1, (E2,))


def test_one_endpoint_has_no_fallbacks() -> None:
    assert go(Case(pool()), "x").fallbacks == ()


def test_an_engine_that_was_down_has_forgotten_what_was_sent_there() -> None:
    case = Case(pool(), endpoints=(E1, E2))
    case.scheduler.prefixes.sent(E1, HOT, case.now)
    case.scheduler.sessions.sent(7, E1)
    case.scheduler.adapters.sent(E1, "a", case.now)
    case.scrape_fails(E1, refused=True)
    case.page(E1)
    assert case.scheduler.prefixes.match(E1, HOT, case.now)[0] == 0
    assert case.scheduler.sessions.of(7) is None
    assert case.scheduler.adapters.fit(E1, "a", (), None, case.now) == 0.0


def test_an_overtaking_request_goes_to_the_least_full_whatever_is_warm() -> None:
    case = Case(replace(a_fixed_pool(a_class(), slots=1, overtake=1), pick=PickPolicy()), endpoints=(E1, E2))
    go(case, "a0", "a")
    go(case, "a1", "a")
    case.scheduler.prefixes.sent(E2, HOT, case.now)
    assert go(case, "b", "b", prefix=HOT, body_bytes=2_048).endpoint == E1


@pytest.mark.parametrize("by", list(Pick))
def test_the_same_events_give_the_same_effects(by: Pick) -> None:
    lot = random.Random(3)
    case = Case(replace(pool(slots=3), pick=PickPolicy(by=by)), endpoints=(E1, E2, E3))
    inside: list[str] = []
    for i in range(300):
        case.now += 0.05
        text = lot.randrange(5)
        prefix, adapter = (text, 10 + lot.randrange(9)), lot.choice([None, "x", "y", "z"])
        case.arrive(f"r{i}", f"t{text}", prefix=prefix, adapter=adapter, session=lot.choice([None, 1, 2, 3]))
        inside = [r.id for r in case.scheduler.requests.values() if r.state is State.RELEASED]
        if i % 2 and inside:
            case.end(lot.choice(inside))
        endpoint = lot.choice((E1, E2, E3))
        page(case, endpoint, kv_usage=lot.random(), adapters=("x",), max_adapters=2)
        if i % 90 == 80:
            case.remove(endpoint)
            case.add(endpoint)
    again = Scheduler(replace(pool(slots=3), pick=PickPolicy(by=by)))
    assert [effect for event, at in case.events for effect in again.apply(event, at)] == case.effects
