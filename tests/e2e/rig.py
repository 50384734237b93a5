"""One running stack and what a test asks of it: requests through Envoy, the service's state, what the engines saw."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson
from multidict import CIMultiDictProxy
from prometheus_client.parser import text_string_to_metric_families

from extproc.cli.child import Child
from extproc.cli.ports import HostPort
from extproc.cli.stack import Addresses, Stack, StackOptions

T = TypeVar("T")
Json = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODEL = "sim-7b"
DEADLINE_S = 30.0  # for anything to happen; a machine that is busy with other things needs some of it
FAST_ENGINE = ("--step-base-ms", "4", "--step-per-seq-ms", "0", "--step-per-prefill-token-ms", "0")


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> Json:
        """The error object, which must have the four members that OpenAI's has."""
        error: Json = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def chat(tokens: int = 2, **more: Any) -> Json:
    """A request whose answer has `tokens` tokens."""
    return {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}], **more}


async def until(
    probe: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], what: str = "", within_s: float = DEADLINE_S
) -> T:
    """Ask again and again until the answer is the wanted one, and return it. AssertionError with the last one else."""
    deadline = time.monotonic() + within_s
    while True:
        value = await probe()
        if wanted(value):
            return value
        assert time.monotonic() < deadline, f"not within {within_s:g} s{': ' + what if what else ''}; last: {value}"
        await asyncio.sleep(0.01)


class Rig:
    """A started stack with one engine pool. `http` is a client without a limit of connections."""

    def __init__(self, stack: Stack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.http = http
        self.service_at = stack.addresses.http  # may be set to that of another process

    @property
    def engines(self) -> tuple[HostPort, ...]:
        return self.stack.addresses.engines

    # -- requests ---------------------------------------------------------------------------------

    async def post(
        self,
        body: Json | bytes,
        *,
        path: str = CHAT,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        straight_to: HostPort | None = None,
    ) -> Answer:
        """One request through Envoy, or straight to an engine."""
        url = self.stack.url if straight_to is None else f"http://{straight_to}"
        async with self.http.post(url + path, data=_bytes(body), headers=_headers(tenant, headers)) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    def start(self, body: Json | bytes, **more: Any) -> asyncio.Task[Answer]:
        """The same in the background. The request is on its way when this task has run for a moment, not before."""
        return asyncio.create_task(self.post(body, **more))

    @contextlib.asynccontextmanager
    async def stream(
        self, tokens: int, *, tenant: str | None = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A streamed answer, from its headers on."""
        body = _bytes(chat(tokens, stream=True, **more))
        async with self.http.post(self.stack.url + CHAT, data=body, headers=_headers(tenant, headers)) as answer:
            assert answer.status == 200, await answer.text()
            yield answer

    async def get(self, path: str) -> Answer:
        async with self.http.get(self.stack.url + path) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    # -- the service ------------------------------------------------------------------------------

    async def pool(self) -> Json:
        """The pool as /status shows it."""
        async with self.http.get(f"http://{self.service_at}/status?flows=100") as answer:
            pools: list[Json] = (await answer.json())["pools"]
        assert len(pools) == 1
        return pools[0]

    async def until(self, wanted: Callable[[Json], bool], what: str = "", within_s: float = DEADLINE_S) -> Json:
        """Until the pool is as wanted."""
        return await until(self.pool, wanted, what, within_s)

    async def until_held(self, count: int) -> Json:
        return await self.until(lambda pool: pool["queued"] == count, f"{count} held")

    async def until_inside(self, count: int) -> Json:
        return await self.until(lambda pool: pool["in_flight"] == count, f"{count} inside")

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 if there are none."""
        async with self.http.get(f"http://{self.service_at}/metrics") as answer:
            page = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def books_closed(self) -> None:
        """Nothing is held, inside or waiting for its usage any more, and nothing went wrong inside Fairlane."""
        await self.until(lambda pool: pool["queued"] == pool["in_flight"] == pool["known"] == 0, "all books closed")
        assert await self.metric("fairlane_faults_total") == 0
        self.assert_clean_logs()

    def assert_clean_logs(self) -> None:
        """No part has crashed, logged an error or a traceback."""
        for child in self.stack.children:
            assert not child.failed, child.tail()
            for line in child.log.read_text(errors="replace").splitlines():
                assert not any(mark in line for mark in ('"level": "error"', "Traceback", "[critical]")), line

    # -- the engines ------------------------------------------------------------------------------

    async def seen(self, tenant: str | None = None) -> list[Json]:
        """What the simulated engines were sent (by one tenant), in the order in which each got it."""
        entries: list[Json] = []
        for engine in self.engines:
            async with self.http.get(f"http://{engine}/sim/requests") as answer:
                entries += await answer.json()
        entries.sort(key=lambda entry: entry["arrived_at"])
        return [e for e in entries if tenant is None or e["headers"].get("x-tenant") == tenant]

    async def faults(self, *, engine: int | None = None, **faults: Any) -> None:
        """Set the faults of one simulated engine, or of all; what is not named goes back to normal."""
        for at in self.engines if engine is None else (self.engines[engine],):
            async with self.http.put(f"http://{at}/sim/faults", data=orjson.dumps(faults)) as answer:
                assert answer.status == 200, await answer.text()

    @contextlib.asynccontextmanager
    async def hung_engines(self) -> AsyncIterator[None]:
        """What goes to an engine meanwhile stays there, and is answered afterwards."""
        await self.faults(hang=True)
        try:
            yield
        finally:
            await self.faults()


@contextlib.asynccontextmanager
async def running(
    directory: Path,
    *,
    engines: int | Iterable[HostPort] = 1,
    engine_args: Iterable[str] = FAST_ENGINE,
    config: Mapping[str, Any] | None = None,
    pool: Mapping[str, Any] | None = None,
    debug: bool = False,
    stop_timeout_s: float = 10.0,
    **more: Any,
) -> AsyncIterator[Rig]:
    """A stack on free ports. `engines`: so many simulated ones, or the addresses of others that run already.

    `config` is merged over the shipped fairlane.yaml, `pool` over its pool; `more` are other options of the stack."""
    count = engines if isinstance(engines, int) else 0
    addresses = Addresses.free(count)
    if not isinstance(engines, int):
        addresses = addresses._replace(engines=tuple(engines))
    pools = [{"name": "sim", "models": ["*"], "endpoints": [str(e) for e in addresses.engines], **(pool or {})}]
    options = StackOptions(
        addresses=addresses,
        simulate=count > 0,
        engine_args=tuple(engine_args),
        serve_args=("--log-level", "debug") if debug else (),
        config={**(config or {}), "pools": pools},
        directory=directory,
        stop_timeout_s=stop_timeout_s,
        **more,
    )
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=100)
    async with Stack(options) as stack, aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield Rig(stack, http)


def log_of(child: Child) -> list[Json]:
    """What a service process has logged: one object for each line, in the order of events."""
    lines = child.log.read_bytes().splitlines()
    return [orjson.loads(line) for line in lines if line.startswith(b"{")]


def _bytes(body: Json | bytes) -> bytes:
    return body if isinstance(body, bytes) else orjson.dumps(body)


def _headers(tenant: str | None, more: Mapping[str, str] | None) -> dict[str, str]:
    headers = {"content-type": "application/json", **(more or {})}
    return headers if tenant is None else {**headers, "x-tenant": tenant}
