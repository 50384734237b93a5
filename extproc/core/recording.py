"""A recording: the events that one pool's scheduler was given and the effects that it gave, as plain values.

It is for two things. Played event by event it shows that the same events give the same effects, or the first that does
not (`player`). Read as traffic (who asked when, for how much) it can be put before another configuration
(`extproc.sim.trace`). It holds times, sizes, tenants, classes, endpoints and decisions. No text is in it, since none
reaches the scheduler.

A recording is a file of lines, each a JSON object. The first is the header, all others are records:

    {"fairlane_recording": 1, "fairlane": "0.1.0", "run": "5f..", "part": 1, "pool": "llama", "clock": {...}, ...}
    {"now": 71.25, "event": {"type": "arrive", "id": "..", ...}, "effects": [{"type": "release", ...}]}
    {"now": 71.3, "event": {...}, "raised": "ValueError"}

A record without `effects` had none. `raised`: the scheduler failed on this event, which is worth a replay most of all.
`now` is the scheduler's clock in seconds; the header says what it was at which time of day.

One life of a scheduler is a `run`. Its files are `part` 1, 2, ...: a file that has grown to its size is put aside and
the next begins with a header of its own. Only a run from part 1 on can be played exactly. Any part can be read as
traffic. A recording that was begun in mid-life is a run of its own without part 1.

Policies are written in full, so that a default that changes with a version does not change an old recording. Fields of
events that have their default are left out; those defaults all mean "nothing".

Hashed names (`Names`): in place of a tenant stands a keyed hash of each of its levels, so that the tree keeps its
shape, and messages, which may hold names, are left out. The key is in the header, because another configuration's
tenants must be found again. So who has both the file and a guess can test the guess: it is a pseudonym, not anonymity.

Left out on purpose: the scheduler's state. A recording that begins in the middle cannot be played exactly, and says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Evict,
    Failed,
    FirstByte,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Synced,
    Tick,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.model import PoolPolicy
from extproc.core.plain import Plain, PlainError, from_plain, to_plain

FORMAT = 1

EVENTS: Mapping[str, type[Event]] = {
    "arrive": Arrive,
    "end": End,
    "cancel": Cancel,
    "first_byte": FirstByte,
    "first_token": FirstToken,
    "usage": Usage,
    "unreachable": Unreachable,
    "turned_away": TurnedAway,
    "failed": Failed,
    "scraped": Scraped,
    "scrape_failed": ScrapeFailed,
    "endpoint_added": EndpointAdded,
    "endpoint_removed": EndpointRemoved,
    "reconfigure": Reconfigure,
    "synced": Synced,
    "tick": Tick,
}
EFFECTS: Mapping[str, type[Effect]] = {"release": Release, "refuse": Refuse, "evict": Evict, "settled": Settled}

T = TypeVar("T")

_NAMES = {cls: name for table in (EVENTS, EFFECTS) for name, cls in table.items()}
_REMEMBERED = 65_536  # names whose hash is kept


class RecordingError(ValueError):
    """A recording cannot be used. The message has the line, the cause and the cure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """The scheduler's clock and the time of day, taken together."""

    now: float  # seconds, as in the records
    epoch: float  # seconds since 1970


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file."""

    fairlane: str  # version that wrote it
    run: str  # one life of one scheduler
    part: int  # 1, 2, ...
    pool: str
    clock: Clock
    endpoints: tuple[str, ...]  # in use when the part began
    policy: PoolPolicy  # in force when the part began
    salt: str | None = None  # of hashed tenants; None: they stand as they are
    separator: str | None = None  # at which hashed names are split

    @property
    def names(self) -> Names:
        return Names(self.salt, self.separator)


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One event, and what came of it."""

    now: float
    event: Event
    effects: tuple[Effect, ...] = ()
    raised: str | None = None  # name of the exception; then there are no effects
    line: int = 0  # in its file


class Names:
    """How tenants stand in a recording: as they are (no salt), or hashed."""

    def __init__(self, salt: str | None = None, separator: str | None = None) -> None:
        self.salt = salt
        self.separator = separator
        self._part = lru_cache(_REMEMBERED)(self._hash)

    @property
    def hashed(self) -> bool:
        return self.salt is not None

    def tenant(self, name: str) -> str:
        """Of a tenant or a node's path. "*", which stands for everybody else in the tree's settings, stays."""
        if self.salt is None:
            return name
        if self.separator is None:
            return self._part(name)
        return self.separator.join(self._part(level) for level in name.split(self.separator))

    def policy(self, policy: PoolPolicy) -> PoolPolicy:
        """`policy` for tenants as they stand here."""
        if self.salt is None:
            return policy
        return dataclasses.replace(
            policy,
            tenants={
                self.tenant(name): tenant
                if tenant.parent is None
                else dataclasses.replace(tenant, parent=self.tenant(tenant.parent))
                for name, tenant in policy.tenants.items()
            },
        )

    def _hash(self, level: str) -> str:
        if level == "*":
            return level
        key = bytes.fromhex(self.salt or "")
        return hashlib.blake2b(level.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()


PLAIN_NAMES = Names()


# -- writing --------------------------------------------------------------------------------------


def header_to_plain(header: Header) -> dict[str, Plain]:
    """The first line's object. `header.policy` has the names that are to be written."""
    return {"fairlane_recording": FORMAT, **to_plain(header)}


def record_to_plain(
    event: Event, now: float, effects: Sequence[Effect], names: Names, raised: str | None = None
) -> dict[str, Plain]:
    """A record's object. `raised`: the name of the exception, where the scheduler failed on the event."""
    out: dict[str, Plain] = {"now": now, "event": event_to_plain(event, names)}
    if effects:
        out["effects"] = [effect_to_plain(effect, names) for effect in effects]
    if raised is not None:
        out["raised"] = raised
    return out


def event_to_plain(event: Event, names: Names = PLAIN_NAMES) -> dict[str, Plain]:
    if isinstance(event, Reconfigure):
        return {"type": "reconfigure", "policy": to_plain(names.policy(event.policy))}
    out = {"type": _NAMES[type(event)], **to_plain(event, lean=True)}
    if isinstance(event, Arrive):
        out["tenant"] = names.tenant(event.tenant)
    elif isinstance(event, Synced) and names.hashed:
        for flow in out.get("flows", ()):
            flow["tenant"] = names.tenant(flow["tenant"])
    return out


def effect_to_plain(effect: Effect, names: Names = PLAIN_NAMES) -> dict[str, Plain]:
    out = {"type": _NAMES[type(effect)], **to_plain(effect, lean=True)}
    if names.hashed:
        out["tenant"] = names.tenant(effect.tenant)
        if isinstance(effect, Refuse | Evict):
            out["message"] = ""
    return out


# -- reading --------------------------------------------------------------------------------------


class Reader:
    """Reads the lines of one file. Iterate over it for its records. Raises RecordingError, at once for the header.

    A last line that stops in the middle, as a kill leaves it, ends the reading: `cut` is then True."""

    def __init__(self, lines: Iterable[str], name: str = "recording") -> None:
        self._lines = iter(lines)
        self.name = name
        self.cut = False
        self.header = self._header()

    def __iter__(self) -> Iterator[Record]:
        for number, text in enumerate(self._lines, 2):
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                if not text.endswith("\n") and next(self._lines, None) is None:
                    self.cut = True
                    return
                raise self._error(number, f"is no JSON ({error})", _DAMAGED) from error
            yield self._record(number, value)

    def _header(self) -> Header:
        text = next(self._lines, "")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._error(1, "is no header of a recording", _NO_HEADER) from error
        if not isinstance(value, dict) or "fairlane_recording" not in value:
            raise self._error(1, "is no header of a recording", _NO_HEADER)
        version = value.pop("fairlane_recording")
        if version != FORMAT:
            by = value.get("fairlane", "another version")
            cure = f"read it with the Fairlane that wrote it ({by})"
            raise self._error(1, f"has format {version!r}, and this Fairlane reads {FORMAT}", cure)
        try:
            header = from_plain(Header, value)
            bytes.fromhex(header.salt or "")
        except ValueError as error:
            raise self._error(1, str(error), f"was it written by a later version ({value.get('fairlane')})?") from error
        return header

    def _record(self, number: int, value: Plain) -> Record:
        try:
            return _record_from_plain(value, number)
        except PlainError as error:
            raise self._error(number, str(error), _DAMAGED) from error

    def _error(self, line: int, cause: str, cure: str) -> RecordingError:
        return RecordingError(f"{self.name}, line {line}: {cause}; {cure}")


_DAMAGED = "the file is damaged from here on, or of a later version: cut it before this line, or use another part"
_NO_HEADER = "a recording begins with one: give the whole file, from its first line"


def _record_from_plain(value: Plain, line: int) -> Record:
    if not isinstance(value, dict):
        raise PlainError("is no object")
    unknown = sorted(value.keys() - {"now", "event", "effects", "raised"})
    if unknown:
        raise PlainError("is not known in a record", (unknown[0],))
    for key in ("now", "event"):
        if key not in value:
            raise PlainError("is missing", (key,))
    now, raised, effects = value["now"], value.get("raised"), value.get("effects", [])
    if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now):
        raise PlainError(f"expected seconds, found {now!r}", ("now",))
    if raised is not None and not isinstance(raised, str):
        raise PlainError(f"expected the name of an exception, found {raised!r}", ("raised",))
    if not isinstance(effects, list):
        raise PlainError("expected a list", ("effects",))
    return Record(
        now=now,
        event=event_from_plain(value["event"]),
        effects=tuple(effect_from_plain(effect) for effect in effects),
        raised=raised,
        line=line,
    )


def event_from_plain(value: Plain) -> Event:
    """Raises PlainError."""
    return _typed(value, EVENTS, "event")


def effect_from_plain(value: Plain) -> Effect:
    """Raises PlainError."""
    return _typed(value, EFFECTS, "effect")


def _typed(value: Plain, table: Mapping[str, type[T]], what: str) -> T:
    kind = value.get("type") if isinstance(value, dict) else None
    cls = table.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise PlainError(f"expected one of {', '.join(table)}, found {kind!r}", (what, "type"))
    try:
        return from_plain(cls, {key: item for key, item in value.items() if key != "type"})
    except PlainError as error:
        raise PlainError(error.cause, (what, *error.place)) from error
