"""Envoy's cluster of engines gets its endpoints from where Fairlane's pools get theirs, and Envoy takes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from wiring_case import cluster, sockets

from extproc.cli.envoy_config import envoy_config
from extproc.cli.stack import envoy_binary
from extproc.config.load import from_data
from extproc.wiring import derive
from extproc.wiring.build import build, without_fairlane
from extproc.wiring.description import WiringError
from extproc.wiring.doctor import examine
from extproc.wiring.doctor.source import Source

LIST = ["10.0.0.1:8000", "[::1]:8000"]
DNS: dict[str, Any] = {"name": "engines.example", "port": 8000}


def config(*endpoints: Any) -> Any:
    pools = [{"name": f"p{i}", "models": [f"m{i}"], "endpoints": each} for i, each in enumerate(endpoints)]
    return from_data({"pools": pools})


def made(*endpoints: Any) -> dict[str, Any]:
    fairlane = config(*endpoints)
    return build(derive.wiring(fairlane), derive.addresses(fairlane)).config


def engines(*endpoints: Any) -> dict[str, Any]:
    return cluster(made(*endpoints), "vllm")


def lookup(found: dict[str, Any]) -> dict[str, Any]:
    """How a strict DNS cluster looks up its names."""
    assert "type" not in found
    config = dict(found["cluster_type"]["typed_config"])
    assert config.pop("@type").endswith("DnsCluster")
    return config


def test_a_list_is_a_static_cluster() -> None:
    assert engines(LIST)["type"] == "STATIC"
    assert sockets(engines(LIST)) == [("10.0.0.1", 8000), ("::1", 8000)]


@pytest.mark.parametrize(("record", "family"), [("a", "V4_ONLY"), ("aaaa", "V6_ONLY"), ("any", "ALL")])
def test_a_name_is_looked_up_as_fairlane_does_it(record: str, family: str) -> None:
    found = engines({"dns": {**DNS, "record": record, "interval": "500ms"}})
    assert lookup(found) == {"dns_lookup_family": family, "dns_refresh_rate": "0.5s"}
    assert sockets(found) == [("engines.example", 8000)]


def test_the_same_resolver_is_asked() -> None:
    found = engines({"dns": {**DNS, "resolver": "127.0.0.9:5353"}})
    assert sockets(lookup(found)["typed_dns_resolver_config"]) == [("127.0.0.9", 5353)]


def test_names_and_addresses_share_a_cluster() -> None:
    found = engines(LIST, {"dns": DNS}, {"dns": {"name": "b", "port": 1, "record": "aaaa"}})
    assert sockets(found["load_assignment"]) == [
        ("10.0.0.1", 8000),
        ("::1", 8000),
        ("engines.example", 8000),
        ("b", 1),
    ]
    assert lookup(found) == {"dns_lookup_family": "ALL", "dns_refresh_rate": "1s"}


def test_one_file_feeds_both() -> None:
    found = engines({"file": {"path": "/etc/fairlane/eds.yaml", "cluster": "llama"}})
    assert found["type"] == "EDS"
    assert "load_assignment" not in found
    assert found["eds_cluster_config"]["service_name"] == "llama"
    watched = found["eds_cluster_config"]["eds_config"]["path_config_source"]
    assert watched == {"path": "/etc/fairlane/eds.yaml", "watched_directory": {"path": "/etc/fairlane"}}
    assert engines({"file": "e.yaml"})["eds_cluster_config"]["service_name"] == "vllm"
    (note,) = derive.engine_notes(config({"file": "e.yaml"}))
    assert "cluster_name is vllm" in note


def test_a_service_of_kubernetes_is_looked_up_by_its_name() -> None:
    kubernetes = {"service": "engines", "namespace": "llm", "port": 8000}
    assert sockets(engines({"kubernetes": kubernetes})) == [("engines.llm.svc", 8000)]
    assert sockets(engines({"kubernetes": {"service": "engines", "port": 8000}})) == [("engines", 8000)]
    (note,) = derive.engine_notes(config({"kubernetes": kubernetes}))
    assert "clusterIP: None" in note


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        ([{"dns": {"name": "_http._tcp.e", "record": "srv"}}], "are SRV records"),
        ([{"kubernetes": {"service": "e", "port": "http"}}], "have no number as its port"),
        ([{"kubernetes": {"selector": "app=e", "port": 8000}}], "have a selector, and no Service"),
        ([{"file": "a.yaml"}, LIST], "come from a file"),
        ([{"file": "a.yaml"}, {"file": "b.yaml"}], "come from a file"),
        ([{"dns": DNS}, {"dns": {**DNS, "resolver": "127.0.0.1:5353"}}], "different resolvers"),
    ],
)
def test_what_envoy_cannot_do_is_refused_with_a_cure(endpoints: list[Any], said: str, tmp_path: Path) -> None:
    fairlane = config(*endpoints)
    with pytest.raises(WiringError, match=said):
        derive.addresses(fairlane)
    file = tmp_path / "fairlane.json"
    pools = [{"name": f"p{i}", "models": [f"m{i}"], "endpoints": each} for i, each in enumerate(endpoints)]
    file.write_text(json.dumps({"pools": pools}))
    refused = CliRunner().invoke(envoy_config, ["--config", str(file)])
    assert refused.exit_code == 1
    assert said in refused.stderr
    by_hand = CliRunner().invoke(envoy_config, ["--config", str(file), "--engine-name", "e.llm.svc:8000"])
    assert by_hand.exit_code == 0
    assert sockets(cluster(json.loads(by_hand.stdout), "vllm")) == [("e.llm.svc", 8000)]


def test_the_command_lets_envoy_retry_and_says_so() -> None:
    done = CliRunner().invoke(envoy_config, ["--engine", "10.0.0.1:8000", "--retry-turned-away"])
    assert done.exit_code == 0
    assert "retriable_status_codes" in done.stdout
    assert "x-should-retry: false" in done.stderr


def test_the_comparison_without_fairlane_has_the_same_engines() -> None:
    at = derive.addresses(config({"dns": DNS}))
    assert lookup(cluster(without_fairlane(at), "vllm"))["dns_lookup_family"] == "V4_ONLY"


SOURCES: dict[str, Any] = {
    "dns": {"dns": DNS},
    "file": {"file": "/etc/fairlane/eds.yaml"},
    "kubernetes": {"kubernetes": {"service": "engines", "namespace": "llm", "port": 8000}},
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.slow
def test_the_doctor_finds_nothing_in_what_is_made(name: str) -> None:
    fairlane = config(SOURCES[name])
    built = build(derive.wiring(fairlane), derive.addresses(fairlane))
    found = {each.id for each in examine(Source("made", built.config), fairlane).findings}
    assert found <= {"trusted_header", "engines_not_asked", "health_check_single"}


@pytest.mark.parametrize(("name", "other"), [("dns", "kubernetes"), ("kubernetes", "file"), ("file", "dns")])
def test_the_doctor_notes_another_source(name: str, other: str) -> None:
    """They may be the same engines by two names, so it is a note."""
    built = build(derive.wiring(config(SOURCES[other])), derive.addresses(config(SOURCES[other])))
    found = {each.id for each in examine(Source("made", built.config), config(SOURCES[name])).findings}
    assert found - {"trusted_header", "engines_not_asked", "health_check_single"} == {"endpoints_unknown"}


@pytest.mark.e2e
@pytest.mark.parametrize("name", SOURCES)
def test_envoy_takes_it(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    if name == "file":  # it has to be there
        eds = tmp_path / "eds.json"
        kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
        eds.write_text(json.dumps({"resources": [{"@type": kind, "cluster_name": "vllm", "endpoints": []}]}))
        source = {"file": str(eds)}
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(made(source)))
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(file), "--disable-hot-restart", "-l", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
