"""Endpoints that stand in the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from extproc.engines.endpoints.source import Endpoint, OnChange


class StaticSet:
    """Known at once, and never another."""

    name = "static"
    last_error: str | None = None
    failures = 0

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float]) -> None:
        self.last_success_at: float | None = clock()
        self._endpoints = tuple(Endpoint(address) for address in addresses)

    async def run(self, on_change: OnChange) -> None:
        on_change(self._endpoints)
        await asyncio.Event().wait()
