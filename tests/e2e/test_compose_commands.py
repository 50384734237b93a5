"""The commands, configuration files and health checks of compose.yaml do what they are there for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from compose_case import Composed, composed
from rig import CHAT, chat, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

REQUESTS = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Composed]:
    async with composed(tmp_path_factory.mktemp("compose")) as stack:
        yield stack


async def query(http: aiohttp.ClientSession, stack: Composed, path: str, **params: str) -> Any:
    async with http.get(f"http://{stack.at['prometheus']}:9090/api/v1/{path}", params=params) as answer:
        body = await answer.json()
    assert body["status"] == "success", body
    return body["data"]


async def test_requests_are_answered_and_seen_in_prometheus(stack: Composed) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def one(tenant: str) -> tuple[int, str]:
            url = f"http://{stack.at['envoy']}:10000{CHAT}"
            async with http.post(url, json=chat(2), headers={"x-tenant": tenant}) as answer:
                await answer.read()
                return answer.status, answer.headers.get("x-fairlane-endpoint", "")

        answers = await asyncio.gather(*(one(f"team-{i % 2}") for i in range(REQUESTS)))
        assert {status for status, _ in answers} == {200}
        # Found by their name, both used, and chosen by Fairlane
        assert {endpoint for _, endpoint in answers} == {f"{stack.at[name]}:8000" for name in stack.engines}

        async def up() -> dict[str, str]:
            found = await query(http, stack, "query", query="up")
            return {f"{e['metric']['job']} {e['metric']['instance']}": e["value"][1] for e in found["result"]}

        wanted = {f"fairlane {stack.at['fairlane']}:9090": "1", f"envoy {stack.at['envoy']}:9901": "1"}
        wanted |= {f"engine {stack.at[name]}:8000": "1" for name in stack.engines}
        await until(up, lambda found: found == wanted, "everything is read")

        async def served() -> float:
            found = await query(http, stack, "query", query="sum(fairlane_released_requests_total)")
            return sum(float(each["value"][1]) for each in found["result"])

        await until(served, lambda count: count >= REQUESTS, "the requests are counted")

        async def unheard() -> list[str]:
            groups = (await query(http, stack, "rules"))["groups"]
            return [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]

        await until(unheard, lambda names: names == [], "every rule was evaluated")
        groups = (await query(http, stack, "rules"))["groups"]
        assert "FairlaneDown" in {rule["name"] for group in groups for rule in group["rules"]}


async def test_health_checks_find_what_is_down(stack: Composed) -> None:
    """The last test: it stops everything, in the order in which `docker compose down` does."""
    long_running = [name for name, service in stack.services.items() if "healthcheck" in service]
    assert set(long_running) == set(stack.services) - {"wiring"}
    for name in long_running:
        assert await stack.healthy(name)
    for name in ("prometheus", "envoy", "fairlane", *stack.engines):
        child = stack.children[name]
        assert await child.stop(40), f"{name} had to be killed"
        assert child.exit_code == 0, child.tail()
        assert not await stack.healthy(name)
    for name, child in stack.children.items():
        said = child.log.read_text(errors="replace")
        assert not any(mark in said for mark in ('"level": "error"', "Traceback", "[critical]")), (name, said)
