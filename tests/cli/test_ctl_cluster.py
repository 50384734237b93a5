"""`fairlane ctl status` and `fairlane ctl pool` of a replica of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import Result
from ctl_case import Service
from google.protobuf import duration_pb2

from extproc.cli.ctl import cluster
from extproc.pb.admin.v1 import admin_pb2 as pb


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as running:
        yield running


def good(done: Result) -> str:
    assert done.exit_code == 0, done.output + done.stderr
    return done.stdout


def a_status(**changes: object) -> pb.Status:
    told = {
        "mode": pb.SHARED,
        "name": "fairlane",
        "replica": "r1",
        "active": True,
        "store_used": True,
        "exchange_age": duration_pb2.Duration(nanos=100_000_000),
        "expected_count": 3,
        "replicas": [
            pb.ReplicaStatus(replica="r1", age=duration_pb2.Duration(), version="1.0", revision=7),
            pb.ReplicaStatus(
                replica="r2",
                age=duration_pb2.Duration(seconds=2),
                version="1.0",
                revision=6,
                cluster_revision=3,
                refused_error="no pool m",
            ),
        ],
    }
    cluster_status = pb.ClusterStatus(**{**told, **changes})  # type: ignore[arg-type]
    return pb.Status(serving=True, revision=7, file=pb.FileStatus(good=True), cluster=cluster_status)


def test_one_process_has_no_lines_of_it(service: Service) -> None:
    service.answers["GetStatus"] = pb.Status(serving=True, file=pb.FileStatus(good=True))
    lines = good(service.run("status")).splitlines()
    assert not [line for line in lines if line.startswith(("cluster", "replica", "store"))]


def test_a_replica_that_shares(service: Service) -> None:
    service.answers["GetStatus"] = a_status()
    done = service.run("status")
    lines = good(done).splitlines()
    assert "cluster    fairlane (shared)" in lines
    assert "replica    r1, active" in lines
    assert "store      answered 100ms ago" in lines
    assert "replicas   2 of 3" in lines
    assert [line.split() for line in lines[-2:]] == [
        ["r1", "0ms", "1.0", "7", "0", "-"],
        ["r2", "2.0s", "1.0", "6", "3", "no", "pool", "m"],
    ]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"active": False, "active_replica": "r2"}, "replica    r1, stands by: r2 is active"),
        ({"active": False}, "replica    r1, stands by: nobody is known to be active"),
        ({"store_used": False}, "store      none: the replicas know nothing of each other"),
        ({"store_lost": True, "store_lost_for": duration_pb2.Duration(seconds=5)}, "store      lost for 5.0s"),
    ],
)
def test_what_it_does(service: Service, changes: dict[str, object], line: str) -> None:
    service.answers["GetStatus"] = a_status(**changes)
    assert line in good(service.run("status")).splitlines()


def test_what_is_wrong_is_a_warning(service: Service) -> None:
    service.answers["GetStatus"] = a_status(
        store_lost=True, store_error="no connection\nto it", replica_in_use=True, other_versions=["2", "3"]
    )
    done = service.run("status")
    good(done)
    assert done.stderr.splitlines() == [
        "Warning: another process has the replica id r1, so this one takes no part: give each its own "
        "(cluster.replica)",
        "Warning: the store of the cluster does not answer: no connection; to it",
        "Warning: there are replicas that do not see this one: their version in the store is 2, 3",
    ]
    assert cluster.troubles(a_status().cluster) == []


def replicas_of_modes(*modes: str) -> list[pb.ReplicaStatus]:
    return [pb.ReplicaStatus(replica=f"r{number}", mode=mode) for number, mode in enumerate(modes, 1)]


def test_another_mode_is_a_warning(service: Service) -> None:
    service.answers["GetStatus"] = a_status(replicas=replicas_of_modes("shared", "partition", "", "shared", "new\none"))
    done = service.run("status")
    good(done)
    assert done.stderr.splitlines() == [
        "Warning: replicas of one cluster need one cluster.mode, and this one's is shared, unlike that of r2 "
        "(partition), r5 (new one): restart those of the wrong mode, or give them a cluster.name of their own"
    ]


def test_one_mode_or_none_that_is_known_is_no_trouble() -> None:
    assert cluster.troubles(a_status(replicas=replicas_of_modes("shared", "shared", "")).cluster) == []


def a_pool(*endpoints: pb.Endpoint) -> pb.Pool:
    return pb.Pool(name="m", mode=pb.ENFORCE, endpoints=endpoints)


def test_the_part_of_an_endpoint_is_shown_where_there_is_one(service: Service) -> None:
    alone = pb.Endpoint(address="10.0.0.1:1", pool="m", in_flight_slots=3, limit=8, room=1)
    service.answers["GetPool"] = a_pool(alone)
    assert "PART" not in good(service.run("pool", "m"))
    shared = pb.Endpoint(claim_slots=4, others_slots=2)
    shared.MergeFrom(alone)
    service.answers["GetPool"] = a_pool(shared)
    *_, head, row = good(service.run("pool", "m")).splitlines()
    assert head.split()[:9] == ["ENDPOINT", "POOL", "STANCE", "IN", "FLIGHT", "LIMIT", "ROOM", "PART", "OTHERS"]
    assert row.split()[3:8] == ["3", "8", "1", "4", "2"]
