"""The page of all metrics, in the format that is asked for.

State is read on the event loop, since it belongs to that: some twenty milliseconds of CPU where there are hundreds of
engines. So others have their turn in between, after one part of the state or another; each part is of one moment. Text
is made of it in a thread. One page at a time: who asks while one is being made waits for it, so that many scrapers at
once hold up the loop no longer than one does.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from extproc.telemetry.metrics.encoding import chosen

_TURN_S: Final = 0.003


class Exposition:
    """To be used from one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._turn = asyncio.Lock()

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type. `accept`: the header of that name."""
        encode, content_type = chosen(accept)
        async with self._turn:
            families = await self._read()
            return await asyncio.to_thread(encode, families), content_type

    async def _read(self) -> list[Metric]:
        families = []
        began = time.monotonic()
        for family in self._registry.collect():
            families.append(family)
            if time.monotonic() >= began + _TURN_S:
                await asyncio.sleep(0)
                began = time.monotonic()
        return families
