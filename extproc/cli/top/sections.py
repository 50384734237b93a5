"""The tables of a picture: pools, endpoints, classes and flows, the most important rows and columns first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from extproc.cli.ctl import cells
from extproc.cli.ctl.pools import mode_text, traffic_text
from extproc.cli.top.bars import Look, bar
from extproc.cli.top.choices import Choices
from extproc.cli.top.table import Cell, Column, drawn
from extproc.cli.top.text import safe
from extproc.pb.admin.v1 import admin_pb2 as pb

STALLED_S = 30.0  # that something waits and nothing goes: then it is worth a colour
_BAD, _WARN, _GOOD = "bold red", "yellow", "green"
_CHOSEN = "reverse"
_STANCES = {"fresh": _GOOD, "starting": "", "stale": _WARN}


@dataclass(frozen=True)
class Section:
    """`rows`: those that there are. `lines(count, cells)`: the head and so many rows."""

    rows: int
    lines: Callable[[int, int], list[Text]]


class Names:
    """Names as the terminal may have them."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def __call__(self, name: str, most: int = 512) -> str:
        return safe(name, ascii_only=not self.look.unicode, most=most) or cells.NONE


def pools(found: Sequence[pb.Pool], chosen: str, look: Look) -> Section:
    """`found`: by their numbers. Those in trouble are first; where there is no room for all, then those that hold."""
    name = Names(look)
    numbered = sorted(enumerate(found, 1), key=lambda each: not _troubled(each[1]))
    busiest = sorted(numbered, key=lambda each: (not _troubled(each[1]), not each[1].queued_count))

    def lines(count: int, wide: int) -> list[Text]:
        shown = numbered if count >= len(numbered) else busiest[:count]
        several = len(found) > 1
        marks = [f"{number if number < 10 else '':>1}{'*' if pool.name == chosen else ' '}" for number, pool in shown]
        each = [pool for _, pool in shown]
        stalled = [cells.duration(pool, "since_release") for pool in each]
        columns = [
            *([Column("#", marks)] if several else []),
            Column(_head("pool", len(each), len(found)), [name(pool.name) for pool in each], 0, 8, 12, 60),
            _count("held", [pool.queued_count for pool in each], 1),
            _count("in flight", [pool.in_flight_slots for pool in each], 2),
            _number("rel/s", [_rate(pool.releases_per_second) for pool in each], 3),
            Column("stalled", stalled, 4, 0, 7, 12, True, [_BAD if _stalled(pool) else "" for pool in each]),
            Column(
                "mode",
                [mode_text(pool) for pool in each],
                5,
                7,
                7,
                30,
                styles=[_WARN if pool.mode == pb.OBSERVE else "" for pool in each],
            ),
            Column(
                "traffic",
                [traffic_text(pool) for pool in each],
                6,
                0,
                8,
                styles=["" if traffic_text(pool) == "open" else _WARN for pool in each],
            ),
            _count("endpoints", [len(pool.endpoints) for pool in each], 7),
            _number("size", [cells.size(pool.queued_bytes) for pool in each], 8),
            _count("observed", [pool.observed_count for pool in each], 9),
            Column("notes", [name(_pool_notes(pool)) for pool in each], 10, 12, 0, 120, styles=[_BAD] * len(each)),
        ]
        if not any(_pool_notes(pool) for pool in each):
            columns.pop()
        return drawn(columns, wide, look)

    return Section(len(found), lines)


def endpoints(found: Sequence[pb.Endpoint], several_pools: bool, look: Look) -> Section:
    """Those that are not fresh first, those that are gone last."""
    name = Names(look)
    ordered = sorted(found, key=lambda each: (each.removed, each.stance == pb.FRESH, each.pool, each.address))

    def lines(count: int, wide: int) -> list[Text]:
        each = ordered[:count]
        stances = [cells.word(one, "stance") for one in each]
        columns = [
            Column(_head("endpoint", len(each), len(found)), [name(one.address) for one in each], 0, 15, 15, 60),
            *([Column("pool", [name(one.pool) for one in each], 3, 6, 0, 30)] if several_pools else []),
            Column("stance", stances, 2, 0, 8, styles=[_STANCES.get(stance, _BAD) for stance in stances]),
            Column("window", [_bar(one, look) for one in each], 1, 10, min(60, max(20, wide // 5))),
            _number("used/limit", [_used(one) for one in each], 1),
            _number("free", [cells.number(math.floor(one.room)) for one in each], 5, 4),
            _number("wait", [cells.optional(one, "waiting_count") for one in each], 6, 4),
            _number("kv", [_percent(one, "kv_usage_ratio") for one in each], 7, 4),
            _number("tpot", [cells.duration(one, "time_per_output_token") for one in each], 8, 6),
            _number("page", [cells.duration(one, "page_age") for one in each], 4, 6),
            _number("R", [cells.number(one.capacity) for one in each], 10, 5),
            _number("q", [cells.number(one.queue_target) for one in each], 10, 3),
            Column("engine", [name(one.dialect) for one in each], 11, 0, 6, 20),
            Column("notes", [name(_endpoint_notes(one)) for one in each], 9, 8, 0, 120),
        ]
        if not any(_endpoint_notes(one) for one in each):
            columns.pop()
        return drawn(columns, wide, look)

    return Section(len(found), lines)


def classes(found: Sequence[tuple[str, pb.ClassStats]], several_pools: bool, look: Look) -> Section:
    """(pool, class), by pool and rank. Where there is no room for all, those that wait for too long are first, then
    those that hold something, then those that have something inside."""
    name = Names(look)
    ordered = sorted(found, key=lambda each: (each[0], each[1].rank, each[1].name))
    busiest = sorted(
        ordered, key=lambda each: (not _late(each[1]), not each[1].queued_count, not each[1].in_flight_slots)
    )

    def lines(count: int, wide: int) -> list[Text]:
        shown = ordered if count >= len(ordered) else busiest[:count]
        each = [cls for _, cls in shown]
        late = [_late(one) for one in each]
        columns = [
            Column(_head("class", len(each), len(found)), [name(one.name) for one in each], 0, 11, 12, 40),
            *([Column("pool", [name(pool) for pool, _ in shown], 3, 6, 0, 30)] if several_pools else []),
            _count("held", [one.queued_count for one in each], 1),
            _count("in flight", [one.in_flight_slots for one in each], 5),
            Column(
                "oldest/goal", [_wait(one) for one in each], 1, 0, 12, 20, True, [_BAD if so else "" for so in late]
            ),
            _number("rel/s", [_rate(one.releases_per_second) for one in each], 4),
            _number("jain", [_jain(one) for one in each], 6, 5),
            _number("spread", [cells.optional(one, "tag_spread") for one in each], 9),
            _count("tenants", [one.tenant_count for one in each], 8),
            Column("held by", [name(_hold(one)) for one in each], 2, 8, 12, 30),
            Column("why", [name(one.sentence) for one in each], 10, 24, 0, 200),
        ]
        return drawn(columns, wide, look)

    return Section(len(found), lines)


def flows(found: Sequence[pb.Flow], total: int, choices: Choices, several_pools: bool, look: Look) -> Section:
    """`found`: as they are sorted. `choices`: as `in_view` made them for as many rows as are drawn."""
    name = Names(look)

    def lines(count: int, wide: int) -> list[Text]:
        first = choices.first
        each = found[first : first + count]
        marked = None if choices.chosen is None else choices.row - first + 1  # line of `body`
        head = _sorted(_head("tenant", len(each), total, first), "tenant", choices, look)
        body = drawn(
            [
                Column(head, [name(one.tenant) for one in each], 0, max(14, len(head)), 16, 80),
                Column(
                    _sorted("class", "class", choices, look),
                    [name(getattr(one, "class")) for one in each], 3, 6, 12, 40,
                ),
                *([Column("pool", [name(one.pool) for one in each], 4, 6, 0, 30)] if several_pools else []),
                _count(_sorted("queued", "queued", choices, look), [one.queued_count for one in each], 1, 7),
                _count(_sorted("in flight", "in-flight", choices, look), [one.in_flight_slots for one in each], 5, 10),
                _number(
                    _sorted("oldest", "oldest", choices, look),
                    [cells.duration(one, "oldest_wait") for one in each], 2, 7,
                ),
                _number(_sorted("weight", "weight", choices, look), [cells.number(one.weight) for one in each], 6, 7),
                _number(_sorted("tag", "tag", choices, look), [cells.number(one.tag) for one in each], 7, 8),
            ],
            wide - len(look.marker),
            look,
        )  # fmt: skip
        marked_lines = []
        for place, line in enumerate(body):
            chosen = place == marked
            marked_line = Text(look.marker if chosen else " " * len(look.marker), no_wrap=True).append_text(line)
            if chosen:
                marked_line.stylize(_CHOSEN)
            marked_lines.append(marked_line)
        return marked_lines

    return Section(len(found), lines)


def troubles(found: Iterable[pb.Pool]) -> list[str]:
    """Of pools, in words, the worst first."""
    told = []
    for pool in found:
        if _stalled(pool):
            told.append(f"{pool.name}: nothing has gone for {cells.duration(pool, 'since_release')}")
        if _pool_notes(pool):
            told.append(f"{pool.name}: {_pool_notes(pool)}")
    return told


def _stalled(pool: pb.Pool) -> bool:
    return pool.HasField("since_release") and pool.since_release.ToNanoseconds() / 1e9 >= STALLED_S


def _troubled(pool: pb.Pool) -> bool:
    return _stalled(pool) or bool(_pool_notes(pool))


def _pool_notes(pool: pb.Pool) -> str:
    notes = []
    if pool.leaked_slots:
        notes.append(f"{pool.leaked_slots} leaked slots")
    if pool.endpoint_source_error:
        notes.append(f"endpoints cannot be read: {pool.endpoint_source_error}")
    return "; ".join(notes)


def _endpoint_notes(one: pb.Endpoint) -> str:
    notes = [word for word, so in (("removed", one.removed), ("at its floor", one.at_floor)) if so]
    if one.last_error:
        notes.append(one.last_error)
    return "; ".join(notes)


def _bar(one: pb.Endpoint, look: Look) -> Cell:
    return lambda wide: bar(one.in_flight_slots, one.foreign_count, one.limit, wide, look)


def _used(one: pb.Endpoint) -> str:
    """Ours, with those of others where there are any, of the limit: 12+3/16."""
    foreign = f"+{one.foreign_count}" if one.foreign_count else ""
    limit = math.floor(one.limit) if math.isfinite(one.limit) else one.limit
    return f"{one.in_flight_slots}{foreign}/{cells.number(limit)}"


def _rate(value: float) -> str:
    return cells.number(float(f"{value:.3g}"))


def _percent(message: Any, field: str) -> str:
    value = getattr(message, field)
    return f"{value * 100:.0f}%" if message.HasField(field) and math.isfinite(value) else cells.NONE


def _wait(one: pb.ClassStats) -> str:
    """The oldest wait, and the objective where there is one."""
    oldest = cells.duration(one, "oldest_wait")
    return f"{oldest}/{cells.duration(one, 'wait_objective')}" if one.HasField("wait_objective") else oldest


def _late(one: pb.ClassStats) -> bool:
    return (
        one.HasField("wait_objective")
        and one.HasField("oldest_wait")
        and one.oldest_wait.ToNanoseconds() > one.wait_objective.ToNanoseconds()
    )


def _jain(one: pb.ClassStats) -> str:
    return f"{one.jain_index:.2f}" if one.HasField("jain_index") else cells.NONE


def _hold(one: pb.ClassStats) -> str:
    """What holds it, and gates that are closed with the number of endpoints."""
    closed = " ".join(f"{gate.name}:{gate.closed_count}" for gate in one.gates if gate.closed_count)
    return " ".join(word for word in (one.hold.replace("_", " "), closed, "(retiring)" * one.retiring) if word)


def _sorted(head: str, column: str, choices: Choices, look: Look) -> str:
    if choices.sort != column:
        return head
    return f"{head}{look.down if choices.down else look.up}"


def _head(word: str, shown: int, total: int, first: int | None = None) -> str:
    """With what part of it is seen where that is not all."""
    if shown >= total:
        return word
    return f"{word} {shown if first is None else f'{first + 1}-{first + shown}'}/{total}"


def _number(head: str, shown: Sequence[str], need: int, wanted: int = 6) -> Column:
    return Column(head, shown, need, 0, wanted, right=True)


def _count(head: str, counts: Sequence[int], need: int, wanted: int = 6) -> Column:
    return _number(head, [cells.count(count) for count in counts], need, wanted)
