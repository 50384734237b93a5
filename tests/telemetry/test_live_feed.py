"""The live page's files and its stream of figures, by a real client over a real port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.cli.ports import free_ports
from extproc.telemetry.http import HttpPort
from extproc.telemetry.live.assets import assets
from extproc.telemetry.live.feed import Feed, _snapshot_frame

TIMES = [1000.0 + 5 * step for step in range(40)]


class Source:
    """Snapshots that are numbered."""

    def __init__(self) -> None:
        self.taken = 0
        self.fails = False
        self.ballast = ""
        self.asked: list[str] = []

    async def snapshot(self) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("a bug")
        self.taken += 1
        return {"number": self.taken, "ballast": self.ballast}

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        self.asked.append(request_id)
        return {"sentence": "it waits"} if request_id == "r 1/é" else None

    def history(self) -> dict[str, Any]:
        numbers = list(range(len(TIMES)))
        return {"step_s": 5.0, "pools": {name: {"t": TIMES, "held": {"batch": numbers}} for name in ("a", "b")}}


class Port:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.number = free_ports(1)[0]
        self.http = HttpPort(CollectorRegistry(), lambda: True, list, lambda *_: [], live=source)
        self.session: aiohttp.ClientSession

    @property
    def feed(self) -> Feed:
        assert self.http._feed is not None
        return self.http._feed

    def get(self, path: str, **more: Any) -> Any:
        return self.session.get(f"http://127.0.0.1:{self.number}{path}", **more)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port(Source())
    made.http._feed = Feed(made.source, interval_s=0.05, most=120)
    await made.http.start("127.0.0.1", made.number)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as made.session:
        yield made
    await made.http.stop()


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for it
            await asyncio.sleep(0.005)


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """(kind, data), as a browser would take them."""
    kind = ""
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, orjson.loads(value)


async def some(answer: aiohttp.ClientResponse, kind: str, count: int) -> list[Any]:
    found = []
    async with asyncio.timeout(20):
        async for each, data in events(answer):
            if each == kind:
                found.append(data)
            if len(found) == count:
                break
    return found


# -- files --------------------------------------------------------------------------------------------


async def test_every_file_is_there_and_may_load_nothing_else(port: Port) -> None:
    names = assets()
    assert {"/", "/page.css", "/page.js"} <= names.keys()
    for path, asset in names.items():
        async with port.get(path) as answer:
            assert answer.status == 200
            assert answer.headers["content-type"] == f"{asset.content_type}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"
            assert await answer.read() == asset.body


def test_no_file_names_another_place_or_makes_markup_of_text() -> None:
    for path, asset in assets().items():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        for word in ("http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "style="):
            assert word not in text, (path, word)


async def test_the_page_is_read_only(port: Port) -> None:
    for path in ("/", "/page.js", "/events", "/explain"):
        async with port.session.post(f"http://127.0.0.1:{port.number}{path}") as answer:
            assert answer.status == 405
        async with port.session.head(f"http://127.0.0.1:{port.number}{path}") as answer:
            assert answer.status == (400 if path == "/explain" else 200)
    assert (port.http.watchers, port.feed.running) == (0, False)


# -- explanations -------------------------------------------------------------------------------------


async def test_an_explanation(port: Port) -> None:
    async with port.get("/explain", params={"id": "r 1/é"}) as answer:
        assert (answer.status, await answer.json()) == (200, {"sentence": "it waits"})
        assert answer.headers["cache-control"] == "no-store"
    async with port.get("/explain", params={"id": "gone"}) as answer:
        assert (answer.status, list(await answer.json())) == (404, ["error"])


@pytest.mark.parametrize("query", ["", "?id=", "?id=" + "x" * 513, "?x=1"])
async def test_an_explanation_of_nothing(port: Port, query: str) -> None:
    async with port.get(f"/explain{query}") as answer:
        assert answer.status == 400
        assert "id" in (await answer.json())["error"]
    assert port.source.asked == []


@pytest.mark.parametrize("path", ["/events", "/explain?id=r1"])
async def test_another_sites_page_gets_nothing(port: Port, path: str) -> None:
    async with port.get(path, headers={"sec-fetch-site": "cross-site"}) as answer:
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
    async with port.get("/", headers={"sec-fetch-site": "cross-site"}) as answer:
        assert answer.status == 200  # a link to the page
    for origin in ("http://evil.example", f"http://127.0.0.1:{port.number + 1}", "null"):
        async with port.get(path, headers={"origin": origin}) as answer:
            assert answer.status == 403


async def test_the_pages_own_origin(port: Port) -> None:
    for headers in ({"origin": f"http://127.0.0.1:{port.number}"}, {"sec-fetch-site": "same-origin"}):
        async with port.get("/explain?id=gone", headers=headers) as answer:
            assert answer.status == 404


# -- the stream ---------------------------------------------------------------------------------------


async def test_history_first_then_snapshots(port: Port) -> None:
    async with port.get("/events") as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        found: list[tuple[str, Any]] = []
        async with asyncio.timeout(20):
            async for each in events(answer):
                found.append(each)
                if each[0] == "snapshot" and each[1]["number"] == 6:
                    break
    kinds = [kind for kind, _ in found]
    # that of both pools at first; later its end, with the fifth snapshot
    assert kinds[:3] == ["history", "history", "snapshot"]
    first, second = found[0][1], found[1][1]
    assert (list(first["pools"]), list(second["pools"]), first["step_s"]) == (["a"], ["b"], 5.0)
    assert first["pools"]["a"] == {"t": TIMES, "held": {"batch": list(range(40))}}
    later = [data["pools"] for kind, data in found[2:] if kind == "history"]
    # of the last minute: 12 points, 60 s before the last one excluded
    assert later[0]["a"] == {"t": TIMES[-12:], "held": {"batch": list(range(28, 40))}}


async def test_nobody_reads_and_nothing_is_taken(port: Port) -> None:
    assert not port.feed.running
    async with port.get("/events") as answer:
        await some(answer, "snapshot", 2)
        assert (port.feed.running, port.http.watchers) == (True, 1)
    await until(lambda: not port.feed.running)
    assert port.http.watchers == 0
    taken = port.source.taken
    async with port.get("/events") as answer:  # and begins anew, with what is new
        assert (await some(answer, "snapshot", 1))[0]["number"] == taken + 1


async def test_all_read_the_same_snapshots(port: Port) -> None:
    async with contextlib.AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(port.get("/events")) for _ in range(100)]
        await until(lambda: port.http.watchers == 100)
        before = port.source.taken
        told = await asyncio.gather(*(some(answer, "snapshot", 5) for answer in answers))
    for snapshots in told:
        numbers = [each["number"] for each in snapshots]
        assert numbers == sorted(numbers)
    assert port.source.taken - before < 400  # of the 500 that were told


@pytest.mark.slow
async def test_there_are_only_so_many(port: Port) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(120):
            await stack.enter_async_context(port.get("/events"))
        async with port.get("/events") as answer:
            assert answer.status == 503
            assert answer.headers["retry-after"] == "10"
            assert "120 live pages are open" in await answer.text()
    await until(lambda: port.http.watchers == 0)
    async with port.get("/events") as answer:
        assert answer.status == 200


async def test_one_that_does_not_read_delays_nobody_and_ends_with_the_port(port: Port) -> None:
    port.source.ballast = "x" * 400_000
    with socket.create_connection(("127.0.0.1", port.number)) as stuck:
        stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: any(reader.writing for reader in port.feed._readers))
        async with port.get("/events") as answer:
            assert len(await some(answer, "snapshot", 8)) == 8
        assert port.http.watchers >= 1
        async with asyncio.timeout(20):
            await port.http.stop()
        assert port.http.watchers == 0


@pytest.mark.slow
async def test_one_that_never_reads_makes_room_for_another(port: Port) -> None:
    """Its own room is little, and ours on the way is, too: with 1.7 MB of it this would take over 300 snapshots."""
    port.http._feed = Feed(port.source, interval_s=0.02, most=1, stuck_s=0.3)
    port.source.ballast = "x" * 5_000
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", port.number))
        stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: port.http.watchers == 1)
        async with port.get("/events") as answer:
            assert answer.status == 503
        await until(lambda: port.http.watchers == 0)
        assert port.source.taken < 200
        async with port.get("/events") as answer:
            assert answer.status == 200
            assert await some(answer, "snapshot", 3)


@pytest.mark.slow
async def test_one_that_reads_slowly_stays(port: Port) -> None:
    """A snapshot takes longer than the limit, and no piece of it does."""
    port.http._feed = Feed(port.source, interval_s=0.02, stuck_s=0.5)
    port.source.ballast = "x" * 3_000_000
    began = asyncio.get_running_loop().time()
    async with port.get("/events") as answer:
        size = 0
        while size < 3_000_000:
            async with asyncio.timeout(20):
                size += len(await answer.content.read(100_000))
                await asyncio.sleep(0.03)  # its pace
        assert asyncio.get_running_loop().time() - began > 0.5
        assert port.http.watchers == 1


async def test_a_snapshot_of_many_pools_is_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    dumps = orjson.dumps

    def encode(data: Any) -> bytes:
        if "name" in data:
            asyncio.get_running_loop().call_soon(seen.append, "another")
            seen.append(data["name"])
        return dumps(data)

    monkeypatch.setattr("extproc.telemetry.live.feed.orjson.dumps", encode)
    snapshot = {"time": 1.5, "pools": [{"name": "a"}, {"name": "é"}], "held": 0}
    frame = await _snapshot_frame(snapshot)
    assert seen == ["a", "another", "é", "another"]
    wanted = 'event: snapshot\ndata: {"time":1.5,"pools":[{"name":"a"},{"name":"é"}],"held":0}\n\n'
    assert frame.decode() == wanted


async def test_the_port_does_not_wait_for_open_pages(port: Port) -> None:
    async with port.get("/events") as answer:
        await some(answer, "snapshot", 1)
        async with asyncio.timeout(20):
            await port.http.stop()
            await answer.content.read()  # to its proper end: one that is cut off raises ClientPayloadError
    assert not port.feed.running


async def test_a_snapshot_that_fails_is_said_once_and_tried_again(
    port: Port, capsys: pytest.CaptureFixture[str]
) -> None:
    port.source.fails = True
    async with port.get("/events") as answer:
        await asyncio.wait_for(until(lambda: port.feed._failing), 20)
        before = port.feed._task
        port.source.fails = False
        assert await some(answer, "snapshot", 1)
        assert port.feed._task is before
    assert capsys.readouterr().out.count("live_page_failed") == 1


async def test_after_the_end_there_is_no_stream() -> None:
    feed = Feed(Source(), interval_s=0.05)
    feed.close()

    async def handler(request: web.Request) -> web.StreamResponse:
        return await feed.stream(request)

    app = web.Application()
    app.router.add_get("/events", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    number = free_ports(1)[0]
    await web.TCPSite(runner, "127.0.0.1", number).start()
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{number}/events") as answer:
            assert (answer.status, await answer.text()) == (503, "the service stops\n")
    finally:
        await runner.cleanup()
