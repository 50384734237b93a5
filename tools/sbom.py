"""The bill of materials of what Fairlane runs with, as CycloneDX 1.6: `make sbom`.

`cyclonedx-py` reads the installed packages; kept are those of `runtime_packages`, with their versions, licences and who
needs whom. Each licence is one SPDX expression, and must be one that goes with Apache-2.0. Addresses of package indexes
and paths of this machine are taken out. The result is validated against CycloneDX' schema.

    python tools/sbom.py [FILE]     default: build/sbom.cdx.json

Exit code 1: a licence that is not known or does not go with ours, or a result that is not valid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import LicenseSymbol, get_spdx_licensing
from packaging.utils import canonicalize_name
from runtime_packages import EXTRAS, required_by, runtime_packages

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "build" / "sbom.cdx.json"
_VERSION = "1.6"

# Permissive, or (MPL) such that ask for nothing of those who use the package as it is.
COMPATIBLE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
# Read in the licence file of a package whose metadata say nothing that can be read by a program.
READ = {"protobuf": "BSD-3-Clause"}
_CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_SPDX = get_spdx_licensing()


class LicenceError(Exception):
    """The message names the package and its licence."""


def installed() -> dict[str, Any]:
    """What `cyclonedx-py` says of the environment that this runs in."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--short-PURLs", "--output-reproducible"]
    command += ["--sv", _VERSION, "--pyproject", str(ROOT / "pyproject.toml"), sys.executable]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603 - our own words
    bom: dict[str, Any] = json.loads(made.stdout)
    return bom


def licence_of(component: dict[str, Any]) -> str:
    """One SPDX expression. Raises LicenceError where none can be told."""
    name = canonicalize_name(component["name"])
    if name in READ:
        return READ[name]
    told: list[str] = []
    for each in component.get("licenses", ()):
        licence = each.get("license", {})
        told.append(each.get("expression") or licence.get("id") or _CLASSIFIERS.get(licence.get("name", ""), ""))
    known = sorted({one for one in told if one})
    if not known:
        raise LicenceError(f"{name}: no licence that can be read; read its licence file and add it to READ")
    return " AND ".join(f"({one})" if " " in one and len(known) > 1 else one for one in known)


def compatible(expression: str) -> bool:
    """Whether what the expression asks for can be had with licences that go with Apache-2.0."""
    parsed = _SPDX.parse(expression, validate=True)

    def fits(part: Any) -> bool:
        if isinstance(part, LicenseSymbol):
            return part.key in COMPATIBLE
        choose = any if isinstance(part, _SPDX.OR) else all
        return choose(fits(each) for each in part.args)

    return fits(parsed)


def reduced(bom: dict[str, Any]) -> dict[str, Any]:
    """The part of it that Fairlane runs with. Raises LicenceError."""
    wanted = runtime_packages()
    components = []
    for component in bom["components"]:
        name = canonicalize_name(component["name"])
        if name not in wanted:
            continue
        licence = licence_of(component)
        if not compatible(licence):
            raise LicenceError(f"{name}: {licence} does not go with Apache-2.0")
        kept = ("type", "bom-ref", "name", "version", "description", "purl")
        told = {key: component[key] for key in kept if key in component}
        components.append({**told, "licenses": [{"expression": licence}]})
    refs = {component["bom-ref"] for component in components}
    root = bom["metadata"]["component"]
    needs = {
        each["ref"]: [ref for ref in each.get("dependsOn", ()) if ref in refs]
        for each in bom["dependencies"]
        if each["ref"] in refs
    }
    direct = required_by("fairlane", EXTRAS)
    needs[root["bom-ref"]] = [c["bom-ref"] for c in components if canonicalize_name(c["name"]) in direct]
    dependencies = [{"ref": ref, **({"dependsOn": on} if on else {})} for ref, on in sorted(needs.items())]
    return {
        "$schema": bom["$schema"],
        "bomFormat": bom["bomFormat"],
        "specVersion": bom["specVersion"],
        "version": 1,
        "metadata": {"component": root, "properties": [{"name": "fairlane:extras", "value": "fast,otel,cluster"}]},
        "components": components,
        "dependencies": dependencies,
    }


def checked(bom: dict[str, Any]) -> str:
    """As text. Raises ValueError where it is not CycloneDX."""
    text = json.dumps(bom, indent=2, ensure_ascii=False) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"not valid CycloneDX {_VERSION}: {error}")
    return text


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    try:
        bom = reduced(installed())
        text = checked(bom)
    except (LicenceError, ValueError) as error:
        raise SystemExit(f"sbom: {error}") from None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"{os.path.relpath(file)}: {len(bom['components'])} packages")


if __name__ == "__main__":
    main()
