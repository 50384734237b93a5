"""Real servers of Redis for a test: one, a master with a replica and three Sentinels, or a cluster of three; and a wall
before one. Each is ended by its id, also where the test fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from extproc.cli.ports import free_ports
from extproc.config.cluster import Store as Settings

DEADLINE_S = 60.0
MASTER = "fairlane-master"

_T = TypeVar("_T")


def needs_redis() -> None:
    """Skips, or fails where continuous integration runs: it has installed what tests need."""
    if shutil.which("redis-server") is None:
        reason = "redis-server is not installed (Debian: redis-server)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def until(what: str, look: Callable[[], _T | None]) -> _T:
    """What `look` finds. Its errors of redis count as nothing yet."""
    end = time.monotonic() + DEADLINE_S
    last: object = None
    while time.monotonic() < end:
        try:
            found = look()
        except redis.RedisError as error:
            last = error
        else:
            if found:
                return found
            last = found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {DEADLINE_S:.0f} s; last: {last!r}")


async def eventually(what: str, look: Callable[[], bool]) -> None:
    """Lets the loop go on meanwhile."""
    end = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S:.0f} s"
        await asyncio.sleep(0.01)


@dataclass
class RedisServer:
    """One process. `options`: as on the command line, without the dashes."""

    folder: Path
    options: Sequence[tuple[str, str]] = ()
    tls: bool = False
    client: dict[str, Any] = field(default_factory=dict)  # of `redis`, for what the test does there itself
    sentinel: bool = False
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "redis.log").read_text(errors="replace")

    def settings(self, **more: Any) -> Settings:
        """The section `cluster.store`."""
        return Settings.model_validate({"addresses": [self.address], **more})

    def admin(self) -> redis.Redis:
        """Without time-outs of its own; close it, or use it as a context."""
        return redis.Redis(host="127.0.0.1", port=self.port, **self.client)

    def ask(self, *command: Any) -> Any:
        with self.admin() as client:
            return client.execute_command(*command)

    def start(self) -> None:
        """At the same port as before, if it has been started before."""
        fixed = self.port != 0
        for attempt in range(5):
            if not fixed:
                self.port = free_ports(1)[0]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                until("redis answers", self._answers)
                return
            except ChildProcessError:
                self._process = None
                if attempt == 4:
                    raise
                time.sleep(0.2)

    def _command(self) -> list[str]:
        ports = {"port": "0", "tls-port": str(self.port)} if self.tls else {"port": str(self.port)}
        own = {
            **ports,
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "logfile": str(self.folder / "redis.log"),
        }
        if self.sentinel:
            file = self.folder / "sentinel.conf"
            if not file.exists():
                lines = [f"{key} {value}" for key, value in (*own.items(), *self.options)]
                file.write_text("\n".join(lines) + "\n")
            return ["redis-server", str(file), "--sentinel"]
        own |= {"save": "", "appendonly": "no", "repl-diskless-sync-delay": "0", "enable-debug-command": "local"}
        command = ["redis-server"]
        for key, value in (*own.items(), *self.options):
            command += [f"--{key}", *(value.split(" ") if key == "user" else [value])]
        return command

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(f"redis-server has ended with {self._process.returncode}:\n{self.log}")
        with self.admin() as client:
            return bool(client.ping())

    def kill(self) -> None:
        """-9, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(DEADLINE_S)

    def freeze(self) -> None:
        """It takes connections as far as the kernel does, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(folder: Path, **given: Any) -> Iterator[RedisServer]:
    """One that runs. `given`: of RedisServer."""
    needs_redis()
    server = RedisServer(folder, **given)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@dataclass
class Watched:
    """A master, its replica, and three Sentinels."""

    servers: list[RedisServer]
    sentinels: list[RedisServer]

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(
            {"addresses": [each.address for each in self.sentinels], "kind": "sentinel", "sentinel_name": MASTER}
        )

    @property
    def master(self) -> RedisServer:
        """By the Sentinels."""
        found = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        port = int(found[1])
        return next(each for each in self.servers if each.port == port)


@contextlib.contextmanager
def watched_servers(folder: Path) -> Iterator[Watched]:
    needs_redis()
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(redis_server(folder / "0"))
        replica = stack.enter_context(
            redis_server(folder / "1", options=(("replicaof", f"127.0.0.1 {master.port}"),))
        )  # fmt: skip
        until("the replica follows", lambda: b"master_link_status:up" in _raw(replica, "INFO", "replication"))
        watch = (
            ("sentinel", f"monitor {MASTER} 127.0.0.1 {master.port} 2"),
            ("sentinel", f"down-after-milliseconds {MASTER} 1000"),
            ("sentinel", f"failover-timeout {MASTER} 5000"),
        )
        sentinels = [
            stack.enter_context(redis_server(folder / f"sentinel-{number}", options=watch, sentinel=True))
            for number in range(3)
        ]
        for each in sentinels:
            until("the Sentinels know of all", lambda each=each: _sees_all(each))
        yield Watched([master, replica], sentinels)


def _sees_all(sentinel: RedisServer) -> bool:
    with sentinel.admin() as client:
        found = client.sentinel_master(MASTER)
    return int(found["num-other-sentinels"]) == 2 and int(found["num-slaves"]) == 1


@dataclass
class Nodes:
    """A cluster of three masters; every slot has one."""

    servers: list[RedisServer]

    @property
    def settings(self) -> Settings:
        return Settings.model_validate({"addresses": [each.address for each in self.servers], "kind": "cluster"})

    def owner(self, key: str) -> RedisServer:
        slot = self.servers[0].ask("CLUSTER", "KEYSLOT", key)
        return self.servers[slot * 3 // 16384]

    def move(self, key: str, to: RedisServer) -> None:
        """The slot of `key`, with all keys in it, from its first owner."""
        slot, source = self.servers[0].ask("CLUSTER", "KEYSLOT", key), self.owner(key)
        source_id, target_id = (_text(each.ask("CLUSTER", "MYID")) for each in (source, to))
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 10_000, "REPLACE", "KEYS", *keys)
        for each in (to, source, *self.servers):
            each.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)


@contextlib.contextmanager
def cluster_servers(folder: Path) -> Iterator[Nodes]:
    needs_redis()
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(3):
            bus = free_ports(1)[0]
            options = (("cluster-enabled", "yes"), ("cluster-port", str(bus)))
            server = stack.enter_context(redis_server(folder / str(number), options=options))
            servers.append(server)
            first, last = -(-number * 16384 // 3), -(-(number + 1) * 16384 // 3) - 1
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)  # or two could take each other's slots for theirs
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            if number:
                servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        for server in servers:
            until("the cluster is whole", lambda server=server: _is_whole(server))
        yield Nodes(servers)


def _is_whole(server: RedisServer) -> bool:
    info = _raw(server, "CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info and b"cluster_slots_ok:16384" in info


def _raw(server: RedisServer, *command: str) -> bytes:
    with server.admin() as client:
        client.response_callbacks.clear()
        found = client.execute_command(*command)
    return found if isinstance(found, bytes) else str(found).encode()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


@dataclass
class Wall:
    """Before a server: counts what goes through, and holds it up."""

    target: RedisServer
    address: str = ""
    sent: int = 0  # bytes towards the server
    received: int = 0
    connections: int = 0
    delay_s: float = 0.0  # of each answer
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def settings(self, **more: Any) -> Settings:
        return Settings.model_validate({"addresses": [self.address], **more})

    def cut(self) -> None:
        """All connections break."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.target.port)
        self._writers |= {writer, there}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, there, "sent"))
                group.create_task(self._pump(there_reader, writer, "received"))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers -= {writer, there}
            writer.transport.abort()
            there.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: str) -> None:
        while data := await reader.read(64 * 1024):
            await self.open.wait()
            if counter == "received" and self.delay_s:
                await asyncio.sleep(self.delay_s)
            setattr(self, counter, getattr(self, counter) + len(data))
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one end has closed")


@contextlib.asynccontextmanager
async def wall(target: RedisServer) -> AsyncIterator[Wall]:
    found = Wall(target)
    found.open.set()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await found.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
