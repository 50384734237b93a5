"""The rule of the store at which replicas meet, in Python and for virtual time.

`extproc.cluster` has the same rule as a script of the store. One exchange: a replica leaves what it has to tell, asks
for slots, and takes along what the others that live have left. It is granted

    claim = max(in flight, min(wanted, limit - claims of the others that live))

of each endpoint: what it holds it may keep, and more only as far as nobody else has claimed it. So the claims are never
more than the limit by what one replica asks for. Time is the store's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from extproc.core.sharing.words import FlowReport, Heard, Other, PoolReport

_KEPT = 64  # reports of a replica whose flows are kept for those that have not read them yet


@dataclass(slots=True)
class _Guest:
    life: str
    seen_at: float
    report: PoolReport
    claims: dict[str, float]
    seq: int = 0
    messages: deque[tuple[int, tuple[FlowReport, ...]]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    read: dict[str, tuple[str, int]] = field(default_factory=dict)  # other replica -> (its life, number read last)


class MeetingPlace:
    """One pool's. Seconds."""

    def __init__(self, lease_s: float) -> None:
        """`lease_s`: after which a replica that has not been here is dead."""
        self.lease_s = lease_s
        self._guests: dict[str, _Guest] = {}

    def flush(self) -> None:
        """All is lost."""
        self._guests.clear()

    def leave(self, replica: str) -> None:
        """It stops: its claims are free at once."""
        self._guests.pop(replica, None)

    def claims(self, endpoint: str) -> Mapping[str, float]:
        """Of those that live, by replica."""
        return {name: guest.claims.get(endpoint, 0.0) for name, guest in self._guests.items()}

    def exchange(self, replica: str, life: str, report: PoolReport, sent_at: float, now: float) -> Heard:
        """`sent_at`: by the clock of the replica; `now`: by that of the store."""
        for name in [n for n, guest in self._guests.items() if now - guest.seen_at > self.lease_s]:
            del self._guests[name]
        guest = self._guests.get(replica)
        fresh = guest is None or guest.life != life
        if guest is None or fresh:
            guest = self._guests[replica] = _Guest(life, now, report, {})
        guest.seen_at, guest.report = now, replace(report, flows=())
        guest.seq += 1
        guest.messages.append((guest.seq, report.flows))
        others = {name: other for name, other in self._guests.items() if name != replica}
        for each in report.endpoints:
            taken = sum(other.claims.get(each.endpoint, 0.0) for other in others.values())
            guest.claims[each.endpoint] = max(float(each.in_flight), min(each.want, each.limit - taken), 0.0)
        heard = tuple(self._left_by(guest, name, other) for name, other in others.items())
        return Heard(sent_at, fresh, heard, dict(guest.claims))

    @staticmethod
    def _left_by(guest: _Guest, name: str, other: _Guest) -> Other:
        life, read = guest.read.get(name, ("", 0))
        first = life != other.life
        if first:
            read = 0
        flows = tuple(flow for seq, message in other.messages if seq > read for flow in message)
        missed = not first and bool(other.messages) and other.messages[0][0] > read + 1
        guest.read[name] = (other.life, other.seq)
        return Other(name, other.life, replace(other.report, flows=flows), missed)
