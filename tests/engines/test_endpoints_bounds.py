"""What an API of Kubernetes that is none, or is out of its mind, can send without end; and sets that never rest."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from aiohttp import web
from endpoints_case import Follower, followed, until
from kubernetes_api import endpoint_slice, line, pod, status

from extproc.config.endpoints import Kubernetes
from extproc.engines.endpoints import kubernetes, source
from extproc.engines.endpoints.cluster import Cluster
from extproc.engines.endpoints.kubernetes import KubernetesSource
from extproc.engines.endpoints.source import Endpoint, Source

MIB = 1024**2
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def asking(handler: Handler) -> AsyncIterator[Follower]:
    """A source whose API is `handler`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        # a client that has heard enough is no fault of the server's
        with contextlib.suppress(ConnectionError):
            return await handler(request)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    settings = Kubernetes(service="llama")
    asked = KubernetesSource(
        settings, "llama", time.monotonic, read=lambda _: Cluster(url, "llm"), watch_s=60, pause_s=1000.0
    )
    try:
        async with followed(asked) as follower:
            yield follower
    finally:
        await runner.cleanup()


def page(*names: str, more: str | None = None, rest: str = "") -> web.Response:
    """Of a list; `rest` is how long the annotations are."""
    items = [endpoint_slice(name, pod("10.0.0.1")) for name in names]
    for each in items:
        each["metadata"]["annotations"] = {"rest": rest}
    return web.json_response({"metadata": {"resourceVersion": "5", "continue": more or ""}, "items": items})


async def streamed(request: web.Request, *pieces: bytes, code: int = 200, then: bytes = b"") -> web.StreamResponse:
    """`then` is repeated without end."""
    response = web.StreamResponse(status=code)
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    while then:
        await response.write(then)
    return response


# -- lists ----------------------------------------------------------------------------------------


async def test_what_was_compressed_though_nobody_asked_is_refused() -> None:
    encodings: list[str | None] = []
    packed = gzip.compress(bytes(64 * MIB), 1)

    async def bomb(request: web.Request) -> web.StreamResponse:
        encodings.append(request.headers.get("Accept-Encoding"))
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    async with asking(bomb) as follower:
        await follower.until_failed("is compressed (gzip), though it was not asked to be")
    assert encodings == ["identity"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(200, "the Kubernetes API answers with more than 8192 KiB at once"), (500, "the Kubernetes API answers 500; it")],
)
async def test_an_answer_without_end(code: int, words: str) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        while True:
            await response.write(bytes(MIB))
            sent += MIB

    async with asking(endless) as follower:
        await follower.until_failed(words)
        assert sent < 32 * MIB  # what was read, and what lay in the buffers of both sides


async def test_a_refusal_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_REFUSAL_S", 0.05)

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page("a")
        await streamed(request, b"{", code=500)
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(handler) as follower:
        await follower.until_failed("the Kubernetes API answers 500; it is tried again")


async def test_pages_without_end() -> None:
    asked = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return page(f"a{asked}", more="again")

    async with asking(handler) as follower:
        await follower.until_failed("list has more than 200 pages: see what runs at")
        assert asked == kubernetes.MOST_PAGES
        assert follower.sets == []


async def test_pages_that_are_large_together() -> None:
    asked = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return page("a", more="again", rest="x" * 7 * MIB)

    async with asking(handler) as follower:
        await follower.until_failed("the EndpointSlices have more than 16 MiB; give a selector that finds fewer")
        assert asked == 3


async def test_a_list_of_too_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "MOST_SLICES", 3)

    async def handler(_: web.Request) -> web.StreamResponse:
        return page(*"abcd")

    async with asking(handler) as follower:
        await follower.until_failed("there are more than 3 EndpointSlices")


async def test_a_list_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "LIST_S", 0.05)

    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(handler) as follower:
        await follower.until_failed("the Kubernetes API did not list all EndpointSlices within 0.05 s")


# -- watches --------------------------------------------------------------------------------------


def watched(*pieces: bytes, then: bytes = b"") -> Handler:
    """A list of one slice, and this as its watch."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return page("a") if "watch" not in request.query else await streamed(request, *pieces, then=then)

    return handler


def event(name: str, rest: str = "", kind: str = "ADDED") -> bytes:
    content = endpoint_slice(name, pod("10.0.0.1"))
    content["metadata"] |= {"resourceVersion": "6", "annotations": {"rest": rest}}
    return line(kind, content)


async def test_an_event_without_end() -> None:
    async with asking(watched(then=b"x" * 100_000)) as follower:
        await follower.until_failed("an event of more than 4 MiB came: is that the Kubernetes API?")


async def test_events_of_ever_more_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "MOST_SLICES", 3)
    async with asking(watched(*(event(name) for name in "abcd"))) as follower:
        await follower.until_failed("there are more than 3 EndpointSlices")
        assert [len(each) for each in follower.sets] == [1]


async def test_events_that_are_large_together() -> None:
    async with asking(watched(*(event(f"s{number}", "x" * 3 * MIB) for number in range(11)))) as follower:
        await follower.until_failed("the EndpointSlices have more than 16 MiB")


@pytest.mark.slow
async def test_the_same_slice_again_and_again_does_not_add_up() -> None:
    same = [event("a", "x" * 3 * MIB)] * 9
    gone = [event(f"s{number}", "x" * 3 * MIB, kind) for number in range(9) for kind in ("ADDED", "DELETED")]

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page("a")
        return await streamed(request, *same, *gone, line("ERROR", {"code": 500, "message": "the end"}))

    async with asking(handler) as follower:
        await follower.until_failed("the Kubernetes API ended the watch: the end")


async def test_a_refusal_that_is_long_is_not_said_whole() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return status(403, "x" * 10_000)

    async with asking(handler) as follower:
        assert len(await follower.until_failed("the Kubernetes API answers 403 (xxx")) < 600


# -- sets that never rest -------------------------------------------------------------------------


class Restless(Source):
    """Its round finds the next of these sets, and the last one again and again."""

    def __init__(self, *sets: Sequence[str]) -> None:
        super().__init__("restless", "llama", time.monotonic)
        self._sets = list(sets)

    async def _round(self) -> float:
        found = self._sets.pop(0) if len(self._sets) > 1 else self._sets[0]
        self._found(Endpoint(each) for each in found)
        return 0.0

    def _pause_after_failure(self, in_row: int) -> float:
        raise AssertionError(in_row)

    @property
    def is_at_the_last(self) -> bool:
        return len(self._sets) == 1


def numbered(start: int, count: int = 10) -> list[str]:
    return [f"10.0.{number // 250}.{number % 250}:80" for number in range(start, start + count)]


async def test_after_a_large_exchange_the_next_waits_and_is_the_latest() -> None:
    # 10 go and 10 come: 20 changed, so 0.2 s
    restless = Restless(numbered(0), numbered(100), *(numbered(n) for n in range(200, 300)), numbered(500))
    last = numbered(500)
    handed_on: list[tuple[float, list[str]]] = []
    clock = asyncio.get_running_loop().time
    running = asyncio.create_task(
        restless.run(lambda found: handed_on.append((clock(), [each.address for each in found])))
    )
    try:
        await until(lambda: handed_on and handed_on[-1][1] == last)
    finally:
        running.cancel()
    assert [found for _, found in handed_on[:2]] == [numbered(0), numbered(100)]
    times = [at for at, _ in handed_on[1:]]
    assert all(later - at >= 0.19 for at, later in itertools.pairwise(times))
    assert len(handed_on) < 20  # three, unless the machine is very slow


async def test_what_is_back_before_its_time_was_never_gone() -> None:
    restless = Restless(numbered(0), numbered(100), numbered(200), numbered(100))
    async with followed(restless) as follower:
        await until(lambda: restless.is_at_the_last and restless._hold is None)
        assert [each[0].address for each in follower.sets] == ["10.0.0.0:80", "10.0.0.100:80"]


async def test_small_exchanges_do_not_wait() -> None:
    sets = [numbered(number, 5) for number in range(0, 50, 5)]
    restless = Restless(*sets)
    async with followed(restless) as follower:
        await until(lambda: restless.is_at_the_last)
        assert [[each.address for each in found] for found in follower.sets[: len(sets) - 1]] == sets[:-1]


async def test_a_hold_has_an_end_and_goes_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LONGEST_HOLD_S", 0.05)  # instead of 20 s
    restless = Restless(numbered(0, 1000), numbered(1000, 1000), numbered(3000, 1))
    async with followed(restless) as follower:
        await follower.until("10.0.12.0:80")
    assert restless._hold is None or restless._hold.cancelled()
