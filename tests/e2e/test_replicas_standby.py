"""Three replicas in mode standby behind a real Envoy: one serves, and when it dies or ends another one does. Of three
one is less than the half below which Envoy would ask all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from replicas import ROOMY, Replicas, replicated
from rig import FAST_ENGINE, chat, until

from extproc.cli.cluster_rig import store_server
from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

COUNT = 3
INSIDE = 4
HELD = 30


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    folder = tmp_path_factory.mktemp("standby")
    async with store_server(folder / "store") as store:
        section = {"mode": "standby", "replicas": COUNT, "store": {"addresses": [str(store.at)]}}
        config = {"cluster": section, "classes": {"default": {"max_in_flight": INSIDE}}}
        async with replicated(
            folder, COUNT, engine_args=FAST_ENGINE, config=config, pool=ROOMY, wiring=Wiring(mode="standby")
        ) as found:
            yield found


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(shared: Replicas) -> AsyncIterator[Replicas]:
    for name in shared.names:
        if not shared.child(name).running:
            await shared.rig.stack.start_child(name)
    yield shared
    await shared.books_closed()


async def active(replicas: Replicas) -> list[str]:
    """The running replicas that say that they are."""
    found = []
    for name, rig in replicas.each.items():
        if replicas.child(name).running and await rig.metric("fairlane_cluster_active"):
            found.append(name)
    return found


async def until_one_serves(replicas: Replicas, other_than: str = "") -> str:
    """Until one is active, and Envoy knows it."""
    (name,) = await until(
        lambda: active(replicas), lambda names: len(names) == 1 and names != [other_than], "one is active"
    )

    async def serving() -> list[str]:
        url = f"http://{replicas.rig.stack.addresses.envoy_admin}/clusters?format=json"
        async with replicas.rig.http.get(url) as answer:
            clusters = (await answer.json())["cluster_statuses"]
        hosts = next(each["host_statuses"] for each in clusters if each["name"] == "fairlane")
        well = [h for h in hosts if not h["health_status"].get("failed_active_health_check")]
        ports = [each["address"]["socket_address"]["port_value"] for each in well]
        known = zip(replicas.names, replicas.rig.stack.options.replicas, strict=True)
        return [name for name, at in known if at.ext_proc.port in ports]

    await until(serving, lambda names: names == [name], f"Envoy knows that {name} serves")
    return name


async def released(replicas: Replicas) -> Counter[str]:
    return Counter(
        {
            name: int(await rig.metric("fairlane_released_requests_total"))
            for name, rig in replicas.each.items()
            if replicas.child(name).running
        }
    )


async def assert_all_go_to(replicas: Replicas, name: str, count: int = 30) -> None:
    before = await released(replicas)
    answers = await asyncio.gather(*(replicas.rig.post(chat()) for _ in range(count)))
    assert Counter(answer.status for answer in answers) == {200: count}
    assert await released(replicas) - before == {name: count}


async def test_one_gets_everything(replicas: Replicas) -> None:
    name = await until_one_serves(replicas)
    await assert_all_go_to(replicas, name)
    for other in set(replicas.names) - {name}:
        async with replicas.rig.http.get(f"http://{replicas.each[other].service_at}/readyz") as answer:
            assert answer.status == 200, "it stands by, and is ready to"


@pytest.mark.parametrize("way", ["killed", "told to end"])
async def test_what_it_held_is_answered_by_others_and_one_of_them_takes_its_place(replicas: Replicas, way: str) -> None:
    gone = await until_one_serves(replicas)
    async with replicas.rig.hung_engines():
        tasks = [
            replicas.rig.start(chat(), tenant=f"held, {way}", headers={"x-number": str(number)})
            for number in range(INSIDE + HELD)
        ]
        await replicas.each[gone].until_held(HELD)
        if way == "killed":
            await replicas.rig.stack.kill(gone)
        else:
            ending = asyncio.create_task(replicas.rig.stack.stop_child(gone))

        async def elsewhere() -> int:
            pools = [await rig.pool() for name, rig in replicas.each.items() if name != gone]
            return sum(pool["queued"] + pool["in_flight"] for pool in pools)

        await until(elsewhere, lambda count: count == HELD, "all that were held are at the others")
    if way != "killed":
        await ending
        assert replicas.child(gone).exit_code == 0
    assert Counter(answer.status for answer in await asyncio.gather(*tasks)) == {200: INSIDE + HELD}
    numbers = Counter(entry["headers"]["x-number"] for entry in await replicas.rig.seen(f"held, {way}"))
    assert numbers == {str(number): 1 for number in range(INSIDE + HELD)}, "each ran once"
    then = await until_one_serves(replicas, other_than=gone)
    await assert_all_go_to(replicas, then)
    await replicas.rig.stack.start_child(gone)
    assert await until_one_serves(replicas) == then, "who comes back stands by"
    await assert_all_go_to(replicas, then)
