"""The edge behind a real port of its own, in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
import pytest_asyncio
import structlog
from envoy_by_messages import Edge, Envoy, Start, a_config

from extproc.edge import server


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged, kept and not printed."""
    with structlog.testing.capture_logs() as entries:
        yield entries


# One loop for all tests with a connection: grpc's poller outlives the loop that it began on.
@pytest_asyncio.fixture(loop_scope="session")
async def start() -> AsyncIterator[Start]:
    """Starts an edge for `a_config(**changes)`. At the test's end its books must be right."""
    edges: list[tuple[Edge, server.EdgeServer, Envoy]] = []

    async def launch(**changes: Any) -> tuple[Edge, Envoy]:
        edge = Edge(a_config(**changes))
        built = server.build("127.0.0.1:0", edge.processor, edge.access_log)
        await built.server.start()
        envoy = Envoy(f"127.0.0.1:{built.port}")
        edges.append((edge, built, envoy))
        return edge, envoy

    yield launch
    for edge, built, envoy in edges:
        await envoy.close()
        await built.server.stop(None)
        edge.check()
        edge.close()
