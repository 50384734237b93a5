"""What faults do to several replicas in virtual time: throughput, waiting in the engine, claims, shares that come back.

The scene is `heavy_here`: weights 4:1, each tenant at a replica of its own. Fault at 80 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.sim.figures import Span
from extproc.sim.replica_scenes import Scene, figures, heavy_here
from extproc.sim.replicas import Death, Freeze, SharedRun, StoreLost

AT_S = 80.0
LOST_S = 30.0
FROZEN_S = 20.0
_SECONDS = 160.0
_NEAR = 0.8  # of what the others had for themselves in the end


@dataclass(frozen=True, slots=True)
class Outcome:
    """`throughput`: in the 30 s from the fault on, relative to the 30 s before. `over_limit`: most by which all claims
    together were over the limit, in slots. `back_s`: after the death, until the others' claims were at 80 % of
    what its requests, which run on, left of the limit."""

    replicas: int
    title: str
    throughput: float
    waiting: float
    over_limit: float
    back_s: float | None = None

    def short(self) -> list[str]:
        """What must hold and does not."""
        found = [
            (self.throughput >= 0.9, f"throughput {self.throughput:.3f}, at least 0.9"),
            (self.over_limit <= self.replicas, f"claims {self.over_limit:g} over the limit, at most {self.replicas}"),
            (self.back_s is None or self.back_s <= 5.0, f"its share is back after {self.back_s} s, at most 5"),
        ]
        return [what for holds, what in found if not holds]


def outcomes(replicas: Iterable[int]) -> list[Outcome]:
    """Of each of the faults, with so many replicas."""
    found = []
    for count in replicas:
        scene = heavy_here(count, seconds=_SECONDS)
        lost = StoreLost(AT_S, AT_S + LOST_S)
        flushed = StoreLost(AT_S, AT_S, flushed=True)
        for title, fault in (("store lost for 30 s", lost), ("store emptied", flushed)):
            found.append(_outcome(scene, count, title, scene.shared(faults=(fault,))))
        dead = scene.shared(faults=(Death(AT_S, 0),))
        found.append(_outcome(scene, count, "the first replica dies", dead, back_s(dead, {0})))
        frozen = scene.shared(faults=(Freeze(AT_S, AT_S + FROZEN_S, 0),))
        found.append(_outcome(scene, count, "the first replica is frozen for 20 s", frozen))
    return found


def back_s(done: SharedRun, gone: set[int], at: float = AT_S) -> float | None:
    """Seconds after `at` from which on, for `LOST_S`, those that live have most of what there is; None: never."""
    back = None
    for share in done.shares:
        if at <= share.at < at + LOST_S:
            slots = zip(share.claims, share.in_flight, strict=True)
            alive = sum(max(each) for i, each in enumerate(slots) if i not in gone)
            enough = alive >= _NEAR * (share.least - share.orphans)
            back = None if not enough else share.at - at if back is None else back
    return back


def _outcome(scene: Scene, replicas: int, title: str, done: SharedRun, back: float | None = None) -> Outcome:
    before = figures(scene, done, Span(AT_S - 30.0, AT_S))
    since = figures(scene, done, Span(AT_S, AT_S + LOST_S))
    return Outcome(
        replicas=replicas,
        title=title,
        throughput=since.units_per_s / before.units_per_s,
        waiting=since.waiting[2],
        over_limit=since.over_limit,
        back_s=back,
    )
