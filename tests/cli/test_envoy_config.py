"""`fairlane envoy-config`: what it takes, what it writes, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from extproc.cli.envoy_config import envoy_config

ENGINE = ["--engine", "10.0.0.1:8000"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(envoy_config, list(arguments))


@pytest.fixture
def fairlane_yaml(tmp_path: Path) -> str:
    file = tmp_path / "fairlane.yaml"
    file.write_text(
        "listen: {ext_proc: '10.0.0.7:6000'}\n"
        "pools: [{name: a, models: ['*'], endpoints: ['10.0.0.1:8000', '10.0.0.2:8000'], priority_via: body}]\n"
        "requests: {max_body: 1MiB, queued: [/v1/completions]}\n"
    )
    return str(file)


@pytest.mark.parametrize("engine", ["localhost:1", "vllm-0.vllm:8000", "10.0.0.1", "[fe80::1%eth0]:80"])
def test_an_engine_is_an_address_since_envoy_ignores_names(engine: str) -> None:
    result = run(*ENGINE, "--engine", engine)
    assert result.exit_code == 2
    assert (
        f"Invalid value for '--engine': {engine!r} is not ip:port: Envoy matches Fairlane's choice by address, "
        "and would ignore a name"
    ) in result.stderr
    assert result.stdout == ""


def test_engines_stand_in_the_list_as_fairlane_will_name_them() -> None:
    result = run(*ENGINE, "--engine", "[0::1]:8000", "--ext-proc", "fairlane:50051")
    assert result.exit_code == 0
    assert result.stderr == ""
    clusters = {c["name"]: c for c in json.loads(result.stdout)["static_resources"]["clusters"]}
    listed = [
        e["endpoint"]["address"]["socket_address"]
        for e in clusters["vllm"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert listed == [{"address": "10.0.0.1", "port_value": 8000}, {"address": "::1", "port_value": 8000}]
    assert clusters["vllm"]["type"] == "STATIC"
    assert clusters["fairlane"]["type"] == "STRICT_DNS"  # Fairlane itself may have a name


def test_what_differs_is_said_beside_the_configuration() -> None:
    result = run(*ENGINE, "--profile", "strict", "--envoy-version", "1.36.4")
    assert result.exit_code == 0
    kinds = [line.partition(":")[0] for line in result.stderr.splitlines()]
    assert kinds == ["differs", "degraded", "degraded", "degraded"]
    assert "fairlane.hold" in result.stdout


def test_the_file_of_fairlane_says_the_rest(fairlane_yaml: str) -> None:
    result = run("--config", fairlane_yaml)
    assert result.exit_code == 0
    assert "fairlane.append.lua" in result.stdout
    assert '"request_body_buffer_limit": 1048576' in result.stdout
    for address in ('"10.0.0.7"', '"10.0.0.1"', '"10.0.0.2"'):
        assert address in result.stdout
    assert "fairlane.append.lua" not in run("--config", fairlane_yaml, "--no-append").stdout
    assert '"10.0.0.2"' not in run("--config", fairlane_yaml, *ENGINE).stdout


@pytest.mark.parametrize(
    ("options", "reads"),
    [(["--format", "yaml"], yaml.safe_load), (["--format", "json"], json.loads), ([], yaml.safe_load)],
)
def test_it_writes_a_file_in_the_form_of_its_name(tmp_path: Path, options: list[str], reads: object) -> None:
    file = tmp_path / "out.yaml"
    assert run(*ENGINE, "--output", str(file), *options).exit_code == 0
    assert reads(file.read_text()) == json.loads(run(*ENGINE).stdout)  # type: ignore[operator]
    is_json = options == ["--format", "json"]
    assert file.read_text().startswith("{" if is_json else "# Envoy for Fairlane: profile standard")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no engines: name them with --engine, or give fairlane.yaml with --config"),
        ([*ENGINE, "--envoy-version", "1.35"], "Envoy 1.35: configurations are made and tested for 1.36 to 1.40"),
        ([*ENGINE, "--envoy-version", "latest"], "'latest' is no version of Envoy"),
        ([*ENGINE, "--facts", "none"], "take facts json, or the profile body"),
        ([*ENGINE, "--profile", "body", "--append"], "Fairlane itself edits the body"),
        (["--config", "/does/not/exist.yaml"], "/does/not/exist.yaml"),
        (
            [*ENGINE, "--output", "/does/not/exist/out.yaml"],
            "/does/not/exist/out.yaml: cannot be written: No such file",
        ),
    ],
)
def test_what_cannot_be_says_why(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""
