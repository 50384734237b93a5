"""Envoy's configuration as it is shipped, with the addresses of a given stack put in.

There is one file, `envoy/envoy.yaml`, which users copy; what `fairlane up` and the tests run is that file and
no other. It is found in the wheel as package data, in a checkout at the root.

Envoy gets JSON. Its YAML reader takes an unquoted `n` (a field of OpenAI's requests) for the value false; PyYAML takes
it for text and writes it without quotes. So YAML would not survive the way through Python.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from extproc.cli.ports import HostPort

LISTENER = "llm"
FAIRLANE_CLUSTER = "fairlane"
ENGINE_CLUSTER = "vllm"

_CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"
_ROUTER = "envoy.filters.http.router"
_PACKAGED = Path(__file__).parent / "data" / "envoy.yaml"
_CHECKOUT = Path(__file__).parents[2] / "envoy" / "envoy.yaml"


class EnvoyFileError(Exception):
    """The shipped file is missing, unreadable or lacks a part that has to be filled in."""


def path() -> Path:
    """Where the shipped file is. Raises EnvoyFileError."""
    for candidate in (_PACKAGED, _CHECKOUT):
        if candidate.is_file():
            return candidate
    raise EnvoyFileError(f"envoy.yaml is missing: looked for {_PACKAGED} and {_CHECKOUT}; install fairlane again")


def load(source: Path | None = None) -> dict[str, Any]:
    """The file as data. `source`: another file than the shipped one. Raises EnvoyFileError."""
    source = source or path()
    try:
        data = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EnvoyFileError(f"{source}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise EnvoyFileError(f"{source}: expected a mapping, found {type(data).__name__}")
    return data


def render(
    *,
    listener: HostPort,
    ext_proc: HostPort | Sequence[HostPort],
    engines: Sequence[HostPort],
    admin: HostPort,
    with_fairlane: bool = True,
    source: Path | None = None,
) -> dict[str, Any]:
    """The configuration with every address replaced.

    `ext_proc`: one replica of Fairlane, or several. `with_fairlane=False` gives Envoy as it would be without
    Fairlane, for comparison: no filters, no access log, and round robin over the engines.
    Raises EnvoyFileError, and ValueError for an empty list."""
    replicas = [ext_proc] if isinstance(ext_proc, HostPort) else list(ext_proc)
    if not engines:
        raise ValueError("at least one engine is needed")
    if with_fairlane and not replicas:
        raise ValueError("at least one address of Fairlane is needed")
    source = source or path()
    config = load(source)
    try:
        _set_address(config["admin"]["address"], admin)
        _set_address(_named(_resources(config, "listeners"), LISTENER)["address"], listener)
        _set_endpoints(_named(_resources(config, "clusters"), ENGINE_CLUSTER), engines)
        if with_fairlane:
            _set_endpoints(_named(_resources(config, "clusters"), FAIRLANE_CLUSTER), replicas)
        else:
            _take_fairlane_out(config)
    except (KeyError, IndexError, TypeError) as error:
        raise EnvoyFileError(f"{source}: has not the expected form: {type(error).__name__} {error}") from error
    return config


def write(config: dict[str, Any], file: Path) -> None:
    """Write a configuration for `envoy --config-path`: as JSON, whatever the file's name."""
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _resources(config: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = config["static_resources"][kind]
    return found


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for item in items:
        if item.get("name") == name:
            return item
    raise KeyError(f"nothing is named {name!r}")


def _address(at: HostPort) -> dict[str, Any]:
    return {"socket_address": {"address": at.host, "port_value": at.port}}


def _set_address(address: dict[str, Any], at: HostPort) -> None:
    address["socket_address"].update(_address(at)["socket_address"])


def _set_endpoints(cluster: dict[str, Any], at: Sequence[HostPort]) -> None:
    if not all(_is_ip(each.host) for each in at):
        cluster["type"] = "STRICT_DNS"  # a STATIC cluster takes no names
    cluster["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": _address(each)}} for each in at]}
    ]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _take_fairlane_out(config: dict[str, Any]) -> None:
    manager = _named(
        _named(_resources(config, "listeners"), LISTENER)["filter_chains"][0]["filters"], _CONNECTION_MANAGER
    )["typed_config"]
    manager["http_filters"] = [_named(manager["http_filters"], _ROUTER)]
    del manager["access_log"]
    for host in manager["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            route.pop("typed_per_filter_config", None)
            route.pop("request_headers_to_add", None)
            route.pop("response_headers_to_add", None)
    clusters = _resources(config, "clusters")
    clusters.remove(_named(clusters, FAIRLANE_CLUSTER))
    engines = _named(clusters, ENGINE_CLUSTER)
    # Envoy's own default, round robin. The fallback, least request, spreads a burst less evenly: one engine then runs
    # dry before the other, and a comparison would flatter Fairlane.
    del engines["load_balancing_policy"]
