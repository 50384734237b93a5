"""Token counts out of answers as engines write them, cut anywhere. Expected values are read off the answers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.model import MAX_TOKENS
from extproc.edge.sse_meter import MAX_EVENT, MAX_TAIL, Meter, Metered

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"


def run(chunks: Iterable[bytes], kind: str = SSE, *, drop: bool = False) -> tuple[Meter, bytes]:
    meter = Meter(kind, drop_usage_chunk=drop)
    out = b"".join([meter.feed(chunk, False) for chunk in chunks])
    return meter, out + meter.feed(b"", True)


def metered(text: bytes, kind: str = SSE) -> Metered:
    meter, out = run([text], kind)
    assert out == text
    return meter.result


def counts(prompt: int | None, output: int | None, cached: int | None = None, *, done: bool = True) -> Metered:
    return Metered(prompt, output, cached, False, done)


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def event(value: dict[str, Any]) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + data(value)


def token(text: str, **more: Any) -> bytes:
    return data({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}], **more})


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32, "prompt_tokens_details": None}
USAGE_CHUNK = data({"id": "chatcmpl-1", "choices": [], "usage": USAGE})
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}

# Model text that looks like what the meter looks for: quoted, and as whole events inside one.
TRAPS = [
    '{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}',
    "data: [DONE]\n\n",
    '"error": {"code": 500}',
    "é😀 你好",
]

CHAT = b": keep-alive\n\n" + b"".join(token(text, usage=None) for text in ["", *TRAPS]) + USAGE_CHUNK + DONE
EVERY = b"".join(
    token(text, usage={"prompt_tokens": 20, "completion_tokens": i, "total_tokens": 20 + i})
    for i, text in enumerate("abc")
)
MESSAGES = b"".join(
    [
        event({"type": "message_start", "message": {"usage": {"input_tokens": 100, "output_tokens": 0}}}),
        event({"type": "ping"}),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": TRAPS[0]}}),
        event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {
                    "input_tokens": 10,
                    "output_tokens": 7,
                    "cache_read_input_tokens": 90,
                    "cache_creation_input_tokens": 0,
                },
            }
        ),
        event({"type": "message_stop"}),
    ]
)
RESPONSES = b"".join(
    [
        event({"type": "response.created", "response": {"status": "in_progress", "error": None, "usage": None}}),
        event({"type": "response.output_text.delta", "delta": TRAPS[0]}),
        event(
            {
                "type": "response.completed",
                "response": {
                    "error": None,
                    "usage": {"input_tokens": 30, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 16}},
                },
            }
        ),
    ]
)
TGI = (
    b'data:{"index":1,"token":{"id":5,"text":"\\"usage\\":"},"generated_text":null,"details":null}\n\n'
    b'data:{"index":2,"token":{"id":2,"text":"x"},"generated_text":"x",'
    b'"details":{"finish_reason":"length","generated_tokens":2,"seed":null,"input_length":11}}\n\n'
)
STREAMS = [
    (CHAT, counts(20, 12)),
    (EVERY + DONE, counts(20, 2)),
    (EVERY, counts(20, 2, done=False)),
    (token("x") + data({"choices": [], "usage": CACHED}) + DONE, counts(20, 12, 16)),
    (MESSAGES, counts(100, 7, 90)),
    (RESPONSES, counts(30, 5, 16)),
    (TGI, counts(11, 2)),
    (token("a") + DONE, counts(None, None)),
    (USAGE_CHUNK, counts(20, 12, done=False)),
]
# (line end, bytes before the first line)
SPELLINGS = [(b"\n", b""), (b"\r\n", b""), (b"\r", b""), (b"\r\n", b"\xef\xbb\xbf")]


def spelt(stream: bytes, end: bytes, start: bytes) -> bytes:
    return start + stream.replace(b"\n", end)


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
@pytest.mark.parametrize(("end", "start"), SPELLINGS)
def test_whole(stream: bytes, expected: Metered, end: bytes, start: bytes) -> None:
    assert metered(spelt(stream, end, start)) == expected


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
@pytest.mark.parametrize(("end", "start"), SPELLINGS)
def test_split_at_every_offset(stream: bytes, expected: Metered, end: bytes, start: bytes) -> None:
    stream = spelt(stream, end, start)
    for at in range(len(stream) + 1):
        meter = Meter(SSE)
        first, second = stream[:at], stream[at:]
        assert meter.feed(first, False) is first
        assert meter.feed(second, True) is second
        assert meter.result == expected, at


def pieces(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[i : i + size] for i in range(0, len(stream), size))


@pytest.mark.parametrize(("stream", "expected"), STREAMS)
def test_every_chunk_size(stream: bytes, expected: Metered) -> None:
    for size in range(1, 200):
        meter, out = run(pieces(stream, size))
        assert (meter.result, out == stream) == (expected, True), size


def test_standard_odds_and_ends() -> None:
    stream = (
        b"id: 7\nretry: 10\ndata\ndata:\n\n"  # an event of one line break
        b'data:{"choices":[],\ndata: "usage":{"prompt_tokens":1,\n: between\nunknown: x\n'
        b'data:"completion_tokens":2}}\n\n\n'
        b"data: [DONE]"  # cut off behind
    )
    assert metered(stream) == counts(1, 2)


# --- the first token


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b": keep-alive\n\n",
        b"event: ping\ndata: {}\n\n",
        event({"type": "ping"}),
        event({"type": "response.created", "response": {}}),
        event({"type": "response.in_progress", "response": {}}),
        event({"type": "response.failed", "response": {"error": {"code": "x"}}}),
        data({"error": {"code": 503}}),
        DONE,
        b"event: message_start\n\n",
        b"\n\n\r\n\r\r",
    ],
)
def test_the_first_token(before: bytes) -> None:
    meter = Meter(SSE)
    meter.feed(before, False)
    assert not meter.first_token
    meter.feed(token("a")[:-1], False)
    assert not meter.first_token
    meter.feed(b"\n", False)
    assert meter.first_token


def test_any_byte_of_another_answer_is_a_first_token() -> None:
    for kind in (JSON, "audio/mpeg", ""):
        meter = Meter(kind)
        meter.feed(b"", False)
        assert not meter.first_token
        meter.feed(b"x", False)
        assert meter.first_token


# --- errors


@pytest.mark.parametrize(
    "stream",
    [
        token("a") + data({"error": {"message": "m", "type": "Service Unavailable", "code": 503}}) + DONE,
        data({"error": {"type": "overloaded_error"}}),
        event({"type": "error", "error": {"type": "internal_error", "message": "m"}}),
        event({"type": "error", "code": "server_error", "message": "m"}),
        event({"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
        b'data:{"error":"Request failed during generation","error_type":"generation"}\n\n',
        b"event: error\ndata: overloaded\n\n",
    ],
)
def test_errors_in_a_stream(stream: bytes) -> None:
    for size in (1, 7, len(stream)):
        meter, out = run(pieces(stream, size))
        assert (meter.result.error, out) == (True, stream)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "m", "code": 400}},
        {"error": "Model is overloaded", "error_type": "overloaded"},
        {"object": "error", "message": "m", "code": 404},
        {"type": "error", "error": {"type": "overloaded_error"}},
    ],
)
def test_errors_in_json(body: dict[str, Any]) -> None:
    assert metered(json.dumps(body).encode(), JSON).error


@pytest.mark.parametrize(
    ("answer", "no_room"),
    [
        ({"error": {"message": "m", "type": "Service Unavailable", "code": 503}}, True),  # vLLM, SGLang
        ({"error": {"message": "m", "code": 429}}, True),
        ({"type": "error", "error": {"type": "Service Unavailable", "message": "m"}}, True),  # vLLM's /v1/messages
        ({"error": "Model is overloaded", "error_type": "overloaded"}, True),  # TGI
        ({"type": "error", "code": "503", "message": "m"}, True),  # /v1/responses
        ({"type": "response.failed", "response": {"error": {"code": 503}}}, True),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, False),
        ({"error": {"message": "m", "code": 500}}, False),
        ({"error": "Request failed during generation", "error_type": "generation"}, False),
        ({"choices": [], "code": 503}, False),  # no error at all
    ],
)
def test_an_error_that_says_that_there_is_no_room(answer: dict[str, Any], no_room: bool) -> None:
    assert metered(data(answer)).no_room is no_room
    assert metered(json.dumps(answer).encode(), JSON).no_room is no_room


# --- JSON

EMBEDDINGS = {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 9, "total_tokens": 9}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"choices": [{"message": {"content": TRAPS[0]}}], "usage": CACHED}, counts(20, 12, 16)),
        (
            {"usage": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 1}}},
            counts(3, 4, 1),
        ),
        ({"type": "message", "usage": {"input_tokens": 3, "output_tokens": 4}}, counts(3, 4)),
        (
            {
                "usage": {
                    "input_tokens": 3,
                    "cache_read_input_tokens": 50,
                    "cache_creation_input_tokens": 7,
                    "output_tokens": 4,
                }
            },
            counts(60, 4, 50),
        ),
        (EMBEDDINGS, counts(9, 0)),
        ({"usage": {"prompt_tokens": 9, "total_tokens": 9, "completion_tokens": None}}, counts(9, 0)),
        ({"usage": {"type": "duration", "seconds": 4}}, counts(None, None)),
        ({"usage": None, "error": None}, counts(None, None)),
        ({"generated_text": "x", "details": {"generated_tokens": 2, "prefill": [{"id": 1}] * 5}}, counts(5, 2)),
        ({"generated_text": "x", "details": {"generated_tokens": 2, "prefill": []}}, counts(None, 2)),
    ],
)
def test_plain_answers(body: dict[str, Any], expected: Metered) -> None:
    text = json.dumps(body, indent=1).encode()
    for size in (1, 50, len(text)):
        meter, out = run(pieces(text, size), JSON)
        assert (meter.result, out) == (expected, text)
    assert metered(text, "application/vnd.x+json").output_tokens == expected.output_tokens


@pytest.mark.parametrize("filler", [b"[" + b"0.125," * 3_000_000 + b"1]", json.dumps(TRAPS[0] * 300_000).encode()])
def test_a_long_answer_in_bounded_memory(filler: bytes) -> None:
    text = b'{"data":%s,"x":{"usage":{"prompt_tokens":5}}, "usage" : %s,"y\\"usage":%s,"y":{"usage":{}}}\n'
    text %= (filler, json.dumps(USAGE).encode(), json.dumps({**USAGE, "prompt_tokens": 7}).encode())
    meter = Meter(JSON)
    kept = 0
    for chunk in pieces(text, 65_536):
        assert meter.feed(chunk, False) is chunk
        assert meter._document is not None
        kept = max(kept, len(meter._document._body))
    meter.feed(b"", True)
    assert meter.result == counts(20, 12)
    assert kept <= 2 * MAX_TAIL


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"usage":', b"\xff", b"<html>", b'{"usage":[1]}', b"NaN"])
def test_json_without_counts(body: bytes) -> None:
    result = metered(body, JSON)
    assert (result.prompt_tokens, result.output_tokens, result.error) == (None, None, False)


def test_an_answer_that_was_left_has_no_count() -> None:
    meter = Meter(JSON)
    meter.feed(json.dumps({"usage": USAGE}).encode(), False)
    assert meter.result == counts(None, None, done=False)


def test_a_message_that_was_left_has_its_prompt_alone() -> None:
    """The output in message_start is the beginning of a count, not a count."""
    meter, _ = run([MESSAGES[: MESSAGES.index(b"event: message_delta")]])
    assert meter.result == counts(100, None, done=False)


# --- numbers


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("12", 12),
        ("12.0", 12),
        ("0", 0),
        ("-1", None),
        ('"12"', None),
        ("true", None),
        ("null", None),
        ("[1]", None),
        ("{}", None),
        ("1e300", MAX_TOKENS),
        ("123456789012345678901234567890", MAX_TOKENS),
        ("NaN", None),
        ("1e999", None),
    ],
)
def test_numbers(written: str, read_as: int | None) -> None:
    stream = b'data: {"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s}}\n\n' % ((written.encode(),) * 2)
    result = metered(stream)
    assert (result.prompt_tokens, result.output_tokens) == (read_as, read_as)


def test_a_sum_is_clamped_too() -> None:
    huge = {"input_tokens": 1e300, "cache_read_input_tokens": 1e300, "output_tokens": 1}
    assert metered(json.dumps({"usage": huge}).encode(), JSON).prompt_tokens == MAX_TOKENS


# --- what is not read


def test_compressed_and_other_answers_pass_by() -> None:
    squeezed = gzip.compress(CHAT)
    for kind, coding in ((SSE, "gzip"), (JSON, "br"), ("audio/mpeg", ""), ("", ""), ("text/plain", "")):
        meter = Meter(kind, coding, drop_usage_chunk=True)
        assert meter.feed(squeezed, True) is squeezed
        assert meter.result == counts(None, None, done=False)


@pytest.mark.parametrize("size", [1000, 100_000, 10_000_000])
def test_an_event_over_the_limit_is_skipped(size: int) -> None:
    huge = b"data: " + json.dumps({"usage": USAGE, "x": "y" * MAX_EVENT * 2}).encode() + b"\n\n"
    many = b"".join(b"data: " + b"z" * 60_000 + b"\n" for _ in range(20)) + b"\n"
    stream = token("a") + huge + many + data({"choices": [], "usage": CACHED}) + DONE
    for drop in (False, True):
        meter, out = run(pieces(stream, size), drop=drop)
        assert (meter.skipped, meter.result) == (2, counts(20, 12, 16))
        assert out == (stream if not drop else stream.replace(data({"choices": [], "usage": CACHED}), b""))
        assert meter._events is not None
        assert len(meter._events._line) + len(meter._events._held) == 0


def test_an_event_over_the_limit_is_skipped_also_in_one_piece() -> None:
    meter, _ = run([token("a"), b"data: " + b"x" * MAX_EVENT + b"\n\n", token("b")])
    assert meter.skipped == 1


def test_memory_of_an_event_and_of_a_comment_is_bounded() -> None:
    for start in (b"data: ", b": ", b"x"):
        meter = Meter(SSE, drop_usage_chunk=True)
        meter.feed(start, False)
        for _ in range(100):
            meter.feed(b"y" * 100_000, False)
        assert meter._events is not None
        assert len(meter._events._line) <= MAX_EVENT
        assert len(meter._events._held) == 0
        meter.feed(b"\n\n" + USAGE_CHUNK, False)
        assert meter.result.output_tokens == 12
        assert meter.skipped == (0 if start == b": " else 1)


# --- the chunk that nobody asked for

DROPS = [
    (CHAT, CHAT.replace(USAGE_CHUNK, b"")),
    (EVERY + USAGE_CHUNK + DONE, EVERY + DONE),  # usage beside choices stays
    (MESSAGES, MESSAGES),
    (RESPONSES, RESPONSES),
    (TGI, TGI),
    (USAGE_CHUNK, b""),
    (USAGE_CHUNK + USAGE_CHUNK[:-1], b""),
    (USAGE_CHUNK[:-2], b""),  # cut off behind
    (token("a")[:-2], token("a")[:-2]),
    (USAGE_CHUNK[:-10], USAGE_CHUNK[:-10]),
    (b": a\n" + USAGE_CHUNK[:-1] + b": b\n\n" + DONE, b": a\n: b\n" + DONE),
    (data({"choices": [], "usage": None}) + DONE, data({"choices": [], "usage": None}) + DONE),
    (b"id: 1\n" + USAGE_CHUNK, b"id: 1\n" + USAGE_CHUNK),
    (USAGE_CHUNK[:-1] + b"id: 1\n\n", USAGE_CHUNK[:-1] + b"id: 1\n\n"),
    (b'data: {"choices": [ ],\ndata: "usage":{}}\n\n' + DONE, DONE),
    (b"\n\n: x\n\n" + DONE, b"\n\n: x\n\n" + DONE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("stream", "kept"), DROPS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_drop_the_usage_chunk(stream: bytes, kept: bytes, end: bytes) -> None:
    stream, kept = spelt(stream, end, b""), spelt(kept, end, b"")
    undropped = metered(stream)
    for at in range(len(stream) + 1):
        meter, out = run([stream[:at], stream[at:]], drop=True)
        assert (out, meter.result) == (kept, undropped), at
    for size in range(1, 40):
        meter, out = run(pieces(stream, size), drop=True)
        assert (out, meter.result) == (kept, undropped), size


def test_what_cannot_be_the_usage_chunk_is_not_held_back() -> None:
    meter = Meter(SSE, drop_usage_chunk=True)
    assert meter.feed(b": keep", False) == b": keep"
    assert meter.feed(b"-alive\n", False) == b"-alive\n"
    assert meter.feed(b'\ndata: {"cho', False) == b"\n"
    assert meter.feed(b'ices":[{"delta', False) == b'data: {"choices":[{"delta'
    assert meter.feed(b'":{}}]}', False) == b'":{}}]}'
    assert meter.feed(b"\n\nevent", False) == b"\n\nevent"
    assert meter.feed(b": x\n", False) == b": x\n"


def test_unchanged_chunks_are_the_same_objects() -> None:
    meter = Meter(SSE, drop_usage_chunk=True)
    for chunk in (token("a"), token("b"), token("c") + token("d"), DONE):
        assert meter.feed(chunk, False) is chunk


# --- any bytes

ALPHABET = [b"data:", b"data: ", b"event: ping", b":", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"[DONE]"]
ALPHABET += [
    b'{"usage":',
    b'{"choices":[]',
    b',"usage":{}}',
    b"}",
    USAGE_CHUNK,
    b'{"error":',
    b"\xff",
    b"null",
    b"[" * 9,
]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(ALPHABET) | st.binary(max_size=4)),
    st.sampled_from([SSE, JSON, ""]),
    st.integers(1, 7),
)
@pytest.mark.slow
def test_any_bytes(parts: list[bytes], kind: str, size: int) -> None:
    stream = b"".join(parts)
    meter, out = run(pieces(stream, size), kind)
    assert out == stream
    assert meter.result == metered(stream, kind)
    dropping, rest = run(pieces(stream, size), kind, drop=True)
    assert (dropping.result, rest) == (meter.result, run([stream], kind, drop=True)[1])


def test_random_streams_in_random_pieces() -> None:
    rng = Random(4)
    for _ in range(1500):
        stream = b"".join(rng.choices(ALPHABET, k=rng.randrange(25)))
        whole, once = run([stream], drop=True)
        cut, i = [], 0
        while i < len(stream):
            cut.append(stream[i : i + rng.choice([1, 2, 3, 10, 50])])
            i += len(cut[-1])
        meter, out = run(cut, drop=True)
        assert (meter.result, meter.first_token, out) == (whole.result, whole.first_token, once), stream
        plain, same = run(cut)
        assert (plain.result, same) == (whole.result, stream)
