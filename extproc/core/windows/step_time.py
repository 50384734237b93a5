"""What a prompt token adds to a step, by least squares that forget; see `latency` for the model and its use."""

from __future__ import annotations

import math

_TAU_S = 120.0
_RIDGE = 1e-4


class StepTime:
    """Weighted normal equations of three terms: constant, decoding requests, prompt tokens in a step."""

    def __init__(self) -> None:
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3

    def add(self, itl_s: float, decoding: float, prompts_per_s: float, weight: float, seconds: float) -> float | None:
        """One page's figures, `seconds` after the last. Returns seconds for each prompt token, None while not known."""
        row = (1.0, decoding / 100.0, prompts_per_s * itl_s / 1000.0)
        keep = math.exp(-seconds / _TAU_S)
        for i in range(3):
            self._targets[i] = keep * self._targets[i] + weight * row[i] * itl_s
            for j in range(3):
                self._products[i][j] = keep * self._products[i][j] + weight * row[i] * row[j]
        per_token = self.solve()[2] / 1000.0
        return per_token if per_token > 0.0 else None

    def solve(self) -> list[float]:
        """The three terms, none negative: the most negative one is dropped and the others fitted again."""
        kept = [i for i in range(3) if self._products[i][i] > 1e-12]
        while kept:
            found = self._fit(kept)
            worst = min(kept, key=lambda i: found[i])
            if found[worst] >= 0.0:
                return found
            kept.remove(worst)
        return [0.0] * 3

    def _fit(self, kept: list[int]) -> list[float]:
        """Gauss-Jordan over the kept terms; the ridge is relative to each term's own weight, so pivots are positive."""
        rows = [
            [self._products[i][j] * (1.0 + _RIDGE if i == j else 1.0) for j in kept] + [self._targets[i]] for i in kept
        ]
        for i, pivot in enumerate(rows):
            lead = pivot[i]
            if not lead > 0.0:
                return [0.0] * 3
            pivot[:] = [x / lead for x in pivot]
            for other in rows:
                if other is not pivot and other[i] != 0.0:
                    factor = other[i]
                    other[:] = [x - factor * y for x, y in zip(other, pivot, strict=True)]
        found = [0.0] * 3
        for i, row in zip(kept, rows, strict=True):
            found[i] = row[-1]
        return found
