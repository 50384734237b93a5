"""What is to be done between two sets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.engines.endpoints.changes import Changes, changes
from extproc.engines.endpoints.source import Endpoint

A, B, C = Endpoint("10.0.0.1:80", "u1"), Endpoint("10.0.0.2:80", "u2"), Endpoint("10.0.0.3:80", "u3")
OTHER_B = Endpoint("10.0.0.2:80", "u9")


def test_nothing() -> None:
    assert changes([A, B], [B, A]) == Changes()
    assert not changes([A, B], [B, A])


def test_in_the_order_of_each_set() -> None:
    assert changes([C, A, B], [B]) == Changes(removed=(C, A))
    assert changes([B], [C, B, A]) == Changes(added=(C, A))
    assert changes([], [B, A]) == Changes(added=(B, A))
    assert changes([B, A], []) == Changes(removed=(B, A))


def test_another_engine_behind_an_address_is_removed_and_added() -> None:
    assert changes([A, B], [A, OTHER_B, C]) == Changes(removed=(B,), added=(OTHER_B, C))


def test_of_two_with_one_address_the_first_counts() -> None:
    assert changes([], [B, OTHER_B, B]) == Changes(added=(B,))
    assert changes([B, OTHER_B], [B]) == Changes()


_SETS = st.lists(st.builds(Endpoint, st.sampled_from("abcd"), st.sampled_from(["", "1", "2"])), max_size=6)


@given(_SETS, _SETS)
@settings(derandomize=True, deadline=None)
def test_what_is_done_leads_to_the_new_set(old: list[Endpoint], new: list[Endpoint]) -> None:
    state: dict[str, str] = {}
    for each in old:
        state.setdefault(each.address, each.identity)
    found = changes(old, new)
    for each in found.removed:
        assert state.pop(each.address) == each.identity
    for each in found.added:
        assert each.address not in state
        state[each.address] = each.identity
    wanted: dict[str, str] = {}
    for each in new:
        wanted.setdefault(each.address, each.identity)
    assert state == wanted
