"""A configuration, and the places in it at which the steps work."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

Data = dict[str, Any]
Address = tuple[str, int]
"""Host without brackets, and port."""

LISTENER, FAIRLANE, ENGINES = "llm", "fairlane", "vllm"
CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"
EXT_PROC, ROUTER = "envoy.filters.http.ext_proc", "envoy.filters.http.router"
FACTS, USAGE_SSE, USAGE_JSON = "fairlane.facts", "fairlane.usage.sse", "fairlane.usage.json"
UPLOADS, DIRECT = "queued-uploads", "direct"

_TYPE = "type.googleapis.com/"
_LUA = f"{_TYPE}envoy.extensions.filters.http.lua.v3.Lua"
_DISABLED = {"@type": f"{_TYPE}envoy.config.route.v3.FilterConfig", "disabled": True}
_EXT_PROC_TYPE = f"{_TYPE}envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_PER_ROUTE = f"{_TYPE}envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


class Parts:
    """Changes `config` in place. Raises KeyError, IndexError or TypeError where a part is not there."""

    def __init__(self, config: Data) -> None:
        self.config = config
        resources = config["static_resources"]
        self.listener = named(resources["listeners"], LISTENER)
        self.clusters: list[Data] = resources["clusters"]
        chain = self.listener["filter_chains"][0]
        self.manager: Data = named(chain["filters"], CONNECTION_MANAGER)["typed_config"]
        self.filters: list[Data] = self.manager["http_filters"]
        self.routes: list[Data] = self.manager["route_config"]["virtual_hosts"][0]["routes"]

    @property
    def fairlane(self) -> Data:
        return named(self.clusters, FAIRLANE)

    @property
    def engines(self) -> Data:
        return named(self.clusters, ENGINES)

    @property
    def queued(self) -> list[Data]:
        """Routes whose requests Fairlane sees."""
        return [route for route in self.routes if route["name"] != DIRECT]

    def has(self, name: str) -> bool:
        return any(each["name"] == name for each in self.filters)

    def filter(self, name: str) -> Data:
        """The configuration of a filter."""
        config: Data = named(self.filters, name)["typed_config"]
        return config

    def add(self, name: str, config: Data, *, before: str) -> None:
        """A filter, which the direct route passes by like all of ours."""
        self.filters.insert(self._place(before), {"name": name, "typed_config": config})
        self._disabled()[name] = dict(_DISABLED)

    def add_lua(self, name: str, source: str, *, before: str) -> None:
        self.add(name, {"@type": _LUA, "default_source_code": {"inline_string": source}}, before=before)

    def drop(self, name: str) -> None:
        del self.filters[self._place(name)]
        for route in self.routes:
            route.get("typed_per_filter_config", {}).pop(name, None)

    def after(self, name: str) -> str:
        """The name of the next filter."""
        following: str = self.filters[self._place(name) + 1]["name"]
        return following

    @property
    def ext_procs(self) -> list[Data]:
        """Every filter of that type, in the order of requests. The first one holds, the last one follows the answer."""
        return [each for each in self.filters if each["typed_config"]["@type"] == _EXT_PROC_TYPE]

    @property
    def holder(self) -> str:
        name: str = self.ext_procs[0]["name"]
        return name

    @property
    def follower(self) -> str:
        name: str = self.ext_procs[-1]["name"]
        return name

    def rename(self, name: str, new: str) -> None:
        named(self.filters, name)["name"] = new
        for route in self.routes:
            own = route.get("typed_per_filter_config", {})
            if name in own:
                own[new] = own.pop(name)

    def modes(self, name: str | None = None) -> Iterator[Data]:
        """Every processing mode of a filter (the one that holds): its own, and those of single routes."""
        name = name or self.holder
        yield self.filter(name)["processing_mode"]
        for route in self.routes:
            own = route.get("typed_per_filter_config", {}).get(name, {})
            if own.get("@type") == _PER_ROUTE:
                yield own["overrides"]["processing_mode"]

    def set_address(self, of: Data, at: Address) -> None:
        of["address"]["socket_address"].update(_socket_address(at))

    def set_endpoints(self, cluster: Data, at: Sequence[Address]) -> None:
        if not all(is_ip(host) for host, _ in at):
            cluster["type"] = "STRICT_DNS"  # a STATIC cluster takes no names
        cluster["load_assignment"]["endpoints"] = [
            {"lb_endpoints": [{"endpoint": {"address": {"socket_address": _socket_address(each)}}} for each in at]}
        ]

    def _place(self, name: str) -> int:
        return next(i for i, each in enumerate(self.filters) if each is named(self.filters, name))

    def _disabled(self) -> Data:
        disabled: Data = named(self.routes, DIRECT)["typed_per_filter_config"]
        return disabled


def named(items: list[Data], name: str) -> Data:
    """The item of that name. Raises KeyError."""
    for item in items:
        if item.get("name") == name:
            return item
    raise KeyError(f"nothing is named {name!r}")


def say(grpc_service: Data, words: Sequence[str]) -> None:
    """Say these, and nothing else."""
    pairs = [pair for pair in grpc_service.get("initial_metadata", []) if pair["key"] != "fairlane-wiring"]
    if words:
        pairs.insert(0, {"key": "fairlane-wiring", "value": ",".join(words)})
    grpc_service["initial_metadata"] = pairs


def unshared(value: Data) -> Data:
    """A copy in which nothing stands in two places. YAML aliases are one object, and to change it would change both."""
    if isinstance(value, dict):
        return {key: unshared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unshared(inner) for inner in value]
    return copy.copy(value)


def _socket_address(at: Address) -> Data:
    return {"address": at[0], "port_value": at[1]}


def is_here(host: str) -> bool:
    """Whether it is the machine, or the pod, itself: a loopback address, every address, or localhost."""
    if not is_ip(host):
        return host.lower().rstrip(".") == "localhost"
    ip = ipaddress.ip_address(host)
    return ip.is_loopback or ip.is_unspecified


def is_ip(host: str) -> bool:
    """Whether it is an address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
