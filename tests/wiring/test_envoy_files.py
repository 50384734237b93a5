"""The files in envoy/: that they are what is made now, and that Envoy takes them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from wiring_case import REPLICAS, addresses

from extproc.cli.stack import envoy_binary
from extproc.wiring import base_file
from extproc.wiring.build import build, without_fairlane
from extproc.wiring.description import Wiring
from extproc.wiring.shipped import REPLICAS as MODES
from extproc.wiring.shipped import SHIPPED, text
from extproc.wiring.text import as_json, as_yaml

OWN = ("*/chat/completions", "/v1/audio/translations", "/a.b", *(f"/long/path/{i}" for i in range(9)))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_are_what_is_made_now(name: str) -> None:
    """After a change of envoy.yaml, a Lua filter or a step: make envoy-files"""
    assert (Path(__file__).parents[2] / "envoy" / name).read_text() == text(name)


def test_words_and_numbers_stay_text_in_yaml() -> None:
    strings = [
        "n",
        "y",
        "N",
        "Yes",
        "no",
        "on",
        "OFF",
        "true",
        "null",
        "~",
        "12",
        "1e5",
        "1_0",
        "0x1F",
        ".inf",
        "0o7",
        "1:30",
        "",
        " a",
        "a: b",
        "# c",
        "a\nb\n",
        "0s",
        "0.5s",
        "-",
        "ü",
        "x" * 300 + " y",
    ]
    written = as_yaml({"values": strings, "n": 1, "more": {"on": True}}, ["Head."])
    assert written.startswith("# Head.\n\n")
    assert yaml.safe_load(written) == {"values": strings, "n": 1, "more": {"on": True}}
    for word in ("n", "y", "N", "Yes", "no", "on", "OFF", "12", "1e5"):
        assert f'- "{word}"\n' in written
    assert '"n": 1\n' in written


def envoy() -> Path:
    return Path(os.environ.get("FAIRLANE_TEST_ENVOY") or envoy_binary())


def minor() -> int:
    done = subprocess.run([envoy(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    return int(re.findall(r"/1\.(\d+)\.", done.stdout)[0])


def assert_valid(file: Path) -> None:
    done = subprocess.run(
        [envoy(), "--mode", "validate", "--config-path", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["envoy.yaml", *SHIPPED, *MODES])
def test_envoy_accepts_the_files(name: str) -> None:
    """As a user runs them, read by Envoy's own YAML reader; on an older Envoy those that say so at their head."""
    version = minor()
    oldest = 38 if name == "envoy.yaml" else (SHIPPED | MODES)[name][1].oldest_envoy
    if version < oldest:
        pytest.skip(f"made for Envoy 1.{oldest} and later")
    assert_valid(base_file.path() if name == "envoy.yaml" else Path(__file__).parents[2] / "envoy" / name)


@pytest.mark.e2e
def test_envoy_accepts_paths_of_ones_own_and_replicas(tmp_path: Path) -> None:
    version = minor()
    long = tuple(f"/{'x' * 77}/{i}" for i in range(3))
    for profile in ("standard", "strict", "body", "duplex"):
        wiring = Wiring(profile=profile, queued=(*OWN, *long), envoy=version, first_byte=True)
        file = tmp_path / f"{profile}.json"
        replicas = REPLICAS[:1] if (profile, version) == ("strict", 36) else REPLICAS
        file.write_text(as_json(build(wiring, addresses(ext_proc=replicas)).config))
        assert_valid(file)
    file.write_text(as_json(without_fairlane(addresses())))
    if version >= 37:
        assert_valid(file)
