"""How an engine is told a priority."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import a_config

from extproc.core.priority import PriorityWay
from extproc.edge.ways import Ways, number

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
HEADER, BODY, NONE = PriorityWay(header=True), PriorityWay(body=True, high_first=True), PriorityWay()


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({}, HEADER),
        ({"priority_via": "auto"}, HEADER),
        ({"priority_via": "header"}, HEADER),
        ({"priority_via": "body"}, PriorityWay(body=True)),
        ({"priority_via": "both"}, PriorityWay(header=True, body=True)),
        ({"priority_via": "off"}, NONE),
        ({"priority_via": "off", "priority_order": "high_first"}, NONE),
        ({"priority_via": "body", "engine": "sglang"}, BODY),
        ({"priority_via": "body", "engine": "sglang", "priority_order": "low_first"}, PriorityWay(body=True)),
        ({"priority_via": "body", "engine": "vllm", "priority_order": "high_first"}, BODY),
    ],
)
def test_what_the_configuration_says_until_more_is_known(changes: dict[str, Any], way: PriorityWay) -> None:
    ways = Ways.configured(a_config(pool=changes).pools[0])
    assert (ways.of(A), ways.common) == (way, way)


def test_each_endpoint_has_its_own() -> None:
    ways = Ways()
    ways.set(A, BODY)
    assert (ways.of(A), ways.of(B)) == (BODY, HEADER)
    ways.drop(A)
    ways.drop(A)
    assert ways.of(A) == HEADER


def test_what_nobody_knows_is_told_as_all_agree_or_by_the_header_alone() -> None:
    ways = Ways(NONE)
    assert ways.common == NONE
    ways.set(A, BODY)
    assert ways.common == BODY
    ways.set(B, BODY)
    assert ways.common == BODY
    ways.set(B, NONE)
    assert ways.common == HEADER
    ways.drop(A)
    assert ways.common == NONE
    ways.drop(B)
    assert ways.common == NONE


@pytest.mark.parametrize(
    ("way", "priority", "told"),
    [
        (HEADER, 1_000_003, 1_000_003),
        (HEADER, -7, -7),
        (BODY, 1_000_003, -1_000_003),
        (BODY, -7, 7),
        (BODY, 0, 0),
        (HEADER, 2**70, 2**63 - 1),
        (BODY, 2**70, -(2**63 - 1)),
        (BODY, -(2**70), 2**63 - 1),
    ],
)
def test_the_number_that_is_told(way: PriorityWay, priority: int, told: int) -> None:
    assert number(way, priority) == told
