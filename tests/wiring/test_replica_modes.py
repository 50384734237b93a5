"""What `cluster.mode` asks of Envoy: the files for two and three replicas, what is refused, and what is said."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from doctor_case import ROOT, config
from wiring_case import EXT_PROC, addresses, cluster, filters, inside, sockets
from wiring_case import REPLICAS as TWO

from extproc.cli.envoy_config import envoy_config
from extproc.config.cluster import Mode
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.doctor import examine
from extproc.wiring.doctor.source import read_file
from extproc.wiring.mesh import envoy_gateway, istio, kgateway
from extproc.wiring.mesh.place import Place
from extproc.wiring.shipped import REPLICAS, text

MODES: tuple[Mode, ...] = ("standby", "partition", "shared")
STORE = {"addresses": ["127.0.0.1:6379"]}
NAMES = list(REPLICAS)


def mode_of(name: str) -> tuple[str, int]:
    mode, _, count = Path(name).stem.partition("-")
    return mode, int(count)


def shipped(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "envoy" / name).read_text())
    return read


# -- the files ------------------------------------------------------------------------------------


def test_there_is_one_for_each_mode_and_number() -> None:
    assert {mode_of(name) for name in NAMES} == {(mode, count) for mode in MODES for count in (2, 3)}
    assert {f"replicas/{each.name}" for each in (ROOT / "envoy" / "replicas").glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_is_made_now(name: str) -> None:
    """After a change of envoy.yaml, a Lua filter or a step: make envoy-files"""
    assert (ROOT / "envoy" / name).read_text() == text(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_command_at_its_head_makes_it(name: str, tmp_path: Path) -> None:
    head = " ".join(line[2:] for line in (ROOT / "envoy" / name).read_text().splitlines() if line.startswith("#"))
    command = head.partition("Written by: ")[2].partition(f" --output envoy/{name}")[0]
    made = tmp_path / "made.yaml"
    done = run(*shlex.split(command)[2:], "--output", str(made))
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(made.read_text()) == shipped(name)


@pytest.mark.parametrize("name", NAMES)
def test_each_replica_is_asked_for_its_health_and_has_a_log(name: str) -> None:
    mode, count = mode_of(name)
    made = shipped(name)
    replicas = sockets(cluster(made, "fairlane"))
    assert len(set(replicas)) == count
    (check,) = cluster(made, "fairlane")["health_checks"]
    assert check["grpc_health_check"] == {}
    assert (check["interval"], check["no_traffic_interval"]) == ("1s", "1s")  # Envoy's default for the second is 60 s
    logs = [sockets(cluster(made, f"fairlane-log-{number}")) for number in range(1, count + 1)]
    assert sorted(logs) == sorted([at] for at in replicas)
    (service,) = inside(filters(made)[EXT_PROC], "grpc_service")
    assert "previous_hosts" in service["retry_policy"]["retry_host_predicate"][0]["name"]
    assert (cluster(made, "fairlane").get("lb_policy") == "RING_HASH") is (mode == "partition")
    assert ("fairlane.spread.lua" in filters(made)) is (mode == "partition")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_healthy_is_enough_and_none_is_not_the_end(name: str) -> None:
    """Of 64, the most that there may be, one is 1.6 %; and at 0 Envoy would refuse when all are away."""
    threshold = cluster(shipped(name), "fairlane")["common_lb_config"]["healthy_panic_threshold"]["value"]
    assert 0 < threshold <= 100 / 64


@pytest.mark.parametrize("count", [2, 3])
def test_standby_and_shared_need_the_same_of_envoy(count: int) -> None:
    assert shipped(f"replicas/standby-{count}.yaml") == shipped(f"replicas/shared-{count}.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_finds_nothing(name: str) -> None:
    mode, count = mode_of(name)
    fairlane = config(cluster={"mode": mode, "replicas": count, "store": STORE})
    report = examine(read_file(ROOT / "envoy" / name), fairlane)
    assert {each.id for each in report.findings} == {"trusted_header", "engines_not_asked"}, report.findings


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"mode": "standby", "spread": "model"}, "leave spread out, or take the mode partition"),
        ({"mode": "partition", "spread": "requests"}, "leave spread out, or take the mode shared"),
        ({"mode": "partition", "profile": "duplex"}, "take the profile standard, strict or body"),
        ({"mode": "partition", "envoy": 36}, "take a later Envoy, or one replica"),
        ({"mode": "several"}, "cluster mode: there is no 'several'; there are single, standby, partition, shared"),
    ],
)
def test_choices_that_exclude_each_other(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        Wiring(**choices)


@pytest.mark.parametrize("choices", [{"mode": mode} for mode in MODES])
def test_one_address_is_too_few(choices: dict[str, Any]) -> None:
    with pytest.raises(WiringError, match=r"there is one address of Fairlane; give each replica's own \(--ext-proc"):
        build(Wiring(**choices), addresses())


def test_what_needs_no_log_and_no_pin_may_be_shared_behind_one_address() -> None:
    """Gateways have one Service, and their retries go to any of its pods."""
    assert build(Wiring(mode="shared", profile="body", usage="stream"), addresses()).config
    with pytest.raises(WiringError, match="both filters of the profile strict"):
        build(Wiring(mode="shared", profile="strict", usage="stream"), addresses())


def test_gateways_that_know_one_service() -> None:
    place = Place(namespace="llm", fairlane=("fairlane.fairlane.svc.cluster.local", 50_051))
    at = Addresses(ext_proc=TWO)
    for form, wiring in (
        (envoy_gateway.documents, Wiring(mode="standby")),
        (kgateway.documents, Wiring(mode="standby", profile="body", facts="none", usage="stream", pick="envoy")),
    ):
        with pytest.raises(WiringError, match="does not ask the pods of one Service whether they serve"):
            form(wiring, at, place)
    for mode in MODES:
        with pytest.raises(WiringError, match="leave the service out and give each replica's name"):
            istio.documents(Wiring(mode=mode), at, place)


# -- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(envoy_config, list(arguments))


def written(tmp_path: Path, mode: str, **more: Any) -> str:
    section = {"mode": mode, **more} | ({} if mode in ("single", "partition") else {"store": STORE})
    file = tmp_path / "fairlane.yaml"
    pools = [{"name": "a", "models": ["*"], "endpoints": ["10.0.0.1:8000"]}]
    file.write_text(yaml.safe_dump({"cluster": section, "pools": pools}))
    return str(file)


def made_for(file: str, *more: str, replicas: int = 2) -> Result:
    at = [word for number in range(replicas) for word in ("--ext-proc", f"10.0.0.{number + 7}:50051")]
    return run("--config", file, *at, *more, "--format", "yaml")


def notes(result: Result) -> Sequence[str]:
    assert result.exit_code == 0, result.output
    return [line for line in result.stderr.splitlines() if line.startswith("note: ")]


@pytest.mark.parametrize("mode", MODES)
def test_the_file_says_which_mode(mode: str, tmp_path: Path) -> None:
    done = made_for(written(tmp_path, mode))
    assert notes(done) == []
    found = cluster(yaml.safe_load(done.stdout), "fairlane")
    assert (found.get("lb_policy") == "RING_HASH") is (mode == "partition")
    assert f"(cluster.mode {mode})" in " ".join(done.stderr.split())


def test_several_of_which_each_is_single(tmp_path: Path) -> None:
    (told,) = notes(made_for(written(tmp_path, "single")))
    assert "There are 2 replicas of Fairlane and cluster.mode is single" in told
    assert notes(made_for(written(tmp_path, "single"), "--spread", "model")) == []


def test_another_number_than_the_file_has(tmp_path: Path) -> None:
    file = written(tmp_path, "shared", replicas=3)
    assert notes(made_for(file, replicas=3)) == []
    (told,) = notes(made_for(file, replicas=2))
    assert "cluster.replicas is 3, and there are 2 addresses of Fairlane" in told


def test_another_mode_than_the_file_has(tmp_path: Path) -> None:
    (told,) = notes(made_for(written(tmp_path, "standby"), "--cluster-mode", "shared"))
    assert "for the cluster mode shared, and cluster.mode of fairlane.yaml is standby" in told


@pytest.mark.parametrize("mode", MODES)
def test_the_file_wants_several_and_one_is_named(mode: str, tmp_path: Path) -> None:
    done = made_for(written(tmp_path, mode), replicas=1)
    assert done.exit_code == 1
    assert "give each replica's own (--ext-proc host:port" in done.stderr
    assert done.stdout == ""
