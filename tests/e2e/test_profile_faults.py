"""The service is killed, or away: what each profile promises for what is held, what streams and what comes then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from profile_case import BODY, DEFAULT, STANDARD, STRICT, Case, body_of, minor, started
from rig import CHAT, Rig, chat, until

from extproc.cli.stack import FAIRLANE, ServiceAddresses

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

LONG = 400  # tokens: at 10 ms a token, 4 s of streaming
HELD = 5
SLOW_ENGINE = ("--step-base-ms", "10", "--step-per-seq-ms", "0", "--step-per-prefill-token-ms", "0")


async def _stream(rig: Rig, received: bytearray) -> None:
    async with rig.stream(LONG, tenant="streams") as answer:
        async for piece in answer.content.iter_any():
            received += piece


@pytest.mark.parametrize("case", [STANDARD, STRICT, BODY], ids=lambda case: case.name)
async def test_killed_while_requests_are_held_and_an_answer_streams(case: Case, tmp_path: Path) -> None:
    """Both go on: the held ones are sent again to the next process, each once, and in the order in which they came."""
    async with started(case, tmp_path, engine_args=SLOW_ENGINE) as rig:
        received = bytearray()
        stream = asyncio.create_task(_stream(rig, received))
        await rig.until_inside(1)
        inside = rig.start(chat(LONG), tenant="x", headers={"x-class": "batch"})
        await rig.until_inside(2)
        held = []
        for number in range(HELD):
            held.append(rig.start(chat(), tenant="x", headers={"x-class": "batch", "x-number": str(number)}))
            await rig.until_held(number + 1)
        await rig.stack.kill(FAIRLANE)
        assert not any(task.done() for task in (stream, inside, *held))
        await rig.stack.start_child(FAIRLANE)
        answers = await asyncio.gather(inside, *held)
        await stream
        assert [answer.status for answer in answers] == [200] * (HELD + 1)
        assert received.endswith(b"data: [DONE]\n\n")
        assert received.count(b'"content":" ') == LONG
        entries = [e for e in await rig.seen("x") if "x-number" in e["headers"]]
        assert sorted(e["headers"]["x-number"] for e in entries) == [str(i) for i in range(HELD)]
        assert all(e["headers"]["x-fairlane-ticket"] for e in entries)


def _few_attempts(envoy: dict[str, Any]) -> None:
    """The shipped two minutes are long for a test."""
    manager = envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    for each in manager["http_filters"]:
        policy = each["typed_config"].get("grpc_service", {}).get("retry_policy")
        if policy is not None:
            policy["num_retries"] = 2


async def test_strict_refuses_what_it_cannot_schedule(tmp_path: Path) -> None:
    async with started(STRICT, tmp_path, envoy_patch=_few_attempts) as rig:
        await rig.stack.kill(FAIRLANE)
        answer = await rig.post(chat(), tenant="x")
        assert (answer.status, answer.error["code"]) == (503, "fairlane_unavailable")
        assert answer.headers["x-fairlane-reason"] == "fairlane_unavailable"
        assert answer.headers["retry-after"] == "5"
        assert (await rig.get("/v1/models")).status == 200  # not queued, so not refused
        assert await rig.seen("x") == []
        await rig.stack.start_child(FAIRLANE)

        async def works() -> int:
            return (await rig.post(chat(), tenant="x")).status

        assert await until(works, lambda status: status == 200) == 200
        await rig.books_closed()


async def test_body_passes_what_it_cannot_schedule(tmp_path: Path) -> None:
    """As the client sent it, but for the header that says the priority."""
    async with started(BODY, tmp_path, envoy_patch=_few_attempts) as rig:
        await rig.stack.kill(FAIRLANE)
        body = b'{"model":"sim-7b", "max_tokens":1, "messages":[{"role":"user","content":"a"}]}'
        answer = await rig.post(body, path=CHAT, tenant="x", headers={"x-vllm-priority": "-5"})
        assert answer.status == 200
        (entry,) = await rig.seen("x")
        assert entry["headers"]["x-vllm-priority"] == str(DEFAULT)
        assert "x-fairlane-ticket" not in entry["headers"]
        assert await body_of(rig, entry) == body


async def test_strict_holds_and_follows_on_the_same_of_two_replicas(tmp_path: Path) -> None:
    """A ticket is known to the replica that gave it. Both get requests, and no ticket comes to the other one."""
    if minor() <= 36:
        pytest.skip("Envoy 1.36 has no hash policy for a cluster")
    services = ServiceAddresses.free(2)
    async with started(STRICT, tmp_path, replicas=services) as rig:
        each = [Rig(rig.stack, rig.http) for _ in services]
        for one, service in zip(each, services, strict=True):
            one.service_at = service.http

        async def healthy() -> str:
            url = f"http://{rig.stack.addresses.envoy_admin}/stats?filter=cluster.fairlane.membership_healthy"
            async with rig.http.get(url) as stats:
                return (await stats.text()).strip()

        async def fewest() -> float:
            """Of both, what the one has released that has released less, after some more requests."""
            answers = await asyncio.gather(*(rig.post(chat(1)) for _ in range(10)))
            assert {answer.status for answer in answers} == {200}
            return min(await _of_each(each, "fairlane_released_requests_total"))

        # A ring that changes may lose a ticket, so wait until Envoy has found both, and its workers use both.
        await until(healthy, lambda text: text.endswith(": 2"))
        so_far = await fewest()
        so_far = await until(fewest, lambda released: released >= so_far + 5)
        lost = await _of_each(each, "fairlane_passed_requests_total", why="untracked")
        await until(fewest, lambda released: released >= so_far + 30)
        assert await _of_each(each, "fairlane_passed_requests_total", why="untracked") == lost
        for one in each:
            await one.until(lambda pool: pool["queued"] == pool["in_flight"] == 0)


async def _of_each(rigs: list[Rig], metric: str, **labels: str) -> list[float]:
    return [await one.metric(metric, **labels) for one in rigs]
