"""Behind what Envoy Gateway makes of our objects and patches: the real Envoy, Fairlane and two engines.

There is no control plane: the configuration is what it would send (tests/wiring/emitted_envoy_gateway.py)."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from doctor_run import faults
from mesh_rig import BATCH, DEFAULT, assert_held_in_order, behind, upload
from rig import MODEL, Rig, chat, until

sys.path.append(str(Path(__file__).resolve().parent.parent / "wiring"))
import emitted_envoy_gateway
from mesh_case import manager_of

from extproc.cli.stack import FAIRLANE
from extproc.wiring.description import Wiring
from extproc.wiring.mesh.envoy_gateway import documents
from extproc.wiring.parts import Data

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_tenants = (f"t{number}" for number in itertools.count())


@pytest.fixture
def tenant() -> str:
    return next(_tenants)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp("stack")
    async with behind(documents, emitted_envoy_gateway.emit, Wiring(), directory) as rig:
        yield rig
        await rig.books_closed()


@pytest_asyncio.fixture(loop_scope="session")
async def rig(stack: Rig) -> AsyncIterator[Rig]:
    yield stack
    await stack.until(lambda pool: pool["queued"] == pool["in_flight"] == 0, "nothing held or inside")


async def settled(rig: Rig) -> tuple[float, float]:
    count = await rig.metric("fairlane_settled_requests_total", source="usage")
    return count, await rig.metric("fairlane_settled_cost_total")


async def test_answers_are_settled_by_their_tokens(rig: Rig, tenant: str) -> None:
    """20 tokens for a message: 6 tokens of prompt cost 1 each, those of the answer 2."""
    await rig.books_closed()
    count, cost = await settled(rig)
    plain = await rig.post(chat(20), tenant=tenant)
    async with rig.stream(20, tenant=tenant, stream_options={"include_usage": True}) as streamed:
        assert (await streamed.read()).endswith(b"data: [DONE]\n\n")
        assert int(streamed.headers["x-fairlane-queue-ms"]) >= 0
    assert plain.status == 200
    for entry in await rig.seen(tenant):
        assert entry["headers"]["x-fairlane-ticket"]
    found = await until(lambda: settled(rig), lambda now: now[0] - count == 2, "two are settled")
    assert found[1] - cost == pytest.approx(2 * (6 + 2 * 20))


async def test_fairlane_chooses_the_engine_and_the_answer_says_which(rig: Rig, tenant: str) -> None:
    answers = await asyncio.gather(*(rig.post(chat(3), tenant=tenant) for _ in range(12)))
    named = sorted(answer.headers["x-fairlane-endpoint"] for answer in answers)
    took = []
    for engine in rig.engines:
        async with rig.http.get(f"http://{engine}/sim/requests") as answer:
            entries = await answer.json()
        took += [
            (str(engine), e["headers"]["x-fairlane-endpoint"])
            for e in entries
            if e["headers"].get("x-tenant") == tenant
        ]
    assert all(engine == told for engine, told in took)
    assert sorted(engine for engine, _ in took) == named
    assert set(named) == {str(engine) for engine in rig.engines}


async def test_forged_headers_go_and_the_priority_is_ours(rig: Rig, tenant: str) -> None:
    forged = {
        "X-Vllm-Priority": "-9999",
        "x-fairlane-ticket": "forged",
        "X-Fairlane-Invented": "forged",
        "x-envoy-retry-on": "5xx",
        "x-envoy-max-retries": "9",
    }
    assert (await rig.post(chat(), tenant=tenant, headers=forged)).status == 200
    (entry,) = await rig.seen(tenant)
    assert entry["headers"]["x-vllm-priority"] == str(DEFAULT)
    assert not {"forged", "-9999", "5xx"} & set(entry["headers"].values())


async def test_held_in_order_and_released_with_their_priority(rig: Rig, tenant: str) -> None:
    await assert_held_in_order(rig, tenant, BATCH)


async def test_other_routes_are_untouched(rig: Rig) -> None:
    answer = await rig.get("/v1/models")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith(("x-fairlane", "server-timing"))]
    before = await rig.metric("fairlane_requests_total")
    assert (await rig.post(b'{"prompt": "a b"}', path="/tokenize")).status in (200, 404)
    assert await rig.metric("fairlane_requests_total") == before


async def test_uploads_are_queued_by_the_model_in_their_form(rig: Rig, tenant: str) -> None:
    url = rig.stack.url + "/v1/audio/transcriptions"
    async with rig.http.post(url, data=upload(), headers={"x-tenant": tenant}) as answer:
        assert answer.status == 200
        assert int(answer.headers["x-fairlane-queue-ms"]) >= 0
    (entry,) = await rig.seen(tenant)
    assert entry["headers"]["x-fairlane-ticket"]


async def test_large_bodies_arrive_and_too_large_ones_are_refused(rig: Rig, tenant: str) -> None:
    assert (await rig.post(chat(2, pad="x" * 20_000_000), tenant=tenant)).status == 200
    answer = await rig.post(chat(2, pad="x" * 34_000_000), tenant=tenant)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


async def test_the_doctor_finds_nothing(rig: Rig) -> None:
    assert await faults(rig) == []


async def test_held_requests_outlive_fairlane(stack: Rig, tenant: str) -> None:
    headers = {"x-class": "batch"}
    async with stack.hung_engines():
        inside = stack.start(chat(), tenant=tenant, headers=headers)
        await stack.until_inside(1)
        held = stack.start(chat(), tenant=tenant, headers={**headers, "x-number": "held"})
        await stack.until_held(1)
        await stack.stack.kill(FAIRLANE)
        await stack.stack.start_child(FAIRLANE)
        await stack.until_inside(1)  # it has asked again, and this Fairlane knows of no other of its class
    assert [(await inside).status, (await held).status] == [200, 200]
    entry = next(each for each in await stack.seen(tenant) if each["headers"].get("x-number"))
    assert entry["headers"]["x-fairlane-ticket"]
    assert entry["priority"] == BATCH


async def test_without_fairlane_requests_pass_with_one_priority_for_all(tmp_path: Path) -> None:
    """Two minutes of attempts are too long for a test, so this Envoy tries twice only."""

    def hasty(config: Data) -> None:
        for each in manager_of(config)["http_filters"]:
            if each["name"].startswith("envoy.filters.http.ext_proc/"):
                each["typed_config"]["grpc_service"]["retry_policy"]["num_retries"] = 2

    async with behind(documents, emitted_envoy_gateway.emit, Wiring(), tmp_path, change=hasty) as rig:
        await rig.stack.kill(FAIRLANE)
        headers = {"X-Vllm-Priority": "-9999", "x-fairlane-ticket": "forged"}
        answer = await rig.post(chat(priority=-5), tenant="a", headers=headers)
        assert answer.status == 200
        (entry,) = await rig.seen("a")
        assert entry["priority"] == DEFAULT
        assert "x-fairlane-ticket" not in entry["headers"]
        assert (await rig.get("/v1/models")).status == 200


async def test_strict_holds_follows_and_refuses_without_fairlane(tmp_path: Path) -> None:
    def hasty(config: Data) -> None:
        for each in manager_of(config)["http_filters"]:
            policy = each["typed_config"].get("grpc_service", {}).get("retry_policy")
            if policy is not None:
                policy["num_retries"] = 2

    wiring = Wiring(profile="strict")
    async with behind(documents, emitted_envoy_gateway.emit, wiring, tmp_path, change=hasty) as rig:
        answer = await rig.post(chat(20), tenant="a")
        assert answer.status == 200
        (entry,) = await rig.seen("a")
        assert entry["headers"]["x-fairlane-ticket"]
        await rig.books_closed()
        assert await rig.metric("fairlane_settled_requests_total", source="usage") == 1
        assert {each["id"] for each in await faults(rig)} == {"retry_span"}  # which `hasty` has made short
        await rig.stack.kill(FAIRLANE)
        answer = await rig.post({"model": MODEL, "messages": []}, tenant="b")
        assert (answer.status, answer.error["code"]) == (503, "fairlane_unavailable")
        assert await rig.seen("b") == []
