"""A whole service in the test's process, on free ports, with an engine that has a metrics page and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.cli.ports import free_ports
from extproc.config.load import from_data
from extproc.edge.wire import EXT_PROC_SERVICE
from extproc.pb.wire.v1 import ext_proc_pb2
from extproc.service import Service

PAGE = """\
vllm:num_requests_running{model_name="m"} 0
vllm:num_requests_waiting{model_name="m"} 0
"""


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the other side tells nobody
            await asyncio.sleep(0.001)


class Engine:
    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.asked = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._page)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _page(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text=PAGE)


class Running:
    """A service under test and its clients."""

    def __init__(self, engine: Engine, **config: Any) -> None:
        edge, admin, http = free_ports(3)
        self.edge, self.admin, self.http = (f"127.0.0.1:{port}" for port in (edge, admin, http))
        pool = {
            "name": "sim",
            "models": ["m"],
            "endpoints": [f"127.0.0.1:{engine.port}"],
            "window": {"start": 1, "overtake": 0},
            # read once, or its window would grow: the page says that there is room
            "metrics": {"interval": "60s", "idle_interval": "60s", **config.pop("metrics", {})},
            **config.pop("pool", {}),
        }
        self.config = from_data(
            {
                "listen": {"ext_proc": self.edge, "admin": self.admin, "http": self.http, **config.pop("listen", {})},
                "classes": {"default": {"rank": 0, "priority": 0, "max_waiting": 0}},
                "pools": config.pop("pools", [pool]),
                **config,
            }
        )
        self.service = Service(self.config)
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self.service.run(self.stop, self.hurry))
        self.channels = {
            name: grpc.aio.insecure_channel(at, options=(("grpc.use_local_subchannel_pool", 1),))
            for name, at in (("edge", self.edge), ("admin", self.admin))
        }
        self.session = aiohttp.ClientSession()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://{self.http}{path}") as answer:
            return answer.status, await answer.text()

    async def ready(self, within_s: float = 5.0) -> None:
        """Until it says so, and its engine has been read."""
        async with asyncio.timeout(within_s):
            while True:
                assert not self.task.done(), self.task
                try:
                    if (await self.get("/readyz"))[0] == 200 and self.stance == "fresh":
                        return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.001)

    @property
    def stance(self) -> str:
        return self.service.pools()[0].endpoints[0].stance.value

    @property
    def held(self) -> int:
        return self.service.pools()[0].queued if self.service.serving else 0

    async def health(self, port: str, name: str = "") -> str:
        stub = health_pb2_grpc.HealthStub(self.channels[port])
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def watch(self, port: str) -> AsyncIterator[str]:
        async def words() -> AsyncIterator[str]:
            stub = health_pb2_grpc.HealthStub(self.channels[port])
            async for answer in stub.Watch(health_pb2.HealthCheckRequest(service="")):
                yield health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        return words()

    async def request(self) -> Any:
        message = ext_proc_pb2.ProcessingRequest()
        for name, value in ((":method", b"POST"), (":path", b"/v1/completions")):
            message.request_headers.headers.headers.add(key=name, raw_value=value)
        message.metadata_context.filter_metadata["fairlane.request"].update({"model": "m"})
        call = self.channels["edge"].stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
        await call.write(message.SerializeToString())
        return call

    async def released(self) -> Any:
        call = await self.request()
        async with asyncio.timeout(5):
            answer = ext_proc_pb2.ProcessingResponse.FromString(await call.read())
        assert answer.dynamic_metadata.fields["fairlane.endpoint"].struct_value["address"]
        return call

    async def over(self) -> None:
        """Until `run` has returned."""
        async with asyncio.timeout(5):
            await self.task

    async def close(self) -> None:
        self.stop.set()
        self.hurry.set()
        await asyncio.gather(self.task, return_exceptions=True)
        for channel in self.channels.values():
            await channel.close()
        await self.session.close()


Run = Callable[..., Running]
