"""Behind what kgateway makes of our objects: the real Envoy, Fairlane and two engines.

There is no control plane: the configuration is what it would send (tests/wiring/emitted_kgateway.py)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from doctor_run import faults
from mesh_rig import BATCH, DEFAULT, assert_held_in_order, behind, upload
from rig import Rig, chat, until

sys.path.append(str(Path(__file__).resolve().parent.parent / "wiring"))
import emitted_kgateway

from extproc.cli.stack import FAIRLANE
from extproc.wiring.description import Wiring
from extproc.wiring.mesh.kgateway import documents

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BODY = Wiring(profile="body", facts="none", usage="stream", pick="envoy")
DUPLEX = Wiring(profile="duplex", usage="stream", pick="envoy")
POOL = {"pick": {"by": "envoy"}}
_tenants = (f"t{number}" for number in itertools.count())


@pytest.fixture
def tenant() -> str:
    return next(_tenants)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=[BODY, DUPLEX], ids=["body", "duplex"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp("stack")
    async with behind(documents, emitted_kgateway.emit, request.param, directory, pool=POOL) as rig:
        yield rig
        await rig.books_closed()


@pytest_asyncio.fixture(loop_scope="session")
async def rig(stack: Rig) -> AsyncIterator[Rig]:
    yield stack
    await stack.until(lambda pool: pool["queued"] == pool["in_flight"] == 0, "nothing held or inside")


async def settled(rig: Rig) -> tuple[float, float]:
    count = await rig.metric("fairlane_settled_requests_total", source="stream")
    return count, await rig.metric("fairlane_settled_cost_total")


async def test_answers_are_settled_by_their_tokens(rig: Rig, tenant: str) -> None:
    """20 tokens for a message: 6 tokens of prompt cost 1 each, those of the answer 2."""
    await rig.books_closed()
    count, cost = await settled(rig)
    plain = await rig.post(chat(20), tenant=tenant)
    assert plain.status == 200
    assert plain.headers["x-fairlane-class"] == "default"
    async with rig.stream(20, tenant=tenant, stream_options={"include_usage": True}) as streamed:
        assert (await streamed.read()).endswith(b"data: [DONE]\n\n")
    found = await until(lambda: settled(rig), lambda now: now[0] - count == 2, "two are settled")
    assert found[1] - cost == pytest.approx(2 * (6 + 2 * 20))


async def test_forged_headers_go_and_the_priority_is_ours(rig: Rig, tenant: str) -> None:
    forged = {"X-Vllm-Priority": "-9999", "x-fairlane-ticket": "forged", "x-envoy-retry-on": "5xx"}
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


async def test_uploads_and_large_bodies_are_queued(rig: Rig, tenant: str) -> None:
    url = rig.stack.url + "/v1/audio/transcriptions"
    async with rig.http.post(url, data=upload(), headers={"x-tenant": tenant}) as answer:
        assert answer.status == 200
    assert (await rig.post(chat(2, pad="x" * 20_000_000), tenant=tenant)).status == 200
    assert all(entry["headers"]["x-fairlane-ticket"] for entry in await rig.seen(tenant))


async def test_the_doctor_does_not_see_into_a_composite_filter(rig: Rig) -> None:
    """envoy/kgateway/README.md says so."""
    assert [each["id"] for each in await faults(rig)] == ["ext_proc_missing"]


async def test_a_held_request_does_not_outlive_fairlane(
    stack: Rig, tenant: str, request: pytest.FixtureRequest
) -> None:
    """What envoy/kgateway/README.md says of it: in the profile body it passes, in duplex it fails."""
    headers = {"x-class": "batch"}
    async with stack.hung_engines():
        inside = stack.start(chat(), tenant=tenant, headers=headers)
        await stack.until_inside(1)
        held = stack.start(chat(), tenant=tenant, headers={**headers, "x-number": "held"})
        await stack.until_held(1)
        await stack.stack.kill(FAIRLANE)
    answers = [(await inside).status, (await held).status]
    entries = [each for each in await stack.seen(tenant) if each["headers"].get("x-number")]
    forged = {"X-Vllm-Priority": "-9999", "x-fairlane-ticket": "forged"}
    away = await stack.post(chat(), tenant=f"{tenant}-away", headers=forged)
    entries += await stack.seen(f"{tenant}-away")
    if "duplex" in request.node.name:
        assert [*answers, away.status] == [500, 500, 500]
        assert entries == []
    else:
        assert [*answers, away.status] == [200, 200, 200]
        assert len(entries) == 2
        for entry in entries:
            assert not {"x-vllm-priority", "x-fairlane-ticket"} & set(entry["headers"])
    await stack.stack.start_child(FAIRLANE)
    assert (await stack.post(chat(), tenant=tenant)).headers["x-fairlane-class"] == "default"
