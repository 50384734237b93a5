"""Rates in cost units a second: token buckets of nodes of the tree.

A bucket holds `burst` units when it is full and gains `rate` units a second. A release takes its
estimated charge at once and may take more than there is: the bucket goes into debt, and nothing more goes
until it is positive again. A true-up takes or gives back the difference. So over any time t no more than
burst + rate * t + one charge is taken, plus what true-ups add later, which is paid off by waiting.

A full bucket always lets one go, so `burst` 0 means one after the other at the rate.

A bucket belongs to the path of a node and is shared by the queues of all classes of a pool (`Buckets`).
`members` are the nodes that it holds up, with the queue of each, which is told of every change.

Left out: a rate per class. A bucket without members is kept until it is full again, so that leaving and
coming back gains nothing. Of these there are `MAX_ALONE` at most: beyond it the one that would be full soonest is
forgotten, which forgives it what it still lacks. To have a debt forgiven, so many names have to be in deeper debt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from extproc.core.model import TenantPolicy
from extproc.core.sorted_blocks import build, insert, remove

MAX_ALONE = 50_000  # buckets of a pool that nobody has anything in and that are not full


class Member(Protocol):
    """A queue that has nodes with a bucket."""

    def reconsider(self, node: object) -> None:
        """What the node's bucket says has changed."""


class Bucket:
    """Tokens of one node path. Times are seconds, amounts cost units."""

    __slots__ = ("alone", "at", "burst", "level", "members", "path", "rate", "ready_at")

    def __init__(self, path: str, rate: float, burst: float, now: float) -> None:
        self.path = path
        self.rate = rate
        self.burst = burst
        self.level = burst
        self.at = now
        self.ready_at = -math.inf  # from when something may go
        self.members: dict[object, Member] = {}
        self.alone: AloneKey | None = None  # its entry among those without members

    def level_at(self, now: float) -> float:
        return min(self.burst, self.level + self.rate * max(0.0, now - self.at))

    def take(self, amount: float, now: float) -> None:
        """Less than 0 gives back. Goes into debt where there is not enough."""
        if now > self.at:
            self.level = self.level_at(now)
            self.at = now
        self._set(min(self.burst, self.level - amount))

    def full_at(self) -> float:
        return self.at + (self.burst - self.level) / self.rate

    def reconfigure(self, rate: float, burst: float, now: float) -> None:
        """What is missing from a full bucket stays missing."""
        if (rate, burst) == (self.rate, self.burst):
            return
        missing = self.burst - self.level_at(now)
        self.at = max(now, self.at)
        self.rate, self.burst = rate, burst
        self._set(burst - missing)

    def _set(self, level: float) -> None:
        self.level = level
        if level > 0.0 or level >= self.burst:
            self.ready_at = -math.inf
        elif self.burst == 0.0:
            self.ready_at = self.full_at()
        else:
            # The next float: at the moment itself the bucket holds 0, and is still empty.
            self.ready_at = math.nextafter(self.at - level / self.rate, math.inf)


AloneKey = tuple[float, int, Bucket]  # when it is full, a number of its own


class Buckets:
    """The buckets of a pool, by path of their node. `now` is the last time that any queue was told."""

    __slots__ = ("_count", "alone", "by_path", "listed", "now")

    def __init__(self) -> None:
        self.now = -math.inf
        self.by_path: dict[str, Bucket] = {}  # public to read
        self.listed: list[list[AloneKey]] = []  # those without members, by the time at which they are full
        self.alone = 0  # how many these are
        self._count = 0

    def __len__(self) -> int:
        return len(self.by_path)

    def get(self, path: str) -> Bucket | None:
        return self.by_path.get(path)

    def join(self, path: str, policy: TenantPolicy, node: object, queue: Member) -> Bucket | None:
        """The bucket of a node, which is a member of it from now on; None: its policy has no rate."""
        if policy.rate is None:
            return None
        self._drop_full()
        bucket = self.by_path.get(path)
        if bucket is None:
            bucket = self.by_path[path] = Bucket(path, policy.rate, policy.rate_burst, self._time())
        else:
            self._not_alone(bucket)
            bucket.reconfigure(policy.rate, policy.rate_burst, self._time())
        bucket.members[node] = queue
        return bucket

    def leave(self, bucket: Bucket, node: object) -> None:
        bucket.members.pop(node, None)
        if bucket.members or bucket.alone is not None:
            return
        self._count += 1
        bucket.alone = (bucket.full_at(), self._count, bucket)
        insert(self.listed, bucket.alone)
        self.alone += 1
        if self.alone > MAX_ALONE:
            self._forget_first()

    def take(self, bucket: Bucket, amount: float) -> None:
        """Takes (or gives back) now, and tells all that it holds up."""
        bucket.take(amount, self._time())
        if bucket.alone is not None:  # it was charged at another replica
            remove(self.listed, bucket.alone)
            bucket.alone = (bucket.full_at(), bucket.alone[1], bucket)
            insert(self.listed, bucket.alone)
        for node, queue in list(bucket.members.items()):
            queue.reconsider(node)

    def change_alone(self, tenant: Callable[[str], TenantPolicy]) -> None:
        """Tell those without members what their policy is now. Those with members are told as their nodes join anew.
        O(n log n)."""
        keys = []
        for bucket in self.by_path.values():
            if bucket.alone is not None:
                policy = tenant(bucket.path)
                if policy.rate is not None:
                    bucket.reconfigure(policy.rate, policy.rate_burst, self._time())
                bucket.alone = (bucket.full_at(), bucket.alone[1], bucket)
                keys.append(bucket.alone)
        self.listed = build(keys)

    def _time(self) -> float:
        return self.now if self.now > -math.inf else 0.0

    def _not_alone(self, bucket: Bucket) -> None:
        if bucket.alone is not None:
            remove(self.listed, bucket.alone)
            bucket.alone = None
            self.alone -= 1

    def _drop_full(self) -> None:
        """A few at a time: for each that joins, two that nobody needs may go."""
        for _ in range(2):
            if not self.listed or self.listed[0][0][0] > self.now:
                return
            self._forget_first()

    def _forget_first(self) -> None:
        bucket = self.listed[0][0][2]
        self._not_alone(bucket)
        del self.by_path[bucket.path]


def check_rate(path: str, policy: TenantPolicy) -> None:
    """Raises ValueError for a rate or a burst that is none."""
    if policy.rate is not None and not (policy.rate > 0.0 and math.isfinite(policy.rate)):
        raise ValueError(f"rate of {path!r} must be a positive number of cost units a second, not {policy.rate!r}")
    if not (policy.rate_burst >= 0.0 and math.isfinite(policy.rate_burst)):
        raise ValueError(f"rate_burst of {path!r} must be a number of cost units from 0 on, not {policy.rate_burst!r}")
