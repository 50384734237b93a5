"""Several replicas as real processes: a store, a way through Envoy to each replica, and what engines say of it after.

    async with store_server(directory) as store, Stack(options) as stack:
        await store.ask("INFO", "stats")

`options` has `replicas`, a `config` with a section `cluster`, and `doors(...)` as `envoy_patch`. All is measured at the
simulated engine: it writes down when each request came, when its first token was made and when its answer ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until
from extproc.cli.stack import FAIRLANE, StackError
from extproc.wiring.parts import EXT_PROC, named, unshared

_PROGRAMS = ("redis-server", "valkey-server")
_READY_S = 30.0
_STOP_S = 10.0
_ANSWER_S = 10.0

Entry = Mapping[str, Any]  # of an engine's journal, GET /sim/requests
Config = dict[str, Any]


# -- the store ------------------------------------------------------------------------------------


class StoreServerError(Exception):
    """The store has answered with an error; the message is its own."""


class StoreServer:
    """A Redis or Valkey that keeps nothing on disk. Started and ended by its pid; may be started again on its port."""

    def __init__(self, directory: Path, *, arguments: Iterable[str] = ()) -> None:
        """`arguments`: more of the program's. Raises StackError when there is no such program."""
        directory.mkdir(parents=True, exist_ok=True)
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
        if program is None:
            raise StackError(f"there is no {' or '.join(_PROGRAMS)} on PATH: install Redis or Valkey")
        self.at = HostPort("127.0.0.1", free_ports(1)[0])
        argv = [program, "--bind", self.at.host, "--port", str(self.at.port), "--dir", str(directory)]
        argv += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", *arguments]
        self.child = Child("store", argv, log=directory / "store.log", directory=directory, env=dict(os.environ))

    async def start(self) -> None:
        """Return when it answers. Raises StackError."""
        self.child.start()
        answering = asyncio.create_task(self._until_answering())
        try:
            await until(lambda: answering.done() or self.child.failed, _READY_S)
            if not answering.done():
                raise StackError(f"the store does not start; the last lines of its log:\n{self.child.tail()}")
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def stop(self) -> None:
        await self.child.stop(_STOP_S)

    def kill(self) -> None:
        """SIGKILL. It has ended when this returns."""
        self.child.kill()

    async def ask(self, *words: str) -> str:
        """Send one command, and return its answer as text; that of an array is the number of its members.

        Raises StoreServerError, OSError and TimeoutError."""
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(self.at.host, self.at.port)
            try:
                sent = [word.encode() for word in words]
                writer.write(b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in sent))
                line = await reader.readuntil(b"\r\n")
                kind, rest = line[:1], line[1:-2]
                if kind == b"-":
                    raise StoreServerError(rest.decode(errors="replace"))
                if kind == b"$" and rest != b"-1":
                    return (await reader.readexactly(int(rest) + 2))[:-2].decode(errors="replace")
                return rest.decode(errors="replace")
            finally:
                writer.close()

    async def info(self) -> dict[str, str]:
        """What INFO says, with the commands."""
        lines = (await self.ask("INFO", "everything")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    async def _until_answering(self) -> None:
        while True:
            with contextlib.suppress(OSError, StoreServerError, asyncio.IncompleteReadError):
                if await self.ask("PING") == "PONG":
                    return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def store_server(directory: Path, *, arguments: Iterable[str] = ()) -> AsyncIterator[StoreServer]:
    """A store that answers, ended with the block. Raises StackError."""
    server = StoreServer(directory, arguments=arguments)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a store was asked, ever."""

    exchanges: int  # calls of scripts and functions
    bytes_in: int
    bytes_out: int

    @classmethod
    def of(cls, info: Mapping[str, str]) -> Traffic:
        calls = [info.get(f"cmdstat_{name}", "") for name in ("evalsha", "fcall")]
        counts = [int(text.split(",")[0].removeprefix("calls=")) for text in calls if text]
        return cls(sum(counts), int(info["total_net_input_bytes"]), int(info["total_net_output_bytes"]))

    def since(self, other: Traffic) -> Traffic:
        return Traffic(
            self.exchanges - other.exchanges, self.bytes_in - other.bytes_in, self.bytes_out - other.bytes_out
        )


# -- the way to each replica ----------------------------------------------------------------------


def doors(at: Sequence[HostPort]) -> Callable[[Config], None]:
    """A change of Envoy's configuration: one listener more for each replica. What comes to it goes to that replica, and
    to the others while that one is not well."""

    def add(config: Config) -> None:
        static = config["static_resources"]
        (shared,) = static["listeners"]
        cluster = named(static["clusters"], FAIRLANE)
        replicas = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        for number, (address, replica) in enumerate(zip(at, replicas, strict=True), 1):
            name = f"{FAIRLANE}-door-{number}"
            others = [each for each in replicas if each is not replica]
            endpoints = [{"priority": 0, "lb_endpoints": [replica]}]
            endpoints += [{"priority": 1, "lb_endpoints": others}] if others else []
            own, door = unshared(cluster), unshared(shared)
            own["name"] = name
            own["load_assignment"] = unshared({"cluster_name": name, "endpoints": endpoints})
            static["clusters"].append(own)
            door["name"] = name
            door["address"] = {"socket_address": {"address": address.host, "port_value": address.port}}
            filters = door["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            named(filters, EXT_PROC)["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = name
            static["listeners"].append(door)

    return add


# -- what the engine says -------------------------------------------------------------------------


def served(entries: Iterable[Entry], since: float, until: float) -> dict[str, float]:
    """Tokens by tenant that were made between two times (Unix seconds): of an answer that lies partly outside, the part
    of its time. `entries`: of the journal. An answer that was not finished counts for nothing."""
    tokens: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        first, end = entry["first_token_at"], entry["ended_at"]
        if entry["state"] != "finished" or first is None:
            continue
        inside = max(0.0, min(end, until) - max(first, since))
        whole = end - first
        part = inside / whole if whole > 0 else float(since <= end < until)
        if part:
            tokens[entry["headers"].get("x-tenant", "")] += entry["tokens"] * part
    return dict(tokens)


@dataclass(frozen=True, slots=True)
class Fill:
    """How full an engine was in a stretch of time."""

    waiting_max: int  # requests inside beyond its slots: those that wait there
    waiting_999: int  # not more than this in 99.9 % of the time
    used: float  # mean part of its slots that had a request


def fill(entries: Iterable[Entry], slots: int, since: float, until: float) -> Fill:
    """From the engine's journal, between two times (Unix seconds). One sequence for each request."""
    changes: list[tuple[float, int]] = []
    for entry in entries:
        changes.append((entry["arrived_at"], 1))
        if entry["ended_at"] is not None:
            changes.append((entry["ended_at"], -1))
    changes.sort()  # at the same moment the end comes first
    seconds: defaultdict[int, float] = defaultdict(float)  # by how many are inside
    inside, at = 0, since
    for when, change in changes:
        if when > until:
            break
        if when > at:
            seconds[inside] += when - at
            at = when
        inside += change
    seconds[inside] += until - at
    used = sum(min(count, slots) * took for count, took in seconds.items()) / (slots * (until - since))
    most = max(count for count, took in seconds.items() if took > 0)
    return Fill(max(0, most - slots), max(0, _quantile(seconds, 0.999) - slots), used)


def _quantile(seconds: Mapping[int, float], part: float) -> int:
    """The least value that is not exceeded in this part of the time."""
    left = part * sum(seconds.values())
    for value in sorted(seconds):
        left -= seconds[value]
        if left <= 1e-9:
            return value
    return max(seconds)


def full_again(entries: Sequence[Entry], slots: int, since: float, until: float, *, part: float, bin_s: float) -> float:
    """Seconds from `since` to the end of the stretch in which less than `part` of the slots was used, looked at by
    `bin_s`; up to `until` where it has none. 0: there is no such stretch."""
    begun = False
    for number in range(int((until - since) / bin_s)):
        begin = since + number * bin_s
        less = fill(entries, slots, begin, begin + bin_s).used < part
        if begun and not less:
            return number * bin_s
        begun = begun or less
    return until - since if begun else 0.0
