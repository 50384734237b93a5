"""Clients that leave: a held one frees its place at once, a running one its slot; no engine computes for nobody."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable

import orjson
import pytest
import pytest_asyncio
from rig import CHAT, FAST_ENGINE, Rig, chat, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    config = {"classes": {"default": {"max_in_flight": 1}}, "tenants": {"small": {"max_queued": 1}}}
    async with running(tmp_path_factory.mktemp("stack"), config=config, engine_args=FAST_ENGINE) as rig:
        yield rig


def _finish(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _half_close(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


LEAVING = {"FIN": _finish, "half-close": _half_close, "RST": _reset}


async def _send(rig: Rig, tenant: str, **more: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    body = orjson.dumps(chat(1, **more))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nx-tenant: {tenant}\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    return reader, writer


@pytest.mark.parametrize("how", LEAVING)
async def test_while_held(how: str, rig: Rig) -> None:
    leave: Callable[[asyncio.StreamWriter], None] = LEAVING[how]
    left = await rig.metric("fairlane_cancelled_requests_total")
    async with rig.hung_engines():
        blocker = rig.start(chat(), tenant="blocker")
        await rig.until_inside(1)
        _, writer = await _send(rig, "small", user="leaves")
        await rig.until_held(1)
        assert (await rig.post(chat(), tenant="small")).status == 429  # the tenant's only place is taken
        leave(writer)
        await rig.until_held(0)
        stays = rig.start(chat(3), tenant="small")  # and is free again, while the blocker is still there
        await rig.until_held(1)
        assert not blocker.done()
    assert (await blocker).status == 200
    assert (await stays).status == 200
    writer.close()
    assert await rig.metric("fairlane_cancelled_requests_total") == left + 1
    lengths = [entry["body_bytes"] for entry in await rig.seen("small")]
    assert len(orjson.dumps(chat(1, user="leaves"))) not in lengths


@pytest.mark.parametrize("how", LEAVING)
async def test_while_its_answer_streams(how: str, rig: Rig) -> None:
    tenant = f"streams {how}"
    reader, writer = await _send(rig, tenant, stream=True, max_tokens=20_000)
    while b"content" not in await reader.readuntil(b"\n\n"):
        pass
    await rig.until_inside(1)
    waits = rig.start(chat(), tenant="next")
    await rig.until_held(1)
    LEAVING[how](writer)
    assert (await waits).status == 200  # it got the slot
    (entry,) = await until(lambda: rig.seen(tenant), lambda found: found[0]["state"] == "aborted")
    assert 0 < entry["tokens"] < 20_000
    writer.close()


async def test_while_a_plain_answer_is_computed(rig: Rig) -> None:
    task = rig.start(chat(20_000), tenant="plain")
    await until(lambda: rig.seen("plain"), lambda found: [e["state"] for e in found] == ["running"])
    task.cancel()
    await rig.until_inside(0)
    await until(lambda: rig.seen("plain"), lambda found: found[0]["state"] == "aborted")


async def test_a_hundred_at_once_held_and_running(rig: Rig) -> None:
    """Two leave for each one that stays; all that stay are answered."""
    async with rig.hung_engines():
        blocker = rig.start(chat(), tenant="blocker")
        await rig.until_inside(1)
        tasks = [rig.start(chat(), tenant=f"crowd-{i % 3}") for i in range(99)]
        await rig.until_held(99)
        for i, task in enumerate(tasks):
            if i % 3:
                task.cancel()
        await rig.until_held(33)
    assert (await blocker).status == 200
    assert {answer.status for answer in await asyncio.gather(*tasks[::3])} == {200}
    seen = [e["headers"]["x-tenant"] for e in await rig.seen()]
    assert (seen.count("crowd-0"), seen.count("crowd-1"), seen.count("crowd-2")) == (33, 0, 0)
