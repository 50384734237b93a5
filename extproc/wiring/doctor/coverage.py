"""What was looked at and what was not: filters that ask nobody, parts that cannot be read, versions."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.description import NEWEST, OLDEST
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Setup

_SSE_SINCE = 38  # Envoy 1.x
_TWICE_UNTIL = 37


def _no_filter(setup: Setup) -> Iterator[Hit]:
    if not setup.gateways:
        dynamic = any("listeners come from a control plane" in hit.what for hit in setup.not_checked)
        yield Hit(
            setup.raw.where or "static_resources.listeners",
            "no listener has an ext_proc filter that asks Fairlane"
            + ("; its listeners come from a control plane" if dynamic else ""),
            "# ask the running Envoy, which has them: fairlane doctor --envoy-admin http://127.0.0.1:9901"
            if dynamic
            else None,
        )


def _cluster_unknown(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        service = each.service.envoy_grpc
        if service is not None and service.cluster_name not in setup.clusters:
            yield Hit(each.at, f"cluster {service.cluster_name} is not in this configuration")
        if service is None:
            yield Hit(each.at, "google_grpc instead of envoy_grpc: its retries, limits and health are not looked at")


def _not_checked(setup: Setup) -> Iterator[Hit]:
    yield from setup.not_checked


def _invalid(setup: Setup) -> Iterator[Hit]:
    yield from setup.invalid


def _version(setup: Setup) -> Iterator[Hit]:
    if setup.version is None:
        return
    major, minor, patch = setup.version
    name = f"Envoy {major}.{minor}.{patch}"
    if major != 1 or not OLDEST <= minor <= NEWEST:
        yield Hit("", f"{name}: tried are 1.{OLDEST} to 1.{NEWEST}")
        return
    if minor < _SSE_SINCE:
        yield Hit("", f"{name} has no sse_to_metadata: token counts of streams need envoy/lua/usage.lua")
    duplex = any(mode.request_body == Body.FULL_DUPLEX_STREAMED for _, _, mode in setup.modes())
    if minor <= _TWICE_UNTIL and duplex:
        yield Hit("", f"{name} sends the last piece of a large body twice (its issue 46237); Fairlane ignores it")


CHECKS = (
    Check(
        "ext_proc_missing",
        Severity.ERROR,
        "Requests are held by an ext_proc filter that asks Fairlane, told by the name `fairlane` or the port of its "
        "cluster, or by --cluster.",
        "# fairlane envoy-config writes a whole configuration; 'Into an Envoy that you have' in envoy/README.md: "
        "its parts",
        _no_filter,
    ),
    Check(
        "cluster_unknown",
        Severity.WARNING,
        "Limits, keep-alive, health checks and addresses of Fairlane's cluster were not looked at.",
        "# ask the running Envoy, which has it: fairlane doctor --envoy-admin http://127.0.0.1:9901",
        _cluster_unknown,
    ),
    Check(
        "invalid",
        Severity.ERROR,
        "Envoy refuses a configuration with a member of the wrong kind, and so did the library of its messages.",
        "# envoy --mode validate -c FILE says what Envoy expects",
        _invalid,
    ),
    Check(
        "not_checked",
        Severity.NOTE,
        "What is of an unknown type, or not in the file, was not looked at; the rest was.",
        "# ask the running Envoy for what comes from a control plane: --envoy-admin http://127.0.0.1:9901",
        _not_checked,
    ),
    Check(
        "envoy_version",
        Severity.NOTE,
        "Some versions of Envoy lack a filter or have a fault that others have not.",
        "# fairlane envoy-config --envoy-version 1.36 writes what an older one takes",
        _version,
    ),
)
