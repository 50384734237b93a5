"""Envoy with its configuration in files (envoy/xds): the same as the complete file, and changes are taken live.

What a change does to held requests is what envoy/xds/README.md says of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from replicas import ROOMY, envoy_stat
from rig import Json, Rig, chat, running, until

from extproc.cli.stack import envoy_binary
from extproc.wiring.mesh import xds

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]

HELD = 5


class Files:
    """Envoy's folder. A file is replaced as `mv` does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: dict[str, Json] = {}
        folder.mkdir()

    def split(self, config: Json) -> None:
        """To be given to a stack as its patch: leaves the bootstrap there, and writes the others."""
        made = xds.files(config, str(self.folder))
        self.now = {name: made[name] for name in made if name != xds.BOOTSTRAP}
        for name, data in self.now.items():
            self.put(name, data)
        config.clear()
        config.update(made[xds.BOOTSTRAP])

    def put(self, name: str, data: Json) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps(data))
        new.rename(self.folder / name)

    def change(self, name: str, spoil: Callable[[Any], None]) -> None:
        data = copy.deepcopy(self.now[name])
        spoil(data["resources"])
        self.now[name] = data
        self.put(name, data)


@contextlib.asynccontextmanager
async def scene(directory: Path, *, drain_s: int = 600) -> AsyncIterator[tuple[Rig, Files]]:
    files = Files(directory / "xds")
    envoy = directory / "envoy"
    envoy.write_text(f'#!/bin/sh\nexec "{envoy_binary()}" "$@" --drain-time-s {drain_s}\n')
    envoy.chmod(envoy.stat().st_mode | stat.S_IXUSR)
    config = {"classes": {"default": {"max_in_flight": 1}}}
    async with running(
        directory / "stack", envoy_patch=files.split, envoy_binary=envoy, config=config, pool=ROOMY
    ) as rig:
        yield rig, files


@contextlib.asynccontextmanager
async def held(rig: Rig) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """One request is with an engine that stands still, the others are held; all go on at the end."""
    async with rig.hung_engines():
        tasks = [rig.start(chat(), tenant=f"t{number}") for number in range(HELD + 1)]
        try:
            await rig.until(lambda pool: (pool["in_flight"], pool["queued"]) == (1, HELD), "one inside, the rest held")
            yield tasks
        except BaseException:
            for task in tasks:
                task.cancel()
            raise


async def stat_is(rig: Rig, name: str, wanted: Callable[[int], bool]) -> int:
    return await until(lambda: envoy_stat(rig, name), wanted, name)


async def assert_all_answered_once(rig: Rig, tasks: list[asyncio.Task[Any]]) -> None:
    answers = await asyncio.gather(*tasks)
    assert [answer.status for answer in answers] == [200] * len(tasks)
    assert all("x-fairlane-queue-ms" in answer.headers for answer in answers), "one has passed unscheduled"
    assert len(await rig.seen()) == len(tasks)
    await rig.books_closed()


async def test_it_schedules_and_counts_like_the_complete_file(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, _):
        for name in ("listener_manager.lds", "cluster_manager.cds", "http.llm.rds.llm"):
            await stat_is(rig, f"{name}.update_success", bool)
            assert await envoy_stat(rig, f"{name}.update_rejected") == 0
        async with held(rig) as tasks:
            pass
        await assert_all_answered_once(rig, tasks)
        assert all(int(entry["headers"]["x-vllm-priority"]) > 0 for entry in await rig.seen())
        assert await rig.metric("fairlane_settled_requests_total", source="usage") == HELD + 1


async def test_changed_routes_are_taken_and_nothing_held_is_touched(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:

            def add(resources: Any) -> None:
                new = {"match": {"path": "/new"}, "direct_response": {"status": 204}, "name": "new"}
                resources[0]["virtual_hosts"][0]["routes"].insert(0, new)

            assert (await rig.get("/new")).status == 404
            files.change(xds.ROUTES, add)
            await until(lambda: rig.get("/new"), lambda answer: answer.status == 204, "the new route")
            assert not any(task.done() for task in tasks)
        await assert_all_answered_once(rig, tasks)


async def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:

            def spoil(resources: Any) -> None:
                resources[0]["virtual_hosts"][0]["routes"][0]["route"]["cluster"] = ""

            files.change(xds.ROUTES, spoil)
            await stat_is(rig, "http.llm.rds.llm.update_rejected", bool)
        await assert_all_answered_once(rig, tasks)


def _idle(resources: Any) -> None:
    manager = resources[0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["request_headers_timeout"] = "29s"


async def test_a_changed_listener_leaves_what_is_held_for_the_time_of_draining(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:
            files.change(xds.LISTENERS, _idle)
            await stat_is(rig, "listener_manager.total_filter_chains_draining", lambda count: count == 1)
            fresh = rig.start(chat(), tenant="later")
            await rig.until_held(HELD + 1)
        await assert_all_answered_once(rig, [*tasks, fresh])


async def test_what_is_still_held_at_the_end_of_draining_is_lost(tmp_path: Path) -> None:
    """Why --drain-time-s has to be longer than the longest queue_timeout and answer."""
    async with scene(tmp_path, drain_s=2) as (rig, files):
        async with held(rig) as tasks:
            files.change(xds.LISTENERS, _idle)
            await rig.until_held(0)  # Envoy closed the connections, and Fairlane let them go
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, Exception) for each in results), results
        assert (await rig.post(chat())).status == 200
        await rig.books_closed()


def _named(resources: Any, name: str) -> Any:
    return next(each for each in resources if each["name"] == name)


def _faster(resources: Any) -> None:
    _named(resources, "fairlane")["connect_timeout"] = "2s"


async def test_what_is_held_at_a_cluster_of_fairlane_passes_unscheduled_when_that_is_changed(tmp_path: Path) -> None:
    """Why it should not be."""
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:
            files.change(xds.CLUSTERS, _faster)
            await rig.until_held(0)
        answers = await asyncio.gather(*tasks)
        assert [answer.status for answer in answers] == [200] * len(tasks)
        assert sum("x-fairlane-queue-ms" in answer.headers for answer in answers) == 1  # the one that was inside
        await rig.books_closed()


async def test_a_cluster_of_fairlane_by_a_new_name_touches_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:

            def second(resources: Any) -> None:
                new = copy.deepcopy(_named(resources, "fairlane"))
                new["name"] = "fairlane-2"
                new["connect_timeout"] = "2s"
                resources.append(new)

            def use(resources: Any) -> None:
                text = json.dumps(resources).replace('"cluster_name": "fairlane"', '"cluster_name": "fairlane-2"')
                resources[:] = json.loads(text)

            files.change(xds.CLUSTERS, second)
            await stat_is(rig, "cluster_manager.cluster_added", lambda count: count == 3)
            files.change(xds.LISTENERS, use)
            await stat_is(rig, "listener_manager.total_filter_chains_draining", lambda count: count == 1)
            later = rig.start(chat(), tenant="later")
            await rig.until_held(HELD + 1)
            assert await envoy_stat(rig, "cluster.fairlane-2.upstream_rq_active") >= 1
        await assert_all_answered_once(rig, [*tasks, later])


async def test_changed_endpoints_touch_nothing(tmp_path: Path) -> None:
    """Of Fairlane and of the engines: the list gets longer, by one that nobody listens at."""
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:

            def longer(resources: Any) -> None:
                endpoints = resources[0]["endpoints"][0]["lb_endpoints"]
                new = copy.deepcopy(endpoints[0])
                new["endpoint"]["address"]["socket_address"]["address"] = "127.0.0.254"
                endpoints.append(new)

            for name in ("fairlane", "vllm"):
                files.change(xds.ENDPOINTS.format(name), longer)
                await stat_is(rig, f"cluster.{name}.membership_total", lambda count: count == 2)
            assert (await rig.pool())["queued"] == HELD
        await assert_all_answered_once(rig, tasks)


async def test_a_changed_cluster_of_engines(tmp_path: Path) -> None:
    async with scene(tmp_path) as (rig, files):
        async with held(rig) as tasks:

            def slower(resources: Any) -> None:
                _named(resources, "vllm")["connect_timeout"] = "6s"

            files.change(xds.CLUSTERS, slower)
            await stat_is(rig, "cluster_manager.cluster_modified", lambda count: count == 1)
        await assert_all_answered_once(rig, tasks)
