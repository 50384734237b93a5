"""Each test that the page of faults names exists."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "operations.md"


def test_its_tests_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+)(?:\[[\w ]+\])?)?`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, function in named:
        assert f"async def {function}" in (HERE / file).read_text(encoding="utf-8"), (file, function)


def test_each_fault_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for file in HERE.glob("test_fault_*.py"):
        if file.name != Path(__file__).name:
            assert f"`{file.name}" in page, file.name
