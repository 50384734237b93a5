"""compose.yaml: valid by the Compose specification, and its commands are commands that exist.

No container engine is needed, and none is used."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from compose_pydantic import ComposeSpecification

from extproc.cli.main import main
from extproc.config.load import load
from extproc.config.units import split_host_port

ROOT = Path(__file__).parents[2]
FAIRLANE = ("engine-1", "engine-2", "fairlane", "wiring")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    data = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert isinstance(data, dict)
    return data


def test_it_follows_the_specification(compose: dict[str, Any]) -> None:
    # `x-...` keys are free by the specification; the model generated from its schema does not know that.
    parsed = ComposeSpecification.model_validate({k: v for k, v in compose.items() if not k.startswith("x-")})
    assert set(parsed.services or {}) == {*FAIRLANE, "envoy"}


def test_the_check_finds_a_wrong_key() -> None:
    wrong = {"services": {"x": {"image": "x", "comand": ["serve"]}}}
    with pytest.raises(ValueError, match="comand"):
        ComposeSpecification.model_validate(wrong)


@pytest.mark.parametrize("name", FAIRLANE)
def test_each_command_exists_with_its_options(compose: dict[str, Any], name: str) -> None:
    command: click.Command = main
    args = list(compose["services"][name]["command"])
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), args.pop(0))
        assert found is not None
        command = found
    command.make_context(name, args)  # raises on an unknown option or a bad value


def test_what_a_service_waits_for_is_there_and_tells_when_it_is_ready(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[other]["restart"] == "no"


def test_nothing_is_root_and_nothing_is_writable(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["user"].split(":")[0] != "0"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["image"].partition(":")[2] not in ("", "latest")


def test_fairlane_envoy_and_the_network_agree_on_the_engines(compose: dict[str, Any]) -> None:
    config = load(ROOT / "deploy/compose/fairlane.yaml")
    services = compose["services"]
    network = ipaddress.ip_network(compose["networks"]["mesh"]["ipam"]["config"][0]["subnet"])
    engines = [services[name]["networks"]["mesh"]["ipv4_address"] for name in ("engine-1", "engine-2")]
    assert all(ipaddress.ip_address(address) in network for address in engines)
    assert [split_host_port(e)[0] for e in config.pools[0].endpoints.known] == engines
    result = CliRunner().invoke(main, services["wiring"]["command"])
    assert result.exit_code == 0, result.output
    clusters = {c["name"]: c for c in json.loads(result.output)["static_resources"]["clusters"]}
    lb = clusters["vllm"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    sockets = [e["endpoint"]["address"]["socket_address"] for e in lb]
    assert [f"{s['address']}:{s['port_value']}" for s in sockets] == config.pools[0].endpoints.known
    fairlane = clusters["fairlane"]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert fairlane["socket_address"]["address"] == services["fairlane"]["networks"]["mesh"]["ipv4_address"]
    assert fairlane["socket_address"]["port_value"] == split_host_port(config.listen.ext_proc)[1]


def test_the_files_that_are_mounted_are_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).is_file()


def test_the_image_has_what_the_wheel_needs() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    for line in (ROOT / "deploy/Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
