"""What it costs that first tokens are not seen.

The window limits prompt tokens that are released and not yet answered by a first token. In profile `standard` no answer
passes through us, so first tokens are told from something else: `extproc.core.windows.prefill` says from what. Here the
same requests go with first tokens as they are, with each substitute alone, and with the default, which is the best of
what a page and the clock tell. Large engines at twice what they sustain, as in workload 13.

Pages: read each second and a second late, as in workload 13; and each 0.25 s and 0.1 s late.

END is no substitute but what is lost without any: requests count as answered at once, and the limit never binds. It is
the row that says what the limit is for.
"""

from __future__ import annotations

from functools import partial

from extproc.core.windows import Adaptive, Answers
from extproc.sim.figures import Span
from extproc.sim.scene import Engines, Lag
from extproc.sim.shapes import ONE_SECOND
from extproc.sim.virtual import run
from extproc.sim.ways import Way
from extproc.sim.workloads.cells import CELLS, Cell
from extproc.sim.workloads.large import arrivals, figures, policy
from extproc.sim.workloads.workload import Must, Scale, Table, Workload

_LOAD = 2.0
_PAGES = {"page each 1 s, lag 1 s": (1.0, ONE_SECOND), "page each 0.25 s, lag 0.1 s": (0.25, Lag(0.1, 0.1))}
_CELLS = (CELLS[8], CELLS[11], CELLS[9], CELLS[12])
_RELATIVE = "throughput / exact"


def _way(name: str, answers: Answers | None) -> Way:
    return Way(name, windows=partial(Adaptive, answers=answers))


EXACT = _way("exact", Answers.FIRST_TOKEN)
DEFAULT = _way("default", None)
_ALONE = (
    _way("count", Answers.COUNT),
    _way("prompt tokens", Answers.PROMPTS),
    _way("forecast", Answers.FORECAST),
    _way("end", Answers.END),
)


def _name(cell: Cell, pages: str) -> str:
    return f"{cell.name}, {_LOAD:g}x, {pages}"


def _measure(seed: int, scale: Scale) -> Table:
    span = Span(30.0, 90.0 if scale.quick else 150.0)
    table: Table = {}
    for cell in _CELLS[:1] if scale.quick else _CELLS:
        jobs = arrivals(seed, cell, _LOAD, 0.0, span.until)
        for pages, (scrape_s, lag) in list(_PAGES.items())[: 1 if scale.quick else None]:
            engines = Engines(cell.options, lag=lag, scrape_s=scrape_s)
            rows = table[_name(cell, pages)] = {}
            for way in (EXACT, *_ALONE, DEFAULT):
                done = run(jobs, policy(cell), engines, span.until, way=way, seed=seed, first_tokens=way is EXACT)
                rows[way.name] = figures(done, cell, span)
            for row in rows.values():
                row[_RELATIVE] = row["units/s"] / rows[EXACT.name]["units/s"]
    return table


ANSWERS = Workload(
    key="answers",
    title="first tokens as they are, and what stands in for them",
    span="30 to 150 s (quick: one cell, to 90 s)",
    measure=_measure,
    musts=tuple(
        Must("the default costs at most 5 %", _RELATIVE, least=0.95, way=DEFAULT.name, case=_name(cell, pages))
        for cell in _CELLS
        for pages in _PAGES
    ),
    seeds=1,
)
