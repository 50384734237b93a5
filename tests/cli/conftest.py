"""Services in the test's process, ended with it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from service_case import Engine, Run, Running


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
async def run(engine: Engine, logs: Any, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Run]:
    made: list[Running] = []

    def start(**config: Any) -> Running:
        made.append(Running(engine, **config))
        return made[-1]

    yield start
    for running in made:
        await running.close()
    made.clear()
    gc.collect()  # servers that could not be started are stopped when they are collected
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if "never retrieved" in record.message] == []
