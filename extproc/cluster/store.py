"""What replicas keep in Valkey or Redis: who lives and what each has told, who holds a lease, the configuration.

One round trip each. All times are by the store's clock. What is kept is small and may be lost at any time: the replicas
tell it again.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Final

import orjson

from extproc.cluster import scripts
from extproc.cluster.errors import Kind, StoreError
from extproc.cluster.words import Answer, Cursor, Held, InUse, Peer, Tell

if TYPE_CHECKING:
    from extproc.config.cluster import Store as Settings

__all__ = ["Kind", "Store", "StoreError"]

LARGEST_DOCUMENT: Final = 256 * 1024  # bytes
LARGEST_MESSAGE: Final = 256 * 1024
LARGEST_CONFIGURATION: Final = 4 * 1024**2


class Store:
    """Belongs to one event loop. Everything raises StoreError. Cancelling is safe."""

    def __init__(self, settings: Settings, cluster: str, timeout_s: float) -> None:
        """`timeout_s`: of each round trip, a new connection included. Connects when it is first asked. Raises
        StoreError of the kind `missing`."""
        try:
            from extproc.cluster.link import Link
        except ImportError as error:
            raise StoreError(
                "missing",
                f"cluster.store is set, and what it needs is not installed ({error}): install Fairlane with its extra "
                "cluster, pip install '.[cluster]' in the project's folder, or set cluster.mode to single and leave "
                "cluster.store out",
            ) from error
        self._link = Link(settings, timeout_s)
        self._keys = scripts.Keys.of(cluster)

    @property
    def connections(self) -> int:
        """That were opened since the start: more than one says that some broke."""
        return self._link.connections

    async def exchange(self, tell: Tell) -> Answer | InUse:
        """Tell and be told."""
        for what, size, most in (
            ("document", len(tell.document), LARGEST_DOCUMENT),
            ("message", len(tell.message), LARGEST_MESSAGE),
        ):
            if size > most:
                raise StoreError(
                    "other",
                    f"the {what} of replica {tell.replica} has {size} bytes, and may have {most}: there are too many "
                    "pools and endpoints for one cluster; split them over several",
                )
        asks = orjson.dumps([(ask.key, ask.in_flight, ask.want, ask.limit) for ask in tell.asks])
        cursor = tell.cursor or Cursor("", 0)
        reply = await self._link.run(
            scripts.EXCHANGE,
            [self._keys.replicas, self._keys.messages, self._keys.configuration, self._keys.versions],
            tell.replica,
            tell.life,
            tell.seq,
            math.ceil(tell.lease_s * 1000),
            tell.document,
            tell.message,
            asks,
            cursor.epoch,
            cursor.number,
            scripts.VERSION,
            scripts.MOST_MESSAGES,
            scripts.MOST_MESSAGE_BYTES,
        )
        if reply[1] == b"in_use":
            return InUse(_text(reply[2]), int(reply[3]) / 1000)
        if reply[1] == b"late":
            raise StoreError(
                "other", f"exchange {tell.seq} of replica {tell.replica} comes after a later one of its own"
            )
        try:
            return _answer(tell, reply, len(tell.document) + len(tell.message) + len(asks))
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise StoreError("script", f"the store does not answer as the script does: {error!r}") from error

    async def leave(self, replica: str, life: str) -> bool:
        """Give everything back at once. False: the store did not know this life."""
        return bool(await self._link.run(scripts.LEAVE, [self._keys.replicas], replica, life))

    async def acquire(self, name: str, holder: str, lease_s: float) -> Held:
        """Take the lease, or renew it. Whose it is now."""
        reply = await self._link.run(scripts.ACQUIRE, [self._keys.leases], name, holder, math.ceil(lease_s * 1000))
        return Held(_text(reply[0]), int(reply[1]) / 1000, int(reply[2]))

    async def release(self, name: str, holder: str) -> bool:
        """False: it was not the holder's."""
        return bool(await self._link.run(scripts.RELEASE, [self._keys.leases], name, holder))

    async def config_get(self) -> tuple[int, bytes]:
        """Number and document of the configuration; 0: there is none."""
        number, document = await self._link.command("HMGET", self._keys.configuration, "number", "document")
        if number is None:
            return 0, b""
        if not number.isdigit() or document is None:
            raise StoreError(
                "other",
                f"the key {self._keys.configuration} holds what Fairlane has not written: take another "
                "cluster.name, or delete the key",
            )
        return int(number), document

    async def config_put(self, expected: int, document: bytes) -> int | None:
        """The new number; None: it is not `expected` any more, and nothing was written. `expected` 0: there is none."""
        if len(document) > LARGEST_CONFIGURATION:
            raise StoreError(
                "other", f"the changed settings have {len(document)} bytes, and may have {LARGEST_CONFIGURATION}"
            )
        done, number = await self._link.run(
            scripts.CONFIGURE, [self._keys.configuration], expected, secrets.token_hex(8), document
        )
        return int(number) if done else None

    async def close(self) -> None:
        await self._link.close()


def _answer(tell: Tell, reply: list[Any], bytes_told: int) -> Answer:
    time_ms, state, granted, epoch, number, missed, configuration, versions, dropped, peers, documents, told = reply
    messages: dict[tuple[bytes, bytes], list[bytes]] = {}
    for at in range(0, len(told), 3):
        messages.setdefault((told[at], told[at + 1]), []).append(told[at + 2])
    found = tuple(
        Peer(
            _text(peers[at]),
            _text(peers[at + 1]),
            int(peers[at + 2]) / 1000,
            document,
            tuple(messages.get((peers[at], peers[at + 1]), ())),
        )
        for at, document in zip(range(0, len(peers), 3), documents, strict=True)
    )
    return Answer(
        time_ms=int(time_ms),
        fresh=state == b"fresh",
        claims=dict(zip((ask.key for ask in tell.asks), orjson.loads(granted), strict=True)),
        peers=found,
        cursor=Cursor(_text(epoch), int(number)),
        missed=missed == b"1",
        versions=tuple(_text(each) for each in versions),
        configuration=int(configuration) if configuration.isdigit() else 0,
        garbage=tuple(_text(each) for each in dropped),
        bytes_told=bytes_told,
        bytes_read=sum(map(len, documents)) + sum(map(len, told[2::3])) + len(granted),
    )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
