from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_rig import RedisServer, redis_server


@pytest.fixture(scope="session")
def _one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(_one_server: RedisServer) -> RedisServer:
    """Empty. For tests that leave it as it is but for its keys."""
    _one_server.ask("FLUSHALL")
    return _one_server
