"""Composes the parts of a running Fairlane, and owns start, drain and stop."""

from __future__ import annotations

import asyncio

import structlog

from extproc import __version__
from extproc.admin import server as admin_server
from extproc.config.model import Config
from extproc.config.units import split_host_port
from extproc.core.model import PoolPolicy
from extproc.core.view import FlowView, PoolView, flows, view
from extproc.edge import server as edge_server
from extproc.edge.access_log import AccessLog
from extproc.edge.driver import Interrupted, PoolDriver
from extproc.edge.gate import Gate
from extproc.edge.key_file import KeyFileError, Keys
from extproc.edge.server import PortInUseError
from extproc.edge.stream import ExternalProcessor
from extproc.edge.tracking import Tracking
from extproc.edge.ways import Ways
from extproc.engines.access import AccessError
from extproc.fleet import Fleet
from extproc.telemetry import recording
from extproc.telemetry.http import HttpPort
from extproc.telemetry.metrics import EndpointSetStats, Metrics, ScrapeStats

log = structlog.get_logger()

_LETTING_GO_S = 0.5  # what is still held when the grace is over needs a moment to be let go
_NEVER_S = 10.0 * 366 * 86_400


class StartError(Exception):
    """The service cannot start. The message names the cause and the setting."""


class Service:
    """One process: its pools, its ports, its scrapers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics(__version__)
        self._drivers: dict[str, PoolDriver] = {}
        self._fleets: list[Fleet] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = False

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set; end at once when `hurry` is too. Raises StartError."""
        loop = asyncio.get_running_loop()
        for pool in self.config.pools:
            policy = self.config.pool_policy(pool)
            tape = self._tape(pool.name, policy)
            # Those that are known beforehand are there when the port opens, so that nothing waits for want of them.
            self._drivers[pool.name] = PoolDriver(policy, pool.endpoints.known, loop, self.metrics, tape)
        ways = {pool.name: Ways.configured(pool) for pool in self.config.pools}
        try:
            keys = Keys(self.config)
            self._fleets = [
                Fleet(pool, self._drivers[pool.name], ways[pool.name], self.metrics) for pool in self.config.pools
            ]
        except (KeyFileError, AccessError) as error:
            raise StartError(str(error)) from error
        gate = Gate(self.config, self._drivers, self.metrics, keys, ways)
        tracking = Tracking(gate, self.metrics)
        processor = ExternalProcessor(gate, tracking, self.metrics)
        http = HttpPort(
            self.metrics.registry, lambda: self._ready, self.pools, self.flows, self.scrape_stats, self.set_stats
        )
        self.metrics.watch(self.pools, self.scrape_stats, self.set_stats, lambda: processor.open)
        listen = self.config.listen
        try:
            access_log = AccessLog(gate, tracking, self.metrics)
            edge = edge_server.build(listen.ext_proc, processor, access_log, self.config.requests.max_body)
            admin, admin_health = admin_server.build()
            edge_server.bind(admin, listen.admin, "admin")
        except PortInUseError as error:
            raise StartError(str(error)) from error
        try:
            await http.start(*split_host_port(listen.http))
        except OSError as error:
            await http.stop()
            raise StartError(f"{listen.http} (listen.http) cannot be bound: {error.strerror or error}") from error
        await edge.server.start()
        await admin.start()
        await edge.set_serving(True)
        await admin_health.set("", edge_server.SERVING)
        for fleet in self._fleets:
            self._tasks.append(asyncio.create_task(fleet.run(), name=f"engines of {fleet.pool.name}"))
        watching = keys.watch(on_broken=lambda: self.metrics.fault("key_file"))
        self._tasks.append(asyncio.create_task(watching, name="key files"))
        self._ready = True
        log.info("serving", version=__version__, **listen.model_dump())
        await stop.wait()
        await admin_health.set("", edge_server.NOT_SERVING)
        await self._drain(edge, processor, hurry)
        await admin.stop(0)
        await http.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        tracking.close()
        for driver in self._drivers.values():
            driver.close()
        log.info("stopped")

    async def _drain(self, edge: edge_server.EdgeServer, processor: ExternalProcessor, hurry: asyncio.Event) -> None:
        """Health first, so that Envoy looks elsewhere; then no new streams; then the held ones go, by `shutdown.held`:
        unanswered, to another replica or to the next process here; or with 503; or in their turn. Answers under way may
        finish within the grace."""
        self._ready = False
        settings = self.config.shutdown
        inside = sum(pool.in_flight for pool in self.pools())
        held = sum(pool.queued for pool in self.pools())
        log.info("draining", held=held, in_flight=inside, grace_s=settings.grace, held_requests=settings.held)
        await edge.set_serving(False)
        # Its own time never ends: a stop whose grace is over in the moment in which another one has stopped the server
        # crashes the process (grpcio 1.85 cancels the calls of a server that is gone).
        stopping = asyncio.ensure_future(edge.server.stop(_NEVER_S))
        await asyncio.sleep(0)  # lets the server refuse what comes from now on, before the held ones are let go
        if settings.held != "finish":
            processor.let_go(Interrupted.HANDED_OVER if settings.held == "hand_over" else Interrupted.DRAINING)
        hurrying = asyncio.ensure_future(hurry.wait())
        # Access-log streams stay open as long as Envoy runs: the end of all requests is what counts.
        emptied = asyncio.ensure_future(self._emptied())
        ends = (stopping, hurrying, emptied)
        await asyncio.wait(ends, timeout=settings.grace, return_when=asyncio.FIRST_COMPLETED)
        if not any(end.done() for end in ends):
            processor.let_go(Interrupted.HANDED_OVER)
            await asyncio.wait(ends, timeout=_LETTING_GO_S, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        emptied.cancel()
        await edge.server.stop(None)
        await stopping

    async def _emptied(self) -> None:
        for driver in self._drivers.values():
            await driver.emptied()

    def _tape(self, pool: str, policy: PoolPolicy) -> recording.Recorder | None:
        settings = self.config.recording
        path = settings.file_of(pool)
        if path is None:
            return None
        return recording.Recorder(
            recording.Parts(path, max_bytes=settings.max_size, keep=settings.keep),
            policy,
            version=__version__,
            hashed=settings.tenants == "hashed",
            on_stop=lambda: self.metrics.fault("recording"),
        )

    # -- what others read -------------------------------------------------------------------------

    def pools(self) -> list[PoolView]:
        return [view(driver.scheduler, driver.now()) for driver in self._drivers.values()]

    def flows(self, pool: str, most: int) -> list[FlowView]:
        return flows(self._drivers[pool].scheduler, most)

    def scrape_stats(self) -> list[ScrapeStats]:
        return [stats for fleet in self._fleets for stats in fleet.scrape_stats()]

    def set_stats(self) -> list[EndpointSetStats]:
        return [fleet.set_stats() for fleet in self._fleets]
