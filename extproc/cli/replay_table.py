"""A replay's results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from extproc.sim.html_report import against, seconds
from extproc.sim.replay_result import PERCENTILES, Line, Result

_WIDTH = 132  # where the output is no terminal: a table that is cut says nothing


def show(results: Sequence[Result], top: int, console: Console | None = None) -> None:
    """`top`: tenants that are shown."""
    if console is None:
        console = Console()
        console = Console(width=max(_WIDTH, console.width)) if not console.is_terminal else console
    console.print(_in_all(results))
    classes = sorted({name for result in results for name in result.classes})
    console.print(_table("By class (seconds)", "class", classes, results, lambda result: result.classes))
    tenants = list(results[0].tenants)
    console.print(_table("By tenant (seconds)", "tenant", tenants[:top], results, lambda result: result.tenants))
    if len(tenants) > top:
        console.print(f"The {top} tenants with the most requests of {len(tenants)}; all are in --json.")


def _in_all(results: Sequence[Result]) -> Table:
    heads = ("requests", "served", "refused", "unserved", "units/s", "engine waiting", "preemptions", "all over after")
    table = _new("In all", ("way",), heads)
    for result in results:
        line = result.total
        table.add_row(
            plain(result.label),
            *map(str, (line.requests, line.served, line.refused, line.unserved)),
            f"{result.units_per_s:.0f}",
            f"{result.waiting_mean:.1f}",
            str(result.preemptions),
            f"{result.seconds:.0f} s",
        )
    return table


def _table(
    title: str, what: str, names: Iterable[str], results: Sequence[Result], of: Callable[[Result], Mapping[str, Line]]
) -> Table:
    times = [*(f"TTFT p{p}" for p in PERCENTILES), "held p95"]
    compared = ["p95/first"] if len(results) > 1 else []
    table = _new(title, (what, "way"), ("requests", "refused", "asked", "got", *times, *compared))
    for name in names:
        base = of(results[0]).get(name)
        shown = plain(name)
        for number, result in enumerate(results):
            line = of(result).get(name)
            if line is None:
                continue
            table.add_row(
                shown,
                plain(result.label),
                *map(str, (line.requests, line.refused)),
                f"{line.asked:.1%}",
                f"{line.got:.1%}",
                *_times(line.ttft),
                _times(line.wait)[PERCENTILES.index(95)],
                *([against(line, base) if number else ""] if compared else []),
            )
            shown = Text()
        table.add_section()
    return table


def _new(title: str, names: Sequence[str], heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, overflow="fold", min_width=14)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _times(values: tuple[float, ...] | None) -> list[str]:
    return ["-"] * len(PERCENTILES) if values is None else [seconds(value) for value in values]


def plain(name: str) -> Text:
    """A name from a file: neither markup nor control characters do anything."""
    return Text("".join(c if c.isprintable() else "\ufffd" for c in name))
