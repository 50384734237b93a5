"""When time alone ends something: a request that has waited for too long, or whose token count stays away.

A heap with lazy deletion: an entry counts while its request still waits for just this moment. What is stale is
dropped when it comes to the top, or all at once when there is more of it than of anything else.
"""

from __future__ import annotations

import heapq

from extproc.core.model import Request, State

_SLACK = 256  # stale entries that are not worth a rebuild


class Deadlines:
    """Of the requests of one pool. Times are seconds."""

    __slots__ = ("_heap", "_seq")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._seq = 0

    def __len__(self) -> int:
        """Entries, stale ones among them."""
        return len(self._heap)

    def set(self, request: Request, at: float, known: int) -> None:
        """`request` waits until `at` from now on. `known`: requests of the pool."""
        request.deadline = at
        self._seq += 1
        heapq.heappush(self._heap, (at, self._seq, request))
        if len(self._heap) > _SLACK + 2 * known:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)

    def next_at(self) -> float | None:
        """The first of them; None: there is none."""
        heap = self._heap
        while heap and not _counts(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def passed(self, now: float) -> bool:
        """False: none has, for certain. O(1)."""
        return bool(self._heap) and self._heap[0][0] <= now

    def pop(self, now: float) -> Request | None:
        """The next request whose deadline has passed; None: there is no other."""
        at = self.next_at()
        return None if at is None or at > now else heapq.heappop(self._heap)[2]


def _counts(entry: tuple[float, int, Request]) -> bool:
    at, _, request = entry
    if request.deadline != at:
        return False
    return request.state is State.QUEUED or (request.state is State.ENDED and not request.settled)
