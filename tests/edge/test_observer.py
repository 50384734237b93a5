"""The observer of a pool by itself: what it reports, what it is told of pages, how it comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from envoy_by_messages import ENGINE, Recording, a_config, an_idle_page

from extproc.core import invariants
from extproc.core.events import Arrive, Usage
from extproc.core.model import Pick, Source
from extproc.core.view import view
from extproc.core.windows import Stance
from extproc.edge.driver import PoolDriver
from extproc.edge.observer import Observer, as_observed

OTHER = "10.0.0.2:8000"


ONE_SLOT = {"window": {"controller": "fixed", "fixed": 1}}


class Observed:
    """A pool that observes."""

    def __init__(self, **config: Any) -> None:
        self.config = a_config(**config)
        self.recorder = Recording()
        self.driver = PoolDriver(
            self.config.pool_policy(self.config.pools[0]), [ENGINE], asyncio.get_running_loop(), self.recorder
        )
        self.driver.scraped(ENGINE, an_idle_page())
        self.driver.observe(True)
        self._count = 0

    @property
    def observer(self) -> Observer:
        assert self.driver.observer is not None
        return self.driver.observer

    def passes(self, tenant: str = "a", n: int = 1) -> str:
        self._count += 1
        name = str(self._count)
        self.observer.watch(Arrive(name, tenant, "default", self.observer.now(), 10, n=n))
        return name

    def outcomes(self) -> list[str]:
        return [outcome for _, _, outcome, _, _ in self.recorder.foreseen]

    def shown(self, running: int, waiting: int, endpoint: str = ENGINE) -> tuple[int | None, int | None]:
        """What the observer makes of a page."""
        self.driver.scraped(endpoint, replace(an_idle_page(), running=running, waiting=waiting))
        window = next(w for w in view(self.observer.scheduler, 0.0).endpoints if w.endpoint == endpoint)
        return window.running, window.waiting


@pytest_asyncio.fixture
async def it() -> AsyncIterator[Observed]:
    made = Observed(pool=ONE_SLOT)
    yield made
    if made.driver.observer is not None:
        invariants.check(made.observer.scheduler, made.observer.now())
    made.driver.close()


# -- outcomes -------------------------------------------------------------------------------------


async def test_each_request_has_one_outcome(it: Observed) -> None:
    first, second, third = it.passes(), it.passes(), it.passes("b")
    assert it.outcomes() == ["released_at_once"]
    it.observer.end(third)  # over before its turn
    await asyncio.sleep(0)
    assert it.outcomes() == ["released_at_once", "ended_first"]
    it.observer.end(first)
    await asyncio.sleep(0)
    assert it.outcomes() == ["released_at_once", "ended_first", "released_later"]
    it.observer.end(second)
    assert it.recorder.told == [("observed", outcome) for outcome in it.outcomes()]  # and nothing else is counted
    pool, cls, _, waited, priority = it.recorder.foreseen[2]
    assert (pool, cls, priority) == ("sim", "default", 1000)
    assert 0 < waited < 5


async def test_the_priority_is_the_one_that_the_engine_would_be_told() -> None:
    it = Observed(slots=3)
    for _ in range(3):
        it.passes()
    assert [priority for *_, priority in it.recorder.foreseen] == [1000, 1001, 1002]
    it.driver.close()


async def test_one_that_would_be_refused_and_its_end() -> None:
    it = Observed(tenants={"*": {"max_queued": 1}})
    names = [it.passes() for _ in range(3)]
    assert it.outcomes() == ["released_at_once", "tenant_limit"]
    assert it.recorder.foreseen[1][4] is None
    assert it.observer.passing == 3  # it runs all the same
    for name in names:
        it.observer.end(name)
    await asyncio.sleep(0)
    assert it.observer.passing == 0
    assert it.outcomes() == ["released_at_once", "tenant_limit", "released_later"]
    it.driver.close()


async def test_a_fault_is_counted_and_does_not_come_out(
    it: Observed, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    held = [it.passes(), it.passes()]
    with monkeypatch.context() as broken:
        broken.setattr(it.observer.scheduler, "apply", lambda *_: 1 / 0)
        name = it.passes()
        it.observer.end(name)
        it.driver.scraped(ENGINE, an_idle_page())
        it.driver.reconfigure(it.driver.scheduler.policy)
    assert it.recorder.count("fault", "observer") == len(logs) >= 3
    assert it.recorder.count("fault", "scheduler") == 0
    for each in held:
        it.observer.end(each)
    assert it.observer.passing == 0


async def test_a_class_that_it_does_not_know_is_a_fault_of_its_own(it: Observed, logs: list[Any]) -> None:
    it.observer.watch(Arrive("x", "a", "nonsense", 0.0, 10))
    assert it.recorder.told == [("fault", "observer")]
    assert [entry["event"] for entry in logs] == ["observer_fault"]
    it.observer.end("x")


# -- what it goes by ------------------------------------------------------------------------------


async def test_it_goes_by_the_pool_s_policy_but_for_the_choice_and_for_evicting() -> None:
    classes = {
        "default": {"rank": 1, "priority": 0, "preemptible": True, "max_waiting": 0},
        "urgent": {"rank": 0, "priority": 0, "preempt_after": "1s", "max_waiting": 0},
    }
    it = Observed(classes=classes)
    own, observed = it.driver.scheduler.policy, it.observer.scheduler.policy
    assert (own.pick.by, observed.pick.by) == (Pick.FAIRLANE, Pick.ENVOY)
    assert (it.driver.scheduler.preempts, it.observer.scheduler.preempts) == (True, False)
    assert replace(observed, pick=own.pick, classes=own.classes) == own
    wider = replace(own, priority_steps=7)
    it.driver.reconfigure(wider)
    assert it.observer.scheduler.policy == as_observed(wider)
    it.driver.close()


async def test_pages_are_shown_without_those_that_would_be_held(it: Observed) -> None:
    """One of four would run: the other three are taken off what waits first, and then off what runs."""
    for _ in range(4):
        it.passes()
    assert it.shown(running=1, waiting=3) == (1, 0)
    assert it.shown(running=2, waiting=2) == (1, 0)
    assert it.shown(running=4, waiting=0) == (1, 0)
    assert it.shown(running=6, waiting=1) == (4, 0)  # three are somebody else's
    assert it.shown(running=0, waiting=0) == (0, 0)  # they have not shown yet
    assert view(it.driver.scheduler, 0.0).endpoints[0].waiting == 0  # what the pool itself is told is the last page


async def test_those_that_would_have_been_refused_are_taken_off_too() -> None:
    it = Observed(pool=ONE_SLOT, tenants={"*": {"max_queued": 1}})
    for _ in range(3):
        it.passes()
    assert it.shown(running=3, waiting=0) == (1, 0)
    it.driver.close()


async def test_slots_count_and_not_requests() -> None:
    it = Observed(pool={"window": {"controller": "fixed", "fixed": 2}})
    it.passes(n=2)
    it.passes(n=3)
    assert it.shown(running=5, waiting=0) == (2, 0)
    it.driver.close()


async def test_over_several_engines_in_proportion(it: Observed) -> None:
    it.driver.add_endpoint(OTHER)
    it.shown(running=4, waiting=3)
    it.shown(running=4, waiting=1, endpoint=OTHER)
    held = []
    while view(it.observer.scheduler, 0.0).queued < 4:
        held.append(it.passes())
    inside = len(held) - 4
    assert it.shown(running=4, waiting=3) == (4, 0)
    assert it.shown(running=4, waiting=1, endpoint=OTHER) == (4, 0)
    it.passes()
    it.passes()
    it.passes()
    it.passes()  # eight held: four off the waiting, two off what runs on each
    assert it.observer.passing == inside + 8
    assert it.shown(running=4, waiting=3) == (2, 0)
    assert it.shown(running=4, waiting=1, endpoint=OTHER) == (2, 0)


async def test_engines_that_run_as_many_as_pass_hold_up_nobody_s_turn(it: Observed) -> None:
    """All twenty run at once, since nothing holds them. The observer's turns go by its own one slot all the same: what
    runs in its place is no foreign load."""
    names = [it.passes() for _ in range(20)]
    for n, name in enumerate(names):
        it.shown(running=20 - n, waiting=0)
        assert view(it.observer.scheduler, 0.0).endpoints[0].foreign == 0
        it.observer.end(name)
        await asyncio.sleep(0)
    assert it.outcomes() == ["released_at_once"] + ["released_later"] * 19


# -- coming and going -----------------------------------------------------------------------------


async def test_a_new_one_knows_the_endpoints_and_their_last_pages() -> None:
    it = Observed()
    it.driver.observe(False)
    assert it.driver.observer is None
    it.driver.add_endpoint(OTHER)
    it.driver.add_endpoint("10.0.0.3:8000")
    it.driver.remove_endpoint("10.0.0.3:8000")
    it.driver.scraped(ENGINE, replace(an_idle_page(), running=5))
    it.driver.observe(True)
    seen = {w.endpoint: (w.stance, w.running) for w in view(it.observer.scheduler, it.observer.now()).endpoints}
    assert seen == {ENGINE: (Stance.FRESH, 5), OTHER: (Stance.STARTING, None)}
    it.driver.close()


async def test_it_follows_the_endpoints_that_come_and_go(it: Observed) -> None:
    it.driver.add_endpoint(OTHER)
    it.driver.scrape_failed(OTHER, refused=True)
    assert it.observer.stance(OTHER) is Stance.DOWN
    it.driver.remove_endpoint(ENGINE)
    assert it.observer.endpoints == (OTHER,)


async def test_turned_off_it_stays_until_the_last_is_over(it: Observed) -> None:
    name = it.passes()
    it.driver.observe(False)
    assert it.driver.observer is not None
    assert not it.driver.observing
    it.observer.end(name)
    assert it.driver.observer is not None  # its tokens may still be told
    it.observer.usage(Usage(name, Source.USAGE, 1, 0, 1))
    assert it.driver.observer is None


async def test_turned_on_again_it_is_the_same(it: Observed) -> None:
    name, one = it.passes(), it.observer
    it.driver.observe(False)
    it.driver.observe(True)
    one.usage(Usage(name, Source.USAGE, 1, 0, 1))
    one.end(name)
    assert it.driver.observer is one


async def test_readings_matter_while_one_passes(it: Observed) -> None:
    calls: list[str] = []
    it.driver.add_endpoint(OTHER, lambda: calls.append("busy"))
    assert (it.driver.busy, it.driver.busy_at(OTHER)) == (False, False)
    name = it.passes()
    assert calls == ["busy"]
    assert (it.driver.busy, it.driver.busy_at(OTHER), it.driver.busy_at(ENGINE)) == (True, True, True)
    emptied = asyncio.ensure_future(it.driver.emptied())
    await asyncio.sleep(0)
    assert not emptied.done()
    it.observer.end(name)
    async with asyncio.timeout(5):
        await emptied
    assert not it.driver.busy_at(OTHER)


async def test_the_pool_s_own_books_know_nothing_of_it(it: Observed) -> None:
    it.passes()
    assert it.driver.scheduler.requests == {}
    assert it.recorder.decided == []
