"""Closed forms for a run of steps in which the same sequences decode.

``D`` sequences decode, ``C`` tokens are in their cache at the beginning. Each gets one token per step. So step j, from
1 on, finds ``C + (j - 1) * D`` tokens in the cache. It takes ``first + (j - 1) * slower`` seconds, where
``slower = step_per_context_token * D``. Hence

    end(m) = start + m * first + slower * m * (m - 1) / 2

and the number of steps that have ended at a time is the root of a quadratic.

A decoding sequence asks for a KV block when the tokens in its cache are a multiple of the block size: once in
``block_size`` steps, always in the same phase. Counts per phase say how many blocks any run of steps takes.
"""

from __future__ import annotations

import math
from typing import Final


class Stretch:
    """``steps`` steps that begin at ``start``. Seconds."""

    __slots__ = ("first", "slower", "start", "steps")

    def __init__(self, start: float, steps: int, first: float, slower: float) -> None:
        self.start: Final = start
        self.steps: Final = steps
        self.first: Final = first
        """Length of the first step."""
        self.slower: Final = slower
        """By how much each step is longer than the one before."""

    def end(self, step: int) -> float:
        """End of the given step, from 1 on."""
        return self.start + step * self.first + self.slower * (step * (step - 1) // 2)

    def ended(self, now: float, *, inclusive: bool) -> int:
        """How many steps have ended, but for the last one: at most ``steps - 1``.

        A step that ends exactly at ``now`` counts when ``inclusive``.
        """
        most, elapsed = self.steps - 1, now - self.start
        if not most or elapsed <= 0:
            return 0
        # (slower / 2) m^2 + b m = elapsed, in the form that stays exact when slower is next to nothing
        b = self.first - self.slower / 2
        steps = min(most, int(2 * elapsed / (b + math.sqrt(b * b + 2 * self.slower * elapsed))))
        # the root is good to a rounding error, and that can be a whole step
        while steps and self._is_after(steps, now, inclusive):
            steps -= 1
        while steps < most and not self._is_after(steps + 1, now, inclusive):
            steps += 1
        return steps

    def after(self, steps: int) -> Stretch:
        """What is left when so many steps have ended."""
        return Stretch(self.end(steps), self.steps - steps, self.first + self.slower * steps, self.slower)

    def only_first(self) -> Stretch:
        """Its first step alone."""
        return self if self.steps == 1 else Stretch(self.start, 1, self.first, 0.0)

    def _is_after(self, step: int, now: float, inclusive: bool) -> bool:
        end = self.end(step)
        return end > now if inclusive else end >= now


class Growth:
    """How many decoding sequences ask for a block, by the phase of the step in which they do."""

    __slots__ = ("block_size", "counts", "total")

    def __init__(self, block_size: int) -> None:
        self.block_size: Final = block_size
        self.counts: Final = [0] * block_size
        self.total = 0
        """Decoding sequences."""

    def add(self, step: int) -> None:
        """One that asks at the beginning of this step, counted from any origin, and every ``block_size`` on."""
        self.counts[step % self.block_size] += 1
        self.total += 1

    def drop(self, step: int) -> None:
        self.counts[step % self.block_size] -= 1
        self.total -= 1

    def need(self, step: int, steps: int) -> int:
        """Blocks asked for at the beginnings of ``steps`` steps from ``step`` on."""
        rounds, rest = divmod(steps, self.block_size)
        blocks = rounds * self.total
        if rest:
            counts, first = self.counts, step % self.block_size
            last = first + rest
            blocks += sum(counts[first:last])
            if last > self.block_size:
                blocks += sum(counts[: last - self.block_size])
        return blocks

    def lasts(self, step: int, free: int, most: int) -> int:
        """For how many steps from ``step`` on ``free`` blocks are enough; looks no further than ``most`` steps."""
        if free >= self.total * (most // self.block_size + 1):
            return most
        steps = 0
        if self.total:
            rounds = min(free // self.total, most // self.block_size)
            free -= rounds * self.total
            steps = rounds * self.block_size
        while steps < most:
            free -= self.counts[(step + steps) % self.block_size]
            if free < 0:
                break
            steps += 1
        return steps
