"""Start, drain and stop of a whole service, see `service_case`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from service_case import Engine, Run, until

from extproc.admin.records import Author
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from extproc.service import StartError

# One loop for all: grpc's poller outlives the loop that it began on.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


# -- serving --------------------------------------------------------------------------------------


async def test_all_ports_answer(run: Run, logs: list[Any]) -> None:
    it = run()
    await it.ready()
    for name in ("", EXT_PROC_SERVICE, ACCESS_LOG_SERVICE):
        assert await it.health("edge", name) == "SERVING"
    assert await it.health("admin") == "SERVING"
    assert await it.get("/healthz") == (200, "ok\n")
    page = (await it.get("/metrics"))[1]
    assert 'fairlane_endpoint_running_requests{endpoint="127.0.0.1:' in page
    assert (
        f'fairlane_dialect_info{{dialect="vllm",endpoint="{it.config.pools[0].endpoints.known[0]}",pool="sim"}} 1.0'
        in page
    )
    assert '"stance":"fresh"' in (await it.get("/status"))[1]
    serving = next(entry for entry in logs if entry["event"] == "serving")
    ports = {"ext_proc", "admin", "http"}
    assert {key: serving[key] for key in ports} == it.config.listen.model_dump(include=ports)


async def test_reflection_lists_what_the_admin_port_serves(run: Run) -> None:
    it = run()
    await it.ready()
    stub = reflection_pb2_grpc.ServerReflectionStub(it.channels["admin"])
    asked = reflection_pb2.ServerReflectionRequest(list_services="*")
    (answer,) = [answer async for answer in stub.ServerReflectionInfo(iter([asked]))]
    names = {service.name for service in answer.list_services_response.service}
    assert names == {
        "fairlane.admin.v1.Admin",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_a_request_goes_through_and_is_told_of(run: Run) -> None:
    it = run()
    await it.ready()
    first = await it.released()
    second = await it.request()
    await until(lambda: it.held == 1)
    assert '"queued":1' in (await it.get("/status?flows=1"))[1]
    assert 'fairlane_held_requests{class="default",pool="sim"} 1.0' in (await it.get("/metrics"))[1]
    await first.done_writing()
    assert await second.read() is not grpc.aio.EOF
    assert 'fairlane_released_requests_total{class="default",pool="sim"} 2.0' in (await it.get("/metrics"))[1]


async def test_an_arrival_wakes_the_readers_of_an_idle_pool(run: Run, engine: Engine) -> None:
    it = run(metrics={"interval": "20ms", "idle_interval": "1h"})
    await it.ready()
    before = engine.asked
    await it.released()
    await until(lambda: engine.asked >= before + 2)


async def test_requests_wait_for_an_engine_that_is_down(run: Run, engine: Engine) -> None:
    await engine.stop()
    it = run(metrics={"interval": "20ms", "idle_interval": "50ms"})
    await until(lambda: it.service.serving and it.stance == "down")
    async with asyncio.timeout(5):
        held = await it.request()
        await until(lambda: it.held == 1)
        assert (await it.get("/readyz"))[0] == 200  # it can hold, and say why
        await engine.start()
        assert await held.read() is not grpc.aio.EOF


# -- starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ext_proc", "admin", "http"])
async def test_a_port_that_is_taken_is_told_with_its_key(run: Run, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        it = run(listen={key: address})
        with pytest.raises(StartError) as error:
            await it.over()
    assert str(error.value).startswith(f"{address} (listen.{key}) cannot be bound: ")
    assert "in use" in str(error.value)


async def test_what_cannot_start_takes_nothing_from_what_runs(run: Run, tmp_path: Path) -> None:
    """Its file does not fit the overlay, which belongs to another process: that one's ports are what it wants."""
    state = str(tmp_path / "state.db")
    it = run(admin={"state": state})
    await it.ready()
    author = Author("alice", "admin", "ipv4:192.0.2.1:1", "UpdateConfig")
    how: Any = {"reason": "a test", "ttl_s": None, "etag": "", "validate_only": False}
    await it.service.revisions.patch(author, {"pools": {"sim": {"max_queued": 7}}}, None, **how)
    other = run(
        admin={"state": state},
        listen={"admin": it.admin},
        pools=[{"name": "other", "models": ["m"], "endpoints": ["127.0.0.1:1"]}],
    )
    with pytest.raises(StartError, match=r"listen\.admin"):
        await other.over()
    await it.service.revisions.patch(author, {"pools": {"sim": {"traffic": "paused"}}}, None, **how)
    pool = it.service.revisions.config.pools[0]
    assert (pool.max_queued, pool.traffic) == (7, "paused")
    kinds = [each.kind.name for each in await it.service.revisions.list_revisions(None, 10)]
    assert kinds == ["CHANGE", "CHANGE", "START"]


# -- stopping -------------------------------------------------------------------------------------


async def test_stop_says_not_serving_hands_over_and_waits_for_answers_under_way(run: Run) -> None:
    it = run()
    await it.ready()
    edge, admin = it.watch("edge"), it.watch("admin")
    assert (await anext(edge), await anext(admin)) == ("SERVING", "SERVING")
    under_way = await it.released()
    held = await it.request()
    await until(lambda: it.held == 1)
    it.stop.set()
    async with asyncio.timeout(5):
        assert (await anext(edge), await anext(admin)) == ("NOT_SERVING", "NOT_SERVING")
        assert await held.code() is grpc.StatusCode.UNAVAILABLE  # Envoy takes it elsewhere
    assert (await it.get("/readyz"))[0] == 503
    assert (await it.get("/healthz"))[0] == 200
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await (await it.request()).read()
    assert late.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not it.task.done()
    assert not under_way.done()
    await under_way.done_writing()
    assert await under_way.code() is grpc.StatusCode.OK
    await it.over()
    with pytest.raises(aiohttp.ClientConnectionError):
        await it.get("/healthz")


async def test_a_second_signal_ends_it_at_once(run: Run) -> None:
    it = run()
    await it.ready()
    under_way = await it.released()
    it.stop.set()
    await until(lambda: not it.service.serving)
    it.hurry.set()
    await it.over()
    assert await under_way.code() is not grpc.StatusCode.OK


async def test_the_grace_ends_it_too(run: Run) -> None:
    it = run(shutdown={"grace": "50ms"})
    await it.ready()
    under_way = await it.released()
    it.stop.set()
    await it.over()
    assert await under_way.code() is not grpc.StatusCode.OK


async def test_an_idle_service_stops_at_once_with_an_access_log_open(run: Run) -> None:
    """Envoy never closes that stream."""
    it = run()
    await it.ready()
    log = it.channels["edge"].stream_unary(f"/{ACCESS_LOG_SERVICE}/StreamAccessLogs")()
    await log.write(b"")
    it.stop.set()
    await it.over()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scrape")]
