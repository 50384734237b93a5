"""Access-log entries over a real connection: which request each one settles, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import ENGINE, Edge, Start, an_entry, log_message, request, tried, until

from extproc.core.events import Settled
from extproc.core.model import Source
from extproc.core.windows import Stance
from extproc.pb.wire.v1 import access_log_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")


def settled(edge: Edge) -> list[tuple[str, Source, float]]:
    return [(e.id, e.source, e.cost) for e in edge.recorder.decided if isinstance(e, Settled)]


async def test_an_entry_after_the_end_settles_its_request(start: Start) -> None:
    edge, envoy = await start()
    stream, ticket = await envoy.released()
    await stream.end()
    log = envoy.access_log()
    await log.write(log_message(an_entry(ticket, prompt_tokens=100, completion_tokens=10, cached_tokens=50)))
    await until(lambda: settled(edge))
    # 50 prompt tokens at 1, 50 cached at 0.1, 10 of output at 2
    assert settled(edge) == [(ticket, Source.USAGE, pytest.approx(75.0))]
    assert edge.driver.scheduler.requests == {}
    assert edge.recorder.count("access_log", "matched") == 1


async def test_an_entry_before_the_end_settles_and_frees_nothing(start: Start) -> None:
    edge, envoy = await start()
    stream, ticket = await envoy.released()
    log = envoy.access_log()
    await log.write(log_message(an_entry(ticket, prompt_tokens=1, completion_tokens=1)))
    await until(lambda: settled(edge))
    assert edge.inside == 1  # the slot is the stream's
    await stream.end()
    assert (edge.inside, edge.driver.scheduler.requests) == (0, {})
    assert settled(edge) == [(ticket, Source.USAGE, 3.0)]


async def test_a_broken_connection_takes_the_endpoint_out_before_its_slot_is_given_on(start: Start) -> None:
    edge, envoy = await start()
    stream, ticket = await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    entry = an_entry(ticket, 503)
    entry.common_properties.response_flags.upstream_connection_failure = True
    log = envoy.access_log()
    await log.write(log_message(entry))
    await until(lambda: settled(edge))
    await stream.end()
    (window,) = edge.driver.scheduler.windows.values()
    assert window.stance(edge.driver.now()) is Stance.DOWN
    assert (edge.held, edge.inside) == (1, 0)


async def test_a_doubled_entry_settles_once(start: Start) -> None:
    edge, envoy = await start()
    stream, ticket = await envoy.released()
    log = envoy.access_log()
    entry = an_entry(ticket, prompt_tokens=1, completion_tokens=1)
    await log.write(log_message(entry, entry))
    await stream.end()
    await log.write(log_message(an_entry(ticket, prompt_tokens=9999, completion_tokens=9999)))
    await until(lambda: edge.recorder.count("access_log") == 3)
    assert settled(edge) == [(ticket, Source.USAGE, 3.0)]


async def test_an_entry_of_a_request_that_goes_on_says_nothing_yet(start: Start) -> None:
    """Envoy writes such where its log is flushed when a request begins, or every so often."""
    edge, envoy = await start()
    _, ticket = await envoy.released()
    begun = an_entry(ticket, code=0)
    begun.common_properties.intermediate_log_entry = True
    log = envoy.access_log()
    await log.write(log_message(begun, an_entry(ticket, prompt_tokens=1, completion_tokens=1)))
    await until(lambda: edge.recorder.count("access_log", "matched"))
    assert settled(edge) == [(ticket, Source.USAGE, 3.0)]
    assert edge.recorder.count("access_log") == 2


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (an_entry(None), "no_ticket"),
        (an_entry(""), "no_ticket"),
        (an_entry("00000000-sim-1", completion_tokens=5), "other_process"),
        (an_entry("no ticket of anybody"), "other_process"),
        (an_entry("-"), "other_process"),
    ],
)
async def test_entries_of_others_are_counted_and_ignored(start: Start, entry: Any, kind: str) -> None:
    edge, envoy = await start()
    await envoy.released()
    log = envoy.access_log()
    await log.write(log_message(entry))
    await until(lambda: edge.recorder.count("access_log"))
    assert edge.recorder.told == [("release", "sim"), ("access_log", kind)]


async def test_a_ticket_of_ours_for_a_pool_that_is_not_there(start: Start) -> None:
    edge, envoy = await start()
    _, ticket = await envoy.released()
    process = ticket.partition("-")[0]
    log = envoy.access_log()
    await log.write(log_message(an_entry(f"{process}-gone-1"), an_entry(process), an_entry(f"{process}-sim-ff")))
    await until(lambda: edge.recorder.count("access_log") == 3)
    assert edge.recorder.count("access_log", "other_process") == 2
    assert settled(edge) == []  # the third names no request that is known: it came too late


async def test_malformed_bytes_do_not_end_the_stream(start: Start) -> None:
    """Envoy has one such stream for each of its threads: to lose it would lose the usage of many requests."""
    edge, envoy = await start()
    _, ticket = await envoy.released()
    log = envoy.access_log()
    await log.write(b"\xff\xff\xff")
    await log.write(access_log_pb2.StreamAccessLogsMessage().SerializeToString())  # no entries
    await log.write(log_message(an_entry(ticket, completion_tokens=1)))
    await until(lambda: settled(edge))
    assert edge.recorder.told[1:] == [("access_log", "malformed"), ("access_log", "matched"), ("settled", "sim")]
    await log.done_writing()
    access_log_pb2.StreamAccessLogsResponse.FromString(await log)


async def test_a_fault_in_the_scheduler_does_not_end_the_stream(
    start: Start, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    edge, envoy = await start()
    _, ticket = await envoy.released()
    log = envoy.access_log()
    with monkeypatch.context() as broken:
        broken.setattr("extproc.core.charging.final", lambda *_: 1 / 0)
        await log.write(log_message(an_entry(ticket, completion_tokens=1)))
        await until(lambda: edge.recorder.count("fault", "scheduler") == 1)
    assert [
        (entry["event"], entry["event_type"], entry["pool"]) for entry in logs if entry["log_level"] == "error"
    ] == [("scheduler_fault", "Usage", "sim")]
    await log.write(log_message(an_entry(ticket, completion_tokens=1)))
    await until(lambda: settled(edge))


async def test_pools_with_dashes_in_their_names_find_their_tickets(start: Start) -> None:
    pools = [{"name": name, "models": [name], "endpoints": ["10.0.0.2:8000"]} for name in ("a-b", "a", "b-")]
    edge, envoy = await start(more_pools=pools)
    for pool in ("a-b", "a", "b-", "m"):
        _, ticket = await envoy.released(pool)
        name = "sim" if pool == "m" else pool
        assert edge.gate.owner(ticket) is edge.drivers[name]


# -- the endpoint -----------------------------------------------------------------------------------------

OTHER = "10.0.0.2:8000"


def window(edge: Edge, endpoint: str) -> Any:
    return edge.driver.scheduler.windows[endpoint]


async def test_an_engine_that_says_no_is_given_a_pause_and_its_tenant_pays_nothing(start: Start) -> None:
    edge, envoy = await start(slots=2)
    stream, ticket = await envoy.released()
    log = envoy.access_log()
    await log.write(log_message(tried(an_entry(ticket, 503), ENGINE)))
    await until(lambda: settled(edge))
    assert settled(edge) == [(ticket, Source.ERROR, 0.0)]
    await stream.end()
    assert window(edge, ENGINE).stance(edge.driver.now()) is not Stance.DOWN
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)  # there is room, and it is not used at once
    held.cancel()
    await until(lambda: edge.held == 0)
    assert edge.recorder.count("choice_ignored") == 0


async def test_one_that_was_tried_elsewhere_tells_of_the_endpoint_that_was_named(start: Start) -> None:
    edge, envoy = await start(pool={"endpoints": [ENGINE, OTHER]})
    stream, ticket = await envoy.released()
    named = edge.driver.scheduler.requests[ticket].endpoint
    used = OTHER if named == ENGINE else ENGINE
    log = envoy.access_log()
    await log.write(log_message(tried(an_entry(ticket, completion_tokens=1), used, 2)))
    await until(lambda: settled(edge))
    assert window(edge, named).stance(edge.driver.now()) is Stance.DOWN
    assert window(edge, used).stance(edge.driver.now()) is not Stance.DOWN
    await stream.end()
    edge.check_empty()


async def test_an_envoy_that_does_not_do_as_it_is_told_is_warned_of_once_a_minute(
    start: Start, logs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, envoy = await start(slots=9)
    log, clock = envoy.access_log(), edge.driver.now
    for count, ahead in enumerate((0.0, 59.0, 61.0), 1):
        monkeypatch.setattr(edge.driver, "now", lambda ahead=ahead: clock() + ahead)
        stream, ticket = await envoy.released()
        await log.write(log_message(tried(an_entry(ticket, completion_tokens=1), OTHER)))
        await until(lambda count=count: edge.recorder.count("choice_ignored", "sim") == count)
        await stream.end()
    warnings = [entry for entry in logs if entry["event"] == "choice_ignored"]
    assert [(entry["pool"], entry["chosen"], entry["used"]) for entry in warnings] == [("sim", ENGINE, OTHER)] * 2
    assert "override_host" in warnings[0]["cure"]


async def test_where_envoy_chooses_no_choice_is_ignored(start: Start) -> None:
    edge, envoy = await start(pool={"endpoints": [ENGINE, OTHER], "pick": {"by": "envoy"}})
    stream, ticket = await envoy.released()
    named = edge.driver.scheduler.requests[ticket].endpoint
    used = OTHER if named == ENGINE else ENGINE
    refused = tried(an_entry(ticket, 503), used)
    refused.common_properties.response_flags.upstream_connection_failure = True
    log = envoy.access_log()
    await log.write(log_message(refused))
    await until(lambda: settled(edge))
    assert window(edge, used).stance(edge.driver.now()) is Stance.DOWN
    assert window(edge, named).stance(edge.driver.now()) is not Stance.DOWN
    assert edge.recorder.count("choice_ignored") == 0
    await stream.end()
