"""What Fairlane and Envoy leave alone: every byte of answers, every byte of bodies, all headers but our own."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from recorded import Recording, Upstream, recording, serving
from rig import CHAT, COMPLETIONS, Rig, running

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

OURS = {
    "x-vllm-priority",
    "x-fairlane-ticket",
    "x-fairlane-class",
    "x-fairlane-queue-ms",
    "x-fairlane-endpoint",
    "x-fairlane-timing",
}
# Envoy's own additions, which it makes for any upstream
ENVOYS = {"x-forwarded-proto", "x-forwarded-for", "x-request-id", "x-envoy-internal", "x-envoy-external-address"}
ENVOYS_ON_ANSWERS = {"server", "date", "x-envoy-upstream-service-time"}
OURS_ON_ANSWERS = {"x-fairlane-class", "x-fairlane-queue-ms", "x-fairlane-endpoint", "server-timing"}

USAGE = '"usage":{"prompt_tokens":3,"total_tokens":10,"completion_tokens":7}'
ODD_JSON = (
    '{ "b" :1.10,\t"a":1E+2, "big":9007199254740993,"a":2, "s":"\\u00e9é\\/\\ud83d\\ude00",\r\n ' + USAGE + " }\n"
).encode()
EVENTS = (
    ": keep-alive\n\n"
    'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"content":"grüße 你好 😀"}}]}\n\n'
    'data:  {"choices": [ {"index":0,"delta":{"content":"\\u00e9"},"finish_reason":"stop"}]}\n\n'
    f'data: {{"choices":[],{USAGE}}}\n\n'
    "data: [DONE]\n\n"
).encode()
TYPED_EVENTS = (
    b'event: response.created\r\ndata: {"type":"response.created"}\r\n\r\n'
    b"id: 7\r\nretry: 10\r\ndata: two\r\ndata: lines\r\n\r\n"
    b"event: response.completed\r\n"
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":7}}}\r\n\r\n'
    b"data: an unfinished line"
)
SSE = "text/event-stream; charset=utf-8"
BINARY = random.Random(7).randbytes(100_000)

ANSWERS = {
    "json with odd spacing, double keys and a large integer": recording(ODD_JSON),
    "json in chunks of 5 bytes": recording(ODD_JSON, piece=5, chunked=True),
    "json of 5 MB": recording(json.dumps({"logprobs": ["x" * 50] * 100_000}).encode(), piece=60_000),
    "json of 5 MB in chunks": recording(json.dumps(["x" * 50] * 100_000).encode(), piece=60_001, chunked=True),
    "what claims to be json and is not": recording(b'{"choices": [', piece=3, chunked=True),
    "an error of the engine": recording(
        b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}', status="400 Bad Request"
    ),
    "an error that is a page": recording(
        b"<html>\xff\xfe no UTF-8</html>", status="500 Internal Server Error", content_type="text/html"
    ),
    "events": recording(EVENTS, content_type=SSE, chunked=True),
    "events in chunks of 1 byte": recording(EVENTS, content_type=SSE, piece=1, chunked=True),
    "events in chunks of 7 bytes": recording(EVENTS, content_type=SSE, piece=7, chunked=True),
    "typed events with CR LF and an open end": recording(TYPED_EVENTS, content_type=SSE, piece=11, chunked=True),
    "an event of 3 MB": recording(
        b'data: {"x":"' + b"y" * 3_000_000 + b'"}\n\n' + EVENTS, content_type=SSE, piece=65_537, chunked=True
    ),
    "an error event": recording(b'data: {"error":{"code":503}}\n\ndata: [DONE]\n\n', content_type=SSE, chunked=True),
    "compressed events": recording(
        gzip.compress(EVENTS, mtime=0), content_type=SSE, piece=9, chunked=True, more=b"content-encoding: gzip\r\n"
    ),
    "compressed json": recording(gzip.compress(ODD_JSON, mtime=0), more=b"content-encoding: gzip\r\n"),
    "bytes": recording(BINARY, content_type="application/octet-stream", piece=7_777),
    "json without a body": recording(b""),
    "headers twice, empty and in any case": recording(
        ODD_JSON, more=b"X-Odd: a\r\nx-odd: b\r\nX-Empty:\r\nSet-Cookie: k=v; Path=/\r\nRetry-After: 7\r\n"
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upstream() -> AsyncIterator[Upstream]:
    async with serving() as upstream:
        yield upstream


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("stack"), engines=[upstream.at]) as rig:
        yield rig


@pytest.mark.parametrize("name", ANSWERS)
async def test_answer(name: str, rig: Rig, upstream: Upstream) -> None:
    upstream.answer = wanted = ANSWERS[name]
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(rig.stack.url + CHAT, json={"model": "m"}) as answer,
    ):
        body = await answer.read()
    assert answer.status == int(wanted.head.split()[1])
    assert body == wanted.body
    got = [(name.decode().lower(), value.decode()) for name, value in answer.raw_headers]
    sent = _headers_of(wanted)
    framing = {"content-length", "transfer-encoding"}
    assert [pair for pair in got if pair[0] in {name for name, _ in sent}] == sent
    assert {name for name, _ in got} - {name for name, _ in sent} - framing == ENVOYS_ON_ANSWERS | OURS_ON_ANSWERS


def _headers_of(recorded: Recording) -> list[tuple[str, str]]:
    lines = recorded.head.decode().split("\r\n")[1:-1]
    return [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]


BODIES = {
    "a tool schema, its keys in no order": (
        b'{"model":"m","seed":9007199254740993,"tools":[{"type":"function","function":{"name":"f","parameters":'
        b'{"type":"object","properties":{"zeta":{},"alpha":{},"mid":{}},"required":["zeta","alpha"]}}}]}'
    ),
    "odd spacing, escapes, numbers and double keys": (
        b'\n {"model" : "m" ,\t"n":1,"n":1, "e":1E+2,"f":1.10,"g":-0.0,"s":"\\u00e9\xc3\xa9\\/\\ud83d\\ude00" } \r\n'
    ),
    "a priority of the client": b'{"priority":-9999,"model":"m","priority":-9998}',
    "no JSON": b'{"model":"m",\xff\x00',
    "nothing": b"",
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])
async def test_request_body(name: str, chunked: bool, rig: Rig, upstream: Upstream) -> None:
    upstream.answer, upstream.received[:] = recording(b"{}"), []
    body = BODIES[name]

    async def chunks() -> AsyncIterator[bytes]:
        for i in range(0, len(body), 13):
            yield body[i : i + 13]

    data = chunks() if chunked else body
    async with rig.http.post(rig.stack.url + CHAT, data=data, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 200
    (received,) = upstream.received
    assert received.body == body


async def test_request_body_of_5_mb(rig: Rig, upstream: Upstream) -> None:
    upstream.answer, upstream.received[:] = recording(b"{}"), []
    body = b'{"filler":"' + random.Random(5).randbytes(2_500_000).hex().encode() + b'","model":"m"}'
    assert (await rig.post(body)).status == 200
    assert upstream.received[0].body == body


SENT = {
    "Authorization": "Bearer secret",
    "Cookie": "a=b",
    "User-Agent": "OpenAI/Python 3.57",
    "X-Stainless-Retry-Count": "0",
    "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Odd": "  spaced  ",
    "Accept": "*/*",
    "Accept-Encoding": "gzip, br",
    "Content-Type": "application/json; charset=utf-8",
    "X-Tenant": "team-a",
    "X-Request-Id": "mine",
}


async def test_request_headers(rig: Rig, upstream: Upstream) -> None:
    upstream.answer, upstream.received[:] = recording(b"{}"), []
    answer = await rig.post(b'{"model":"m"}', path=COMPLETIONS + "?a=b&c=%20d", headers=SENT)
    assert answer.status == 200
    (received,) = upstream.received
    assert received.head.startswith(b"POST /v1/completions?a=b&c=%20d HTTP/1.1\r\n")
    got = dict(received.headers)
    assert len(got) == len(received.headers)  # none comes twice
    sent = {name.lower(): value.strip() for name, value in SENT.items()}
    assert {name: got[name] for name in sent} == sent
    assert got["host"] == str(rig.stack.addresses.envoy)
    assert set(got) - set(sent) - {"host", "content-length"} - ENVOYS == OURS
    # the first of its tenant in class `default`
    assert got["x-vllm-priority"] == "1000000"
    assert got["x-fairlane-class"] == "default"
    assert got["x-fairlane-endpoint"] == str(upstream.at)
    assert got["x-fairlane-queue-ms"].isdigit()
    assert got["x-fairlane-ticket"]
    assert re.fullmatch(r"queue;dur=\d+\.\d", got["x-fairlane-timing"])
    for name in OURS_ON_ANSWERS:
        assert answer.headers[name] == got["x-fairlane-timing" if name == "server-timing" else name]


FORGED = [
    ("X-Vllm-Priority", "-9999"),
    ("x-vllm-priority", "-9998"),
    ("X-VLLM-PRIORITY", "nonsense"),
    ("X-Fairlane-Ticket", "forged"),
    ("x-fairlane-class", "interactive"),
    ("X-FAIRLANE-QUEUE-MS", "forged"),
    ("x-fairlane-endpoint", "192.0.2.1:80"),
    ("X-Fairlane-Invented", "forged"),
    ("x-fairlane-", "forged"),
    ("x-envoy-retry-on", "5xx"),
    ("x-dynamo-request-priority", "forged"),
    ("X-Dynamo-Request-Strict-Priority", "forged"),
    ("x-envoy-upstream-rq-timeout-ms", "1"),
]


@pytest.mark.parametrize("again", [1, 2], ids=["once", "twice"])
async def test_forged_headers_have_no_effect(again: int, rig: Rig, upstream: Upstream) -> None:
    upstream.answer, upstream.received[:] = recording(b"{}"), []
    headers = [("content-type", "application/json"), *FORGED * again]
    async with rig.http.post(rig.stack.url + CHAT, data=b'{"model":"m"}', headers=headers) as answer:
        assert answer.status == 200
    (received,) = upstream.received
    assert {name for name, _ in received.headers if name.startswith(("x-vllm", "x-fairlane"))} == OURS
    assert not [name for name, _ in received.headers if name.startswith("x-envoy-") and name not in ENVOYS]
    assert received.values("x-vllm-priority") == ["1000000"]
    assert received.values("x-fairlane-class") == ["default"]
    assert received.values("x-fairlane-endpoint") == [str(upstream.at)]
    assert "forged" not in received.head.decode()
