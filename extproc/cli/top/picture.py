"""A picture: the header, the tables by the room that there is, the explanation, and the keys. Pure.

Lines are shared out in turn, two to the flows for one to each other table, until each table has its rows. Where not
even a head and a row fit for each, pools go first, then endpoints, then classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from extproc.cli.ctl import cells, cluster
from extproc.cli.top import choices as chosen_by
from extproc.cli.top import sections
from extproc.cli.top.bars import Look
from extproc.cli.top.choices import HELP, MEANT, Choices
from extproc.cli.top.figures import Seen, key_of, sorted_flows
from extproc.cli.top.sections import Names, Section
from extproc.cli.top.table import joined
from extproc.cli.top.text import cut, width, wrapped
from extproc.pb.admin.v1 import admin_pb2 as pb

LEAST = (40, 10)  # cells and lines
_FULL = 10_000  # lines: all there is
_SENTENCE = 4_000  # characters of an explanation
_TURNS = ("flows", "classes", "endpoints", "flows", "pools")
_ROOM_FOR_CLOCK = 60  # cells: less is for the figures
_BAD, _WARN = "bold red", "yellow"


@dataclass(frozen=True)
class Picture:
    """`choices`: as they are drawn, with the flow that is chosen in view."""

    lines: list[Text]
    choices: Choices


def drawn(seen: Seen, choices: Choices, cells_: int, lines: int, look: Look) -> Picture:
    """A screen of `lines` lines at most, none wider than `cells_`."""
    if cells_ < LEAST[0] or lines < LEAST[1]:
        text = f"too small: {cells_}x{lines}, it needs {LEAST[0]}x{LEAST[1]}"
        return Picture([Text(cut(text, cells_, look.ellipsis), no_wrap=True)][: max(0, lines)], choices)
    top = [_title(seen, choices, cells_, look), _notice(seen, cells_, look)]
    foot = _keys(choices, cells_, look)
    if choices.help:
        return Picture([*top, *_help(cells_, lines - 3, look), foot], choices)
    panel = _panel(seen, choices, cells_, (lines - 3) // 2, look) if choices.explained else []
    body, choices = _body(seen, choices, cells_, lines - 3 - len(panel), look)
    if seen.old:
        for line in body:
            line.stylize("dim")
    blank = [Text()] * (lines - 3 - len(panel) - len(body))
    return Picture([*top, *body, *blank, *panel, foot], choices)


def whole(seen: Seen, choices: Choices, cells_: int, look: Look) -> list[Text]:
    """All there is, for as long as it takes."""
    body, _ = _body(seen, choices, cells_, _FULL, look)
    return [_title(seen, choices, cells_, look), _notice(seen, cells_, look), *body]


def _body(seen: Seen, choices: Choices, wide: int, lines: int, look: Look) -> tuple[list[Text], Choices]:
    figures = seen.figures
    known = sorted(figures.stats.pools, key=lambda pool: pool.name)
    meant = [pool for pool in known if choices.pool in ("", pool.name)]
    several = len(meant) > 1
    flows = sorted_flows(figures.flows, choices.sort, choices.down, choices.pool)
    total = max(figures.flow_count, len(flows))
    tables: dict[str, Section] = {
        "pools": sections.pools(known, choices.pool, look),
        "endpoints": sections.endpoints([one for pool in meant for one in pool.endpoints], several, look),
        "classes": sections.classes([(pool.name, one) for pool in meant for one in pool.classes], several, look),
    }
    wanted = {name: table.rows for name, table in tables.items() if name not in choices.hidden}
    if "flows" not in choices.hidden:
        wanted["flows"] = len(flows)
    rows = shares(wanted, lines)
    choices = chosen_by.in_view(choices, [key_of(flow) for flow in flows], rows.get("flows", 0))
    tables["flows"] = sections.flows(flows, total, choices, several, look)
    found = [line for name in chosen_by.SECTIONS if name in rows for line in tables[name].lines(rows[name], wide)]
    return found, choices


def shares(wanted: Mapping[str, int], lines: int) -> dict[str, int]:
    """Rows of each table, of those that it has; each needs a line more for its head."""
    kept = [name for name in ("flows", "classes", "endpoints", "pools") if name in wanted]
    least = {name: 1 + min(1, wanted[name]) for name in kept}
    while len(kept) > 1 and sum(least[name] for name in kept) > lines:
        kept.pop()
    rows = {name: least[name] - 1 for name in kept}
    left = lines - sum(least[name] for name in kept)
    while left > 0:
        before = left
        for name in _TURNS:
            if left > 0 and name in rows and rows[name] < wanted[name]:
                rows[name] += 1
                left -= 1
        if left == before:
            break
    return rows


def _title(seen: Seen, choices: Choices, wide: int, look: Look) -> Text:
    """Who, since when, and how much; the clock of the service at the end."""
    status, stats, name = seen.figures.status, seen.figures.stats, Names(look)
    clock = cells.time(stats, "time")[-9:]
    paused = f" PAUSED at {clock} " if wide >= _ROOM_FOR_CLOCK else " PAUSED "
    right = paused if choices.paused else clock
    up_s = (stats.time.ToNanoseconds() - status.start_time.ToNanoseconds()) / 1e9
    up = f" {_long(up_s)}" if stats.HasField("time") and status.HasField("start_time") else ""
    real = [pool for pool in stats.pools if pool.mode != pb.OBSERVE]
    would_be = [pool for pool in stats.pools if pool.mode == pb.OBSERVE]
    parts = [
        (4, f"fairlane {name(status.version, 30)}", "bold"),
        (1, name(seen.address, 80), "bold"),
        (3, f"rev {stats.revision}", ""),
        _state(status, up),
        (0, f"held {sum(pool.queued_count for pool in real)}", "bold"),
        (0, f"in flight {sum(pool.in_flight_slots for pool in real)}", "bold"),
        *([(1, f"would be held {sum(pool.queued_count for pool in would_be)}", "")] if would_be else []),
    ]
    line = joined(parts, wide - len(right) - 1, look)
    line.append(" " * (wide - line.cell_len - len(right)))
    return line.append(right, "reverse bold" if choices.paused else None)


def _state(status: pb.Status, up: str) -> tuple[int, str, str]:
    if not status.serving:
        return 0, f"DRAINS{up}", _BAD
    if status.HasField("cluster") and not status.cluster.active:
        return 0, f"STANDS BY{up}", _WARN
    return 2, f"serving{up}", "green"


def _notice(seen: Seen, wide: int, look: Look) -> Text:
    """What is wrong, or where nothing is, what is worth knowing."""
    lost, name, status = seen.lost, Names(look), seen.figures.status
    if lost is not None:
        again = "trying now" if lost.again_at is None else f"next try in {max(0, round(lost.again_at - seen.now))}s"
        ago = _ago(seen.now - lost.since)
        text = f"SERVER GONE since {lost.clock} ({ago}), {again}; the figures are old. {name(lost.words, 600)}"
        return Text(cut(text, wide, look.ellipsis), _BAD, no_wrap=True)
    if seen.old:
        text = f"NO NEW FIGURES for {_ago(seen.age_s)}: these are old"
        return Text(cut(text, wide, look.ellipsis), _BAD, no_wrap=True)
    wrong = sections.troubles(seen.figures.stats.pools)
    if not status.file.good and (status.file.path or status.file.error):
        wrong.append(f"the file cannot be used, the one before it goes on: {'; '.join(status.file.error.splitlines())}")
    if status.state.read_only:
        wrong.append(f"nothing can be changed: {status.state.error}")
    if status.recording.stopped_by_error:
        wrong.append("the recording was stopped by an error: see the log")
    wrong += cluster.troubles(status.cluster)
    wrong += [f"revision {each.revision} could not be undone: {each.error}" for each in status.expiries if each.error]
    if wrong:
        return Text(cut(name(look.dot.join(wrong), 600), wide, look.ellipsis), _WARN, no_wrap=True)
    observing = [pool.name for pool in seen.figures.stats.pools if pool.mode == pb.OBSERVE]
    parts = [
        (0, f"observing: {name(', '.join(observing), 40)} (what would be)" if observing else "", ""),
        (1, f"file {name(status.file.path, 200)}" if status.file.path else "no file", ""),
        (0, f"overrides {status.override_count}", ""),
        (1, f"{cluster.there(status.cluster)} replicas" if status.cluster.store_used else "", ""),
        (4, f"expiring {len(status.expiries)}" if status.expiries else "", ""),
        (3, "recording" if status.recording.active else "", ""),
        (5, f"watchers {status.watcher_count}", ""),
        (2, f"you are {name(status.caller, 60)} ({cells.word(status, 'caller_role')})", ""),
    ]
    return joined([(need, text, "dim") for need, text, _ in parts if text], wide, look)


def _panel(seen: Seen, choices: Choices, wide: int, most: int, look: Look) -> list[Text]:
    """Why the next request of the chosen flow waits."""
    key, told, name = choices.chosen, seen.told, Names(look)
    if key is None:
        return []
    title = f" {name(key.tenant, 200)} / {name(key.cls, 80)} "
    if told is None or told.key != key:
        body = ["asking why it waits ..."]
    elif told.explanation is None:
        body = wrapped(name(told.words, _SENTENCE), wide)
    else:
        body = [*_sentences(told.explanation, wide, name), _facts(told.explanation, wide, look)]
        title = f"{title}request {name(told.explanation.request.id, 80)} "
    if len(body) > most - 1:
        body = [*body[: most - 2], *body[-1:]]
        body[-2:-1] = [cut(f"{body[-2]}{look.ellipsis}", wide, look.ellipsis)] if len(body) > 1 else []
    rule = "─" if look.unicode else "-"
    head = cut(f"{rule * 2}{title}", wide, look.ellipsis)
    lines = [Text(head + rule * (wide - width(head)), "bold", no_wrap=True)]
    return [*lines, *(Text(cut(line, wide, look.ellipsis), no_wrap=True) for line in body)]


def _sentences(found: pb.Explanation, wide: int, name: Names) -> list[str]:
    lines = wrapped(name(found.sentence, _SENTENCE), wide)
    return [*lines, *wrapped(name(found.next, _SENTENCE), wide)] if found.next else lines


def _facts(found: pb.Explanation, wide: int, look: Look) -> str:
    """The figures of an explanation, the most telling first."""
    facts = [
        (0, f"waited {cells.duration(found.request, 'waited')}"),
        (1, f"estimated wait {cells.duration(found, 'estimated_wait')}"),
        (2, f"ahead in flow {found.ahead_in_flow_count}"),
        (3, f"flows before {found.flow_position} of {found.flow_count}"),
        (4, f"priority {found.priority if found.HasField('priority') else cells.NONE}"),
        (5, f"timeout in {cells.duration(found.request, 'timeout_in')}"),
        (6, f"held by {Names(look)(found.hold, 40)}"),
    ]
    return joined([(need, text, "") for need, text in facts], wide, look, look.dot).plain


def _help(wide: int, lines: int, look: Look) -> list[Text]:
    keys = max(len(keys) for keys, _ in HELP)
    found = [Text()] + [
        Text(cut(f" {keys_.ljust(keys)}  {what}", wide, look.ellipsis), no_wrap=True) for keys_, what in HELP
    ]
    legend = Text(no_wrap=True)
    for sign, style, what in zip(
        look.bar, ("green", "yellow", "dim", _BAD), ("ours", "of others", "free slots", "beyond the limit"), strict=True
    ):
        legend.append(f" {sign}", style).append(f" {what} ")
    legend.truncate(wide)
    words = [Text(cut(f" {text}", wide, look.ellipsis), no_wrap=True) for text in MEANT]
    found += [Text(), legend, *words]
    return (found + [Text()] * lines)[:lines]


def _keys(choices: Choices, wide: int, look: Look) -> Text:
    """What can be pressed now."""
    if choices.help:
        return Text(cut("any key closes the help", wide, look.ellipsis), "reverse", no_wrap=True)
    arrows = "↑↓" if look.unicode else "j/k"
    parts = [
        (0, "q quit"),
        (1, "? help"),
        (2, "space go on" if choices.paused else "space pause"),
        (3, f"{arrows} choose"),
        (4, "Esc close" if choices.explained else "Enter why"),
        (5, "s sort"),
        (6, "r reverse"),
        (7, "Tab pool"),
        (8, "e c f show"),
    ]
    line = joined([(need, text, "") for need, text in parts], wide, look)
    line.append(" " * (wide - line.cell_len))
    line.stylize("reverse")
    return line


def _ago(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole}s" if whole < 60 else cells.seconds(whole)


def _long(seconds: float) -> str:
    """Two units at most, up to days."""
    hours = int(max(0.0, seconds)) // 3600
    return f"{hours // 24}d{hours % 24:02d}h" if hours >= 48 else cells.seconds(max(0.0, seconds))
