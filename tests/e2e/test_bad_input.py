"""What clients should not send. Nobody gets a 5xx for it, nothing crashes, and the service goes on.

With `malformed: pass` a client must see exactly what the engine itself says; with `reject` Fairlane tells it, and the
engine never sees the request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
import orjson
import pytest
import pytest_asyncio
from rig import CHAT, COMPLETIONS, MODEL, Answer, Rig, chat, running

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

JSON = "application/json"
DEEP = b"[" * 10_000 + b"]" * 10_000
MESSAGES = b'"messages":[{"role":"user","content":"hello"}]'


class Case(NamedTuple):
    body: bytes
    content_type: str | None = JSON
    malformed: bool = True  # for Fairlane, and so refused with `reject`


def _body(fields: bytes) -> bytes:
    """A request that is served, and these fields."""
    return b'{"model":"sim-7b","max_tokens":2,' + MESSAGES + b"," + fields + b"}"


def _with_model(model: bytes) -> bytes:
    return b'{"model":' + model + b',"max_tokens":2,' + MESSAGES + b"}"


CASES = (
    {
        "no JSON": Case(b"hello"),
        "half of it": Case(_body(b'"a":1')[:40]),
        "one brace more": Case(_body(b'"a":1') + b"}"),
        "an unknown literal": Case(_body(b'"a":undefined')),
        "a comment": Case(_body(b'"a":1') + b" // hello"),
        "a list": Case(b"[]"),
        "a string": Case(b'"x"'),
        "a number": Case(b"3"),
        "null": Case(b"null"),
        "an empty object": Case(b"{}"),
        "nothing": Case(b""),
        "spaces": Case(b"   \r\n"),
        "zeros": Case(b"\0" * 1000),
        "random bytes": Case(random.Random(1).randbytes(10_000)),
        "a byte-order mark": Case(b"\xef\xbb\xbf" + _body(b'"a":1'), malformed=False),
        "UTF-16": Case(_body(b'"a":1').decode().encode("utf-16")),
        "invalid UTF-8": Case(_body(b'"user":"\xff\xfe"')),
        "a lone surrogate": Case(_body(b'"user":"\\ud83d"')),
        "no model": Case(b'{"max_tokens":2,' + MESSAGES + b"}"),
        "model 7": Case(_with_model(b"7")),
        "model null": Case(_with_model(b"null")),
        "model an object": Case(_with_model(b'{"a":1}')),
        "model a list": Case(_with_model(b'["sim-7b"]')),
        "model true": Case(_with_model(b"true")),
        "model empty": Case(_with_model(b'""')),
        "model of 8 KB": Case(_with_model(b'"' + b"m" * 8_000 + b'"'), malformed=False),
        "model of 100 KB": Case(
            _with_model(b'"' + b"m" * 100_000 + b'"')
        ),  # Envoy hands on no value of more than 8 KiB
        "another model": Case(_with_model(b'"gpt-4"'), malformed=False),
        "nested 500 deep": Case(_body(b'"a":' + DEEP[9_500:10_500]), malformed=False),
        "nested 10,000 deep": Case(_body(b'"a":' + DEEP)),  # Envoy's parser gives up between 500 and 1,000
        "nothing but 10,000 brackets": Case(DEEP),
        "100,000 brackets, never closed": Case(b"[" * 100_000),
        "model nested 10,000 deep": Case(_with_model(DEEP)),
        "NaN": Case(_body(b'"a":NaN')),
        "Infinity": Case(_body(b'"a":-Infinity')),
        "1e999": Case(_body(b'"a":1e999')),
        "an integer of 500 digits": Case(_body(b'"a":' + b"9" * 500)),
        "an integer beyond 64 bits": Case(_body(b'"seed":123456789012345678901234567890'), malformed=False),
        "max_tokens of 1e999": Case(_body(b'"max_tokens":1e999')),
        "n of 100 digits": Case(_body(b'"n":' + b"9" * 100), malformed=False),
        "content-type missing": Case(_body(b'"a":1'), None),
        "content-type text": Case(_body(b'"a":1'), "text/plain"),
        "content-type of a form": Case(b"model=sim-7b", "application/x-www-form-urlencoded"),
        "content-type that is none": Case(_body(b'"a":1'), ";;;"),
        "content-type with charset": Case(_body(b'"a":1'), "application/json; charset=utf-8", malformed=False),
        "content-type in capitals": Case(_body(b'"a":1'), "APPLICATION/JSON", malformed=False),
    }
    | {
        f"{name} {value.decode()}": Case(_body(b'"%b":%b' % (name.encode(), value)), malformed=False)
        for name in ("max_tokens", "n", "stream", "stream_options", "max_completion_tokens")
        for value in (b'"12"', b'"x"', b"-1", b"0", b"2.5", b"1e300", b"true", b"null", b"{}", b"[1]", b"1000000000")
    }
)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["pass", "reject"])
async def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    config = {"requests": {"malformed": request.param, "unknown_model": request.param}}
    models = ["*"] if request.param == "pass" else [MODEL]
    async with running(tmp_path_factory.mktemp("stack"), config=config, pool={"models": models}) as rig:
        yield rig


@pytest.fixture
def rejects(request: pytest.FixtureRequest, rig: Rig) -> bool:
    """Whether this service rejects what it cannot read."""
    config = (rig.stack.directory / "fairlane.yaml").read_text()
    return "malformed: reject" in config


async def _post(http: aiohttp.ClientSession, url: str, case: Case, tenant: str) -> Answer:
    headers = {"x-tenant": tenant} | ({} if case.content_type is None else {"content-type": case.content_type})
    skip = ["content-type"]  # aiohttp would invent one
    async with http.post(url + CHAT, data=case.body, headers=headers, skip_auto_headers=skip) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


def _assert_is_refused(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-fairlane-reason"] == code
    assert "retry-after" not in answer.headers
    assert answer.error["code"] == code
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["message"]


@pytest.mark.parametrize("name", CASES)
async def test_body(name: str, rig: Rig, rejects: bool) -> None:
    case, tenant = CASES[name], f"case {name}"
    direct = await _post(rig.http, f"http://{rig.engines[0]}", case, "direct")
    answer = await _post(rig.http, rig.stack.url, case, tenant)
    seen = await rig.seen(tenant)
    if rejects and case.malformed:
        _assert_is_refused(answer, 400, "invalid_request_error")
        assert answer.error["param"] in (None, "model")
        assert not seen
    elif rejects and direct.status == 404:
        _assert_is_refused(answer, 404, "model_not_found")
        assert answer.error["param"] == "model"
        assert not seen
    else:
        assert direct.status < 500
        assert answer.status == direct.status
        if direct.status != 200:
            assert answer.body == direct.body
        assert len(seen) == 1
    assert (await rig.post(chat())).status == 200


async def test_half_a_body_and_then_nothing(rig: Rig) -> None:
    """The client promises more than it sends, and goes. Nobody can be answered; nothing must be left over."""
    body = orjson.dumps(chat())
    for cut in (0, 1, len(body) - 1):
        _, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: {JSON}\r\nx-tenant: half\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body[:cut])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await rig.post(chat())).status == 200
    await rig.books_closed()
    assert not await rig.seen("half")


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: x\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"transfer-encoding: chunked\r\n\r\nnonsense\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\nGET /",
        b"x: \0\r\n\r\n",
    ],
)
async def test_no_http(head: bytes, rig: Rig) -> None:
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: {JSON}\r\n".encode() + head)
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    assert (await rig.post(chat())).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-tenant": ""},
        {"x-tenant": " "},
        {"x-tenant": "t" * 10_000},
        {"x-tenant": "größe-\u00ff"},
        {"x-tenant": "a\tb"},
        {"x-tenant": "x-fairlane"},
        {"x-class": "nonsense"},
        {"x-class": ""},
        {"x-class": "i" * 10_000},
        {"x-request-id": "\u00ff" * 100},
        {"authorization": "Bearer " + "k" * 20_000},
        {"x-forwarded-for": "nonsense, , ,"},
        {"expect": "100-continue"},
    ],
)
async def test_odd_headers(headers: dict[str, str], rig: Rig) -> None:
    answer = await rig.post(chat(), headers=headers)
    assert answer.status == 200
    assert answer.headers["x-fairlane-class"] == "default"


async def test_one_request_id_for_all(rig: Rig) -> None:
    """A client may choose it, so two requests that are under way at once may share one."""
    answers = await asyncio.gather(*(rig.post(chat(8), headers={"x-request-id": "the same"}) for _ in range(20)))
    assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages"])
async def test_every_queued_route(path: str, rig: Rig, rejects: bool) -> None:
    answer = await rig.post(b"hello", path=path)
    assert answer.status == 400
    assert ("x-fairlane-reason" in answer.headers) is rejects
