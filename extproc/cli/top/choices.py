"""What keys choose, and how each key changes it. Pure: a key gives new choices, or none for the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from extproc.cli.top.figures import ORDERS, FlowKey

SECTIONS = ("pools", "endpoints", "classes", "flows")
HELP = (
    ("q, Ctrl-C", "quit"),
    ("space, p", "pause, and go on"),
    ("s >, S <", "sort flows by the next column, the one before"),
    ("r", "the other way round"),
    ("up down, k j", "choose a flow; it stays chosen wherever it goes"),
    ("PgUp PgDn", "a page; Home or g: the first"),
    ("Enter", "why the flow's next request waits"),
    ("Esc", "close what is open"),
    ("Tab, 1-9, 0", "one pool: the next, by its number, all"),
    ("e c f", "show or hide endpoints, classes, flows"),
    ("?", "this help"),
)
MEANT = (
    "rel/s: released in a second, an average of 30 s",
    "free: slots that are free; memory or prompts may still hold what waits",
    "mode observe: nothing waits, and figures are what would be",
)


@dataclass(frozen=True)
class Choices:
    pool: str = ""  # empty: all
    sort: str = "queued"  # of ORDERS
    down: bool = True
    chosen: FlowKey | None = None  # None: the first, whichever that is
    row: int = 0  # of the chosen flow as it was drawn: its neighbour takes over where it has gone
    first: int = 0  # row that is drawn at the top
    rows: int = 10  # that were drawn
    paused: bool = False
    explained: bool = False
    help: bool = False
    hidden: frozenset[str] = frozenset()


def press(key: str, choices: Choices, flows: Sequence[FlowKey], pools: Sequence[str]) -> Choices | None:
    """None: the end. `flows`: as they are sorted; `pools`: by their numbers."""
    if key == "q":
        return None
    if choices.help:
        return replace(choices, help=False)
    if key == "?":
        return replace(choices, help=True)
    if key in ("space", "p"):
        return replace(choices, paused=not choices.paused)
    if key in ("s", ">", "S", "<"):
        names = list(ORDERS)
        name = names[(names.index(choices.sort) + (1 if key in "s>" else -1)) % len(names)]
        return replace(choices, sort=name, down=ORDERS[name].down)
    if key == "r":
        return replace(choices, down=not choices.down)
    if key in ("e", "c", "f"):
        (section,) = (name for name in SECTIONS if name.startswith(key))
        return replace(choices, hidden=choices.hidden ^ {section})
    if key in _STEPS or key in ("home", "g"):
        return _moved(key, choices, flows)
    if key == "enter":
        return replace(_moved("", choices, flows), explained=True) if flows else choices
    if key == "esc":
        return replace(choices, explained=False)
    return _pool(key, choices, pools)


_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -1, "page-down": 1}


def _moved(key: str, choices: Choices, flows: Sequence[FlowKey]) -> Choices:
    """With another flow chosen; with none of these keys the one that the mark is at."""
    if not flows:
        return choices
    step = _STEPS.get(key, 0) * (max(1, choices.rows - 1) if key.startswith("page") else 1)
    row = 0 if key in ("home", "g") else max(0, min(len(flows) - 1, row_of(choices, flows) + step))
    return replace(choices, chosen=flows[row], row=row)


def row_of(choices: Choices, flows: Sequence[FlowKey]) -> int:
    """Of the chosen flow; where it has gone, the row at which it was."""
    if choices.chosen is None:
        return 0
    if choices.chosen in flows:
        return flows.index(choices.chosen)
    return max(0, min(choices.row, len(flows) - 1))


def _pool(key: str, choices: Choices, pools: Sequence[str]) -> Choices:
    everything = ["", *pools]
    if key in ("tab", "back-tab"):
        place = everything.index(choices.pool) if choices.pool in everything else 0
        name = everything[(place + (1 if key == "tab" else -1)) % len(everything)]
    elif key.isascii() and key.isdigit() and int(key) < len(everything):
        name = everything[int(key)]
    else:
        return choices
    return replace(choices, pool=name, chosen=None, row=0, first=0, explained=False)


def in_view(choices: Choices, flows: Sequence[FlowKey], rows: int) -> Choices:
    """As it is drawn: the chosen flow is among the `rows` that are shown."""
    row = row_of(choices, flows)
    chosen = choices.chosen
    if chosen is not None and flows:
        chosen = flows[row]
    first = max(0, min(choices.first, len(flows) - rows))
    if row < first:
        first = row
    elif row >= first + rows:
        first = max(0, row - rows + 1)
    return replace(choices, chosen=chosen, row=row, first=first, rows=rows)
