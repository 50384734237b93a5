"""The table of docs/configuration.md: what each variable makes of the file above it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config.environment import Environment
from extproc.config.load import from_data

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
(FILE,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
ROWS = re.findall(r"^\| `(FAIRLANE__\w+)=([^`]*)` \| `([\w.-]+)(?:: ([^`]*)`|` (is gone)) \|", PAGE, re.MULTILINE)
GONE = object()


def at(data: Any, place: str) -> Any:
    for part in place.split("."):
        data = data[int(part)] if isinstance(data, list) else data.get(part, GONE)
    return data


def test_every_row_is_read() -> None:
    assert len(ROWS) == PAGE.count("| `FAIRLANE__") == 14


@pytest.mark.parametrize(
    ("name", "value", "place", "becomes", "gone"), ROWS, ids=[f"{row[0]}={row[1]}" for row in ROWS]
)
def test_what_a_variable_makes_of_the_file(name: str, value: str, place: str, becomes: str, gone: str) -> None:
    data = Environment.of({name: value}).over(FILE).data
    expected = GONE if gone else yaml.safe_load(becomes)
    assert at(data, place) == expected
    from_data(data)
    untouched = {key: part for key, part in FILE.items() if key != place.split(".")[0]}
    assert {key: data[key] for key in untouched} == untouched


def test_names_that_are_not_named_stay() -> None:
    data = Environment.of({"FAIRLANE__TENANTS": "{Team-A: {weight: 4}}"}).over(FILE).data
    assert set(data["tenants"]) == {"acme", "Team-B", "Team-A"}
    data = Environment.of({"FAIRLANE__CLASSES__BATCH__MAX_WAITING": "1"}).over(FILE).data
    assert set(data["classes"]) == {"interactive", "default", "batch"}


def test_the_longer_name_wins() -> None:
    both = {"FAIRLANE__TENANTS__ACME__WEIGHT": "5", "FAIRLANE__TENANTS": "{acme: {weight: 3}}"}
    assert Environment.of(both).over(FILE).data["tenants"]["acme"]["weight"] == 5
