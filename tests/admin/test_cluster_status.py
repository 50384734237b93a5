"""What GetStatus says of other replicas."""

from __future__ import annotations

from reads_case import VIEWER, FakeControl, FakeRevisions, a_config

from extproc.admin.control import ClusterState, ReplicaState
from extproc.admin.status import status
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.replicas import _replica_state

FULL = ClusterState(
    mode="standby",
    name="fairlane",
    replica="r1",
    expected=3,
    active=False,
    active_replica="r2",
    store_used=True,
    lost_s=2.5,
    error="no connection",
    exchange_age_s=3.25,
    exchanges=10,
    failures=4,
    replicas=(ReplicaState("r1", 0.0, "1.0", 7), ReplicaState("r2", 3.5, "1.1", 8, 4, "does not fit", "shared")),
    in_use=True,
    other_versions=("2",),
)


def told(state: ClusterState | None) -> pb.Status:
    config = a_config()
    return status(FakeControl([], cluster_state=state), FakeRevisions(config), VIEWER, 0)  # type: ignore[arg-type]


def test_one_process_says_nothing() -> None:
    assert not told(None).HasField("cluster")


def test_every_field() -> None:
    cluster = told(FULL).cluster
    assert (cluster.mode, cluster.name, cluster.replica, cluster.expected_count) == (pb.STANDBY, "fairlane", "r1", 3)
    assert (cluster.active, cluster.active_replica, cluster.replica_in_use) == (False, "r2", True)
    assert (cluster.store_used, cluster.store_lost, cluster.store_error) == (True, True, "no connection")
    assert cluster.store_lost_for.ToMilliseconds() == 2500
    assert cluster.exchange_age.ToMilliseconds() == 3250
    assert (cluster.exchange_count, cluster.failure_count, list(cluster.other_versions)) == (10, 4, ["2"])
    rows = [(each.replica, each.age.ToMilliseconds(), each.version, each.revision) for each in cluster.replicas]
    assert rows == [("r1", 0, "1.0", 7), ("r2", 3500, "1.1", 8)]
    assert [(each.cluster_revision, each.refused_error) for each in cluster.replicas] == [(0, ""), (4, "does not fit")]
    assert [each.mode for each in cluster.replicas] == ["", "shared"]
    unset = [field.name for field in cluster.DESCRIPTOR.fields if not _is_set(cluster, field.name)]
    assert unset == ["active"]


def test_a_mode_is_taken_as_far_as_it_is_a_short_text() -> None:
    modes = [
        _replica_state("r2", 1.0, info).mode for info in ({"mode": "shared"}, {"mode": 7}, {}, {"mode": "x" * 999})
    ]
    assert modes == ["shared", "", "", "x" * 63]


def test_what_is_not_known_is_not_set() -> None:
    cluster = told(ClusterState("partition", "fairlane", "r1", 2)).cluster
    assert (cluster.mode, cluster.active, cluster.store_used, cluster.store_lost) == (pb.PARTITION, True, False, False)
    assert not cluster.HasField("store_lost_for")
    assert not cluster.HasField("exchange_age")


def test_every_mode_has_a_word() -> None:
    for mode in ("single", "standby", "partition", "shared"):
        assert pb.ClusterMode.Name(told(ClusterState(mode, "f", "r", 1)).cluster.mode) == mode.upper()


def _is_set(message: pb.ClusterStatus, name: str) -> bool:
    return name in {field.name for field, _ in message.ListFields()}
