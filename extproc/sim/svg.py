"""Line charts as inline SVG: text, no script, nothing from outside.

Colours come from the page's style sheet (classes `s0`, `s1`, ...). A line is told from the others without them too:
each has dashes and a mark of its own, and its number stands at its end and in the legend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]

STYLES = 8  # lines that can be told apart

_WIDTH, _HEIGHT = 640, 300  # of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 12, 44  # margins
_TICKS = 6
_MARKS = 5  # on a line
_DASHES = ("", "8 4", "2 4", "10 4 2 4", "14 5", "4 4", "1 6", "12 4 2 4 2 4")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def text(value: object) -> str:
    """For HTML: escaped, and without characters that no page may have."""
    return escape("".join(c if c.isprintable() or c == " " else "\ufffd" for c in str(value)), quote=True)


def line_chart(
    title: str, x_label: str, y_label: str, lines: Mapping[str, Sequence[Point]], *, log_x: bool = False,
    x_most: float = 0.0,
) -> str:  # fmt: skip
    """A figure with its legend. `lines`: name -> points by x. With `log_x`, x below a millisecond counts as one.
    `x_most`: how far the axis goes at the least. Lines beyond `STYLES` are left out, and the legend says so."""
    drawn = {name: points for name, points in list(lines.items())[:STYLES] if points}
    if not drawn:
        return f"<figure><figcaption>{text(title)}</figcaption><p>Nothing to show.</p></figure>"
    x_axis = _LogAxis(drawn) if log_x else _Axis([x_most, *(x for points in drawn.values() for x, _ in points)])
    y_axis = _Axis([y for points in drawn.values() for _, y in points])
    parts = [_frame(x_axis, y_axis, x_label, y_label)]
    legend = []
    for number, (name, points) in enumerate(drawn.items()):
        places = [(_x(x_axis.place(x)), _y(y_axis.place(y))) for x, y in points]
        parts.append(_line(number, places))
        legend.append(f"<li>{_sample(number)} {number + 1}: {text(name)}</li>")
    if len(lines) > STYLES:
        legend.append(f"<li>and {len(lines) - STYLES} more, not drawn</li>")
    summary = f"{title}. {len(drawn)} lines: {', '.join(drawn)}"
    return (
        f"<figure><figcaption>{text(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(summary)}">{"".join(parts)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul></figure>'
    )


class _Axis:
    """From 0 to a round number."""

    def __init__(self, values: Sequence[float]) -> None:
        most = max(values)
        self._step = _round_step(most / _TICKS)
        self._most = max(self._step, math.ceil(most / self._step - 1e-9) * self._step)

    def place(self, value: float) -> float:
        """0..1"""
        return min(1.0, max(0.0, value / self._most))

    def ticks(self) -> list[tuple[float, str]]:
        count = round(self._most / self._step)
        return [(n / count, short(n * self._step)) for n in range(count + 1)]


class _LogAxis(_Axis):
    """Powers of ten."""

    def __init__(self, lines: Mapping[str, Sequence[Point]]) -> None:
        values = [max(x, 0.001) for points in lines.values() for x, _ in points]
        self._low = math.floor(math.log10(min(values)))
        self._high = max(self._low + 1, math.ceil(math.log10(max(values))))

    def place(self, value: float) -> float:
        return (math.log10(max(value, 0.001)) - self._low) / (self._high - self._low)

    def ticks(self) -> list[tuple[float, str]]:
        powers = range(self._low, self._high + 1)
        return [((power - self._low) / (self._high - self._low), short(10.0**power)) for power in powers]


def short(value: float) -> str:
    """A number for people: 0.05, 12, 3.5k, 2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and unit != "k"):
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def _x(place: float) -> float:
    return round(_LEFT + place * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(place: float) -> float:
    return round(_HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM), 1)


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str) -> str:
    parts = []
    for place, name in x_axis.ticks():
        parts.append(f'<path class="grid" d="M{_x(place)} {_y(0)}V{_y(1)}"/>')
        parts.append(f'<text class="tick" x="{_x(place)}" y="{_y(0) + 16}" text-anchor="middle">{name}</text>')
    for place, name in y_axis.ticks():
        parts.append(f'<path class="grid" d="M{_x(0)} {_y(place)}H{_x(1)}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{_y(place) + 4}" text-anchor="end">{name}</text>')
    upright = f"translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)"
    parts.append(
        f'<text class="label" x="{_x(0.5)}" y="{_HEIGHT - 6}" text-anchor="middle">{text(x_label)}</text>'
        f'<text class="label" transform="{upright}" text-anchor="middle">{text(y_label)}</text>'
    )
    return "".join(parts)


def _line(number: int, places: Sequence[tuple[float, float]]) -> str:
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    step = max(1, len(places) // _MARKS)
    # Marks of different lines at different places, so that one does not hide another.
    marks = [_mark(number, x, y) for x, y in places[(number * step // STYLES) :: step]]
    x, y = places[-1]
    end = f'<text class="end s{number}" x="{x + 5}" y="{y + 4}">{number + 1}</text>'
    return f'<path class="line s{number}" {_dash(number)}d="{path}"/>{"".join(marks)}{end}'


def _dash(number: int) -> str:
    dashes = _DASHES[number % len(_DASHES)]
    return f'stroke-dasharray="{dashes}" ' if dashes else ""


def _mark(number: int, x: float, y: float) -> str:
    kind, r = number % 4, 3.5
    if kind == 0:
        return f'<circle class="mark s{number}" cx="{x}" cy="{y}" r="{r}"/>'
    corners = {
        1: ((-r, -r), (r, -r), (r, r), (-r, r)),
        2: ((0, -r - 1), (r + 1, r), (-r - 1, r)),
        3: ((0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)),
    }[kind]
    path = "L".join(f"{round(x + dx, 1)} {round(y + dy, 1)}" for dx, dy in corners)
    return f'<path class="mark s{number}" d="M{path}Z"/>'


def _sample(number: int) -> str:
    return (
        f'<svg class="sample" viewBox="0 0 40 12" aria-hidden="true"><path class="line s{number}" {_dash(number)}'
        f'd="M0 6H40"/>{_mark(number, 20, 6)}</svg>'
    )
