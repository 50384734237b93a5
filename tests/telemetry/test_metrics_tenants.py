"""Which tenants have series of their own: those that the configuration names, and the top ones by cost of late."""

from __future__ import annotations

import math
import time

import pytest

from extproc.config.telemetry import TenantSeries
from extproc.telemetry.metrics.counts import Budget
from extproc.telemetry.metrics.tenants import TenantCounts

MINUTE = 60.0


class Counted:
    """Counts on a clock that the test sets, with room for 1,000 tenants in a pool."""

    def __init__(self, top: int = 2, names: list[str] | None = None, samples: int = 8_000) -> None:
        self.now = 1_000.0
        self.budget = Budget(samples)
        self.tenants = TenantCounts(TenantSeries(top=top, names=names or []), self.budget, lambda: self.now)
        self.held: dict[tuple[str, str], int] = {}

    def settle(self, **costs: float) -> None:
        for tenant, cost in costs.items():
            self.tenants.settled("sim", tenant, cost)

    def minute(self, **costs: float) -> None:
        """A minute in which that was settled, and the look at its end."""
        self.settle(**costs)
        self.now += MINUTE
        self.tenants.settled("sim", "other", 0.0)  # who never has a place

    def told(self, name: str = "settled_cost", pool: str = "sim") -> dict[str, float]:
        return {
            sample.labels["tenant"]: sample.value
            for family in self.tenants.families(["sim", "two"], lambda *key: self.held.get(key, 0))
            for sample in family.samples
            if sample.name in (f"fairlane_tenant_{name}_total", f"fairlane_tenant_{name}")
            and sample.labels["pool"] == pool
        }


def test_while_there_are_places_whoever_comes_takes_one() -> None:
    it = Counted(top=2)
    it.settle(a=1, b=2, c=4, d=8)
    assert it.told() == {"a": 1, "b": 2, "other": 12}


def test_the_top_is_looked_at_anew_once_a_minute_when_something_is_counted() -> None:
    it = Counted(top=2)
    it.settle(a=1, b=2, c=4, d=8)
    it.now += MINUTE - 1
    it.settle(c=1)
    assert set(it.told()) == {"a", "b", "other"}
    it.now += 1
    assert set(it.told()) == {"a", "b", "other"}  # nothing has been counted
    it.settle(e=1)  # counted before the look, and so among the others
    assert it.told() == {"other": 14}  # c and d have series from now on, and begin when they are counted
    it.settle(c=3, d=1, a=1)
    assert it.told() == {"c": 3, "d": 1, "other": 15}


def test_others_never_go_down_and_who_returns_begins_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Counted(top=1)
    it.minute(a=10)
    it.settle(b=1_000)
    assert it.told() == {"a": 10, "other": 1_000}
    it.minute()
    it.settle(b=5)
    assert it.told() == {"b": 5, "other": 1_000}  # a is gone
    monkeypatch.setattr("extproc.telemetry.metrics.tenants.time.time", lambda: 2e9)
    it.minute(a=1e6)
    assert it.told()["other"] == 1_001_000
    it.settle(a=2)
    assert it.told() == {"a": 2, "other": 1_001_000}
    created = {
        sample.labels["tenant"]: sample.value
        for family in it.tenants.families([], lambda *_: 0)
        for sample in family.samples
        if sample.name == "fairlane_tenant_settled_cost_created"
    }
    assert created["a"] == 2e9
    assert created["other"] < 2e9


def test_one_in_the_top_stays_until_another_has_a_quarter_more() -> None:
    it = Counted(top=1)
    it.minute(a=100, b=124)
    assert set(it.told()) == {"a", "other"}
    # a minute later 100 have faded to 87.06, and 124 to 107.95
    it.minute(b=2, a=1)
    assert set(it.told()) == {"a", "other"}  # 109.95 < 1.25 * 88.06 = 110.07
    it.minute(b=2)
    it.settle(b=1)
    assert set(it.told()) == {"b", "other"}  # 97.7 > 1.25 * 76.66 = 95.8


@pytest.mark.parametrize(("cost", "first"), [(62, "a"), (63, "b")])
def test_cost_fades_by_half_in_five_minutes(cost: float, first: str) -> None:
    """Of 100, 50 are left, and another one must have a quarter more: 62.5."""
    it = Counted(top=1)
    it.minute(a=100)
    it.now += 5 * MINUTE
    it.settle(b=cost)
    it.settle(a=1, b=1)
    assert set(it.told()) == {first, "other"}


def test_names_are_always_there_and_take_no_place() -> None:
    it = Counted(top=1, names=["vip", "never seen"])
    it.settle(a=5, vip=1, b=7)
    assert it.told() == {"a": 5, "vip": 1, "other": 7}
    it.minute(a=5)
    it.settle(vip=1)
    assert it.told()["vip"] == 2


def test_no_tenant_at_all() -> None:
    it = Counted(top=0)
    it.minute(a=1, b=2)
    it.minute(a=1)
    assert it.told() == {"other": 4}


def test_other_settings_hold_at_once() -> None:
    it = Counted(top=3)
    it.settle(a=1, b=2, c=4)
    it.tenants.configure(TenantSeries(top=1, names=["a"]))
    it.settle(a=1, b=1, c=1)
    assert it.told() == {"a": 2, "c": 5, "other": 1}
    it.tenants.configure(TenantSeries(top=0))
    assert it.told() == {"other": 1}


def test_a_tenant_that_is_called_other_is_one_of_them() -> None:
    it = Counted(top=5, names=["other"])
    it.minute(other=100, a=1)
    it.settle(other=1)
    assert it.told() == {"a": 1, "other": 101}


def test_each_pool_apart() -> None:
    it = Counted(top=1)
    it.settle(a=1, b=2)
    it.tenants.settled("two", "a", 4)
    it.tenants.settled("two", "b", 8)
    assert (it.told(), it.told(pool="two")) == ({"a": 1, "other": 2}, {"a": 4, "other": 8})


def test_requests_and_waits() -> None:
    it = Counted(top=1)
    it.tenants.released("sim", "a", 1.5)
    it.tenants.released("sim", "a", 0.5)
    it.tenants.refused("sim", "a", 10.0)
    it.tenants.refused("sim", "b", 3.0)
    assert it.told("released_requests") == {"a": 2, "other": 0}
    assert it.told("refused_requests") == {"a": 1, "other": 1}
    assert it.told("queue_wait_seconds") == {"a": 12, "other": 3}


def test_held_are_told_of_named_ones_only() -> None:
    it = Counted(top=2, names=["vip", "idle"])
    it.settle(a=1, b=1, c=1)
    it.held = {("sim", "a"): 3, ("sim", "c"): 9, ("two", "vip"): 4}
    assert it.told("held_requests") == {"a": 3, "b": 0}
    assert it.told("held_requests", pool="two") == {"vip": 4}


def test_two_names_with_one_label_are_one_series() -> None:
    """Somebody could call himself what another one's name is mended to."""
    it = Counted(top=2)
    it.tenants.settled("sim", "a\nb", 1)
    (mended,) = it.told()
    it.tenants.settled("sim", mended, 2)
    it.held = {("sim", "a\nb"): 1, ("sim", mended): 2}
    assert it.told() == {mended: 3}
    assert it.told("held_requests") == {mended: 3}


def test_series_have_a_hard_cap_beyond_which_all_are_others() -> None:
    it = Counted(top=100, samples=3 * 8)
    it.settle(**{f"t{number}": 1 for number in range(10)})
    assert it.told() == {"t0": 1, "t1": 1, "t2": 1, "other": 7}
    assert it.budget.left_out == 7
    it.tenants.configure(TenantSeries(top=0))  # gives all back
    it.tenants.configure(TenantSeries(names=["x", "y", "z"]))
    it.settle(x=1, y=1, z=1)
    assert it.told() == {"x": 1, "y": 1, "z": 1, "other": 7}


@pytest.mark.parametrize("cost", [math.inf, math.nan])
def test_a_cost_that_is_no_number_takes_no_place(cost: float) -> None:
    it = Counted(top=1)
    it.minute(a=1, b=cost, c=5)
    it.settle(c=1)
    assert "c" in it.told()


def test_a_flood_of_names_is_bounded() -> None:
    """100,000 names in a minute: so many are looked at, the top is small, and one that was there before stays."""
    it = Counted(top=10)
    it.minute(heavy=1e9)
    for number in range(100_000):
        it.tenants.settled("sim", f"flood-{number}", 1.0)
    assert len(it.tenants._minute) == 5_000
    it.now += MINUTE
    began = time.thread_time()
    it.tenants.settled("sim", "flood-0", 1.0)
    took = time.thread_time() - began
    it.settle(heavy=1.0)
    told = it.told()
    assert len(told) <= 11
    assert told["heavy"] == 1e9 + 1
    assert sum(told.values()) == pytest.approx(1e9 + 100_002, abs=20)  # those that lost their series had one each
    assert len(it.tenants._lately) <= 40
    assert took < 0.5  # some 20 ms of CPU
