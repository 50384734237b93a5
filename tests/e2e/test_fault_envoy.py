"""Envoy's side breaks: Envoy is killed, its access log does not arrive, its retries are used up."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from replicas import ROOMY, Scene, cluster, envoy_stat, ext_proc, manager
from rig import FAST_ENGINE, Rig, chat, running, until

from extproc.cli.ports import HostPort, free_ports
from extproc.cli.stack import ENVOY, FAIRLANE, ServiceAddresses

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

INSIDE = 3
CONFIG = {"classes": {"default": {"max_in_flight": INSIDE}}}
ENGINE = ("--step-base-ms", "20", "--step-per-seq-ms", "0")
ROUNDS, CROWD = 6, 200


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("stack"), engine_args=ENGINE, config=CONFIG, pool=ROOMY) as rig:
        yield rig


async def _ends(task: asyncio.Task[Any]) -> None:
    """Its connection was broken, before the answer or in the middle of it."""
    with pytest.raises(aiohttp.ClientError):
        await task


async def test_envoy_is_killed(rig: Rig) -> None:
    """All clients lose their connections. Nothing of them stays, here or in the engine."""
    scene = Scene([rig], "envoy killed", inside=INSIDE, held=20)
    await scene.set_up()
    await rig.stack.kill(ENVOY)
    for task in (*scene.streams, *scene.held):
        await _ends(task)
    await rig.books_closed()
    await until(lambda: rig.seen("streams"), lambda seen: [entry["state"] for entry in seen] == ["aborted"] * INSIDE)
    assert await rig.seen("envoy killed") == []
    await rig.stack.start_child(ENVOY)
    assert (await rig.post(chat())).status == 200


async def test_envoy_is_killed_again_and_again(rig: Rig) -> None:
    """Nothing grows: neither memory nor what is open. The first rounds fill what stays allocated."""
    readings = []
    for _ in range(ROUNDS):
        async with rig.hung_engines():
            crowd = [rig.start(chat(user="x" * 10_000), tenant=f"crowd-{i % 7}") for i in range(CROWD)]
            await rig.until(lambda pool: pool["queued"] + pool["in_flight"] == CROWD, "all are there")
            await rig.stack.kill(ENVOY)
            for task in crowd:
                await _ends(task)
        await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == 0)
        await rig.stack.start_child(ENVOY)
        readings.append([await rig.metric(f"process_{what}") for what in ("open_fds", "resident_memory_bytes")])
    await rig.books_closed()
    (files, memory), (files_now, memory_now) = readings[1], readings[-1]
    assert files_now <= files + 2
    assert memory_now <= memory + 8 * 1024**2


@pytest.mark.parametrize("how", ["nobody listens", "refused"])
async def test_the_access_log_does_not_arrive(how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Costs are reckoned from the time that a request took. `refused`: a gRPC server that has not that service."""
    nowhere, admin = (HostPort("127.0.0.1", port) for port in free_ports(2))
    at = admin if how == "refused" else nowhere

    def patch(config: dict[str, Any]) -> None:
        other = copy.deepcopy(cluster(config))
        other["name"] = other["load_assignment"]["cluster_name"] = "elsewhere"
        socket_address = {"address": at.host, "port_value": at.port}
        endpoint = {"endpoint": {"address": {"socket_address": socket_address}}}
        other["load_assignment"]["endpoints"] = [{"lb_endpoints": [endpoint]}]
        config["static_resources"]["clusters"].append(other)
        (log,) = manager(config)["access_log"]
        log["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "elsewhere"

    directory = tmp_path_factory.mktemp("stack")
    service = ServiceAddresses.free(1)[0]._replace(admin=admin)
    async with running(directory, engine_args=FAST_ENGINE, envoy_patch=patch, replicas=[service]) as rig:
        rig.service_at = service.http
        answers = await asyncio.gather(*(rig.post(chat(), tenant=f"t{i % 3}") for i in range(30)))
        assert Counter(answer.status for answer in answers) == {200: 30}
        await rig.books_closed()
        assert await rig.metric("fairlane_settled_requests_total", source="time") == 30
        assert await rig.metric("fairlane_access_log_entries_total") == 0


@pytest.mark.parametrize("allow", [True, False], ids=["fail open", "fail closed"])
async def test_fairlane_stays_away(allow: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Once Envoy's retries are used up. With one filter that fails closed an answer under way is cut at once, which is
    why the profile `strict` has two."""

    def patch(config: dict[str, Any]) -> None:
        ext_proc(config)["failure_mode_allow"] = allow
        ext_proc(config)["grpc_service"]["retry_policy"]["num_retries"] = 2

    directory = tmp_path_factory.mktemp("stack")
    async with running(directory, engine_args=ENGINE, config=CONFIG, pool=ROOMY, envoy_patch=patch) as rig:
        scene = Scene([rig], "away", inside=INSIDE, held=10)
        await scene.set_up()
        await rig.stack.kill(FAIRLANE)
        if allow:
            await scene.move_on()
            await scene.assert_all_succeed()
            assert await envoy_stat(rig, "http.llm.ext_proc.failure_mode_allowed") == INSIDE + 10
        else:
            for stream in scene.streams:
                await _ends(stream)
            assert Counter(answer.status for answer in await asyncio.gather(*scene.held)) == {500: 10}
            assert await rig.seen("away") == []
            await until(lambda: rig.seen("streams"), lambda seen: {entry["state"] for entry in seen} == {"aborted"})
        for answer in (*(task.result() for task in scene.held), await rig.post(chat())):
            assert answer.status == (200 if allow else 500)
            assert not [name for name in answer.headers if name.lower().startswith("x-fairlane-")]
        await rig.stack.start_child(FAIRLANE)
        assert (await rig.post(chat())).headers["x-fairlane-class"] == "default"
        await rig.books_closed()
