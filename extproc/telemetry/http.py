"""The HTTP port: metrics, health, and the state as JSON. Read-only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from extproc.core.view import FlowView, PoolView
from extproc.telemetry.metrics import EndpointSetStats, ScrapeStats

_MOST_FLOWS = 1_000


class HttpPort:
    """`ready` is not about engines: a service without any still holds requests, and says why."""

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Callable[[], bool],
        pools: Callable[[], list[PoolView]],
        flows: Callable[[str, int], list[FlowView]],
        scrapers: Callable[[], list[ScrapeStats]] = list,
        sets: Callable[[], list[EndpointSetStats]] = list,
    ) -> None:
        self._registry = registry
        self._ready = ready
        self._pools = pools
        self._flows = flows
        self._scrapers = scrapers
        self._sets = sets
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the address is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(self._registry), headers={"content-type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._ready() else web.Response(status=503, text="not ready\n")

    async def _status(self, request: web.Request) -> web.Response:
        """Pools, endpoints, classes and the longest flows (`?flows=N`, 20 unless told); what the engines are and how
        reading them goes; where endpoints come from."""
        try:
            most = min(max(int(request.query.get("flows", "20")), 0), _MOST_FLOWS)
        except ValueError:
            return _json({"error": "flows must be a whole number"}, 400)
        pools = [{**_plain(pool), "flows": [_plain(f) for f in self._flows(pool.pool, most)]} for pool in self._pools()]
        engines, sources = [_plain(each) for each in self._scrapers()], [_plain(each) for each in self._sets()]
        return _json({"ready": self._ready(), "pools": pools, "engines": engines, "sources": sources})


def _json(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json")


def _plain(row: PoolView | FlowView | ScrapeStats | EndpointSetStats) -> dict[str, Any]:
    def convert(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value.value if isinstance(value, Enum) else value for key, value in items}

    return asdict(row, dict_factory=convert)
