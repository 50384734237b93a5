"""For whom a mode holds."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest
from envoy_by_messages import a_config
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.scheduling import Pool
from extproc.edge import rollout
from extproc.edge.rollout import enforces, mode_for, observes


def a_pool(mode: str = "enforce", percentage: float = 100.0, of: str = "tenants") -> Pool:
    return a_config(pool={"mode": mode, "percentage": percentage, "percentage_of": of}).pools[0]


@pytest.mark.parametrize(
    ("mode", "inside", "outside"), [("enforce", "enforce", "observe"), ("observe", "observe", "off"), ("off",) * 3]
)
def test_outside_the_percentage_the_next_weaker_mode_holds(mode: str, inside: str, outside: str) -> None:
    assert mode_for(a_pool(mode, 100), "a", "1") == inside
    assert mode_for(a_pool(mode, 0), "a", "1") == outside
    assert {mode_for(a_pool(mode, 50), f"t{n}", "") for n in range(100)} == {inside, outside}


@pytest.mark.parametrize("percentage", [0, 100])
def test_all_and_nobody_are_exact_and_need_no_hash(monkeypatch: pytest.MonkeyPatch, percentage: float) -> None:
    def never(_: str) -> Any:
        raise AssertionError("hashed")

    monkeypatch.setattr(rollout, "_place", never)
    monkeypatch.setattr(rollout, "_place_of_tenant", never)
    for of in ("tenants", "requests"):
        for mode in ("enforce", "observe", "off"):
            pool = a_pool(mode, percentage, of)
            assert len({mode_for(pool, f"t{n}", f"r{n}") for n in range(1000)}) == 1


@settings(derandomize=True, deadline=None)
@given(
    tenant=st.text(),
    request_id=st.text(),
    of=st.sampled_from(["tenants", "requests"]),
    few=st.floats(0, 100),
    more=st.floats(0, 100),
)
def test_who_is_in_stays_in_when_the_percentage_rises(
    tenant: str, request_id: str, of: str, few: float, more: float
) -> None:
    few, more = sorted((few, more))
    if mode_for(a_pool("enforce", few, of), tenant, request_id) == "enforce":
        assert mode_for(a_pool("enforce", more, of), tenant, request_id) == "enforce"


@pytest.mark.slow
def test_the_share_is_that_of_the_hash() -> None:
    """By another way to compute it: 10 % are in whose first 48 bits of BLAKE2b are below a tenth of their range."""

    def is_in(name: str) -> bool:
        return int(blake2b(name.encode(), digest_size=6).hexdigest(), 16) * 10 < 2**48

    names = [f"tenant-{n}" for n in range(2000)]
    expected = [is_in(name) for name in names]
    assert [mode_for(a_pool("enforce", 10), name, "x") == "enforce" for name in names] == expected
    assert [mode_for(a_pool("enforce", 10, "requests"), "x", name) == "enforce" for name in names] == expected
    assert 160 <= sum(expected) <= 240  # 200, give or take three standard deviations (13.4 each)


def test_a_tenant_s_requests_go_one_way_and_a_request_that_is_sent_again_goes_the_same() -> None:
    by_tenant, by_request = a_pool("enforce", 50), a_pool("enforce", 50, "requests")
    assert len({mode_for(by_tenant, "a", f"r{n}") for n in range(100)}) == 1
    assert len({mode_for(by_request, "a", f"r{n}") for n in range(100)}) == 2
    assert len({mode_for(by_request, f"t{n}", "r1") for n in range(100)}) == 1


def test_a_request_without_an_id_goes_by_its_tenant() -> None:
    by_tenant, by_request = a_pool("enforce", 50), a_pool("enforce", 50, "requests")
    names = [f"t{n}" for n in range(100)]
    assert [mode_for(by_request, name, "") for name in names] == [mode_for(by_tenant, name, "") for name in names]


def test_bytes_that_are_no_text_have_a_place_too() -> None:
    assert mode_for(a_pool("enforce", 50), "\udcff", "") in ("enforce", "observe")


@pytest.mark.parametrize(
    ("mode", "percentage", "holds", "watches"),
    [
        ("enforce", 100, True, False),
        ("enforce", 1, True, True),
        ("enforce", 0, False, True),
        ("observe", 100, False, True),
        ("observe", 1, False, True),
        ("observe", 0, False, False),
        ("off", 100, False, False),
    ],
)
def test_what_a_pool_does_to_anybody(mode: str, percentage: float, holds: bool, watches: bool) -> None:
    pool = a_pool(mode, percentage)
    assert (enforces(pool), observes(pool)) == (holds, watches)
