"""The files of the other forms: that they are what is made now, and what stands in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from wiring_case import ENGINES, addresses, filters, inside

from extproc.cli.main import main
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.mesh import istio, xds
from extproc.wiring.mesh.place import Place
from extproc.wiring.shipped import MESHES, meshes

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "envoy"
ENGINE = ["--engine", "127.0.0.1:8001"]
SERVICE = ("fairlane.fairlane.svc.cluster.local", 50_051)


def patches(wiring: Wiring | None = None, **place: Any) -> list[dict[str, Any]]:
    (found,) = istio.documents(wiring or Wiring(), Addresses(), Place(**{"fairlane": SERVICE, **place}))
    return list(found["spec"]["configPatches"])


def values(of: list[dict[str, Any]], apply_to: str) -> list[dict[str, Any]]:
    return [each["patch"]["value"] for each in of if each["applyTo"] == apply_to]


def test_the_files_are_what_is_made_now() -> None:
    """After a change of the wiring: make envoy-files"""
    for name, text in meshes().items():
        assert (FOLDER / name).read_text() == text, name


def test_nothing_else_lies_there() -> None:
    made = set(meshes())
    for folder in ("xds", "istio"):
        kept = {path.relative_to(FOLDER).as_posix() for path in (FOLDER / folder).glob("*.yaml")}
        assert kept == {name for name in made if name.startswith(f"{folder}/")}


# -- xds ----------------------------------------------------------------------------------------------


def test_the_files_are_the_complete_file_taken_apart() -> None:
    whole = build(Wiring(), addresses()).config
    made = xds.files(build(Wiring(), addresses()).config, "/x")
    assert set(made) == {"bootstrap.yaml", "lds.yaml", "rds.yaml", "cds.yaml", "eds-fairlane.yaml", "eds-vllm.yaml"}
    (listener,) = made["lds.yaml"]["resources"]
    assert list(filters(listener)) == list(filters(whole))
    assert not list(inside(listener, "route_config"))
    (routes,) = inside(whole, "virtual_hosts")
    assert made["rds.yaml"]["resources"][0]["virtual_hosts"] == routes
    assert [each["name"] for each in made["cds.yaml"]["resources"]] == ["fairlane", "vllm"]
    assert not list(inside(made["cds.yaml"], "load_assignment"))
    sockets = list(inside(made["eds-vllm.yaml"], "socket_address"))
    assert [(each["address"], each["port_value"]) for each in sockets] == ENGINES


def test_every_file_but_the_bootstrap_is_watched() -> None:
    made = xds.files(build(Wiring(), addresses()).config, "/etc/envoy/x")
    sources = list(inside(made, "path_config_source"))
    assert {each["path"] for each in sources} == {f"/etc/envoy/x/{name}" for name in made if name != xds.BOOTSTRAP}
    assert all(each["watched_directory"] == {"path": "/etc/envoy/x"} for each in sources)


def test_names_stay_in_their_cluster() -> None:
    made = xds.files(build(Wiring(), addresses(engines=[("vllm.example", 8000)])).config, "/x")
    assert "eds-vllm.yaml" not in made
    assert made["cds.yaml"]["resources"][1]["type"] == "STRICT_DNS"


# -- istio --------------------------------------------------------------------------------------------


def test_filters_are_off_and_our_routes_switch_each_of_them_on() -> None:
    made = patches(Wiring(profile="strict", facts="lua"))
    ours = values(made, "HTTP_FILTER")
    assert all(each["disabled"] is True for each in ours)
    for route in values(made, "HTTP_ROUTE"):
        assert set(route["typed_per_filter_config"]) == {each["name"] for each in ours}
        assert not list(inside(route["typed_per_filter_config"], "disabled"))
        assert route["route"]["upgrade_configs"] == [{"upgrade_type": "websocket", "enabled": False}]
        assert route["route"]["cluster"] == "outbound|8000||vllm.llm.svc.cluster.local"


def test_nothing_names_a_cluster_that_istio_does_not_have() -> None:
    for wiring in (Wiring(), Wiring(profile="strict"), Wiring(usage="stream"), Wiring(envoy=36)):
        named = {name for name in inside(patches(wiring), "cluster_name") if isinstance(name, str)}
        assert named == {f"outbound|{SERVICE[1]}||{SERVICE[0]}"}


def test_what_is_merged_is_not_false_or_zero() -> None:
    """A merge of Istio's cannot set these: they would be left out in silence."""

    def empty(value: object) -> bool:
        if isinstance(value, dict):
            return any(map(empty, value.values()))
        return value is False or value == 0

    for each in patches():
        if each["patch"]["operation"] == "MERGE":
            assert not empty(each["patch"]["value"]), each


def test_other_hosts_keep_their_time_outs() -> None:
    (manager,) = values(patches(), "NETWORK_FILTER")
    assert "stream_idle_timeout" not in manager["typed_config"]
    assert all(route["route"]["idle_timeout"] == "0s" for route in values(patches(), "HTTP_ROUTE"))


def test_pods_by_label_or_a_gateway_by_name() -> None:
    (by_label,) = istio.documents(Wiring(), Addresses(), Place(selector=(("istio", "gw"),), fairlane=SERVICE))
    (by_name,) = istio.documents(Wiring(), Addresses(), Place(gateway="mine", fairlane=SERVICE))
    assert by_label["spec"]["workloadSelector"] == {"labels": {"istio": "gw"}}
    assert "targetRefs" not in by_label["spec"]
    assert [each["name"] for each in by_name["spec"]["targetRefs"]] == ["mine"]
    assert "workloadSelector" not in by_name["spec"]


def test_several_replicas_have_clusters_of_their_own() -> None:
    at = Addresses(ext_proc=[("fairlane-0.x", 50_051), ("fairlane-1.x", 50_051)])
    (made,) = istio.documents(Wiring(spread="model"), at, Place())
    added = [
        each["patch"]["value"]["name"] for each in made["spec"]["configPatches"] if each["patch"]["operation"] == "ADD"
    ]
    assert added == ["fairlane", "fairlane-log-1", "fairlane-log-2"]
    with pytest.raises(WiringError, match="leave the service out"):
        istio.documents(Wiring(), at, Place(fairlane=SERVICE))
    with pytest.raises(WiringError, match="leave --fairlane-ca out"):
        istio.documents(Wiring(), Addresses(fairlane_tls=FairlaneTls("/ca.pem")), Place(fairlane=SERVICE))


BODY = ["--profile", "body", "--facts", "none", "--usage", "stream"]


@pytest.mark.parametrize("form", ["istio", "envoy-gateway", "kgateway"])
@pytest.mark.parametrize("at", [None, "127.0.0.2:50051", "[::1]:50051", "0.0.0.0:50051", "localhost:50051"])
def test_fairlane_is_not_in_the_gateway_s_pod(form: str, at: str | None, tmp_path: Path) -> None:
    result = run(form, tmp_path, *([] if at is None else ["--ext-proc", at]))
    assert result.exit_code == 1
    assert (
        f"Fairlane at {(at or '127.0.0.1:50051').replace('[', '').replace(']', '')}: in the gateway's pod there is"
        in (result.stderr)
    )
    assert "--fairlane-service" in result.stderr
    assert result.stdout == ""


def test_where_fairlane_listens_is_not_where_a_gateway_finds_it(tmp_path: Path) -> None:
    """fairlane.yaml says 0.0.0.0, of Fairlane's own pod."""
    for form in ("istio", "envoy-gateway", "kgateway"):
        assert run(form, tmp_path).exit_code == 1
        named = run(form, tmp_path, "--ext-proc", "fairlane.fairlane.svc:50051")
        assert named.exit_code == 0, named.stderr
        assert "127.0.0.1" not in named.stdout
    assert run("istio", tmp_path, "--ext-proc", "10.0.0.7:50051").exit_code == 0  # a cluster of its own


def run(form: str, folder: Path, *options: str) -> Result:
    file = folder / "fairlane.yaml"
    pool = {"name": "a", "models": ["*"], "endpoints": {"dns": {"name": "e.llm", "record": "srv"}}}
    config = {"listen": {"ext_proc": "0.0.0.0:50051"}, "pools": [{**pool, "pick": {"by": "envoy"}}]}
    file.write_text(yaml.safe_dump(config))
    return CliRunner().invoke(main, ["envoy-config", "--form", form, *BODY, "--config", str(file), *options])


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "*:80"],
        ["--host", "*.example.com:8443"],
        ["--host", "10.0.0.1"],
        ["--host", "LLM"],
        ["--selector", "example.com/My_app=A.b-C", "--selector", "a=1"],
        ["--gateway", "a.b-c"],
        ["--engines-service", "Vllm.llm.svc.cluster.local.:80"],
    ],
)
def test_names_that_istio_takes(options: list[str], tmp_path: Path) -> None:
    result = run("istio", tmp_path, "--fairlane-service", f"{SERVICE[0]}:{SERVICE[1]}", *options)
    assert result.exit_code == 0, result.stderr


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER.parent / "tools" / "check_manifests.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", [name for name, mesh in MESHES.items() if mesh.form == "istio"])
def test_istio_s_published_schema(name: str) -> None:
    done = check(FOLDER / name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_schema_does_not_know_is_found(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.yaml"
    text = (FOLDER / "istio" / "gateway-api.yaml").read_text()
    spoilt.write_text(text.replace("operation: INSERT_BEFORE", "operation: PUT_BEFORE"))
    assert check(spoilt).returncode == 1


# -- the command --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, mesh in MESHES.items() if mesh.form == "istio"])
def test_the_command_at_the_head_of_a_file_writes_it(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("# Written by: "))
    at = text.index(line)
    paragraph = text[at : text.index("\n#\n", at) if "\n#\n" in text[at:] else text.index("\n\n", at)]
    words = " ".join(each.lstrip("# ") for each in paragraph.splitlines()).removeprefix("Written by: fairlane ").split()
    words[words.index("--output") + 1] = str(tmp_path / "made.yaml")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert list(yaml.safe_load_all((tmp_path / "made.yaml").read_text())) == list(yaml.safe_load_all(text))


def test_the_command_writes_a_folder(tmp_path: Path) -> None:
    engine = ["--engine", "127.0.0.1:8001", "--engine", "127.0.0.1:8002"]
    result = CliRunner().invoke(
        main, ["envoy-config", "--form", "xds", *engine, "--output", str(tmp_path / "new" / "x")]
    )
    assert result.exit_code == 0, result.output
    for path in (FOLDER / "xds").glob("*.yaml"):
        assert yaml.safe_load((tmp_path / "new" / "x" / path.name).read_text()) == yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--form", "istio", "--selector", "gateway"], "--selector: expected LABEL=VALUE"),
        (["--form", "istio", "--selector", f"{'a' * 64}=b"], "--selector: "),
        (["--form", "istio", "--selector", "a=b=c"], "--selector: 'a=b=c' is no label that Kubernetes takes"),
        (["--form", "istio", "--selector", "a=-b"], "--selector: 'a=-b' is no label"),
        (["--form", "istio", "--selector", "A_/a=b"], "--selector: 'A_/a=b' is no label"),
        (["--form", "istio", "--selector", "a=b", "--selector", "a=c"], "--selector: named twice: a"),
        (["--form", "istio", "--selector", "a=b", "--gateway", "llm"], "--gateway and --selector: "),
        (["--form", "istio", "--namespace", "Bad_NS"], "--namespace: 'Bad_NS' is no name that Kubernetes takes here"),
        (["--form", "istio", "--namespace", "a\nb"], "--namespace: 'a\\nb' is no name"),
        (["--form", "istio", "--namespace", "a\n"], "--namespace: 'a\\n' is no name"),
        (["--form", "istio", "--namespace", "a.b"], "--namespace: 'a.b' is no name"),
        (["--form", "istio", "--namespace", "a" * 64], "--namespace: "),
        (["--form", "istio", "--gateway", ""], "--gateway: '' is no name that Kubernetes takes here"),
        (["--form", "istio", "--gateway", f"{'a.' * 127}a"], "--gateway: "),
        (["--form", "envoy-gateway", "--gateway-listener", "HTTP_"], "--gateway-listener: 'HTTP_' is no name"),
        (["--form", "istio", "--host", ":80"], "--host: ':80' is no name or name:port"),
        (["--form", "istio", "--host", "a b:80"], "--host: 'a b' is no host that Istio takes"),
        (["--form", "istio", "--host", "*a.b:80"], "--host: '*a.b' is no host that Istio takes"),
        (["--form", "istio", "--host", ":99999"], "--host: ':99999' is no name or name:port"),
        (["--form", "istio", "--host", "a:99999"], "--host: 'a:99999' is no name or name:port, with a port of 1 to"),
        (["--form", "istio", "--host", "a:0"], "--host: 'a:0' is no name or name:port"),
        (["--form", "istio", "--host", "a:"], "--host: 'a:' is no name or name:port"),
        (["--form", "envoy-gateway", "--host", "10.0.0.1"], "--host: '10.0.0.1' is no hostname that the Gateway API"),
        (["--form", "envoy-gateway", "--host", "*"], "--host: '*' is no hostname"),
        (["--form", "envoy-gateway", "--host", "LLM.example.com"], "--host: 'LLM.example.com' is no hostname"),
        (["--form", "envoy-gateway", "--host", "a.b:80"], "--host: 'a.b:80': with a port only in the form istio"),
        (
            ["--form", "istio", "--engines-service", "10.0.0.1:80"],
            "--engines-service: '10.0.0.1' is no name of a Servi",
        ),
        (["--form", "istio", "--engines-service", "a b:80"], "--engines-service: 'a b' is no name of a Service"),
        (["--form", "istio", "--fairlane-service", "127.0.0.1:1"], "--fairlane-service: '127.0.0.1' is no name of a "),
        (["--form", "istio", "--engines-service", "vllm:80"], "--engines-service: 'vllm': Istio names its cluster by"),
        (["--form", "istio", "--fairlane-service", "f.f.svc:1"], "--fairlane-service: 'f.f.svc': Istio names its clus"),
        (["--form", "istio", "--fairlane-service", "a.b:1", "--ext-proc", "b:1"], "each says where Fairlane is"),
        (["--form", "xds", *ENGINE, "--folder", "xds"], "--folder: 'xds' is no whole path: Envoy would look for it"),
        (["--form", "xds", *ENGINE, "--format", "json", "--output", "/nowhere/x"], "--format json: "),
        (["--form", "istio", "--fairlane-service", "fairlane"], "--fairlane-service: "),
        (["--form", "xds"], "no engines"),
        (["--form", "istio", "--spread", "model"], "there is one address of Fairlane"),
    ],
)
def test_what_cannot_be_is_said(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["envoy-config", *options])
    assert result.exit_code == 1
    assert said in result.output
