"""What a replica says of its cluster, in words: for `fairlane ctl status` and `fairlane top`."""

from __future__ import annotations

from extproc.cli.ctl import cells
from extproc.pb.admin.v1 import admin_pb2


def role(cluster: admin_pb2.ClusterStatus) -> str:
    """Its id, and what it does."""
    if cluster.active:
        return f"{cells.text(cluster.replica)}, active"
    who = f"{cluster.active_replica} is active" if cluster.active_replica else "nobody is known to be active"
    return f"{cells.text(cluster.replica)}, stands by: {who}"


def store(cluster: admin_pb2.ClusterStatus) -> str:
    """How it reaches the store."""
    if not cluster.store_used:
        return "none: the replicas know nothing of each other"
    if cluster.store_lost:
        since = f" for {cells.duration(cluster, 'store_lost_for')}" if cluster.HasField("store_lost_for") else ""
        return f"lost{since}"
    return f"answered {cells.duration(cluster, 'exchange_age')} ago"


def there(cluster: admin_pb2.ClusterStatus) -> str:
    """How many replicas there are."""
    return f"{len(cluster.replicas)} of {cluster.expected_count}"


def troubles(cluster: admin_pb2.ClusterStatus) -> list[str]:
    """The worst first."""
    found = []
    if cluster.replica_in_use:
        found.append(
            f"another process has the replica id {cluster.replica}, so this one takes no part: give each its own "
            "(cluster.replica)"
        )
    if cluster.store_used and cluster.store_lost:
        found.append(f"the store of the cluster does not answer: {'; '.join(cluster.store_error.splitlines())}")
    own = cells.word(cluster, "mode")
    others = [
        f"{each.replica} ({' '.join(each.mode.split())})" for each in cluster.replicas if each.mode not in ("", own)
    ]
    if others:
        found.append(
            f"replicas of one cluster need one cluster.mode, and this one's is {own}, unlike that of "
            f"{', '.join(others)}: restart those of the wrong mode, or give them a cluster.name of their own"
        )
    if cluster.other_versions:
        versions = ", ".join(cluster.other_versions)
        found.append(f"there are replicas that do not see this one: their version in the store is {versions}")
    return found
