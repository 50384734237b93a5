"""How long the reading methods hold the loop, and what watchers cost that do not read.

    python tests/admin/reads_bench.py [requests ...]
    python tests/admin/reads_bench.py watch

A callback that runs in every turn of the loop notes the longest time between two of its runs, and the CPU that this
thread used in it: where others use the machine too, the second is what the code takes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
from reads_case import FakeControl, FakeRevisions, PoolCase, a_config, called_by
from watch_case import serving, watched

from extproc.admin.reads import Reads
from extproc.core.events import EndpointAdded
from extproc.pb.admin.v1 import admin_pb2 as pb


class Holds:
    """The longest holds of the loop while the body runs, seconds."""

    def __init__(self, every_s: float = 0.0) -> None:
        """`every_s`: between two runs of the callback; 0: in every turn."""
        self.every_s = every_s

    async def __aenter__(self) -> Holds:
        self.loop = asyncio.get_running_loop()
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._over = False
        self._last = (time.perf_counter(), time.thread_time())
        self._turn()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        self._turn()

    def _turn(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        self.wall.append(wall - self._last[0])
        self.cpu.append(cpu - self._last[1])
        self._last = (wall, cpu)
        if self._over:
            return
        if self.every_s:
            self.loop.call_later(self.every_s, self._turn)
        else:
            self.loop.call_soon(self._turn)

    def told(self) -> str:
        cpu = sorted(self.cpu)
        return (
            f"longest {max(self.wall) * 1e3:6.1f} ms of time, {cpu[-1] * 1e3:5.1f} ms of CPU; "
            f"99th percentile {cpu[-1 - len(cpu) // 100] * 1e3:5.1f} ms of CPU"
        )


def filled(requests: int, tenants: int) -> PoolCase:
    case = PoolCase(a_config(slots=64), "m")
    for i in range(requests):
        case.arrive(f"m-{i}", tenant=f"tenant-{i % tenants}", cls="batch" if i % 3 else "interactive")
    return case


async def measured(name: str, work: Awaitable[Any]) -> None:
    gc.collect()
    began, used = time.perf_counter(), time.process_time()
    async with Holds() as holds:
        result = await work
    took, used = time.perf_counter() - began, time.process_time() - used
    print(f"{name:46} {result!s:>8}  {took * 1e3:7.0f} ms, {used * 1e3:6.0f} ms of CPU; {holds.told()}")


class Calls:
    """The methods, with what is to be shown of their answers."""

    def __init__(self, case: PoolCase) -> None:
        self.reads = Reads(FakeControl([case]), FakeRevisions(case.config))  # type: ignore[arg-type]

    async def page(self, text: str) -> int:
        return len((await self.reads.ListRequests(pb.ListRequestsRequest(filter=text, page_size=1000), None)).requests)

    async def fifty(self, text: str) -> int:
        return sum(await asyncio.gather(*(self.page(text) for _ in range(50))))

    async def all_pages(self, text: str) -> str:
        token, found, pages = "", 0, 0
        while True:
            request = pb.ListRequestsRequest(filter=text, page_size=1000, page_token=token)
            response = await self.reads.ListRequests(request, None)
            found, pages, token = found + len(response.requests), pages + 1, response.next_page_token
            if not token:
                return f"{found}/{pages}"

    async def flows(self, top_k: int) -> int:
        return len((await self.reads.ListFlows(pb.ListFlowsRequest(top_k=top_k), None)).flows)

    async def pool(self) -> int:
        return (await self.reads.GetPool(pb.GetPoolRequest(pool="m"), None)).queued_count

    async def explained(self, request: str) -> str:
        return (await self.reads.ExplainRequest(pb.ExplainRequestRequest(id=request), None)).hold

    async def dump(self) -> int:
        with called_by():
            return len([each async for each in self.reads.DumpState(pb.DumpStateRequest(), None)])


async def main(sizes: list[int]) -> None:
    for size in sizes:
        case = filled(size, 20_000)
        calls = Calls(case)
        gc.collect()
        gc.freeze()  # as the service does once it has started
        print(f"{size} requests of 20,000 tenants in {len(case.scheduler.classes)} classes")
        one, three = "tenant = tenant-17", "class = batch AND waited >= 0s AND slots = 1"
        await measured("ListRequests, first 1000", calls.page(""))
        await measured("ListRequests, of one tenant, one page", calls.page(one))
        await measured("ListRequests, of one tenant, all pages", calls.all_pages(one))
        await measured("ListRequests, three comparisons, all pages", calls.all_pages(three))
        await measured("ListRequests, of one tenant, 50 at once", calls.fifty(one))
        await measured("ListFlows, top 20", calls.flows(20))
        await measured("ListFlows, top 10000", calls.flows(10_000))
        await measured("GetPool", calls.pool())
        await measured("ExplainRequest", calls.explained(f"m-{size - 1}"))
        await measured("DumpState", calls.dump())


WATCHERS = 50
SECONDS = 10.0


async def watch() -> None:
    """In another process, each taking its first message and no other of ten a second; 200 requests are held."""
    case = filled(264, 100)
    for i in range(100):
        case.apply(EndpointAdded(f"10.1.0.{i}:8000"))
    reads = Reads(FakeControl([case]), FakeRevisions(case.config))  # type: ignore[arg-type]
    gc.collect()
    gc.freeze()
    async with serving(reads) as address:
        for name, readers in (("nobody watches", 0), (f"{WATCHERS} watch and do not read", WATCHERS)):
            clients = None
            if readers:
                clients = await asyncio.create_subprocess_exec(sys.executable, __file__, "--not-reading", address)
                while reads._watch.watchers < readers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await asyncio.sleep(2.0)
            size = resident_kib()
            used = time.process_time()
            async with Holds(every_s=0.001) as holds:
                await asyncio.sleep(SECONDS)
            used = time.process_time() - used
            print(f"{name:30} {used / SECONDS:6.1%} CPU, {resident_kib() - size:+d} KiB; {holds.told()}")
            if clients is not None:
                clients.kill()
                await clients.wait()
                while reads._watch.watchers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def not_reading(address: str) -> None:
    channels = [grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(10)]
    calls = [watched(channel) for channel in channels for _ in range(WATCHERS // 10)]
    await asyncio.gather(*(call.read() for call in calls))
    await asyncio.sleep(3600)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch"]:
            asyncio.run(watch())
        case ["--not-reading", where]:
            asyncio.run(not_reading(where))
        case sizes:
            asyncio.run(main([int(each) for each in sizes] or [50_000, 200_000]))
