"""Clients that are slow or old: half a body, a long wait in the queue, HTTP/1.0."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from rig import CHAT, Rig, chat, running

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def raw(rig: Rig, version: str, body: bytes, sent: int | None = None) -> bytes:
    """What comes until the connection is closed. `sent`: bytes of the body that are sent, all without."""
    reader, writer = await asyncio.open_connection(*rig.stack.addresses.envoy)
    fields = ("host: x", "content-type: application/json", f"content-length: {len(body)}")
    head = "\r\n".join([f"POST {CHAT} HTTP/{version}", *fields, "", ""])
    try:
        writer.write(head.encode() + body[:sent])
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


async def test_half_a_body_is_cut_and_a_held_request_is_not(tmp_path: Path) -> None:
    """The limit is 1 s here. While the first request hangs in the engine, the second one is held for longer."""

    def cut_soon(envoy: dict[str, Any]) -> None:
        manager = envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["request_timeout"] = "1s"

    one = {"classes": {"default": {"rank": 1, "priority": 0, "max_in_flight": 1}}}
    async with running(tmp_path, config=one, envoy_patch=cut_soon) as rig:
        async with rig.hung_engines():
            first = rig.start(chat())
            await rig.until_inside(1)
            second = rig.start(chat())
            await rig.until_held(1)
            # It comes after the second one, and is cut: a limit that ran for that one would have cut it before.
            answer = await raw(rig, "1.1", orjson.dumps(chat()), sent=20)
            assert (await rig.pool())["queued"] == 1
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code": "body_timeout"' in answer
        assert [(await task).status for task in (first, second)] == [200, 200]
        assert int((await second).headers["x-fairlane-queue-ms"]) >= 1000
        await rig.books_closed()


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_http_1_0_is_queued_like_any_other(rig: Rig, stream: bool) -> None:
    answer = await raw(rig, "1.0", orjson.dumps(chat(3, stream=stream)))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert b"x-fairlane-queue-ms: " in head
    assert b"transfer-encoding" not in head
    if stream:
        assert body.endswith(b"data: [DONE]\n\n")
    else:
        assert orjson.loads(body)["usage"]["completion_tokens"] == 3


async def test_a_client_with_many_headers_is_served(rig: Rig) -> None:
    """Ours come on top, and Envoy refuses them where the limit of headers is reached."""
    answer = await rig.post(chat(), headers={f"x-header-{number}": "v" for number in range(90)})
    assert answer.status == 200
    assert "x-fairlane-queue-ms" in answer.headers
