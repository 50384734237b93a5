"""Faults that come without end: their lines in the log do not."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import Context, Edge, Start, a_config, request, until

from extproc.core.events import Arrive, ScrapeFailed
from extproc.edge.fault_lines import FaultLines

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY = 200
IN_A_ROW = 5


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It stands still unless it is moved. For all lines that are made from now on."""
    clock = Clock()
    real = FaultLines.__init__
    monkeypatch.setattr(FaultLines, "__init__", lambda lines, event, *_: real(lines, event, clock.monotonic))
    return clock


def told(logs: list[Any]) -> list[tuple[str, int]]:
    return [(entry["event"], entry["untold"]) for entry in logs if entry["log_level"] != "debug"]


async def test_a_few_in_a_row_then_one_a_second_with_the_number_of_the_others(clock: Clock, logs: list[Any]) -> None:
    lines = FaultLines("some_fault")
    for _ in range(MANY):
        lines.warning(peer="a")
    assert told(logs) == [("some_fault", 0)] * IN_A_ROW
    clock.now += 0.9
    lines.warning(peer="a")
    assert len(logs) == IN_A_ROW
    clock.now += 0.2
    for _ in range(3):
        lines.warning(peer="b")
    assert told(logs)[IN_A_ROW:] == [("some_fault", MANY - IN_A_ROW + 1)]
    assert logs[-1]["peer"] == "b"
    clock.now += 3600.0
    for _ in range(MANY):
        lines.warning(peer="a")
    assert told(logs)[IN_A_ROW + 1 :] == [("some_fault", 2), *[("some_fault", 0)] * (IN_A_ROW - 1)]


async def test_each_kind_has_its_own(clock: Clock, logs: list[Any]) -> None:
    one, other = FaultLines("one"), FaultLines("other")
    for _ in range(MANY):
        one.warning()
    other.warning()
    assert told(logs)[-1] == ("other", 0)


async def test_messages_that_are_none_do_not_fill_the_log(start: Start, clock: Clock, logs: list[Any]) -> None:
    """Any bytes, on as many streams as one likes: each is answered as ever and counted, and none has a traceback."""
    edge, envoy = await start()
    for _ in range(MANY):
        stream = envoy.stream()
        assert (await stream.ask(b"\xff" * 100)).WhichOneof("response") == "request_headers"
        stream.cancel()
    assert edge.recorder.count("fault", "stream") == edge.recorder.count("passed", "fault") == MANY
    assert told(logs) == [("stream_malformed", 0)] * IN_A_ROW
    for entry in logs:
        assert entry["peer"].startswith("ipv4:127.0.0.1:")
        assert "exc_info" not in entry
        assert entry["answered"] is False
    await until(lambda: edge.processor.open == 0)
    edge.check_empty()


async def test_what_cannot_be_read_later_on_is_no_fault_of_ours_either(clock: Clock, logs: list[Any]) -> None:
    edge = Edge(a_config(slots=MANY))
    for _ in range(MANY):
        await edge.processor.process(None, Context(request(), b"\xff" * 100))
    assert edge.recorder.count("fault", "stream") == MANY
    assert told(logs) == [("stream_malformed", 0)] * IN_A_ROW
    assert {entry["answered"] for entry in logs if entry["log_level"] != "debug"} == {True}
    edge.close()


def fails(*_: object) -> Any:
    raise RuntimeError("planted")


async def test_faults_of_ours_have_some_tracebacks(
    clock: Clock, logs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(a_config())
    monkeypatch.setattr(edge.gate, "decide", lambda *_, **__: fails())
    for _ in range(MANY):
        await edge.processor.process(None, Context(request()))
    assert edge.recorder.count("fault", "stream") == MANY
    assert told(logs) == [("stream_fault", 0)] * IN_A_ROW
    assert all(entry["exc_info"] for entry in logs)
    clock.now += 1.0
    await edge.processor.process(None, Context(request()))
    assert told(logs)[-1] == ("stream_fault", MANY - IN_A_ROW)
    edge.close()


async def test_so_have_those_of_schedulers(clock: Clock, logs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge(a_config())
    monkeypatch.setattr(edge.driver.scheduler, "apply", fails)
    for _ in range(MANY):
        edge.driver.scrape_failed("127.0.0.1:1", refused=False)
    assert edge.recorder.count("fault", "scheduler") == MANY
    assert told(logs) == [("scheduler_fault", 0)] * IN_A_ROW
    assert {entry["event_type"] for entry in logs} == {ScrapeFailed.__name__}
    monkeypatch.undo()
    edge.close()


async def test_so_have_those_of_observers(clock: Clock, logs: list[Any]) -> None:
    edge = Edge(a_config(pool={"mode": "observe"}))
    for number in range(MANY):
        edge.observer.watch(Arrive(f"{number}", "a", "nonsense", 0.0, 10))
    assert edge.recorder.count("fault", "observer") == MANY
    assert told(logs) == [("observer_fault", 0)] * IN_A_ROW
    assert all(entry["exc_info"] for entry in logs)
    edge.close()
