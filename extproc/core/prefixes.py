"""Which prompt prefixes were sent to which endpoint of late: a guess at what its cache holds.

A prompt is known by chained hashes of its beginnings, shortest first; two prompts that agree in the n-th agree
in all before it. Engines keep prefixes until they need the room, least recently used first, and tell nobody;
so does this table, with a bound on the number of hashes in place of the engine's memory. Of one prompt the longest
beginning leaves first, as in vLLM: where the shortest is not known, none is. Of two prefixes that match alike the
more recent one is the likelier to be there still.
"""

from __future__ import annotations

from collections import OrderedDict

BYTES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Of the prompt, that the first hash stands for, the second, ..."""
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
        for each in reversed(prefix):  # the shortest is the last one used
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
        if table and prefix and prefix[0] in table:
            for length in range(len(prefix), 0, -1):
                at = table.get(prefix[length - 1])
                if at is not None and now - at <= _KEPT_S:
                    return length, at
        return 0, float("-inf")

    def shares(self, prefix: tuple[int, ...], body_bytes: int, now: float) -> dict[str, float]:
        """`share` of each endpoint that has any. With many endpoints, most were never sent a certain prompt."""
        first = prefix[0]
        warm = [endpoint for endpoint, table in self._sent.items() if first in table]
        shares = {endpoint: self.share(endpoint, prefix, body_bytes, now) for endpoint in warm}
        return {endpoint: share for endpoint, share in shares.items() if share > 0.0}

    def share(self, endpoint: str, prefix: tuple[int, ...], body_bytes: int, now: float) -> float:
        """Of a prompt in a body of `body_bytes`, the share that is likely to be there, 0..1."""
        length, _ = self.match(endpoint, prefix, now)
        if length == 0:
            return 0.0
        found = BYTES[min(length, len(BYTES)) - 1]
        return found / body_bytes if found < body_bytes else 1.0
