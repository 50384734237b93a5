"""Requests whose length can be read in two ways, through the real Envoy: none of them hides another one that the queue
does not see. Whatever reaches an engine on a queued path carries a ticket of Fairlane's, so it was counted and had its
turn."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))  # the rig

from rig import CHAT, DEADLINE_S, FAST_ENGINE, Rig, chat, running  # isort: skip

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BODY = orjson.dumps(chat(1))
HIDDEN = (
    f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-tenant: hidden\r\ncontent-type: application/json\r\nconnection: close\r\n"
    f"content-length: {len(BODY)}\r\n\r\n"
).encode() + BODY
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"content-length: %d\r\n" % len(BODY)


def head(*fields: bytes, line: bytes = b"POST %s HTTP/1.1" % CHAT.encode()) -> bytes:
    return (
        b"\r\n".join([line, b"host: a", b"x-tenant: open", b"content-type: application/json"])
        + b"\r\n"
        + b"".join(fields)
        + b"\r\n"
    )


# By name: the bytes on one connection, and whether what follows the first request is one of its own by any reading.
CASES: dict[str, bytes] = {
    "a length, and chunks": head(LENGTH, b"transfer-encoding: chunked\r\n") + CHUNKED + HIDDEN,
    "chunks, and a length of less": head(b"transfer-encoding: chunked\r\n", b"content-length: 4\r\n")
    + CHUNKED
    + HIDDEN,
    "chunks in odd letters": head(b"Transfer-Encoding : chunked\r\n", LENGTH) + BODY + HIDDEN,
    "chunks behind a tab": head(b"transfer-encoding:\tchunked\r\n", LENGTH) + CHUNKED + HIDDEN,
    "chunks of no known kind": head(b"transfer-encoding: xchunked\r\n", LENGTH) + BODY + HIDDEN,
    "chunks twice": head(b"transfer-encoding: chunked\r\n" * 2) + CHUNKED + HIDDEN,
    "two lengths": head(LENGTH, b"content-length: 0\r\n") + HIDDEN,
    "a list of lengths": head(b"content-length: %d, 0\r\n" % len(BODY)) + BODY + HIDDEN,
    "a length with a sign": head(b"content-length: +%d\r\n" % len(BODY)) + BODY + HIDDEN,
    "a length of less than there is": head(b"content-length: 2\r\n") + b"{}" + HIDDEN,
    "a folded header": head(b"x-a: b\r\n content-length: 0\r\n", LENGTH) + BODY + HIDDEN,
    "a bare line feed": head(b"x-a: b\ncontent-length: 0\r\n", LENGTH) + BODY + HIDDEN,
    "a chunk with an extension": head(b"transfer-encoding: chunked\r\n")
    + b"%x;a=b\r\n%s\r\n0\r\nx-tenant: trailer\r\n\r\n" % (len(BODY), BODY)
    + HIDDEN,
    "a chunk of more than there is": head(b"transfer-encoding: chunked\r\n") + b"fffffffff\r\n" + HIDDEN,
    "a request behind another": head(LENGTH) + BODY + HIDDEN,
    "GET with a body": head(LENGTH, line=b"GET /v1/models HTTP/1.1") + BODY + HIDDEN,
    "an address for a path": head(LENGTH, line=b"POST http://b%s HTTP/1.1" % CHAT.encode()) + BODY + HIDDEN,
    "HTTP/1.0 and chunks": head(b"transfer-encoding: chunked\r\n", line=b"POST %s HTTP/1.0" % CHAT.encode())
    + CHUNKED
    + HIDDEN,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> object:
    async with running(tmp_path_factory.mktemp("stack"), engine_args=FAST_ENGINE) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def rig(shared: Rig) -> object:
    yield shared
    await shared.books_closed()


async def sent(rig: Rig, what: bytes, within_s: float = 2.0) -> bytes:
    """All that comes back until Envoy closes the connection, which it does when it refuses a request and behind the
    hidden one; or until then, where it waits for more of what was announced."""
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    got = b""
    try:
        writer.write(what)
        async with asyncio.timeout(within_s):
            while data := await reader.read(65536):
                got += data
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()
    return got


@pytest.mark.parametrize("case", CASES)
async def test_nothing_reaches_an_engine_past_the_queue(rig: Rig, case: str) -> None:
    before = len(await rig.seen())
    got = await sent(rig, CASES[case])
    assert got.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) or got == b""
    assert b"HTTP/1.1 500" not in got
    await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == 0, "all are over")
    seen = (await rig.seen())[before:]
    assert len(seen) <= 2
    released = await rig.metric("fairlane_released_requests_total")
    assert len(await rig.seen()) <= released
    for entry in seen:
        assert "x-fairlane-ticket" in entry["headers"], entry
        assert entry["headers"]["x-tenant"] in ("open", "hidden")
    tickets = [entry["headers"]["x-fairlane-ticket"] for entry in seen]
    assert len(set(tickets)) == len(tickets)


async def test_the_cases_do_reach_an_engine(rig: Rig) -> None:
    """What is plain is served, both of them: the other cases are not refused for being written wrongly here."""
    await sent(rig, CASES["a request behind another"], DEADLINE_S)
    tenants = {entry["headers"]["x-tenant"] for entry in await rig.seen()}
    assert {"open", "hidden"} <= tenants
