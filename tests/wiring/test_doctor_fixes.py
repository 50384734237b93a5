"""Envoy itself takes every fix that the doctor gives, where it is to be merged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from doctor_case import apply, config, findings, spoilt
from test_doctor_checks import CASES, Case

from extproc.cli.stack import envoy_binary

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# One of each kind: the others differ in place alone.
ONCE = list({case.id: case for case in CASES if case.mends}.values())


@pytest.mark.parametrize("case", ONCE, ids=lambda case: case.id)
def test_envoy_takes_the_fix(case: Case, tmp_path: Path) -> None:
    envoy, fairlane = spoilt(case.spoil), config(**case.config)
    for found in findings(envoy, fairlane):
        if found.id == case.id:
            apply(envoy, found)
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(envoy.data))
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(file), "--disable-hot-restart", "-l", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
