"""Taking requests back: a held one is refused, one inside an engine is evicted.

The scan hands requests over one by one, within its portions, and each is taken back there and then: nothing can happen
to it between the look and the deed, and each counts as what it was.

Whoever empties a queue seldom means what runs already, so requests inside the engines are meant only by a filter that
names `state`. What has ended is past cancelling, what is evicted already leaves by itself. A request that passed as it
came (observe mode) is none of ours to refuse or to evict: those are counted and left alone.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from extproc.admin import messages
from extproc.admin.control import Control
from extproc.admin.filter import Filter
from extproc.admin.portions import Portions
from extproc.admin.scan import Found, Scan
from extproc.core.model import INSIDE, State
from extproc.pb.admin.v1 import admin_pb2 as pb

FOR_S: Final = 2.0
_SAMPLE: Final = 20  # requests
_LONGEST_REASON: Final = 200  # characters of it that clients are told


@dataclass(slots=True)
class Cancelled:
    """What was taken back, or would be."""

    refused: int = 0  # were held
    evicted: int = 0  # were inside an engine
    observed: int = 0  # matched, and were left alone
    complete: bool = False  # False: the time was over
    sample: list[pb.Request] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.refused + self.evicted

    def told(self, *, validate_only: bool) -> str:
        """For the audit."""
        would = "would be " if validate_only else ""
        parts = [f"{self.refused} held ones {would}refused", f"{self.evicted} inside {would}evicted"]
        if self.observed:
            parts.append(f"{self.observed} observed ones left alone: they passed as they came")
        if not self.complete:
            parts.append("not complete: the time was over")
        return "; ".join(parts)


class Cancellation:
    """One run. `done` grows as it goes on, and holds what was done also where it was broken off."""

    def __init__(self, control: Control, portions: Portions, meant: Filter, *, for_s: float = FOR_S) -> None:
        self.done = Cancelled()
        self._inside = "state" in meant.fields
        self._scan = Scan(control, portions, meant.matches, for_s=for_s)

    async def run(self, message: str | None) -> Cancelled:
        """`message`: for the clients. None: counts only."""
        # Closed at once where the caller goes away: others may wait for their scan.
        async with aclosing(aiter(self._scan)) as found:
            async for each in found:
                self._take(each, message)
        self.done.complete = self._scan.complete
        return self.done

    def _take(self, found: Found, message: str | None) -> None:
        done, view = self.done, found.view
        held = view.state is State.QUEUED
        if not held and not (self._inside and view.state in INSIDE and not view.evicted):
            return
        if found.observed:
            done.observed += 1
            return
        if len(done.sample) < _SAMPLE:
            done.sample.append(messages.request(view, found.running.pool.name, observed=False))
        if held:
            done.refused += 1
        else:
            done.evicted += 1
        if message is not None:
            found.running.cancel(view.id, message)


def client_message(reason: str) -> str:
    """What the clients of cancelled requests are told."""
    cut = reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 3]}..."
    return f"cancelled by an operator: {cut}"
