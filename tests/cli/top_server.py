"""A real admin port with the real reading methods, whose pools do what standard input says; a process of its own.

    python top_server.py PORT        # 0: a free one; it says "ready PORT"

Lines: `arrive TENANT CLASS COUNT` (the tenant as a JSON string), `end COUNT` (of those inside, the oldest first),
`advance SECONDS` (of the pools' clock, with a fresh page). Each is answered with "done"; `asked` is answered with how
often flows were asked for. It ends with its input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "admin"))  # helpers of the tests of the admin API

from access_case import opened
from reads_case import E1, FakeControl, FakeRevisions, PoolCase, a_config

from extproc.admin.servicer import Admin
from extproc.core.events import Scraped
from extproc.core.model import Sample, State
from extproc.pb.admin.v1 import admin_pb2 as pb

POOLS = ("llama", "qwen")
TENANTS = {"heavy": {"weight": 2}}


class Scene:
    def __init__(self, config: Any) -> None:
        self.cases = {name: PoolCase(config, name) for name in POOLS}
        self._ids = itertools.count(1)

    def do(self, line: str) -> None:
        word, *given = line.split()
        getattr(self, word)(*given)

    def arrive(self, tenant: str, cls: str, count: str, pool: str = POOLS[0]) -> None:
        for _ in range(int(count)):
            self.cases[pool].arrive(f"r{next(self._ids)}", json.loads(tenant), cls)

    def end(self, count: str) -> None:
        case = self.cases[POOLS[0]]
        for _ in range(int(count)):
            inside = [key for key, found in case.scheduler.requests.items() if found.state is State.RELEASED]
            case.end(inside[0])

    def advance(self, seconds: str) -> None:
        for case in self.cases.values():
            case.now += float(seconds)
            case.apply(Scraped(E1, Sample(2, 1, 0.25, None, None, None, None, None, started=case.now)))


class Counting(Admin):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.asked = 0  # for flows
        list_flows = self.ListFlows

        async def counted(request: pb.ListFlowsRequest, context: Any) -> pb.ListFlowsResponse:
            self.asked += 1
            found: pb.ListFlowsResponse = await list_flows(request, context)
            return found

        self.ListFlows = counted


async def serve(port: int) -> None:
    config = a_config(*POOLS, slots=4, tenants={"*": {"max_queued": 1_000_000, "max_queued_bytes": "1GiB"}, **TENANTS})
    scene = Scene(config)
    servicer = Counting(FakeControl(list(scene.cases.values())), FakeRevisions(config))  # type: ignore[arg-type]
    async with opened(servicer, f"127.0.0.1:{port}") as admin:
        print("ready", admin.address.rpartition(":")[2], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "asked\n":
                print(servicer.asked, flush=True)
                continue
            scene.do(line)
            print("done", flush=True)
        servicer.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
