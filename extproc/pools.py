"""The pools at work: by which configuration they run, and how they come to run by another.

    prepare   everything that can fail: policies are checked, files of keys and certificates are read. Nothing of it is
              in force yet, nothing is written or started, and it may be thrown away.
    commit    what `prepare` gives. Puts all of it in force within one turn of the event loop, so that no request is
              decided by half of it.

What waits and runs goes on through a change (`core.policy_change`). A pool that is gone from the configuration takes
nothing more in, goes on until what it has is done, also where it was paused, and is then forgotten. Should it come back
before, it takes up where it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import structlog

from extproc.admin.control import RecordingState
from extproc.config.load import ConfigError, Fault
from extproc.config.model import Config
from extproc.config.scheduling import Pool
from extproc.core.model import PoolPolicy, Traffic
from extproc.core.policy_check import check_change
from extproc.edge.driver import PoolDriver
from extproc.edge.gate import Gate, Rules
from extproc.edge.key_file import KeyFileError, Keys
from extproc.edge.recorder import Journal
from extproc.edge.rollout import observes
from extproc.edge.stream import ExternalProcessor
from extproc.edge.ways import Ways
from extproc.engines.access import Access, AccessError
from extproc.fleet import Fleet
from extproc.telemetry.metrics import Metrics
from extproc.telemetry.recording import Parts, Recorder, is_recording

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
    closing: bool = False  # a tape is being closed: the next one waits for it

    @property
    def retiring(self) -> bool:
        return self.ending is not None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What another configuration needs, by pool name."""

    policies: dict[str, PoolPolicy]
    keys: Keys
    ways: dict[str, Ways]
    access: dict[str, Access]  # of pools that are to begin
    fleets: dict[str, Callable[[], None]]  # of pools that go on
    rules: Rules


class Pools:
    """To be used from one event loop, which runs when it is made."""

    def __init__(self, config: Config, metrics: Metrics, version: str, journal: Journal | None = None) -> None:
        """Raises KeyFileError and AccessError."""
        self.config = config
        self._metrics = metrics
        self._journal = journal
        self._version = version
        self._processor: ExternalProcessor | None = None
        self._keys = Keys(config)
        self._watching: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._on_busy: Callable[[], None] | None = None
        self._pools = {
            pool.name: self._made(pool, config.pool_policy(pool), Ways.configured(pool)) for pool in config.pools
        }
        self.gate = Gate(config, self._drivers(), metrics, self._keys, self._ways())

    def start(self, processor: ExternalProcessor) -> None:
        """Engines are looked for from now on, and files of keys watched. `processor`: that holds the streams."""
        self._processor = processor
        for running in self._pools.values():
            self._start(running)
        self._watch_keys()

    def when_busy(self, call: Callable[[], None]) -> None:
        """`call` when a request comes to a pool that is idle, or is the first that has to wait there."""
        self._on_busy = call
        for running in self._pools.values():
            running.driver.on_busy = call

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

    def check(self, config: Config) -> None:
        """Whether what runs could go by `config`; no file is looked at. May be called from a thread. Raises
        ConfigError."""
        _refuse(_impossible(dict(self._pools), _policies(config)))

    async def prepare(self, config: Config) -> Callable[[], None]:
        """Make ready to run by `config`. The result does it, and does not raise; it may be thrown away, since nothing
        is made before that but in memory. Raises ConfigError for what cannot be while pools run, or cannot be read."""
        prepared = await asyncio.to_thread(self._read, config, dict(self._pools))

        def commit() -> None:
            try:
                self._commit(config, prepared)
            except BaseException:
                self._metrics.fault("configuration")
                raise

        return commit

    def _read(self, config: Config, pools: dict[str, Running]) -> _Prepared:
        """In a thread: with thousands of tenants, or files of keys, it takes a while. Raises ConfigError."""
        policies = _policies(config)
        _refuse([*_impossible(pools, policies), *_unwritable(config, self.config)])
        try:
            keys = self._keys if _same_keys(config, self.config) else Keys(config)
        except KeyFileError as error:
            raise _refused("identity", error) from None
        ways: dict[str, Ways] = {}
        access: dict[str, Access] = {}
        fleets: dict[str, Callable[[], None]] = {}
        for pool in config.pools:
            running = pools.get(pool.name)
            same = running is not None and _told(pool) == _told(running.pool)
            ways[pool.name] = running.ways if running is not None and same else Ways.configured(pool)
            try:
                if running is None or running.retiring:  # which may be over when it is to go on
                    access[pool.name] = Access.of(pool.metrics, pool.name)
                if running is not None and pool != running.pool:
                    fleets[pool.name] = running.fleet.prepare(pool, ways[pool.name])
            except AccessError as error:
                raise _refused(f"pools.{pool.name}.metrics", error) from None
        return _Prepared(policies, keys, ways, access, fleets, self.gate.prepare(config, {}, keys, ways))

    def _commit(self, config: Config, prepared: _Prepared) -> None:
        old, self.config = self.config, config
        switched = []
        for pool in config.pools:
            running = self._pools.get(pool.name)
            if running is None:
                self._add(pool, prepared)
            else:
                if _mode(running.pool) != _mode(pool):
                    switched.append(running)
                self._change(running, pool, prepared)
        for name, running in self._pools.items():
            if name not in prepared.policies and not running.retiring:
                self._retire(running)
        self.gate.configure(replace(prepared.rules, drivers=self._drivers(), ways=self._ways()))
        for running in switched:
            running.driver.observe(observes(running.pool))
            if self._processor is not None:
                self._processor.let_pass(running.pool.name)
        if config.recording != old.recording:
            self._record_anew()
        if prepared.keys is not self._keys:
            self._keys = prepared.keys
            self._watch_keys()

    def _change(self, running: Running, pool: Pool, prepared: _Prepared) -> None:
        policy = prepared.policies[pool.name]
        if running.ending is not None:
            running.ending.cancel()
            running.ending = None
            if running.tape is None and not running.closing:
                self._record(running)  # which may have begun while it was ending
        if running.driver.scheduler.policy != policy:
            running.driver.reconfigure(policy)
        running.pool, running.ways = pool, prepared.ways[pool.name]
        take = prepared.fleets.get(pool.name)
        if take is not None:
            take()

    # -- pools that come and go -------------------------------------------------------------------

    def _add(self, pool: Pool, prepared: _Prepared) -> None:
        policy, ways = prepared.policies[pool.name], prepared.ways[pool.name]
        running = self._pools[pool.name] = self._made(pool, policy, ways, prepared.access[pool.name])
        if self._processor is not None:
            self._start(running)

    def _made(self, pool: Pool, policy: PoolPolicy, ways: Ways, access: Access | None = None) -> Running:
        """`access`: None: read it, which raises AccessError."""
        # Those that are known beforehand are there when the port opens, so that nothing waits for want of them.
        tape = self._tape(pool.name, policy)
        driver = PoolDriver(
            policy, pool.endpoints.known, asyncio.get_running_loop(), self._metrics, tape, self._journal
        )
        driver.on_busy = self._on_busy
        driver.observe(observes(pool))
        return Running(pool, driver, ways, Fleet(pool, driver, ways, self._metrics, access=access), tape)

    def _start(self, running: Running) -> None:
        running.engines = asyncio.create_task(running.fleet.run(), name=f"engines of {running.pool.name}")

    def _retire(self, running: Running) -> None:
        """What it holds gets its turn: nobody could resume a pool that is not configured any more."""
        policy = running.driver.scheduler.policy
        log.info("pool retires", pool=running.pool.name, held=running.driver.scheduler.queued)
        if policy.traffic is not Traffic.OPEN:
            running.driver.reconfigure(replace(policy, traffic=Traffic.OPEN))
        running.ending = asyncio.create_task(self._end(running), name=f"end of {running.pool.name}")

    async def _end(self, running: Running) -> None:
        await running.driver.emptied()
        tape, running.tape = running.tape, None
        if tape is not None:
            running.driver.set_tape(None)
            await asyncio.shield(self._close(tape, running))  # also where the pool comes back meanwhile
        del self._pools[running.pool.name]
        if running.engines is not None:
            running.engines.cancel()
        running.driver.close()
        log.info("pool retired", pool=running.pool.name)

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
            if old is not None:
                self._close(old, running)
            elif not running.closing:
                self._record(running)

    def _close(self, old: Recorder, running: Running) -> asyncio.Task[None]:
        running.closing = True
        task = asyncio.create_task(self._record_after(old, running))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _record_after(self, old: Recorder, running: Running) -> None:
        """Two must not write to one file. What is recorded then is as the configuration says then."""
        done = await old.closed()
        running.closing = False
        if done:
            self._record(running)
        else:
            log.error("recording_not_begun", pool=running.pool.name, cause="the one before is not written yet")

    def _record(self, running: Running) -> None:
        if not running.retiring:
            driver = running.driver
            running.tape = self._tape(running.pool.name, driver.scheduler.policy, driver.endpoints)
            driver.set_tape(running.tape)

    def _tape(self, pool: str, policy: PoolPolicy, endpoints: tuple[str, ...] | None = None) -> Recorder | None:
        """`endpoints`: in use by now; None: it begins with the scheduler."""
        settings = self.config.recording
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


def _policies(config: Config) -> dict[str, PoolPolicy]:
    return {pool.name: config.pool_policy(pool) for pool in config.pools}


def _impossible(pools: dict[str, Running], policies: dict[str, PoolPolicy]) -> list[Fault]:
    faults = []
    for name, policy in policies.items():
        running = pools.get(name)
        if running is not None:
            try:
                check_change(running.driver.scheduler.policy, policy)
            except ValueError as error:
                faults.append(Fault(f"pools.{name}", str(error)))
    return faults


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise ConfigError("\n".join(f"{fault.path}: {fault.message}" for fault in faults), faults)


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


def _mode(pool: Pool) -> tuple[object, ...]:
    return pool.mode, pool.percentage, pool.percentage_of


def _unwritable(new: Config, old: Config) -> list[Fault]:
    """A recording that would fail at its first event, or put aside what is none. Looked at where it begins: all of it,
    or that of a pool that is added."""
    goes_on = {pool.name for pool in old.pools} if new.recording == old.recording else set()
    begins = [pool.name for pool in new.pools if pool.name not in goes_on]
    paths = [path for name in begins if (path := new.recording.file_of(name)) is not None]
    if not paths:
        return []
    try:
        folder = paths[0].absolute().parent
        while not folder.exists():
            folder = folder.parent
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            return [Fault("recording.file", f"{folder} cannot be written to by this process")]
        for path in paths:
            if path.exists() and not is_recording(path):
                return [Fault("recording.file", f"{path} is there and is no recording: name another file")]
    except (OSError, ValueError) as error:  # ValueError: a path that no system has
        return [Fault("recording.file", f"{new.recording.file!r} cannot be used: {error}")]
    return []
