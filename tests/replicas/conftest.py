"""Replicas in the test's process, ended with it; the store is of the whole run, and empty for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from replicas_case import Replica

from redis_rig import RedisServer, redis_server  # isort: skip  # found through replicas_case
from service_case import Engine  # isort: skip


@pytest.fixture(scope="session")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def store(_store: RedisServer) -> RedisServer:
    """Empty. For tests that leave it running."""
    _store.ask("FLUSHALL")
    return _store


@pytest.fixture
def logs() -> Iterator[Any]:
    """What is logged."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def replica(engine: Engine, logs: Any) -> AsyncIterator[Callable[..., Replica]]:
    """Starts one: `replica(store's address, id, mode, ...)`."""
    made: list[Replica] = []

    def start(store: str, name: str | None, mode: str, **config: Any) -> Replica:
        made.append(Replica(engine, store, name, mode, **config))
        return made[-1]

    yield start
    for running in made:
        running.cancel()
        await running.close()
