"""envoy/lua/usage.lua in a real Envoy: token counts and errors out of SSE answers, however their bytes are split."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from lua_case import CASE, JSON, Case, Json, filtering, lua
from recorded import Recording, recording
from rig import until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SSE = "text/event-stream; charset=utf-8"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def case(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Case]:
    async with filtering(tmp_path_factory.mktemp("usage"), [lua("usage.lua")]) as case:
        yield case
        assert not case.script_errors()


@pytest.fixture(autouse=True)
def _plain_answer(case: Case) -> Iterator[None]:
    yield
    case.upstream.answer = recording(b"{}")


async def usage(
    case: Case, body: bytes, *, content_type: str = SSE, piece: int | None = None, more: bytes = b""
) -> Json:
    """The metadata fairlane.usage after this answer, which the client must get unchanged."""
    case.upstream.answer = recording(body, content_type=content_type, piece=piece, chunked=True, more=more)
    return await case.metadata(await case.post(b"{}"), "usage")


def events(*data: Json | str, end: str = "\n") -> bytes:
    texts = (text if isinstance(text, str) else json.dumps(text) for text in data)
    return "".join(f"data: {text}{end}{end}" for text in texts).encode()


def typed(*data: Json, end: str = "\n") -> bytes:
    return "".join(f"event: {one['type']}{end}data: {json.dumps(one)}{end}{end}" for one in data).encode()


# -- what the engines send ----------------------------------------------------------------------------------

FAKE = 'no usage: "usage":{"prompt_tokens":1,"completion_tokens":1},"error":{"code":1} \\" } {'


def chat_delta(text: str, **more: object) -> Json:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def tokens(prompt: int, output: int, **more: object) -> Json:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output, **more}


def counted(prompt: int, output: int, **more: object) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": output, **more}


CHAT = events(
    chat_delta("grüße 😀"),
    chat_delta(FAKE, usage=None),
    {"id": "x", "choices": [], "usage": tokens(1234567, 89012, prompt_tokens_details={"cached_tokens": 456})},
    "[DONE]",
)
CONTINUOUS = b": keep-alive\n\n" + events(
    *(chat_delta("t", usage=tokens(321, n)) for n in (98, 99, 100)),
    {"choices": [], "usage": tokens(321, 100)},
    "[DONE]",
)
COMPLETIONS = b'data:{"choices":[{"text":"a"}],"usage" : { "completion_tokens" :77 ,\t"prompt_tokens": 1001 } }\n\n'
RESPONSES = typed(
    {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
    {"type": "response.output_text.delta", "delta": FAKE},
    {
        "type": "response.completed",
        "response": {
            "output": [{"content": [{"text": FAKE}]}],
            "tools": [{"parameters": {"usage": {"input_tokens": 1, "output_tokens": 1}}}],
            "usage": {"input_tokens": 4321, "input_tokens_details": {"cached_tokens": 4096}, "output_tokens": 6543},
            "metadata": {"usage": {"output_tokens": 2}, "input_tokens": 3},
        },
    },
    end="\r\n",
)
MESSAGES = typed(
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1010, "output_tokens": 0}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": FAKE}},
    {"type": "ping"},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2020}},
    {"type": "message_stop"},
)
TGI = events(
    {"index": 1, "token": {"id": 5, "text": FAKE}, "generated_text": None, "details": None},
    {"index": 2, "generated_text": "x", "details": {"generated_tokens": 305, "input_length": 44, "seed": 9}},
)

STREAMS: dict[str, tuple[bytes, Json]] = {
    "chat": (CHAT, counted(1234567, 89012, cached_tokens=456)),
    "chat, usage in each chunk": (CONTINUOUS, counted(321, 100)),
    "completions": (COMPLETIONS, counted(1001, 77)),
    "responses": (RESPONSES, counted(4321, 6543, cached_tokens=4096)),
    "messages": (MESSAGES, counted(1010, 2020)),
    "TGI": (TGI, counted(44, 305)),
    "CR LF": (CHAT.replace(b"\n", b"\r\n"), counted(1234567, 89012, cached_tokens=456)),
    "CR alone": (CHAT.replace(b"\n", b"\r"), counted(1234567, 89012, cached_tokens=456)),
    "no usage": (events(chat_delta(FAKE), "[DONE]"), {}),
    "shed": (
        events({"error": {"message": FAKE, "type": "Unavailable", "param": None, "code": 503}}, "[DONE]"),
        {
            "error_code": 503,
            "error_type": "Unavailable",
        },
    ),
    "shed after some tokens": (
        events(chat_delta("a", usage=tokens(10, 3)), {"error": {"code": "overloaded"}}),
        counted(10, 3, error_code="overloaded"),
    ),
    "messages, an error": (
        typed({"type": "error", "error": {"type": "overloaded_error", "message": "full"}}),
        {"error_type": "overloaded_error"},
    ),
    "responses, an error": (
        typed({"type": "error", "code": "server_error", "message": "x", "param": None}),
        {"error_code": "server_error"},
    ),
    "responses, failed": (
        typed({"type": "response.failed", "response": {"error": {"code": "server_error", "message": FAKE}}}),
        {"error_code": "server_error"},
    ),
    "an error of null": (events(chat_delta("a", error=None)), {}),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_in_one_piece(name: str, case: Case) -> None:
    body, wanted = STREAMS[name]
    assert await usage(case, body) == wanted


@dataclass(frozen=True)
class Split(Recording):
    """The body in two pieces, with a pause between them that Envoy sees as two reads."""

    at: int = 0

    def wire(self) -> list[bytes]:
        head, body, end = super().wire()
        whole, start = self.body, body.index(b"\r\n") + 2
        assert body[start:-2] == whole
        first, second = (b"%x\r\n%b\r\n" % (len(part), part) for part in (whole[: self.at], whole[self.at :]))
        return [head + first, second + end]


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "CR LF"])
async def test_split_at_every_offset(name: str, case: Case) -> None:
    body, wanted = STREAMS[name]
    whole = recording(body, content_type=SSE, chunked=True)
    sent = []
    for at in range(1, len(body)):
        case.upstream.answer = Split(whole.head, whole.pieces, True, at)
        sent.append(await case.post(b"{}"))
    assert [entry["usage"] for entry in await case.logged(*sent)] == [wanted] * len(sent)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("piece", [1, 2, 5, 17, 64])
async def test_split_into_pieces(name: str, piece: int, case: Case) -> None:
    body, wanted = STREAMS[name]
    assert await usage(case, body, piece=piece) == wanted


# -- nothing is held back ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gated(Recording):
    """Each piece waits until it is let go."""

    gates: list[asyncio.Event] = field(default_factory=list)

    def wire(self) -> Iterator[bytes]:  # type: ignore[override]
        head, *chunks, end = super().wire()
        yield head
        for chunk, gate in zip(chunks, self.gates, strict=True):
            while not gate.is_set():
                yield b""  # the upstream pauses after each
            yield chunk
        yield end


async def test_each_chunk_goes_on_before_the_next_comes(case: Case) -> None:
    plain = recording(CHAT, content_type=SSE, piece=50, chunked=True)
    answer = Gated(plain.head, plain.pieces, True, [asyncio.Event() for _ in plain.pieces])
    case.upstream.answer = answer
    async with case.http.post(case.url, data=b"{}", headers={**JSON, CASE: "gated"}) as response:
        for piece, gate in zip(answer.pieces, answer.gates, strict=True):
            gate.set()
            assert await response.content.readexactly(len(piece)) == piece
    assert await case.metadata("gated", "usage") == STREAMS["chat"][1]


async def test_a_client_that_leaves_has_what_came_until_then(case: Case) -> None:
    plain = recording(CONTINUOUS, content_type=SSE, piece=CONTINUOUS.index(b": 100"), chunked=True)
    answer = Gated(plain.head, plain.pieces, True, [asyncio.Event() for _ in plain.pieces])
    case.upstream.answer = answer
    answer.gates[0].set()
    async with case.http.post(case.url, data=b"{}", headers={**JSON, CASE: "leaves"}) as response:
        await response.content.readexactly(len(answer.pieces[0]))
        response.close()
    assert await case.metadata("leaves", "usage") == counted(321, 99)
    await until(case.active_upstream, lambda active: active == 0, "the upstream request has ended")
    for gate in answer.gates:
        gate.set()


# -- what is not read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "text/event-streams-no-more"])
async def test_other_answers_pass(content_type: str, case: Case) -> None:
    assert await usage(case, CHAT, content_type=content_type) == {}


async def test_compressed_answers_pass(case: Case) -> None:
    case.upstream.answer = recording(
        gzip.compress(CHAT, mtime=0), content_type=SSE, piece=50, chunked=True, more=b"content-encoding: gzip\r\n"
    )
    headers = {**JSON, CASE: "gzip", "accept-encoding": "gzip"}
    async with case.http.post(case.url, data=b"{}", headers=headers) as response:
        assert await response.read() == CHAT  # the client has unpacked it
    assert await case.metadata("gzip", "usage") == {}


async def test_an_unfinished_line_at_the_end_is_dropped(case: Case) -> None:
    assert await usage(case, CONTINUOUS + b'data: {"usage":{"completion_tokens":7}}') == counted(321, 100)


@pytest.mark.parametrize("piece", [None, 10_000])
async def test_a_line_of_1_mib_is_read_and_a_longer_one_skipped(piece: int | None, case: Case) -> None:
    def line(length: int, output: int) -> bytes:
        frame = b'data: {"usage":{"completion_tokens":%d},"x":""}' % output
        return frame[:-2] + b"x" * (length - len(frame)) + frame[-2:] + b"\n\n"

    longest = 1024 * 1024
    assert await usage(case, line(longest, 5), piece=piece) == {"completion_tokens": 5}
    body = events({"usage": tokens(3, 4)}) + line(longest + 1, 5)
    assert await usage(case, body, piece=piece) == counted(3, 4)
    assert await usage(case, line(3 * longest, 5) + events({"usage": tokens(3, 4)}), piece=piece) == counted(3, 4)


ODD = {
    "a negative count": ('{"usage":{"prompt_tokens":-1,"completion_tokens":2}}', {"completion_tokens": 2}),
    "counts that are no numbers": ('{"usage":{"prompt_tokens":"7","completion_tokens":null}}', {}),
    "words that Lua takes for numbers": ('{"usage":{"prompt_tokens":nan,"completion_tokens":inf}}', {}),
    "a fraction": ('{"usage":{"completion_tokens":2.5}}', {"completion_tokens": 2.5}),
    "usage as a list": ('{"usage":[{"completion_tokens":2}]}', {}),
    "usage further in": ('{"choices":[{"usage":{"completion_tokens":2}}],"x":{"usage":{"completion_tokens":3}}}', {}),
    "two of them": ('{"usage":{"completion_tokens":2},"usage":{"completion_tokens":3}}', {"completion_tokens": 3}),
    "an object that is cut": ('{"usage":{"completion_tokens":2', {}),
    "no colon": ('{"usage"{"completion_tokens":2}}', {}),
    "a list": ('[{"usage":{"completion_tokens":2}}]', {}),
    "nothing": ("", {}),
    "many brackets": ('{"usage":' + "[" * 50_000 + "}", {}),
    "many quotes": ('{"usage":' + '"' * 50_001, {}),
}


@pytest.mark.parametrize("name", ODD)
async def test_odd_events(name: str, case: Case) -> None:
    data, wanted = ODD[name]
    assert await usage(case, events(data)) == wanted


async def test_random_bytes_raise_nothing(case: Case) -> None:
    source = random.Random(11)
    parts = [
        b'data: {"usage":',
        b'"error":{',
        b'"completion_tokens":',
        b"12",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"\n",
        b"\r",
        b"\xff",
    ]
    for _ in range(200):
        body = b"".join(source.choices(parts, k=source.randrange(200)))
        case.upstream.answer = recording(body, content_type=SSE, piece=source.choice((None, 150)), chunked=True)
        await case.post(b"{}")
    assert not case.script_errors()
