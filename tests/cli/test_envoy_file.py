"""The shipped Envoy configuration: that every address in it can be replaced, and that Envoy takes what comes out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli import envoy_file
from extproc.cli.ports import HostPort
from extproc.cli.stack import envoy_binary

LISTENER = HostPort("127.0.0.9", 11_000)
ADMIN = HostPort("127.0.0.9", 11_001)
FAIRLANE = HostPort("127.0.0.9", 11_002)
ENGINES = [HostPort("127.0.0.9", 11_003), HostPort("127.0.0.9", 11_004), HostPort("127.0.0.9", 11_005)]


def render(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"listener": LISTENER, "ext_proc": FAIRLANE, "engines": ENGINES, "admin": ADMIN}
    return envoy_file.render(**{**given, **changes})


def inside(value: object, key: str) -> Iterator[Any]:
    """Everything that stands under `key`, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from inside(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from inside(inner, key)


def sockets(config: object) -> list[HostPort]:
    return [HostPort(a["address"], a["port_value"]) for a in inside(config, "socket_address")]


def cluster(config: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in config["static_resources"]["clusters"] if c["name"] == name)


def test_every_address_is_replaced() -> None:
    config = render()
    assert sorted(sockets(config)) == sorted([LISTENER, ADMIN, FAIRLANE, *ENGINES])
    assert sockets(config["admin"]) == [ADMIN]
    assert sockets(config["static_resources"]["listeners"]) == [LISTENER]
    assert sockets(cluster(config, "fairlane")) == [FAIRLANE]
    assert sockets(cluster(config, "vllm")) == ENGINES


def test_the_shipped_file_has_the_default_addresses() -> None:
    """What the comment at its head promises."""
    ports = [port for _, port in sockets(yaml.safe_load(envoy_file.path().read_text()))]
    assert sorted(ports) == [8001, 8002, 9901, 10000, 50051]


def test_several_replicas_of_fairlane_share_one_cluster() -> None:
    replicas = [FAIRLANE, FAIRLANE._replace(port=11_009)]
    assert sockets(cluster(render(ext_proc=replicas), "fairlane")) == replicas


def test_host_names_make_a_cluster_that_looks_them_up() -> None:
    config = render(engines=[HostPort("engine-1", 8001)], ext_proc=HostPort("::1", 50_051))
    assert cluster(config, "vllm")["type"] == "STRICT_DNS"
    assert cluster(config, "fairlane")["type"] == "STATIC"


def test_the_field_n_stays_text_in_what_envoy_reads(tmp_path: Path) -> None:
    envoy_file.write(render(), tmp_path / "envoy.json")
    config = json.loads((tmp_path / "envoy.json").read_text())
    read = [s[0]["key"] for s in inside(config, "selectors") if len(s) == 1]
    assert "n" in read
    assert all(isinstance(key, str) for key in inside(config, "key"))
    # in the YAML that people copy it has to be quoted, for Envoy's reader takes a bare n for false
    assert "key: n " not in envoy_file.path().read_text()


def test_without_fairlane_nothing_of_it_is_left_but_the_header_guard() -> None:
    config = render(with_fairlane=False)
    assert sorted(sockets(config)) == sorted([LISTENER, ADMIN, *ENGINES])
    filters = next(inside(config, "http_filters"))
    assert [f["name"] for f in filters] == ["envoy.filters.http.router"]
    for gone in ("access_log", "grpc_service", "response_headers_to_add", "typed_per_filter_config"):
        assert list(inside(config, gone)) == []
    text = json.dumps(config)
    assert "ext_proc" not in text
    assert "override_host" not in text
    assert "load_balancing_policy" not in cluster(config, "vllm")  # round robin, Envoy's default


def test_both_forms_queue_the_same_routes() -> None:
    """The comparison of the demo must not differ in anything but Fairlane."""
    with_it, without = ([r["match"] for r in next(inside(render(with_fairlane=w), "routes"))] for w in (True, False))
    assert with_it == without


def test_the_access_log_records_what_the_queued_route_takes() -> None:
    """Two patterns in the file that must be kept in step; the log's one also sees the query string."""
    config = render()
    route = next(inside(config, "routes"))[0]["match"]["safe_regex"]["regex"]
    logged = next(inside(next(inside(config, "access_log")), "safe_regex"))["regex"]
    assert logged == route + r"(\?.*)?"


def test_half_a_body_and_old_clients() -> None:
    """A body that stops in the middle does not hold its connection for ever, and HTTP/1.0 is answered."""
    manager = render()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["request_timeout"] == "300s"
    assert manager["http_protocol_options"] == {"accept_http_10": True}


def test_rendering_leaves_no_trace_in_the_next_one() -> None:
    render(with_fairlane=False)
    assert sockets(cluster(render(), "fairlane")) == [FAIRLANE]


def test_no_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        render(engines=[])
    with pytest.raises(ValueError, match="at least one address of Fairlane"):
        render(ext_proc=[])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "cannot be read"),
        ("- a", "expected a mapping, found list"),
        ("a: 1", "has not the expected form: KeyError 'admin'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(envoy_file.EnvoyFileError) as caught:
        render(source=file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(envoy_file.path().read_text().replace("- name: vllm", "- name: engines"))
    with pytest.raises(envoy_file.EnvoyFileError, match="nothing is named 'vllm'"):
        render(source=file)


@pytest.mark.e2e
@pytest.mark.parametrize("with_fairlane", [True, False])
def test_envoy_accepts_it(tmp_path: Path, with_fairlane: bool) -> None:
    file = tmp_path / "envoy.json"
    envoy_file.write(render(with_fairlane=with_fairlane), file)
    assert_valid(file)


@pytest.mark.e2e
def test_envoy_accepts_the_file_itself() -> None:
    """As a user runs it, read by Envoy's own YAML reader."""
    assert_valid(envoy_file.path())


def assert_valid(file: Path) -> None:
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "--config-path", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
