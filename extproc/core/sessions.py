"""Where the last request of each session went.

A session is what its client says belongs together: a conversation, an agent at work. What came before is in the cache
of the engine that answered it, also what that engine generated, which no hash of a prompt knows. The least recently
used ones are forgotten, none by its age: a conversation that goes on after an hour is as well off where it was as
anywhere else.
"""

from __future__ import annotations

_MOST = 32_768  # of a pool


class Sessions:
    """Of one pool. Memory: at most 32,768 sessions, some 5 MB."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}  # session -> endpoint; the first one is the least recently used

    def __len__(self) -> int:
        return len(self._last)

    def sent(self, session: int, endpoint: str) -> None:
        """One of its requests was released to `endpoint`."""
        last = self._last
        last.pop(session, None)
        last[session] = endpoint
        if len(last) > _MOST:
            del last[next(iter(last))]

    def of(self, session: int) -> str | None:
        """The endpoint that its last request went to; None: not known."""
        return self._last.get(session)

    def forget(self, endpoint: str) -> None:
        """Another engine may answer there now. O(sessions)."""
        self._last = {session: at for session, at in self._last.items() if at != endpoint}
