"""Which prompt prefixes were sent to which endpoint of late: a guess at what its cache holds.

A prompt is known by chained hashes of its beginnings, shortest first; two prompts that agree in the n-th agree
in all before it. Engines keep prefixes until they need the room, least recently used first, and tell nobody;
so does this table, with a bound on the number of hashes in place of the engine's memory. Of two prefixes
that match alike the more recent one is the likelier to be there still.
"""

from __future__ import annotations

from collections import OrderedDict

_MOST = 8_192  # hashes remembered for each endpoint
_KEPT_S = 300.0  # what was sent longer ago counts as gone


class Prefixes:
    """What each endpoint was sent. Memory: at most 8,192 hashes for each."""

    def __init__(self) -> None:
        self._sent: dict[str, OrderedDict[int, float]] = {}

    def sent(self, endpoint: str, prefix: tuple[int, ...], now: float) -> None:
        """A request with `prefix` was released to `endpoint`."""
        if not prefix:
            return
        table = self._sent.setdefault(endpoint, OrderedDict())
        for each in prefix:
            table[each] = now
            table.move_to_end(each)
        while len(table) > _MOST:
            table.popitem(last=False)

    def forget(self, endpoint: str) -> None:
        """Another engine may answer there now."""
        self._sent.pop(endpoint, None)

    def match(self, endpoint: str, prefix: tuple[int, ...], now: float) -> tuple[int, float]:
        """(how many of the hashes are likely to be there, when the last of them was sent); (0, -inf): none."""
        table = self._sent.get(endpoint)
        if table:
            for length in range(len(prefix), 0, -1):
                at = table.get(prefix[length - 1])
                if at is not None and now - at <= _KEPT_S:
                    return length, at
        return 0, float("-inf")
