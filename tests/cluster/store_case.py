"""What tests of the store have in common."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from extproc.cluster.store import Store
from extproc.cluster.words import Answer, Ask, Cursor, InUse, Tell
from extproc.config.cluster import Store as Settings

TIMEOUT_S = 30.0  # where a test is not about time-outs: the machine may be busy
LEASE_S = 60.0  # likewise


@contextlib.asynccontextmanager
async def store(settings: Settings, cluster: str = "test", timeout_s: float = TIMEOUT_S) -> AsyncIterator[Store]:
    found = Store(settings, cluster, timeout_s)
    try:
        yield found
    finally:
        await found.close()


class Voice:
    """A replica that exchanges by hand."""

    def __init__(self, at: Store, replica: str, life: str = "") -> None:
        self.store = at
        self.replica = replica
        self.life = life or f"life-of-{replica}"
        self.seq = 0
        self.cursor: Cursor | None = None

    def tell(self, *asks: Ask, document: bytes = b"[]", message: bytes = b"", lease_s: float = LEASE_S) -> Tell:
        return Tell(self.replica, self.life, self.seq, lease_s, document, message, asks, self.cursor)

    async def exchange(self, *asks: Ask, **more: Any) -> Answer:
        answer = await self.ask(*asks, **more)
        assert isinstance(answer, Answer), answer
        self.cursor = answer.cursor
        return answer

    async def ask(self, *asks: Ask, **more: Any) -> Answer | InUse:
        self.seq += 1
        return await self.store.exchange(self.tell(*asks, **more))


def at(endpoint: str = "e", *, inside: int = 0, want: float = 0.0, limit: float = 16.0) -> Ask:
    return Ask(endpoint, inside, want, limit)
