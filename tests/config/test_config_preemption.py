"""Keys of preemption: off unless asked for, and what the core is told."""

from __future__ import annotations

from typing import Any

import pytest
from config_case import error, good

CLASS = {"rank": 0, "priority": 0}


def test_it_is_off() -> None:
    config = good()
    policy = config.pool_policy(config.pools[0])
    assert [(c.preemptible, c.preempt_after_s) for c in policy.classes] == [(False, None)] * 3
    assert (policy.preempt_per_s, policy.preempt_after_first_byte) == (1.0, False)


def test_what_the_core_is_told() -> None:
    config = good(
        {"preemption": {"per_second": 0.5, "after_first_byte": True}},
        classes={
            "default": {**CLASS, "preempt_after": "1500ms"},
            "batch": {"rank": 1, "priority": 1000, "preemptible": True},
        },
    )
    policy = config.pool_policy(config.pools[0])
    assert [(c.preemptible, c.preempt_after_s) for c in policy.classes] == [(False, 1.5), (True, None)]
    assert (policy.preempt_per_s, policy.preempt_after_first_byte) == (0.5, True)


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"preempt_after": 5}, "preempt_after", "a duration with its unit"),
        ({"preempt_after": "-1s"}, "preempt_after", "a duration with its unit"),
        ({"preemptible": "perhaps"}, "preemptible", "boolean"),
    ],
)
def test_keys_of_a_class(changes: dict[str, Any], place: str, words: str) -> None:
    line = error(classes={"default": {**CLASS, **changes}})
    assert line.startswith(f"classes.default.{place}: ")
    assert words in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"per_second": 0}, "greater than or equal to 0.001"),
        ({"per_second": 1001}, "less than or equal to 1000"),
        ({"per_second": float("nan")}, "finite number"),
        ({"per_minute": 1}, "unknown key"),
    ],
)
def test_keys_of_a_pool(changes: dict[str, Any], words: str) -> None:
    assert words in error({"preemption": changes})
