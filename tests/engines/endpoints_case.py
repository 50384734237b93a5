"""Runs a set of endpoints and keeps what it said."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from extproc.engines.endpoints.source import Endpoint, EndpointSet

PATIENCE_S = 20.0  # until a test counts as hung; never reached by one that passes


async def until(wanted: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.005)


class Follower:
    """`sets`: all that were handed on, in order."""

    def __init__(self, source: EndpointSet) -> None:
        self.source = source
        self.sets: list[tuple[Endpoint, ...]] = []

    @property
    def addresses(self) -> list[str] | None:
        """Of the last set; None: there was none yet."""
        return [each.address for each in self.sets[-1]] if self.sets else None

    async def until(self, *addresses: str) -> None:
        await until(lambda: self.addresses == list(addresses), f"{addresses}, last: {self.addresses}")

    async def until_failed(self, *words: str) -> str:
        """Until the last round failed with these words in its message; the message."""

        def failed() -> bool:
            return all(word in (self.source.last_error or "") for word in ("", *words)) and bool(self.source.last_error)

        await until(failed, f"an error with {words}, last: {self.source.last_error}")
        return self.source.last_error or ""

    async def until_well(self) -> None:
        await until(lambda: self.source.last_error is None and self.source.last_success_at is not None, "no error")


@contextlib.asynccontextmanager
async def followed(source: EndpointSet) -> AsyncIterator[Follower]:
    follower = Follower(source)
    running = asyncio.create_task(source.run(follower.sets.append))
    try:
        yield follower
        assert not running.done(), "a source runs until it is cancelled"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
