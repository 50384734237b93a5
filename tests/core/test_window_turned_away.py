"""An engine that refuses for want of room: its window learns where the limit is, and leaves it alone for a moment."""

from __future__ import annotations

from scheduler_case import E1, E2, Case, a_class, a_pool, released, settled
from window_case import Bench, a_request

from extproc.core.events import Failed, TurnedAway, Unreachable, Usage
from extproc.core.model import Source
from extproc.core.windows.backoff import FAILED, LONGEST_S, PAUSE_S
from extproc.core.windows.base import SUSPECT_S


def test_what_was_inside_when_it_refused_is_the_most_that_goes_in() -> None:
    bench = Bench(start=20.0)
    bench.take(9)
    bench.window.on_turned_away(1, bench.now)
    bench.free(1)  # the refused one
    bench.later()
    bench.page(8)
    assert bench.room() == 0
    bench.free(2)
    assert bench.room() == 2


def test_a_burst_that_is_refused_one_by_one_finds_the_limit() -> None:
    """24 at once, of which the engine takes 8."""
    bench = Bench(start=24.0)
    bench.take(24)
    for _ in range(16):
        bench.window.on_turned_away(1, bench.now)
        bench.free(1)
    bench.later()
    bench.page(8)
    assert bench.window.in_flight == 8
    assert bench.room() == 0


def test_the_order_of_the_refusal_and_of_the_stream_s_end_does_not_matter() -> None:
    case = Case(a_pool(start=4.0))
    for i in range(6):
        case.arrive(f"r{i}")
    case.apply(TurnedAway("r5"))
    case.end("r5")
    other = Case(a_pool(start=4.0))
    for i in range(6):
        other.arrive(f"r{i}")
    other.end("r5")
    other.apply(TurnedAway("r5"))
    limits = [c.scheduler.windows[E1].limit(3.0, c.now) for c in (case, other)]
    assert limits == [5.0, 5.0]


def test_nothing_is_sent_for_a_moment_that_doubles_and_ends() -> None:
    bench = Bench(start=20.0)
    pauses = []
    for _ in range(9):
        bench.window.on_turned_away(1, bench.now)
        bench.window.on_turned_away(1, bench.now + 0.01)  # of the same burst: no longer pause for it
        began = bench.now
        while not bench.accepts():
            bench.later(0.0625)
            bench.page()
        pauses.append(round(bench.now - began, 2))
    assert pauses[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert pauses[6:] == [LONGEST_S] * 3


def test_one_that_is_served_ends_the_doubling() -> None:
    bench = Bench(start=20.0)
    bench.take(3)
    for _ in range(4):
        bench.window.on_turned_away(1, bench.now)
        bench.later(LONGEST_S)
    bench.window.served()
    bench.free(3)
    bench.window.on_turned_away(1, bench.now)
    bench.later(PAUSE_S)
    bench.page()
    assert bench.accepts()


def test_also_an_endpoint_with_nothing_of_ours_is_left_alone() -> None:
    """It refuses faster than any engine serves: all that is held would run into it."""
    case = Case(a_pool(start=4.0))
    for i in range(1, 40):
        case.arrive(f"r{i}")
    tried = 0
    for _ in range(3):  # each that goes is refused at once
        while inside := [n for n, r in case.scheduler.requests.items() if r.endpoint and r.ended_at is None]:
            tried += len(inside)
            for name in inside:
                case.apply(TurnedAway(name))
                case.end(name)
    assert tried == 7  # 4 + a standing queue of 3


def test_the_end_of_the_pause_lets_go_what_is_held_without_a_page() -> None:
    case = Case(a_pool(start=4.0))
    case.arrive("r1")
    case.apply(TurnedAway("r1"))
    case.end("r1")
    assert case.arrive("r2") == []
    assert case.scheduler.next_deadline() == case.now + PAUSE_S
    assert released(case.tick(PAUSE_S)) == ["r2"]


def test_so_does_the_end_of_the_pause_after_a_broken_connection() -> None:
    case = Case(a_pool(start=4.0))
    case.arrive("r1")
    case.apply(Unreachable("r1"))
    case.end("r1")
    assert case.arrive("r2") == []
    assert case.scheduler.next_deadline() == case.now + SUSPECT_S
    assert released(case.tick(SUSPECT_S)) == ["r2"]


def test_without_refusals_it_grows_again() -> None:
    bench = Bench(start=20.0)
    bench.take(11)
    bench.window.on_turned_away(1, bench.now)
    bench.free(1)
    rooms = []  # the limit: 10, then 11, 12.1, 13.31, 14.641, 16.105, 17.716
    for second in range(16):
        bench.later(1.0)
        bench.page(10, started=bench.now)
        if second >= 9:
            rooms.append(bench.room())
    assert rooms == [0, 1, 2, 3, 4, 6, 7]


def test_the_tenant_pays_nothing_and_the_other_endpoint_takes_the_next() -> None:
    case = Case(a_pool(a_class(), start=1.0), endpoints=(E1, E2))
    case.arrive("r1")
    first = case.scheduler.requests["r1"].endpoint
    case.apply(TurnedAway("r1"))
    case.apply(Usage("r1", Source.ERROR))
    case.end("r1")
    assert settled(case.effects) == [("r1", 0.0)]
    for i in range(4):
        assert released(case.arrive(f"n{i}")) == [f"n{i}"]
        assert case.scheduler.requests[f"n{i}"].endpoint != first


def test_another_endpoint_than_that_of_the_release_can_be_named() -> None:
    case = Case(a_pool(start=4.0), endpoints=(E1, E2))
    case.arrive("r1")
    released_to = case.scheduler.requests["r1"].endpoint
    other = E2 if released_to == E1 else E1
    case.apply(TurnedAway("r1", endpoint=other))
    assert case.scheduler.windows[other].limit(3.0, case.now) == 1.0
    assert case.scheduler.windows[released_to or ""].limit(3.0, case.now) == 7.0


def test_one_that_is_not_known_changes_nothing() -> None:
    case = Case(a_pool(start=4.0))
    case.apply(TurnedAway("nobody"))
    case.apply(TurnedAway("nobody", endpoint=E1))
    case.apply(TurnedAway("nobody", endpoint="10.9.9.9:1"))
    assert case.scheduler.windows[E1].limit(3.0, case.now) == 7.0


def test_an_engine_that_was_down_begins_without_the_limit() -> None:
    bench = Bench(start=20.0)
    bench.take(2)
    bench.window.on_turned_away(1, bench.now)
    bench.window.on_failure(refused=True)
    bench.later()
    bench.page()
    assert bench.room() > 10


# -- an engine that fails them --------------------------------------------------------------------


def failures(case: Case, seconds: float, *, event: type[Failed | Unreachable], **fields: object) -> int:
    """How many of many that wait are spent on an engine that fails each at once, its pages being good."""
    spent, until = 0, case.now + seconds
    for i in range(400):
        case.arrive(f"r{i}")
    while case.now < until:
        for name in [n for n, r in case.scheduler.requests.items() if r.endpoint and r.ended_at is None]:
            case.apply(event(name, **fields))
            case.apply(Usage(name, Source.ERROR))
            case.end(name)
            spent += 1
        case.now += 0.25
        case.page()
    return spent


def test_an_engine_that_fails_all_at_once_is_not_sent_all_that_waits() -> None:
    """Seven at once to begin with (4 and a standing queue of 3), and some more at the end of each longer pause."""
    assert failures(Case(a_pool(start=4.0)), 30.0, event=Failed) < 60


def test_nor_is_one_that_breaks_each_connection() -> None:
    assert failures(Case(a_pool(start=4.0)), 30.0, event=Unreachable, broke=True) < 60


def test_single_failures_between_good_answers_stop_nothing() -> None:
    case = Case(a_pool(start=4.0))
    for i in range(60):
        assert released(case.arrive(f"r{i}")) == [f"r{i}"]
        if i % 3 == 2:
            case.usage(f"r{i}", 10, 10)
        else:
            case.apply(Failed(f"r{i}"))
        case.end(f"r{i}")


def test_the_third_in_a_row_begins_a_pause_and_a_good_answer_ends_the_row() -> None:
    bench = Bench(start=20.0)
    for _ in range(FAILED - 1):
        bench.window.on_failed(bench.now)
    assert bench.accepts()
    bench.window.on_failed(bench.now)
    assert not bench.accepts()
    hold = bench.window.why_not(a_request(), 3.0, bench.now)
    assert hold is not None
    assert (hold.name, hold.value) == ("backoff", PAUSE_S)
    bench.later(PAUSE_S)
    bench.window.served()
    bench.window.on_failed(bench.now)
    assert bench.accepts()


def test_failures_that_lie_far_apart_are_no_row() -> None:
    bench = Bench(start=20.0)
    for _ in range(10):
        bench.window.on_failed(bench.now)
        bench.later(11.0)
        bench.page()
        assert bench.accepts()


def test_one_client_s_bad_requests_do_not_take_a_working_engine_from_the_others() -> None:
    """No answer tells its tokens; the page shows that the engine works."""
    case = Case(a_pool(start=4.0))
    served = 0
    for step in range(120):
        case.now += 0.25
        case.page(running=1, progress=float(step), started=case.now)
        case.arrive(f"bad{step}", "bad")
        for name in [n for n, r in case.scheduler.requests.items() if r.endpoint and r.ended_at is None]:
            if name.startswith("bad"):
                case.apply(Failed(name))
                case.apply(Usage(name, Source.ERROR))
                case.end(name)
        case.arrive(f"good{step}", "good")
        for name in [n for n, r in case.scheduler.requests.items() if r.endpoint and r.ended_at is None]:
            if name.startswith("good"):
                case.apply(Usage(name, Source.TIME))
                case.end(name)
                served += 1
    assert served == 120


def test_progress_does_not_end_the_pause_of_a_full_engine() -> None:
    bench = Bench(start=20.0)
    bench.take(2)
    bench.page(2, progress=1.0)
    bench.window.on_turned_away(1, bench.now)
    bench.free(2)
    bench.later(0.1)
    bench.page(1, progress=2.0)
    assert not bench.accepts()


def test_what_another_endpoint_served_is_no_sign_of_this_one() -> None:
    case = Case(a_pool(start=4.0), endpoints=(E1, E2))
    case.arrive("r1")
    named = case.scheduler.requests["r1"].endpoint or ""
    other = E2 if named == E1 else E1
    case.apply(TurnedAway("r1"))
    paused = case.scheduler.windows[named].left_until
    case.usage("r1", 10, 10, endpoint=other)
    assert case.scheduler.windows[named].left_until == paused > case.now
