"""Whether it is a promotion's turn: one dispatch in `promote_every` at most, see `dispatch`.

    counted     dispatches since the last promotion. Nothing is saved up: where none was promoted for long, one goes,
                not many
    part        where other replicas serve the same class, of all promotions the part that is due here. Their
                dispatches count as well, and of each one this part: together one in `promote_every`
    late        what is saved up all the same where there are others. What their word has brought comes at once, and
                may be for several; and room for it has to be made elsewhere, which takes some periods. So one more may
                be due, or as many as `_WORDS` of them bring in the mean. With two words and requests of a second one
                in ten was promoted where one in eight was due

A pool's, at one replica.
"""

from __future__ import annotations

import math
from typing import Final

_MOST: Final = 100_000  # dispatches between two words
_WORDS: Final = 6


class Ageing:
    """Dispatches, as parts of them."""

    __slots__ = ("brought", "counted", "part")

    def __init__(self) -> None:
        self.part = 1.0
        self.counted = math.inf  # the first one has not to wait
        self.brought: float | None = None  # by a word of others, in the mean of some; None: there are none

    def due(self, every: int) -> int:
        """Promotions that may go now. The dispatch that is one counts."""
        return int(self._most(every) // every)

    def dispatched(self, promoted: bool, every: int) -> None:
        """A request goes."""
        self.counted = max(0.0, self._most(every) - every) if promoted else self.counted + self.part

    def heard(self, part: float, dispatches: int) -> None:
        """Word of the others: they have released so many. Figures that cannot be count as nothing."""
        self.part = part if 0.0 <= part <= 1.0 else 0.0
        brought = self.part * dispatches if 0 <= dispatches <= _MOST else 0.0
        self.counted += brought
        before = brought if self.brought is None else self.brought
        self.brought = before + (brought - before) / _WORDS

    def alone(self) -> None:
        """Nobody knows what the others do."""
        self.part, self.brought = 1.0, None

    def _most(self, every: int) -> float:
        late = 0.0 if self.brought is None else max(float(every - 1), _WORDS * self.brought)
        return min(self.counted + self.part, every + late)
