"""A request that needs an almost empty engine, and the turn that it is owed.

Where the next in line is too large for what is left of the prefill limit or of the KV cache, it waits until much has
ended. Meanwhile it blocks its class, and other classes go past it into all that ends: it could wait for ever. So a
large one (the accounts say which are) that has been refused for 2 s is owed: nothing else is released until it has
gone, also not into an engine that has run dry.

That needs it to be asked for all the same; when it has not been asked for a second (it is not the next in line any
more, or its class may not go) it is owed nothing, and begins anew. The first that was refused keeps its claim while it
is asked for; of two that take turns neither would ever have waited for 2 s.

What merely waits for its share of what others free is never owed: room comes by itself, and to drain the engine for it
would leave slots idle.
"""

from __future__ import annotations

from extproc.core.model import Request, State

PATIENCE_S = 2.0
ASKED_S = 1.0


class Due:
    """Of one window."""

    __slots__ = ("_asked", "_since", "by", "request")

    def __init__(self) -> None:
        self.request: Request | None = None  # one that was refused; None: nobody waits for a turn
        self.by = ""  # the account that refused it, last
        self._since = self._asked = 0.0

    def refused(self, request: Request, by: str, now: float) -> None:
        """`request`, which is large, has to wait."""
        if not self._alive(now):
            self.request, self._since = request, now
        if request is self.request:
            self.by, self._asked = by, now

    def asked(self, request: Request, now: float) -> None:
        """`request` was refused for another reason."""
        if request is self.request and self._alive(now):
            self._asked = now

    def owed(self, now: float) -> Request | None:
        """The one that nothing else may pass now."""
        if self.request is None or now - self._since < PATIENCE_S or not self._alive(now):
            return None
        return self.request

    def holds_back(self, request: Request, now: float) -> bool:
        """Whether it is another's turn. Forgets one that has lapsed."""
        if not self._alive(now):
            self.request = None
            return False
        return request is not self.request and now - self._since >= PATIENCE_S

    def gone(self) -> None:
        """It has been released."""
        self.request = None

    def _alive(self, now: float) -> bool:
        request = self.request
        return request is not None and request.state is State.QUEUED and now - self._asked <= ASKED_S
