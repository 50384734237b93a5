"""The traffic of a recording: who asked when, and for how much it turned out to be.

A request's true sizes are in its `Usage`. One that has none (its client left, it was refused, its engine did not count)
is taken to be as long as its tenant's others in the mean, and no longer than it asked for; its prompt is then what the
edge counted, or 4 bytes a token. How many those are is noted.

Times are the time of day, by each part's clock, so that parts of several runs follow one another rightly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from extproc.core.charging import COUNTED
from extproc.core.events import Arrive, EndpointAdded, Reconfigure, Usage
from extproc.core.model import MAX_SLOTS
from extproc.core.recording import Header, Reader
from extproc.sim.jobs import Job
from extproc.sim.traffic import Row, TraceError

_BYTES_PER_TOKEN = 4
_OUTPUT = 256  # tokens, where a recording has no count at all


@dataclass(slots=True)
class _Seen:
    at: float
    arrive: Arrive
    prompt: int | None = None
    output: int | None = None  # of each choice


def parts(files: Sequence[tuple[str, Iterable[str]]]) -> list[Reader]:
    """Readers of files (name, lines) of one pool, in the order of time. Raises TraceError, RecordingError."""
    readers = [Reader(texts, name) for name, texts in files]
    pools = sorted({reader.header.pool for reader in readers})
    if len(pools) > 1:
        raise TraceError(f"these are recordings of the pools {' and '.join(pools)}; give those of one pool at a time")
    return sorted(readers, key=lambda reader: (reader.header.clock.epoch, reader.header.part))


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """One row for each arrival, in the order of the files."""

    rows: list[Row]
    notes: list[str]
    header: Header  # of the first part
    endpoints: int  # how many the pool had at one time or another


def read(readers: Sequence[Reader]) -> RecordedTraffic:
    """Of `parts`. Raises RecordingError."""
    seen: dict[str, _Seen] = {}
    endpoints: set[str] = set()
    changes = 0
    for reader in readers:
        clock = reader.header.clock
        endpoints.update(reader.header.endpoints)
        for record in reader:
            event = record.event
            if isinstance(event, Arrive):
                came = event.arrival if event.arrival < record.now else record.now  # now also where it is no number
                seen[event.id] = _Seen(clock.epoch + came - clock.now, event)
            elif isinstance(event, Usage) and event.source in COUNTED and event.id in seen:
                _count(seen[event.id], event)
            elif isinstance(event, EndpointAdded):
                endpoints.add(event.endpoint)
            changes += isinstance(event, Reconfigure)
    means = _means(seen.values())
    rows = [_row(each, means) for each in seen.values()]
    return RecordedTraffic(rows, _notes(readers, seen, changes), readers[0].header, len(endpoints))


def _count(seen: _Seen, usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        seen.prompt = usage.prompt_tokens
    if usage.output_tokens is not None:
        seen.output = round(usage.output_tokens / _slots(seen.arrive))


def _slots(arrive: Arrive) -> int:
    return min(max(1, arrive.n), MAX_SLOTS)


def _means(seen: Iterable[_Seen]) -> dict[str | None, float]:
    """Of the output by tenant; of all under None."""
    known: dict[str | None, list[int]] = defaultdict(list)
    for each in seen:
        if each.output is not None:
            known[each.arrive.tenant].append(each.output)
            known[None].append(each.output)
    return {tenant: fmean(counts) for tenant, counts in known.items()}


def _row(seen: _Seen, means: dict[str | None, float]) -> Row:
    arrive = seen.arrive
    output = seen.output
    if output is None:
        output = round(means.get(arrive.tenant, means.get(None, _OUTPUT)))
        output = output if arrive.max_output is None else min(output, arrive.max_output)
    prompt = seen.prompt
    if prompt is None:
        prompt = arrive.prompt_tokens if arrive.prompt_tokens is not None else arrive.body_bytes // _BYTES_PER_TOKEN
    job = Job(
        at=0.0,
        tenant=arrive.tenant,
        cls=arrive.cls,
        prompt=max(1, prompt),
        output=max(1, output),
        max_output=arrive.max_output,
        n=_slots(arrive),
        prefix=arrive.prefix,
        adapter=arrive.adapter,
        session=arrive.session,
        timeout_s=arrive.timeout_s,
        body_bytes=arrive.body_bytes,
    )
    return Row(seen.at, job)


def _notes(readers: Sequence[Reader], seen: dict[str, _Seen], changes: int) -> list[str]:
    notes = []
    uncounted = sum(each.output is None for each in seen.values())
    if uncounted:
        notes.append(
            f"{uncounted} of {len(seen)} requests have no count of their tokens; they are taken to be as long as their "
            "tenant's others in the mean"
        )
    if changes:
        notes.append(f"the policy changed {changes} times in the recording; its own is the one from the beginning")
    if any(reader.cut for reader in readers):
        notes.append("the last line of the recording is cut off, and was left out")
    if any(reader.header.salt is not None for reader in readers):
        notes.append("tenants stand as hashes in this recording")
    return notes
