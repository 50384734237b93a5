"""Requests as they stand in a file, what is chosen of them, and the jobs that they become."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from extproc.core.recording import Header
from extproc.sim.jobs import Job

NOBODY = "anonymous"

_LONGEST_LINE = 64 * 1024**2  # bytes; the header of a recording with many tenants is long


class TraceError(ValueError):
    """A trace cannot be used. The message has the file, the line, the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken of a trace. Times are seconds after its first row, as recorded."""

    since: float = 0.0
    until: float = math.inf
    limit: int | None = None  # requests, the first ones of the file
    scale: float = 1.0  # 2: arrivals come twice as fast
    class_column: str = "class"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace."""

    at: float  # seconds, from any origin
    job: Job  # without its time; its class is the one that it asked for, "" where it asked for none


@dataclass(slots=True)
class Traffic:
    """Jobs in order of time, from 0 on. Their classes are those that they asked for, "" for none."""

    jobs: list[Job]
    notes: list[str] = field(default_factory=list)  # what the reader should know, a sentence each
    prefix_tokens: int = 0  # that each hash of a job's prefix stands for; 0: there are none
    header: Header | None = None  # of a recording's first part
    endpoints: int = 0  # that a recording's pool had; 0: not known


def chosen(rows: Iterable[Row], choice: Choice) -> list[Job]:
    """The jobs of `rows` (in the order of the file) that are chosen, in the order of their times."""
    kept: list[Row] = []
    origin: float | None = None
    for row in rows:
        origin = row.at if origin is None else origin
        if choice.since <= row.at - origin < choice.until or (choice.since == 0.0 and row.at < origin):
            kept.append(row)
            if choice.limit is not None and len(kept) >= choice.limit:
                break
    start = min((row.at for row in kept), default=0.0)
    kept.sort(key=lambda row: row.at)
    return [replace(row.job, at=(row.at - start) / choice.scale) for row in kept]


def lines(path: Path, *, may_be_cut: bool = False) -> Iterator[str]:
    """The lines of a text file, gzip or not. `may_be_cut`: a gzip file without its end, as a kill leaves it, is read as
    far as it goes. Raises TraceError."""
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if len(line) >= _LONGEST_LINE:
                    raise TraceError(f"{path}, line {number}: is longer than anything here; is it a text file?")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except EOFError as error:
        if not may_be_cut:
            raise TraceError(f"{path}, line {number + 1}: the gzip file is cut off here; copy it again") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}, line {number}: is not UTF-8; save the file as UTF-8 text") from error
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def is_recording(path: Path) -> bool:
    """Whether it is a recording, by its first line; else a CSV. Raises TraceError."""
    return next(lines(path, may_be_cut=True), "").startswith("{")
