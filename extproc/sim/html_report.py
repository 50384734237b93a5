"""A replay's results as one HTML page: no script, nothing from outside, light and dark, all foreign text escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from extproc.sim.replay_result import PERCENTILES, Line, Result
from extproc.sim.svg import STYLES, line_chart, text

_MOST_TENANTS = 50  # in the table
_MOST_CLASSES = 6  # with plots

# Okabe and Ito's colours, which people with colour-blindness tell apart; for dark ground some are lightened.
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #595959; --grid: #d9d9d9; --ground: #fff; --band: #f3f3f3;
  --c0: #0072b2; --c1: #b34700; --c2: #007a5a; --c3: #a3447a; --c4: #7a5c00; --c5: #2b7fb3; --c6: #1a1a1a;
  --c7: #6b4fa0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b0b0b0; --grid: #3d3d3d; --ground: #161616; --band: #222;
    --c0: #56b4e9; --c1: #ff9248; --c2: #2fcf9f; --c3: #e79ac6; --c4: #f0e442; --c5: #8ccfff; --c6: #e8e8e8;
    --c7: #b9a3ee; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p, li, dd { max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; }
th.name, td.name { text-align: left; vertical-align: top; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; }
td.way, th.way { text-align: left; } tbody th { color: var(--ink); }
tbody + tbody { border-top: 2px solid var(--soft); }
tbody tr:nth-child(even) td { background: var(--band); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg.sample { width: 2.6rem; height: .8rem; vertical-align: middle; }
.grid { stroke: var(--grid); stroke-width: 1; } .tick, .label { fill: var(--soft); font-size: 12px; }
.line { fill: none; stroke-width: 2; } .mark { stroke: none; } .end { font-size: 13px; font-weight: 700; }
.legend { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.legend li { overflow-wrap: anywhere; }
""" + "".join(
    f".line.s{n} {{ stroke: var(--c{n}); }} .mark.s{n}, .end.s{n} {{ fill: var(--c{n}); }}\n" for n in range(STYLES)
)


@dataclass(frozen=True, slots=True)
class Page:
    """What the page says besides its results."""

    title: str
    facts: Mapping[str, str]  # what was played, on what
    notes: Sequence[str]


def page(about: Page, results: Sequence[Result]) -> str:
    """The whole file. `results`: the first one is what the others are compared with."""
    first = results[0]
    classes = sorted({name for result in results for name in result.classes})
    tenants = list(first.tenants)
    shown = tenants[:_MOST_TENANTS]
    parts = [
        f"<h1>{text(about.title)}</h1>",
        "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(fact)}</dd>" for name, fact in about.facts.items()) + "</dl>",
    ]
    if about.notes:
        parts.append("<ul>" + "".join(f"<li>{text(note)}</li>" for note in about.notes) + "</ul>")
    parts.append(_in_all(results))
    parts.append(_table("By class", "class", classes, results, lambda result: result.classes))
    parts.append(_table("By tenant", "tenant", shown, results, lambda result: result.tenants))
    if len(tenants) > len(shown):
        parts.append(f"<p>The {len(shown)} tenants with the most requests of {len(tenants)}.</p>")
    parts.append(_READING)
    parts.append(_plots(classes[:_MOST_CLASSES], results))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(about.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


_READING = (
    "<p><b>asked</b>: share of the cost of all requests. <b>got</b>: share of the service until the last request came. "
    "<b>TTFT</b>: seconds from sending to the first token, of requests that were served. <b>held</b>: seconds in "
    "Fairlane's queue. <b>p95 / first</b>: TTFT p95 divided by that of the first row; below 1 is sooner. "
    "A way that refuses many looks good in its times: read them beside the refusals.</p>"
)


def _in_all(results: Sequence[Result]) -> str:
    heads = ("requests", "served", "refused", "unserved", "units/s", "engine waiting", "preemptions", "all over after")
    rows = []
    for result in results:
        line = result.total
        cells = (
            line.requests, line.served, _refused(line), line.unserved, f"{result.units_per_s:.0f}",
            f"{result.waiting_mean:.1f}", result.preemptions, f"{result.seconds:.0f} s",
        )  # fmt: skip
        rows.append(f'<tr><td class="name">{text(result.label)}</td>{_cells(cells)}</tr>')
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f'<h2>In all</h2><div class="wide"><table><thead><tr><th class="name">way</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _table(
    title: str, what: str, names: Sequence[str], results: Sequence[Result], of: Callable[[Result], Mapping[str, Line]]
) -> str:
    heads = ["requests", "refused", "unserved", "asked", "got"]
    heads += [f"{kind} p{p}" for kind in ("TTFT", "held") for p in PERCENTILES]
    if len(results) > 1:
        heads.append("p95 / first")
    groups = []
    for name in names:
        base = of(results[0]).get(name)
        found = [(result, line) for result in results if (line := of(result).get(name)) is not None]
        rows = []
        for number, (result, line) in enumerate(found):
            cells: list[object] = [line.requests, _refused(line), line.unserved, f"{line.asked:.1%}", f"{line.got:.1%}"]
            cells += [*_times(line.ttft), *_times(line.wait)]
            if len(results) > 1:
                cells.append("" if result is results[0] else against(line, base))
            first = f'<th class="name" scope="rowgroup" rowspan="{len(found)}">{text(name)}</th>' if number == 0 else ""
            rows.append(f'<tr>{first}<td class="way">{text(result.label)}</td>{_cells(cells)}</tr>')
        groups.append(f"<tbody>{''.join(rows)}</tbody>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f'<h2>{title}</h2><div class="wide"><table><thead><tr><th class="name">{what}</th><th class="way">way</th>'
        f"{head}</tr></thead>{''.join(groups)}</table></div>"
    )


def _plots(classes: Sequence[str], results: Sequence[Result]) -> str:
    waits = [
        line_chart(f"Class {name}: wait for the first token, p95 of those sent at the time", "sent after, s", "s",
                   {r.label: r.waits.get(name, []) for r in results}, x_most=results[0].last_arrival)
        for name in classes
    ]  # fmt: skip
    cdf = [
        line_chart(f"Class {name}: share of the served requests that have their first token by then", "s after sending",
                   "share", {r.label: r.cdf.get(name, []) for r in results}, log_x=True)
        for name in classes
    ]  # fmt: skip
    service = [line_chart(f"{r.label}: service per tenant", "s", "units until then", r.service) for r in results]
    return (
        f'<h2>Waits over time</h2><div class="plots">{"".join(waits)}</div>'
        f'<h2>Time to the first token</h2><div class="plots">{"".join(cdf)}</div>'
        f"<h2>Service per tenant</h2><p>Tenants that wait all the time and have equal weights rise equally fast.</p>"
        f'<div class="plots">{"".join(service)}</div>'
    )


def against(line: Line, base: Line | None) -> str:
    """TTFT p95 divided by the base's, "x0.35"; "-" where one of them has none."""
    p95 = PERCENTILES.index(95)
    if base is None or line.ttft is None or base.ttft is None or base.ttft[p95] <= 0:
        return "-"
    return f"x{line.ttft[p95] / base.ttft[p95]:.2f}"


def _cells(values: Sequence[object]) -> str:
    return "".join(f"<td>{text(value)}</td>" for value in values)


def _times(values: tuple[float, ...] | None) -> list[str]:
    return ["-"] * len(PERCENTILES) if values is None else [seconds(value) for value in values]


def seconds(value: float) -> str:
    """In a table."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _refused(line: Line) -> str:
    if not line.refused:
        return "0"
    return f"{line.refused} ({', '.join(f'{code} {count}' for code, count in sorted(line.reasons.items()))})"
