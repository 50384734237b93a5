"""A sorted sequence of keys as a list of short sorted lists ("blocks").

Everything that the fair queue orders, children by tag and requests by arrival, changes and leaves from
the middle: a true-up moves a tenant, a client that goes away takes its request along. A binary heap can
only mark such entries as dead, and has to step over them later: after a mass cancel the next release
would pay for all of them at once. Here an entry is found by bisection and taken out, so nothing is ever
left behind, no call takes long, and rank, iteration in order and the last entry come for free.

    insert, remove  O(log n) comparisons, and moving at most `FULL` pointers
    rank            O(number of blocks)

Keys are tuples that differ within the first elements which can be compared. No block is empty. Blocks
are not merged: those that shrink go when their last key goes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, TypeVar

Key = TypeVar("Key", bound=tuple[Any, ...])

FULL = 512  # keys of a block: a move of 4 KB costs less than one more level of lists
first_of = itemgetter(0)


def insert(blocks: list[list[Key]], key: Key) -> None:
    if not blocks:
        blocks.append([key])
        return
    block = blocks[-1]
    if key > block[-1]:  # at the end, as most arrivals: blocks are filled before another is begun
        if len(block) < FULL:
            block.append(key)
        else:
            blocks.append([key])
        return
    i = 0
    if len(blocks) > 1:
        i = bisect_right(blocks, key, key=first_of) - 1
        if i < 0:
            i = 0
        block = blocks[i]
    insort(block, key)
    if len(block) > FULL:
        blocks.insert(i + 1, block[FULL >> 1 :])
        del block[FULL >> 1 :]


def remove(blocks: list[list[Key]], key: Key) -> None:
    """Raises ValueError where the key is not there."""
    if blocks:
        i = 0
        if len(blocks) > 1:
            i = bisect_right(blocks, key, key=first_of) - 1
            if i < 0:
                i = 0
        block = blocks[i]
        j = bisect_left(block, key)
        if j < len(block) and block[j] == key:
            del block[j]
            if not block:
                del blocks[i]
            return
    raise ValueError(f"{key!r} is not in the sequence")


def rank(blocks: list[list[Key]], key: Key) -> int:
    """Keys before `key`, which need not be there itself."""
    i = max(0, bisect_right(blocks, key, key=first_of) - 1)
    before = sum(len(block) for block in blocks[:i])
    return before + bisect_left(blocks[i], key) if blocks else 0


def iterate(blocks: list[list[Key]]) -> Iterator[Key]:
    for block in blocks:
        yield from block


def build(keys: list[Key]) -> list[list[Key]]:
    """Blocks of keys in any order."""
    keys.sort()
    return [keys[i : i + FULL] for i in range(0, len(keys), FULL)]
