"""The store's rule: who is granted what, who lives, what is handed on."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.sharing.words import EndpointReport, FlowReport, Heard, PoolReport
from extproc.sim.meeting_place import MeetingPlace

E = "engine:8000"


def report(inside: int, want: float, limit: float = 20.0, usage: float | None = None) -> PoolReport:
    flows = () if usage is None else (FlowReport("interactive", "a", usage, 1.0, 0),)
    return PoolReport("m", (), (EndpointReport(E, inside, 0, limit, want),), flows)


def meet(store: MeetingPlace, name: str, inside: int, want: float, at: float, **more: float) -> Heard:
    return store.exchange(name, "1", report(inside, want, **more), at, at)


def test_a_claim_is_what_is_wanted_as_far_as_the_others_leave_it() -> None:
    store = MeetingPlace(3.0)
    assert meet(store, "a", 0, 16.0, 0.0).claims == {E: 16.0}
    assert meet(store, "b", 0, 16.0, 0.1).claims == {E: 4.0}
    assert meet(store, "a", 12, 5.0, 0.2).claims == {E: 12.0}  # what it has inside it may keep
    assert meet(store, "b", 4, 16.0, 0.3).claims == {E: 8.0}
    store.leave("a")
    assert meet(store, "b", 8, 16.0, 0.4).claims == {E: 16.0}


def test_one_that_was_not_there_for_a_lease_is_dead_and_new_when_it_comes_back() -> None:
    store = MeetingPlace(3.0)
    assert meet(store, "a", 0, 20.0, 0.0).fresh
    assert not meet(store, "a", 5, 20.0, 3.0).fresh
    assert [other.replica for other in meet(store, "b", 0, 5.0, 6.0).others] == ["a"]
    assert meet(store, "b", 0, 5.0, 6.1).others == ()
    assert meet(store, "b", 0, 5.0, 6.2).claims == {E: 5.0}
    assert meet(store, "a", 5, 20.0, 6.3).fresh


def test_another_life_is_new() -> None:
    store = MeetingPlace(3.0)
    store.exchange("a", "1", report(0, 1.0), 0.0, 0.0)
    assert store.exchange("a", "2", report(0, 1.0), 0.1, 0.1).fresh


def test_flows_are_handed_on_once_and_in_order_and_what_is_gone_is_said() -> None:
    store = MeetingPlace(100.0)

    def seen(at: float) -> tuple[list[float], bool]:
        (other,) = meet(store, "b", 0, 0.0, at).others
        return [flow.usage for flow in other.report.flows], other.missed

    meet(store, "a", 0, 0.0, 0.0, usage=1.0)
    assert seen(0.1) == ([1.0], False)
    assert seen(0.2) == ([], False)
    meet(store, "a", 0, 0.0, 0.3, usage=2.0)
    meet(store, "a", 0, 0.0, 0.4, usage=3.0)
    assert seen(0.5) == ([2.0, 3.0], False)
    for number in range(100):
        meet(store, "a", 0, 0.0, 1.0 + number / 100, usage=10.0 + number)
    usages, missed = seen(3.0)
    assert missed
    assert usages == [10.0 + number for number in range(36, 100)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20), st.integers(0, 40)), max_size=40))
def test_claims_are_never_more_than_the_limit_but_for_what_is_inside(steps: list[tuple[str, int, int]]) -> None:
    """Each replica's own may only grow to what it was granted."""
    store = MeetingPlace(1e9)
    granted: dict[str, float] = {}
    for at, (name, inside, want) in enumerate(steps):
        inside = min(inside, int(granted.get(name, 0.0)))
        granted[name] = meet(store, name, inside, float(want), float(at)).claims[E]
        assert sum(store.claims(E).values()) <= 20.0
        assert store.claims(E) == granted
