"""Tables that fit: the least important columns go first, wide ones are cut, and nothing is ever wider than asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from extproc.cli.top.bars import Look
from extproc.cli.top.text import cut, fill, width

Cell = str | Callable[[int], Text]  # or what is drawn at the width that it gets

HEAD = "bold underline"


@dataclass(frozen=True)
class Column:
    """`need`: the column with the highest goes first where there is no room; 0 stays. Widths are in cells."""

    head: str
    cells: Sequence[Cell]
    need: int = 0
    least: int = 0  # it may be cut down to; 0: it is not cut
    wanted: int = 0  # it is so wide even where its cells are not: that the others do not move with each figure
    most: int = 200
    right: bool = False
    styles: Sequence[str] = ()  # of its cells, where they have one

    @property
    def natural(self) -> int:
        shown = [self.head, *(cell for cell in self.cells if isinstance(cell, str))]
        return min(self.most, max(self.wanted, *map(width, shown)))

    @property
    def smallest(self) -> int:
        return min(self.natural, self.least) if self.least else self.natural


def drawn(columns: Sequence[Column], cells: int, look: Look) -> list[Text]:
    """The head and a line for each row, none wider than `cells`."""
    gap = 2 if cells >= 100 else 1
    kept, widths = _fitted(columns, cells, gap)
    rows = max((len(column.cells) for column in columns), default=0)
    lines = [Text(no_wrap=True) for _ in range(rows + 1)]
    for place, (column, wide) in enumerate(zip(kept, widths, strict=True)):
        if place:
            for line in lines:
                line.append(" " * gap)
        lines[0].append(fill(column.head, wide, look.ellipsis, right=column.right), HEAD)
        for index, (line, cell) in enumerate(zip(lines[1:], column.cells, strict=True)):
            if isinstance(cell, str):
                style = column.styles[index] if column.styles else ""
                line.append(fill(cell, wide, look.ellipsis, right=column.right), style or None)
            else:
                line.append_text(cell(wide))
    return lines


def _fitted(columns: Sequence[Column], cells: int, gap: int) -> tuple[list[Column], list[int]]:
    """Those that are shown, and how wide."""
    kept = list(columns)
    while len(kept) > 1 and sum(column.smallest for column in kept) + gap * (len(kept) - 1) > cells:
        least_needed = max(column.need for column in kept)
        kept.remove(next(column for column in reversed(kept) if column.need == least_needed))
    widths = [column.natural for column in kept]
    least = [column.smallest if len(kept) > 1 else 1 for column in kept]
    over = sum(widths) + gap * (len(kept) - 1) - cells
    while over > 0:
        cuttable = [index for index, wide in enumerate(widths) if wide > least[index]]
        if not cuttable:
            break
        widths[max(cuttable, key=widths.__getitem__)] -= 1
        over -= 1
    return kept, widths


def joined(parts: Sequence[tuple[int, str, str]], cells: int, look: Look, between: str = "  ") -> Text:
    """Parts (need, text, style) in one line; those with the highest need are left out where there is no room."""
    kept = list(parts)
    while len(kept) > 1 and sum(width(text) for _, text, _ in kept) + len(between) * (len(kept) - 1) > cells:
        kept.remove(max(reversed(kept), key=lambda part: part[0]))
    line = Text(no_wrap=True)
    for place, (_, text, style) in enumerate(kept):
        line.append(between if place else "").append(cut(text, cells, look.ellipsis), style or None)
    return line
