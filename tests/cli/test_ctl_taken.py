"""What a change tells of the other replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from ctl_case import Service

from extproc.pb.admin.v1 import admin_pb2 as pb

WHY = ("--reason", "a test")


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


def result(*replicas: pb.ReplicaTaken) -> pb.ChangeResult:
    changes = [pb.FieldChange(path="pools.llama.traffic")]
    return pb.ChangeResult(revision=7, changes=changes, cluster_revision=5, replicas=replicas)


def test_all_have_taken_it(service: Service) -> None:
    service.answers["SetPool"] = result(*(pb.ReplicaTaken(replica=name, taken=True) for name in "abc"))
    done = service.run("pause", "llama", *WHY)
    assert done.stdout.splitlines()[1:] == [
        "Revision 7 is in force.",
        "To take it back: fairlane ctl rollback 6",
        "Cluster revision 5: taken by 3 of 3 replicas.",
    ]
    assert (done.stderr, done.exit_code) == ("", 0)


def test_who_has_not_and_why(service: Service) -> None:
    service.answers["SetPool"] = result(
        pb.ReplicaTaken(replica="a", taken=True),
        pb.ReplicaTaken(replica="b", error="tenants.acme: there is no class 'batch'"),
        pb.ReplicaTaken(replica="c\x1b[2J"),
    )
    done = service.run("pause", "llama", *WHY)
    assert done.stdout.splitlines()[-1] == "Cluster revision 5: taken by 1 of 3 replicas."
    assert done.stderr.splitlines() == [
        "Warning: replica b: tenants.acme: there is no class 'batch'",
        "Warning: replica c\\x1b[2J: has not taken it",
    ]
    assert done.exit_code == 0
    whole = json.loads(service.run("pause", "llama", "-o", "json", *WHY).stdout)
    assert [each["taken"] for each in whole["replicas"]] == [True, False, False]


def test_those_that_nobody_sees_are_told_once(service: Service) -> None:
    unseen = [pb.ReplicaTaken(replica="?", error="of 3 (cluster.replicas) 2 cannot be seen now")] * 2
    service.answers["SetPool"] = result(pb.ReplicaTaken(replica="a", taken=True), *unseen)
    done = service.run("pause", "llama", *WHY)
    assert done.stdout.splitlines()[-1] == "Cluster revision 5: taken by 1 of 3 replicas."
    assert done.stderr.splitlines() == ["Warning: replica ?: of 3 (cluster.replicas) 2 cannot be seen now"]


def test_a_process_alone_says_nothing_of_others(service: Service) -> None:
    service.answers["SetPool"] = pb.ChangeResult(revision=7, changes=[pb.FieldChange(path="pools.llama.traffic")])
    assert "eplica" not in service.run("pause", "llama", *WHY).output
