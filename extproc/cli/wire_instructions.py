"""What telling costs, in instructions: what `wire_telemetry` looks for, where CPU time cannot decide.

Seconds of CPU for the same work differ by some hundredths from process to process, and by more where others use the
machine. How many instructions it takes differs less. So the service runs under valgrind's callgrind, some 40 times
slower, and what is done is taken apart:

    request  a load in a process that is warm, less what the seconds cost that it took; medians over the rounds, in
             each of which all rows have their turn, since threads take turns otherwise on a busy machine
    second   requests are inside an engine that does not answer: all that is done once a second is done, nothing else
    scrape   in that state, Prometheus' page is read; less the seconds that it took

A request costs `request + (second + scrape / 15) / rate`. Under callgrind some 40 requests a second are all there are,
and what is done once a second would be a large part of each; so the rate is a stated one (`RATE`). Of a traced request
most is the cost of its spans: there is a row in which none is traced and one in which each is, and the shipped share
of the difference counts. A share of a few requests would be a matter of chance.

Not in such a count: the kernel's part, and how long an instruction takes (caches, branches, waiting for memory).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from extproc.cli.ports import free_ports
from extproc.cli.stack import StackError
from extproc.cli.wire_measures import SMALL, Scale, Told
from extproc.cli.wire_rig import Rig, WaySpec, rig
from extproc.cli.wire_telemetry import CONTROL, OFF, SCRAPE_S, SHIPPED, TRACED, configs, pages_open, turned
from extproc.config.telemetry import Traces
from extproc.sim.wire_load import Load

RATE = 500.0  # requests a second, over which is spread what is done once a second
UNTRACED = "page open, none traced"
ROWS = (OFF, CONTROL, SHIPPED, UNTRACED, TRACED)

_READY_S = 600.0  # of a part, when the machine is slow as well
_LOAD_S = 1_800.0
_CONTROL_S = 120.0  # until callgrind answers
_CLIENTS = 4
_WARM_UP = 200  # before the count begins, and as many after
_INSIDE = 4  # requests that are held inside the engine
_SCRAPES = 4
_LOOK_S = 3.0  # longer than spans wait to be sent
_CALM = 8e6  # instructions a second: twice what it takes to read the engine and to feed a page
_THREAD = re.compile(r"^ *Th *\d+ +([\d,]+) *$", re.MULTILINE)
# The order of sets goes by hashes, and so does a part of the instructions.
_COUNTED = ("env", "PYTHONHASHSEED=0", "valgrind", "--tool=callgrind", "--instr-atstart=no")
_NO_FILE = "--callgrind-out-file=/dev/null"


@dataclass(slots=True)
class Counted:
    """Instructions of one row."""

    request: list[float] = field(default_factory=list)  # by round
    second: list[float] = field(default_factory=list)  # by launch
    scrape: list[float] = field(default_factory=list)  # by launch

    @property
    def request_median(self) -> float:
        return statistics.median(self.request)

    @property
    def second_median(self) -> float:
        return statistics.median(self.second)

    @property
    def scrape_median(self) -> float:
        return statistics.median(self.scrape)

    def at(self, rate: float) -> float:
        """Of a request, with its part of what is done once a second, at so many requests a second. No scrapes."""
        return self.request_median + self.second_median / rate


@dataclass(slots=True)
class Instructions:
    """What was counted, by the name of the row."""

    rows: dict[str, Counted]
    rate: float = RATE  # requests a second
    sample: float = Traces().sample  # of the requests, that are traced

    def ratio(self, name: str) -> float:
        """Instructions of a request at `rate` / with telemetry off, in two processes."""
        off = statistics.mean(self.rows[each].at(self.rate) for each in (OFF, CONTROL))
        return self.rows[name].at(self.rate) / off

    @property
    def all_of_it(self) -> float:
        """Instructions for one request with all of it, `sample` of them traced, and a scrape each 15 s / with
        telemetry off."""
        request, second = self._of_all()
        off = statistics.mean(self.rows[each].at(self.rate) for each in (OFF, CONTROL))
        return (request + second / self.rate) / off

    def rate_for(self, bound: float) -> float | None:
        """Requests a second from which on all of it is within `bound` / off; None: there is no such rate."""
        request, second = self._of_all()
        off_request = statistics.mean(self.rows[each].request_median for each in (OFF, CONTROL))
        off_second = statistics.mean(self.rows[each].second_median for each in (OFF, CONTROL))
        left = bound * off_request - request
        return max(0.0, (second - bound * off_second) / left) if left > 0 else None

    @property
    def apart(self) -> float:
        """By how much two processes differ that do the same: a part of the smaller one's."""
        one, other = sorted((self.ratio(OFF), self.ratio(CONTROL)))
        return other / one - 1

    def _of_all(self) -> tuple[float, float]:
        """(of a request, of a second)"""
        untraced, traced = self.rows[UNTRACED], self.rows[TRACED]
        spans = traced.request_median - untraced.request_median
        return (
            untraced.request_median + self.sample * spans,
            untraced.second_median + untraced.scrape_median / SCRAPE_S,
        )


def why_not() -> str | None:
    """What keeps instructions from being counted here, and the cure; None: nothing does."""
    missing = [name for name in ("valgrind", "callgrind_control") if shutil.which(name) is None]
    if sys.platform != "linux":
        return "instructions are counted on Linux only: measure CPU time (--only telemetry), or run it in a container"
    if missing:
        return (
            f"instructions cannot be counted: there is no {' and no '.join(missing)}. Install valgrind (Debian, "
            "Ubuntu: apt-get install valgrind), or measure CPU time (--only telemetry)"
        )
    return None


async def instructions(directory: Path, scale: Scale, tell: Told) -> Instructions:
    """Raises StackError, also when a request fails or valgrind is missing."""
    reason = why_not()
    if reason is not None:
        raise StackError(reason)
    found = Instructions({name: Counted() for name in ROWS})
    for launch in range(1, scale.counted_launches + 1):
        launched = directory / f"launch-{launch}"
        launched.mkdir()
        tell(f"instructions: launch {launch} of {scale.counted_launches}")
        await _launched(launched, found, scale, tell)
    return found


async def _launched(directory: Path, found: Instructions, scale: Scale, tell: Told) -> None:
    """All rows in processes of their own, side by side and in turn."""
    collector = free_ports(1)[0]
    none = {"traces": {"otlp": f"http://127.0.0.1:{collector}", "sample": 0.0}}
    telemetry = {**configs(collector), UNTRACED: none}
    pipes = f"--vgdb-prefix={directory / 'vgdb'}"
    command = (*_COUNTED, _NO_FILE, pipes)
    specs = [WaySpec(name, "fairlane", config={"telemetry": telemetry[name]}, under=command) for name in found.rows]
    tell(f"instructions: {len(specs)} services start")
    watched = [name for name in found.rows if name in (UNTRACED, TRACED)]
    async with rig(directory, *specs, collector=collector, ready_s=_READY_S) as r, pages_open(r, watched):
        ways = {name: _Counting(r, name, pipes) for name in found.rows}
        for name, way in ways.items():
            tell(f"instructions: {name} is made warm")
            await way.answered(_WARM_UP)
            await way.control("--instr=on")
            await way.answered(_WARM_UP)
        loads: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(scale.counted_rounds):
            tell(f"instructions: round {number + 1} of {scale.counted_rounds}")
            for name in turned(list(ways), number):
                loads[name].append(await ways[name].load(scale.counted, calm=name == TRACED))
        for name, way in ways.items():
            tell(f"instructions: seconds and scrapes of {name}")
            second, scrape = await way.held(scale.counted_s)
            counted = found.rows[name]
            counted.second.append(second)
            counted.scrape.append(scrape)
            counted.request.extend((count - second * seconds) / scale.counted for count, seconds in loads[name])


class _Counting:
    """One service that runs under callgrind."""

    def __init__(self, r: Rig, name: str, pipes: str) -> None:
        self._r, self._name, self._pipes = r, name, pipes

    async def answered(self, requests: int) -> None:
        load = Load(0, requests, body_bytes=SMALL, clients=_CLIENTS, timeout_s=_LOAD_S)
        result = await self._r.load(self._name, load)
        if result.ok != requests:
            raise StackError(f"{self._name}, under valgrind: {requests} requests gave {result.answers}")
        await self._r.until_empty(self._name)

    async def load(self, requests: int, *, calm: bool) -> tuple[float, float]:
        """(instructions, seconds). `calm`: the instructions of what is done later, too."""
        before, start = await self._seen()
        await self.answered(requests)
        after, end = await self._seen()
        return (await self._calm() if calm else after) - before, end - start

    async def _calm(self) -> int:
        """Instructions so far, when a load has left nothing to do: spans are made and sent some seconds later."""
        deadline = time.monotonic() + _READY_S
        before, start = await self._seen()
        while time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            after, end = await self._seen()
            if after - before < _CALM * (end - start):
                return after
            before, start = after, end
        raise StackError(f"{self._name}, under valgrind: it is at work though nothing comes")

    async def held(self, seconds: float) -> tuple[float, float]:
        """Instructions of (a second, a scrape), while requests are inside."""
        await self._r.hold_engine()
        load = Load(0, _INSIDE, shape="at_once", body_bytes=SMALL, timeout_s=_LOAD_S)
        running = self._r.begin(self._name, load)
        pool = await self._r.until_pool(self._name, lambda p: p["in_flight"] == _INSIDE, _READY_S)
        if pool["in_flight"] != _INSIDE:
            raise StackError(f"{self._name}, under valgrind: of {_INSIDE} requests {pool['in_flight']} went in")
        before, start = await self._seen()
        await asyncio.sleep(seconds)
        idle, between = await self._seen()
        second = (idle - before) / (between - start)
        for _ in range(_SCRAPES):
            await self._r.metric(self._name, "fairlane_released_requests_total")
        after, end = await self._seen()
        await self._r.free_engine()
        await self._r.finish(running)
        return second, (after - idle - second * (end - between)) / _SCRAPES

    async def _seen(self) -> tuple[int, float]:
        """(instructions of all threads since the count began, when)"""
        told = await self.control("-e")
        threads = _THREAD.findall(told)
        if not threads:
            raise StackError(f"callgrind_control tells no count of {self._name}: {told.strip()}")
        return sum(int(count.replace(",", "")) for count in threads), time.monotonic()

    async def control(self, what: str) -> str:
        """What callgrind answers. Raises StackError."""
        server = self._r.ways[self._name].server
        pid = None if server is None else server.pid
        process = await asyncio.create_subprocess_exec(
            "callgrind_control", self._pipes, what, str(pid),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_CONTROL_S):
                told, _ = await process.communicate()
        except TimeoutError:
            raise StackError(f"callgrind has not answered `{what}` within {_CONTROL_S:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        text = told.decode(errors="replace")
        if process.returncode != 0:
            raise StackError(f"callgrind_control failed: {text.strip()}")
        return text
