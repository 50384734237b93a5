"""Options of `fairlane envoy-config` that name what a gateway has already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import click

from extproc.cli.ports import HostPort
from extproc.config.units import shown
from extproc.wiring.description import WiringError
from extproc.wiring.mesh import names
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Address

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_DIGITS, _HIGHEST_PORT = 5, 65_535
_ENVOYS, _OBJECTS, _ROUTED = ("static", "xds"), ("istio", "envoy-gateway", "kgateway"), ("envoy-gateway", "kgateway")
# Options that not every form takes, and those that do. In the others what they say stands elsewhere: a gateway has its
# own listener, and the engines of its service.
_TAKEN_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--listener", "--envoy-admin", "--engine", "--engine-name"), _ENVOYS),
    **dict.fromkeys(("--namespace", "--gateway", "--host", "--engines-service", "--fairlane-service"), _OBJECTS),
    "--gateway-listener": _ROUTED,
    "--selector": ("istio",),
    "--folder": ("xds",),
}

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
            "help": "That clients use for the engines, as the gateway has it; the port only for istio. "
            f"[default: {Place().host}, and {Place().port}]",
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


def check_form(form: str, given: Iterable[str]) -> None:
    """Raises WiringError for an option, of those `given`, that the form would not look at."""
    for option in given:
        takers = _TAKEN_BY.get(option, tuple(FORMS))
        if form not in takers:
            raise WiringError(
                f"{option}: the form {form} has no use for it, only {', '.join(takers)}; leave it out, or choose "
                f"{'that' if len(takers) == 1 else 'one of those'} by --form"
            )


def place(given: dict[str, Any], form: str) -> Place:
    """What was given of them. Raises WiringError."""
    found: dict[str, Any] = {}
    for option, field, check in (
        ("namespace", "namespace", names.label),
        ("gateway", "gateway", names.subdomain),
        ("gateway_listener", "listener", names.subdomain),
        ("folder", "folder", _folder),
        ("engines_service", "engines", partial(_service, form)),
        ("fairlane_service", "fairlane", partial(_service, form)),
    ):
        if given[option] is not None:
            found[field] = _checked(option, check, given[option])
    if given["host"] is not None:
        found |= _checked("host", partial(_host, form), given["host"])
    if given["selector"]:
        pairs = [_checked("selector", names.selector, each) for each in given["selector"]]
        if twice := sorted(name for name, times in Counter(name for name, _ in pairs).items() if times > 1):
            raise WiringError(f"--selector: named twice: {', '.join(twice)}")
        if given["gateway"] is not None:
            raise WiringError("--gateway and --selector: pods are found by their labels or by their Gateway; give one")
        found["selector"] = tuple(pairs)
    return Place(**found)


def _checked(option: str, check: Callable[[str], T], text: str) -> T:
    """Raises WiringError, which names the option."""
    try:
        return check(text)
    except ValueError as error:
        raise WiringError(f"--{option.replace('_', '-')}: {error}") from error


def _service(form: str, text: str) -> Address:
    at = HostPort.parse(text)
    host = names.service(at.host)
    if form == "istio" and ("." not in host or host.endswith(".svc")):
        raise ValueError(
            f"{shown(host)}: Istio names its cluster by the whole name; give service.namespace.svc.cluster.local"
        )
    return host, at.port


def _host(form: str, text: str) -> dict[str, Any]:
    """Name and port of the virtual host."""
    name, colon, port = text.partition(":")
    if form != "istio":
        if colon:
            raise ValueError(f"{shown(text)}: with a port only in the form istio; a Gateway's listener has the port")
        return {"host": names.hostname(name)}
    usable = port.isascii() and port.isdigit() and len(port) <= _DIGITS and 0 < int(port) <= _HIGHEST_PORT
    if not name or (colon and not usable):
        raise ValueError(f"{shown(text)} is no name or name:port, with a port of 1 to {_HIGHEST_PORT}")
    return {"host": names.istio_host(name), **({"port": int(port)} if colon else {})}


def _folder(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise ValueError(
            f"{shown(text)} is no whole path: Envoy would look for it in the folder that it was started in; give it "
            "from the root, like /etc/envoy/xds"
        )
    return text
