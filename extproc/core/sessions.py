"""Where the last request of each session went.

A session is what its client says belongs together: a conversation, an agent at work. What came before is in the cache
of the engine that answered it, also what that engine generated, which no hash of a prompt knows. The least recently
used ones are forgotten, none by its age: a conversation that goes on after an hour is as well off where it was as
anywhere else.
"""

from __future__ import annotations

from collections import OrderedDict

_MOST = 32_768  # of a pool


class _Home:
    """An endpoint, for as long as one engine answers there."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: str) -> None:
        self.endpoint: str | None = endpoint  # None: that engine is gone


class Sessions:
    """Of one pool. Memory: at most 32,768 sessions, some 5 MB. A forgotten one counts until it is sent again, or is the
    least recently used."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, _Home] = OrderedDict()  # the first one is the least recently used
        self._homes: dict[str, _Home] = {}

    def __len__(self) -> int:
        return len(self._last)

    def sent(self, session: int, endpoint: str) -> None:
        """One of its requests was released to `endpoint`."""
        home = self._homes.get(endpoint)
        if home is None:
            home = self._homes[endpoint] = _Home(endpoint)
        last = self._last
        last[session] = home
        last.move_to_end(session)
        if len(last) > _MOST:
            last.popitem(last=False)

    def of(self, session: int) -> str | None:
        """The endpoint that its last request went to; None: not known."""
        home = self._last.get(session)
        return None if home is None else home.endpoint

    def forget(self, endpoint: str) -> None:
        """Another engine may answer there now. Takes no longer with many sessions: an endpoint may come and go each
        second, and a thousand at once."""
        home = self._homes.pop(endpoint, None)
        if home is not None:
            home.endpoint = None
