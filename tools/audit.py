"""Known vulnerabilities of what Fairlane runs with, as far as a service that knows them can be asked: `make audit`.

`pip-audit` asks the package index (its JSON API) or OSV. An index that has no such API makes it skip every package and
say that all is well; so one is asked about as well that is known to be vulnerable. Where that is not found, nothing was
audited, and this says so.

    python tools/audit.py [--service pypi|osv]      default: pypi, then osv

Exit codes: 0 nothing known; 1 something is; 3 not audited, since no service could be asked or not about all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime_packages import runtime_packages

FINE, VULNERABLE, NOT_AUDITED = 0, 1, 3
CONTROL = ("jinja2", "2.10")  # a way out of its sandbox has been known since 2019
SERVICES = ("pypi", "osv")
_WITHIN_S = 300


@dataclass(frozen=True)
class Finding:
    """What came of asking one service."""

    code: int
    lines: tuple[str, ...]


def judged(answer: Mapping[str, Any], asked: Mapping[str, str]) -> Finding:
    """`answer`: pip-audit's JSON, about `asked` (name -> version) and the control."""
    told = {each["name"]: each for each in answer["dependencies"]}
    if not told.get(CONTROL[0], {}).get("vulns"):
        name, version = CONTROL
        return Finding(
            NOT_AUDITED, (f"it does not know that {name} {version} is vulnerable, so its word means nothing",)
        )
    lines = [
        f"{name} {asked[name]}: {known['id']}, mended in {', '.join(known.get('fix_versions', ())) or 'no version yet'}"
        for name in asked
        for known in told.get(name, {}).get("vulns", ())
    ]
    if lines:
        return Finding(VULNERABLE, tuple(lines))
    unknown = [name for name in asked if "vulns" not in told.get(name, {})]
    if unknown:
        return Finding(NOT_AUDITED, (f"it knows nothing of {', '.join(unknown)}",))
    return Finding(FINE, (f"nothing is known against {len(asked)} packages",))


def ask(service: str, asked: Mapping[str, str]) -> Finding:
    pins = "".join(f"{name}=={version}\n" for name, version in (*asked.items(), CONTROL))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pins.txt"
        file.write_text(pins)
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command += ["-f", "json", "-s", service, "-r", str(file)]
        try:
            made = subprocess.run(  # noqa: S603 - our own words
                command, capture_output=True, text=True, timeout=_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Finding(NOT_AUDITED, (f"no answer within {_WITHIN_S} s",))
    try:
        answer = json.loads(made.stdout)
    except ValueError:
        last = (made.stderr.strip().splitlines() or ["no answer"])[-1]
        return Finding(NOT_AUDITED, (last[:300],))
    return judged(answer, asked)


def audit(services: Sequence[str]) -> int:
    asked = {name: package.version for name, package in runtime_packages().items()}
    for service in services:
        finding = ask(service, asked)
        word = {FINE: "fine", VULNERABLE: "VULNERABLE", NOT_AUDITED: "not audited"}[finding.code]
        for line in finding.lines:
            print(f"{service}: {word}: {line}")
        if finding.code != NOT_AUDITED:
            return finding.code
    print("NOT AUDITED: no service that knows vulnerabilities could be asked from here; run it where one can")
    return NOT_AUDITED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", choices=SERVICES)
    options = parser.parse_args()
    sys.exit(audit([options.service] if options.service else SERVICES))


if __name__ == "__main__":
    main()
