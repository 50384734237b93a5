"""A real engine that is not vLLM behind the same Envoy and service: llama.cpp's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from llamacpp import make_tiny_gguf
from llamacpp.serve import MODEL_NAME, LlamaServer
from rig import CHAT, COMPLETIONS, Json, Rig, chat, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SLOTS = 2
LONG = 1_000  # tokens; a third of a second or more


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaServer]:
    directory = tmp_path_factory.mktemp("engine")
    model = make_tiny_gguf.write(directory / "tiny.gguf")
    async with LlamaServer(model, directory=directory, slots=SLOTS) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(engine: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    pool = {"window": {"start": SLOTS, "overtake": 0}}
    async with running(tmp_path_factory.mktemp("stack"), engines=[engine.at], pool=pool) as rig:
        yield rig


def _chat(tokens: int, **more: object) -> Json:
    return {**chat(tokens), "model": MODEL_NAME, "temperature": 0, **more}


def _completion(tokens: int, **more: object) -> Json:
    return {"model": MODEL_NAME, "prompt": "once upon a time", "max_tokens": tokens, "temperature": 0, **more}


async def test_its_metrics_are_understood(rig: Rig) -> None:
    endpoint = str(rig.engines[0])
    pool = await rig.until(lambda pool: pool["endpoints"][0]["stance"] == "fresh")
    assert (pool["endpoints"][0]["running"], pool["endpoints"][0]["waiting"]) == (0, 0)
    assert await rig.metric("fairlane_dialect_info", endpoint=endpoint, dialect="llamacpp") == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_both_kinds_of_answers(path: str, rig: Rig) -> None:
    body = _chat(20) if path == CHAT else _completion(20)
    direct = (await rig.post(body, path=path, straight_to=rig.engines[0])).json["choices"]
    counted = await rig.metric("fairlane_settled_requests_total", source="usage")
    answer = await rig.post(body, path=path)
    assert answer.status == 200
    assert answer.json["choices"] == direct
    assert answer.json["usage"]["completion_tokens"] == 20
    streamed = await rig.post({**body, "stream": True, "stream_options": {"include_usage": True}}, path=path)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens":20' in streamed.body
    await until(
        lambda: rig.metric("fairlane_settled_requests_total", source="usage"), lambda count: count == counted + 2
    )


async def test_the_openai_client_streams(rig: Rig) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.stack.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.completions.create(
            model=MODEL_NAME, prompt="once upon a time", max_tokens=30, temperature=0, stream=True
        )
        text = "".join([choice.text async for chunk in stream for choice in chunk.choices])
    assert len(text) == 30  # a letter or a space for each token


async def test_requests_are_held_while_its_slots_are_full(rig: Rig) -> None:
    tasks = [rig.start(_completion(LONG), path=COMPLETIONS, tenant=f"tenant-{i % 2}") for i in range(12)]
    # two run and a few stand in its own queue; most wait here
    pool = await rig.until(lambda pool: pool["queued"] >= 4 and (pool["endpoints"][0]["running"] or 0) > 0)
    assert pool["in_flight"] <= 2 * SLOTS + 4
    answers = await asyncio.gather(*tasks)
    assert {(answer.status, answer.json["usage"]["completion_tokens"]) for answer in answers} == {(200, LONG)}
    assert max(int(answer.headers["x-fairlane-queue-ms"]) for answer in answers) > 0


async def test_a_client_that_leaves_a_stream_frees_its_slot(rig: Rig) -> None:
    async with rig.stream(20_000, model=MODEL_NAME) as answer:
        await answer.content.readuntil(b"\n\n")
        await rig.until_inside(1)
        answer.close()
    await rig.until_inside(0)

    async def running_slots() -> float:
        async with rig.http.get(f"http://{rig.engines[0]}/metrics") as page:
            lines = (await page.text()).splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith("llamacpp:requests_processing "))

    await until(running_slots, lambda count: count == 0, "the engine has stopped")


async def test_a_client_that_leaves_the_queue(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        stay = [group.create_task(rig.post(_completion(LONG), path=COMPLETIONS)) for _ in range(10)]
        await rig.until(lambda pool: pool["queued"] > 0)
        left = await rig.metric("fairlane_cancelled_requests_total")
        leaves = rig.start(_completion(LONG), path=COMPLETIONS, tenant="leaver")
        await rig.until(lambda pool: any(f["tenant"] == "leaver" and f["queued"] for f in pool["flows"]))
        leaves.cancel()
        await until(lambda: rig.metric("fairlane_cancelled_requests_total"), lambda count: count == left + 1)
    assert {task.result().status for task in stay} == {200}
