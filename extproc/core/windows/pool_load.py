"""What is inside all endpoints of a pool together, where Envoy balances between them (`pick.by: envoy`).

Fairlane does not learn where a request runs then. What it knows is how many of its own are inside, what each page
shows, and what each window allows. So there is one window for the pool:

    may go      while own + foreign + its slots <= the sum of the windows' limits (over those that may be used); one of
                several slots also when a slot would idle; always when nothing of ours is inside, but for foreign load
                (and that for five seconds at most), as in a single window
    foreign     what the pages show together, less the most of ours together around the time of the pages: the least of
                that over the last 1.25 s

Each request is put into the books of one window all the same, the least full one that takes it by its further accounts
(KV, prefill, the turn of a large one). That place is virtual: it serves to learn, not to send. Foreign load is shared
out over the windows in proportion to their slots, for the same reason. A window by itself would take for foreign what
runs at its endpoint and stands in another's book, and nobody would take off the same number elsewhere: with three
engines at 8 each and Envoy choosing at random, up to a third of all slots would be lost.

Why the least: pages are read one after the other, and between two of them a request may end here and another begin
there, so that both are seen. At random choice the sum so strays by several requests from page to page, to both sides.
What is there lastingly is never less than what is there.

All of ours count, also those in the books of a window that may not be used now: Envoy has sent them somewhere else, or
they fail and end. Those of a removed endpoint count until they end.

What that costs: windows learn from pages and books that differ by what Envoy's choice differs from an even one, so the
KV and prefill accounts are rougher. Where one engine is slower than the others, a balancer that does not know it
(round robin, random) fills it up while the others have slots: the sum has room, the slow one has none. Least request
does better; choosing here (`pick.by: fairlane`) does it right. Endpoints' gates hold in the virtual place only. Nobody
overtakes: that takes a place in a certain engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from extproc.core.windows.history import BACK_S, GRAIN_S, History

if TYPE_CHECKING:
    from extproc.core.model import Request
    from extproc.core.windows.base import Window

_LAG_S = 1.0  # by which a page shows the past
_OLD_S = 4.0  # an older page tells nothing; with its lag it is within what `History` reaches back to
_LASTING_S = 1.25
_PROBE_S = 5.0


class PoolLoad:
    """`windows` is the scheduler's own table; they tell of their pages."""

    def __init__(self, windows: Mapping[str, Window]) -> None:
        self._windows = windows
        self.in_flight = sum(w.in_flight for w in windows.values())
        self.foreign = 0
        for window in windows.values():
            window.foreign = window.unknown = 0  # as counted by itself
        self._since: float | None = None  # the first page
        self._known: set[str] = set()  # endpoints with a page that tells something
        self._history = History()
        self._pages: dict[str, tuple[int, float]] = {}  # endpoint -> (requests that its last page shows, when)
        self._beyond: deque[tuple[float, int]] = deque()  # (time, what was seen beyond ours); rising, least first

    def take(self, slots: int, now: float) -> None:
        """A request was released."""
        self._note(now)
        self.in_flight += slots

    def free(self, slots: int, now: float) -> None:
        """Its stream is over."""
        self._note(now)
        self.in_flight -= slots

    def has_room(self, slots: int, q: float, now: float) -> bool:
        """For a request of so many slots, of a class with standing queue `q`."""
        limit = capacity = 0.0
        for window in self._windows.values():
            here = window.limit(q, now)
            if here > 0.0 and window.left_until <= now:
                limit += here
                capacity += window.capacity
        inside = self.in_flight + self.foreign
        if self.in_flight == 0:
            since = now if self._since is None else max(self._since, self._history.changed_at)
            return inside < limit or now - since > _PROBE_S
        return inside + slots <= limit or (slots > 1 and inside < limit and inside < capacity)

    def place(self, request: Request, q: float, now: float, among: list[Window]) -> Window | None:
        """The window whose books `request` goes into; None: it may not go."""
        if not self.has_room(request.slots, q, now):
            for window in among:
                window.no_room(request, now)
            return None
        best: Window | None = None
        best_key = (0.0, 0, 0)
        for window in among:
            if not window.fits(request, now):
                continue
            load = window.in_flight + window.foreign
            key = (load / max(1.0, window.limit(q, now)), load, window.last_take)
            if best is None or key < best_key:
                best, best_key = window, key
        return best

    def on_page(self, endpoint: str, seen: int, started: float, now: float) -> None:
        """A page of `endpoint`, asked for at `started`, shows `seen` requests, running and waiting."""
        if self._since is None:
            self._since = now
        windows = self._windows
        self._pages[endpoint] = (seen, started)
        pages = self._pages = {
            name: page for name, page in self._pages.items() if now - page[1] <= _OLD_S and name in windows
        }
        beyond = self._beyond
        if pages.keys() != self._known:
            self._known = set(pages)
            beyond.clear()  # what was seen of other endpoints is no measure
        oldest = min((at for _, at in pages.values()), default=now)
        _, most = self._history.around(oldest + BACK_S - _LAG_S, self.in_flight)
        found = sum(count for count, _ in pages.values()) - most
        while beyond and beyond[-1][1] >= found:
            beyond.pop()
        beyond.append((now, found))
        while beyond[0][0] < now - _LASTING_S:
            beyond.popleft()
        self._share_out(max(0, beyond[0][1]))

    def _share_out(self, foreign: int) -> None:
        if foreign == self.foreign == 0:
            return
        self.foreign = foreign
        slots = {w: max(1.0, w.capacity) if w.endpoint in self._known else 0.0 for w in self._windows.values()}
        total = sum(slots.values())
        given, reached = 0, 0.0
        for window, share in slots.items():
            reached += share
            until = round(foreign * reached / total)
            window.foreign = window.unknown = until - given
            given = until

    def _note(self, now: float) -> None:
        if now - self._history.changed_at >= GRAIN_S:
            self._history.note(self.in_flight, now)
