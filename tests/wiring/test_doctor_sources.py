"""Every form in which Envoy's configuration comes: a bootstrap, a dump of a running Envoy; and what is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doctor_case import ENVOY, USUAL, Envoy, Json, config, findings

from extproc.wiring.doctor import examine
from extproc.wiring.doctor.finding import Finding, NotReadableError
from extproc.wiring.doctor.source import Source as Given
from extproc.wiring.doctor.source import parse, read_file

pytestmark = pytest.mark.slow

ADMIN = "type.googleapis.com/envoy.admin.v3."


def said(text: str, **more: Any) -> list[Finding]:
    report = examine(Given("text", parse(text, "text")), config(), **more)
    return [each for each in report.findings if each.id not in USUAL]


def ids(text: str, **more: Any) -> list[str]:
    return [each.id for each in said(text, **more)]


def dump(envoy: Envoy, *, routes_by_rds: bool = False) -> Json:
    """What Envoy's /config_dump shows of it, as a control plane would have sent it."""
    clusters = [
        {"cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", **each}}
        for each in envoy.data["static_resources"]["clusters"]
    ]
    table = {
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        **envoy.manager["route_config"],
    }
    if routes_by_rds:
        del envoy.manager["route_config"]
        envoy.manager["rds"] = {"route_config_name": table["name"], "config_source": {"ads": {}}}
    listener = {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", **envoy.listener}
    build = {"version": {"major_number": 1, "minor_number": 40}}
    bootstrap = {"node": {"id": "a", "user_agent_build_version": build}, "static_resources": {}}
    return {
        "configs": [
            {"@type": f"{ADMIN}BootstrapConfigDump", "bootstrap": bootstrap, "last_updated": "2026-11-30T04:43:43Z"},
            {"@type": f"{ADMIN}ClustersConfigDump", "dynamic_active_clusters": clusters},
            {
                "@type": f"{ADMIN}ListenersConfigDump",
                "dynamic_listeners": [{"name": "llm", "active_state": {"listener": listener}}],
            },
            {"@type": f"{ADMIN}RoutesConfigDump", "dynamic_route_configs": [{"route_config": table}]},
            {"@type": f"{ADMIN}SecretsConfigDump"},
            {"@type": f"{ADMIN}SomethingNewConfigDump"},
        ]
    }


# -- a bootstrap -------------------------------------------------------------------------------------


def test_yaml_and_json_are_the_same() -> None:
    assert ids(ENVOY.read_text()) == []
    assert ids(json.dumps(Envoy().data)) == []


def test_names_of_members_in_camel_case() -> None:
    """protobuf's JSON takes both; names that users choose are left alone."""

    def camel(value: Any, names: bool = False) -> Any:
        if isinstance(value, list):
            return [camel(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key if names or key.startswith("@") else "".join(
                part if number == 0 else part.title() for number, part in enumerate(key.split("_"))
            ): camel(inner, key in ("typed_per_filter_config", "typed_extension_protocol_options"))
            for key, inner in value.items()
        }  # fmt: skip

    envoy = Envoy()
    del envoy.manager["http_protocol_options"]  # accept_http_10: where its words end cannot be told from acceptHttp10
    written = json.dumps(camel(envoy.data))
    assert "httpFilters" in written
    assert said(written) == []
    assert ids(written.replace('"messageTimeout": "3600s"', '"messageTimeout": "10s"')) == ["message_timeout"]


def test_an_unquoted_n() -> None:
    """PyYAML reads text, Envoy false."""
    text = ENVOY.read_text().replace('key: "n"', "key: n")
    found = said(text)
    assert [each.id for each in found] == ["yaml_boolean"] * 2
    number = next(n for n, rule in enumerate(Envoy().facts) if rule["selectors"] == [{"key": "n"}])
    rules = f"http_filters[0].typed_config.request_rules.rules[{number}]"
    assert found[0].where.endswith(f"{rules}.selectors[0]")
    assert found[1].where.endswith(f"{rules}.on_present")
    assert found[0].what == "key: n is false to Envoy"
    assert yaml.safe_load(found[0].fix) == {"key": "n"}


def test_a_boolean_where_text_is_meant() -> None:
    found = said(ENVOY.read_text().replace("selectors: [ { key: stream } ]", "selectors: [ { key: yes } ]"))
    assert {"yaml_boolean", "invalid"} <= {each.id for each in found}


def test_everything_by_xds() -> None:
    """Nothing can be looked at, and that is said; it is not clean."""
    found = said("dynamic_resources: {lds_config: {ads: {}}, cds_config: {ads: {}}, ads_config: {api_type: GRPC}}")
    assert [each.id for each in found] == ["ext_proc_missing", "not_checked", "not_checked"]
    assert "--envoy-admin" in found[0].fix


def test_nothing_static_beside_a_control_plane() -> None:
    """null is absent to Envoy."""
    dynamic = "dynamic_resources: {lds_config: {ads: {}}}"
    for static in ("static_resources:", "static_resources: {listeners: null, clusters: null}"):
        assert ids(f"{static}\n{dynamic}") == ["ext_proc_missing", "not_checked"]


def test_no_filter_of_ours() -> None:
    (found,) = said("static_resources: {listeners: [], clusters: []}")
    assert found.id == "ext_proc_missing"
    assert "control plane" not in found.what


def test_types_that_are_not_known() -> None:
    """A filter of another vendor is passed over, wherever it stands; the rest is looked at."""
    envoy = Envoy()
    other = {"@type": "type.googleapis.com/com.vendor.Filter", "anything": [1, {"deep": True}]}
    envoy.filters.insert(0, {"name": "vendor", "typed_config": other})
    envoy.route()["typed_per_filter_config"] = {"vendor": other}
    envoy.data["static_resources"]["listeners"].append(
        {"name": "tcp", "filter_chains": [{"filters": [{"name": "x", "typed_config": other}]}]}
    )
    del envoy.ext_proc["message_timeout"]
    found = findings(envoy)
    assert sorted(each.id for each in found) == ["message_timeout"] + ["not_checked"] * 3
    assert all("com.vendor.Filter" in each.what for each in found if each.id == "not_checked")


@pytest.mark.parametrize(
    "typed", [{}, {"@type": 5}, {"@type": "x"}, {"@type": "type.googleapis.com/os.system"}, {"@type": "/a.b.C"}, [], 3]
)
def test_types_that_are_none(typed: Any) -> None:
    envoy = Envoy()
    envoy.filters.insert(0, {"name": "odd", "typed_config": typed})
    assert {each.id for each in findings(envoy)} <= {"not_checked", "invalid"}


def test_a_member_of_a_newer_envoy() -> None:
    envoy = Envoy()
    envoy.ext_proc["brand_new"] = {"a": 1}
    envoy.ext_proc["message_timeout"] = "1s"
    found = findings(envoy)
    assert sorted(each.id for each in found) == ["message_timeout", "not_checked"]
    assert "brand_new" in next(each.what for each in found if each.id == "not_checked")


def test_a_wrapped_filter_as_istio_writes_them() -> None:
    envoy = Envoy()
    config = envoy.filter("envoy.filters.http.ext_proc")
    inner = {key: value for key, value in config["typed_config"].items() if key != "@type"}
    inner["message_timeout"] = "1s"
    config["typed_config"] = {
        "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
        "type_url": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "value": inner,
    }
    assert [each.id for each in findings(envoy)] == ["message_timeout"]


def test_only_listeners_that_ask_fairlane() -> None:
    envoy = Envoy()
    other = json.loads(json.dumps(envoy.listener))
    other["name"] = "other"
    manager = other["filter_chains"][0]["filters"][0]["typed_config"]
    processor = manager["http_filters"][1]["typed_config"]
    processor["grpc_service"]["envoy_grpc"]["cluster_name"] = "guardrails"
    processor["metadata_options"] = {}
    del processor["message_timeout"], manager["stream_idle_timeout"]
    envoy.data["static_resources"]["listeners"].insert(0, other)
    assert {each.id for each in findings(envoy)} == {"queue_bypassed"}
    report = examine(Given("two", envoy.data), config(), cluster="guardrails")
    found = [each for each in report.findings if each.id == "message_timeout"]
    assert [each.where.startswith("static_resources.listeners[0].") for each in found] == [True]


def test_fairlane_by_its_port_alone() -> None:
    """A cluster of any name, told by the port in fairlane.yaml."""
    envoy = Envoy()
    envoy.cluster("fairlane")["name"] = "queue"
    envoy.ext_proc["grpc_service"]["envoy_grpc"]["cluster_name"] = "queue"
    envoy.log["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "queue"
    envoy.ext_proc["metadata_options"] = {}
    found = {each.id for each in findings(envoy)}
    assert found == {"facts_not_forwarded", "endpoint_not_received"}


def test_odd_members_are_findings_and_no_crash() -> None:
    for key in ("http_filters", "access_log", "route_config", "early_header_mutation_extensions", "upgrade_configs"):
        for odd in (5, "x", [5], [None], {"a": 1}, [{"name": 7}], None):
            envoy = Envoy()
            envoy.manager[key] = odd
            assert isinstance(findings(envoy), list)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def test_anything_odd_anywhere_is_no_crash() -> None:
    """One place in thirteen of the shipped file, each with another value that does not belong there."""
    odds = [5, -1, "", "x", None, [], {}, [None], True, 1e300, {"a": 1}, [{"name": 7}], {"@type": "x"}, 10**30, "\0"]
    for number, path in enumerate(list(places(Envoy().data))[::13]):
        envoy = Envoy()
        place: Any = envoy.data
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = odds[number % len(odds)]
        try:
            assert isinstance(findings(envoy), list), path
        except NotReadableError:
            assert len(path) <= 3
            assert path[0] in ("static_resources", "dynamic_resources", "admin", "node")


# -- a dump ------------------------------------------------------------------------------------------


def test_a_dump_with_everything_by_xds() -> None:
    text = json.dumps(dump(Envoy(), routes_by_rds=True))
    report = examine(Given("dump", parse(text, "dump")), config())
    assert {each.id for each in report.findings} == USUAL
    assert report.version == "1.40.0"


def test_findings_in_a_dump_have_their_place_there() -> None:
    envoy = Envoy()
    del envoy.ext_proc["message_timeout"]
    del envoy.route()["route"]["timeout"]
    found = said(json.dumps(dump(envoy, routes_by_rds=True)))
    assert [(each.id, each.where) for each in found] == [
        (
            "message_timeout",
            "configs[2].dynamic_listeners[0].active_state.listener.filter_chains[0].filters[0].typed_config"
            ".http_filters[1].typed_config",
        ),
        ("route_timeout", "configs[3].dynamic_route_configs[0].route_config.virtual_hosts[0].routes[0].route"),
    ]


def test_addresses_by_eds() -> None:
    """Of a dump with ?include_eds they are known, of one without they are not."""
    envoy = Envoy()
    assignment = envoy.cluster("vllm").pop("load_assignment")
    envoy.cluster("vllm")["type"] = "EDS"
    data = dump(envoy)
    assert ids(json.dumps(data)) == ["endpoints_unknown"]
    shown = {"endpoint_config": {"cluster_name": "vllm", "endpoints": assignment["endpoints"]}}
    data["configs"].append({"@type": f"{ADMIN}EndpointsConfigDump", "dynamic_endpoint_configs": [shown]})
    assert ids(json.dumps(data)) == []
    assignment["endpoints"][0]["lb_endpoints"].pop()
    assert ids(json.dumps(data)) == ["endpoints_differ"]


def test_a_dump_of_one_kind() -> None:
    data = dump(Envoy())
    data["configs"] = [each for each in data["configs"] if each["@type"].endswith("ListenersConfigDump")]
    assert ids(json.dumps(data)) == ["cluster_unknown", "not_checked"]
    data["configs"] = []
    assert ids(json.dumps(data)) == ["ext_proc_missing", "not_checked", "not_checked"]


def test_a_dump_without_the_routes() -> None:
    data = dump(Envoy(), routes_by_rds=True)
    data["configs"] = [each for each in data["configs"] if not each["@type"].endswith("RoutesConfigDump")]
    found = said(json.dumps(data))
    assert [each.id for each in found] == ["not_checked"]
    assert "the routes 'llm' come from a control plane" in found[0].what


def test_a_listener_that_failed_to_start() -> None:
    data = dump(Envoy())
    data["configs"][2]["dynamic_listeners"].append({"name": "bad", "error_state": {"details": "no"}})
    (found,) = said(json.dumps(data))
    assert (found.id, found.what) == ("not_checked", "a listener that is not running")


# -- what is none ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found nothing"),
        ("- a", "found a list"),
        ("just words", "found a str"),
        ("a: [", "is neither YAML nor JSON"),
        ("a: 1\n---\nb: 2", "is neither YAML nor JSON"),
        ("a: 2026-99-99", "is neither YAML nor JSON"),
        ("listen: {}", "is no configuration of Envoy: it has neither static_resources"),
        ("configs: 5", "is no configuration of Envoy"),
        ("configs: [null]", r"configs\[0\] is null; write a mapping there"),
        ('configs: [{"@type": x}]', r"configs\[0\] is of the type 'x'; save all"),
        ("configs: [{a: 1}]", r"configs\[0\] is of the type None; save all"),
        ("static_resources: 3", "static_resources is 3; write a mapping there"),
        ("static_resources: []", "static_resources is a list; write a mapping there"),
        ("static_resources:", "static_resources is null; write a mapping there"),
        ("admin: 3", "admin is 3; write a mapping there"),
        ("dynamic_resources: x", "dynamic_resources is 'x'; write a mapping there"),
        ("static_resources: {listeners: null}", "listeners is null; write a list there"),
        ("static_resources: {listeners: 5}", "listeners is 5; write a list there"),
        ("static_resources: {clusters: {a: 1}}", "clusters is a mapping; write a list there"),
        ("static_resources: {clusters: [5]}", r"clusters\[0\] is 5; write a mapping there"),
        ("static_resources: {listeners: [{name: a}, null]}", r"listeners\[1\] is null; write a mapping there"),
        ('static_resources: {listeners: [{"@type": x}]}', r"listeners\[0\] is of the type 'x'; write a Listener there"),
        ('static_resources: {listeners: [{"@type": 5}]}', r"listeners\[0\] is of the type 5; write a Listener there"),
        ("&a [*a]", "found a list"),
        ("static_resources: &a {b: *a}", "nested too deeply"),
        ("[" * 500, "neither YAML nor JSON|nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deeply"),
    ],
)
def test_what_is_no_configuration(text: str, reason: str) -> None:
    with pytest.raises(NotReadableError, match=f"^text: .*({reason})"):
        said(text)


def test_a_dump_that_was_cut_short() -> None:
    text = json.dumps(dump(Envoy()))
    with pytest.raises(NotReadableError, match=r"is not JSON: .*it was cut short"):
        said(text[: len(text) // 2])


def test_aliases_that_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.wiring.doctor.source._MOST_NODES", 20_000)
    lines = ["static_resources: {a: &a0 [x, x, x, x, x, x, x, x, x, x]}"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(NotReadableError, match="too large"):
        said("\n".join(lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotReadableError, match=r"none.yaml: cannot be read: No such file"):
        read_file(tmp_path / "none.yaml")
    with pytest.raises(NotReadableError, match="cannot be read: Is a directory"):
        read_file(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotReadableError, match="is no text in UTF-8"):
        read_file(binary)
