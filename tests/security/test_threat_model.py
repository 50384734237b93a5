"""docs/security.md: each line has a test, and each test that it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tools"))

from runtime_packages import runtime_packages  # isort: skip

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`([a-z0-9_]+/test_[a-z0-9_]+\.py)::(\*|test_[a-z0-9_]+)`")
_SURFACES = 10  # tables whose last column is `test`
_LEAST = 90  # lines of them


class Line(NamedTuple):
    section: str
    first: str
    tests: tuple[tuple[str, str], ...]  # file below tests/, name


def lines() -> Iterator[Line]:
    """Of all tables with a column `test`."""
    section, columns = "", 0
    for text in PAGE.read_text().splitlines():
        if text.startswith("## "):
            section, columns = text[3:], 0
        elif not text.startswith("|"):
            columns = 0
        elif text.endswith("| test |"):
            columns = text.count("|")
        elif columns and not text.startswith("|---"):
            assert text.count("|") == columns, f"another number of columns: {text}"
            cells = [cell.strip() for cell in text.strip("|").split("|")]
            yield Line(section, cells[0], tuple(_NAMED.findall(cells[-1])))


def test_every_line_has_a_test() -> None:
    found = list(lines())
    assert [line for line in found if not line.tests] == []
    assert len({line.section for line in found}) == _SURFACES
    assert len(found) >= _LEAST


@pytest.mark.slow
def test_every_test_that_is_named_is_collected() -> None:
    named = {one for line in lines() for one in line.tests}
    files = sorted({f"tests/{file}" for file, _ in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    listed = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert listed.returncode == 0, listed.stdout[-3000:] + listed.stderr[-3000:]
    collected = {
        (file.removeprefix("tests/"), name.partition("[")[0])
        for file, _, name in (line.partition("::") for line in listed.stdout.splitlines())
        if name
    }
    with_any = {(file, "*") for file, _ in collected}
    assert sorted(named - collected - with_any) == []


def test_the_test_of_all_of_it_is_named() -> None:
    assert "`security/test_mad_client.py`" in PAGE.read_text()


def test_every_package_that_it_runs_with_is_pinned() -> None:
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    }
    assert {name: package.version for name, package in runtime_packages().items()}.items() <= pins.items()


def test_keys_that_are_named_are_in_the_shipped_file() -> None:
    """As `section.key`, where it stands for itself."""
    shipped = (ROOT / "fairlane.yaml").read_text()
    named = re.findall(r"`((?:requests|admin|pools|classes|tenants|telemetry|listen)\.[a-z_.*]+)`", PAGE.read_text())
    assert len(named) > 15
    for key in named:
        assert re.search(rf"\b{key.rpartition('.')[2]}\b", shipped), key


def test_defaults_that_are_told_are_those_of_the_shipped_file() -> None:
    shipped = (ROOT / "fairlane.yaml").read_text()
    told = re.findall(r"`(?:requests|pools|admin)\.([a-z_]+)`,? (\d+[A-Za-z]*)", PAGE.read_text())
    assert len(told) >= 7
    for key, value in told:
        assert re.search(rf"\b{key}: {value}\b", shipped), f"{key} {value}"


_CONSTANT = re.compile(r"^\| ([^|]+) \| `(extproc\.[a-z_.]+)\.((?:[A-Z][A-Za-z]+\.)?[A-Za-z_]+)` \| ([\d,]+) \|$", re.M)
_OF_CODE = 29  # lines of the table of constants


def test_constants_that_are_told_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    told = _CONSTANT.findall(page)
    assert len(told) == page.count("| `extproc.") == _OF_CODE
    for what, module, name, value in told:
        holder, _, last = name.rpartition(".")
        owner = getattr(import_module(module), holder)() if holder else import_module(module)  # by default
        assert getattr(owner, last) == int(value.replace(",", "")), f"{what}: {module}.{name}"


def test_numbers_of_what_can_grow_have_a_constant_or_a_key() -> None:
    """A number of four digits and more, and each one that is a bound by itself."""
    section = PAGE.read_text().partition("## What a client can make grow")[2].partition("### The constants")[0]
    constants = {value for *_, value in _CONSTANT.findall(PAGE.read_text())}
    bounds = [line.split("|")[3] for line in section.splitlines() if line.startswith("|") and line.count("|") == 6]
    numbers = {number for bound in bounds for number in re.findall(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?!\d)", bound)}
    numbers |= {bound.strip() for bound in bounds if bound.strip().isdigit()}
    assert len(numbers) >= 10
    assert numbers - constants == set()
