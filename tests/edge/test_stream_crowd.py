"""More streams than there may be: who is refused, who is let go, and what a stream keeps while it waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from typing import Any

import grpc
import pytest
from envoy_by_messages import (
    ATTRIBUTES,
    Immediate,
    Request,
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

from extproc.edge import access_log as access_log_module
from extproc.edge import exchange as exchange_module
from extproc.edge import facts as facts_module
from extproc.edge import usage as usage_module
from extproc.edge.facts import Facts

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST = 6
OTHER = {":path": "/v1/models", ":method": "GET"}


def few(**more: Any) -> dict[str, Any]:
    return {"requests": {"max_streams": MOST, **more.pop("requests", {})}, **more}


async def ask(stream: Stream, first: Request) -> Any:
    """The answer of a stream that may be over as soon as it is given; None: there is none."""
    reading = asyncio.ensure_future(stream.read())  # before the end: grpc.aio reads nothing after it
    with contextlib.suppress(asyncio.InvalidStateError):
        await stream.send(first)
    return await reading


def refused(answer: Any) -> Immediate:
    immediate = Immediate.of(answer)
    assert (immediate.status, immediate.error["code"]) == (429, "queue_full")
    assert f"may be {MOST} (requests.max_streams)" in immediate.error["message"]
    assert immediate.headers["retry-after"] == "1"
    return immediate


async def test_beyond_the_most_a_request_is_refused_and_afterwards_not(start: Start) -> None:
    """To end its stream instead would let it pass by the queue where Envoy fails open."""
    edge, envoy = await start(**few())
    held = [envoy.stream() for _ in range(MOST)]
    for stream in held:
        await stream.send(request())
    await until(lambda: edge.processor.open == MOST and edge.held == MOST - 1)
    late = envoy.stream()
    refused(await late.ask(request()))
    assert await late.end() is grpc.StatusCode.OK
    assert edge.recorder.count("refused", "queue_full") == 1
    held[-1].cancel()
    await until(lambda: edge.processor.open == MOST - 1)
    await envoy.stream().send(request())
    await until(lambda: edge.held == MOST - 1)


async def test_it_can_be_changed_while_they_wait(start: Start) -> None:
    edge, envoy = await start(**few())
    for _ in range(MOST):
        await envoy.stream().send(request())
    await until(lambda: edge.processor.open == MOST)
    edge.change(a_config(requests={"max_streams": MOST + 1}))
    await envoy.stream().send(request())
    await until(lambda: edge.held == MOST)
    edge.change(a_config(requests={"max_streams": MOST}))
    refused(await envoy.stream().ask(request()))
    assert edge.held == MOST  # nobody who waits already is refused


@pytest.mark.parametrize("first", [request(headers=OTHER), request("unknown")], ids=["not queued", "unknown model"])
async def test_what_only_passes_takes_half_of_them_at_most(start: Start, first: Request) -> None:
    edge, envoy = await start(**few())
    streams: list[Stream] = []
    for _ in range(3 * MOST):
        streams.append(envoy.stream())
        answer = await ask(streams[-1], first)
        assert answer is not None and answer.WhichOneof("response") == "request_headers"
    assert [await stream.code() for stream in streams[MOST // 2 :]] == [grpc.StatusCode.OK] * (3 * MOST - MOST // 2)
    assert edge.processor.open == MOST // 2
    queued, _ = await envoy.released()
    assert edge.inside == 1
    await queued.end()


async def test_a_body_that_comes_by_is_given_back_all_the_same(start: Start) -> None:
    _, envoy = await start(**few(requests={"max_streams": 1}))
    stream = envoy.stream()
    await stream.send(wired(request(headers={**OTHER, ":method": "POST"}), "FULL_DUPLEX_STREAMED"))
    assert (await stream.answer()).WhichOneof("response") == "request_headers"
    answer = await stream.ask(body("request_body", b"whole", end=True))
    assert answer.request_body.response.body_mutation.streamed_response.body == b"whole"
    await stream.end()


async def test_what_is_observed_passes_unobserved(start: Start) -> None:
    edge, envoy = await start(**few(pool={"mode": "observe"}))
    for _ in range(2 * MOST):
        assert await ask(envoy.stream(), request()) is not None
    assert edge.recorder.count("passed", "observe") == 2 * MOST
    assert edge.observer.passing == edge.processor.open == MOST // 2
    assert edge.recorder.count("refused") == 0


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_no_body_is_asked_for_that_would_be_refused(start: Start, mode: str) -> None:
    edge, envoy = await start(**few())
    for _ in range(MOST):
        await envoy.stream().send(request())
    await until(lambda: edge.processor.open == MOST)
    refused(await envoy.stream().ask(wired(request(None), mode)))


async def test_streams_that_follow_nothing_are_let_go(start: Start) -> None:
    """In profile strict each request has a second stream, also one that was never held."""
    edge, envoy = await start(**few())
    streams: list[Stream] = []
    for _ in range(2 * MOST):
        streams.append(envoy.stream("track"))
        assert await ask(streams[-1], request(headers={"x-fairlane-ticket": "another-sim-1"})) is not None
    assert [await stream.code() for stream in streams[MOST // 2 :]] == [grpc.StatusCode.OK] * (2 * MOST - MOST // 2)
    assert edge.processor.open == MOST // 2


async def test_streams_that_begin_in_the_middle_are_bounded_too(start: Start) -> None:
    edge, envoy = await start(**few())
    streams: list[Stream] = []
    for number in range(2 * MOST):
        streams.append(envoy.stream())
        assert (await ask(streams[-1], message("response_headers")) is None) == (number >= MOST)
    assert [await stream.code() for stream in streams[MOST:]] == [grpc.StatusCode.OK] * MOST
    assert edge.processor.open == MOST


async def test_of_the_silent_ones_the_oldest_makes_room(start: Start) -> None:
    """Envoy sends such a one again; nobody else opens a stream and says nothing."""
    edge, envoy = await start(**few())
    silent: list[Stream] = []
    for number in range(MOST + 1):
        silent.append(envoy.stream())
        await silent[-1].send()
        await silent[-1].call.wait_for_connection()
        await until(lambda n=number: len(edge.processor._silence._due) == min(n + 1, MOST))
    assert await silent[0].code() is grpc.StatusCode.UNAVAILABLE
    assert "requests.max_streams" in await silent[0].call.details()
    answer = await silent[1].ask(request())  # the others may speak still
    assert "x-vllm-priority" in headers_set(answer)


@pytest.mark.slow
async def test_a_held_request_keeps_nothing_of_its_headers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 KB of them, as many as Envoy takes, times some thousand that wait. They are in one block with the message and
    every part of it."""
    seen: list[Facts] = []

    def read(*args: Any) -> Facts:
        seen.append(facts_module_read(*args))
        return seen[-1]

    facts_module_read = facts_module.read
    monkeypatch.setattr(facts_module, "read", read)
    edge, envoy = await start()
    first, _ = await envoy.released()
    held = envoy.stream()
    await held.send(request(headers={"x-tenant": "t", "x-large": "x" * 50_000, "content-encoding": "gzip"}))
    await until(lambda: edge.held == 1)
    facts = seen[-1]
    assert not facts.metadata and not facts.attributes
    assert facts.headers == {"content-encoding": "gzip"}
    assert facts.compressed  # which the answer needs to know
    (exchange,) = edge.processor._held.values()
    assert exchange.opening is None
    gc.collect()
    kept = [each for each in _variables() if isinstance(each, Request | bytes) and _size(each) > 10_000]
    assert kept == []
    await first.end()
    assert headers_set(await held.answer())["x-fairlane-class"] == "default"


def _variables() -> list[Any]:
    """Of the edge's coroutines that wait."""
    frames = [each.cr_frame for each in gc.get_objects() if inspect.iscoroutine(each)]
    mine = [frame for frame in frames if frame is not None and "extproc/edge" in frame.f_code.co_filename]
    assert {"process", "_serve", "_queue"} <= {frame.f_code.co_name for frame in mine}
    return [value for frame in mine for value in frame.f_locals.values()]


def _size(each: Request | bytes) -> int:
    return len(each) if isinstance(each, bytes) else each.ByteSize()


async def test_a_request_id_that_is_too_long_is_none(start: Start) -> None:
    """A client chooses it, and it is remembered for ten seconds after its request."""
    edge, envoy = await start(slots=9)
    for length, known in ((256, 1), (257, 1), (60_000, 1)):
        asked = request()
        asked.attributes[ATTRIBUTES].update({"request.id": "r" * length})
        await envoy.stream().ask(asked)
        assert len(edge.gate.request_ids) == known
    assert {len(request_id) for _, request_id in edge.journal.came} == {0, 256}


async def test_messages_that_come_while_it_is_held_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "_MOST_EARLY", 3)
    edge, envoy = await start()
    await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    await held.send(*[body("request_body", b"x")] * 3)
    await until(lambda: [len(each.early) for each in edge.processor._held.values()] == [3])
    await held.send(body("request_body", b"x"))
    await until(lambda: edge.held == 0)
    edge.check()


async def test_streams_of_access_logs_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log_module, "_MOST_STREAMS", 2)
    edge, envoy = await start()
    logs = [envoy.access_log() for _ in range(2)]
    for log in logs:
        await log.write(log_message(an_entry("nobody-1")))
    await until(lambda: edge.access_log.open == 2)
    third = envoy.access_log()
    assert await third.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await logs[0].done_writing()
    await until(lambda: edge.access_log.open == 1)
    fourth = envoy.access_log()
    await fourth.write(log_message(an_entry("nobody-1")))
    await until(lambda: edge.recorder.count("access_log", "other_process") == 3)


async def test_an_address_of_the_log_that_is_no_address_is_not_remembered(start: Start) -> None:
    edge, envoy = await start()
    _, ticket = await envoy.released()
    entry = an_entry(ticket, prompt_tokens=1, completion_tokens=1)
    entry.common_properties.upstream_remote_address.socket_address.address = "1" * 100_000
    entry.common_properties.upstream_request_attempt_count = 1
    log = envoy.access_log()
    before = usage_module._spelt.cache_info().currsize
    await log.write(log_message(entry))
    await until(lambda: edge.recorder.count("settled") == 1)
    assert usage_module._spelt.cache_info().currsize == before
    assert edge.recorder.count("choice_ignored") == 0
