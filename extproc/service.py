"""Composes the parts of a running Fairlane, and owns start, drain and stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from extproc import __version__
from extproc.admin.access import AdminStartError
from extproc.admin.control import ClusterState, EngineState, RecordingState, RunningPool, SourceState
from extproc.admin.portions import Portions
from extproc.admin.revisions import Revisions
from extproc.admin.server import AdminServer
from extproc.admin.servicer import Admin
from extproc.config.load import ConfigError, FileData
from extproc.config.model import Config
from extproc.config.units import split_host_port
from extproc.config.written import written
from extproc.core.view import FlowView, PoolView, flows, view
from extproc.edge import server as edge_server
from extproc.edge.access_log import AccessLog
from extproc.edge.driver import Interrupted
from extproc.edge.key_file import KeyFileError
from extproc.edge.server import PortInUseError
from extproc.edge.stream import ExternalProcessor
from extproc.edge.tracking import Tracking
from extproc.engines.access import AccessError
from extproc.live import Live
from extproc.notify import Notifier
from extproc.pools import Pools
from extproc.replicas import Replicas, ReplicasError
from extproc.telemetry.http import HttpPort
from extproc.telemetry.journal import OBSERVED
from extproc.telemetry.metrics import ConfigurationStats, EndpointSetStats, Metrics, ScrapeStats, Sources
from extproc.telemetry.sampler import Watched
from extproc.telemetry.telemetry import Telemetry
from extproc.telemetry.traces import TraceError
from extproc.transport.tls_files import TlsError, TlsFiles

log = structlog.get_logger()

_LETTING_GO_S = 0.5  # what is still held when the grace is over needs a moment to be let go
_STOPPED_S = 10.0  # and the stop itself, on a slow machine
_NEVER_S = 10.0 * 366 * 86_400


class StartError(Exception):
    """The service cannot start. The message names the cause and the setting."""


class Service:
    """One process: its pools, its ports, its scrapers, its configuration."""

    def __init__(self, config: Config, file: FileData | None = None, notifier: Notifier | None = None) -> None:
        """`file`: what `config` was read from, to be read again when it changes; None: it came from nowhere.
        `notifier`: to the service manager; None: there is none."""
        self.config = config  # as it was at the start; `revisions` has what is in force
        self.metrics = Metrics(__version__, enabled=config.telemetry.enabled)
        self.started_at = time.time()
        self.serving = False
        self._file = file or FileData.of(written(config))
        self._notifier = notifier or Notifier()
        self._reloads: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Serve until `stop` is set; end at once when `hurry` is too. Raises StartError."""
        self.revisions = await asyncio.to_thread(Revisions.open, self._file, self.config.admin, keeps=False)
        try:
            await self._run(stop, hurry)
        finally:
            await self.revisions.close()

    async def _run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        revisions = self.revisions
        config = self.config = revisions.config
        try:
            self._telemetry = Telemetry(config.telemetry, self.metrics, __version__, self._watched)
        except TraceError as error:
            raise StartError(str(error)) from error
        try:
            await self._serve(stop, hurry)
        finally:
            await self._telemetry.close()
        log.info("stopped")

    async def _serve(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        revisions, config, journal = self.revisions, self.config, self._telemetry.journal
        listen = config.listen
        try:
            edge_tls = None if listen.ext_proc_tls is None else TlsFiles(listen.ext_proc_tls, "listen.ext_proc_tls")
            http_tls = None if listen.http_tls is None else TlsFiles(listen.http_tls, "listen.http_tls")
            self._pools = pools = Pools(config, self.metrics, __version__, journal)
        except (TlsError, KeyFileError, AccessError) as error:
            raise StartError(str(error)) from error
        gate = pools.gate
        tracking = Tracking(gate, self.metrics)
        processor = ExternalProcessor(gate, tracking, self.metrics, journal)
        try:
            self._replicas = replicas = Replicas(
                config.cluster, pools, processor, self.metrics, version=__version__, revision=lambda: revisions.revision
            )
        except ReplicasError as error:
            raise StartError(str(error)) from error
        portions = Portions()
        live = Live(self, revisions, self._telemetry.history.plain, lambda: http.watchers, portions)
        http = HttpPort(
            self.metrics.registry,
            lambda: self.serving,
            self.pools,
            self.flows,
            self.scrape_stats,
            self.set_stats,
            live if config.telemetry.page else None,
            replicas.stats,
        )
        self.metrics.watch(
            Sources(
                pools=self.pools,
                scrapers=self.scrape_stats,
                sets=self.set_stats,
                open_streams=lambda: processor.open,
                observers=self.observers,
                configuration=self.configuration_stats,
                fairness=self._telemetry.fairness,
                objectives=self._objectives,
                leaked=lambda: {each.pool.name: each.driver.leaked() for each in self._pools},
                modes=lambda: {each.pool.name: each.pool.mode for each in self._pools},
                held_of=self._held_of,
                page_watchers=lambda: http.watchers,
                cluster=replicas.stats,
                certificates=lambda: {
                    port: tls.expires()
                    for port, tls in (("ext_proc", edge_tls), ("admin", admin.access.tls), ("http", http_tls))
                    if tls is not None
                },
            )
        )
        try:
            access_log = AccessLog(gate, tracking, self.metrics, journal)
            edge = edge_server.build(listen.ext_proc, processor, access_log, config.requests.max_body, edge_tls)
            servicer = Admin(self, revisions, portions)
            admin = AdminServer.build(listen.admin, config.admin, servicer, revisions.audit.denied)
        except (PortInUseError, AdminStartError) as error:
            raise StartError(str(error)) from error
        try:
            await http.start(*split_host_port(listen.http), http_tls)
        except OSError as error:
            await http.stop()
            raise StartError(f"{listen.http} (listen.http) cannot be bound: {error.strerror or error}") from error
        revisions.attach(self)
        try:
            await revisions.keep()
        except ConfigError as error:
            await http.stop()
            raise StartError(str(error)) from error
        await replicas.join(revisions)
        await edge.server.start()
        await admin.start()
        await edge.set_serving(replicas.active)
        await admin.set_serving(True)
        pools.start(processor)
        replicas.start(edge)
        following = [
            asyncio.create_task(revisions.run(), name="configuration"),
            asyncio.create_task(admin.watch(lambda: self.metrics.fault("token_file")), name="token file"),
        ]
        self.serving = True
        ports = listen.model_dump(include={"ext_proc", "admin", "http"})
        environment = {"environment": names} if (names := self._file.environment.names) else {}
        log.info("serving", version=__version__, revision=revisions.revision, **ports, **environment)
        self._notifier.ready(self._status())
        await stop.wait()
        await admin.set_serving(False)
        await self._drain(edge, processor, hurry)
        servicer.close()
        await admin.stop()
        await http.stop()
        for task in following:
            task.cancel()
        for reload in self._reloads:  # what it reads may hang
            reload.cancel()
        await asyncio.gather(*following, *self._reloads, return_exceptions=True)
        await replicas.stop()
        await pools.stop()
        tracking.close()

    def reload(self) -> None:
        """Read the configuration's file again, whether or not it seems to have changed."""
        if not self.serving:
            return
        self._notifier.reloading()
        task = asyncio.create_task(self._reload(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        await self.revisions.reload("SIGHUP")
        if self.serving:
            self._notifier.ready(self._status())

    def _status(self) -> str:
        """For the service manager."""
        revisions = self.revisions
        error = f"; the configuration file is refused: {revisions.file_error}" if revisions.file_error else ""
        return f"serving at {self.config.listen.ext_proc}, revision {revisions.revision}{error}"

    async def _drain(self, edge: edge_server.EdgeServer, processor: ExternalProcessor, hurry: asyncio.Event) -> None:
        """Health first, so that Envoy looks elsewhere; then no new streams; then the held ones go, by `shutdown.held`:
        unanswered, to another replica or to the next process here; or with 503; or in their turn. Answers under way may
        finish within the grace."""
        self.serving = False
        settings = self._pools.config.shutdown
        inside = sum(pool.in_flight for pool in self.pools())
        held = sum(pool.queued for pool in self.pools())
        log.info("draining", held=held, in_flight=inside, grace_s=settings.grace, held_requests=settings.held)
        self._notifier.stopping(f"draining: {held} held, {inside} inside", settings.grace + _LETTING_GO_S + _STOPPED_S)
        self._replicas.drain()
        await edge.set_serving(False)
        await self._replicas.release()
        # Its own time never ends: a stop whose grace is over in the moment in which another one has stopped the server
        # crashes the process (grpcio 1.85 cancels the calls of a server that is gone).
        stopping = asyncio.ensure_future(edge.server.stop(_NEVER_S))
        await asyncio.sleep(0)  # lets the server refuse what comes from now on, before the held ones are let go
        if settings.held != "finish":
            processor.let_go(Interrupted.HANDED_OVER if settings.held == "hand_over" else Interrupted.DRAINING)
        hurrying = asyncio.ensure_future(hurry.wait())
        # Access-log streams stay open as long as Envoy runs: the end of all requests is what counts.
        emptied = asyncio.ensure_future(self._pools.emptied())
        ends = (stopping, hurrying, emptied)
        await asyncio.wait(ends, timeout=settings.grace, return_when=asyncio.FIRST_COMPLETED)
        if not any(end.done() for end in ends):
            processor.let_go(Interrupted.HANDED_OVER)
            await asyncio.wait(ends, timeout=_LETTING_GO_S, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        emptied.cancel()
        await edge.server.stop(None)
        await stopping

    # -- what the admin API asks for (`admin.control`) --------------------------------------------

    def check(self, config: Config) -> None:
        self._pools.check(config)

    async def prepare(self, config: Config) -> Callable[[], None]:
        commit = await self._pools.prepare(config)

        def take() -> None:
            commit()
            self._telemetry.configure(config.telemetry)

        return take

    def running(self) -> list[RunningPool]:
        fairness, objectives = self._telemetry.fairness(), self._objectives()
        return [
            RunningPool(
                pool=each.pool,
                scheduler=each.driver.scheduler,
                observed=None if each.driver.observer is None else each.driver.observer.scheduler,
                retiring=each.retiring,
                now=each.driver.now,
                cancel=each.driver.cancel,
                leaked=each.driver.leaked,
                objectives=objectives,
                fairness=fairness.get(each.pool.name, {}),
                observed_fairness=fairness.get(each.pool.name + OBSERVED, {}),
            )
            for each in self._pools
        ]

    def engines(self) -> list[EngineState]:
        return [
            EngineState(each.pool, each.endpoint, each.dialect, each.way.via, each.last_failure)
            for each in self.scrape_stats()
        ]

    def sources(self) -> list[SourceState]:
        return [
            SourceState(each.pool.name, each.pool.endpoints.told, each.fleet.set_stats().last_error)
            for each in self._pools
        ]

    def recording(self) -> RecordingState:
        return self._pools.recording()

    def cluster(self) -> ClusterState | None:
        return self._replicas.state()

    def ticket_of(self, x_request_id: str) -> str | None:
        return self._pools.gate.request_ids.ticket(x_request_id)

    # -- what others read -------------------------------------------------------------------------

    def _watched(self) -> list[Watched]:
        found = []
        for each in self._pools:
            driver, name = each.driver, each.pool.name
            found.append(Watched(name, driver.scheduler, driver.now, driver.leaked))
            if driver.observer is not None:
                found.append(Watched(name + OBSERVED, driver.observer.scheduler, driver.now, observed=True))
        return found

    def _objectives(self) -> dict[str, float]:
        classes = self.revisions.config.classes.items()
        return {name: cls.wait_objective for name, cls in classes if cls.wait_objective is not None}

    def _held_of(self, pool: str, tenant: str) -> int:
        try:
            classes = self._pools.named(pool).driver.scheduler.classes
        except KeyError:  # it is configured no more
            return 0
        return sum(cls.queue.queued(tenant) for cls in classes)

    def pools(self) -> list[PoolView]:
        return [view(each.driver.scheduler, each.driver.now()) for each in self._pools]

    def observers(self) -> list[PoolView]:
        """Of what passes, and is looked at."""
        observers = [each.driver.observer for each in self._pools]
        return [view(each.scheduler, each.now()) for each in observers if each is not None]

    def configuration_stats(self) -> ConfigurationStats:
        revisions = self.revisions
        return ConfigurationStats(
            revision=revisions.revision,
            overrides=len(revisions.overlay.settings),
            file_good=revisions.file_error is None,
            state_read_only=revisions.state.read_only,
            expiries_failed=sum(bool(each.error) for each in revisions.expiries()),
            outcomes=revisions.audit.outcomes,
            loaded_at=revisions.file.loaded_at,
        )

    def flows(self, pool: str, most: int) -> list[FlowView]:
        return flows(self._pools.named(pool).driver.scheduler, most)

    def scrape_stats(self) -> list[ScrapeStats]:
        return [stats for each in self._pools for stats in each.fleet.scrape_stats()]

    def set_stats(self) -> list[EndpointSetStats]:
        return [each.fleet.set_stats() for each in self._pools]
