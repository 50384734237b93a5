"""What is due to those that wait here: by hand, and against another reckoning of the same tree."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import a_fixed_pool

from extproc.core.model import PoolPolicy, TenantPolicy
from extproc.core.sharing.entitlement import Entitlement
from extproc.core.sharing.lag import Lags

Waits = Mapping[str, tuple[float, float]]  # tenant -> cost that it has waiting (here, elsewhere)


def pool(separator: str | None = None, **weights: float) -> PoolPolicy:
    tenants = {name.replace("_", "/"): TenantPolicy(weight=weight) for name, weight in weights.items()}
    return a_fixed_pool(tenants=tenants, separator=separator)


def due(flows: PoolPolicy, waits: Waits) -> float:
    found = Entitlement(flows)
    for tenant, costs in waits.items():
        found.waits(tenant, *costs)
    return found.due_here()


def reckoned(flows: PoolPolicy, waits: Waits) -> float:
    """The same by walking down the tree, in fractions. A node's children are told from its name."""
    waiting = {tenant: costs for tenant, costs in waits.items() if sum(costs) > 0}
    paths = {tenant: flows.path(tenant) for tenant in waiting}

    def weight(name: str) -> Fraction:
        return Fraction(flows.tenant(name).weight)

    def under(prefix: tuple[str, ...], part: Fraction) -> Fraction:
        """What is due here of `part` of the service, which is that of the group with this path."""
        inside = {t: p for t, p in paths.items() if p[: len(prefix)] == prefix}
        names = {p[len(prefix)] for p in inside.values() if len(p) > len(prefix)}
        own = [t for t, p in inside.items() if p == prefix]
        total = sum((weight(name) for name in names), Fraction(0)) + len(own)
        found = Fraction(0)
        for tenant in own:
            found += part / total * here(tenant)
        for name in names:
            below = [p for p in inside.values() if p[: len(prefix) + 1] == (*prefix, name)]
            mine = part * weight(name) / total
            if any(len(p) > len(prefix) + 1 for p in below):
                found += under((*prefix, name), mine)
            else:
                (tenant,) = [t for t, p in inside.items() if p == (*prefix, name)]
                found += mine * here(tenant)
        return found

    def here(tenant: str) -> Fraction:
        own, others = map(Fraction, waiting[tenant])
        return own / (own + others)

    return float(under((), Fraction(1))) if waiting else 0.0


# -- by hand ---------------------------------------------------------------------------------------


def test_weights_of_those_that_wait_anywhere() -> None:
    flows = pool(a=4.0)
    assert due(flows, {"a": (100.0, 0.0), "b": (0.0, 7.0)}) == pytest.approx(0.8)
    assert due(flows, {"a": (0.0, 100.0), "b": (7.0, 0.0)}) == pytest.approx(0.2)
    assert due(flows, {"a": (0.0, 0.0), "b": (7.0, 0.0)}) == pytest.approx(1.0)
    assert due(flows, {}) == 0.0


def test_one_that_waits_at_several_replicas_is_split_by_what_waits() -> None:
    assert due(pool(), {"a": (30.0, 10.0), "b": (0.0, 5.0)}) == pytest.approx(0.375)


def test_a_group_has_its_weight_however_many_are_in_it() -> None:
    """x has 1/2 of all; two of its three wait here."""
    waits = {"x/a": (1.0, 0.0), "x/b": (1.0, 0.0), "x/c": (0.0, 1.0), "y/d": (0.0, 1.0)}
    assert due(pool("/"), waits) == pytest.approx(1 / 3)


def test_a_names_own_requests_count_one_beside_those_under_it() -> None:
    """x (weight 3) and y (1): 3/4 for x, of which half is for its own requests, whichever came first."""
    waits = {"x": (1.0, 0.0), "x/a": (0.0, 1.0), "y": (0.0, 1.0)}
    assert due(pool("/", x=3.0), waits) == pytest.approx(3 / 8)
    assert due(pool("/", x=3.0), dict(reversed(waits.items()))) == pytest.approx(3 / 8)


def test_another_policy_is_followed() -> None:
    found = Entitlement(pool())
    found.waits("a", 1.0, 0.0)
    found.waits("b", 0.0, 1.0)
    assert found.due_here() == pytest.approx(0.5)
    found.follow(pool(a=9.0))
    assert found.due_here() == pytest.approx(0.9)


# -- whoever comes and goes ------------------------------------------------------------------------

names = st.sampled_from(["x", "x/a", "x/b", "x/a/1", "x/a/2", "y", "y/a", "z/q/1", "w"])
costs = st.sampled_from([0.0, 1.0, 3.0, 250.0])
weights = st.dictionaries(st.sampled_from(["x", "x/a", "y", "z", "z/q", "w"]), st.sampled_from([0.5, 1.0, 4.0]))


@settings(deadline=None)
@given(weights, st.lists(st.tuples(names, costs, costs), max_size=40))
def test_sums_that_are_kept_are_those_of_the_whole_tree(
    weighted: dict[str, float], changes: list[tuple[str, float, float]]
) -> None:
    flows = a_fixed_pool(
        tenants={name: TenantPolicy(weight=weight) for name, weight in weighted.items()}, separator="/"
    )
    found, waits = Entitlement(flows), {}
    for tenant, here, elsewhere in changes:
        found.waits(tenant, here, elsewhere)
        waits[tenant] = (here, elsewhere)
        assert found.due_here() == pytest.approx(reckoned(flows, waits), abs=1e-9)
    for tenant in waits:
        found.waits(tenant, 0.0, 0.0)
    assert (len(found), found.groups, found.due_here()) == (0, 1, 0.0)


# -- behind and ahead ------------------------------------------------------------------------------


def test_behind_is_what_was_due_less_what_was_charged() -> None:
    """100 were charged at one replica alone, 80 of it were due there."""
    lags = Lags()
    lags.charged({"": 0.8, "b": 0.2}, {}, 0.0)
    lags.charged({"": 0.8, "b": 0.2}, {"": 100.0}, 0.1)
    assert lags.behind == pytest.approx({"": -20.0, "b": 20.0})
    assert lags.slots("", 10.0, 0.1, 1e9) == pytest.approx(-2.0)
    assert lags.slots("", 10.0, 1.0, 2.0) == pytest.approx(-1.0)  # two requests, 1 + 2 * 1 / 2 for each slot
    assert lags.slots("", 10.0, 0.1, 0.0) == lags.slots("", 0.0, 0.1, 5.0) == 0.0


def test_who_ceases_to_wait_leaves_nothing_behind() -> None:
    lags = Lags()
    lags.charged({"": 0.5, "b": 0.5}, {"": 100.0}, 0.0)
    lags.charged({"": 1.0}, {}, 0.1)
    assert lags.behind == {"": pytest.approx(0.0)}
    lags.charged({}, {}, 0.2)
    assert lags.behind == {}


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 1.0)),
            st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 1e4)),
        ),
        max_size=20,
    )
)
def test_together_they_are_neither_behind_nor_ahead(steps: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    lags = Lags()
    for at, (dues, charged) in enumerate(steps):
        lags.charged(dues, charged, 0.1 * at)
        assert lags.behind.keys() == dues.keys()
        assert sum(lags.behind.values()) == pytest.approx(0.0, abs=1e-3)
