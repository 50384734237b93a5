"""The HTTP port: metrics, health, the state as JSON, and the live page. Read-only.

Whoever reaches it may ask: so it takes only so many connections (`http_connections`), tells nothing of a client in the
log (`http_refusals`), and gives nothing to the page of somebody else in a browser on this machine (`http_origin`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any, cast

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.core.view import FlowView, PoolView
from extproc.telemetry.http_connections import Connections, Limits
from extproc.telemetry.http_origin import foreign_host, foreign_origin, is_loopback
from extproc.telemetry.http_refusals import Refusals
from extproc.telemetry.live.assets import HEADERS, assets
from extproc.telemetry.live.feed import Feed
from extproc.telemetry.live.source import LiveSource
from extproc.telemetry.metrics import ClusterStats, EndpointSetStats, Exposition, ScrapeStats
from extproc.transport.tls_files import TlsFiles

_MOST_FLOWS = 1_000
_LONGEST_ID = 512  # characters
_STOP_S = 1.0  # for answers under way, which then end wherever they are
_BACKLOG = 128
_OPEN_TO_ALL = ("/healthz", "/readyz")  # to those who look whether it lives, by whatever name
_NO_PAGE = "the live page is off: it is there with `telemetry: {page: true}` in fairlane.yaml\n"
_FOREIGN_HOST = (
    "this port is on loopback, and answers those who ask for it by a name of loopback: ask at "
    "{scheme}://127.0.0.1:{port}, or have it listen on another address (`listen: {{http: ...}}` in fairlane.yaml)\n"
)


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
        live: LiveSource | None = None,
        cluster: Callable[[], ClusterStats | None] = lambda: None,
        limits: Limits | None = None,
    ) -> None:
        """`live`: what the live page shows; None: there is no page."""
        self._exposition = Exposition(registry)
        self._ready = ready
        self._pools = pools
        self._flows = flows
        self._scrapers = scrapers
        self._sets = sets
        self._cluster = cluster
        self._refusals = Refusals()
        self._connections = Connections(self._refusals, limits)
        self._listening: asyncio.Server | None = None
        self._bound = ("", 0)
        self._scheme = "http"
        self._on_loopback = True  # until it is known
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        self._live = live
        self._feed = None if live is None else Feed(live)
        self._assets = assets()
        for path in self._assets:
            app.router.add_get(path, self._asset)
        app.router.add_get("/events", self._events)
        app.router.add_get("/explain", self._explain)
        self._runner = web.AppRunner(
            app, access_log=None, logger=self._refusals.logger, handle_signals=False, shutdown_timeout=_STOP_S
        )

    @property
    def watchers(self) -> int:
        """Pages that are open."""
        return 0 if self._feed is None else self._feed.readers

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> None:
        """`tls`: None: plain text. Raises OSError when the address is taken."""
        await self._runner.setup()
        server = cast(web.Server, self._runner.server)  # it is there from `setup` on
        self._listening = listening = await asyncio.get_running_loop().create_server(
            lambda: self._connections.protocol(server, tls), host, port, backlog=_BACKLOG, start_serving=False
        )
        self._bound = (host, listening.sockets[0].getsockname()[1])
        self._scheme = "http" if tls is None else "https"
        self._on_loopback = all(is_loopback(each.getsockname()[0]) for each in listening.sockets)
        await listening.start_serving()

    async def stop(self) -> None:
        """Pages that are open end at once."""
        if self._listening is not None:
            self._listening.close()
        if self._feed is not None:
            self._feed.close()
        await self._runner.cleanup()
        self._connections.close()
        self._refusals.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self._connections.answering(request.transport):
            if request.path in _OPEN_TO_ALL or not self._on_loopback:
                return await handler(request)
            host, port = self._bound
            if foreign_host(request.headers.getall("host", []), host):
                self._refusals.count("foreign_host")
                text = _FOREIGN_HOST.format(scheme=self._scheme, port=port)
                return web.Response(status=403, text=text, headers=HEADERS)
            return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = await self._exposition.page(request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """A replica that stands by is ready: it takes over, and serves what comes all the same. Who is to get requests
        is what the health checks of the gRPC port say."""
        if not self._ready():
            return web.Response(status=503, text="not ready\n")
        cluster = self._cluster()
        return web.Response(text="ready\n" if cluster is None or cluster.active else "ready, stands by\n")

    async def _status(self, request: web.Request) -> web.Response:
        """Pools, endpoints, classes and the longest flows (`?flows=N`, 20 unless told); what the engines are and how
        reading them goes; where endpoints come from; what is known of other replicas."""
        try:
            most = min(max(int(request.query.get("flows", "20")), 0), _MOST_FLOWS)
        except ValueError:
            return _json({"error": "flows must be a whole number"}, 400)
        pools = [{**_plain(pool), "flows": [_plain(f) for f in self._flows(pool.pool, most)]} for pool in self._pools()]
        engines, sources = [_plain(each) for each in self._scrapers()], [_plain(each) for each in self._sets()]
        cluster = None if (seen := self._cluster()) is None else _plain(seen)
        ready = self._ready()
        return _json({"ready": ready, "cluster": cluster, "pools": pools, "engines": engines, "sources": sources})

    # -- the live page ----------------------------------------------------------------------------

    async def _asset(self, request: web.Request) -> web.Response:
        if self._live is None:
            return web.Response(status=404, text=_NO_PAGE)
        asset = self._assets[request.path]
        return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._feed is None:
            return web.Response(status=404, text=_NO_PAGE)
        return self._foreign(request) or await self._feed.stream(request)

    async def _explain(self, request: web.Request) -> web.Response:
        if self._live is None:
            return web.Response(status=404, text=_NO_PAGE)
        refused = self._foreign(request)
        if refused is not None:
            return refused
        request_id = request.query.get("id", "")
        if not 0 < len(request_id) <= _LONGEST_ID:
            return _json({"error": "give the id of a request: /explain?id=..."}, 400, HEADERS)
        found = await self._live.explain(request_id)
        if found is None:
            return _json({"error": "this request is not here: it is over, or another replica has it"}, 404, HEADERS)
        return _json(found, headers=HEADERS)

    def _foreign(self, request: web.Request) -> web.Response | None:
        """Another site's page cannot read what is here, but it could open all the streams that there may be."""
        headers = request.headers
        by_fetch = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if not by_fetch and not foreign_origin(headers.get("origin"), headers.get("host")):
            return None
        self._refusals.count("foreign_origin")
        return web.Response(status=403, text="only the live page itself may ask for this\n", headers=HEADERS)


def _json(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json", headers=headers)


def _plain(row: PoolView | FlowView | ScrapeStats | EndpointSetStats | ClusterStats) -> dict[str, Any]:
    def convert(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value.value if isinstance(value, Enum) else value for key, value in items}

    return asdict(row, dict_factory=convert)
