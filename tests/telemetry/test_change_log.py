"""Changes of state in the log: each once, and none for each page."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from extproc.core.events import (
    Arrive,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Reconfigure,
    Scraped,
    ScrapeFailed,
    Unreachable,
)
from extproc.core.model import ClassPolicy, Controller, Gates, Outage, PoolPolicy, Sample, WindowPolicy
from extproc.core.scheduler import Scheduler
from extproc.telemetry.change_log import ChangeLog

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"

Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as entries:
        yield entries


class Pool:
    """A pool on a clock that the test moves. Pages are told to the log as the journal tells them."""

    def __init__(self, *endpoints: str, gates: Gates | None = None, **window: Any) -> None:
        cls = ClassPolicy("chat", 0, 0, 1e6, 3, 1000, gates=gates or Gates())
        self.policy = PoolPolicy("m", (cls,), window=WindowPolicy(**{"idle_scrape_interval_s": 0.25} | window))
        self.scheduler = Scheduler(self.policy)
        self.now = 100.0
        self.changes = ChangeLog()
        self.endpoints = endpoints or (A,)
        for endpoint in self.endpoints:
            self.apply(EndpointAdded(endpoint))

    def apply(self, event: Event) -> None:
        self.scheduler.apply(event, self.now)
        if isinstance(event, Scraped | ScrapeFailed):
            self.changes.page(self.scheduler, event.endpoint, self.now)

    def page(self, endpoint: str = A, running: int = 0, waiting: int = 0, **fields: Any) -> None:
        values: dict[str, Any] = {
            "kv_usage": None,
            "itl_sum": None,
            "itl_count": None,
            "preemptions": None,
            "generation_tokens": None,
            "prompt_tokens": None,
        }
        self.apply(Scraped(endpoint, Sample(running, waiting, started=self.now, **(values | fields))))

    def fails(self, endpoint: str = A, *, refused: bool = False) -> None:
        self.apply(ScrapeFailed(endpoint, refused))

    def arrive(self, name: str, tenant: str = "t") -> None:
        self.apply(Arrive(name, tenant, "chat", self.now, 100))

    def sample(self, leaked: int = 0) -> None:
        self.changes.sample(self.scheduler, self.now, leaked)

    def step(self, seconds: float = 5.0, leaked: int = 0, **page: Any) -> None:
        """Time passes, all pages are read, and the sampler looks."""
        self.now += seconds
        for endpoint in self.endpoints:
            self.page(endpoint, **page)
        self.sample(leaked)


def stances(lines: Lines) -> list[tuple[str, str]]:
    return [(line["was"], line["stance"]) for line in lines if line["event"] == "endpoint stance changed"]


def events(lines: Lines) -> list[str]:
    return [line["event"] for line in lines]


# -- stances --------------------------------------------------------------------------------------


def test_an_endpoint_that_comes_and_is_well_is_the_scrapers_to_tell(lines: Lines) -> None:
    pool = Pool()
    pool.sample()
    pool.page()
    pool.step()
    assert lines == []


def test_one_that_is_down_and_comes_back(lines: Lines) -> None:
    pool = Pool()
    pool.page()
    pool.now += 1.0
    pool.fails(refused=True)
    pool.now += 1.0
    pool.page()
    assert lines == [
        {
            "event": "endpoint stance changed",
            "log_level": "warning",
            "pool": "m",
            "endpoint": A,
            "stance": "down",
            "was": "fresh",
            "note": "it does not take connections: nothing is released to it",
        },
        {
            "event": "endpoint stance changed",
            "log_level": "info",
            "pool": "m",
            "endpoint": A,
            "stance": "fresh",
            "was": "down",
        },
    ]


def test_one_that_is_down_from_the_start(lines: Lines) -> None:
    pool = Pool()
    pool.fails(refused=True)
    assert stances(lines) == [("starting", "down")]


def test_connections_that_fail_make_one_down_though_its_pages_come(lines: Lines) -> None:
    pool = Pool()
    pool.page()
    pool.arrive("r")
    pool.now += 0.2
    pool.apply(Unreachable("r"))
    pool.sample()
    assert stances(lines) == [("fresh", "down")]


def test_time_alone_makes_a_page_old_and_then_an_outage(lines: Lines) -> None:
    """Old after 1.25 s, which is told once it has been so for two; nothing for half a minute is an outage."""
    pool = Pool()
    pool.page()
    for seconds in range(1, 36):
        pool.now = 100.0 + seconds
        pool.fails()
        told = stances(lines)
        assert told == [] if seconds < 4 else [("fresh", "stale")] if seconds <= 30 else told[:1]
    assert stances(lines) == [("fresh", "stale"), ("stale", "outage")]
    assert [line["log_level"] for line in lines] == ["info", "warning"]


def test_a_page_that_is_late_for_a_moment_is_no_news(lines: Lines) -> None:
    pool = Pool()
    for _ in range(100):
        pool.page()
        pool.now += 1.5
        pool.fails()
        pool.now += 0.5
    assert lines == []


@pytest.mark.parametrize(
    ("outage", "does"), [(Outage.DEGRADE, "less"), (Outage.HOLD, "nothing is released"), (Outage.OPEN, "last one")]
)
def test_an_outage_says_what_the_policy_makes_of_it(lines: Lines, outage: Outage, does: str) -> None:
    pool = Pool(outage=outage)
    pool.fails()
    pool.now += 3.0
    pool.fails()
    assert stances(lines) == [("starting", "outage")]
    assert does in lines[0]["note"]


def test_one_that_hangs(lines: Lines) -> None:
    """Running, no progress for 30 s; then it moves again."""
    pool = Pool()
    for _ in range(10):
        pool.step(running=2, progress=7.0, kv_usage=0.5)
    assert stances(lines) == [("fresh", "stalled")]
    assert lines[0]["log_level"] == "warning"
    pool.step(running=2, progress=8.0, kv_usage=0.5)
    assert stances(lines)[1:] == [("stalled", "fresh")]


def test_endpoints_are_told_apart(lines: Lines) -> None:
    pool = Pool(A, B)
    pool.page(A)
    pool.page(B)
    pool.fails(B, refused=True)
    assert [line["endpoint"] for line in lines] == [B]


def test_one_that_was_removed_is_forgotten(lines: Lines) -> None:
    pool = Pool()
    pool.page()
    pool.fails(refused=True)
    pool.apply(EndpointRemoved(A))
    pool.fails(refused=True)
    pool.sample()
    assert pool.changes._pools["m"].endpoints == {}
    pool.now += 10.0
    pool.apply(EndpointAdded(A))
    pool.page()
    assert stances(lines) == [("fresh", "down")]


def test_one_that_is_removed_while_requests_run_there(lines: Lines) -> None:
    pool = Pool()
    pool.page()
    pool.arrive("r")
    pool.apply(EndpointRemoved(A))
    pool.fails(refused=True)
    pool.sample()
    assert lines == []


def test_one_that_is_added_again_is_told_when_it_is_read(lines: Lines) -> None:
    """Its books go on, since a request runs there."""
    pool = Pool()
    pool.page()
    pool.arrive("r")
    pool.fails(refused=True)
    pool.now += 10.0
    pool.apply(EndpointRemoved(A))
    pool.apply(EndpointAdded(A))
    pool.sample()
    assert stances(lines) == [("fresh", "down")]
    pool.page()
    assert stances(lines) == [("fresh", "down"), ("down", "fresh")]


def test_pools_that_are_gone_are_forgotten() -> None:
    pool = Pool()
    pool.sample()
    pool.changes.keep(["other"])
    assert pool.changes._pools == {}


# -- no flood -------------------------------------------------------------------------------------


def test_ten_thousand_events_without_a_change_are_no_line(lines: Lines) -> None:
    pool = Pool(A, B, gates=Gates(max_waiting=5))
    for i in range(10_000):
        pool.now += 0.125
        pool.page((A, B)[i % 2], running=i % 3, waiting=i % 2)
        if i % 40 == 0:
            pool.sample()
    assert lines == []


def test_one_that_changes_with_each_page_is_told_in_ever_longer_pauses(lines: Lines) -> None:
    """At most after 1, 2, 4 .. 32 s and each minute: 63 s for the first six after the first, then 60 s each."""
    pool = Pool()
    pool.page()
    for _ in range(1200):
        pool.now += 0.25
        pool.fails(refused=True)
        pool.now += 0.25
        pool.page()
    # 600 s: one at once, six within 63 s, then (600 - 63) / 60 = 8 more at most.
    assert 7 <= len(lines) <= 15
    told = stances(lines)
    assert all(was != now for was, now in told)
    assert all(before[1] == after[0] for before, after in pairwise(told))


@pytest.mark.parametrize("ends_down", [True, False])
def test_the_last_state_is_always_told_in_the_end(lines: Lines, ends_down: bool) -> None:
    pool = Pool()
    pool.page()
    for _ in range(401):
        pool.now += 0.25
        pool.fails(refused=True)
        pool.now += 0.25
        pool.page()
    for _ in range(300):
        pool.now += 0.25
        if ends_down:
            pool.fails(refused=True)
        else:
            pool.page()
    assert stances(lines)[-1][1] == ("down" if ends_down else "fresh")


def test_after_a_calm_time_changes_are_told_at_once_again(lines: Lines) -> None:
    pool = Pool()
    pool.page()
    for _ in range(100):
        pool.now += 0.5
        pool.fails(refused=True)
        pool.now += 0.5
        pool.page()
    for _ in range(300):
        pool.step(1.0)
    count = len(lines)
    pool.now += 0.25
    pool.fails(refused=True)
    assert len(lines) == count + 1


# -- gates ----------------------------------------------------------------------------------------


def test_gates_that_are_closed_at_all_endpoints_for_two_samples(lines: Lines) -> None:
    pool = Pool(A, B, gates=Gates(max_waiting=1))
    pool.step(waiting=2)
    assert lines == []
    pool.step(waiting=2)
    pool.step(waiting=2)
    (line,) = lines
    assert (line["event"], line["class"], line["gates"]) == (
        "gates of a class closed at all endpoints",
        "chat",
        ["max_waiting"],
    )
    pool.step(waiting=0)
    pool.step(waiting=0)
    assert events(lines)[1:] == ["gates of a class open again"]


def test_gates_that_are_closed_at_some_endpoints_hold_nobody_back(lines: Lines) -> None:
    pool = Pool(A, B, gates=Gates(max_waiting=1))
    for _ in range(5):
        pool.now += 5.0
        pool.page(A, waiting=2)
        pool.page(B, waiting=0)
        pool.sample()
    assert lines == []


def test_gates_that_close_and_open_with_each_sample_are_no_line(lines: Lines) -> None:
    pool = Pool(gates=Gates(max_waiting=1))
    for i in range(100):
        pool.step(waiting=2 * (i % 2))
    assert lines == []


def test_a_class_that_has_no_gates_any_more_is_forgotten(lines: Lines) -> None:
    pool = Pool(gates=Gates(max_waiting=1))
    for _ in range(3):
        pool.step(waiting=2)
    cls = replace(pool.policy.classes[0], gates=Gates())
    pool.apply(Reconfigure(replace(pool.policy, classes=(cls,))))
    pool.step()
    assert events(lines) == ["gates of a class closed at all endpoints"]
    assert pool.changes._pools["m"].gates == {}


# -- windows --------------------------------------------------------------------------------------


def test_a_window_at_its_floor_for_two_samples(lines: Lines) -> None:
    """R = running while more than 2q wait: 1 runs, which is the floor. With 20 running it is above it again."""
    pool = Pool(floor=1.0)
    pool.step()
    assert lines == []
    pool.step(running=1, waiting=50)
    assert lines == []
    pool.step(running=1, waiting=50)
    pool.step(running=1, waiting=50)
    (line,) = lines
    assert (line["event"], line["log_level"], line["endpoint"]) == ("window at its floor", "warning", A)
    assert (line["capacity"], line["floor"]) == (1.0, 1.0)
    pool.step(running=20, waiting=50)
    assert len(lines) == 1
    for _ in range(2):
        pool.step(running=20, waiting=50)
    assert events(lines)[1:] == ["window above its floor again"]


# -- the queue ------------------------------------------------------------------------------------


def full(pool: Pool, tenant: str = "t") -> None:
    pool.page()
    pool.arrive("first")
    pool.arrive("second", tenant)


def test_a_queue_from_which_nothing_goes_for_half_a_minute(lines: Lines) -> None:
    pool = Pool(controller=Controller.FIXED, fixed=1, overtake=0)
    full(pool)
    for _ in range(5):
        pool.step(running=1)
    assert lines == []
    for _ in range(5):
        pool.step(running=1)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("queue stalled", "warning")
    assert (line["pool"], line["class"], line["held"], line["since_release_s"]) == ("m", "chat", 1, 30.0)
    assert line["hold"] == "window"
    assert A in line["cause"]
    assert line["next"] == "a request inside ends, or a page shows more room"
    pool.apply(End("first"))
    pool.step()
    pool.step()
    assert events(lines)[1:] == ["queue moves again"]


def test_a_name_from_a_client_is_quoted_and_cut(lines: Lines) -> None:
    """Held by its own cap, a tenant is named in the sentence."""
    name = "x\n\x1b[31m\u202e\ud800" + 10_000 * "y"
    pool = Pool(controller=Controller.FIXED, fixed=8)
    default = replace(pool.policy.default_tenant, max_in_flight=0)
    pool.apply(Reconfigure(replace(pool.policy, default_tenant=default)))
    pool.page()
    pool.arrive("r", name)
    for _ in range(8):
        pool.step()
    (line,) = lines
    assert line["hold"] == "tenant_cap"
    assert line["cause"].startswith(r"tenant 'x\n\x1b[31m\u202e\ud800yyy")
    assert len(line["cause"]) == 300


# -- leaks ----------------------------------------------------------------------------------------


def test_leaked_slots_that_two_samples_show(lines: Lines) -> None:
    pool = Pool()
    pool.step(leaked=2)
    pool.step(leaked=0)
    pool.step(leaked=2)
    assert lines == []
    pool.step(leaked=2)
    pool.step(leaked=2)
    (line,) = lines
    assert (line["event"], line["log_level"], line["requests"]) == ("slots leaked", "error", 2)
    for _ in range(3):
        pool.step(leaked=0)
    assert events(lines)[1:] == ["leaked slots are free"]
