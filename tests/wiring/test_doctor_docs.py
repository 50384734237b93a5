"""docs/doctor.md has every check as the table has it."""

from __future__ import annotations

import re

import pytest
import yaml
from doctor_case import ROOT

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.table import CHECKS, SUBJECTS

PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")


def section(check: Check) -> str:
    """What has to stand there."""
    return f"### {check.id}\n\n*{check.severity.value}*: {check.why}\n\n```yaml\n{check.fix}\n```\n"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_the_check_is_there(check: Check) -> None:
    assert section(check) in PAGE


def test_nothing_else_is_there_and_the_order_is_the_same() -> None:
    assert re.findall(r"^### (\S+)$", PAGE, re.MULTILINE) == [check.id for check in CHECKS]
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE)[-len(SUBJECTS) :] == list(SUBJECTS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_fix_is_yaml(check: Check) -> None:
    assert yaml.safe_load(check.fix) is None or isinstance(yaml.safe_load(check.fix), dict | list)
    assert check.why.endswith(".")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", check.id)
