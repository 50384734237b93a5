"""What cannot change while Fairlane runs, and what can."""

from __future__ import annotations

from typing import Any

import pytest
from config_case import POOL, good

from extproc.config.load import Fault, from_data
from extproc.config.restart import needs_restart

OTHER = {"name": "other", "models": ["o"], "endpoints": ["127.0.0.1:8002"]}

SAYS = "the file says it when Fairlane starts"


def paths(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    faults = needs_restart(good(**old), good(**new))
    assert all("needs a restart" in fault.message for fault in faults)
    return [fault.path for fault in faults]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"listen": {"http": "127.0.0.1:9191"}}, ["listen.http"]),
        ({"listen": {"admin": "unix:/run/a.sock", "ext_proc": "0.0.0.0:50051"}}, ["listen.ext_proc", "listen.admin"]),
        ({"admin": {"state": "/var/lib/state.db"}}, ["admin.state"]),
        ({"admin": {"keep_audit": 500}}, ["admin.keep_audit"]),
        ({"admin": {"tls": {"certificate": "c", "key": "k"}}}, ["admin.tls.certificate", "admin.tls.key"]),
        ({"requests": {"max_body": "33MiB"}}, ["requests.max_body"]),
        ({"pool": {"cost": {"unit": "requests"}}}, ["pools.sim.cost.unit"]),
        ({"pool": {"pick": {"by": "envoy"}}}, ["pools.sim.pick.by"]),
    ],
)
def test_what_needs_one(new: dict[str, Any], expected: list[str]) -> None:
    assert sorted(paths({}, new)) == sorted(expected)
    if expected != ["requests.max_body"]:
        assert sorted(paths(new, {})) == sorted(expected)  # and back


@pytest.mark.parametrize(
    "new",
    [
        {"listen": {"http": "127.0.0.1:9090"}},  # the default, spelt out
        {"requests": {"max_buffered": "1MiB", "malformed": "reject", "queued": ["/x"]}},
        {"on_fault": "reject", "shutdown": {"grace": "1s", "held": "refuse"}},
        {"tenants": {"a": {"weight": 2}}, "identity": {"tenant": [], "separator": "/"}},
        {"classes": {"only": {"rank": 0, "priority": 0}}, "default_class": "only"},
        {"pool": {"cost": {"prompt": 3}, "pick": {"load": 2}, "endpoints": ["127.0.0.1:1"], "mode": "off"}},
        {"pool": {"metrics": {"interval": "1s"}, "engine": "vllm", "traffic": "paused"}},
        {"recording": {"file": "/x"}},
    ],
)
def test_what_changes_live(new: dict[str, Any]) -> None:
    assert paths({}, new) == []
    assert paths(new, {}) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"enabled": False}, "telemetry.enabled"),
        ({"page": False}, "telemetry.page"),
        ({"traces": {"sample": 0.5}}, "telemetry.traces"),
        ({"tenants": {"top": 3}}, None),
        ({"log": {"slow_after": None}}, None),
    ],
)
def test_what_is_told(changes: dict[str, object], path: str | None) -> None:
    faults = [] if path is None else [Fault(path, f"needs a restart: {SAYS}")]
    assert needs_restart(good(), good(telemetry=changes)) == faults


def test_pools_are_compared_by_name() -> None:
    old = from_data({"pools": [{**POOL, "cost": {"unit": "requests"}}, OTHER]})
    assert needs_restart(old, from_data({"pools": [OTHER, {**POOL, "cost": {"unit": "requests"}}]})) == []
    # one that comes or goes has nothing to be compared with
    assert needs_restart(old, from_data({"pools": [OTHER]})) == []
    assert needs_restart(from_data({"pools": [OTHER]}), old) == []
    swapped = from_data({"pools": [POOL, {**OTHER, "cost": {"unit": "requests"}}]})
    assert needs_restart(old, swapped) == [
        Fault(
            "pools.sim.cost.unit", "needs a restart (from requests to tokens): the file says it when Fairlane starts"
        ),
        Fault(
            "pools.other.cost.unit", "needs a restart (from tokens to requests): the file says it when Fairlane starts"
        ),
    ]


def test_the_largest_body_goes_by_what_the_server_was_started_with() -> None:
    small, large = good(requests={"max_body": "1MiB"}), good(requests={"max_body": "8MiB"})
    assert needs_restart(small, large, large) == []
    assert needs_restart(small, large) == [
        Fault(
            "requests.max_body",
            f"needs a restart (the server was started for 1MiB at most): {SAYS}",
        )
    ]
