"""A figure for a page: line charts of `extproc.sim.svg` one below the other, each with its legend, as one SVG file.

An SVG in an `<img>` sees neither the page's style sheet nor its ground, so it brings both, for light and dark. It has
no script and asks for nothing from outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET  # written here, not read from outside

from extproc.sim.svg import line_chart, text

Rows = Sequence[Mapping[str, float | None]]

_WIDTH, _CHART, _HEAD, _LEGEND = 640, 300, 24, 18  # units of the drawing: of a chart, its heading, a line of its legend
_COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#b34700", "#ff9248"),
    ("#007a5a", "#2fcf9f"),
    ("#a3447a", "#e79ac6"),
    ("#7a5c00", "#f0e442"),
)  # light, dark; after Okabe and Ito, who chose colours that people with colour-blindness tell apart


@dataclass(frozen=True)
class Panel:
    """`lines`: name in the legend -> column of the rows."""

    title: str
    x: str
    x_label: str
    y_label: str
    lines: Mapping[str, str]
    log_x: bool = False


@dataclass(frozen=True)
class Plot:
    """`title` is what a screen reader says of the file."""

    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)


def draw(plot: Plot, rows: Rows) -> str:
    """The file's text: the same for the same rows."""
    parts, y = [], 0
    for panel in plot.panels:
        chart, names = _chart(panel, rows)
        parts.append(
            f'<text class="head" x="{_WIDTH / 2:g}" y="{y + 17}" text-anchor="middle">{text(panel.title)}</text>'
        )
        parts.append(f'<g transform="translate(0 {y + _HEAD})">{chart}</g>')
        y += _HEAD + _CHART
        for sample, name in names:
            parts.append(
                f'<g transform="translate(64 {y})">{sample}<text class="label" x="52" y="10">{name}</text></g>'
            )
            y += _LEGEND
        y += 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img">\n'
        f"<title>{text(plot.title)}</title>\n<style>{_style()}</style>\n"
        f'<rect class="ground" width="{_WIDTH}" height="{y}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _chart(panel: Panel, rows: Rows) -> tuple[str, list[tuple[str, str]]]:
    """The chart, and (sample, name) for each line of its legend."""
    lines = {name: list(_points(rows, panel.x, column)) for name, column in panel.lines.items()}
    figure = ET.fromstring(line_chart(panel.title, panel.x_label, panel.y_label, lines, log_x=panel.log_x))  # noqa: S314
    chart, legend = figure.find("svg"), figure.find("ul")
    if chart is None or legend is None:
        raise ValueError(f"nothing to draw in {panel.title!r}: no row has {', '.join(panel.lines.values())}")
    names = []
    for item in legend:
        (sample,) = item
        names.append((_inner(sample), text((sample.tail or "").strip())))
    return _inner(chart), names


def _points(rows: Rows, x: str, y: str) -> Iterator[tuple[float, float]]:
    for row in rows:
        across, up = row[x], row[y]
        if across is not None and up is not None:
            yield across, up


def _inner(element: ET.Element) -> str:
    return "".join(ET.tostring(child, encoding="unicode") for child in element)


def _style() -> str:
    def theme(shade: int, ink: str, soft: str, grid: str, ground: str) -> str:
        lines = "".join(
            f".line.s{n}{{stroke:{pair[shade]}}}.mark.s{n},.end.s{n}{{fill:{pair[shade]}}}"
            for n, pair in enumerate(_COLOURS)
        )
        return f".ground{{fill:{ground}}}.grid{{stroke:{grid}}}.tick,.label{{fill:{soft}}}.head{{fill:{ink}}}{lines}"

    plain = (
        "text{font-family:system-ui,sans-serif}.grid{stroke-width:1}.tick,.label{font-size:12px}"
        ".head{font-size:14px;font-weight:600}.end{font-size:13px;font-weight:700}"
        ".line{fill:none;stroke-width:2}.mark{stroke:none}"
    )
    light, dark = (
        theme(0, "#1a1a1a", "#595959", "#d9d9d9", "#fff"),
        theme(1, "#e8e8e8", "#b0b0b0", "#3d3d3d", "#161616"),
    )
    return re.sub(r"\s*\n\s*", "", f"{plain}{light}@media (prefers-color-scheme:dark){{{dark}}}")
