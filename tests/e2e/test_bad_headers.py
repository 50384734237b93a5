"""Requests whose heads are wrong, over raw connections: nobody else notices, and nothing is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest
from rig import CHAT, Rig, chat

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BODY = orjson.dumps(chat())


async def raw(rig: Rig, headers: Iterable[bytes], method: str = "POST", body: bytes = BODY) -> tuple[int, bytes]:
    """Status and the rest of the answer to a request with these header lines."""
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    head = [f"{method} {CHAT} HTTP/1.1".encode(), b"host: a", b"content-type: application/json", b"connection: close"]
    writer.write(b"\r\n".join([*head, b"content-length: %d" % len(body), *headers, b"", b""]) + body)
    try:
        async with asyncio.timeout(30):
            answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize("value", [b"\x80\xff\xfe", b"\xc3\x28", b"a\x01b", "\u202e\U0001f600".encode()])
async def test_values_that_are_no_text(value: bytes, rig: Rig) -> None:
    """Such a tenant is no name: it counts as anonymous, or Envoy refuses the header."""
    status, _ = await raw(rig, [b"x-tenant: " + value, b"x-class: " + value, b"x-request-id: " + value])
    assert status in (200, 400)
    assert await rig.metric("fairlane_access_log_entries_total", kind="malformed") == 0
    pool = await rig.pool()
    assert all(flow["tenant"].isprintable() for flow in pool["flows"])


async def test_100_kb_of_headers_are_envoy_s_to_refuse(rig: Rig) -> None:
    status, _ = await raw(rig, [b"x-a: " + b"a" * 1000] * 100)
    assert status == 431
    assert (await rig.post(chat())).status == 200


async def test_50_kb_of_headers_are_served(rig: Rig) -> None:
    status, _ = await raw(rig, [b"x-a: " + b"a" * 1000] * 50)
    assert status == 200


async def test_the_last_of_two_equal_headers_counts(rig: Rig) -> None:
    """What a proxy appends stands behind what the client sent."""
    status, _ = await raw(rig, [b"x-tenant: first-copy", b"X-Tenant: second-copy"])
    assert status == 200
    (entry,) = [e for e in await rig.seen() if "second-copy" in str(e["headers"].get("x-tenant"))]
    assert "x-fairlane-ticket" in entry["headers"]
    names = {flow["tenant"] for flow in (await rig.pool())["flows"]}
    assert "first-copy" not in names


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"x"])
async def test_an_upgrade_is_not_held(method: str, protocol: bytes, rig: Rig) -> None:
    """Envoy does not upgrade here: it refuses, or goes on without."""
    body = BODY if method == "POST" else b""
    status, _ = await raw(rig, [b"upgrade: " + protocol, b"connection: upgrade"], method, body)
    assert status in (200, 400, 403, 404, 405, 501)


async def test_a_thousand_connections_that_send_half_a_head(rig: Rig) -> None:
    writers = []
    for _ in range(1000):
        _, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-tenant: ha".encode())
        writers.append(writer)
    assert (await rig.post(chat())).status == 200
    for writer in writers:
        writer.close()
    assert (await rig.post(chat())).status == 200
