"""Who is active, by a real store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis_rig import RedisServer, eventually, redis_server, wall
from store_case import store

from extproc.cluster.standby import Standby
from extproc.cluster.store import Store

LEASE_S = 9.0  # longer than a busy machine stands still


class Candidate:
    def __init__(self, link: Store, replica: str, life: str = "l", lease_s: float = LEASE_S) -> None:
        self.turns: list[bool] = []
        self.standby = Standby(
            link,
            replica,
            life,
            lease_s=lease_s,
            on_active=lambda: self.turns.append(True),
            on_standby=lambda: self.turns.append(False),
        )

    @property
    def active(self) -> bool:
        return self.standby.active


@contextlib.asynccontextmanager
async def _running(*candidates: Candidate) -> AsyncIterator[None]:
    for each in candidates:
        each.standby.start()
    try:
        yield
    finally:
        for each in candidates:
            await each.standby.stop()
        names = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
        assert "cluster lease" not in names


async def test_one_of_three_is_active_and_all_know_which(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        all_three = [Candidate(link, name) for name in ("a", "b", "c")]
        async with _running(*all_three):
            await eventually("all know", lambda: all(each.standby.holder for each in all_three))
            active = [each for each in all_three if each.active]
            assert len(active) == 1
            assert {each.standby.holder for each in all_three} == {"a"} and active[0] is all_three[0]
            assert [each.turns for each in all_three] == [[True], [], []]


@pytest.mark.slow
async def test_a_lease_that_is_given_back_is_taken_by_another_one(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two = Candidate(link, "one"), Candidate(link, "two")
        async with _running(one):
            await eventually("one is active", lambda: one.active)
            async with _running(two):
                await eventually("two has asked", lambda: two.standby.holder == "one")
                await one.standby.stop()
                assert not one.active and one.turns == [True], "its stop calls nothing"
                await eventually("two is active", lambda: two.active)


@pytest.mark.slow
async def test_one_that_dies_is_replaced_when_its_lease_is_over(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        await link.acquire("active", "dead x", 3.0)
        other = Candidate(link, "other", lease_s=60.0)  # it asks again when that one's lease ends, not in 20 s
        async with _running(other):
            await eventually("the other one is active", lambda: other.active)


async def test_a_new_process_with_the_same_id_is_another_one(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        old, new = Candidate(link, "same", "old"), Candidate(link, "same", "new")
        await old.standby.once()
        await new.standby.once()
        assert old.active and not new.active and new.standby.holder == "same"


@pytest.mark.slow
async def test_one_that_was_frozen_for_longer_than_its_lease_steps_down(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        frozen, other = Candidate(link, "frozen", lease_s=1.0), Candidate(link, "other", lease_s=60.0)
        await frozen.standby.once()
        assert frozen.active
        while not other.active:
            await other.standby.once()
        await frozen.standby.once()
        assert frozen.turns == [True, False] and frozen.standby.holder == "other" and frozen.standby.changes == 2


async def test_while_the_store_is_lost_nobody_changes(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings()) as link:
            one, two = Candidate(link, "one"), Candidate(link, "two")
            await one.standby.once()
            await two.standby.once()
            server.kill()
            for each in (one, two, one, two):
                assert 0.0 <= await each.standby.once() <= LEASE_S / 3
            assert one.active and not two.active and one.turns == [True] and two.turns == []
            for each in (one, two):
                assert each.standby.error is not None and each.standby.error.kind == "unreachable"
                assert each.standby.lost_since is not None
            server.start()  # empty
            await two.standby.once()
            await one.standby.once()
            assert two.active and not one.active, "whoever comes first has it, and the other one steps down"
            assert one.standby.error is None and one.standby.lost_since is None


@pytest.mark.slow
async def test_one_that_alone_has_lost_the_store_steps_down_when_it_is_back(server: RedisServer) -> None:
    async with (
        wall(server) as between,
        store(between.settings(), timeout_s=0.2) as cut,
        store(server.settings()) as link,
    ):
        one, two = Candidate(cut, "one", lease_s=1.0), Candidate(link, "two", lease_s=60.0)
        async with _running(one):
            await eventually("one is active", lambda: one.active)
            between.open.clear()
            while not two.active:
                await two.standby.once()
                await asyncio.sleep(0)
            assert one.active, "both are, until it hears"
            between.cut()
            between.open.set()
            await eventually("it steps down", lambda: not one.active)
            assert one.turns == [True, False] and two.active


async def test_no_fault_of_a_callback_ends_the_loop(server: RedisServer) -> None:
    def fault() -> None:
        raise RuntimeError("a fault")

    async with store(server.settings()) as link:
        standby = Standby(link, "one", "l", lease_s=LEASE_S, on_active=fault, on_standby=fault)
        await standby.once()
        assert standby.active
        await standby.once()
        assert standby.holder == "one"
