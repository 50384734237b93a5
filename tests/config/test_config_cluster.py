"""The section `cluster`: what it takes, and what it says of what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from config_case import POOL, error, good

from extproc.config.cluster import Cluster
from extproc.config.load import Fault, from_data
from extproc.config.restart import needs_restart

STORE = {"addresses": ["127.0.0.1:6379"]}
SENTINEL = {"addresses": ["10.0.0.1:26379", "10.0.0.2:26379"], "kind": "sentinel", "sentinel_name": "m"}
STANDBY = {"mode": "standby", "store": STORE}
SHARED = {"mode": "shared", "store": STORE}


def of_store(**changes: Any) -> str:
    return error(cluster={"mode": "shared", "store": {**STORE, **changes}})


def test_one_process_is_the_default() -> None:
    cluster = good().cluster
    assert cluster == Cluster()
    assert (cluster.mode, cluster.store, cluster.replica) == ("single", None, None)
    assert (cluster.period, cluster.timeout, cluster.lease, cluster.replicas) == (0.1, 0.5, 3.0, 2)


@pytest.mark.parametrize(
    "cluster",
    [
        STANDBY,
        SHARED,
        {"mode": "partition"},
        {"mode": "partition", "store": STORE},
        {"mode": "single", "store": STORE},
        {"mode": "shared", "store": SENTINEL},
        {"mode": "shared", "store": {**SENTINEL, "sentinel_password_file": "/s/p", "database": 3}},
        {"mode": "shared", "store": {"addresses": ["10.0.0.1:6379", "10.0.0.2:6379"], "kind": "cluster"}},
        {"mode": "shared", "store": {"addresses": ["unix:/run/valkey.sock"], "database": 1}},
        {"mode": "shared", "store": {**STORE, "username": "u", "password_file": "/s/p"}},
        {"mode": "shared", "store": {**STORE, "tls": {}}},
        {"period": "50ms", "timeout": "5s", "lease": "60s"},
        {"period": "2s", "lease": "6s"},
        {"replica": "fairlane-0.zone_a", "name": "A" * 63, "replicas": 64},
    ],
)
def test_what_can_be(cluster: dict[str, Any]) -> None:
    assert good(cluster=cluster).cluster == Cluster.model_validate(cluster)


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"mode": "shared"}, "mode shared needs a store"),
        ({"mode": "standby"}, "mode standby needs a store"),
        ({"mode": "active"}, "mode"),
        ({"name": "a b"}, "must be letters, digits"),
        ({"name": ""}, "must be letters, digits"),
        ({"name": "a" * 64}, "at most 63"),
        ({"replica": "a{b}"}, "must be letters, digits"),
        ({"replica": "é"}, "must be letters, digits"),
        ({"replica": "a\n"}, "must be letters, digits"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 65}, "replicas"),
        ({"period": "49ms"}, "period must be from 50ms to 2s, not 49ms"),
        ({"period": "3s", "lease": "60s"}, "period must be from 50ms to 2s, not 3s"),
        ({"period": 0.1}, "expected a duration"),
        ({"timeout": "6s", "lease": "60s"}, "timeout must be from 50ms to 5s, not 6s"),
        ({"lease": "500ms"}, "lease must be from 1s to 1m, not 500ms"),
        ({"lease": "61s"}, "lease must be from 1s to 1m, not 61s"),
        ({"period": "2s", "lease": "5s"}, "must be 3 periods at least (6s)"),
        ({"timeout": "1500ms", "lease": "3s"}, "must be longer than two timeouts (3s)"),
        ({"store": {}}, "addresses"),
        ({"leader": True}, "leader"),
    ],
)
def test_what_cannot_be(cluster: dict[str, Any], told: str) -> None:
    assert told in error(cluster=cluster)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"addresses": []}, "addresses"),
        ({"addresses": ["127.0.0.1"]}, "expected host:port"),
        ({"addresses": ["redis://127.0.0.1:6379"]}, "expected host:port"),
        ({"addresses": ["a:1", "b:1"]}, "Say kind: sentinel or kind: cluster, or name one"),
        ({"addresses": ["a:1", "a:1"], "kind": "cluster"}, "a:1 stands there twice"),
        ({"addresses": ["unix:/run/v.sock", "a:1"], "kind": "cluster"}, "give host:port"),
        ({"addresses": ["unix:/run/v.sock"], "tls": {}}, "leave tls out"),
        ({"kind": "sentinel"}, "needs sentinel_name"),
        ({"sentinel_name": "m"}, "say kind: sentinel"),
        ({"sentinel_password_file": "/s/p", "kind": "cluster"}, "means nothing with kind cluster"),
        ({"kind": "cluster", "database": 1}, "has no database but 0"),
        ({"database": -1}, "database"),
        ({"username": "u"}, "without password_file"),
        ({"tls": {"certificate": "c.pem"}}, "certificate is given without key"),
        ({"tls": {"key": "c.key"}}, "key is given without certificate"),
        ({"tls": {"name": "a b"}}, "must be a host's name"),
        ({"password": "hunter2"}, "password"),
    ],
)
def test_stores_that_cannot_be(changes: dict[str, Any], told: str) -> None:
    assert told in of_store(**changes)


def test_no_password_is_repeated() -> None:
    assert "hunter2" not in of_store(password="hunter2")
    assert "hunter2" not in error(cluster={"password": "hunter2"})


def test_replicas_share_what_fairlane_places() -> None:
    told = error({"pick": {"by": "envoy"}}, cluster=SHARED)
    assert "pools: sim: pick.by is envoy, and cluster.mode is shared" in told
    assert "Take pick.by fairlane (the default), or cluster.mode standby or partition" in told
    for cluster in (STANDBY, {"mode": "partition"}):
        assert good({"pick": {"by": "envoy"}}, cluster=cluster).pools[0].pick.by == "envoy"


@pytest.mark.parametrize(
    ("cluster", "shared"), [({}, False), (STANDBY, False), ({"mode": "partition"}, False), (SHARED, True)]
)
def test_the_core_is_told(cluster: dict[str, Any], shared: bool) -> None:
    config = good(cluster=cluster)
    assert [config.pool_policy(pool).shared for pool in config.pools] == [shared]


@pytest.mark.parametrize(
    ("new", "paths"),
    [
        (STANDBY, ["cluster.mode", "cluster.store"]),
        ({"replicas": 3}, ["cluster.replicas"]),
        ({"period": "200ms", "lease": "4s"}, ["cluster.period", "cluster.lease"]),
    ],
)
def test_it_needs_a_restart(new: dict[str, Any], paths: list[str]) -> None:
    for one, other in ((good(), good(cluster=new)), (good(cluster=new), good())):
        assert sorted(fault.path.removesuffix(".addresses") for fault in needs_restart(one, other)) == sorted(paths)


def test_the_same_again_needs_none() -> None:
    spelt_out = {**SHARED, "name": "fairlane", "period": "100ms", "store": {**STORE, "kind": "single"}}
    assert needs_restart(good(cluster=SHARED), good(cluster=spelt_out)) == []
    assert needs_restart(
        from_data({"pools": [POOL], "cluster": SHARED}),
        from_data({"pools": [POOL], "cluster": {**SHARED, "name": "b"}}),
    ) == [Fault("cluster.name", "needs a restart: the file says it when Fairlane starts")]
