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


@pytest.mark.slow
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


@pytest.mark.parametrize("option", ["--listener", "--envoy-admin"])
@pytest.mark.parametrize("at", ["localhost:10000", "envoy.example:80", "[fe80::1%eth0]:80", "0.0.0.0", "1.2.3:80"])
def test_envoy_listens_at_an_address(option: str, at: str) -> None:
    result = run(*ENGINE, option, at)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {at!r} is not ip:port, like 0.0.0.0:10000" in result.stderr
    assert result.stdout == ""


def test_envoy_listens_at_every_address_and_at_ipv6() -> None:
    config = json.loads(run(*ENGINE, "--listener", "[::]:10000", "--envoy-admin", "0.0.0.0:9901").stdout)
    (listener,) = config["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "::", "port_value": 10000}
    assert config["admin"]["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 9901}


@pytest.mark.parametrize("option", ["--ext-proc", "--engine-name"])
@pytest.mark.parametrize("host", ["a b", "a\nb", "-a", "ä", "http://a"])
def test_what_is_looked_up_is_a_name_in_dns(option: str, host: str) -> None:
    result = run(*ENGINE, option, f"{host}:80")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {host!r} is neither an address nor a name in DNS" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*ENGINE, *ENGINE], "--engine, --engine-name: named twice: 10.0.0.1:8000"),
        (["--engine", "[::1]:1", "--engine", "[0::1]:1"], "--engine, --engine-name: named twice: [::1]:1"),
        (["--engine-name", "E.llm:1", "--engine-name", "e.llm:1"], "named twice: e.llm:1"),
        ([*ENGINE, "--ext-proc", "f:1", "--ext-proc", "g:1", "--ext-proc", "f:1"], "--ext-proc: named twice: f:1"),
    ],
)
def test_an_address_stands_there_once(options: list[str], said: str) -> None:
    result = run(*options)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""


OBJECTS = "istio, envoy-gateway, kgateway"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["static", "xds", "istio", "envoy-gateway", "kgateway"])
@pytest.mark.parametrize(
    ("option", "value", "takers"),
    [
        ("--listener", "127.0.0.1:10000", "static, xds"),  # its default, and given all the same
        ("--envoy-admin", "127.0.0.1:9901", "static, xds"),
        ("--engine", "10.0.0.9:8000", "static, xds"),
        ("--engine-name", "e.llm:8000", "static, xds"),
        ("--namespace", "llm", OBJECTS),
        ("--gateway", "llm", OBJECTS),
        ("--host", "llm.example.com", OBJECTS),
        ("--engines-service", "vllm.llm.svc.cluster.local:8000", OBJECTS),
        ("--fairlane-service", "fairlane.fairlane.svc.cluster.local:50051", OBJECTS),
        ("--gateway-listener", "http", "envoy-gateway, kgateway"),
        ("--selector", "istio=ingressgateway", "istio"),
        ("--folder", "/etc/envoy", "xds"),
    ],
)
def test_a_form_refuses_what_it_would_not_look_at(
    form: str, option: str, value: str, takers: str, fairlane_yaml: str
) -> None:
    # enough for every form to be made
    options = ["--form", form, "--profile", "body", "--facts", "none", "--usage", "stream", "--config", fairlane_yaml]
    Path(fairlane_yaml).write_text(Path(fairlane_yaml).read_text().replace("priority_via: body", "pick: {by: envoy}"))
    if form in OBJECTS and option != "--fairlane-service":
        options += ["--fairlane-service", "fairlane.fairlane.svc.cluster.local:50051"]
    result = run(*options, option, value)
    if form in takers.split(", "):
        assert result.exit_code == 0, result.stderr
    else:
        assert result.exit_code == 1
        assert f"{option}: the form {form} has no use for it, only {takers}; leave it out" in result.stderr
        assert result.stdout == ""
