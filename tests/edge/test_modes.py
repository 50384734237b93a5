"""Modes of a pool over a real connection: what passes, what is found out beside it, and switching under load."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest
from envoy_by_messages import (
    Context,
    Edge,
    Immediate,
    Request,
    Response,
    Start,
    Stream,
    a_config,
    an_entry,
    body,
    headers_set,
    log_message,
    message,
    request,
    until,
    wired,
)

from extproc.core.model import State
from extproc.edge import tracking as tracking_module
from extproc.edge.observer import Observer
from extproc.edge.request_side import OURS
from extproc.edge.rollout import mode_for

pytestmark = pytest.mark.asyncio(loop_scope="session")

OBSERVE = {"mode": "observe"}
HELD = 200
JSON = {"content-type": "application/json", ":path": "/v1/chat/completions"}
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'


def of_id(name: str, **facts: Any) -> Request:
    """With Envoy's request id."""
    made = request(headers={"x-request-id": name}, **facts)
    made.attributes["envoy.filters.http.ext_proc"].fields["request.id"].string_value = name
    return made


def passes(answer: Response) -> bool:
    """Whether the answer lets a request go as it came: nothing set, a client's copies of our headers taken out."""
    mutation = answer.request_headers.response.header_mutation
    return (
        answer.WhichOneof("response") == "request_headers"
        and not mutation.set_headers
        and set(mutation.remove_headers) == set(OURS)
        and not answer.HasField("dynamic_metadata")
    )


def foreseen(edge: Edge) -> list[str]:
    return [outcome for _, _, outcome, _, _ in edge.recorder.foreseen]


# -- observe --------------------------------------------------------------------------------------


async def test_requests_pass_at_once_and_their_turn_is_found_out(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    first, second = envoy.stream(), envoy.stream()
    assert passes(await first.ask(request()))
    assert passes(await second.ask(request()))  # there is one slot, and it would wait
    assert (edge.held, edge.inside, edge.observer.scheduler.queued, edge.observer.passing) == (0, 0, 1, 2)
    assert foreseen(edge) == ["released_at_once"]
    assert (await first.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await first.end() is grpc.StatusCode.OK
    await until(lambda: foreseen(edge) == ["released_at_once", "released_later"])
    assert await second.end() is grpc.StatusCode.OK
    await until(lambda: edge.observer.passing == 0)
    edge.check_empty()
    assert edge.recorder.decided == []
    assert edge.recorder.count("passed", "observe") == 2


async def test_clients_that_leave_close_the_books(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    streams = [envoy.stream() for _ in range(3)]
    for stream in streams:
        await stream.ask(request())
    for stream in streams[1:]:
        stream.cancel()
    await until(lambda: edge.observer.passing == 1)
    await until(lambda: foreseen(edge) == ["released_at_once", "ended_first", "ended_first"])
    assert edge.recorder.count("cancelled") == 0
    streams[0].cancel()
    await until(lambda: edge.observer.passing == 0)
    edge.check_empty()


async def test_the_log_tells_the_tokens_by_the_request_id(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    stream = envoy.stream()
    await stream.ask(of_id("r-1"))
    (ticket,) = edge.observer.scheduler.requests
    assert ticket.split("-")[1] == "sim~"
    assert edge.gate.owner(ticket) is edge.observer
    entry = an_entry(None, prompt_tokens=10, completion_tokens=5)
    entry.request.request_id = "r-1"
    await envoy.access_log().write(log_message(entry))
    await until(lambda: edge.recorder.count("access_log", "matched_by_id") == 1)
    await stream.end()
    assert edge.observer.scheduler.requests == {}  # settled, and so forgotten with its end
    assert edge.recorder.count("choice_ignored") == 0
    assert edge.recorder.decided == []


async def test_strict_the_holding_stream_ends_and_the_second_is_found_by_the_request_id(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    holding = envoy.stream("hold")
    assert passes(await holding.ask(of_id("r-1")))
    assert await holding.read() is None
    assert await holding.code() is grpc.StatusCode.OK
    other = envoy.stream("track")
    await other.ask(of_id("r-2"))
    tracking = envoy.stream("track")
    await tracking.ask(of_id("r-1"))
    assert len(edge.tracking) == 0
    await other.end()
    assert edge.observer.passing == 1
    await tracking.end()
    await until(lambda: edge.observer.passing == 0)
    assert edge.recorder.count("untracked") == 0
    edge.check_empty()


async def test_strict_without_a_second_stream_the_books_close_and_nobody_is_blamed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module, "_CLAIM_S", 0.02)
    edge, envoy = await start(pool=OBSERVE)
    await envoy.stream("hold").ask(request())
    await until(lambda: edge.observer.passing == 0)
    assert edge.recorder.count("untracked") == 0


async def test_a_request_id_does_not_open_what_was_released(start: Start) -> None:
    """A client may choose its id; a stream is followed by another's id only where nothing was held."""
    edge, envoy = await start()
    await envoy.stream("hold").ask(of_id("r-1"))
    stream = envoy.stream("track")
    await stream.ask(of_id("r-1"))
    assert len(edge.tracking) == 1
    assert edge.recorder.count("passed", "untracked") == 1
    edge.tracking.close()


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_body_that_comes_here_goes_on_as_it_came(start: Start, mode: str) -> None:
    """No priority in it, no other name of the model, no wish for a token count."""
    edge, envoy = await start(
        pool={**OBSERVE, "priority_via": "body", "models": ["m2"], "aliases": {"m": "m2"}},
        requests={"include_usage": "inject"},
    )
    stream = envoy.stream()
    await stream.send(wired(request(None, headers=JSON), mode))
    if mode == "BUFFERED":
        await stream.answer()
        answer = await stream.ask(body("request_body", BODY, end=True))
        assert not answer.request_body.response.HasField("body_mutation")
        assert not answer.request_body.response.HasField("header_mutation")
    else:
        assert passes(await stream.ask(body("request_body", BODY, end=True)))
        answer = await stream.answer()
        assert answer.request_body.response.body_mutation.streamed_response.body == BODY
    assert foreseen(edge) == ["released_at_once"]
    await stream.end()
    edge.check_empty()


async def test_a_fault_of_the_observer_does_not_touch_the_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, envoy = await start(pool=OBSERVE, on_fault="reject")
    monkeypatch.setattr(edge.observer.scheduler, "apply", lambda *_: 1 / 0)
    stream = envoy.stream()
    assert passes(await stream.ask(request()))
    assert await stream.end() is grpc.StatusCode.OK
    await until(lambda: edge.observer.passing == 0)
    assert edge.recorder.count("fault", "observer") >= 1
    assert edge.recorder.count("fault", "stream") == 0


LIMITS = {"max_body": "1KiB", "max_buffered": "2KiB", "malformed": "reject", "unknown_model": "reject"}


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_refused_where_nothing_is_enforced(start: Start, mode: str) -> None:
    edge, envoy = await start(pool={"mode": mode}, requests=LIMITS)
    for made in (request(size=5000), request(None, error="x"), request("unknown")):
        stream = envoy.stream()
        assert passes(await stream.ask(made))
        await stream.end()
    assert edge.recorder.count("refused") == 0
    would_be = ["body_too_large", "invalid_request_error"] if mode == "observe" else []
    assert foreseen(edge) == would_be


@pytest.mark.parametrize("size", [1100, 3000])  # more than a body may have; more than there is room for
async def test_a_body_that_is_too_large_to_be_read_goes_on_piece_by_piece(start: Start, size: int) -> None:
    edge, envoy = await start(pool=OBSERVE, requests=LIMITS)
    stream = envoy.stream()
    await stream.send(wired(request(None, headers=JSON), "FULL_DUPLEX_STREAMED"))
    await stream.send(body("request_body", b"a" * 500), body("request_body", b"b" * (size - 500)))
    assert passes(await stream.answer())
    answers = [await stream.answer(), await stream.ask(body("request_body", b"c", end=True))]
    pieces = [each.request_body.response.body_mutation.streamed_response for each in answers]
    assert [piece.body for piece in pieces] == [b"a" * 500 + b"b" * (size - 500), b"c"]
    assert [piece.end_of_stream for piece in pieces] == [False, True]
    await stream.end()
    assert edge.processor._limits.buffer.used == 0
    assert edge.recorder.told == [("passed", "unread")]


async def test_what_another_pool_enforces_is_refused_where_the_pool_is_not_known(start: Start) -> None:
    other = {"name": "other", "models": ["n"], "endpoints": ["10.0.0.9:8000"]}
    edge, envoy = await start(pool=OBSERVE, more_pools=[other], requests=LIMITS)
    assert Immediate.of(await envoy.stream().ask(request("unknown"))).status == 404
    assert Immediate.of(await envoy.stream().ask(request("n", size=5000))).status == 413
    assert passes(await envoy.stream().ask(request("m", size=5000)))
    assert foreseen(edge) == ["body_too_large"]


# -- off, and percentages -------------------------------------------------------------------------


async def test_off_requests_pass_and_nothing_is_known_of_them(start: Start) -> None:
    edge, envoy = await start(pool={"mode": "off"})
    for _ in range(3):
        assert passes(await envoy.stream().ask(request()))
    assert edge.driver.observer is None
    assert edge.recorder.told == [("passed", "off")] * 3
    assert not edge.driver.busy


async def test_a_percentage_holds_some_tenants_and_lets_the_others_pass(start: Start) -> None:
    edge, envoy = await start(pool={"percentage": 50})
    tenants = [f"t{n}" for n in range(20)]
    pool = edge.config.pools[0]
    inside = [tenant for tenant in tenants if mode_for(pool, tenant, "") == "enforce"]
    assert 0 < len(inside) < 20
    for tenant in tenants:
        stream = envoy.stream()
        await stream.send(request(headers={"x-tenant": tenant}))
        if tenant not in inside:
            assert passes(await stream.answer())
    await until(lambda: edge.held == len(inside) - 1)
    assert edge.observer.passing == 20 - len(inside)


# -- taking back ----------------------------------------------------------------------------------


async def test_an_operator_takes_back_what_is_held_and_what_was_released(start: Start) -> None:
    """In a pool of which nothing is preemptible."""
    edge, envoy = await start()
    first, ticket = await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    (waiting,) = (r.id for r in edge.driver.scheduler.requests.values() if r.state is State.QUEUED)
    edge.driver.cancel(waiting, "taken back by op")
    answer = Immediate.of(await held.answer())
    assert (answer.status, answer.error["code"], answer.error["message"]) == (503, "cancelled", "taken back by op")
    edge.driver.cancel(ticket, "taken back by op")
    assert Immediate.of(await first.answer()).error["code"] == "cancelled"
    edge.driver.cancel("unknown", "x")
    await first.end()
    await until(lambda: edge.inside == 0)
    assert not edge.driver._evict
    assert not edge.driver._evicted


async def test_what_passes_cannot_be_taken_back(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    stream = envoy.stream()
    await stream.ask(request())
    (name,) = edge.observer.scheduler.requests
    edge.driver.cancel(name, "x")
    edge.observer.cancel(name, "x")
    assert (await stream.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK


# -- switching under load -------------------------------------------------------------------------


async def hold(edge: Edge, envoy: Any, count: int = HELD) -> tuple[Stream, list[Stream]]:
    """One that was released, and `count` of 20 tenants that wait behind it."""
    first, _ = await envoy.released()
    streams = [envoy.stream() for _ in range(count)]
    for n, stream in enumerate(streams):
        await stream.send(request(headers={"x-tenant": f"t{n % 20}"}))
    await until(lambda: edge.held == count)
    return first, streams


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_what_is_held_passes_when_the_pool_does_not_enforce_any_more(start: Start, mode: str) -> None:
    edge, envoy = await start()
    first, streams = await hold(edge, envoy)
    edge.change(a_config(pool={"mode": mode}))
    assert edge.held == 0  # at once
    assert not edge.driver._waiters
    for stream in streams:
        assert passes(await stream.answer())
    assert edge.recorder.count("passed", "mode") == HELD
    assert edge.recorder.count("release") == 1
    assert edge.recorder.count("cancelled") == 0
    later = envoy.stream()
    assert passes(await later.ask(request()))
    for stream in (*streams, later, first):
        assert await stream.end() is grpc.StatusCode.OK  # and there was no second answer
    edge.check_empty()
    assert not edge.processor._held


async def test_what_passes_goes_on_when_the_pool_enforces(start: Start) -> None:
    edge, envoy = await start(pool=OBSERVE)
    passing = [envoy.stream() for _ in range(HELD)]
    for n, stream in enumerate(passing):
        assert passes(await stream.ask(request(headers={"x-tenant": f"t{n % 20}"})))
    edge.change(a_config())
    assert edge.observer.passing == HELD  # to their ends
    first, held = await hold(edge, envoy, 20)
    for stream in passing:
        assert await stream.end() is grpc.StatusCode.OK
    assert (edge.held, edge.inside) == (20, 1)
    assert len(foreseen(edge)) == HELD
    await first.end()
    await asyncio.gather(*map(goes, held))
    await until(lambda: edge.held == edge.inside == 0)
    assert edge.recorder.count("passed", "observe") == HELD
    assert edge.recorder.count("fault") == 0


async def goes(stream: Stream) -> None:
    """It gets its turn, and is over."""
    assert "x-fairlane-ticket" in headers_set(await stream.answer())
    assert await stream.end() is grpc.StatusCode.OK


async def test_those_in_the_percentage_stay(start: Start) -> None:
    edge, envoy = await start()
    first, streams = await hold(edge, envoy)
    config = a_config(pool={"percentage": 40})
    edge.change(config)
    stay = [n for n in range(HELD) if mode_for(config.pools[0], f"t{n % 20}", "") == "enforce"]
    assert 0 < len(stay) < HELD
    assert edge.held == len(stay)
    for n, stream in enumerate(streams):
        if n not in stay:
            assert passes(await stream.answer())
            assert await stream.end() is grpc.StatusCode.OK
    edge.change(a_config())  # and back
    assert edge.held == len(stay)
    await first.end()
    await asyncio.gather(*(goes(streams[n]) for n in stay))
    await until(lambda: edge.held == edge.inside == 0)
    assert edge.recorder.count("release") == 1 + len(stay)
    assert edge.recorder.count("cancelled") == 0


@pytest.mark.parametrize("turns", range(6))
async def test_clients_that_leave_at_the_same_moment_are_counted_once(turns: int) -> None:
    """Every second one leaves, and the mode changes so many turns of the loop later."""
    edge = Edge(a_config())
    contexts = [Context(request(headers={"x-tenant": f"t{n}"}), ends=False) for n in range(51)]
    tasks = [asyncio.ensure_future(edge.processor.process(None, each)) for each in contexts]
    await until(lambda: edge.held == 50)
    (first,) = (n for n, each in enumerate(contexts) if each.written)
    leaving = [n for n in range(51) if n != first][::2]
    for kind, n in zip(itertools.cycle(("end", "cancel")), leaving, strict=False):
        if kind == "end":
            contexts[n].end()
        else:
            tasks[n].cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    edge.change(a_config(pool=OBSERVE))
    staying = [each for n, each in enumerate(contexts) if n not in leaving and n != first]
    await until(lambda: all(each.written for each in staying))
    assert all(passes(each.written[0]) and len(each.written) == 1 for each in staying)
    for each in contexts:
        each.end()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert edge.recorder.count("passed", "mode") + edge.recorder.count("cancelled") == 50
    assert edge.recorder.count("passed", "mode") >= 25
    assert edge.recorder.count("release") + edge.recorder.count("passed", "mode") >= 26
    assert edge.recorder.count("fault") == 0
    edge.check_empty()
    assert not edge.processor._held
    edge.close()


@pytest.mark.slow
async def test_back_and_forth_under_load_nothing_is_lost(start: Start) -> None:
    """Each request gets one answer, whatever the mode is when it comes and while it waits."""
    edge, envoy = await start(slots=4)
    modes = itertools.cycle(["observe", "enforce", "off", "enforce"])

    async def one(n: int) -> None:
        stream = envoy.stream()
        answer = await stream.ask(request(headers={"x-tenant": f"t{n % 7}"}))
        assert passes(answer) or "x-fairlane-ticket" in headers_set(answer)
        await asyncio.sleep(0)
        assert await stream.end() is grpc.StatusCode.OK

    async def switch() -> None:
        while True:
            edge.change(a_config(slots=4, pool={"mode": next(modes)}))
            edge.check()
            await asyncio.sleep(0.002)

    switching = asyncio.ensure_future(switch())
    async with asyncio.TaskGroup() as group:
        for n in range(400):
            group.create_task(one(n))
    switching.cancel()
    edge.change(a_config(slots=4))
    await until(lambda: not edge.inside)
    told = edge.recorder
    assert told.count("release") + sum(told.count("passed", why) for why in ("observe", "off", "mode")) == 400
    assert told.count("cancelled") == told.count("fault") == told.count("refused") == 0
    edge.check_empty()


async def test_an_observer_s_place_is_told_apart(start: Start) -> None:
    edge, _ = await start(pool=OBSERVE)
    assert isinstance(edge.observer, Observer)
    assert edge.gate.owner(f"{edge.gate._process}-sim-1") is edge.driver
    assert edge.gate.owner(f"{edge.gate._process}-sim~-1") is edge.observer
    edge.change(a_config())
    assert edge.gate.owner(f"{edge.gate._process}-sim~-1") is None
