"""Watching: one sampler for each interval, slow readers that delay nobody, bounds, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from reads_case import FakeControl, FakeRevisions, PoolCase, a_config, refused
from watch_case import serving, watched

from extproc.admin import watch
from extproc.admin.pool_messages import PoolMessages
from extproc.admin.portions import Portions
from extproc.admin.reads import Reads
from extproc.admin.watch import MOST_WATCHERS, Watch, interval_of
from extproc.core.events import EndpointAdded
from extproc.pb.admin.v1 import admin_pb2 as pb


def a_watch(*cases: PoolCase) -> Watch:
    return Watch(PoolMessages(FakeControl(list(cases)), Portions()), lambda: 7)


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for it
            await asyncio.sleep(0.005)


async def take(stream: AsyncIterator[pb.Stats]) -> pb.Stats:
    return await asyncio.wait_for(anext(stream), 20)


# -- what is told -------------------------------------------------------------------------------------


async def test_the_first_at_once_and_the_others_at_their_time() -> None:
    case = PoolCase(a_config(), "m")
    watching = a_watch(case)
    loop = asyncio.get_running_loop()
    stream = watching.watch(0.1, "")
    began = loop.time()
    first = await take(stream)
    assert (first.revision, [each.name for each in first.pools], first.pools[0].queued_count) == (7, ["m"], 0)
    assert first.time.seconds > 1_700_000_000
    case.arrive("r1")
    case.arrive("r2")
    second = await take(stream)
    assert loop.time() - began >= 0.09
    assert second.pools[0].queued_count == 1
    assert second.pools[0].classes[0].HasField("oldest_wait")
    await stream.aclose()
    assert (watching.watchers, watching.samplers) == (0, 0)


async def test_one_pool_of_several() -> None:
    config = a_config("a", "b")
    control = FakeControl([PoolCase(config, "b"), PoolCase(config, "a")])
    watching = Watch(PoolMessages(control, Portions()), lambda: 7)
    every, one = watching.watch(0.1, ""), watching.watch(0.1, "b")
    assert [each.name for each in (await take(every)).pools] == ["a", "b"]
    assert [each.name for each in (await take(one)).pools] == ["b"]
    control.cases.pop(0)  # b goes: it is not there any more, and the watcher goes on
    await until(lambda: watch_newest(watching) == ["a"])
    assert (await take(one)).pools == []
    await every.aclose()
    await one.aclose()


def watch_newest(watching: Watch) -> list[str]:
    (sampler,) = watching._samplers.values()
    return [] if sampler.newest is None else [each.name for each in sampler.newest.of("").pools]


async def test_watchers_of_an_interval_share_sampler_and_message() -> None:
    watching = a_watch(PoolCase(a_config(), "m"))
    streams = [watching.watch(0.1, "") for _ in range(5)]
    other = watching.watch(0.2, "")
    for stream in (*streams, other):
        await take(stream)
    assert (watching.watchers, watching.samplers) == (6, 2)
    found = await asyncio.gather(*(take(stream) for stream in streams))
    assert all(each is found[0] for each in found)
    for stream in streams:
        await stream.aclose()
    assert (watching.watchers, watching.samplers) == (1, 1)
    await other.aclose()
    assert (watching.watchers, watching.samplers) == (0, 0)


async def test_a_slow_reader_misses_some_and_then_has_the_newest() -> None:
    case = PoolCase(a_config(), "m")
    watching = a_watch(case)
    slow, quick = watching.watch(0.1, ""), watching.watch(0.1, "")
    await take(slow)
    for number in range(5):
        case.arrive(f"r{number}")
        await take(quick)
    assert (await take(slow)).pools[0].known_count >= 4
    await slow.aclose()
    await quick.aclose()


async def test_intervals_of_their_own_share_what_is_young() -> None:
    """50 samplers that begin together take one sample together."""
    taken = 0

    class Counting(PoolMessages):
        async def told(self, pools: Any) -> Any:
            nonlocal taken
            taken += 1
            return await super().told(pools)

    watching = Watch(Counting(FakeControl([PoolCase(a_config(), "m")]), Portions()), lambda: 7)
    streams = [watching.watch(60.0 + i, "") for i in range(50)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    for stream in streams:
        await take(stream)
    assert taken <= 1 + (loop.time() - began) / watch._YOUNG_S
    assert watching.samplers == 50
    for stream in streams:
        await stream.aclose()


# -- bounds and ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, 1.0),
        (duration_pb2.Duration(nanos=100_000_000), 0.1),
        (duration_pb2.Duration(seconds=3600), 3600.0),
    ],
)
def test_intervals(asked: duration_pb2.Duration | None, expected: float) -> None:
    assert interval_of(asked) == expected


@pytest.mark.parametrize(
    "asked",
    [
        duration_pb2.Duration(),
        duration_pb2.Duration(nanos=99_999_999),
        duration_pb2.Duration(seconds=3600, nanos=1000),
        duration_pb2.Duration(seconds=-1),
        duration_pb2.Duration(seconds=2**62),
    ],
)
def test_intervals_that_cannot_be(asked: duration_pb2.Duration) -> None:
    with refused("INVALID_ARGUMENT", "interval: must be from 0.1 s to 3600 s"):
        interval_of(asked)


async def test_so_many_watchers_and_no_more() -> None:
    watching = a_watch(PoolCase(a_config(), "m"))
    streams = [watching.watch(60.0, "") for _ in range(MOST_WATCHERS)]
    for stream in streams:
        await take(stream)
    with refused("RESOURCE_EXHAUSTED", "200 watchers are the most", "poll GetPool instead"):
        await take(watching.watch(60.0, ""))
    await streams.pop().aclose()
    another = watching.watch(60.0, "")
    await take(another)
    for stream in (*streams, another):
        await stream.aclose()
    assert watching.watchers == 0


async def test_all_end_when_the_server_stops() -> None:
    watching = a_watch(PoolCase(a_config(), "m"))
    streams = [watching.watch(60.0, "") for _ in range(3)]
    for stream in streams:
        await take(stream)
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    watching.close()
    for each in waiting:
        with refused("UNAVAILABLE", "the service stops"):
            await asyncio.wait_for(each, 20)
    with refused("UNAVAILABLE", "the service stops"):
        await take(watching.watch(60.0, ""))
    assert watching.watchers == 0


async def test_a_sample_that_fails_ends_its_watchers_and_the_next_begin_anew() -> None:
    control = FakeControl([PoolCase(a_config(), "m")])
    watching = Watch(PoolMessages(control, Portions()), lambda: 7)
    stream = watching.watch(0.1, "")
    await take(stream)
    control.cases = [None]  # type: ignore[list-item]
    with pytest.raises(watch.SampleError):
        await take(stream)
        await take(stream)
    control.cases = [PoolCase(a_config(), "m")]
    again = watching.watch(0.1, "")
    await take(again)
    await take(again)
    assert watching.watchers == 1
    await again.aclose()


# -- over gRPC ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_fifty_that_do_not_read_and_one_that_does() -> None:
    """A message of 65 KB fills the window of a reader that does not read."""
    case = PoolCase(a_config(), "m")
    for i in range(2000):
        case.apply(EndpointAdded(f"10.1.{i // 250}.{i % 250}:8000"))
    reads = Reads(FakeControl([case]), FakeRevisions(a_config()))  # type: ignore[arg-type]
    watching = reads._watch
    async with serving(reads) as address, grpc.aio.insecure_channel(address) as quick_channel:
        channels = [
            grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(5)
        ]
        calls = [watched(channel) for channel in channels for _ in range(10)]
        quick = watched(quick_channel)
        assert (await asyncio.wait_for(quick.read(), 20)).ByteSize() > 30_000
        await until(lambda: watching.watchers == 51)
        known = 0
        for number in range(8):
            case.arrive(f"r{number}", tenant=f"t{number}")
            while known <= number:  # what was on its way already is read first
                known = (await asyncio.wait_for(quick.read(), 20)).pools[0].known_count
        assert watching.samplers == 1
        # Nothing is kept for those who do not read.
        gc.collect()
        assert sum(isinstance(each, watch._Sample) for each in gc.get_objects()) <= 3
        for call in (*calls, quick):
            call.cancel()
        await until(lambda: watching.watchers == 0)
        assert watching.samplers == 0
        for channel in channels:
            await channel.close()


async def test_a_client_that_goes_away() -> None:
    reads = Reads(FakeControl([PoolCase(a_config(), "m")]), FakeRevisions(a_config()))  # type: ignore[arg-type]
    async with serving(reads) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            call = watched(channel, 0.9)
            await asyncio.wait_for(call.read(), 20)
            assert reads._watch.watchers == 1
        await until(lambda: reads._watch.watchers == 0)
