"""The page of all metrics, in the format that is asked for.

State is read on the event loop, since it belongs to that: some twenty milliseconds of CPU where there are hundreds of
engines. So others have their turn in between, after one part of the state or another; each part is of one moment. Text
is made of it in a thread. One page at a time: who asks while one is being made waits for the next, and all who wait for
the same format share that. It is read after they asked, so that nobody is told what was before; and many scrapers at
once hold up the loop no longer than two of them do.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from extproc.telemetry.metrics.encoding import Encode, chosen

_TURN_S: Final = 0.003


class Exposition:
    """To be used from one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._turn = asyncio.Lock()
        self._next: dict[Encode, asyncio.Task[bytes]] = {}  # pages that are not begun

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type. `accept`: the header of that name."""
        encode, content_type = chosen(_acceptable(accept))
        page = self._next.get(encode)
        if page is None:
            page = self._next[encode] = asyncio.create_task(self._make(encode), name="metrics page")
            page.add_done_callback(_look)
        return await asyncio.shield(page), content_type  # one that gives up takes it from nobody

    async def _make(self, encode: Encode) -> bytes:
        async with self._turn:
            del self._next[encode]
            return await asyncio.to_thread(encode, await self._read())

    async def _read(self) -> list[Metric]:
        families = []
        began = time.monotonic()
        for family in self._registry.collect():
            families.append(family)
            if time.monotonic() >= began + _TURN_S:
                await asyncio.sleep(0)
                began = time.monotonic()
        return families


def _look(page: asyncio.Task[bytes]) -> None:
    """That nobody waits for it any more is no error."""
    if not page.cancelled():
        page.exception()


def _acceptable(accept: str) -> str:
    """Without the kinds that are not wanted: a quality of 0 says so (RFC 9110, 12.4.2)."""
    return ",".join(kind for kind in accept.split(",") if not any(map(_is_zero, kind.split(";")[1:])))


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip().lower() == "q" and re.fullmatch(r"0(\.0{0,3})?", value.strip()) is not None
