"""Our objects for kgateway, what it makes of them, and that Envoy takes that."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import emitted_kgateway
import pytest
import yaml
from click.testing import CliRunner
from mesh_case import PLACE, attached, clusters_of, configuration, elsewhere, manager_of, of_kind, routes_of

from extproc.cli.main import main
from extproc.cli.stack import envoy_binary
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.doctor.routes import OURS
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.mesh.kgateway import STRIPPED, documents
from extproc.wiring.parts import EXT_PROC, Data, Parts, named
from extproc.wiring.shipped import MESHES, meshes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = [name for name in MESHES if name.startswith("kgateway/")]


def wiring(**changes: Any) -> Wiring:
    return Wiring(**{"profile": "body", "facts": "none", "usage": "stream", "pick": "envoy", **changes})


WIRINGS = {
    "body": wiring(),
    "2.2": wiring(envoy=36),
    "estimated": wiring(usage="estimate", retry_turned_away=True),
    "duplex": wiring(profile="duplex"),
}


def made(chosen: Wiring) -> Data:
    return configuration(documents, emitted_kgateway.emit, chosen)


def call_of(config: Data) -> Data:
    (filter_,) = (each for each in manager_of(config)["http_filters"] if each["name"].startswith("ext_proc/"))
    (matcher,) = filter_["typed_config"]["xds_matcher"]["matcher_list"]["matchers"]
    found: Data = matcher["on_match"]["action"]["typed_config"]["typed_config"]["typed_config"]
    return found


def test_it_is_a_form() -> None:
    assert FORMS["kgateway"] is documents


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_is_made_now(name: str) -> None:
    """After a change: make envoy-files"""
    written = (ROOT / "envoy" / name).read_text(encoding="utf-8")
    assert written == meshes()[name]
    assert list(yaml.safe_load_all(written)) == documents(MESHES[name].wiring, Addresses(), MESHES[name].place)


@pytest.mark.e2e
@pytest.mark.parametrize("chosen", WIRINGS.values(), ids=WIRINGS)
def test_envoy_takes_what_becomes_of_it(chosen: Wiring, tmp_path: Path) -> None:
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(made(chosen)), encoding="utf-8")
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "--config-path", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chosen", WIRINGS.values(), ids=WIRINGS)
def test_the_call_is_that_of_the_complete_file_but_for_what_kgateway_cannot_say(chosen: Wiring) -> None:
    ours, theirs = call_of(made(chosen)), named(Parts(build(chosen, Addresses()).config).filters, EXT_PROC)
    expected = dict(theirs["typed_config"])
    assert ours["processing_mode"] == expected["processing_mode"]
    assert ours["message_timeout"] == "3600s"
    assert ours["failure_mode_allow"] is True
    missing = {key for key in expected if key not in ours}
    assert missing == {"forward_rules"} | ({"request_attributes"} if chosen.envoy < 38 else set())
    assert "initial_metadata" not in ours["grpc_service"]
    assert ours["metadata_options"] == {
        "forwarding_namespaces": {"untyped": ["envoy.filters.http.jwt_authn", "envoy.filters.http.ext_authz"]}
    }


def test_every_header_of_ours_is_taken_from_clients() -> None:
    (extension,) = manager_of(made(wiring()))["early_header_mutation_extensions"]
    removed = [each["remove"] for each in extension["typed_config"]["mutations"]]
    assert set(OURS) | {"x-vllm-priority"} <= set(removed)
    assert len(removed) == len(set(STRIPPED)) <= 16  # as many as the Gateway API takes


def test_queued_routes_call_fairlane_and_others_do_not() -> None:
    routes = routes_of(made(wiring()))
    assert set(routes) == {"fairlane-queued", "fairlane-direct"}
    assert "typed_per_filter_config" not in routes["fairlane-direct"]
    assert list(routes["fairlane-queued"]["typed_per_filter_config"]) == ["ext_proc/llm/fairlane"]
    for route in routes.values():
        assert route["route"]["timeout"] == route["route"]["idle_timeout"] == "0s"
    shown = {each["header"]["key"] for each in routes["fairlane-queued"]["response_headers_to_add"]}
    assert shown == {"x-fairlane-queue-ms", "x-fairlane-class", "server-timing", "x-fairlane-endpoint"}


def test_clusters_have_room_for_all_that_are_held() -> None:
    clusters = clusters_of(made(wiring()))
    assert set(clusters) == {"kube_llm_vllm_8000", "kube_fairlane_fairlane_50051"}
    for cluster in clusters.values():
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert min(threshold[key] for key in ("max_requests", "max_pending_requests", "max_retries")) == 1_000_000


def test_policies_of_a_service_stand_beside_it() -> None:
    found = of_kind(documents(wiring(), Addresses(), PLACE), "BackendConfigPolicy")
    assert {(each["metadata"]["namespace"], each["spec"]["targetRefs"][0]["name"]) for each in found} == {
        ("fairlane", "fairlane"),
        ("llm", "vllm"),
    }


def test_what_an_older_one_does_not_know_is_left_out() -> None:
    old = documents(wiring(envoy=36), Addresses(), PLACE)
    written = json.dumps(old)
    for key in ("requestAttributes", "maxHeadersCount", "http2ProtocolOptions"):
        assert key not in written
        assert key in json.dumps(documents(wiring(), Addresses(), PLACE))


def test_references_over_namespaces_are_granted() -> None:
    grants = of_kind(documents(wiring(), Addresses(), PLACE), "ReferenceGrant")
    (grant,) = grants
    assert grant["metadata"]["namespace"] == "fairlane"
    assert grant["spec"]["from"] == [{"group": "gateway.kgateway.dev", "kind": "GatewayExtension", "namespace": "llm"}]
    assert attached(documents(wiring(), Addresses(), PLACE), "TrafficPolicy", "fairlane-queued") is not None


@pytest.mark.parametrize(
    ("chosen", "addresses", "place", "words"),
    [
        (Wiring(), {}, {}, "take --profile body --facts none, or --profile duplex"),
        (Wiring(profile="body", usage="stream", pick="envoy"), {}, {}, "facts json: kgateway takes no filter"),
        (wiring(usage="access_log"), {}, {}, "take --usage stream"),
        (wiring(pick="fairlane"), {}, {}, "set pick: {by: envoy} in every pool"),
        (wiring(), {}, {"engines": ("10.0.0.1", 8_000)}, "name that, as service.namespace.svc:8000"),
        (wiring(), {"fairlane_tls": FairlaneTls("/ca.pem")}, {}, "make a BackendTLSPolicy"),
    ],
)
def test_what_cannot_be_is_refused_with_its_cure(
    chosen: Wiring, addresses: dict[str, Any], place: dict[str, Any], words: str
) -> None:
    with pytest.raises(WiringError) as caught:
        documents(chosen, Addresses(**addresses), elsewhere(**place))
    assert words in str(caught.value)


def test_the_command_at_the_head_writes_the_file(tmp_path: Path) -> None:
    mesh, made = MESHES["kgateway/body.yaml"], tmp_path / "made.yaml"
    config = yaml.safe_load((ROOT / "fairlane.yaml").read_text(encoding="utf-8"))
    config["pools"][0]["pick"] = {"by": "envoy"}
    file = tmp_path / "fairlane.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    options = mesh.options.replace("--config fairlane.yaml", f"--config {file}").split()
    result = CliRunner().invoke(main, ["envoy-config", "--form", "kgateway", *options, "--output", str(made)])
    assert result.exit_code == 0, result.output
    written = (ROOT / "envoy/kgateway/body.yaml").read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(made.read_text())) == list(yaml.safe_load_all(written))
