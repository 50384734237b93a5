"""Changes that undo themselves when their time is over.

One that would leave no valid configuration is held back and told, and is tried again after every later change.

Expiries go by the wall clock. Since that may be set, a timer sleeps for a minute at most, and only while something is
to expire. A clock that goes back delays expiries and does no other harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from extproc.admin.change import Change, Made
from extproc.admin.errors import AdminError
from extproc.admin.in_force import InForce
from extproc.admin.ledger import Ledger
from extproc.admin.records import Kind, service
from extproc.config.faults import Path
from extproc.config.overlay import Overlay

log = structlog.get_logger()

_LOOK_AGAIN_S = 60.0  # at the wall clock
_Expiry = tuple[int, float]  # revision that set it, seconds since 1970


@dataclass(frozen=True, slots=True)
class PendingExpiry:
    """Settings of one revision that expire together."""

    revision: int
    expires_at: float  # seconds since 1970
    paths: tuple[Path, ...]
    error: str  # empty; or they are over, and why they are still in force


class Expiries:
    """Of one ledger. `undo` is a change, and waits for nobody's turn by itself."""

    def __init__(self, ledger: Ledger, wake: Callable[[], None]) -> None:
        """`wake`: called when something is over, after `arm`."""
        self._ledger = ledger
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: dict[_Expiry, str] = {}  # why it could not be undone

    def pending(self) -> tuple[PendingExpiry, ...]:
        """The next one first."""
        found = sorted(_expiring(self._ledger.now.overlay).items(), key=lambda item: _by_time(item[0]))
        return tuple(PendingExpiry(*key, tuple(paths), self._held_back.get(key, "")) for key, paths in found)

    @property
    def held_back(self) -> bool:
        """Whether something is over and could not be undone."""
        return bool(self._held_back)

    async def undo(self) -> None:
        """All that is over together; where that is no configuration, one by one as long as some can be undone."""
        over = self._over()
        if len(over) > 1:
            over = [] if await self._undo(over, tell=False) else over
        undone = bool(over)
        while undone:
            undone = False
            for each in over:
                undone |= await self._undo([each], tell=True)
            over = self._over()
        left = set(over)
        self._held_back = {key: error for key, error in self._held_back.items() if key in left}

    def _over(self) -> list[_Expiry]:
        now = self._ledger.clock()
        return sorted((key for key in _expiring(self._ledger.now.overlay) if key[1] <= now), key=_by_time)

    async def _undo(self, keys: Sequence[_Expiry], *, tell: bool) -> bool:
        """Whether it could be."""
        gone = set(keys)

        def make(now: InForce, _number: int, _expires_at: float | None) -> Made:
            left = (s for s in now.overlay.settings if s.expires_at is None or (s.revision, s.expires_at) not in gone)
            return Made(Overlay(tuple(left)))

        numbers = ", ".join(str(revision) for revision, _ in keys)
        change = Change(Kind.EXPIRY, service("expiry"), f"what revision {numbers} set is over", make, must=True)
        try:
            await self._ledger.carry_out(change)
        except Exception as error:  # whatever it is, the others are to expire
            if tell:
                await self._hold_back(keys[0], change, error)
            return False
        return True

    async def _hold_back(self, key: _Expiry, change: Change, error: Exception) -> None:
        known = key in self._held_back
        self._held_back[key] = told = str(error) or type(error).__name__
        if not known:
            unexpected = None if isinstance(error, AdminError) else error
            log.error(
                "expiry_held_back", revision=key[0], error=told, note="tried after each change", exc_info=unexpected
            )
            await self._ledger.refused(change, error)

    def arm(self) -> None:
        """Wake up for the next expiry."""
        self.disarm()
        times = [key[1] for key in _expiring(self._ledger.now.overlay) if key not in self._held_back]
        if times:
            delay = min(max(min(times) - self._ledger.clock(), 0.0), _LOOK_AGAIN_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _by_time(key: _Expiry) -> tuple[float, int]:
    revision, expires_at = key
    return expires_at, revision


def _expiring(overlay: Overlay) -> dict[_Expiry, list[Path]]:
    """The paths of settings that expire, by when and by what set them."""
    found: dict[_Expiry, list[Path]] = {}
    for each in overlay.settings:
        if each.expires_at is not None:
            found.setdefault((each.revision, each.expires_at), []).append(each.path)
    return found
