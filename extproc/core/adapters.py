"""Which LoRA adapters an endpoint is likely to have loaded.

An engine has slots for some adapters at once (`max_adapters` on vLLM's page). It loads one when a request needs it,
which takes up to a second, in place of the one that was used least recently; requests whose adapter finds no slot wait.
The page names the adapters that run or wait. One that has just become idle is not named, and is loaded still: so what
was sent there counts too, as many of the last ones as there are slots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

_MOST = 64  # remembered for each endpoint; no engine is known to have more slots
_KEPT_S = 300.0  # what was sent longer ago counts as gone


class Adapters:
    """What each endpoint was sent. Memory: at most 64 names for each."""

    def __init__(self) -> None:
        self._sent: dict[str, OrderedDict[str, float]] = {}

    def sent(self, endpoint: str, adapter: str, now: float) -> None:
        """A request for `adapter` was released to `endpoint`."""
        table = self._sent.setdefault(endpoint, OrderedDict())
        table[adapter] = now
        table.move_to_end(adapter)
        if len(table) > _MOST:
            table.popitem(last=False)

    def forget(self, endpoint: str) -> None:
        """Another engine may answer there now."""
        self._sent.pop(endpoint, None)

    def fit(self, endpoint: str, adapter: str, shown: tuple[str, ...], slots: int | None, now: float) -> float:
        """1: it is likely to be loaded there. 0.5: it is not, and a slot is free for it. 0: neither, or nobody knows.
        `shown` and `slots` are the page's; None: it tells no number of slots."""
        if adapter in shown:
            return 1.0
        loaded = set(shown)
        for name in self._latest(endpoint, now):
            if slots is not None and name not in loaded and len(loaded) >= slots:
                break
            if name == adapter:
                return 1.0
            loaded.add(name)
        return 0.5 if slots is not None and len(loaded) < slots else 0.0

    def _latest(self, endpoint: str, now: float) -> Iterator[str]:
        for name, at in reversed(self._sent.get(endpoint, {}).items()):
            if now - at > _KEPT_S:
                return
            yield name
