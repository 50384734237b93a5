"""What the words of a wiring change: a stream that only holds, one that only tracks, one on which nothing more comes;
and requests that are evicted before their answer begins."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envoy_by_messages import (
    Context,
    Edge,
    Immediate,
    Request,
    Start,
    a_config,
    an_entry,
    headers_set,
    log_message,
    message,
    request,
    response_headers,
    until,
)

from extproc.core.events import Evict
from extproc.edge import stream as stream_module
from extproc.edge import tracking as tracking_module
from extproc.edge.request_ids import AMBIGUOUS, RequestIds

pytestmark = pytest.mark.asyncio(loop_scope="session")

TICKET = "x-fairlane-ticket"


async def log(edge: Edge, *entries: Any) -> None:
    async def once() -> Any:
        yield log_message(*entries)

    await edge.access_log.stream(once(), None)


# -- profile strict: one stream holds, another one tracks ----------------------------------------------


async def test_the_stream_that_holds_ends_with_the_release_and_the_slot_stays_taken(start: Start) -> None:
    edge, envoy = await start()
    holding = envoy.stream("hold")
    ticket = headers_set(await holding.ask(request()))[TICKET]
    assert await holding.read() is None  # it is over: a death of this process could not cut the answer any more
    assert await holding.code() is grpc.StatusCode.OK
    assert edge.inside == 1
    tracking = envoy.stream("track")
    answer = await tracking.ask(request(headers={TICKET: ticket}))
    assert headers_set(answer) == {}
    assert edge.inside == 1
    assert (await tracking.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await tracking.end() is grpc.StatusCode.OK
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim")]


async def test_a_client_that_leaves_between_the_two_streams_is_known_from_the_log(start: Start) -> None:
    edge, envoy = await start()
    ticket = headers_set(await envoy.stream("hold").ask(request()))[TICKET]
    await until(lambda: len(edge.tracking) == 1)
    await log(edge, an_entry(ticket, 0))
    edge.check_empty()
    assert len(edge.tracking) == 0


async def test_a_second_stream_that_never_comes_does_not_keep_the_slot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module, "_CLAIM_S", 0.02)
    edge, envoy = await start()
    ticket = headers_set(await envoy.stream("hold").ask(request()))[TICKET]
    await until(lambda: edge.recorder.count("untracked") == 1)
    edge.check_empty()
    late = envoy.stream("track")
    await late.ask(request(headers={TICKET: ticket}))
    assert await late.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("release", "sim"), ("untracked", ""), ("passed", "untracked")]


@pytest.mark.parametrize("ticket", [None, "", "made-up-1", "0" * 5000])
async def test_a_tracking_stream_of_nobody_is_not_queued(start: Start, ticket: str | None) -> None:
    """Fairlane was started again in between, or was away when the request was to be held."""
    edge, envoy = await start()
    stream = envoy.stream("track")
    await stream.ask(request(headers={} if ticket is None else {TICKET: ticket}))
    assert edge.inside == 0
    await stream.end()
    assert edge.recorder.told == [("passed", "untracked")]


async def test_a_client_s_ticket_opens_nothing_without_the_word(start: Start) -> None:
    edge, envoy = await start()
    _, ticket = await envoy.released()
    held = envoy.stream()
    await held.send(request(headers={TICKET: ticket}))
    await until(lambda: edge.held == 1)


async def test_what_is_held_on_a_holding_stream_ends_with_it(start: Start) -> None:
    edge, envoy = await start()
    await envoy.released()
    held = envoy.stream("hold")
    await held.send(request())
    await until(lambda: edge.held == 1)
    held.cancel()
    await until(lambda: edge.held == 0)
    assert edge.recorder.count("cancelled") == 1


async def test_one_that_is_refused_on_a_holding_stream_waits_for_nobody(start: Start) -> None:
    edge, envoy = await start(requests={"unknown_model": "reject"})
    stream = envoy.stream("hold")
    assert Immediate.of(await stream.ask(request("other"))).status == 404
    assert len(edge.tracking) == 0


# -- nothing more comes: the stream is waited out -------------------------------------------------------


async def test_a_quiet_stream_is_not_read_and_ends_by_cancellation() -> None:
    edge = Edge(a_config())
    context = Context(request(), message("response_trailers"), ends=False)
    context.wiring = "no-trailers"
    task = asyncio.create_task(edge.processor.process(None, context))
    await until(lambda: context.written)
    assert edge.processor.open == 1
    assert context.reads.qsize() == 1  # not even looked at
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    edge.check_empty()
    assert edge.processor.open == 0
    assert not edge.processor._ends
    edge.close()


async def test_a_stream_that_begins_elsewhere_is_answered_whatever_the_wiring_says(start: Start) -> None:
    _, envoy = await start()
    stream = envoy.stream("no-trailers")
    assert (await stream.ask(response_headers())).WhichOneof("response") == "response_headers"
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_quiet_stream_that_was_held_goes_on_with_its_read() -> None:
    edge = Edge(a_config())
    contexts = [Context(request(), ends=False) for _ in range(2)]
    for context in contexts:
        context.wiring = "no-trailers"
    tasks = [asyncio.create_task(edge.processor.process(None, context)) for context in contexts]
    await until(lambda: edge.held == 1)
    tasks[0].cancel()
    await until(lambda: contexts[1].written)
    contexts[1].end()
    await tasks[1]
    edge.check_empty()
    edge.close()


async def test_a_stream_that_says_nothing_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_SILENCE_S", 0.02)
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.call.wait_for_connection()
    assert await stream.read() is None
    assert await stream.code() is not grpc.StatusCode.OK
    assert edge.processor.open == 0
    assert edge.recorder.told == []


async def test_an_observing_filter_is_not_scheduled_by_and_not_answered(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    observed = request()
    observed.observability_mode = True
    await stream.send(observed, message("response_trailers"))
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "observed")]


@pytest.mark.parametrize(
    "headers", [{":method": "GET"}, {":path": "/v1/models"}, {":path": "/v1/completions/"}, {":method": "post"}]
)
async def test_what_is_not_queued_passes(start: Start, headers: dict[str, str]) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    assert headers_set(await stream.ask(request(headers=headers))) == {}
    await stream.end()
    assert edge.recorder.told == [("passed", "not_queued")]


async def test_a_query_is_no_part_of_the_path(start: Start) -> None:
    edge, envoy = await start(requests={"queued": ["*/completions"]})
    await envoy.released(headers={":path": "/any/prefix/completions?a=/v1/models"})
    assert edge.inside == 1


# -- eviction -------------------------------------------------------------------------------------------

LOW = {"rank": 2, "priority": 9, "max_waiting": 0, "preemptible": True}
HIGH = {"rank": 0, "priority": 0, "max_waiting": 0, "preempt_after": "20ms"}
CLASSES = {"classes": {"low": LOW, "urgent": HIGH}}


def of(cls: str) -> Request:
    return request(headers={"x-class": cls})


async def test_a_request_that_has_not_begun_to_answer_makes_room(start: Start) -> None:
    edge, envoy = await start(**CLASSES)
    low = envoy.stream("first-byte")
    await low.ask(of("low"))
    high = envoy.stream("first-byte")
    await high.send(of("urgent"))
    answer = Immediate.of(await low.answer())
    assert (answer.status, answer.error["code"]) == (503, "preempted")
    assert answer.headers["retry-after"].isdigit()
    assert edge.inside == 1  # its slot is free when its stream ends, not before
    await low.end()
    assert headers_set(await high.answer())["x-fairlane-class"] == "urgent"
    await high.end()
    edge.check_empty()


@pytest.mark.parametrize("wiring", ["first-byte", ""])
async def test_one_that_may_have_begun_to_answer_is_left_alone(start: Start, wiring: str) -> None:
    """Its first byte has been seen; or the wiring does not show first bytes."""
    edge, envoy = await start(**CLASSES)
    low = envoy.stream(wiring)
    await low.ask(of("low"))
    if wiring:
        await low.ask(response_headers())
    high = envoy.stream(wiring)
    await high.send(of("urgent"))
    await until(lambda: edge.held == 1)
    waited = edge.driver.now()
    await until(lambda: edge.driver.now() > waited + 0.1)  # five times what it would take
    assert not any(isinstance(effect, Evict) for effect in edge.recorder.decided)
    low.cancel()
    await high.answer()


async def test_a_response_that_crosses_the_eviction_gets_no_second_answer(start: Start) -> None:
    """Envoy takes our own answer at any time, and would take another one after it for a fault."""
    _, envoy = await start(**CLASSES)
    low = envoy.stream("first-byte")
    await low.ask(of("low"))
    high = envoy.stream("first-byte")
    await high.send(of("urgent"))
    Immediate.of(await low.answer())
    await low.send(response_headers())
    assert await low.end() is grpc.StatusCode.OK


async def test_a_tracked_request_can_be_evicted_too(start: Start) -> None:
    edge, envoy = await start(**CLASSES)
    ticket = headers_set(await envoy.stream("hold,first-byte").ask(of("low")))[TICKET]
    tracking = envoy.stream("track,first-byte")
    await tracking.ask(request(headers={TICKET: ticket}))
    high = envoy.stream()
    await high.send(of("urgent"))
    assert Immediate.of(await tracking.answer()).error["code"] == "preempted"
    await tracking.end()
    await high.answer()
    assert edge.inside == 1


async def test_an_eviction_that_meets_a_write_waits_for_its_end() -> None:
    """Two writes at once are an error to grpc, and the request would hang: evicted for us, and not for Envoy."""
    edge = Edge(a_config(pool={"preemption": {"after_first_byte": True, "per_second": 100}}, **CLASSES))
    low, high = Context(of("low"), ends=False), Context(of("urgent"), ends=False)
    tasks = [asyncio.create_task(edge.processor.process(None, low))]
    await until(lambda: edge.inside == 1 and low.written)
    tasks.append(asyncio.create_task(edge.processor.process(None, high)))
    while not any(isinstance(effect, Evict) for effect in edge.recorder.decided):
        low.reads.put_nowait(response_headers().SerializeToString())  # each of them is answered: it writes all the time
        await asyncio.sleep(0)
    low.reads.put_nowait(response_headers().SerializeToString())
    await until(lambda: low.kinds[-1] == "immediate_response")
    low.end()
    await until(lambda: high.written)
    assert low.kinds.count("immediate_response") == 1
    high.end()
    await asyncio.gather(*tasks)
    edge.check_empty()
    assert edge.recorder.count("fault") == 0
    edge.close()


async def test_an_eviction_between_the_two_streams_reaches_the_second(start: Start) -> None:
    edge, envoy = await start(**CLASSES)
    ticket = headers_set(await envoy.stream("hold,first-byte").ask(of("low")))[TICKET]
    high = envoy.stream()
    await high.send(of("urgent"))
    await until(lambda: any(isinstance(effect, Evict) for effect in edge.recorder.decided))
    tracking = envoy.stream("track,first-byte")
    assert Immediate.of(await tracking.ask(request(headers={TICKET: ticket}))).error["code"] == "preempted"
    await tracking.end()
    await high.answer()
    assert not edge.driver._evicted


# -- a log without tickets ------------------------------------------------------------------------------


def named(request_id: str) -> Request:
    made = request()
    made.attributes["envoy.filters.http.ext_proc"].update({"request.id": request_id})
    return made


def entry_of(request_id: str, **usage: Any) -> Any:
    entry = an_entry(None, **usage)
    entry.request.request_id = request_id
    return entry


async def test_an_entry_without_a_ticket_is_matched_by_the_request_s_id(start: Start) -> None:
    edge, envoy = await start(slots=3)
    stream = envoy.stream()
    await stream.ask(named("r-1"))
    await stream.end()
    await log(edge, entry_of("r-1", prompt_tokens=5, completion_tokens=4), entry_of("r-2", completion_tokens=1))
    assert edge.recorder.count("settled") == 1
    assert edge.recorder.count("access_log", "matched_by_id") == 1
    assert edge.recorder.count("access_log", "no_ticket") == 1
    assert not edge.driver.scheduler.requests


async def test_an_id_that_two_requests_share_means_neither(start: Start) -> None:
    edge, envoy = await start(slots=3)
    streams = [envoy.stream() for _ in range(2)]
    for stream in streams:
        await stream.ask(named("r-1"))
    await log(edge, entry_of("r-1", completion_tokens=1))
    assert edge.recorder.count("access_log", "ambiguous") == 1
    assert edge.recorder.count("settled") == 0
    for stream in streams:
        await stream.end()


async def test_ids_are_forgotten() -> None:
    ids = RequestIds()
    ids.began("", "t-0")  # Envoy did not say
    ids.began("a", "t-1")
    ids.began("b", "t-2")
    ids.ended("a", 0.0)
    ids.ended("nobody", 0.0)
    assert (ids.ticket("a"), ids.ticket("b"), ids.ticket(""), ids.ticket("c")) == ("t-1", "t-2", None, None)
    ids.ended("b", 11.0)
    assert ids.ticket("a") is None
    assert len(ids) == 1
    ids.began("b", "t-3")
    assert ids.ticket("b") == AMBIGUOUS
    ids.ended("b", 12.0)
    assert len(ids) == 1
