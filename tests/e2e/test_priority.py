"""The priority that the engine uses is Fairlane's, whatever a client sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rig import COMPLETIONS, Rig, chat

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

DEFAULT, BATCH = 1_000_000, 2_000_000  # as in the shipped fairlane.yaml


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({}, {"X-Vllm-Priority": "-9999"}),
        ({"priority": -9999}, {}),
        ({"priority": -9999}, {"x-vllm-priority": "-9999", "x-fairlane-class": "interactive"}),
        ({"priority": "no number"}, {"X-VLLM-PRIORITY": "no number"}),
    ],
    ids=["header", "body", "both", "both odd"],
)
async def test_a_clients_own_has_no_effect(
    body: dict[str, Any], headers: dict[str, str], rig: Rig, request: pytest.FixtureRequest
) -> None:
    tenant = request.node.name
    answer = await rig.post(chat(**body), tenant=tenant, headers=headers)
    (entry,) = await rig.seen(tenant)
    assert entry["headers"]["x-vllm-priority"] == str(DEFAULT)
    assert entry["headers"]["x-fairlane-class"] == answer.headers["x-fairlane-class"] == "default"
    if body.get("priority") == "no number":
        assert answer.status == 400  # the engine's business, and its answer
    else:
        assert answer.status == 200
        assert entry["priority"] == DEFAULT


async def test_base_of_the_class_and_one_more_for_each_that_the_tenant_has_inside(rig: Rig) -> None:
    async with rig.hung_engines():
        running = []
        for number, headers in enumerate([{}, {}, {"x-class": "batch"}, {}], 1):
            running.append(rig.start(chat(), tenant="base", headers=headers))
            await rig.until_inside(number)
        running.append(rig.start(chat(), tenant="another"))
        await rig.until_inside(5)
    assert [answer.status for answer in await asyncio.gather(*running)] == [200] * 5
    tickets = {answer.headers["x-fairlane-class"] for answer in (task.result() for task in running)}
    assert tickets == {"default", "batch"}
    assert sorted(e["priority"] for e in await rig.seen("base")) == [DEFAULT, DEFAULT + 1, DEFAULT + 3, BATCH + 2]
    assert [e["priority"] for e in await rig.seen("another")] == [DEFAULT]


@pytest.mark.parametrize(
    "path",
    [
        "/v1//completions",
        "/v1/%63ompletions",
        "/v1/./completions",
        "/v1/x/../completions",
        "/v1%2Fcompletions",
        "/v1/completions?a=b",
    ],
)
async def test_no_spelling_of_a_path_passes_by_the_queue(path: str, rig: Rig, request: pytest.FixtureRequest) -> None:
    """Each of these is a completion to an engine, so each must have waited its turn."""
    from yarl import URL

    tenant, body = request.node.name.encode().hex(), b'{"model":"sim-7b","prompt":"a","max_tokens":1,"priority":-5}'
    url = URL(rig.stack.url + path, encoded=True)
    headers = {"content-type": "application/json", "x-tenant": tenant}
    async with rig.http.post(url, data=body, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["x-fairlane-class"] == "default"
    (entry,) = await rig.seen(tenant)
    assert entry["path"] == COMPLETIONS
    assert entry["priority"] == DEFAULT
