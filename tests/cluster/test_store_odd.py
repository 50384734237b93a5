"""What answers at the store's address says anything: each time it is an error that says so, and never the end of a
loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog
from member_case import Replica
from redis_rig import eventually
from store_case import Voice, at, store

from extproc.cluster.configuration import SharedConfiguration
from extproc.cluster.exchange import Exchange
from extproc.cluster.standby import Standby
from extproc.cluster.store import Store, StoreError
from extproc.config.cluster import Store as Settings
from extproc.config.shared import LostError

ODD = {
    "a number": b":1\r\n",
    "a negative number": b":-7\r\n",
    "a word": b"+OK\r\n",
    "a text": b"$3\r\nabc\r\n",
    "an empty text": b"$0\r\n\r\n",
    "nil": b"$-1\r\n",
    "a nil array": b"*-1\r\n",
    "an empty array": b"*0\r\n",
    "a short array": b"*1\r\n$1\r\na\r\n",
    "numbers": b"*3\r\n:1\r\n:2\r\n:3\r\n",
    "words": b"*3\r\n+a\r\n+b\r\n+c\r\n",
    "nils": b"*3\r\n$-1\r\n$-1\r\n$-1\r\n",
    "arrays": b"*3\r\n*0\r\n*0\r\n*0\r\n",
    "errors inside": b"*3\r\n-ERR a\r\n-ERR b\r\n-ERR c\r\n",
    "twelve numbers": b"*12\r\n" + b":1\r\n" * 12,
    "twelve words": b"*12\r\n" + b"+1\r\n" * 12,
    "a number without digits": b":x\r\n",
    "a length without digits": b"*x\r\n",
    "nested deeply": b"*1\r\n" * 20_000 + b":1\r\n",
    "moved nowhere": b"-MOVED x\r\n",
    "moved to no port": b"-MOVED 1 there:x\r\n",
    "large numbers": b"*3\r\n$1\r\na\r\n$400\r\n" + b"9" * 400 + b"\r\n$1\r\n1\r\n",
}
GOOD = b"*3\r\n$5\r\none l\r\n$4\r\n3000\r\n$13\r\n1700000000000\r\n"  # to `acquire`

odd = pytest.mark.parametrize("reply", ODD.values(), ids=ODD)


class Parrot:
    """Says the same to whatever it is asked."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.address = ""
        self.asked = 0

    @property
    def settings(self) -> Settings:
        return Settings.model_validate({"addresses": [self.address]})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                count = int((await reader.readuntil(b"\r\n"))[1:])
                for _ in range(count):
                    size = int((await reader.readuntil(b"\r\n"))[1:])
                    await reader.readexactly(size + 2)
                self.asked += 1
                writer.write(self.reply)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def parrot(reply: bytes) -> AsyncIterator[Parrot]:
    found = Parrot(reply)
    async with await asyncio.start_server(found.serve, "127.0.0.1", 0) as server:
        found.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


@pytest.fixture
def logs() -> Iterator[Any]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def _is_told(error: StoreError, address: str) -> bool:
    odd_one = error.kind == "other" and f"what answers at {address} is no store that ran our script" in error.message
    return odd_one and "cluster.store.addresses names Valkey or Redis" in error.message and len(error.message) < 800


@odd
async def test_every_odd_answer_is_an_error_that_names_the_address(reply: bytes) -> None:
    async with parrot(reply) as there, store(there.settings) as link:
        asks: list[Callable[[], Awaitable[object]]] = [
            lambda: Voice(link, "one").exchange(),
            lambda: link.acquire("active", "one l", 3.0),
            lambda: link.config_put(0, b"{}"),
            link.config_get,
        ]
        for ask in asks:
            with pytest.raises(StoreError) as caught:
                await ask()
            assert _is_told(caught.value, there.address), caught.value


@pytest.mark.parametrize("reply", [ODD[name] for name in ODD if "a n" not in name or "digits" in name or "nil" in name])
async def test_an_odd_answer_to_giving_back_is_one_too(reply: bytes) -> None:
    async with parrot(reply) as there, store(there.settings) as link:
        for asked in (link.leave("one", "l"), link.release("active", "one l")):
            with pytest.raises(StoreError) as caught:
                await asked
            assert _is_told(caught.value, there.address), caught.value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, b"+x"),  # the time
        (1, b"+stale"),
        (2, b'+{"e":1}'),  # what is granted
        (2, b"+[true]"),
        (2, b"+[1,2]"),
        (2, b"+["),
        (4, b"+-1"),
        (6, b"+" + b"9" * 16),
        (7, b"*1\r\n:1"),
        (9, b"*2\r\n+a\r\n+b"),  # half a replica
        (10, b"*1\r\n*0"),
        (11, b"*1\r\n+a"),
    ],
)
async def test_an_exchange_with_one_part_that_is_odd(place: int, value: bytes) -> None:
    parts = [b"+1", b"+1", b"+[1]", b"+e", b"+0", b"+0", b"+0", *[b"*0"] * 5]
    async with parrot(b"*12\r\n" + b"\r\n".join(parts) + b"\r\n") as there, store(there.settings) as link:
        assert (await Voice(link, "one").exchange(at(want=1))).claims == {"e": 1}
        parts[place] = value
        there.reply = b"*12\r\n" + b"\r\n".join(parts) + b"\r\n"
        with pytest.raises(StoreError) as caught:
            await Voice(link, "one").exchange(at(want=1))
        assert _is_told(caught.value, there.address), caught.value


def _standby(link: Store) -> Standby:
    return Standby(link, "one", "l", lease_s=0.3, on_active=lambda: None, on_standby=lambda: None)


@pytest.mark.slow
@odd
async def test_the_lease_goes_on_after_an_odd_answer(reply: bytes) -> None:
    async with parrot(reply) as there, store(there.settings) as link:
        standby = _standby(link)
        standby.start()
        try:
            await eventually("it asks again", lambda: there.asked > 3)
            assert standby.error is not None and _is_told(standby.error, there.address)
            assert standby.lost_since is not None and not standby.active
            there.reply = GOOD
            await eventually("it is active", lambda: standby.active)
            assert standby.error is None and standby.lost_since is None
            there.reply = reply
            await eventually("it is lost", lambda: standby.lost_since is not None)
            assert standby.active, "while the store is lost nobody changes"
        finally:
            await standby.stop()


@pytest.mark.slow
async def test_no_error_of_any_kind_ends_the_lease_and_each_kind_is_said_once(logs: Any) -> None:
    class Broken:
        asked = 0

        async def acquire(self, *_: object) -> None:
            self.asked += 1
            raise RuntimeError("a fault") if self.asked % 2 else ValueError("another one")

        async def release(self, *_: object) -> bool:
            return False

    broken = Broken()
    standby = _standby(broken)  # type: ignore[arg-type]
    standby.start()
    try:
        await eventually("it asks again", lambda: broken.asked > 5)
        assert standby.error is not None and "a fault of Fairlane" in standby.error.message
        assert standby.lost_since is not None
    finally:
        await standby.stop()
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["cluster_lease_fault"] * 2


async def test_the_exchange_goes_on_after_odd_answers_and_says_so_once(logs: Any) -> None:
    async with parrot(b":1\r\n") as there, store(there.settings) as link:
        member = Replica()
        exchange = Exchange(link, member, "one", period_s=0.05, lease_s=60.0)
        for reply in ODD.values():
            there.reply = reply
            await exchange.once()
        assert len(member.errors) == len(ODD) and all(_is_told(error, there.address) for error in member.errors)
    assert [entry["event"] for entry in logs] == ["cluster_store_lost"]


@odd
async def test_a_start_goes_on_as_with_a_lost_store(reply: bytes) -> None:
    async with parrot(reply) as there, store(there.settings) as link:
        with pytest.raises(LostError, match="is no store that ran our script"):
            await SharedConfiguration(link, "test", "one").read()


@pytest.mark.parametrize("reply", [ODD[name] for name in ("a number", "a word", "a short array", "nested deeply")])
async def test_what_answers_is_no_sentinel(reply: bytes) -> None:
    async with parrot(reply) as there:
        watched = {"addresses": [there.address], "kind": "sentinel", "sentinel_name": "name"}
        async with store(Settings.model_validate(watched)) as link:
            with pytest.raises(StoreError, match=f"what answers at {there.address} is no Sentinel") as caught:
                await link.config_get()
            assert caught.value.kind == "other"
