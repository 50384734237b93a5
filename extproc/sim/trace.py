"""Traffic from files: CSV traces, and recordings that Fairlane has made.

A CSV has a header line and these columns, in any order:

    arrival_s        seconds, from any origin (or arrival_ms, milliseconds)
    prompt_tokens    tokens
    output_tokens    tokens, of each choice
    user             optional: the tenant (or tenant)
    class            optional; another name with `Choice.class_column`
    max_output, n, timeout_s, body_bytes                optional, as the client says
    prefix_block_hashes_512tok                          optional: chained hashes of blocks of so many tokens, by spaces

Other columns are left alone. Rows need not be in order. 0 tokens count as 1. A row that cannot be true is an error that
names its line, the cause and the cure; no row is skipped. Files are read line by line, gzip or not.

Times of the jobs begin at 0, with the first one that was chosen, and pass `Choice.scale` times as fast as recorded.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from extproc.core.model import MAX_SLOTS, MAX_TOKENS
from extproc.core.recording import Header, Reader
from extproc.sim import recorded_traffic
from extproc.sim.jobs import Job
from extproc.sim.traffic import NOBODY, Choice, Row, TraceError, Traffic, chosen, is_recording, lines

_SHOWN = 10  # bad rows in one message
_MOST_S = 1e11  # as seconds since 1970 it is the year 5138
_MOST_BYTES = 2**48
_PREFIX = re.compile(r"prefix.*_(\d+)tok")
_HEADER = "arrival_s,prompt_tokens,output_tokens,user"


def load(paths: Sequence[Path], choice: Choice) -> Traffic:
    """One CSV, or one recording in one or several parts. Raises TraceError, RecordingError."""
    recordings = [is_recording(path) for path in paths]
    if all(recordings):
        recorded = recorded_traffic.read(readers_of(paths))
        jobs = chosen(recorded.rows, choice)
        return Traffic(jobs, recorded.notes, header=recorded.header, endpoints=recorded.endpoints)
    if len(paths) > 1:
        other = paths[recordings.index(False)]
        raise TraceError(f"{other}: is no recording; of CSV files give one at a time")
    table = Table(lines(paths[0]), str(paths[0]), choice)
    return Traffic(chosen(table, choice), prefix_tokens=table.prefix_tokens)


def header_of(paths: Sequence[Path]) -> Header | None:
    """Of the first part of a recording; None: it is none. Raises TraceError, RecordingError."""
    if not all(is_recording(path) for path in paths):
        return None
    return readers_of(paths)[0].header


def readers_of(paths: Sequence[Path]) -> list[Reader]:
    """Of recordings, in the order of time. Raises TraceError, RecordingError."""
    return recorded_traffic.parts([(str(path), lines(path, may_be_cut=True)) for path in paths])


class Table:
    """A CSV. Iterate over it for its rows; complains about all bad ones at the end, in one TraceError."""

    def __init__(self, texts: Iterable[str], name: str, choice: Choice) -> None:
        """Reads the header. Raises TraceError."""
        self._name = name
        self._reader = csv.reader(texts, strict=True)
        self._columns = self._header(choice.class_column)
        self.prefix_tokens = 0
        for column in self._columns:
            match = _PREFIX.fullmatch(column)
            if match:
                self._prefix, self.prefix_tokens = column, int(match[1])
        self._ms = "arrival_s" not in self._columns

    def __iter__(self) -> Iterator[Row]:
        faults: list[str] = []
        more = 0
        while True:
            try:
                values = next(self._reader)
            except StopIteration:
                break
            except csv.Error as error:
                raise self._error(f"{error}; are all quotes closed, and do lines end with a line feed?") from error
            if not values or (len(values) == 1 and not values[0].strip()):
                continue
            try:
                row = self._row(values)
            except ValueError as error:
                if len(faults) < _SHOWN:
                    faults.append(f"{self._name}, line {self._reader.line_num}: {error}")
                else:
                    more += 1
                continue
            if not faults:
                yield row
        if faults:
            raise TraceError("\n".join([*faults, *([f"{self._name}: {more} more rows like these"] if more else [])]))

    def _error(self, text: str) -> TraceError:
        return TraceError(f"{self._name}, line {max(1, self._reader.line_num)}: {text}")

    def _header(self, class_column: str) -> dict[str, int]:
        try:
            names = next(self._reader, [])
        except csv.Error as error:
            raise self._error(f"{error}; is it a CSV?") from error
        self._width = len(names)
        columns = {name.strip().lower(): place for place, name in reversed(list(enumerate(names)))}
        if class_column != "class":
            if class_column.lower() not in columns:
                raise self._error(f"there is no column {class_column!r}; there are {', '.join(names) or 'none'}")
            columns["class"] = columns[class_column.lower()]
        wanted = ["arrival_s", "prompt_tokens", "output_tokens"]
        if "arrival_ms" in columns:
            wanted.remove("arrival_s")
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise self._error(self._missing(missing, names))
        return columns

    def _missing(self, missing: list[str], names: list[str]) -> str:
        found = ", ".join(name.strip() for name in names)
        text = f"the header must name the column {missing[0]}; it has {found[:200] or 'nothing'}"
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            return f"{text}; separate the columns with commas"
        if all(_is_number(name) for name in names):
            return f"{text}; write a header line above the first row: {_HEADER}"
        close = difflib.get_close_matches(missing[0], [name.strip().lower() for name in names], 1, 0.5)
        return f"{text}; rename {close[0] if close else 'the column that has it'}"

    def _row(self, values: list[str]) -> Row:
        """Raises ValueError with cause and cure."""
        if len(values) != self._width:
            cure = "add the missing ones" if len(values) < self._width else "put fields with a comma in quotes"
            raise ValueError(f"has {len(values)} fields, and the header has {self._width}; {cure}")
        arrival = self._number(values, "arrival_ms", 0.001) if self._ms else self._number(values, "arrival_s", 1.0)
        prompt = self._count(values, "prompt_tokens", MAX_TOKENS)
        output = self._count(values, "output_tokens", MAX_TOKENS)
        if arrival is None or prompt is None or output is None:
            found = {"the time": arrival, "prompt_tokens": prompt, "output_tokens": output}
            empty = next(name for name, value in found.items() if value is None)
            raise ValueError(f"{empty} is empty; fill it in, or take the row out")
        tenant = self._text(values, "user") or self._text(values, "tenant") or NOBODY
        job = Job(
            at=0.0,
            tenant=tenant,
            prompt=max(1, prompt),
            cls=self._text(values, "class"),
            output=max(1, output),  # an answer has one token at least
            max_output=self._count(values, "max_output", MAX_TOKENS),
            n=max(1, self._count(values, "n", MAX_SLOTS) or 1),
            prefix=self._hashes(values),
            timeout_s=self._number(values, "timeout_s", 1.0),
            body_bytes=self._count(values, "body_bytes", _MOST_BYTES),
        )
        return Row(arrival, job)

    def _text(self, values: list[str], column: str) -> str:
        place = self._columns.get(column)
        return "" if place is None else values[place].strip()

    def _number(self, values: list[str], column: str, unit: float) -> float | None:
        """In the column times `unit`; None: the column is not there, or empty."""
        text = self._text(values, column)
        if not text:
            return None
        try:
            value = float(text) * unit
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{column} is {text[:40]!r}; write a number, with a point for decimals")
        if value < 0:
            raise ValueError(f"{column} is negative ({text[:40]}); times and durations are 0 or more")
        if value > _MOST_S:
            raise ValueError(f"{column} is {text[:40]}, which no clock shows; for milliseconds use arrival_ms")
        return value

    def _count(self, values: list[str], column: str, most: int) -> int | None:
        """A whole number; None: the column is not there, or empty."""
        text = self._text(values, column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value.is_integer():
            raise ValueError(f"{column} is {text[:40]!r}; write a whole number")
        if not 0 <= value <= most:
            raise ValueError(f"{column} is {text[:40]}; it must be between 0 and {most}")
        return int(value)

    def _hashes(self, values: list[str]) -> tuple[int, ...]:
        if not self.prefix_tokens:
            return ()
        text = self._text(values, self._prefix)
        try:
            return tuple(int(word) for word in text.split())
        except ValueError:
            raise ValueError(f"{self._prefix} has {text[:40]!r}; write whole numbers with spaces between") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
