"""A check: one fact about Envoy, and where a configuration offends against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from extproc.wiring.doctor.finding import Finding, Hit, Severity
from extproc.wiring.doctor.setup import Setup


@dataclass(frozen=True, slots=True)
class Check:
    """`why`: one sentence with the fact; `fix`: YAML to merge into the object at the hit's place, or a comment."""

    id: str
    severity: Severity
    why: str
    fix: str
    hits: Callable[[Setup], Iterable[Hit]]

    def findings(self, setup: Setup) -> list[Finding]:
        """Every place once: a listener with several filter chains may lead to one object by several ways."""
        return [
            Finding(self.id, self.severity, hit.where, hit.what, self.why, hit.fix or self.fix)
            for hit in dict.fromkeys(self.hits(setup))
        ]
