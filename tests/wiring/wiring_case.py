"""Configurations made from the base file, and the way to their parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring

LISTENER, ADMIN, FAIRLANE = ("127.0.0.9", 11_000), ("127.0.0.9", 11_001), ("127.0.0.9", 11_002)
ENGINES = [("127.0.0.9", 11_003), ("127.0.0.9", 11_004), ("127.0.0.9", 11_005)]
REPLICAS = [FAIRLANE, ("127.0.0.9", 11_009)]


def addresses(**changes: Any) -> Addresses:
    given: dict[str, Any] = {"listener": LISTENER, "ext_proc": [FAIRLANE], "engines": ENGINES, "admin": ADMIN}
    return Addresses(**{**given, **changes})


def made(source: Path | None = None, **choices: Any) -> dict[str, Any]:
    return build(Wiring(**choices), addresses(), source).config


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


def sockets(config: object) -> list[tuple[str, int]]:
    return [(a["address"], a["port_value"]) for a in inside(config, "socket_address")]


def cluster(config: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


def filters(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name, in the order of requests."""
    return {each["name"]: each["typed_config"] for each in next(inside(config, "http_filters"))}


def routes(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in next(inside(config, "routes"))}


def modes(config: dict[str, Any], name: str) -> dict[str, str]:
    found: dict[str, str] = filters(config)[name]["processing_mode"]
    return found


def words(config: dict[str, Any], name: str) -> str | None:
    pairs = filters(config)[name]["grpc_service"].get("initial_metadata", [])
    return next((pair["value"] for pair in pairs if pair["key"] == "fairlane-wiring"), None)


EXT_PROC = "envoy.filters.http.ext_proc"
STANDARD = ["fairlane.facts", EXT_PROC, "fairlane.usage.sse", "fairlane.usage.json", "envoy.filters.http.router"]
