"""Changes of the configuration through a real store: replicas with the real exchange between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis_rig import RedisServer, eventually, redis_server

from extproc.admin.change import Result
from extproc.admin.errors import AdminError
from extproc.admin.records import Author
from extproc.admin.revisions import Revisions
from extproc.cluster.configuration import SharedConfiguration
from extproc.cluster.errors import StoreError
from extproc.cluster.exchange import Exchange
from extproc.cluster.news import News
from extproc.cluster.store import Store
from extproc.config.administration import Administration
from extproc.config.faults import ConfigError
from extproc.config.load import FileData
from extproc.config.model import Config
from extproc.config.shared import SharedRevision
from extproc.core.sharing.words import PoolReport

ALICE = Author("alice", "admin", "ipv4:192.0.2.1:4711", "UpdateConfig")
NAME = "configured"
KEY = "{fairlane:configured}:1:configuration"


def data(weight: int = 2) -> dict[str, Any]:
    return {
        "pools": [{"name": "llama", "models": ["llama-3"], "endpoints": ["10.0.0.1:8000"]}],
        "tenants": {"acme": {"weight": weight}},
    }


class Control:
    """Puts everything in force at once."""

    serving = True

    def check(self, config: Config) -> None: ...

    async def prepare(self, _config: Config) -> Callable[[], None]:
        return lambda: None

    def running(self) -> Sequence[Any]:
        return ()


class Replica:
    """As the service wires it, without pools."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.name = name
        self.store = Store(server.settings(), NAME, 2.0)
        self.shared = SharedConfiguration(self.store, NAME, name, wake=lambda: self.exchange.wake(), wait_s=30)
        self.exchange = Exchange(self.store, self, name, period_s=0.05, lease_s=30)
        self.revisions = Revisions.open(FileData.of(data()), Administration())

    async def start(self) -> None:
        self.revisions.attach(Control())  # type: ignore[arg-type]
        await self.revisions.join(self.shared)
        self.exchange.start()

    async def stop(self) -> None:
        await self.exchange.stop()
        await self.store.close()
        await self.revisions.close()

    def tell(self) -> tuple[Sequence[PoolReport], Mapping[str, Any]]:
        return (), self.shared.info()

    def heard(self, news: News) -> None:
        self.shared.heard(news.configuration, news.infos, news.time_ms)

    def lost(self, error: StoreError) -> None:
        self.shared.lost(error.message)

    def busy(self) -> bool:
        return self.shared.busy

    @property
    def weight(self) -> float:
        return self.revisions.config.tenant("acme").weight

    async def set(self, weight: int) -> Result:
        patch = {"tenants": {"acme": {"weight": weight}}}
        return await self.revisions.patch(
            ALICE, patch, None, reason="a test", ttl_s=None, etag="", validate_only=False
        )  # fmt: skip


@pytest.fixture
async def three(server: RedisServer) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        yield [await started(stack, server, name) for name in ("a", "b", "c")]


async def started(stack: AsyncExitStack, server: RedisServer, name: str) -> Replica:
    replica = Replica(server, name)
    stack.push_async_callback(replica.stop)
    await replica.start()
    return replica


async def all_know_all(replicas: Sequence[Replica]) -> None:
    await eventually("all know all", lambda: all(len(each.exchange.state.peers) == 2 for each in replicas))


@pytest.mark.slow
async def test_a_change_is_everywhere_when_it_is_told(three: list[Replica], server: RedisServer) -> None:
    await all_know_all(three)
    result = await three[0].set(3)
    assert [(each.replica, each.taken) for each in result.replicas] == [("a", True), ("b", True), ("c", True)]
    assert [each.weight for each in three] == [3, 3, 3]
    assert server.ask("HGET", KEY, "number") == b"1"
    assert server.ask("PTTL", KEY) == -1  # what was changed does not end with the replicas
    there = SharedRevision.from_bytes(server.ask("HGET", KEY, "document"))
    assert (there.who, there.replica, there.revision) == ("alice", "a", 1)


async def test_changes_at_all_at_once_are_done_or_refused_whole(three: list[Replica], server: RedisServer) -> None:
    await all_know_all(three)
    done = await asyncio.gather(*(each.set(10 + n) for n, each in enumerate(three)), return_exceptions=True)
    refused = [each for each in done if isinstance(each, BaseException)]
    assert len(refused) < 3
    for error in refused:
        assert isinstance(error, AdminError)
        assert error.code is grpc.StatusCode.ABORTED
    assert int(server.ask("HGET", KEY, "number")) == 3 - len(refused)
    there = SharedRevision.from_bytes(server.ask("HGET", KEY, "document"))
    last = there.overlay.settings[-1].value
    await eventually("all have the last one", lambda: all(each.weight == last for each in three))


@pytest.mark.slow
async def test_an_emptied_store_is_filled_again(three: list[Replica], server: RedisServer) -> None:
    await all_know_all(three)
    await three[0].set(3)
    server.ask("FLUSHALL")
    await eventually("it is offered again", lambda: server.ask("HGET", KEY, "number") is not None)
    await three[1].set(4)
    assert SharedRevision.from_bytes(server.ask("HGET", KEY, "document")).revision == 2
    await eventually("all have it", lambda: [each.weight for each in three] == [4, 4, 4])


@pytest.mark.slow
async def test_a_store_that_was_down_gets_what_was_changed_meanwhile(tmp_path: Path) -> None:
    with redis_server(tmp_path / "own") as server:
        async with AsyncExitStack() as stack:
            three = [await started(stack, server, name) for name in ("a", "b", "c")]
            await all_know_all(three)
            await three[0].set(3)
            server.kill()
            result = await three[1].set(4)
            assert [each.weight for each in three] == [3, 4, 3]
            assert {each.replica: each.taken for each in result.replicas} == {"b": True, "a": False, "c": False}
            (warning,) = [each for each in result.warnings if each.path == "cluster.store"]
            assert str(server.port) in warning.message
            server.start()  # empty
            await eventually("all have it", lambda: [each.weight for each in three] == [4, 4, 4])


@pytest.mark.slow
async def test_a_key_of_something_else_is_told_and_the_change_is_in_force_here(
    three: list[Replica], server: RedisServer
) -> None:
    await all_know_all(three)
    server.ask("SET", KEY, "mine")
    result = await three[0].set(3)
    (warning,) = [each for each in result.warnings if each.path == "cluster.store"]
    assert "of another type" in warning.message
    assert (three[0].weight, result.replicas[0].taken) == (3, True)
    server.ask("DEL", KEY)
    await eventually("all have it", lambda: [each.weight for each in three] == [3, 3, 3])


async def test_who_starts_later_has_it_before_it_serves(three: list[Replica], server: RedisServer) -> None:
    await three[0].set(3)
    async with AsyncExitStack() as stack:
        late = Replica(server, "late")
        stack.push_async_callback(late.stop)
        late.revisions.attach(Control())  # type: ignore[arg-type]
        await late.revisions.join(late.shared)
        assert late.weight == 3


@pytest.mark.slow
async def test_a_number_that_is_none_is_told_and_the_next_change_takes_its_place(
    three: list[Replica], server: RedisServer
) -> None:
    await all_know_all(three)
    server.ask("HSET", KEY, "number", "x", "document", "y")
    with pytest.raises(ConfigError, match=r"a number that is none.*the next change takes its place"):
        await three[0].shared.read()
    await eventually("all are told", lambda: all(each.exchange.state.bad > 0 for each in three))
    result = await three[0].set(3)
    assert "cluster.store" not in [each.path for each in result.warnings]
    assert server.ask("HGET", KEY, "number") == b"1"
    assert SharedRevision.from_bytes(server.ask("HGET", KEY, "document")).replica == "a"
    await eventually("all have it", lambda: [each.weight for each in three] == [3, 3, 3])
