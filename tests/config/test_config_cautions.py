"""Thresholds and priorities that turn the order of the classes round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_case import good

from extproc.config.cautions import cautions
from extproc.config.load import load

SHIPPED = Path(__file__).resolve().parents[2] / "fairlane.yaml"


def told(pool: dict[str, Any] | None = None, **classes: dict[str, Any]) -> list[str]:
    """Classes by rank as they are given, with priorities far apart unless said otherwise."""
    named = {
        name: {"rank": rank, "priority": rank * 1000, "max_waiting": 1, **cls}
        for rank, (name, cls) in enumerate(classes.items())
    }
    config = good(pool, classes=named, default_class=next(iter(named)))
    return [f"{each.path}: {each.message}" for each in cautions(config)]


def test_nothing_is_said_of_the_defaults_and_the_shipped_file() -> None:
    assert cautions(good()) == []
    assert cautions(load(SHIPPED)) == []
    assert told(only={}) == []


@pytest.mark.parametrize(
    ("high", "low", "line"),
    [
        ({"max_waiting": 3}, {"max_waiting": 5}, "classes.low.max_waiting: {}: 5 against 3"),
        ({"gates": {"max_waiting": 2}}, {"gates": {"max_waiting": 3}},
         "classes.low.gates.max_waiting: {}: 3 against 2"),
        ({"gates": {"max_tpot": "120ms"}}, {}, "classes.low.gates.max_tpot: {}: none against 120ms"),
        ({"gates": {"max_ttft": "2s"}}, {"gates": {"max_ttft": "5m"}}, "classes.low.gates.max_ttft: {}: 5m against 2s"),
        ({"gates": {"max_kv_usage": 0.8}}, {"gates": {"max_kv_usage": 0.9}},
         "classes.low.gates.max_kv_usage: {}: 0.9 against 0.8"),
        ({"when": "idle"}, {}, "classes.low.when: {}: always against idle"),
        ({"priority": 100}, {"priority": 50},
         "classes.low.priority: {}: 50 against 100; engines run the lower number first"),
        ({"priority": 100}, {"priority": 103},
         "classes.low.priority: {}: 103 against 100; a tenant's numbers go up by as many as 3 (priority_steps), so "
         "bases belong 4 apart"),
    ],
)  # fmt: skip
def test_a_lower_class_that_passes_a_higher_one(high: dict[str, Any], low: dict[str, Any], line: str) -> None:
    assert told(high=high, low=low) == [line.format("lets class low pass class high, which goes first")]


@pytest.mark.parametrize(
    ("high", "low"),
    [
        ({"max_waiting": 5}, {"max_waiting": 5}),
        ({"max_waiting": 0}, {"max_waiting": 3, "when": "idle"}),  # it waits until nothing waits there
        ({}, {"gates": {"max_tpot": "1ms"}}),
        ({"gates": {"max_tpot": "1s"}}, {"gates": {"max_tpot": "1s"}}),
        ({"priority": 100}, {"priority": 104}),  # 100 to 103, and 104 to 107
        ({"max_in_flight": 1}, {}),
    ],
)
def test_a_lower_class_that_does_not(high: dict[str, Any], low: dict[str, Any]) -> None:
    assert told(high=high, low=low) == []


def test_each_class_is_compared_with_the_strictest_above_it() -> None:
    assert told(a={"max_waiting": 4}, b={"max_waiting": 2}, c={"max_waiting": 3}) == [
        "classes.c.max_waiting: lets class c pass class b, which goes first: 3 against 2"
    ]


def test_priorities_count_by_the_pool_with_the_most_steps_that_tells_any() -> None:
    close = {"high": {"priority": 0}, "low": {"priority": 5}}
    assert told({"priority_steps": 5}, **close) == []
    assert len(told({"priority_steps": 6}, **close)) == 1
    assert told({"priority_steps": 6, "priority_via": "off"}, **close) == []


def test_what_is_for_requests_that_wait_where_none_does() -> None:
    observed = good({"mode": "observe", "traffic": "paused"}, recording={"file": "traffic.jsonl"})
    assert [f"{each.path}: {each.message}" for each in cautions(observed)] == [
        "pools.sim.traffic: is paused, and holds nothing up while its mode is observe: requests pass",
        "recording.file: records what waits its turn, and no pool is in mode enforce",
    ]
    assert cautions(good({"traffic": "paused"}, recording={"file": "traffic.jsonl"})) == []


def test_an_objective_that_cannot_be_missed() -> None:
    assert told(only={"wait_objective": "60s", "queue_timeout": "60s"}) == [
        "classes.only.wait_objective: is 1m, and what waits is refused after 1m (queue_timeout)"
    ]
    assert told(only={"wait_objective": "59s", "queue_timeout": "60s"}) == []
