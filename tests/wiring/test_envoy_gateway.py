"""Our objects for Envoy Gateway, what it makes of them, and that Envoy takes that."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import emitted_envoy_gateway
import pytest
import yaml
from click.testing import CliRunner
from mesh_case import (
    PLACE,
    At,
    PatchError,
    apply,
    attached,
    clusters_of,
    configuration,
    elsewhere,
    manager_of,
    of_kind,
    routes_of,
)
from models import validated

from extproc.cli.main import main
from extproc.cli.stack import envoy_binary
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.mesh.envoy_gateway import documents
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.parts import Data, Parts
from extproc.wiring.shipped import MESHES, meshes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OWN = tuple(f"/p/{number}" for number in range(70))
WIRINGS = {
    "standard": Wiring(),
    "strict": Wiring(profile="strict"),
    "1.37": Wiring(envoy=37),
    "1.36": Wiring(envoy=36, facts="lua"),
    "body, streamed, by Envoy": Wiring(profile="body", usage="stream", pick="envoy"),
    "own paths, append, mixed": Wiring(queued=(*OWN, "*/x"), append=True, pick="mixed", retry_turned_away=True),
}


def made(wiring: Wiring) -> Data:
    return configuration(documents, emitted_envoy_gateway.emit, wiring)


def test_it_is_a_form() -> None:
    assert FORMS["envoy-gateway"] is documents


@pytest.mark.parametrize("name", [name for name in MESHES if name.startswith("envoy-gateway/")])
def test_the_files_are_what_is_made_now(name: str) -> None:
    """After a change: make envoy-files"""
    assert (ROOT / "envoy" / name).read_text(encoding="utf-8") == meshes()[name]


@pytest.mark.e2e
@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
def test_envoy_takes_what_becomes_of_it(wiring: Wiring, tmp_path: Path) -> None:
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(made(wiring)), encoding="utf-8")
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "--config-path", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MESHES if name.startswith("envoy-gateway/")])
def test_the_files_fit_the_published_models(name: str) -> None:
    assert validated((ROOT / "envoy" / name).read_text(encoding="utf-8")) == []


@pytest.mark.slow
def test_the_published_models_find_what_is_wrong() -> None:
    broken = (ROOT / "envoy/envoy-gateway/standard.yaml").read_text(encoding="utf-8")
    broken = broken.replace("failOpen: true", "failOpen: open").replace("UnescapeAndForward", "Unescape")
    found = "\n".join(validated(broken))
    assert "failOpen must be boolean" in found
    assert "escapedSlashesAction must be equal to one of the allowed values" in found


# -- the same as without a gateway ------------------------------------------------------------------------------------


def plain(wiring: Wiring) -> Parts:
    return Parts(build(wiring, Addresses()).config)


@pytest.mark.parametrize("wiring", [WIRINGS["standard"], WIRINGS["strict"], WIRINGS["1.36"]], ids=str)
def test_the_filters_are_those_of_the_complete_file_in_its_order(wiring: Wiring) -> None:
    expected = [each["name"] for each in plain(wiring).filters]
    names = [each["name"] for each in manager_of(made(wiring))["http_filters"]]
    found = [name for name in names if "/fairlane-uploads/" not in name]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs or (ours.startswith("envoy.filters.http.ext_proc/") and "fairlane" in ours)


@pytest.mark.parametrize("wiring", [WIRINGS["standard"], WIRINGS["strict"]], ids=str)
def test_the_calls_are_those_of_the_complete_file(wiring: Wiring) -> None:
    """All that Envoy Gateway lets out or does its own way is named here."""
    theirs = plain(wiring).ext_procs
    ours = [
        each for each in manager_of(made(wiring))["http_filters"] if "/fairlane-queued/extproc/" in each["name"]
    ]  # fmt: skip
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        config, expected = mine["typed_config"], dict(other["typed_config"])
        service, wanted = dict(config.pop("grpc_service")), dict(expected.pop("grpc_service"))
        assert config == expected
        assert service.pop("timeout") == "10s"  # has no effect on a stream
        cluster = service.pop("envoy_grpc")["cluster_name"]
        assert cluster.startswith("envoyextensionpolicy/llm/fairlane-queued/extproc/")
        wanted.pop("envoy_grpc")
        assert _seconds(service) == _seconds(wanted)


def _seconds(service: Data) -> Data:
    policy = service.get("retry_policy")
    if policy is None:
        return service
    back_off = {key: float(value.rstrip("s")) for key, value in policy["retry_back_off"].items()}
    return {**service, "retry_policy": {**policy, "retry_back_off": back_off}}


def test_the_connection_manager_says_the_same() -> None:
    ours, theirs = manager_of(made(Wiring())), plain(Wiring()).manager
    for key in (
        "request_timeout", "request_headers_timeout", "local_reply_config", "normalize_path", "merge_slashes",
        "path_with_escaped_slashes_action", "use_remote_address", "preserve_external_request_id",
    ):  # fmt: skip
        assert ours[key] == theirs[key], key
    assert ours["common_http_protocol_options"]["max_headers_count"] == 500
    (mine,), (other,) = (each["early_header_mutation_extensions"] for each in (ours, theirs))
    by_text = lambda each: json.dumps(each, sort_keys=True)  # noqa: E731
    assert sorted(mine["typed_config"]["mutations"], key=by_text) == sorted(
        other["typed_config"]["mutations"], key=by_text
    )


def test_the_log_is_added_to_the_ones_that_are_there() -> None:
    log, fairlane = manager_of(made(Wiring()))["access_log"]
    assert log["name"] == "envoy.access_loggers.file"
    (other,) = plain(Wiring()).manager["access_log"]
    cluster = fairlane["typed_config"]["common_config"].pop("grpc_service")["envoy_grpc"]["cluster_name"]
    other["typed_config"]["common_config"].pop("grpc_service")
    assert fairlane == other
    assert cluster in clusters_of(made(Wiring()))


def test_queued_routes_have_our_filters_and_others_have_none() -> None:
    routes = routes_of(made(Wiring()))
    assert set(routes) == {"fairlane-queued", "fairlane-uploads", "fairlane-direct"}
    assert "typed_per_filter_config" not in routes["fairlane-direct"]
    assert "response_headers_to_add" not in routes["fairlane-direct"]
    for name in ("fairlane-queued", "fairlane-uploads"):
        on = set(routes[name]["typed_per_filter_config"])
        own = f"envoy.filters.http.ext_proc/envoyextensionpolicy/llm/{name}/extproc/0"
        assert on == {own, "fairlane.facts", "fairlane.usage.sse", "fairlane.usage.json"}
        assert routes[name]["route"]["idle_timeout"] == routes[name]["route"]["timeout"] == "0s"
        assert routes[name]["route"]["upgrade_configs"] == []
    manager = manager_of(made(Wiring()))
    assert all(each.get("disabled") for each in manager["http_filters"][:-1])


def test_uploads_bring_their_body_and_others_do_not() -> None:
    modes = {
        each["name"].split("/")[3]: each["typed_config"]["processing_mode"]["request_body_mode"]
        for each in manager_of(made(Wiring()))["http_filters"]
        if each["name"].startswith("envoy.filters.http.ext_proc/")
    }
    assert modes == {"fairlane-queued": "NONE", "fairlane-uploads": "BUFFERED"}


def test_more_paths_than_a_rule_takes_make_more_rules_each_with_our_choice_of_the_engine() -> None:
    wiring = WIRINGS["own paths, append, mixed"]
    (route,) = (each for each in of_kind(documents(wiring, Addresses(), PLACE), "HTTPRoute") if "queued" in str(each))
    assert [len(rule["matches"]) for rule in route["spec"]["rules"]] == [64, 7]
    clusters = clusters_of(made(wiring))
    for number in (0, 1):
        policy = clusters[f"httproute/llm/fairlane-queued/rule/{number}"]["load_balancing_policy"]
        assert policy == plain(wiring).engines["load_balancing_policy"]


def test_clusters_have_room_for_all_that_are_held() -> None:
    for name, cluster in clusters_of(made(Wiring())).items():
        if "fairlane-direct" in name:
            continue
        thresholds = cluster["circuit_breakers"]["thresholds"]
        assert [each.get("priority", "DEFAULT") for each in thresholds] == ["DEFAULT", "HIGH"], name
        for each in thresholds:
            assert min(each[key] for key in ("max_requests", "max_pending_requests", "max_retries")) == 1_000_000


@pytest.mark.parametrize("envoy", [36, 37, 38, 39, 40])
def test_the_connection_to_fairlane_is_asked_whether_it_lives(envoy: int) -> None:
    for name, cluster in clusters_of(made(Wiring(envoy=envoy))).items():
        if name.startswith("envoyextensionpolicy/"):
            (options,) = cluster["typed_extension_protocol_options"].values()
            protocol = options["explicit_http_config"]["http2_protocol_options"]
            assert protocol["connection_keepalive"] == {"interval": "3s", "timeout": "2s"}


def test_references_over_namespaces_are_granted() -> None:
    place = elsewhere(engines=("vllm.models.svc", 8000))
    grants = of_kind(documents(Wiring(), Addresses(), place), "ReferenceGrant")
    found = {
        (each["metadata"]["namespace"], each["spec"]["from"][0]["kind"], each["spec"]["to"][0]["name"])
        for each in grants
    }
    assert found == {("fairlane", "EnvoyExtensionPolicy", "fairlane"), ("models", "HTTPRoute", "vllm")}
    assert all(each["spec"]["from"][0]["namespace"] == "llm" for each in grants)
    alone = elsewhere(fairlane=("fairlane", 50_051))
    assert of_kind(documents(Wiring(), Addresses(), alone), "ReferenceGrant") == []


def test_names_are_the_users(tmp_path: Path) -> None:
    place = elsewhere(name="q", namespace="ai", gateway="edge", listener="https", host="llm.example.org")
    made = documents(Wiring(), Addresses(), place)
    names = {patch["name"] for patch in of_kind(made, "EnvoyPatchPolicy")[0]["spec"]["jsonPatches"]}
    assert names == {
        "ai/edge/https",
        "httproute/ai/fairlane-queued/rule/0",
        "httproute/ai/fairlane-uploads/rule/0",
        "envoyextensionpolicy/ai/fairlane-queued/extproc/0",
        "envoyextensionpolicy/ai/fairlane-uploads/extproc/0",
    }
    assert {each["metadata"]["name"] for each in of_kind(made, "ClientTrafficPolicy")} == {"q"}
    route = of_kind(made, "HTTPRoute")[0]["spec"]
    assert route["parentRefs"] == [{"name": "edge", "sectionName": "https"}]
    assert route["hostnames"] == ["llm.example.org"]


def test_every_policy_is_for_a_route_that_exists() -> None:
    made = documents(Wiring(), Addresses(), PLACE)
    for kind in ("BackendTrafficPolicy", "EnvoyExtensionPolicy"):
        named = {ref["name"] for each in of_kind(made, kind) for ref in each["spec"]["targetRefs"]}
        assert named <= {each["metadata"]["name"] for each in of_kind(made, "HTTPRoute")}
    assert attached(made, "EnvoyExtensionPolicy", "fairlane-direct") is None


@pytest.mark.parametrize(
    ("wiring", "addresses", "place", "words"),
    [
        (Wiring(profile="duplex"), {}, {}, "take the profile standard, or body"),
        (Wiring(spread="model"), {}, {}, "run one replica of Fairlane"),
        (Wiring(), {}, {"fairlane": ("10.0.0.1", 50_051)}, "name that, as service.namespace.svc:50051"),
        (Wiring(), {"ext_proc": [("a", 1), ("b", 1)]}, {"fairlane": None}, "name that alone"),
        (Wiring(), {"fairlane_tls": FairlaneTls("/ca.pem")}, {}, "make a BackendTLSPolicy"),
        (Wiring(queued=tuple(f"/{i}" for i in range(1_025))), {}, {}, "takes 1024 paths, and there are 1025"),
    ],
)
def test_what_cannot_be_is_refused_with_its_cure(
    wiring: Wiring, addresses: dict[str, Any], place: dict[str, Any], words: str
) -> None:
    with pytest.raises(WiringError, match=words.replace("(", r"\(")):
        documents(wiring, Addresses(**addresses), elsewhere(**place))


def test_a_patch_that_finds_nothing_is_no_success() -> None:
    """The fixture is as strict as Envoy Gateway, or the tests above would say nothing."""
    made = documents(Wiring(), Addresses(), PLACE)
    resources = emitted_envoy_gateway.emit(made, At())
    (patch,) = of_kind(made, "EnvoyPatchPolicy")
    first = dict(patch["spec"]["jsonPatches"][0])
    with pytest.raises(PatchError, match="nothing is found"):
        apply(
            resources, [{**first, "operation": {**first["operation"], "jsonPath": "$..http_filters[?(@.name=='x')]"}}]
        )
    with pytest.raises(PatchError, match="is named 'tcp-80'"):
        apply(resources, [{**first, "name": "tcp-80"}])


@pytest.mark.parametrize("name", [name for name in MESHES if name.startswith("envoy-gateway/")])
def test_yaml_keeps_words_that_look_like_truth_values(name: str) -> None:
    """`n` is a field of requests, and false in YAML 1.1."""
    read = list(yaml.safe_load_all((ROOT / "envoy" / name).read_text(encoding="utf-8")))
    assert read == FORMS["envoy-gateway"](MESHES[name].wiring, Addresses(), MESHES[name].place)
    assert 'key: "n"' in (ROOT / "envoy" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in MESHES if name.startswith("envoy-gateway/")])
def test_the_command_at_the_head_writes_the_file(name: str, tmp_path: Path) -> None:
    mesh, made = MESHES[name], tmp_path / "made.yaml"
    words = ["envoy-config", "--form", mesh.form, *mesh.options.split(), "--output", str(made)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    written = (ROOT / "envoy" / name).read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(made.read_text())) == list(yaml.safe_load_all(written))


def test_the_listener_can_be_named(tmp_path: Path) -> None:
    words = [
        "envoy-config",
        "--form",
        "envoy-gateway",
        "--gateway-listener",
        "https",
        "--fairlane-service",
        "fairlane:50051",
    ]
    result = CliRunner().invoke(main, [*words, "--output", str(tmp_path / "made.yaml")])
    assert result.exit_code == 0, result.output
    assert "sectionName: https" in (tmp_path / "made.yaml").read_text()
