"""When time alone ends something: a request that has waited for too long, or whose token count stays away.

Entries leave with what they stand for: were they left behind, a mass cancel would have to be cleaned up later, all
at once, while others wait.
"""

from __future__ import annotations

import math

from extproc.core.model import Request
from extproc.core.sorted_blocks import FULL, insert, remove


class Deadlines:
    """Of the requests of one pool, one for each at most. Times are seconds."""

    __slots__ = ("_blocks", "first")

    def __init__(self) -> None:
        self.first = math.inf  # when the next of them passes; infinite: there is none. Kept, since each event asks
        self._blocks: list[list[tuple[float, int, Request]]] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def set(self, request: Request, at: float) -> None:
        """`request`, which has none, waits until `at`."""
        request.expires_at = at
        key = (at, request.seq, request)
        blocks = self._blocks
        if blocks and key > (block := blocks[-1])[-1] and len(block) < FULL:
            block.append(key)  # as `insert` does; mostly it is the last
        else:
            insert(blocks, key)
        if at < self.first:
            self.first = at

    def drop(self, request: Request) -> None:
        """`request` waits for it no more."""
        blocks = self._blocks
        remove(blocks, (request.expires_at, request.seq, request))
        if request.expires_at == self.first:
            self.first = blocks[0][0][0] if blocks else math.inf

    def passed(self, now: float) -> Request | None:
        """A request whose deadline has passed; None: there is none."""
        return self._blocks[0][0][2] if self.first <= now else None
