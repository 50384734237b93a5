"""A prefix cache in tokens: which beginnings of prompts an engine would not compute again.

A prompt's beginnings are named by chained hashes, so that equal names mean equal texts from the first token on. The
least recently used ones leave. Of the beginnings of one prompt the longest leaves first, as in vLLM, which frees a
prompt's blocks from the end: a longer beginning is of no use without the shorter ones.

Left out: vLLM keeps cached blocks in the memory of the running ones, does not evict what a running sequence uses, and
caches what was generated. Here the cache has a capacity of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Beginning(NamedTuple):
    """One beginning of a prompt. ``tokens`` counts from the prompt's first token."""

    hash: int
    tokens: int


class PrefixCache:
    """LRU over beginnings. Each one costs its tokens beyond the next shorter one."""

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.used = 0
        # hash -> cost; the first one was used the longest ago
        self._costs: Final[dict[int, int]] = {}

    def take(self, beginnings: tuple[Beginning, ...]) -> int:
        """Tokens found of a prompt that is computed now; afterwards all its beginnings are cached, as far as they fit.

        ``beginnings``: shortest first.
        """
        found = 0
        for beginning in beginnings:
            if beginning.hash not in self._costs:
                break
            found = beginning.tokens
        costs, before = [], 0
        for beginning in beginnings:
            costs.append((beginning.hash, beginning.tokens - before))
            before = beginning.tokens
            if before > self.capacity:
                costs.pop()
                break
        for name, cost in reversed(costs):  # the shortest is the last one touched
            self.used += cost - self._costs.pop(name, 0)
            self._costs[name] = cost
        while self.used > self.capacity:
            oldest = next(iter(self._costs))
            self.used -= self._costs.pop(oldest)
        return found

    def clear(self) -> None:
        self._costs.clear()
        self.used = 0
