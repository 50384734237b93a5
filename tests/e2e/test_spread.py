"""Three replicas, each model at one of them: by what the client wrote into the body, whatever that is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from replicas import Replicas, replicated
from rig import FAST_ENGINE, Answer, chat, until

from extproc.wiring.description import Profile, Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

MODELS = [f"model-{number}" for number in range(6)]
ENGINE = (*FAST_ENGINE, "--model", MODELS[0])  # the others are scheduled all the same, and answered 404 by it
ODD: list[Any] = [
    *('quo"te', "new\nline", "cr\r\nx-vllm-priority: 1", "nul\0", "del\x7f", "tab\t", "ü€", "", " "),
    *("a%REQ(cookie)%b", "y" * 5_000, "z" * 10_000, "w" * 1_000_000, 5, 1.5, True, None, [], {"a": 1}),
]


@pytest.fixture(scope="module", params=["standard", "strict", "body"])
def profile(request: pytest.FixtureRequest) -> Profile:
    found: Profile = request.param
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(tmp_path_factory: pytest.TempPathFactory, profile: Profile) -> AsyncIterator[Replicas]:
    wiring = Wiring(profile=profile, spread="model")
    async with replicated(tmp_path_factory.mktemp(profile), 3, engine_args=ENGINE, wiring=wiring) as started:
        await started.until_envoy(healthy=3)
        yield started


async def taken(replicas: Replicas) -> Counter[str]:
    """Requests that each running replica has released."""
    return Counter(
        {
            name: int(await rig.metric("fairlane_released_requests_total"))
            for name, rig in replicas.each.items()
            if replicas.child(name).running
        }
    )


async def homes(replicas: Replicas, model: str, count: int = 8) -> set[str]:
    """The replicas to which `count` requests for the model go."""
    before = await taken(replicas)
    answers = await asyncio.gather(*(replicas.rig.post(chat(model=model)) for _ in range(count)))
    assert Counter(answer.status for answer in answers) == {200 if model == MODELS[0] else 404: count}
    after = await taken(replicas)
    assert (after - before).total() == count
    return set(after - before)


async def test_each_model_has_one_replica_and_goes_to_another_one_while_that_is_away(replicas: Replicas) -> None:
    first = {model: await homes(replicas, model) for model in MODELS}
    assert all(len(names) == 1 for names in first.values()), first
    assert len(set.union(*first.values())) > 1, "all six at one replica: nothing was spread"
    gone = next(iter(first[MODELS[0]]))
    await replicas.rig.stack.kill(gone)
    await replicas.until_envoy(healthy=2)
    meanwhile = {model: await homes(replicas, model) for model in MODELS}
    # Some of the others' may move as well: with fewer replicas each has more points on Envoy's ring.
    assert all(len(names) == 1 for names in meanwhile.values()), meanwhile
    assert {gone} not in meanwhile.values()
    await replicas.rig.stack.start_child(gone)
    await replicas.until_envoy(healthy=3)
    assert {model: await homes(replicas, model) for model in MODELS} == first
    await replicas.books_closed()


async def test_a_held_request_goes_on_at_another_replica_when_its_own_dies(replicas: Replicas) -> None:
    (home,) = await homes(replicas, MODELS[0])
    async with replicas.rig.hung_engines():
        inside = [replicas.rig.start(chat(model=MODELS[0])) for _ in range(60)]
        pool = await replicas.each[home].until(lambda pool: pool["queued"] + pool["in_flight"] == 60, "all are there")
        held = pool["queued"]
        assert held > 10
        await replicas.rig.stack.kill(home)

        async def elsewhere() -> list[int]:
            pools = [await rig.pool() for name, rig in replicas.each.items() if name != home]
            return sorted(pool["queued"] + pool["in_flight"] for pool in pools)

        assert await until(elsewhere, lambda counts: sum(counts) == held, "all held ones came again") == [0, held]
    answers = await asyncio.gather(*inside)
    assert Counter(answer.status for answer in answers) == {200: 60}
    await replicas.rig.stack.start_child(home)
    await replicas.until_envoy(healthy=3)
    await replicas.books_closed()


async def test_whatever_stands_for_the_model_is_answered_at_once_and_breaks_nothing(replicas: Replicas) -> None:
    """The engine does not know them (404), or does not take them (400); nothing is Envoy's or Fairlane's fault."""

    async def asked(model: object) -> Answer:
        async with asyncio.timeout(20):  # a header that Envoy refuses would be tried again for two minutes
            return await replicas.rig.post(chat(model=model))

    for model in ODD:
        before = await taken(replicas)
        statuses = {(await asked(model)).status for _ in range(2)}
        assert statuses <= {200, 400, 404}, (model, statuses)
        assert (await taken(replicas) - before).total() == 2, f"{str(model)[:20]!r} has passed unscheduled"
    before = await taken(replicas)
    async with asyncio.timeout(20):
        assert (await replicas.rig.post(b"not json")).status == 400
        assert (await replicas.rig.post(chat())).status == 404  # the plain one; sim-7b is not served here
    assert (await taken(replicas) - before).total() == 2
    await replicas.books_closed()
