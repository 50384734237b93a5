"""What a run has measured, beside the figures of the design's own measurement, and how much of the machine was ours.

A wait is judged only while the machine is ours: vLLM, Envoy, Fairlane and the clients are six busy processes, and where
others take their CPU a figure says how the kernel schedules them. Counts and shares hold in any case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

MOST_OF_OTHERS = 0.2  # cores
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_BUSY = (0, 1, 2, 5, 6, 7)  # of the counters of /proc/stat: user, nice, system, irq, softirq, stolen


class Figures:
    """All of a run."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, measured: float | str, design: str, bound: str = "") -> None:
        """`bound`: what a test asks of it, in words."""
        self.rows.append({"what": what, "measured": measured, "design": design, "bound": bound})


class Bystanders:
    """The CPU that processes outside of some sessions, and of this process, use from now on."""

    def __init__(self, sessions: Iterable[int | None]) -> None:
        self._sessions = frozenset(sessions)
        self._since = time.monotonic()
        self._before = self._used()

    def cores(self) -> float:
        """On average until now."""
        return max(0.0, self._used() - self._before) / (time.monotonic() - self._since)

    def _used(self) -> float:
        """Seconds of CPU, of all processes but ours since the start of the machine."""
        counters = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
        return (sum(counters[i] for i in _BUSY) - sum(map(self._ours, _PROC.glob("[0-9]*")))) / _TICKS

    def _ours(self, process: Path) -> int:
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()  # what follows the name
        except OSError:
            return 0  # it has just ended
        ours = int(fields[3]) in self._sessions or process.name == str(os.getpid())
        return int(fields[11]) + int(fields[12]) if ours else 0


def judge(holds: bool, what: str, others: float) -> None:
    """Pass, fail, or skip for a machine that was not ours. `others`: cores that they used."""
    if holds:
        return
    if others > MOST_OF_OTHERS:
        pytest.skip(f"{what}; not judged, since others used {others:.1f} cores meanwhile")
    pytest.fail(what)
