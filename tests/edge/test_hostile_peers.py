"""Whoever reaches the port and is no Envoy: what one can do to the service, and to requests of others."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from envoy_by_messages import (
    Start,
    an_entry,
    body,
    headers_set,
    log_message,
    request,
    until,
    wired,
)

from extproc.core.events import Settled
from extproc.edge import server
from extproc.edge.wire import EXT_PROC_SERVICE

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOO_LARGE = server._LARGEST_MESSAGE + 1


async def served(envoy: object) -> bool:
    stream, ticket = await envoy.released()  # type: ignore[attr-defined]
    await stream.end()
    return bool(ticket)


async def test_a_message_that_is_too_large_ends_its_stream_alone(start: Start) -> None:
    edge, envoy = await start(slots=9)
    stream = envoy.stream()
    await stream.send(wired(request(None), "FULL_DUPLEX_STREAMED"))
    await until(lambda: edge.processor.open == 1)
    with pytest.raises((grpc.aio.AioRpcError, grpc.aio.UsageError)):
        await stream.send(body("request_body", b"x" * TOO_LARGE))
        await stream.call.read()
    assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: edge.processor.open == 0 and edge.processor._limits.buffer.used == 0)
    assert await served(envoy)


@pytest.mark.parametrize("packed", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_message_is_not_unpacked(start: Start, packed: grpc.Compression) -> None:
    """Its limit holds before that: a message of 64 KiB may unpack to 64 MiB, and one of 64 MiB to 64 GiB."""
    edge, envoy = await start()
    channel = grpc.aio.insecure_channel(envoy.address, compression=packed)
    try:
        call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may be over before that
            await call.write(request(headers={"x-large": "x" * 100_000}).SerializeToString())
        async with asyncio.timeout(10):
            assert await call.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)  # or as it writes
    finally:
        await channel.close()
    assert edge.recorder.decided == []
    assert await served(envoy)


async def test_feigned_usage_is_believed_once_and_within_bounds(start: Start) -> None:
    """A liar who knows a ticket can settle that request: that is why the port is for Envoys alone. He cannot do it
    twice, not beyond what any answer can have, and not to a request without its ticket."""
    edge, envoy = await start(slots=2)
    stream, ticket = await envoy.released()
    log = envoy.access_log()
    await log.write(log_message(an_entry(ticket, prompt_tokens=1e300, completion_tokens=-5)))
    await log.write(log_message(an_entry(ticket, prompt_tokens=1, completion_tokens=1)))
    process, _, count = ticket.rpartition("-")
    for guessed in (f"{process}-{int(count, 16) + 1:x}", f"{process}-{'f' * 400}", "~", ticket.upper(), ""):
        await log.write(log_message(an_entry(guessed, prompt_tokens=1, completion_tokens=1)))
    await until(lambda: edge.recorder.count("access_log") == 7)
    settled = [each for each in edge.recorder.decided if isinstance(each, Settled)]
    assert [each.id for each in settled] == [ticket]
    assert settled[0].cost <= 3 * 10_000_000
    assert edge.inside == 1  # and no entry frees a slot: only the stream's end does
    await stream.end()
    edge.check_empty()


async def test_streams_of_nobody_take_turns_as_anybody_does(start: Start) -> None:
    """Feigned requests are queued, bounded and fair like those of an Envoy: the others get their turn."""
    edge, envoy = await start(tenants={"*": {"max_queued": 5}})
    first, _ = await envoy.released()
    feigned = [envoy.stream() for _ in range(20)]
    for stream in feigned:
        await stream.send(request(headers={"x-tenant": "nobody"}))
    await until(lambda: edge.recorder.count("refuse") == 15)
    honest = envoy.stream()
    await honest.send(request(headers={"x-tenant": "honest"}))
    await until(lambda: edge.held == 6)
    await first.end()
    for stream in feigned:
        stream.cancel()
    assert headers_set(await honest.answer())["x-fairlane-class"] == "default"
