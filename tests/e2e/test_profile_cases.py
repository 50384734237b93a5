"""Every profile and every way to count tokens: the same requests get the same answers, and the same care."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import http2
import orjson
import pytest
import pytest_asyncio
from profile_case import BATCH, DEFAULT, MAX_BODY, Case, body_of, cases, started
from rig import CHAT, DEADLINE_S, MODEL, Answer, Rig, chat, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
JSON = {"content-type": "application/json"}
_tenants = (f"t{i}" for i in itertools.count())


@pytest.fixture(scope="module", params=cases(), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(case: Case, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with started(case, tmp_path_factory.mktemp("stack")) as rig:
        yield rig
        await rig.books_closed()


@pytest_asyncio.fixture(loop_scope="session")
async def rig(stack: Rig) -> AsyncIterator[Rig]:
    yield stack
    await stack.until(lambda pool: pool["queued"] == pool["in_flight"] == 0, "nothing held or inside")


@pytest.fixture
def tenant() -> str:
    return next(_tenants)


async def settled(rig: Rig) -> dict[str, float]:
    names = ("usage", "stream", "time", "estimate", "error", "abort")
    found = {name: await rig.metric("fairlane_settled_requests_total", source=name) for name in names}
    return {**found, "cost": await rig.metric("fairlane_settled_cost_total")}


async def raw(rig: Rig, request: bytes) -> bytes:
    """What the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    try:
        writer.write(request)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    finally:
        writer.close()


def assert_scheduled(entry: dict[str, Any], answer: Answer | None = None) -> None:
    """The engine got it by way of the queue."""
    assert entry["headers"].get("x-fairlane-ticket"), entry
    if answer is not None:
        assert answer.headers["x-fairlane-class"] == entry["headers"]["x-fairlane-class"]
        assert answer.headers["x-fairlane-endpoint"] == entry["headers"]["x-fairlane-endpoint"]
        assert int(answer.headers["x-fairlane-queue-ms"]) >= 0


async def test_plain_and_streamed_answers_are_settled(rig: Rig, case: Case, tenant: str) -> None:
    """20 tokens for a message: 6 tokens of prompt cost 1 each, those of the answer 2."""
    await rig.books_closed()
    before = await settled(rig)
    plain = await rig.post(chat(20), tenant=tenant)
    async with rig.stream(20, tenant=tenant, stream_options={"include_usage": True}) as streamed:
        events = (await streamed.read()).split(b"\n\n")
        assert int(streamed.headers["x-fairlane-queue-ms"]) >= 0
    assert plain.status == 200
    assert plain.json["usage"]["completion_tokens"] == 20
    assert events[-2:] == [b"data: [DONE]", b""]
    assert sum(b'"content":" ' in event for event in events) == 20
    for entry in await rig.seen(tenant):
        assert_scheduled(entry, plain)

    async def changed() -> dict[str, float]:
        return {k: v - before[k] for k, v in (await settled(rig)).items() if v != before[k]}

    found = await until(changed, lambda f: sum(n for k, n in f.items() if k != "cost") >= 2, "two are settled")
    assert found.keys() - {"cost"} <= case.sources
    if case.wiring.usage != "estimate":
        assert found["cost"] == pytest.approx(2 * (6 + 2 * 20))


async def test_the_priority_is_ours_and_nothing_else_changes(rig: Rig, case: Case, tenant: str) -> None:
    body = b'{ "priority": -5, "model":"%b",\n"max_tokens":1, "messages":[{"role":"user","content":"\\u00e9}"}],' % (
        MODEL.encode()
    )
    body += b'"seed": 9007199254740993, "x": {"y": [1.0, {}]} }\r\n'
    answer = await rig.post(body, tenant=tenant, headers={"X-Vllm-Priority": "-9999"})
    assert answer.status == 200
    (entry,) = await rig.seen(tenant)
    assert entry["headers"].get("x-vllm-priority") == (str(DEFAULT) if case.by_header else None)
    assert entry["priority"] == DEFAULT
    edited = body.replace(b"} }\r\n", b'} ,"priority":%d}\r\n' % DEFAULT) if case.edits else body
    assert await body_of(rig, entry) == edited


async def test_held_in_order_and_left(rig: Rig, tenant: str) -> None:
    """One of the class may be inside. Of those that wait, one leaves, and the others go in the order of arrival."""
    headers = {"x-class": "batch"}
    async with rig.hung_engines():
        inside = rig.start(chat(), tenant=tenant, headers=headers)
        await rig.until_inside(1)
        held = []
        for number in range(4):
            held.append(rig.start(chat(), tenant=tenant, headers={**headers, "x-number": str(number)}))
            await rig.until_held(number + 1)
        held.pop(1).cancel()
        await rig.until_held(3)
        assert len(await rig.seen(tenant)) == 1
    answers = await asyncio.gather(inside, *held)
    assert [answer.status for answer in answers] == [200] * 4
    entries = await rig.seen(tenant)
    assert [entry["headers"].get("x-number") for entry in entries] == [None, "0", "2", "3"]
    assert {entry["priority"] for entry in entries} == {BATCH}


async def test_a_full_queue_refuses(rig: Rig) -> None:
    """Tenant `small` may have one waiting."""
    headers = {"x-class": "batch"}
    async with rig.hung_engines():
        tasks = [rig.start(chat(), tenant="small", headers=headers)]
        await rig.until_inside(1)
        tasks.append(rig.start(chat(), tenant="small", headers=headers))
        await rig.until_held(1)
        answer = await rig.post(chat(), tenant="small", headers=headers)
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
    assert (answer.status, answer.error["code"]) == (429, "tenant_limit")
    assert answer.headers["x-fairlane-reason"] == "tenant_limit"
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_client_leaves_its_answer(rig: Rig, tenant: str) -> None:
    async with rig.stream(5_000, tenant=tenant) as answer:
        await answer.content.readuntil(b"\n\n")
        answer.close()
    await rig.until_inside(0)
    (entry,) = await rig.seen(tenant)
    assert entry["tokens"] < 5_000


async def test_twenty_megabytes(rig: Rig, case: Case, tenant: str) -> None:
    """With and without a length known beforehand. The engine refuses so long a prompt, having read all of it."""
    body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (MODEL.encode(), b"word " * 4_000_000)
    edited = body[:-1] + b',"priority":%d}' % DEFAULT if case.edits else body
    for data in (body, _pieces(body)):
        async with rig.http.post(rig.stack.url + CHAT, data=data, headers={**JSON, "x-tenant": tenant}) as answer:
            assert answer.status == 400
            assert b"maximum context length" in await answer.read()
    for entry in await rig.seen(tenant):
        assert_scheduled(entry)
        assert entry["body_sha256"] == hashlib.sha256(edited).hexdigest()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 2**20):
        yield body[start : start + 2**20]


async def test_too_large(rig: Rig, tenant: str) -> None:
    body = b'{"model":"%b","x":"%b"}' % (MODEL.encode(), b"x" * MAX_BODY)
    answer = await rig.post(body, tenant=tenant)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert answer.headers["x-fairlane-reason"] == "body_too_large"
    assert await rig.seen(tenant) == []


async def test_without_a_body(rig: Rig, tenant: str) -> None:
    """GET is not queued; a POST without a body is, and it is the engine that refuses it."""
    async with rig.http.get(rig.stack.url + CHAT) as answer:
        assert answer.status == 405
        assert "x-fairlane-class" not in answer.headers
    assert (await rig.post(b"", tenant=tenant)).status == 400
    (entry,) = await rig.seen(tenant)
    assert_scheduled(entry)


async def test_http2_http10_and_trailers(rig: Rig, tenant: str) -> None:
    """Over HTTP/1.1 Envoy takes a body's trailers off; what matters is that the body's end is seen."""
    body = orjson.dumps(chat(1))
    fields = ((b"x-tenant", tenant.encode()),)
    assert await http2.request(rig.stack.addresses.envoy, CHAT, body, fields) == 200
    head = f"host: x\r\ncontent-type: application/json\r\nx-tenant: {tenant}\r\n".encode()
    old = b"POST %b HTTP/1.0\r\n%bcontent-length: %d\r\n\r\n%b" % (CHAT.encode(), head, len(body), body)
    assert (await raw(rig, old)).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n" % (10, body[:10], len(body) - 10, body[10:])
    head += b"connection: close\r\ntransfer-encoding: chunked\r\n"
    request = b"POST %b HTTP/1.1\r\n%b\r\n%b0\r\nx-trailer: 1\r\n\r\n" % (CHAT.encode(), head, chunks)
    assert (await raw(rig, request)).startswith(b"HTTP/1.1 200")
    entries = await rig.seen(tenant)
    assert len(entries) == 3
    for entry in entries:
        assert_scheduled(entry)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 2}),
    ("/v1/responses", {"model": MODEL, "input": "hello", "max_output_tokens": 2, "stream": True}),
    ("/v1/messages", chat(2, stream=True)),
    ("/v1/embeddings", {"model": MODEL, "input": ["hello", "you"]}),
    ("/v1/rerank", {"model": MODEL, "query": "hello", "documents": ["a", "b"]}),
    ("/v1/audio/speech", {"model": MODEL, "input": "hello"}),
    ("/generate", {"inputs": "hello", "parameters": {"max_new_tokens": 2, "details": True}}),
    ("/generate_stream", {"inputs": "hello", "parameters": {"max_new_tokens": 2, "details": True}}),
]


async def test_the_other_routes(rig: Rig, tenant: str) -> None:
    answers = [(path, await rig.post(body, path=path, tenant=tenant)) for path, body in OTHERS]
    assert [(path, answer.status) for path, answer in answers] == [(path, 200) for path, _ in OTHERS]
    entries = {entry["path"]: entry for entry in await rig.seen(tenant)}
    for path, answer in answers:
        assert_scheduled(entries[path], answer)


async def test_uploads_name_their_model_in_the_form(rig: Rig, tenant: str) -> None:
    """No pool serves the second one, and it is Fairlane that knows."""
    found = {}
    for path, model in (("transcriptions", MODEL), ("translations", "no-such-model")):
        form = aiohttp.FormData()
        form.add_field("file", bytes(300_000), filename="a.wav", content_type="audio/wav")
        form.add_field("model", model)
        url, headers = f"{rig.stack.url}/v1/audio/{path}", {"x-tenant": tenant}
        async with rig.http.post(url, data=form, headers=headers) as answer:
            found[path] = answer.status, orjson.loads(await answer.read())
    assert found["transcriptions"][0] == 200
    assert found["translations"][0] == 404
    assert found["translations"][1]["error"]["code"] == "model_not_found"
    (entry,) = await rig.seen(tenant)
    assert_scheduled(entry)
    assert entry["body_bytes"] > 300_000
