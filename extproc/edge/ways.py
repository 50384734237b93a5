"""How each engine of a pool is told a priority: by a header, by a member of the body, by both, or not at all.

That is known of an engine once it has been asked (`engines.identify`); until then it is what the configuration says.
Where Envoy chooses the endpoint, nobody knows yet which one reads the request: then all must agree, or the header
alone is sent, which no engine refuses.

A client's own priority counts nowhere that this can be had:
- header: always overwritten, or removed where none is told.
- member `priority`, told by header: vLLM >= 0.28 goes by the header.
- member `priority`, told by body: ours stands behind it, and the last one counts.
- member `priority`, told nothing: an engine that reads it goes by the client's. To prevent that the body would have to
  be edited, and engines with which nothing works ("off") could then refuse it for ours. So it is left.
"""

from __future__ import annotations

from typing import Final

from extproc.config.scheduling import Pool
from extproc.core.priority import PriorityWay

_HEADER_ONLY: Final = PriorityWay(header=True)
_MOST: Final = 2**63 - 1  # engines keep it in 64 bits


class Ways:
    """Of one pool's endpoints. `common`: of an endpoint that nobody knows yet."""

    def __init__(self, unknown: PriorityWay = _HEADER_ONLY) -> None:
        """`unknown`: of an endpoint that nothing is known of."""
        self._unknown = unknown
        self._known: dict[str, PriorityWay] = {}
        self.common = unknown

    @classmethod
    def configured(cls, pool: Pool) -> Ways:
        """By the configuration alone."""
        via = pool.priority_via
        return cls(
            PriorityWay(
                header=via in ("auto", "header", "both"),
                body=via in ("body", "both"),
                high_first=pool.high_first and via != "off",
            )
        )

    def of(self, endpoint: str) -> PriorityWay:
        return self._known.get(endpoint, self._unknown)

    def set(self, endpoint: str, way: PriorityWay) -> None:
        """`endpoint`, "ip:port", is told so from now on."""
        self._known[endpoint] = way
        self._agree()

    def drop(self, endpoint: str) -> None:
        """Another engine may answer there, or none."""
        self._known.pop(endpoint, None)
        self._agree()

    def _agree(self) -> None:
        ways = set(self._known.values()) or {self._unknown}
        self.common = ways.pop() if len(ways) == 1 else _HEADER_ONLY


def number(way: PriorityWay, priority: int) -> int:
    """`priority`, of which the lowest goes first, as an engine is told it."""
    told = -priority if way.high_first else priority
    return max(-_MOST, min(told, _MOST))
