"""Waiting for another process: until something holds, until it answers over HTTP. By asking again and again, since
another process cannot wake us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from extproc.cli.ports import HostPort

_INTERVAL_S = 0.02
_ANSWER_S = 2.0


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until `condition()` holds; False when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_INTERVAL_S)
    return True


async def until_answered(at: HostPort, path: str) -> None:
    """Wait until `GET path` gets status 200, for ever."""
    while not await answers(at, path):  # noqa: ASYNC110 - another process cannot set an event
        await asyncio.sleep(_INTERVAL_S)


async def answers(at: HostPort, path: str) -> bool:
    """Whether a GET gets status 200 now. Any failure, and 2 s of silence, mean no."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(at.host, at.port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]
