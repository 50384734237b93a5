"""Fair through and through: who sends little does not wait for who sends much."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rig import COMPLETIONS, MODEL, Answer, Rig, chat, log_of, running

from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    args = ("--max-num-seqs", "4", "--step-base-ms", "10")
    # the guaranteed share of class batch would put its first request before the default ones
    config = {"classes": {"batch": {"min_share": 0}}}
    pool = {"window": {"start": 4}}
    async with running(tmp_path_factory.mktemp("stack"), engine_args=args, config=config, pool=pool, debug=True) as rig:
        yield rig


def _waited_ms(answer: Answer) -> int:
    assert answer.status == 200
    return int(answer.headers["x-fairlane-queue-ms"])


async def test_a_polite_tenant_waits_less_than_a_noisy_one(rig: Rig) -> None:
    noisy = [rig.start(chat(16), tenant="noisy") for _ in range(60)]
    await rig.until(lambda pool: pool["queued"] >= 40, "the burst is held")
    polite = []
    for _ in range(5):
        polite.append(await rig.post(chat(16), tenant="polite"))
        assert any(not task.done() for task in noisy)  # the burst is still there
    burst = await asyncio.gather(*noisy)
    assert max(map(_waited_ms, polite)) < statistics.median(map(_waited_ms, burst))


async def test_lists_of_prompts_do_not_shut_others_out(rig: Rig) -> None:
    """A list runs as one sequence for each prompt, and how many those are is not known when it is released."""
    prompts = {"model": MODEL, "prompt": ["a b c"] * 32, "max_tokens": 8, "ignore_eos": True}
    lists = [rig.start(prompts, path=COMPLETIONS, tenant="lists") for _ in range(8)]
    await rig.until(lambda pool: all(e["foreign"] > 20 for e in pool["endpoints"]), "the windows are overfull")
    polite = await rig.post(chat(2), tenant="polite")
    assert polite.status == 200
    assert any(not task.done() for task in lists)
    assert {answer.status for answer in await asyncio.gather(*lists)} == {200}


async def test_a_higher_class_goes_first(rig: Rig) -> None:
    """All three are held before the first one goes. Envoy's threads may change the order on the way to the engine, so
    the order is that of the service's log."""
    async with rig.hung_engines():
        blockers = [rig.start(chat(), tenant=f"blocker-{i}") for i in range(20)]
        await rig.until(lambda pool: pool["queued"] >= 5 and pool["queued"] + pool["in_flight"] == 20)
        held = (await rig.pool())["queued"]
        tasks = {}
        for number, cls in enumerate(["default", "batch", "interactive"], 1):
            tasks[cls] = rig.start(chat(tenant=cls), tenant="classes", headers={"x-class": cls})
            await rig.until_held(held + number)
    answers = {cls: await task for cls, task in tasks.items()}
    await asyncio.gather(*blockers)
    assert {cls: answer.headers["x-fairlane-class"] for cls, answer in answers.items()} == {c: c for c in tasks}
    cls_of = {e["headers"]["x-fairlane-ticket"]: e["headers"]["x-fairlane-class"] for e in await rig.seen("classes")}
    released = [line["ticket"] for line in log_of(rig.stack.child(FAIRLANE)) if line["event"] == "released"]
    assert [cls_of[ticket] for ticket in released if ticket in cls_of] == ["interactive", "default", "batch"]


async def test_a_class_that_does_not_exist_is_the_default_one(rig: Rig) -> None:
    clamped = await rig.metric("fairlane_clamped_requests_total")
    answer = await rig.post(chat(), headers={"x-class": "vip"})
    assert answer.headers["x-fairlane-class"] == "default"
    assert await rig.metric("fairlane_clamped_requests_total") == clamped + 1
