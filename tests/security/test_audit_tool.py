"""What `make audit` makes of a service's answer: above all, that silence is not taken for good news."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tools"))

import audit  # isort: skip

ASKED = {"aiohttp": "3.0", "grpcio": "1.0"}
KNOWN = {"id": "PYSEC-1", "fix_versions": ["3.1", "4.0"]}
CONTROL = {"name": "jinja2", "version": "2.10", "vulns": [{"id": "PYSEC-0", "fix_versions": ["2.10.1"]}]}


def answer(*told: dict[str, Any], control: dict[str, Any] = CONTROL) -> dict[str, Any]:
    return {"dependencies": [*told, control], "fixes": []}


def clean(name: str) -> dict[str, Any]:
    return {"name": name, "version": ASKED[name], "vulns": []}


def skipped(name: str) -> dict[str, Any]:
    return {"name": name, "skip_reason": f"Dependency not found on PyPI and could not be audited: {name}"}


def test_nothing_is_known() -> None:
    found = audit.judged(answer(clean("aiohttp"), clean("grpcio")), ASKED)
    assert found == audit.Finding(0, ("nothing is known against 2 packages",))


def test_something_is() -> None:
    found = audit.judged(answer({**clean("aiohttp"), "vulns": [KNOWN]}, skipped("grpcio")), ASKED)
    assert found == audit.Finding(1, ("aiohttp 3.0: PYSEC-1, mended in 3.1, 4.0",))


def test_a_package_that_it_does_not_know_is_not_audited() -> None:
    found = audit.judged(answer(clean("aiohttp"), skipped("grpcio")), ASKED)
    assert found == audit.Finding(3, ("it knows nothing of grpcio",))


@pytest.mark.parametrize("control", [{"name": "jinja2", "skip_reason": "x"}, {**CONTROL, "vulns": []}])
def test_one_that_does_not_know_what_everybody_knows_is_not_believed(control: dict[str, Any]) -> None:
    found = audit.judged(answer(clean("aiohttp"), clean("grpcio"), control=control), ASKED)
    assert found.code == 3
    assert "jinja2 2.10" in found.lines[0]


def test_the_first_service_that_can_be_asked_has_the_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"pypi": audit.Finding(3, ("it is away",)), "osv": audit.Finding(1, ("a 1: X",))}
    monkeypatch.setattr(audit, "ask", lambda service, _: said[service])
    assert audit.audit(audit.SERVICES) == 1
    assert capsys.readouterr().out.splitlines() == ["pypi: not audited: it is away", "osv: VULNERABLE: a 1: X"]
    said["osv"] = audit.Finding(3, ("away too",))
    assert audit.audit(audit.SERVICES) == 3
    assert capsys.readouterr().out.splitlines()[-1].startswith("NOT AUDITED: ")
