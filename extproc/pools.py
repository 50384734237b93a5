"""The pools at work: by which configuration they run, and how they come to run by another.

    prepare   everything that can fail: policies are checked, files of keys and certificates are read, new parts are
              made. Nothing of it is in force yet, and it may be thrown away.
    commit    what `prepare` gives. Puts all of it in force within one turn of the event loop, so that no request is
              decided by half of it.

What waits and runs goes on through a change (`core.policy_change`). A pool that is gone from the configuration takes
nothing more in, goes on until what it has is done, and is then forgotten; should it come back before, it takes up where
it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from extproc.admin.control import RecordingState
from extproc.config.load import ConfigError, Fault
from extproc.config.model import Config
from extproc.config.recording import Recording
from extproc.config.scheduling import Pool
from extproc.core.model import PoolPolicy
from extproc.core.policy_check import check_change
from extproc.edge.driver import PoolDriver
from extproc.edge.gate import Gate
from extproc.edge.key_file import KeyFileError, Keys
from extproc.edge.rollout import observes
from extproc.edge.stream import ExternalProcessor
from extproc.edge.ways import Ways
from extproc.engines.access import AccessError
from extproc.fleet import Fleet
from extproc.telemetry.metrics import Metrics
from extproc.telemetry.recording import Parts, Recorder

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Running:
    """One pool at work."""

    pool: Pool
    driver: PoolDriver
    ways: Ways
    fleet: Fleet
    tape: Recorder | None = None
    engines: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None  # it is retired, and goes on until what it has is done

    @property
    def retiring(self) -> bool:
        return self.ending is not None


@dataclass(slots=True)
class _Prepared:
    """What another configuration needs, by pool name."""

    keys: Keys
    fleets: dict[str, Callable[[], None]] = field(default_factory=dict)  # of pools that are there already
    ways: dict[str, Ways] = field(default_factory=dict)
    new: dict[str, Running] = field(default_factory=dict)


class Pools:
    """To be used from one event loop, which runs when it is made."""

    def __init__(self, config: Config, metrics: Metrics, version: str) -> None:
        """Raises KeyFileError and AccessError."""
        self.config = config
        self._metrics = metrics
        self._version = version
        self._processor: ExternalProcessor | None = None
        self._keys = Keys(config)
        self._watching: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._pools = {pool.name: self._made(config, pool, Ways.configured(pool)) for pool in config.pools}
        self.gate = Gate(config, self._drivers(), metrics, self._keys, self._ways())

    def start(self, processor: ExternalProcessor) -> None:
        """Engines are looked for from now on, and files of keys watched. `processor`: that holds the streams."""
        self._processor = processor
        for running in self._pools.values():
            self._start(running)
        self._watch_keys()

    async def stop(self) -> None:
        """What is still held or inside is let go of."""
        tasks = [task for running in self._pools.values() for task in (running.engines, running.ending)]
        for task in (*tasks, self._watching):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), *self._background, return_exceptions=True)
        for running in self._pools.values():
            running.driver.close()

    async def emptied(self) -> None:
        """Until nothing is held or inside the engines."""
        for running in list(self._pools.values()):
            await running.driver.emptied()

    def __iter__(self) -> Iterator[Running]:
        """In the order of the configuration; those that retire last."""
        order = {pool.name: number for number, pool in enumerate(self.config.pools)}
        yield from sorted(self._pools.values(), key=lambda each: order.get(each.pool.name, len(order)))

    def named(self, pool: str) -> Running:
        """Raises KeyError."""
        return self._pools[pool]

    def recording(self) -> RecordingState:
        files = [(each, self.config.recording.file_of(each.pool.name)) for each in self if each.tape is not None]
        return RecordingState(
            active=bool(files),
            files=tuple(str(file) for _, file in files if file is not None),
            stopped_by_error=any(each.tape is not None and each.tape.stopped for each, _ in files),
        )

    # -- another configuration --------------------------------------------------------------------

    async def prepare(self, config: Config) -> Callable[[], None]:
        """Make ready to run by `config`; the result does it, and does not raise. Not to be called again before that.
        Raises ConfigError for what cannot be while pools run, or cannot be read."""
        policies = {pool.name: config.pool_policy(pool) for pool in config.pools}
        faults = [*self._impossible(policies), *_unwritable(config.recording, self.config.recording)]
        if faults:
            raise ConfigError("\n".join(f"{fault.path}: {fault.message}" for fault in faults), faults)
        prepared = await asyncio.to_thread(self._read_files, config)
        for pool in config.pools:
            if pool.name not in self._pools:
                prepared.new[pool.name] = self._made(config, pool, prepared.ways[pool.name])
        drivers = self._drivers() | {name: running.driver for name, running in prepared.new.items()}
        gate = self.gate.prepare(config, drivers, prepared.keys, self._ways() | prepared.ways)

        def commit() -> None:
            old, self.config = self.config, config
            self._pools |= prepared.new
            for pool in config.pools:
                self._change(pool, policies[pool.name], prepared)
            for name, running in self._pools.items():
                if name not in policies and not running.retiring:
                    self._retire(running)
            self.gate.configure(gate)
            for pool in config.pools:
                self._follow_mode(self._pools[pool.name])
            if config.recording != old.recording:
                self._record_anew()
            if prepared.keys is not self._keys:
                self._keys = prepared.keys
                self._watch_keys()

        return commit

    def _impossible(self, policies: dict[str, PoolPolicy]) -> list[Fault]:
        faults = []
        for name, policy in policies.items():
            running = self._pools.get(name)
            if running is not None:
                try:
                    check_change(running.driver.scheduler.policy, policy)
                except ValueError as error:
                    faults.append(Fault(f"pools.{name}", str(error)))
        return faults

    def _read_files(self, config: Config) -> _Prepared:
        """In a thread. Raises ConfigError."""
        try:
            keys = self._keys if _same_keys(config, self.config) else Keys(config)
        except KeyFileError as error:
            raise _refused("identity", error) from None
        prepared = _Prepared(keys)
        for pool in config.pools:
            running = self._pools.get(pool.name)
            if running is None or _told(pool) != _told(running.pool):
                prepared.ways[pool.name] = Ways.configured(pool)
            else:
                prepared.ways[pool.name] = running.ways
            if running is not None and pool != running.pool:
                try:
                    prepared.fleets[pool.name] = running.fleet.prepare(pool, prepared.ways[pool.name])
                except AccessError as error:
                    raise _refused(f"pools.{pool.name}.metrics", error) from None
        return prepared

    def _change(self, pool: Pool, policy: PoolPolicy, prepared: _Prepared) -> None:
        running = self._pools[pool.name]
        if running.ending is not None:
            running.ending.cancel()
            running.ending = None
        if running.driver.scheduler.policy != policy:
            running.driver.reconfigure(policy)
        running.pool, running.ways = pool, prepared.ways[pool.name]
        take = prepared.fleets.get(pool.name)
        if take is not None:
            take()
        if pool.name in prepared.new and self._processor is not None:
            self._start(running)

    def _follow_mode(self, running: Running) -> None:
        running.driver.observe(observes(running.pool))
        if self._processor is not None:
            self._processor.let_pass(running.pool.name)

    # -- pools that come and go -------------------------------------------------------------------

    def _made(self, config: Config, pool: Pool, ways: Ways) -> Running:
        """Raises AccessError."""
        policy = config.pool_policy(pool)
        # Those that are known beforehand are there when the port opens, so that nothing waits for want of them.
        tape = self._tape(config.recording, pool.name, policy)
        driver = PoolDriver(policy, pool.endpoints.known, asyncio.get_running_loop(), self._metrics, tape)
        driver.observe(observes(pool))
        return Running(pool, driver, ways, Fleet(pool, driver, ways, self._metrics), tape)

    def _start(self, running: Running) -> None:
        running.engines = asyncio.create_task(running.fleet.run(), name=f"engines of {running.pool.name}")

    def _retire(self, running: Running) -> None:
        log.info("pool retires", pool=running.pool.name, held=running.driver.scheduler.queued)
        running.ending = asyncio.create_task(self._end(running), name=f"end of {running.pool.name}")

    async def _end(self, running: Running) -> None:
        await running.driver.emptied()
        del self._pools[running.pool.name]
        if running.engines is not None:
            running.engines.cancel()
        tape, running.tape = running.tape, None
        running.driver.set_tape(None)
        running.driver.close()
        log.info("pool retired", pool=running.pool.name)
        if tape is not None:
            await tape.closed()

    def _drivers(self) -> dict[str, PoolDriver]:
        return {name: running.driver for name, running in self._pools.items()}

    def _ways(self) -> dict[str, Ways]:
        return {name: running.ways for name, running in self._pools.items()}

    # -- keys and recordings ----------------------------------------------------------------------

    def _watch_keys(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        watch = self._keys.watch(on_broken=lambda: self._metrics.fault("key_file"))
        self._watching = asyncio.create_task(watch, name="key files")

    def _record_anew(self) -> None:
        for running in self._pools.values():
            old, running.tape = running.tape, None
            running.driver.set_tape(None)
            if old is None:
                self._record(running)
            else:
                self._do(self._record_after(old, running))

    async def _record_after(self, old: Recorder, running: Running) -> None:
        """Two must not write to one file."""
        await old.closed()
        if running.tape is None:
            self._record(running)

    def _record(self, running: Running) -> None:
        if not running.retiring:
            driver = running.driver
            running.tape = self._tape(
                self.config.recording, running.pool.name, driver.scheduler.policy, driver.endpoints
            )
            driver.set_tape(running.tape)

    def _tape(
        self, settings: Recording, pool: str, policy: PoolPolicy, endpoints: tuple[str, ...] | None = None
    ) -> Recorder | None:
        """`endpoints`: in use by now; None: it begins with the scheduler."""
        path = settings.file_of(pool)
        if path is None:
            return None
        return Recorder(
            Parts(path, max_bytes=settings.max_size, keep=settings.keep),
            policy,
            version=self._version,
            hashed=settings.tenants == "hashed",
            on_stop=lambda: self._metrics.fault("recording"),
            endpoints=endpoints,
        )

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _refused(path: str, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: {error}", [Fault(path, str(error))])


def _same_keys(one: Config, other: Config) -> bool:
    """Whether files of keys would be read to the same: what they say is checked against tenants and classes."""
    return _keyed(one) == _keyed(other)


def _keyed(config: Config) -> tuple[object, ...]:
    tenants = {name: (tenant.classes, tenant.default_class) for name, tenant in config.tenants.items()}
    return config.identity, tuple(config.classes), tenants


def _told(pool: Pool) -> tuple[object, ...]:
    """What says how its engines are told priorities."""
    return pool.engine, pool.priority_via, pool.priority_order


def _unwritable(new: Recording, old: Recording) -> list[Fault]:
    """A recording that would fail at its first event."""
    if new.file is None or new == old:
        return []
    folder = Path(new.file).absolute().parent
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    return [Fault("recording.file", f"{folder} cannot be written to by this process")]
