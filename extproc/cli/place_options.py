"""Options of `fairlane envoy-config` that name what a gateway has already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from extproc.cli.ports import HostPort
from extproc.wiring.description import WiringError
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.mesh.place import Place

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--form",
        {
            "type": click.Choice(tuple(FORMS)),
            "default": "static",
            "show_default": True,
            "help": "static: one file for Envoy. xds: files that it reads again when they change (--output is a "
            "folder). The others: objects for Kubernetes, and the options below name what is there.",
        },
    ),
    ("--namespace", {"help": f"Of the gateway, and of what is made. [default: {Place().namespace}]"}),
    ("--gateway", {"help": f"Its name. [default: {Place().gateway}]"}),
    ("--gateway-listener", {"help": f"Of a Gateway: its listener's name. [default: {Place().listener}]"}),
    (
        "--selector",
        {
            "metavar": "LABEL=VALUE",
            "multiple": True,
            "help": "istio: a label of the gateway's pods; repeat it. Without: one of the Gateway API.",
        },
    ),
    (
        "--host",
        {
            "metavar": "NAME[:PORT]",
            "help": "istio: that clients use for the engines, as the gateway has it. "
            f"[default: {Place().host}:{Place().port}]",
        },
    ),
    (
        "--engines-service",
        {"metavar": "HOST:PORT", "help": "The engines' service, in full. [default: vllm.llm.svc.cluster.local:8000]"},
    ),
    (
        "--fairlane-service",
        {"metavar": "HOST:PORT", "help": "Fairlane's service, in full: fairlane.fairlane.svc.cluster.local:50051"},
    ),
    ("--folder", {"help": f"xds: where Envoy finds the files. [default: {Place().folder}]"}),
)


def place_options(command: F) -> F:
    """The options, for a command whose last parameter is **place."""
    for name, more in reversed(_OPTIONS):
        command = click.option(name, **more)(command)
    return command


def place(given: dict[str, Any]) -> Place:
    """What was given of them. Raises WiringError."""
    found: dict[str, Any] = {
        name: given[name] for name in ("namespace", "gateway", "folder") if given[name] is not None
    }
    if given["gateway_listener"] is not None:
        found["listener"] = given["gateway_listener"]
    for option, field in (("engines_service", "engines"), ("fairlane_service", "fairlane")):
        if given[option] is not None:
            found[field] = _address(option, given[option])
    if given["host"] is not None:
        name, _, port = given["host"].partition(":")
        if not name or (port and not (port.isascii() and port.isdigit())):
            raise WiringError(f"--host: {given['host']!r} is no name or name:port")
        found |= {"host": name, **({"port": int(port)} if port else {})}
    if given["selector"]:
        pairs = [tuple(each.split("=", 1)) for each in given["selector"]]
        if wrong := [pair[0] for pair in pairs if len(pair) != 2 or not all(pair)]:
            raise WiringError(f"--selector: expected LABEL=VALUE, got {wrong[0]!r}")
        found["selector"] = tuple(pairs)
    return Place(**found)


def _address(option: str, text: str) -> tuple[str, int]:
    try:
        at = HostPort.parse(text)
    except ValueError as error:
        raise WiringError(f"--{option.replace('_', '-')}: {error}") from error
    return at.host, at.port
