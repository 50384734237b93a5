"""What a replay tells: shares, percentiles and curves of a run that is made up by hand; and the page that shows it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from extproc.core.model import ClassPolicy, PoolPolicy
from extproc.sim.html_report import Page, page
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.replay_result import OTHERS, Result, result
from extproc.sim.scene import Look
from extproc.sim.svg import STYLES, line_chart, short, text
from extproc.sim.virtual import Run
from extproc.sim.ways import FAIR

POLICY = PoolPolicy("m", (ClassPolicy("chat", 0, 0, 60.0, 3, 100), ClassPolicy("batch", 1, 1_000_000, 60.0, 0, 100)))


def a_look(at: float, waiting: int, preemptions: int) -> Look:
    return Look(at, 1, waiting, 0.0, 0.0, 0.0, preemptions)


def a_run() -> Run:
    """Until the last arrival, at 10 s: a's first is served whole (100 + 2*51 = 202 units); b's has its prompt and its
    first token at 8 s (100 + 2 = 102 units) and then 100 tokens in 20 s, so 2 s of 10 units a second: 20. a's second
    is refused. a asks for 202 + 202, b for 302."""
    a1 = Record("1", Job(0.0, "a", 100, 51, "chat"), Fate.SERVED, 0, released=0.5, first=1.0, ended=6.0)
    a2 = Record("2", Job(10.0, "a", 100, 51, "batch"), Fate.REFUSED, ended=10.0, reason="queue_full", status=429)
    b1 = Record("3", Job(6.0, "b", 100, 101, "chat"), Fate.SERVED, 0, released=7.0, first=8.0, ended=28.0)
    return Run(FAIR, POLICY, 28.0, [a1, b1, a2], [[a_look(0.0, 0, 0), a_look(5.0, 4, 0), a_look(9.0, 2, 3)]])


def test_figures_of_a_run() -> None:
    found = result("mine", a_run())
    assert (found.label, found.seconds, found.last_arrival) == ("mine", 28.0, 10.0)
    assert found.units_per_s == pytest.approx((202 + 102 + 20) / 10)
    assert (found.waiting_mean, found.preemptions) == (2.0, 3)
    a = found.tenants["a"]
    assert (a.requests, a.served, a.refused, dict(a.reasons), a.unserved) == (2, 1, 1, {"queue_full": 1}, 0)
    assert a.asked == pytest.approx(404 / 706)
    assert a.got == pytest.approx(202 / 324)
    assert (a.ttft, a.wait) == ((1.0, 1.0, 1.0), (0.5, 0.5, 0.5))
    assert found.classes["batch"].ttft is None
    assert found.classes["chat"].got == 1.0
    assert list(found.tenants) == ["a", "b"]  # the one with more requests first
    assert found.total.requests == 3


def test_curves_of_a_run() -> None:
    found = result("mine", a_run())
    assert found.cdf["chat"] == [(1.0, 0.5), (2.0, 1.0)]
    assert found.cdf["batch"] == []
    # In the middle of the first and of the 37th of 60 stretches of 1/6 s.
    assert [at for at, _ in found.waits["chat"]] == pytest.approx([1 / 12, 6 + 1 / 12])
    assert [wait for _, wait in found.waits["chat"]] == [1.0, 2.0]
    service = dict(found.service)
    assert OTHERS not in service
    assert service["a"][0] == (0.0, 0.0)
    assert service["a"][-1] == pytest.approx((28.0, 202.0))
    assert service["b"][-1] == pytest.approx((28.0, 302.0))
    # At 14 s, the 30th of 60 steps: b has 102 and 6 s of 10 units.
    assert service["b"][30] == pytest.approx((14.0, 162.0))


def test_small_tenants_are_drawn_together() -> None:
    jobs = [Job(float(n), f"t{n}", 10, 2) for n in range(10)]
    records = [Record(job.tenant, job, Fate.SERVED, 0, released=0.0, first=1.0, ended=2.0) for job in jobs]
    found = result("mine", Run(FAIR, POLICY, 10.0, records, [[]]))
    assert len(found.service) == STYLES
    assert found.service[OTHERS][-1][1] == pytest.approx(3 * 14.0)  # three of ten, each 10 + 2*2 units


def test_requests_that_came_all_at_once_have_figures_too() -> None:
    records = [Record("1", Job(0.0, "a", 10, 2), Fate.SERVED, 0, released=0.0, first=1.0, ended=2.0)]
    found = result("mine", Run(FAIR, POLICY, 2.0, records, [[]]))
    assert found.units_per_s == 7.0


# -- the page -------------------------------------------------------------------------------------

NASTY = "<script>alert('x')</script>\"&\x1b[31m"


class Checker(HTMLParser):
    """Counts tags, and that each is closed."""

    VOID = frozenset({"meta", "path", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


def a_page(*names: str) -> str:
    run = a_run()
    for record in run.records:
        record.job = Job(record.job.at, NASTY, record.job.prompt, record.job.output, NASTY)
    results: list[Result] = [result(name, run) for name in names]
    return page(Page("Fairlane: replay", {"Traffic": NASTY}, [NASTY]), results)


def test_names_cannot_do_anything_on_the_page() -> None:
    html = a_page(NASTY, "other")
    checker = checked(html)
    assert "script" not in checker.seen
    assert not any(name.startswith("on") for name in checker.attributes)
    assert "\x1b" not in html
    shown = "<script>alert('x')</script>\"&\ufffd[31m"
    assert shown in checker.words


def test_the_page_needs_nothing_from_outside() -> None:
    html = a_page("one", "two")
    checker = checked(html)
    assert not checker.seen & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not checker.attributes & {"src", "href", "srcset", "action", "data"}
    assert not re.search(r"https?:|url\(|@import|//[a-z]", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_what_is_compared_stands_side_by_side() -> None:
    words = checked(a_page("before", "after")).words
    assert words.count("after") >= 3  # in all, by class, by tenant
    assert "x1.00" in words
    assert "1 (queue_full 1)" in words


def test_lines_are_told_apart_without_colour() -> None:
    """Each has dashes of its own, but for the first, and a number at its end and in the legend."""
    html = line_chart("t", "x", "y", {f"line {n}": [(0.0, 1.0), (1.0, float(n))] for n in range(STYLES)})
    drawn = re.findall(r'<path class="line s(\d)" (?:stroke-dasharray="([^"]+)" )?d="M[^"]*L', html)
    assert [int(number) for number, _ in drawn] == list(range(STYLES))
    assert len({dashes for _, dashes in drawn}) == STYLES
    for n in range(STYLES):
        assert f">{n + 1}</text>" in html
        assert f"</svg> {n + 1}: line {n}</li>" in html


def test_lines_that_find_no_place_are_counted() -> None:
    html = line_chart("t", "x", "y", {f"line {n}": [(0.0, 1.0)] for n in range(STYLES + 2)})
    assert "and 2 more, not drawn" in html


@pytest.mark.parametrize("lines", [{}, {"a": []}])
def test_a_chart_of_nothing_says_so(lines: dict[str, list[tuple[float, float]]]) -> None:
    assert "Nothing to show" in line_chart("t", "x", "y", lines)


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([(0.0, 0.0), (7.0, 0.9)], ["0", "2", "4", "6", "8", "0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([(0.0, 0.0), (50_000.0, 0.0)], ["0", "10k", "20k", "30k", "40k", "50k", "0", "1"]),
    ],
)
def test_axes_end_at_round_numbers(points: list[tuple[float, float]], ticks: list[str]) -> None:
    html = line_chart("t", "x", "y", {"a": points})
    assert re.findall(r'class="tick"[^>]*>([^<]*)<', html) == ticks


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    html = line_chart("t", "x", "y", {"a": [(0.0, 0.5), (30.0, 1.0)]}, log_x=True)
    assert re.findall(r'class="tick"[^>]*text-anchor="middle">([^<]*)<', html) == [
        "0.001",
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
    ]


def test_numbers_for_people() -> None:
    assert [short(v) for v in (0.05, 12.0, 9_500.0, 35_000.0, 2e6, 3.2e9)] == [
        "0.05",
        "12",
        "9500",
        "35k",
        "2M",
        "3.2G",
    ]
    assert text("a\x00<") == "a\ufffd&lt;"
