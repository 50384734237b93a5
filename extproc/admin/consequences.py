"""What a change means for those who are here already: warnings, never errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.admin.control import RunningPool
from extproc.config.faults import Fault, path_text
from extproc.config.model import Config


def in_use(before: Config, after: Config, running: Sequence[RunningPool]) -> Iterator[Fault]:
    """Pools, classes and tenants that are taken away while requests of theirs are here. O(flows) where a tenant is
    taken away, O(classes) else."""
    pools = {pool.name for pool in before.pools} - {pool.name for pool in after.pools}
    for each in running:
        scheduler = each.scheduler
        inside = sum(cls.queue.in_flight for cls in scheduler.classes)
        if each.pool.name in pools and (scheduler.queued or inside):
            yield Fault(
                path_text(("pools", each.pool.name)),
                f"{scheduler.queued} requests wait and {inside} slots are taken: it goes on until they are done",
            )
    for name in before.classes.keys() - after.classes.keys():
        queues = [cls.queue for each in running for cls in each.scheduler.classes if cls.policy.name == name]
        queued, inside = sum(map(len, queues)), sum(queue.in_flight for queue in queues)
        if queued or inside:
            yield Fault(
                path_text(("classes", name)),
                f"{queued} of its requests wait and {inside} slots are taken: it goes on until they are done",
            )
    gone = before.tenants.keys() - after.tenants.keys()
    if not gone:
        return
    held: dict[str, int] = {}
    for each in running:
        for cls in each.scheduler.classes:
            for leaf in cls.queue.leaves():
                if leaf.tenant in gone and (leaf.queued or leaf.in_flight):
                    held[leaf.tenant] = held.get(leaf.tenant, 0) + leaf.queued + leaf.in_flight
    for name, count in sorted(held.items()):
        yield Fault(
            path_text(("tenants", name)),
            f"{count} of its requests are here: they go on by the settings that tenants without their own have",
        )
