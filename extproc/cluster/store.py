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
_DIGITS: Final = 15  # of a number that every program holds exactly


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
        bytes_told = len(tell.document) + len(tell.message) + len(asks)
        answer = await self._link.run(
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
            read=lambda reply: _answer(tell, reply, bytes_told),
        )
        if answer is None:
            raise StoreError(
                "other", f"exchange {tell.seq} of replica {tell.replica} comes after a later one of its own"
            )
        return answer

    async def leave(self, replica: str, life: str) -> bool:
        """Give everything back at once. False: the store did not know this life."""
        return await self._link.run(scripts.LEAVE, [self._keys.replicas], replica, life, read=_any)

    async def acquire(self, name: str, holder: str, lease_s: float) -> Held:
        """Take the lease, or renew it. Whose it is now."""
        lease_ms = math.ceil(lease_s * 1000)
        return await self._link.run(scripts.ACQUIRE, [self._keys.leases], name, holder, lease_ms, read=_held)

    async def release(self, name: str, holder: str) -> bool:
        """False: it was not the holder's."""
        return await self._link.run(scripts.RELEASE, [self._keys.leases], name, holder, read=_any)

    async def config_get(self) -> tuple[int, bytes]:
        """Number and document of the configuration; 0: there is none, or with a document one that another program has
        written. `config_put` with that number takes its place."""
        return await self._link.command("HMGET", self._keys.configuration, "number", "document", read=_configuration)

    async def config_put(self, expected: int, document: bytes) -> int | None:
        """The new number; None: it is not `expected` any more, and nothing was written. `expected` 0: there is none."""
        if len(document) > LARGEST_CONFIGURATION:
            raise StoreError(
                "other", f"the changed settings have {len(document)} bytes, and may have {LARGEST_CONFIGURATION}"
            )
        return await self._link.run(
            scripts.CONFIGURE, [self._keys.configuration], expected, secrets.token_hex(8), document, read=_put
        )

    async def close(self) -> None:
        await self._link.close()


# -- what is answered. Each fails at what is not that, and `Link` says so -------------------------


def _answer(tell: Tell, reply: Any, bytes_told: int) -> Answer | InUse | None:
    """None: this exchange is late."""
    if reply[1] == b"late":
        return None
    if reply[1] == b"in_use":
        _, _, life, remaining_ms = reply
        return InUse(_text(life), _whole(remaining_ms) / 1000)
    time_ms, born, granted, epoch, number, missed, configuration, versions, dropped, peers, documents, told = reply
    claims = orjson.loads(granted)
    if not isinstance(claims, list) or not all(type(each) in (int, float) for each in claims):
        raise ValueError("claims that are no numbers")
    messages: dict[tuple[bytes, bytes], list[bytes]] = {}
    for at in range(0, len(told), 3):
        messages.setdefault((told[at], told[at + 1]), []).append(_bytes(told[at + 2]))
    found = tuple(
        Peer(
            _text(peers[at]),
            _text(peers[at + 1]),
            _whole(peers[at + 2]) / 1000,
            _bytes(document),
            tuple(messages.get((peers[at], peers[at + 1]), ())),
        )
        for at, document in zip(range(0, len(peers), 3), documents, strict=True)
    )
    return Answer(
        time_ms=_whole(time_ms),
        born=_whole(born),
        fresh=_whole(born) == tell.seq,
        claims=dict(zip((ask.key for ask in tell.asks), claims, strict=True)),
        peers=found,
        cursor=Cursor(_text(epoch), _whole(number)),
        missed=missed == b"1",
        versions=tuple(_text(each) for each in versions),
        configuration=_whole(configuration),
        garbage=tuple(_text(each) for each in dropped),
        bytes_told=bytes_told,
        bytes_read=sum(map(len, documents)) + sum(map(len, told[2::3])) + len(granted),
    )


def _held(reply: Any) -> Held:
    holder, remaining_ms, since_ms = reply
    return Held(_text(holder), _whole(remaining_ms) / 1000, _whole(since_ms))


def _configuration(reply: Any) -> tuple[int, bytes]:
    number, document = (None if each is None else _bytes(each) for each in reply)
    try:
        return _whole(number or b"0"), document or b""
    except ValueError:  # the script takes it for 0 too
        return 0, document or b""


def _put(reply: Any) -> int | None:
    done, number = reply
    if done not in (0, 1):
        raise ValueError(f"{done!r} is neither done nor not")
    return _whole(number) if done else None


def _any(reply: Any) -> bool:
    """Whether something was deleted."""
    if not isinstance(reply, int):
        raise TypeError(f"{type(reply).__name__} is no number")
    return reply > 0


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


def _text(value: Any) -> str:
    return _bytes(value).decode(errors="replace")


def _whole(value: Any) -> int:
    """As the scripts take one."""
    if len(_bytes(value)) > _DIGITS or not value.isdigit():
        raise ValueError(f"{value[:_DIGITS]!r} is no whole number")
    return int(value)
