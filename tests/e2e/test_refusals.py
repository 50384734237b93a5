"""What a client gets that cannot be served: the status, an error that OpenAI clients read, and when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from rig import FAST_ENGINE, MODEL, Answer, Rig, chat, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

CONFIG = {
    "classes": {
        "interactive": {"queue_timeout": "300ms"},
        "default": {"max_in_flight": 1, "max_queued": 3},
    },
    "tenants": {"small": {"max_queued": 1}},
    "requests": {"max_body": "1MiB"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    pool = {"window": {"start": 1, "overtake": 0}, "metrics": {"interval": "50ms", "idle_interval": "100ms"}}
    async with running(tmp_path_factory.mktemp("stack"), config=CONFIG, pool=pool, engine_args=FAST_ENGINE) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def full(rig: Rig) -> AsyncIterator[Rig]:
    """Class default: its only slot is taken, and tenant `small` has the one request waiting that it may have."""
    async with rig.hung_engines():
        tasks = [rig.start(chat(), tenant="blocker")]
        await rig.until_inside(1)
        tasks.append(rig.start(chat(), tenant="small"))
        await rig.until_held(1)
        yield rig
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


def _assert_refused(answer: Answer, status: int, kind: str, code: str, named: str) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-fairlane-reason"] == code
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.error["type"] == kind
    assert answer.error["code"] == code
    assert answer.error["param"] is None
    assert named in answer.error["message"]  # the setting that was hit


async def test_tenants_queue_full(full: Rig) -> None:
    answer = await full.post(chat(), tenant="small")
    _assert_refused(answer, 429, "rate_limit_error", "tenant_limit", "max_queued of the tenant")


async def test_class_queue_full(full: Rig) -> None:
    tasks = [full.start(chat(), tenant=f"other-{i}") for i in range(2)]
    await full.until_held(3)
    answer = await full.post(chat(), tenant="one too many")
    _assert_refused(answer, 429, "rate_limit_error", "queue_full", "max_queued of the class")
    for task in tasks:
        task.cancel()
    await full.until_held(1)


async def test_queue_timeout(full: Rig) -> None:
    """Class interactive may wait for 300 ms. The window is kept full by others of its class."""
    headers = {"x-class": "interactive"}
    tasks = [full.start(chat(), tenant="quick", headers=headers) for _ in range(20)]
    answers = [task async for task in _done(tasks, at_least=1)]
    _assert_refused(answers[0], 503, "service_unavailable", "queue_timeout", "queue_timeout of the class")
    await full.faults()
    rest = await asyncio.gather(*tasks)
    assert {answer.status for answer in rest} == {200, 503}
    await full.faults(hang=True)


async def _done(tasks: list[asyncio.Task[Answer]], at_least: int) -> AsyncIterator[Answer]:
    for _, next_done in zip(range(at_least), asyncio.as_completed(tasks), strict=False):
        yield await next_done


async def test_body_too_large_for_fairlane(rig: Rig) -> None:
    answer = await rig.post(chat(filler="x" * 2**20))
    assert answer.status == 413
    assert answer.headers["x-fairlane-reason"] == "body_too_large"
    assert answer.error["code"] == "body_too_large"
    assert answer.error["type"] == "invalid_request_error"
    assert "retry-after" not in answer.headers


async def test_body_too_large_for_envoy(rig: Rig) -> None:
    """More than the 32 MiB that the route's buffer holds: Envoy refuses it in the same words."""
    answer = await rig.post(chat(filler="x" * 33 * 2**20))
    assert answer.status == 413
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-fairlane-reason"] == "body_too_large"
    assert answer.error["code"] == "body_too_large"


async def test_the_openai_client_raises_with_the_code(full: Rig) -> None:
    url, headers = f"{full.stack.url}/v1", {"x-tenant": "small"}
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=stream
                )
            assert caught.value.code == "tenant_limit"
            assert caught.value.type == "rate_limit_error"
            assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_the_openai_client_comes_back_when_it_is_told_to(rig: Rig) -> None:
    """With its own retries it is served once the queue has room."""
    url, headers = f"{rig.stack.url}/v1", {"x-tenant": "small"}
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=5, default_headers=headers) as client:
        async with rig.hung_engines():
            blockers = [rig.start(chat(), tenant="blocker")]
            await rig.until_inside(1)
            blockers.append(rig.start(chat(), tenant="small"))
            await rig.until_held(1)
            refused = await rig.metric("fairlane_refused_requests_total", reason="tenant_limit")
            call = asyncio.create_task(
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=2
                )
            )
            await until(
                lambda: rig.metric("fairlane_refused_requests_total", reason="tenant_limit"), lambda n: n > refused
            )
        assert (await call).usage is not None
        await asyncio.gather(*blockers)


async def test_no_engine_at_all(rig: Rig) -> None:
    await rig.stack.kill("engine-1")
    try:
        await rig.until(lambda pool: pool["endpoints"][0]["stance"] == "down", "the engine is found to be gone")
        answer = await rig.post(chat(), tenant="nobody home", headers={"x-class": "interactive"})
        _assert_refused(answer, 503, "service_unavailable", "no_capacity", "no endpoint of pool 'sim' answered")
    finally:
        await rig.stack.start_child("engine-1")
    assert (await rig.post(chat(), tenant="back again")).status == 200
