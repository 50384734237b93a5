"""Figures of merit: percentiles, Jain's index, the max-min fair share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], p: float) -> float | None:
    """The smallest value that at least `p` (0..100) per cent do not exceed; None: no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-len(ordered) * p // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def jain(values: Sequence[float]) -> float:
    """Jain's index, (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything.

    Jain, Chiu, Hawe: "A Quantitative Measure of Fairness" (DEC TR-301, 1984)."""
    squares = sum(x * x for x in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def max_min_shares(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """What each gets when nobody can have more without somebody with less having less still."""
    shares: dict[str, float] = {}
    left = capacity
    for count, (name, demand) in enumerate(sorted(demands.items(), key=lambda item: item[1])):
        shares[name] = min(demand, left / (len(demands) - count))
        left -= shares[name]
    return shares
