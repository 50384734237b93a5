"""What an answer of the store says, for those who divide by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extproc.core.sharing.words import Heard, Other, PoolReport

_BETWEEN = "\n"  # neither a pool nor an endpoint has it in its name


@dataclass(frozen=True, slots=True)
class Told:
    """By another replica that lives."""

    replica: str
    life: str
    age_s: float  # of its last exchange
    info: Mapping[str, Any]
    reports: Mapping[str, PoolReport]  # by pool


@dataclass(frozen=True, slots=True)
class News:
    """Of one exchange."""

    sent_at: float  # by the clock of the exchange
    time_ms: int  # the store's clock, since 1970
    fresh: bool
    missed: bool
    told: tuple[Told, ...]
    claims: Mapping[str, float]  # by `key`
    configuration: int  # number of the one in the store; 0: there is none

    @property
    def infos(self) -> dict[str, Mapping[str, Any]]:
        """Of the other replicas, by id."""
        return {each.replica: each.info for each in self.told}

    def of(self, pool: str) -> Heard:
        """What is said of a pool. Replicas that do not have it are not among the others."""
        prefix = pool + _BETWEEN
        return Heard(
            sent_at=self.sent_at,
            fresh=self.fresh,
            others=tuple(
                Other(each.replica, each.life, each.reports[pool], self.missed, each.age_s)
                for each in self.told
                if pool in each.reports
            ),
            claims={name.removeprefix(prefix): slots for name, slots in self.claims.items() if name.startswith(prefix)},
        )


def key(pool: str, endpoint: str) -> str:
    """Of a claim."""
    return f"{pool}{_BETWEEN}{endpoint}"
