"""The way of a request over a real connection: what Envoy is told, when, and what is in the books afterwards."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from envoy_by_messages import ENGINE, Edge, Envoy, Immediate, Request, Start, headers_set, message, request, until

from extproc.core.events import Arrive, Release
from extproc.edge import driver as driver_module
from extproc.edge import gate as gate_module
from extproc.edge.driver import Interrupted

pytestmark = pytest.mark.asyncio(loop_scope="session")

OURS = {
    "x-vllm-priority",
    "x-fairlane-ticket",
    "x-fairlane-class",
    "x-fairlane-queue-ms",
    "x-fairlane-endpoint",
    "x-fairlane-timing",
}


# -- released -------------------------------------------------------------------------------------


async def test_a_request_that_finds_room_is_let_go_at_once(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    answer = await stream.ask(request(headers={"x-tenant": "team-a"}))
    release = edge.recorder.decided[0]
    assert isinstance(release, Release)
    headers = headers_set(answer)
    assert headers.pop("x-fairlane-timing").startswith("queue;dur=0.")
    assert headers == {
        "x-vllm-priority": "1000",
        "x-fairlane-ticket": release.id,
        "x-fairlane-class": "default",
        "x-fairlane-queue-ms": "0",
        "x-fairlane-endpoint": ENGINE,
    }
    assert answer.dynamic_metadata.fields["fairlane.endpoint"].struct_value["address"] == ENGINE
    assert (release.tenant, edge.inside, edge.held) == ("team-a", 1, 0)
    assert await stream.end() is grpc.StatusCode.OK
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim")]


async def test_the_class_and_what_the_tenant_has_inside_make_the_priority(start: Start) -> None:
    _, envoy = await start(slots=3)
    seen = []
    for cls in ("default", "default", "urgent"):
        answer = await envoy.stream().ask(request(headers={"x-tenant": "a", "x-class": cls}))
        seen.append((headers_set(answer)["x-vllm-priority"], headers_set(answer)["x-fairlane-class"]))
    assert seen == [("1000", "default"), ("1001", "default"), ("2", "urgent")]


async def test_the_wait_is_told_in_whole_milliseconds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    second = envoy.stream()
    await second.send(request())
    await until(lambda: edge.held == 1)
    clock = edge.driver.now
    monkeypatch.setattr(driver_module.PoolDriver, "now", staticmethod(lambda: clock() + 20.0))
    await first.end()
    told = int(headers_set(await second.answer())["x-fairlane-queue-ms"])
    assert 20_000 <= told < 40_000
    assert told == round(edge.recorder.decided[-1].waited_s * 1000)  # type: ignore[union-attr]


async def test_several_choices_take_as_many_slots(start: Start) -> None:
    edge, envoy = await start(slots=4)
    await envoy.released(n=4)
    assert edge.driver.scheduler.classes[1].queue.in_flight == 4
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)


async def test_the_stream_stays_open_and_its_trailers_are_answered(start: Start) -> None:
    edge, envoy = await start()
    stream, _ = await envoy.released()
    answer = await stream.ask(message("response_trailers"))
    assert answer.WhichOneof("response") == "response_trailers"
    assert not answer.response_trailers.HasField("header_mutation")
    assert edge.inside == 1  # trailers are not the end
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.inside == 0


# -- held -----------------------------------------------------------------------------------------


async def test_a_held_request_hears_nothing_until_its_turn(start: Start) -> None:
    """Silence is what lets Envoy replay it. A later answer on the same connection shows that none is under way."""
    edge, envoy = await start()
    first, _ = await envoy.released()
    second = envoy.stream()
    await second.send(request())
    await until(lambda: edge.held == 1)
    reading = asyncio.ensure_future(second.read())
    opening = asyncio.ensure_future(second.call.initial_metadata())
    await first.ask(message("response_trailers"))
    assert not reading.done()
    assert not opening.done()  # not even the answer's head
    await first.end()
    answer = await reading
    assert answer is not None
    assert headers_set(answer)["x-fairlane-endpoint"] == ENGINE
    assert await second.end() is grpc.StatusCode.OK
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim"), ("release", "sim")]


@pytest.mark.parametrize("how", ["eof", "cancel"])
async def test_a_client_that_leaves_while_held_frees_its_place(start: Start, how: str) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    second, third = envoy.stream(), envoy.stream()
    await second.send(request())
    await until(lambda: edge.held == 1)
    await third.send(request())
    await until(lambda: edge.held == 2)
    if how == "eof":
        await second.end()
    else:
        second.cancel()
    await until(lambda: edge.held == 1)
    edge.check()
    assert edge.recorder.told == [("release", "sim"), ("cancelled", "sim")]
    await first.end()
    await third.answer()
    await third.end()
    edge.check_empty()
    assert edge.recorder.count("release") == 2


@pytest.mark.parametrize("how", ["eof", "cancel"])
async def test_a_client_that_leaves_mid_answer_frees_its_slot(start: Start, how: str) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    second = envoy.stream()
    await second.send(request())
    await until(lambda: edge.held == 1)
    if how == "eof":
        await first.end()
    else:
        first.cancel()
    await second.answer()
    await second.end()
    edge.check_empty()
    assert edge.recorder.count("cancelled") == 0


async def test_a_message_while_held_means_that_envoy_has_answered(start: Start) -> None:
    """Envoy's own reply (too large, timed out) comes as response headers, where they are sent to us."""
    edge, envoy = await start()
    await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    answer = await held.ask(message("response_headers"))
    assert answer.WhichOneof("response") == "response_headers"  # Envoy waits for it
    assert edge.held == 0
    assert await held.end() is grpc.StatusCode.OK
    assert edge.recorder.count("cancelled") == 1


async def test_the_replay_of_a_request_takes_its_old_place(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, envoy = await start()
    now = datetime.now(UTC)
    offset = now.timestamp() - edge.driver.now()
    # a wall clock that is not set while the test runs
    monkeypatch.setattr(gate_module.time, "time", lambda: edge.driver.now() + offset)
    first, _ = await envoy.released(at=now.isoformat())
    young, old = envoy.stream(), envoy.stream()
    await young.send(request(headers={"x-tenant": "a"}, at=(now - timedelta(seconds=5)).isoformat()))
    await until(lambda: edge.held == 1)
    await old.send(request(headers={"x-tenant": "a"}, at=(now - timedelta(seconds=30)).isoformat()))
    await until(lambda: edge.held == 2)
    arrivals = sorted(r.arrival for r in edge.driver.scheduler.requests.values() if r.tenant == "a")
    assert arrivals[1] - arrivals[0] == pytest.approx(25.0, abs=0.01)
    await first.end()
    waited = int(headers_set(await old.answer())["x-fairlane-queue-ms"])  # it goes first, though it came last
    assert 30_000 <= waited < 50_000
    await old.end()
    waited = int(headers_set(await young.answer())["x-fairlane-queue-ms"])
    assert 5_000 <= waited < 25_000


# -- refused --------------------------------------------------------------------------------------


async def test_a_full_queue_is_told_with_its_limit(start: Start) -> None:
    edge, envoy = await start(tenants={"*": {"max_queued": 1}})
    await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    refused = envoy.stream()
    answer = Immediate.of(await refused.ask(request()))
    assert answer.status == 429
    assert answer.error == {
        "message": "tenant 'anonymous' has 1 requests waiting, and may have 1 (max_queued of the tenant)",
        "type": "rate_limit_error",
        "param": None,
        "code": "tenant_limit",
    }
    assert answer.headers.pop("retry-after").isdigit()
    assert answer.headers == {"content-type": "application/json", "x-fairlane-reason": "tenant_limit"}
    assert answer.details == "fairlane_tenant_limit"
    assert await refused.read() is None
    assert await refused.code() is grpc.StatusCode.OK
    assert edge.held == 1
    assert edge.recorder.told == [("release", "sim"), ("refuse", "sim")]


async def test_a_request_that_waits_too_long_is_answered_by_the_timer(start: Start) -> None:
    impatient = {"rank": 1, "priority": 0, "max_waiting": 0, "queue_timeout": "30ms"}
    edge, envoy = await start(classes={"default": impatient})
    first, _ = await envoy.released(headers={"x-class": "urgent"})
    answer = Immediate.of(await envoy.stream().ask(request()))
    assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
    assert "class 'default' allows 0.03 s" in answer.error["message"]
    assert edge.recorder.told == [("release", "sim"), ("refuse", "sim")]
    await first.end()
    edge.check_empty()


@pytest.mark.parametrize(
    ("rules", "sent", "status", "code", "param", "words"),
    [
        ({"max_body": "1KiB"}, request(size=1025), 413, "body_too_large", None, "1025 bytes, and may have 1024"),
        ({"malformed": "reject"}, request(None), 400, "invalid_request_error", "model", "names a model"),
        ({"malformed": "reject"}, request(error=True), 400, "invalid_request_error", None, "the body is not JSON"),
        ({"malformed": "reject"}, request(7), 400, "invalid_request_error", "model", "`model` is not a string"),
        ({"malformed": "reject"}, request(""), 400, "invalid_request_error", "model", "`model` is empty"),
        ({"unknown_model": "reject"}, request("gpt-9"), 404, "model_not_found", "model", "'gpt-9' is not served here"),
    ],
)
async def test_what_can_never_be_served_is_denied_at_once(
    start: Start, rules: dict[str, Any], sent: Request, status: int, code: str, param: str | None, words: str
) -> None:
    edge, envoy = await start(requests=rules)
    stream = envoy.stream()
    answer = Immediate.of(await stream.ask(sent))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
    assert answer.error["type"] == "invalid_request_error"
    assert words in answer.error["message"]
    assert "retry-after" not in answer.headers  # it would not help
    assert await stream.read() is None
    assert await stream.code() is grpc.StatusCode.OK
    assert edge.recorder.told == [("refused", code)]
    edge.check_empty()


async def test_a_body_of_just_the_limit_is_served(start: Start) -> None:
    _, envoy = await start(requests={"max_body": "1KiB"})
    await envoy.released(size=1024)


# -- passed ---------------------------------------------------------------------------------------


async def test_a_model_that_nobody_serves_passes_without_our_headers(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    answer = await stream.ask(request("another", headers={"x-vllm-priority": "-5"}))
    assert headers_set(answer) == {}
    assert set(answer.request_headers.response.header_mutation.remove_headers) == OURS  # a client's own
    assert not answer.HasField("dynamic_metadata")
    assert (await stream.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "unknown_model")]
    edge.check_empty()


async def test_a_request_without_a_model_takes_its_turn_in_the_only_pool(start: Start) -> None:
    edge, envoy = await start()
    await envoy.released(None)
    assert edge.inside == 1


async def test_a_request_without_a_model_passes_where_pools_are_several(start: Start) -> None:
    edge, envoy = await start(more_pools=[{"name": "other", "models": ["o"], "endpoints": ["10.0.0.2:8000"]}])
    await envoy.stream().ask(request(None))
    assert edge.recorder.told == [("passed", "not_placed")]


@pytest.mark.parametrize(
    "kind", ["response_headers", "request_body", "response_body", "request_trailers", "response_trailers"]
)
async def test_a_stream_that_begins_elsewhere_is_answered_and_not_scheduled(start: Start, kind: str) -> None:
    """A wiring that skips the request headers: every message gets an answer of its kind, none gets a place."""
    edge, envoy = await start()
    stream = envoy.stream()
    assert (await stream.ask(message(kind))).WhichOneof("response") == kind
    assert (await stream.ask(message("response_body"))).WhichOneof("response") == "response_body"
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "not_placed")]


async def test_a_kind_of_message_that_is_not_known_gets_no_answer(start: Start) -> None:
    """An answer of the wrong kind would be an error to Envoy."""
    edge, envoy = await start()
    stream = envoy.stream()
    unknown = b"\xa2\x06\x00"  # field 100, empty
    await stream.send(unknown)
    answer = await stream.ask(message("response_trailers"))
    assert answer.WhichOneof("response") == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "not_placed")]


async def test_a_stream_that_says_nothing_leaves_nothing(start: Start) -> None:
    edge, envoy = await start()
    assert await envoy.stream().end() is grpc.StatusCode.OK
    gone = envoy.stream()
    await gone.call.wait_for_connection()
    gone.cancel()
    await envoy.released()
    assert edge.recorder.told == [("release", "sim")]


# -- faults ---------------------------------------------------------------------------------------


async def test_bytes_that_are_no_message_pass_and_are_counted(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    answer = await stream.ask(b"\xff\xff\xff")
    assert answer.WhichOneof("response") == "request_headers"
    assert headers_set(answer) == {}
    assert await stream.read() is None
    assert await stream.code() is grpc.StatusCode.OK
    assert edge.recorder.told == [("fault", "stream"), ("passed", "fault")]


async def test_bytes_that_are_no_message_after_the_answer_end_the_stream(start: Start) -> None:
    edge, envoy = await start()
    stream, _ = await envoy.released()
    await stream.send(b"\xff\xff\xff")
    assert await stream.read() is None  # and not a second answer
    assert await stream.code() is grpc.StatusCode.OK
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim"), ("fault", "stream")]


async def test_bytes_that_are_no_message_after_an_answer_in_another_phase(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(message("response_headers"))
    await stream.send(b"\xff\xff\xff")
    assert await stream.read() is None
    assert edge.recorder.told == [("passed", "not_placed"), ("fault", "stream")]


def break_the_scheduler(edge: Edge, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Arrivals fail, before the scheduler has seen them or when it is done with them."""
    real = edge.driver.scheduler.apply

    def apply(event: Any, now: float) -> Any:
        if not isinstance(event, Arrive):
            return real(event, now)
        if after:
            real(event, now)
        raise RuntimeError("planted")

    monkeypatch.setattr(edge.driver.scheduler, "apply", apply)


@pytest.mark.parametrize("after", [False, True])
async def test_a_fault_of_ours_lets_the_request_pass(
    start: Start, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    edge, envoy = await start()
    break_the_scheduler(edge, monkeypatch, after=after)
    answer = await envoy.stream().ask(request())
    assert answer.WhichOneof("response") == "request_headers"
    assert set(answer.request_headers.response.header_mutation.remove_headers) == OURS
    assert headers_set(answer) == {}
    await until(lambda: edge.inside == 0)
    assert edge.recorder.told == [("fault", "stream"), ("passed", "fault")]
    edge.check_empty()


async def test_a_fault_of_ours_is_refused_with_on_fault_reject(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, envoy = await start(on_fault="reject")
    break_the_scheduler(edge, monkeypatch, after=False)
    answer = Immediate.of(await envoy.stream().ask(request()))
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "fault", "1")
    assert "planted" not in answer.error["message"]  # what broke is for the log, not for clients
    assert edge.recorder.told == [("fault", "stream"), ("refused", "fault")]
    edge.check_empty()


async def test_a_fault_while_others_fill_the_engine_leaves_no_place_behind(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler had queued it already: that its client left is not what happened."""
    edge, envoy = await start()
    await envoy.released()
    break_the_scheduler(edge, monkeypatch, after=True)
    await envoy.stream().ask(request())
    await until(lambda: edge.held == 0)
    assert edge.recorder.told == [("release", "sim"), ("fault", "stream"), ("passed", "fault")]
    edge.check()


async def test_a_fault_that_loses_a_verdict_does_not_hold_its_request_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of one releases the next, and fails after the scheduler has moved it: nobody would tell it."""
    edge, envoy = await start(on_fault="reject")
    first, _ = await envoy.released()
    second, third = envoy.stream(), envoy.stream()
    for number, stream in enumerate((second, third), 1):
        await stream.send(request())
        await until(lambda number=number: edge.held == number)  # type: ignore[misc]
    real, faults = edge.driver.scheduler.drain.count, iter([ZeroDivisionError("planted")])

    def count(now: float, cost: float) -> None:
        for fault in faults:
            raise fault
        real(now, cost)

    monkeypatch.setattr(edge.driver.scheduler.drain, "count", count)
    await first.end()
    answer = Immediate.of(await second.answer())
    assert (answer.status, answer.error["code"]) == (503, "fault")
    assert headers_set(await third.answer())["x-fairlane-endpoint"] == ENGINE  # by the end of the second
    await third.end()
    edge.check_empty()
    told = [("fault", "scheduler"), ("fault", "stream"), ("refused", "fault")]
    assert edge.recorder.told == [("release", "sim"), *told, ("release", "sim")]


# -- hand over ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_hand_over_lets_go_of_what_is_held_and_of_nothing_else(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    held = [envoy.stream() for _ in range(3)]
    for number, stream in enumerate(held, 1):
        await stream.send(request())
        await until(lambda number=number: edge.held == number)  # type: ignore[misc]
    edge.processor.let_go(Interrupted.HANDED_OVER)
    for stream in held:
        assert await stream.read() is None  # nothing was written: Envoy may replay it
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    assert (edge.held, edge.inside) == (0, 1)
    assert (edge.recorder.count("handed_over"), edge.recorder.count("cancelled")) == (3, 0)
    assert (await first.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await first.end() is grpc.StatusCode.OK
    edge.check_empty()
    gc.collect()
    assert caplog.records == []  # no task whose failure nobody looked at


async def test_a_request_that_comes_after_the_hand_over_is_handed_over_too(start: Start) -> None:
    edge, envoy = await start()
    await envoy.released()
    edge.processor.let_go(Interrupted.HANDED_OVER)
    late = envoy.stream()
    await late.send(request())
    assert await late.read() is None
    assert await late.code() is grpc.StatusCode.UNAVAILABLE
    assert edge.held == 0


async def test_one_that_stands_by_gives_away_what_it_holds_and_serves_what_comes(start: Start) -> None:
    edge, envoy = await start()
    edge.processor.standby = True
    first, _ = await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    edge.processor.hand_over()
    assert await held.read() is None
    assert await held.code() is grpc.StatusCode.UNAVAILABLE
    late = envoy.stream()
    await late.send(request())
    await until(lambda: edge.held == 1)  # it waits as ever
    assert await first.end() is grpc.StatusCode.OK
    assert await late.read() is not None
    assert await late.end() is grpc.StatusCode.OK
    assert edge.processor.standby_streams == 3
    assert edge.recorder.count("handed_over") == 1
    edge.check_empty()


async def test_two_connections_share_one_queue(start: Start) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    other = Envoy(envoy.address)
    try:
        second = other.stream()
        await second.send(request())
        await until(lambda: edge.held == 1)
        await first.end()
        assert await second.read() is not None
        await second.end()
    finally:
        await other.close()
