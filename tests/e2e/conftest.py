"""The stack that the end-to-end tests share, as it is shipped: real Envoy, the service, two simulated engines.

All tests that use it run in the session's event loop. A module with scenarios of its own overrides `shared`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rig import FAST_ENGINE, Rig, running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    options = (*FAST_ENGINE, "--scheduling-policy", "priority")
    async with running(tmp_path_factory.mktemp("stack"), engines=2, engine_args=options) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def rig(shared: Rig) -> AsyncIterator[Rig]:
    """The shared stack, whose books must be closed after each test."""
    yield shared
    await shared.books_closed()
