"""How many of ours were inside a moment ago: gauges lag, so a page is compared with the past."""

from __future__ import annotations

from collections import deque

BACK_S = 5.0
GRAIN_S = 0.01


class History:
    """Counts over the last five seconds, in steps of 10 ms; the present count is the caller's.

    Before it changes: `if now - history.changed_at >= GRAIN_S: history.note(count, now)`."""

    __slots__ = ("_past", "changed_at")

    def __init__(self) -> None:
        self._past: deque[tuple[float, int]] = deque()  # (until, count)
        self.changed_at = float("-inf")

    def __len__(self) -> int:
        return len(self._past)

    def note(self, count: int, now: float) -> None:
        """It has been `count` until now."""
        past = self._past
        past.append((now, count))
        self.changed_at = now
        while past[0][0] < now - BACK_S:
            past.popleft()

    def less(self, count: int) -> None:
        """So many of all that were counted are not ours."""
        self._past = deque((until, max(0, before - count)) for until, before in self._past)

    def around(self, at: float, count: int) -> tuple[int, int]:
        """The count at time `at`, and the largest one from five seconds before it until now; it is `count` now."""
        then = largest = count
        for until, before in reversed(self._past):
            if until <= at - BACK_S:
                break
            if until > at:
                then = before
            if before > largest:
                largest = before
        return then, largest
