"""Mixes of prompt and output lengths, in tokens.

`conv` and `code` have the lengths of the Azure LLM inference traces of 2023 (Azure/AzurePublicDataset, CC-BY 4.0;
Patel et al., "Splitwise", ISCA'24), `sgl` those of ServeGen's (alibaba/ServeGen, Apache-2.0) large model, even mix:
quantiles of the first 2,000 rows, drawn from by linear interpolation, prompt and output independently. So a mix has
the shape of the real lengths, not their order in time.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from functools import lru_cache

Lengths = tuple[int, int]
"""Prompt, output."""
Mix = Callable[[random.Random], Lengths]

# fmt: off
_SHARES = (0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 97, 98, 99, 99.5, 99.8, 100)
_CONV = (
    (2, 167, 203, 372, 389, 401, 420, 920, 998, 1013, 1032, 1046, 1068, 1094, 1126, 1155, 1201, 1313, 1989, 4079, 4086,
     4090, 4100, 4122, 4484, 7930),
    (12, 40, 57, 73, 86, 95, 106, 135, 162, 190, 239, 379, 391, 396, 399, 407, 414, 425, 436, 498, 534, 575, 625, 667,
     918, 1000),
)
_CODE = (
    (6, 59, 135, 200, 349, 492, 729, 879, 1032, 1145, 1338, 1586, 1893, 2157, 2436, 2747, 3287, 3852, 4886, 6606, 7434,
     7435, 7436, 7436, 7436, 7437),
    (6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 17, 19, 23, 27, 39, 55, 91, 145, 201, 287, 403, 792, 1899),
)
_SGL = (
    (28, 78, 80, 81, 83, 86, 142, 210, 258, 335, 424, 562, 591, 666, 677, 720, 906, 1310, 1825, 2399, 2404, 2409, 2884,
     3237, 4031, 8107),
    (1, 1, 1, 1, 1, 1, 1, 3, 5, 8, 15, 30, 39, 46, 54, 64, 79, 99, 115, 160, 240, 380, 503, 570, 665, 2728),
)
# fmt: on
_LONG = (20_000, 300)


def _draw(rng: random.Random, values: tuple[int, ...]) -> int:
    share = rng.uniform(0.0, 100.0)
    i = min(bisect.bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[i - 1], _SHARES[i]
    return max(1, round(values[i - 1] + (values[i] - values[i - 1]) * (share - low) / (high - low)))


def _from(quantiles: tuple[tuple[int, ...], tuple[int, ...]]) -> Mix:
    return lambda rng: (_draw(rng, quantiles[0]), _draw(rng, quantiles[1]))


def _exponential(rng: random.Random) -> Lengths:
    return 1 + int(rng.expovariate(1 / 256)), 1 + int(rng.expovariate(1 / 256))


def _long(rng: random.Random) -> Lengths:
    """One in twenty with 20,000 tokens; the others as `conv`, cut to 600."""
    if rng.random() < 0.05:
        return _LONG
    prompt, output = _from(_CONV)(rng)
    return min(prompt, 600), output


MIXES: dict[str, Mix] = {
    "256": lambda _rng: (256, 256),
    "256x": _exponential,
    "conv": _from(_CONV),
    "code": _from(_CODE),
    "sgl": _from(_SGL),
    "long": _long,
}


@lru_cache
def means(mix: str) -> tuple[float, float, float]:
    """Mean prompt, mean output, and mean tokens that a running sequence holds: prompt + half of the output, weighted by
    how long it runs. Of 20,000 draws."""
    rng = random.Random(0)  # noqa: S311
    draws = [MIXES[mix](rng) for _ in range(20_000)]
    outputs = sum(o for _, o in draws)
    held = sum(o * (p + o / 2) for p, o in draws) / outputs
    return sum(p for p, _ in draws) / len(draws), outputs / len(draws), held
