"""Wirings that send bodies here: whole, in pieces, given back in pieces; and answers that are read as they pass."""

from __future__ import annotations

from typing import Any

import grpc
import orjson
import pytest
from envoy_by_messages import (
    ENGINE,
    Edge,
    Immediate,
    Request,
    Response,
    Start,
    Stream,
    body,
    headers_set,
    message,
    request,
    response_headers,
    until,
    wired,
)

from extproc.core.events import Settled
from extproc.core.model import Source
from extproc.core.view import view
from extproc.edge.driver import Interrupted

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"content-type": "application/json", ":path": "/v1/chat/completions"}
BODY = b'{"model": "m", "seed": 9007199254740993, "messages": [{"role": "user", "content": "hi"}]}\n'
EDITED = BODY.replace(b"]}", b'],"priority":1000}')
VIA_BODY = {"priority_via": "body"}
CHUNK = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def no_facts(mode: str, response: str = "NONE", **headers: str) -> Request:
    return wired(request(None, headers={**JSON, **headers}), mode, response)


def mutated(answer: Response, kind: str = "request_body") -> bytes:
    piece: bytes = getattr(answer, kind).response.body_mutation.body
    return piece


def set_by(answer: Response) -> dict[str, str]:
    mutation = getattr(answer, answer.WhichOneof("response")).response.header_mutation
    return {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}


def settled(edge: Edge) -> list[tuple[Source, float]]:
    return [(effect.source, effect.cost) for effect in edge.recorder.decided if isinstance(effect, Settled)]


# -- whole body, facts with the headers: held there ---------------------------------------------------


async def test_with_facts_it_is_held_at_the_headers_and_edited_at_the_body(start: Start) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    first, _ = await envoy.released()
    second = envoy.stream()
    await second.send(wired(request(headers=JSON), "BUFFERED"))
    await until(lambda: edge.held == 1)
    await first.end()
    answer = await second.answer()
    assert answer.WhichOneof("response") == "request_headers"
    assert "x-vllm-priority" not in headers_set(answer)
    assert "fairlane.body" not in answer.dynamic_metadata.fields  # it is edited here, not by Lua
    answer = await second.ask(body("request_body", BODY, end=True))
    assert mutated(answer) == EDITED
    assert set_by(answer) == {"content-length": str(len(EDITED))}
    assert await second.end() is grpc.StatusCode.OK
    assert edge.recorder.count("body_edit", "edited") == 1


@pytest.mark.parametrize("sent", [b"[1, 2]", b"not json", b"", b'"}"'])
async def test_what_is_no_object_goes_on_as_it_came(start: Start, sent: bytes) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "BUFFERED"))
    answer = await stream.ask(body("request_body", sent, end=True))
    assert not answer.request_body.response.HasField("body_mutation")
    await stream.end()
    assert edge.recorder.count("body_edit", "no_object") == 1


@pytest.mark.parametrize("mode", ["headers", "BUFFERED", "FULL_DUPLEX_STREAMED"])
@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-32"])
async def test_a_body_in_another_coding_cannot_bring_its_own_priority(start: Start, mode: str, coding: str) -> None:
    """Python's json reads UTF-16 and UTF-32, and so would the engine; nothing can be appended to it here."""
    edge, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    if mode == "headers":
        await stream.ask(wired(request(headers=JSON), "BUFFERED"))
    else:
        await stream.send(no_facts(mode))
        if mode == "BUFFERED":
            await stream.answer()
    wide = '{"model": "m", "priority": -9}'.encode(coding)
    answer = Immediate.of(await stream.ask(body("request_body", wide, end=True)))
    assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
    await stream.end()
    edge.check_empty()


@pytest.mark.parametrize("coding", ["gzip", "Identity", "x"])
@pytest.mark.parametrize("mode", ["headers", "BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_header_that_lies_changes_nothing(start: Start, mode: str, coding: str) -> None:
    """Engines do not look at it, so a client could bring its own priority that way."""
    edge, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    headers = {"content-encoding": coding}
    if mode == "headers":
        await stream.ask(wired(request(headers={**JSON, **headers}), "BUFFERED"))
    else:
        await stream.send(no_facts(mode, **headers))
    if mode == "FULL_DUPLEX_STREAMED":
        await stream.send(body("request_body", BODY, end=True))
        assert (await given_back(stream))[0] == EDITED
    else:
        if mode == "BUFFERED":
            await stream.answer()
        assert mutated(await stream.ask(body("request_body", BODY, end=True))) == EDITED
    await stream.end()
    assert edge.recorder.count("body_edit", "edited") == 1


async def test_one_tenant_s_bodies_leave_room_for_others(start: Start) -> None:
    edge, envoy = await start(requests={"max_body": "1KiB", "max_buffered": "2KiB"}, slots=9)
    greedy = {"x-tenant": "greedy"}
    kept, second, other = envoy.stream(), envoy.stream(), envoy.stream()
    await kept.send(no_facts("FULL_DUPLEX_STREAMED", **greedy), body("request_body", b"{" + b" " * 999))
    await until(lambda: edge.processor._limits.buffer.used == 1000)
    await second.send(no_facts("FULL_DUPLEX_STREAMED", **greedy))
    assert Immediate.of(await second.ask(body("request_body", BODY, end=True))).status == 429
    await other.send(no_facts("FULL_DUPLEX_STREAMED"), body("request_body", BODY, end=True))
    assert (await given_back(other))[0] == BODY
    await other.end()
    kept.cancel()
    await until(lambda: edge.processor._limits.buffer.used == 0 and not edge.processor._limits.buffer._of)


async def test_what_is_not_queued_passes_with_its_body(start: Start) -> None:
    """Its headers are answered, or Envoy would wait for them for an hour."""
    edge, envoy = await start()
    stream = envoy.stream()
    answer = await stream.ask(no_facts("BUFFERED", **{":path": "/v1/models"}))
    assert answer.WhichOneof("response") == "request_headers"
    answer = await stream.ask(body("request_body", BODY, end=True))
    assert answer.WhichOneof("response") == "request_body"
    assert not answer.request_body.response.HasField("body_mutation")
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "not_queued")]


@pytest.mark.parametrize("where", ["queues", "decide"])
@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_fault_of_ours_lets_the_body_pass_too(
    start: Start, monkeypatch: pytest.MonkeyPatch, mode: str, where: str
) -> None:
    edge, envoy = await start()
    monkeypatch.setattr(edge.gate, where, lambda *_: 1 / 0)
    stream = envoy.stream()
    await stream.send(no_facts(mode))
    if mode == "BUFFERED":
        assert (await stream.answer()).WhichOneof("response") == "request_headers"
        answer = await stream.ask(body("request_body", BODY, end=True))
        assert answer.WhichOneof("response") == "request_body"
    else:
        await stream.send(body("request_body", BODY, end=True))
        assert (await given_back(stream))[0] == BODY
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("fault", "stream"), ("passed", "fault")]
    assert edge.processor._limits.buffer.used == 0


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_later_message_with_bytes_that_are_no_text_is_read(start: Start, mode: str) -> None:
    """Metadata come with every message, and a filter may write what a client sent."""
    edge, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    await stream.send(no_facts(mode))
    if mode == "BUFFERED":
        await stream.answer()
    odd = body("request_body", BODY, end=True)
    odd.metadata_context.filter_metadata["other"].update({"name": "MARKMARK"})
    await stream.send(odd.SerializeToString().replace(b"MARKMARK", b"\xff\xfe\x80\xff\xff\xff\xff\xff"))
    out = mutated(await stream.answer()) if mode == "BUFFERED" else (await given_back(stream))[0]
    assert out == EDITED
    await stream.end()
    assert edge.recorder.count("fault") == 0


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_bodies_in_memory_are_bounded_all_together(start: Start, mode: str) -> None:
    """They belong to no queue while they are read."""
    edge, envoy = await start(requests={"max_body": "1KiB", "max_buffered": "2KiB"}, slots=9)
    kept = [envoy.stream() for _ in range(2)]
    for number, stream in enumerate(kept):
        first = no_facts("FULL_DUPLEX_STREAMED", **{"x-tenant": f"kept-{number}"})
        await stream.send(first, body("request_body", b"{" + b" " * 999))
    buffer = edge.processor._limits.buffer
    await until(lambda: buffer.used == 2000)
    third = envoy.stream()
    await third.send(no_facts(mode))
    if mode == "BUFFERED":
        await third.answer()
    answer = Immediate.of(await third.ask(body("request_body", BODY, end=True)))
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "queue_full", "1")
    assert "may be 2048 (requests.max_buffered)" in answer.error["message"]
    await third.end()
    kept[0].cancel()
    await until(lambda: buffer.used == 1000)
    fourth = envoy.stream()
    await fourth.send(no_facts("FULL_DUPLEX_STREAMED"), body("request_body", BODY, end=True))
    assert (await given_back(fourth))[0] == BODY
    await until(lambda: buffer.used == 1000)
    kept[1].cancel()
    await until(lambda: buffer.used == 0)
    await fourth.end()


async def test_a_compressed_body_is_not_edited_and_counted(start: Start) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    await stream.ask(wired(request(headers={**JSON, "content-encoding": "gzip"}), "BUFFERED"))
    answer = await stream.ask(body("request_body", b"\x1f\x8b...}", end=True))
    assert not answer.request_body.response.HasField("body_mutation")
    await stream.end()
    assert edge.recorder.count("body_edit", "compressed") == 1


@pytest.mark.parametrize(
    ("via", "header", "edited"), [("header", True, False), ("both", True, True), ("off", False, False)]
)
async def test_how_the_priority_goes(start: Start, via: str, header: bool, edited: bool) -> None:
    _, envoy = await start(pool={"priority_via": via})
    stream = envoy.stream()
    answer = await stream.ask(wired(request(headers=JSON), "BUFFERED"))
    assert ("x-vllm-priority" in headers_set(answer)) is header
    answer = await stream.ask(body("request_body", BODY, end=True))
    assert mutated(answer) == (EDITED if edited else b"")
    await stream.end()


async def test_a_body_that_stays_in_envoy_is_edited_there(start: Start) -> None:
    _, envoy = await start(pool=VIA_BODY, requests={"include_usage": "inject"})
    stream = envoy.stream()
    answer = await stream.ask(request(headers=JSON, stream=True))
    told = answer.dynamic_metadata.fields["fairlane.body"].struct_value["append"]
    assert told == '"priority":1000,"stream_options":{"include_usage":true}'
    await stream.end()


@pytest.mark.parametrize(
    ("facts", "path"),
    [
        ({}, "/v1/chat/completions"),  # not a stream
        ({"stream": True, "include_usage": False}, "/v1/chat/completions"),  # its client has said what it wants
        ({"stream": True}, "/v1/responses"),  # carries its count unasked
    ],
)
async def test_a_count_is_asked_for_only_where_there_would_be_none(
    start: Start, facts: dict[str, Any], path: str
) -> None:
    _, envoy = await start(requests={"include_usage": "inject"})
    stream = envoy.stream()
    answer = await stream.ask(request(headers={":path": path}, **facts))
    assert "fairlane.body" not in answer.dynamic_metadata.fields
    await stream.end()


async def test_headers_without_a_body_are_all_there_is(start: Start) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    alone = no_facts("BUFFERED")
    alone.request_headers.end_of_stream = True
    stream = envoy.stream()
    assert headers_set(await stream.ask(alone))["x-fairlane-endpoint"] == ENGINE
    await stream.end()
    assert edge.recorder.count("release") == 1


# -- whole body, no facts: held at the body -----------------------------------------------------------


async def test_without_facts_the_body_is_read_first(start: Start) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    first, _ = await envoy.released()
    second = envoy.stream()
    answer = await second.ask(no_facts("BUFFERED"))
    assert headers_set(answer) == {}
    await second.send(body("request_body", BODY, end=True))
    await until(lambda: edge.held == 1)
    waiting = next(r for r in edge.driver.scheduler.requests.values() if r.endpoint is None)
    assert waiting.body_bytes == len(BODY)
    await first.end()
    answer = await second.answer()
    assert mutated(answer) == EDITED
    assert set_by(answer).keys() >= {"x-fairlane-ticket", "x-fairlane-class", "content-length"}
    assert answer.dynamic_metadata.fields["fairlane.endpoint"].struct_value["address"] == ENGINE
    assert await second.end() is grpc.StatusCode.OK


async def test_a_form_names_its_model(start: Start) -> None:
    form = (
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    )
    _, envoy = await start(requests={"unknown_model": "reject"})
    stream = envoy.stream()
    headers = {"content-type": "multipart/form-data; boundary=b", ":path": "/v1/audio/transcriptions"}
    await stream.ask(wired(request(None, headers=headers), "BUFFERED"))
    answer = await stream.ask(body("request_body", form, end=True))
    assert set_by(answer)["x-fairlane-endpoint"] == ENGINE
    assert not answer.request_body.response.HasField("body_mutation")
    await stream.end()
    stream = envoy.stream()
    await stream.ask(wired(request(None, headers=headers), "BUFFERED"))
    answer = Immediate.of(await stream.ask(body("request_body", form.replace(b"m\r\n--b--", b"?\r\n--b--"), end=True)))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_body_beyond_the_limit_is_refused_when_that_is_seen(start: Start, mode: str) -> None:
    edge, envoy = await start(requests={"max_body": "1KiB"})
    stream = envoy.stream()
    await stream.send(no_facts(mode))
    if mode == "BUFFERED":
        await stream.answer()
    answer = Immediate.of(await stream.ask(body("request_body", b" " * 1025)))
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert "1024 (requests.max_body)" in answer.error["message"]
    assert edge.recorder.told == [("refused", "body_too_large")]


async def test_what_was_read_cannot_be_handed_over_and_is_refused(start: Start) -> None:
    """Envoy does not send it again: to let go in silence would let it pass unscheduled, or make a 500."""
    edge, envoy = await start()
    await envoy.released()
    stream = envoy.stream()
    await stream.ask(no_facts("BUFFERED"))
    await stream.send(body("request_body", BODY, end=True))
    await until(lambda: edge.held == 1)
    edge.processor.let_go(Interrupted.HANDED_OVER)
    answer = Immediate.of(await stream.answer())
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "draining", "1")
    await until(lambda: edge.held == 0)
    assert edge.recorder.count("refused", "draining") == 1


async def test_what_was_read_stays_where_another_replica_has_become_active(start: Start) -> None:
    """It keeps its turn here, where the request can still be answered."""
    edge, envoy = await start()
    first, _ = await envoy.released()
    stream = envoy.stream()
    await stream.ask(no_facts("BUFFERED"))
    await stream.send(body("request_body", BODY, end=True))
    await until(lambda: edge.held == 1)
    edge.processor.hand_over()
    assert edge.held == 1
    assert await first.end() is grpc.StatusCode.OK
    assert (await stream.answer()).HasField("request_body")


async def test_a_client_that_leaves_half_way_through_its_body_was_never_in_the_books(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(no_facts("BUFFERED"))
    assert await stream.end() is grpc.StatusCode.OK
    half = envoy.stream()
    await half.send(no_facts("FULL_DUPLEX_STREAMED"), body("request_body", b'{"mod'))
    half.cancel()
    await envoy.released()
    told = [what for what, _ in edge.recorder.told if what != "passed"]
    assert told == ["release"]  # none was cancelled, and nothing went wrong


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_response_before_the_request_has_ended(start: Start, mode: str) -> None:
    """Envoy, or an engine that does not wait, has answered: what is asked is answered, and nothing is in the books."""
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.send(no_facts(mode))
    if mode == "BUFFERED":
        await stream.answer()
    else:
        await stream.send(body("request_body", BODY[:20]))
    assert (await stream.ask(response_headers(status=413))).WhichOneof("response") == "response_headers"
    assert (await stream.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.told == [("passed", "unread")]
    assert edge.processor._limits.buffer.used == 0
    edge.check_empty()


# -- in pieces, given back in pieces --------------------------------------------------------------------


async def given_back(stream: Stream) -> tuple[bytes, dict[str, str]]:
    """The body that Envoy gets, and the headers before it."""
    answer = await stream.answer()
    headers = headers_set(answer)
    out = b""
    while True:
        answer = await stream.answer()
        piece = answer.request_body.response.body_mutation.streamed_response
        out += piece.body
        if piece.end_of_stream:
            return out, headers


@pytest.mark.parametrize("cut", [1, 7, 1000])
@pytest.mark.parametrize("end", ["flag", "empty"])
async def test_duplex_collects_holds_and_gives_back(start: Start, cut: int, end: str) -> None:
    edge, envoy = await start(pool=VIA_BODY)
    first, _ = await envoy.released()
    stream = envoy.stream()
    pieces = [BODY[at : at + cut] for at in range(0, len(BODY), cut)]
    await stream.send(no_facts("FULL_DUPLEX_STREAMED"))
    for number, piece in enumerate(pieces, 1):
        await stream.send(body("request_body", piece, end=end == "flag" and number == len(pieces)))
    if end == "empty":
        await stream.send(body("request_body", b"", end=True))
    await until(lambda: edge.held == 1)
    await first.end()
    out, headers = await given_back(stream)
    assert out == EDITED
    assert headers["x-fairlane-endpoint"] == ENGINE
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_body_may_end_by_trailers(start: Start) -> None:
    _, envoy = await start(pool=VIA_BODY)
    stream = envoy.stream()
    await stream.send(no_facts("FULL_DUPLEX_STREAMED"), body("request_body", BODY), message("request_trailers"))
    await stream.answer()
    piece = (await stream.answer()).request_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (EDITED, False)
    assert (await stream.answer()).WhichOneof("response") == "request_trailers"
    assert await stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("held", [True, False])
async def test_the_end_of_a_body_that_comes_twice_is_taken_once(start: Start, held: bool) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    stream = envoy.stream()
    await stream.send(no_facts("FULL_DUPLEX_STREAMED"), body("request_body", BODY, end=True))
    await until(lambda: edge.held == 1)
    if held:
        await stream.send(body("request_body", b"", end=True))
    await first.end()
    out, _ = await given_back(stream)
    if not held:
        await stream.send(body("request_body", b"", end=True))
    assert out == BODY
    assert (await stream.ask(message("response_trailers"))).WhichOneof("response") == "response_trailers"
    assert await stream.end() is grpc.StatusCode.OK
    assert edge.recorder.count("cancelled") == 0


async def test_duplex_passes_what_is_not_queued_piece_by_piece(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(no_facts("FULL_DUPLEX_STREAMED", **{":path": "/v1/models"}))
    for data, end in ((b"abc", False), (b"def", True)):
        piece = (await stream.ask(body("request_body", data, end))).request_body.response.body_mutation
        assert (piece.streamed_response.body, piece.streamed_response.end_of_stream) == (data, end)
    await stream.end()
    assert edge.recorder.told == [("passed", "not_queued")]


async def test_a_large_body_comes_back_whole(start: Start) -> None:
    _, envoy = await start(pool=VIA_BODY)
    large = b'{"model": "m", "prompt": "' + b"x" * 20_000_000 + b'"}'
    stream = envoy.stream()
    await stream.send(no_facts("FULL_DUPLEX_STREAMED"))
    for at in range(0, len(large), 1_000_000):
        await stream.send(body("request_body", large[at : at + 1_000_000]))
    await stream.send(body("request_body", b"", end=True))
    out, _ = await given_back(stream)
    assert out == large[:-1] + b',"priority":1000}'
    await stream.end()


async def test_pieces_that_may_not_be_edited_are_answered_one_by_one(start: Start) -> None:
    """Mode STREAMED: each piece waits for its answer, and Envoy may send it before the headers are answered."""
    edge, envoy = await start()
    first, _ = await envoy.released()
    stream = envoy.stream()
    await stream.send(wired(request(headers=JSON), "STREAMED"), body("request_body", b"{"))
    await until(lambda: edge.held == 1)
    await first.end()
    kinds = [(await stream.answer()).WhichOneof("response") for _ in range(2)]
    assert kinds == ["request_headers", "request_body"]
    answer = await stream.ask(body("request_body", b"}", end=True))
    assert answer.WhichOneof("response") == "request_body"
    assert await stream.end() is grpc.StatusCode.OK


# -- answers that are read as they pass -----------------------------------------------------------------


async def answered(stream: Stream, pieces: list[bytes], last: bool = True) -> bytes:
    out = b""
    for number, piece in enumerate(pieces, 1):
        end = last and number == len(pieces)
        answer = (await stream.ask(body("response_body", piece, end))).response_body.response
        mutation = answer.body_mutation
        if mutation.HasField("streamed_response"):
            assert mutation.streamed_response.end_of_stream == end
            out += mutation.streamed_response.body
        elif answer.HasField("body_mutation"):
            out += mutation.body
        else:
            out += piece
    return out


@pytest.mark.parametrize("mode", ["STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_a_stream_is_counted_as_it_passes(start: Start, mode: str) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "NONE", mode))
    await stream.ask(response_headers())
    sent = [CHUNK, CHUNK[:9], CHUNK[9:], USAGE + DONE]
    assert await answered(stream, sent) == b"".join(sent)
    await stream.end()
    assert settled(edge) == [(Source.STREAM, 7 + 2 * 3)]
    edge.check_empty()


async def test_the_first_token_is_seen(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "NONE", "STREAMED"))
    await stream.ask(response_headers())
    await answered(stream, [b": keep-alive\n\n"], last=False)
    (inside,) = edge.driver.scheduler.requests.values()
    assert inside.first_token_at is None
    await answered(stream, [CHUNK], last=False)
    assert inside.first_token_at is not None
    await stream.end()


async def test_an_answer_that_stops_half_way_is_charged_by_time(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "NONE", "STREAMED"))
    await stream.ask(response_headers())
    await answered(stream, [CHUNK], last=False)
    await stream.end()
    assert [source for source, _ in settled(edge)] == [Source.ABORT]


@pytest.mark.parametrize(("status", "content"), [(503, "application/json"), (200, "text/event-stream")])
async def test_an_error_costs_nothing(start: Start, status: int, content: str) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "NONE", "STREAMED"))
    await stream.ask(response_headers(content, status))
    error = b'{"error": {"message": "full", "type": "overloaded", "param": null, "code": 503}}'
    await answered(stream, [error if status == 503 else b"data: " + error + b"\n\n"])
    await stream.end()
    assert settled(edge) == [(Source.ERROR, 0)]


FULL = b'{"error": {"message": "full", "type": "Service Unavailable", "code": 503}}'
BY_ENGINE = {"x-envoy-upstream-service-time": "3"}


@pytest.mark.parametrize(
    ("wiring", "status", "headers", "piece", "turned_away"),
    [
        ("no-access-log", 200, BY_ENGINE, b"data: " + FULL + b"\n\n", 1),
        ("no-access-log", 200, BY_ENGINE, b"data: " + FULL.replace(b"503", b"500") + b"\n\n", 0),
        ("no-access-log", 503, BY_ENGINE, FULL, 1),
        ("no-access-log", 429, BY_ENGINE, b"{}", 1),
        ("no-access-log", 500, BY_ENGINE, b"{}", 0),
        ("no-access-log", 503, {}, b"{}", 0),  # Envoy's own
        ("", 503, BY_ENGINE, FULL, 0),  # the access log will tell
    ],
)
async def test_an_engine_without_room_is_told_of_where_nobody_else_would(
    start: Start, wiring: str, status: int, headers: dict[str, str], piece: bytes, turned_away: int
) -> None:
    edge, envoy = await start()
    stream = envoy.stream(wiring)
    await stream.ask(wired(request(headers=JSON), "NONE", "STREAMED"))
    kind = "text/event-stream" if status == 200 else "application/json"
    await stream.ask(response_headers(kind, status, **headers))
    await answered(stream, [piece])
    await stream.end()
    (engine,) = view(edge.driver.scheduler, edge.driver.now()).endpoints
    assert engine.turned_away == turned_away


@pytest.mark.parametrize("mode", ["STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_the_count_that_was_only_asked_for_here_is_not_passed_on(start: Start, mode: str) -> None:
    edge, envoy = await start(requests={"include_usage": "inject"})
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON, stream=True), "NONE", mode))
    await stream.ask(response_headers())
    assert await answered(stream, [CHUNK, USAGE[:20], USAGE[20:], DONE]) == CHUNK + DONE
    await stream.end()
    assert settled(edge) == [(Source.STREAM, 13)]


async def test_a_json_answer_is_counted(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers=JSON), "NONE", "STREAMED"))
    await stream.ask(response_headers("application/json"))
    whole = orjson.dumps({"choices": [{}], "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
    assert await answered(stream, [whole[:30], whole[30:]]) == whole
    await stream.end()
    assert settled(edge) == [(Source.STREAM, 13)]


async def test_an_answer_to_what_is_not_queued_goes_by_unread(start: Start) -> None:
    edge, envoy = await start()
    stream = envoy.stream()
    await stream.ask(wired(request(headers={**JSON, ":path": "/v1/models"}), "NONE", "FULL_DUPLEX_STREAMED"))
    await stream.ask(response_headers("application/json"))
    assert await answered(stream, [b"{", b"}"]) == b"{}"
    await stream.end()
    assert edge.recorder.told == [("passed", "not_queued")]
