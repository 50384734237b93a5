"""`fairlane envoy-config`: which addresses it takes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from extproc.cli.envoy_config import envoy_config


@pytest.mark.parametrize("engine", ["localhost:1", "vllm-0.vllm:8000", "10.0.0.1", "[fe80::1%eth0]:80"])
def test_an_engine_is_an_address_since_envoy_ignores_names(engine: str) -> None:
    result = CliRunner().invoke(envoy_config, ["--engine", "10.0.0.1:8000", "--engine", engine])
    assert result.exit_code == 2
    assert (
        f"Invalid value for '--engine': {engine!r} is not ip:port: Envoy matches Fairlane's choice by address, "
        "and would ignore a name"
    ) in result.stderr
    assert result.stdout == ""


def test_engines_stand_in_the_list_as_fairlane_will_name_them() -> None:
    result = CliRunner().invoke(
        envoy_config, ["--engine", "10.0.0.1:8000", "--engine", "[0::1]:8000", "--ext-proc", "fairlane:50051"]
    )
    assert result.exit_code == 0
    clusters = {c["name"]: c for c in json.loads(result.stdout)["static_resources"]["clusters"]}
    listed = [e["endpoint"]["address"]["socket_address"]
              for e in clusters["vllm"]["load_assignment"]["endpoints"][0]["lb_endpoints"]]  # fmt: skip
    assert listed == [{"address": "10.0.0.1", "port_value": 8000}, {"address": "::1", "port_value": 8000}]
    assert clusters["vllm"]["type"] == "STATIC"
    assert clusters["fairlane"]["type"] == "STRICT_DNS"  # Fairlane itself may have a name
