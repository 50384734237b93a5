"""What a recording that begins in mid-life lacks: what its scheduler had before.

One that `fairlane ctl record start` has begun, or whose first parts are gone, begins while requests wait and run. Those
have no arrival in it, so they are no traffic that could be played. Some of them show by what became of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.core.events import Arrive, Evict, Refuse, Release, Usage
from extproc.core.recording import Reader, Record


def begins(readers: Sequence[Reader]) -> str | None:
    """A sentence, where the first part of a run is not its beginning. `readers`: in the order of time."""
    parts = _mid_life(readers).values()
    if not parts:
        return None
    return (
        f"the recording starts in mid-life, with part {' and '.join(map(str, parts))} of its run: what waited, ran and "
        "was learnt before is not in it"
    )


def missing(readers: Sequence[Reader]) -> int:
    """How many requests were held or inside at its start, as far as their end, their release or their refusal is in it.
    Reads the files. Raises TraceError, RecordingError."""
    runs = _mid_life(readers)
    arrived: dict[str, set[str]] = {run: set() for run in runs}
    before: dict[str, set[str]] = {run: set() for run in runs}
    for reader in readers:
        run = reader.header.run
        if run not in runs:
            continue
        for record in reader:
            if isinstance(record.event, Arrive):
                arrived[run].add(record.event.id)
            before[run].update(name for name in _under_way(record) if name not in arrived[run])
    return sum(map(len, before.values()))


def _mid_life(readers: Sequence[Reader]) -> dict[str, int]:
    """By run: its first part here, where that is not the first of all."""
    first: dict[str, int] = {}
    for reader in readers:
        first.setdefault(reader.header.run, reader.header.part)
    return {run: part for run, part in first.items() if part > 1}


def _under_way(record: Record) -> Iterator[str]:
    """Ids of those that were held or inside. A count of tokens may come when all is over."""
    if not isinstance(record.event, Usage) and (name := getattr(record.event, "id", None)) is not None:
        yield name
    for effect in record.effects:
        if isinstance(effect, Release | Refuse | Evict):
            yield effect.id
