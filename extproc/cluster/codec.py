"""Reports as bytes, and back.

A document is all that a replica has to say but for its flows, and takes the place of its last one. A message is flows,
all values absolute: to lose one, or to read it twice, does no harm.

Both are JSON with lists in place of objects, to be short:

- document: `[info, [[pool, [[class, rank, demand, backlog, active, served, weight, promoted], ...],
  [[endpoint, in flight, freed, limit, want], ...], released], ...]]`
- message: `[[pool, class, [tenant, usage, backlog, inside, tenant, ...]], ...]`

What comes back was written by another process, perhaps by another program: everything is looked at, and what is not as
it should be is a CodecError, with all of that document or message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import orjson

from extproc.core.sharing.words import ClassReport, EndpointReport, FlowReport, PoolReport

DIGITS: Final = 3  # of costs behind the point
_LEAST: Final = 0.001
LARGEST: Final = 1e16  # of a number, as in the configuration
LONGEST_NAME: Final = 1024  # characters: a tenant's path is the longest
_LARGEST_WHOLE: Final = 2**53

Flow = tuple[str, FlowReport]  # of a pool

_T = TypeVar("_T")


class CodecError(ValueError):
    """What, and from whom."""


def document(reports: Iterable[PoolReport], info: Mapping[str, Any]) -> bytes:
    """Flows are left out. Raises CodecError: what the own process gives is no JSON, a number that is none included."""
    pools = [
        (
            report.pool,
            [
                (
                    *(each.name, each.rank, each.demand, _short(each.backlog)),
                    *(each.active, _short(each.served), each.weight, each.promoted),
                )
                for each in report.classes
            ],
            [(each.endpoint, each.in_flight, each.freed, each.limit, each.want) for each in report.endpoints],
            report.released,
        )
        for report in reports
    ]
    try:
        return orjson.dumps((info, pools))
    except orjson.JSONEncodeError as error:
        raise CodecError(f"what this replica has to say cannot be written: {error}") from None


def message(flows: Iterable[Flow]) -> bytes:
    """Empty where there are none. One whose name is no text that can be written (half a character) is left out."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for pool, flow in flows:
        groups.setdefault((pool, flow.cls), []).extend(
            (flow.tenant, _short(flow.usage), _short(flow.backlog), flow.inside)
        )
    if not groups:
        return b""
    rows = [(pool, cls, values) for (pool, cls), values in groups.items()]
    try:
        return orjson.dumps(rows)
    except orjson.JSONEncodeError:
        return orjson.dumps([(pool, cls, _writable(values)) for pool, cls, values in rows])


def size(flow: FlowReport) -> int:
    """Bytes that it takes in a message, at most, its class and pool not counted."""
    return 6 * len(flow.tenant) + 64


def read_document(data: bytes, whose: str) -> tuple[dict[str, Any], dict[str, PoolReport]]:
    """Info and reports by pool, without flows. Raises CodecError."""
    return _guarded(lambda: _document(_Reader(), data), "document", whose)


def read_message(data: bytes, whose: str) -> list[Flow]:
    """Raises CodecError."""
    return _guarded(lambda: _message(_Reader(), data), "message", whose)


def _guarded(read: Callable[[], _T], what: str, whose: str) -> _T:
    try:
        return read()
    except orjson.JSONDecodeError as error:
        raise CodecError(f"the {what} of replica {whose} is no JSON: {error}") from None
    except _FormatError as error:
        raise CodecError(f"the {what} of replica {whose} is not as it should be: {error}") from None


def _document(read: _Reader, data: bytes) -> tuple[dict[str, Any], dict[str, PoolReport]]:
    info, pools = read.row(orjson.loads(data), 2, "the whole")
    if not isinstance(info, dict):
        read.refuse("info", "an object", info)
    reports: dict[str, PoolReport] = {}
    for row in read.rows(pools, "pools"):
        name, classes, endpoints, released = read.row(row, 4, "a pool")
        pool = read.name(name, "a pool's name")
        if pool in reports:
            raise _FormatError(f"pool {pool!r} is there twice")
        reports[pool] = PoolReport(
            pool,
            tuple(map(read.cls, read.rows(classes, "classes"))),
            tuple(map(read.endpoint, read.rows(endpoints, "endpoints"))),
            released=read.whole(released, "released"),
        )
    return info, reports


def _message(read: _Reader, data: bytes) -> list[Flow]:
    found: list[Flow] = []
    for row in read.rows(orjson.loads(data), "the whole"):
        pool, cls, values = read.row(row, 3, "a pool's flows")
        read.name(pool, "a pool's name")
        read.name(cls, "a class")
        if len(read.rows(values, "flows")) % 4:
            raise _FormatError(f"flows must be four values each, and there are {len(values)}")
        for tenant, usage, backlog, inside in zip(values[::4], values[1::4], values[2::4], values[3::4], strict=True):
            if not (  # thousands in a period: calls are made only for what is wrong
                type(tenant) is str
                and len(tenant) <= LONGEST_NAME
                and type(usage) is float
                and 0.0 <= usage <= LARGEST
                and type(backlog) is float
                and 0.0 <= backlog <= LARGEST
                and type(inside) is int
                and 0 <= inside <= _LARGEST_WHOLE
            ):
                read.name(tenant, "a tenant")
                usage, backlog = read.number(usage, "usage"), read.number(backlog, "backlog")
                read.whole(inside, "inside")
            found.append((pool, FlowReport(cls, tenant, usage, backlog, inside)))
    return found


class _FormatError(ValueError):
    pass


class _Reader:
    """Raises _FormatError."""

    def refuse(self, what: str, expected: str, value: object) -> NoReturn:
        raise _FormatError(f"{what} must be {expected}, not {type(value).__name__}")

    def rows(self, value: Any, what: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(what, "a list", value)
        return value

    def row(self, value: Any, length: int, what: str) -> list[Any]:
        if not isinstance(value, list) or len(value) != length:
            raise _FormatError(f"{what} must be a list of {length}")
        return value

    def name(self, value: Any, what: str) -> str:
        if not isinstance(value, str):
            self.refuse(what, "text", value)
        if len(value) > LONGEST_NAME:
            raise _FormatError(f"{what} has {len(value)} characters")
        return value

    def number(self, value: Any, what: str) -> float:
        if type(value) is not float and type(value) is not int:
            self.refuse(what, "a number", value)
        if not 0 <= value <= LARGEST:
            raise _FormatError(f"{what} is {value:g}, and must be from 0 to {LARGEST:g}")
        return float(value)

    def whole(self, value: Any, what: str, least: int = 0) -> int:
        if type(value) is not int:
            self.refuse(what, "a whole number", value)
        if not least <= value <= _LARGEST_WHOLE:
            raise _FormatError(f"{what} is {value}")
        return value

    def cls(self, row: Any) -> ClassReport:
        name, rank, demand, backlog, active, served, weight, promoted = self.row(row, 8, "a class")
        return ClassReport(
            self.name(name, "a class's name"),
            self.whole(rank, "rank", -_LARGEST_WHOLE),
            self.whole(demand, "demand"),
            self.number(backlog, "backlog"),
            self.whole(active, "active"),
            self.number(served, "served"),
            self.number(weight, "weight"),
            self.whole(promoted, "promoted"),
        )

    def endpoint(self, row: Any) -> EndpointReport:
        name, in_flight, freed, limit, want = self.row(row, 5, "an endpoint")
        return EndpointReport(
            self.name(name, "an endpoint's name"),
            self.whole(in_flight, "in flight"),
            self.whole(freed, "freed"),
            self.number(limit, "limit"),
            self.number(want, "want"),
        )


def _writable(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for at in range(0, len(values), 4):
        try:
            values[at].encode()
        except UnicodeEncodeError:
            continue
        kept += values[at : at + 4]
    return kept


def _short(cost: float) -> float:
    """What grows still grows, and what is there stays so."""
    if not math.isfinite(cost):
        return 0.0
    return round(cost, DIGITS) or (_LEAST if cost > 0.0 else 0.0)
