"""What a whole service tells of its requests, and to whom: by its configuration, at the start and live."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from service_case import Run, Running, until

from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc
from extproc.service import StartError

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

OBJECTIVE = {"classes": {"default": {"rank": 0, "priority": 0, "max_waiting": 0, "wait_objective": "5s"}}}


async def samples(it: Running, name: str) -> dict[str, float]:
    """Labels as they stand -> value."""
    page = (await it.get("/metrics"))[1]
    lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return {line.removeprefix(name).rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def pool(it: Running) -> admin_pb2.Pool:
    return await admin_pb2_grpc.AdminStub(it.channels["admin"]).GetPool(admin_pb2.GetPoolRequest(pool="sim"))


async def test_a_held_request_is_seen_everywhere(run: Run) -> None:
    it = run(**OBJECTIVE)
    await it.ready()
    inside = await it.released()
    held = await it.request()
    await until(lambda: it.held == 1)
    assert await samples(it, "fairlane_held_requests") == {'{class="default",pool="sim"}': 1.0}
    assert (await samples(it, "fairlane_class_hold"))['{class="default",hold="window",pool="sim"}'] == 1.0
    assert await samples(it, "fairlane_class_wait_objective_seconds") == {'{class="default",pool="sim"}': 5.0}
    assert await samples(it, "fairlane_pool_info") == {'{mode="enforce",pool="sim",traffic="open"}': 1.0}
    assert await samples(it, "fairlane_leaked_slots") == {'{pool="sim"}': 0.0}
    assert await samples(it, "fairlane_tenant_held_requests") == {'{pool="sim",tenant="anonymous"}': 1.0}
    told = await pool(it)
    (cls,) = told.classes
    assert (cls.hold, cls.wait_objective.seconds) == ("window", 5)
    assert cls.sentence.startswith("it is next; 127.0.0.1:")
    assert (told.endpoints[0].limit, told.endpoints[0].room) == (1.0, 0.0)
    held.cancel()
    inside.cancel()


async def test_a_page_and_its_figures(run: Run) -> None:
    it = run()
    await it.ready()
    status, page = await it.get("/")
    assert status == 200
    assert "<!doctype html>" in page.lower()
    held = [await it.released(), await it.request()]
    await until(lambda: it.held == 1)
    async with it.session.get(f"http://{it.http}/events") as events:
        assert events.content_type == "text/event-stream"
        while not (line := await events.content.readline()).startswith(b"event: snapshot"):
            assert line
        shown = json.loads((await events.content.readline()).removeprefix(b"data: "))
        assert shown["held"] == 1
        assert (await samples(it, "fairlane_page_watchers")) == {"": 1.0}
        it.stop.set()  # an open page holds no stop up
        for call in held:
            call.cancel()
        await it.over()


async def test_no_page(run: Run) -> None:
    it = run(telemetry={"page": False})
    await it.ready()
    status, text = await it.get("/")
    assert status == 404
    assert "telemetry" in text
    assert (await it.get("/metrics"))[0] == 200


async def test_nothing_is_told_of_requests(run: Run, logs: list[Any]) -> None:
    it = run(telemetry={"enabled": False, "log": {"slow_after": "0s"}})
    await it.ready()
    inside, held = await it.released(), await it.request()
    await until(lambda: it.held == 1)
    assert await samples(it, "fairlane_released_requests_total") == {}
    assert (await samples(it, "fairlane_held_requests")) == {'{class="default",pool="sim"}': 1.0}  # it is, all the same
    inside.cancel()
    await until(lambda: it.held == 0)
    assert not [entry for entry in logs if entry["event"].startswith("request_")]
    held.cancel()


async def test_what_is_logged_and_who_has_series_change_live(run: Run, logs: list[Any]) -> None:
    it = run(telemetry={"tenants": {"top": 0}, "log": {"slow_after": None}})
    await it.ready()
    (await it.released()).cancel()
    await until(lambda: it.service.pools()[0].in_flight == 0)
    assert await samples(it, "fairlane_tenant_released_requests_total") == {'{pool="sim",tenant="other"}': 1.0}
    patch = {"telemetry": {"tenants": {"names": ["anonymous"]}, "log": {"slow_after": "0s"}}}
    stub = admin_pb2_grpc.AdminStub(it.channels["admin"])
    request = admin_pb2.UpdateConfigRequest(reason="to see them")
    request.config.update(patch)
    await stub.UpdateConfig(request)
    inside, held = await it.released(), await it.request()
    await until(lambda: it.held == 1)
    inside.cancel()
    await until(lambda: it.held == 0)
    held.cancel()
    assert await samples(it, "fairlane_tenant_released_requests_total") == {
        '{pool="sim",tenant="other"}': 1.0,
        '{pool="sim",tenant="anonymous"}': 2.0,
    }
    slow = [entry for entry in logs if entry["event"] == "request_slow"]
    assert {entry["outcome"] for entry in slow} == {"released"}


async def test_spans_need_what_makes_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("extproc.telemetry.traces_spans")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    it = run(telemetry={"traces": {"otlp": "http://127.0.0.1:4317"}})
    with pytest.raises(StartError, match=r"\.\[otel\]"):
        await it.over()


async def test_a_pool_that_only_observes_shows_what_would_be(run: Run) -> None:
    it = run(pool={"mode": "observe"})
    await it.ready()
    passing = [await it.request() for _ in range(3)]
    for call in passing:
        await call.read()
    told = await pool(it)
    assert (told.queued_count, told.observed.queued_count, told.observed.in_flight_slots) == (0, 2, 1)
    async with it.session.get(f"http://{it.http}/events") as events:
        while not (line := await events.content.readline()).startswith(b"event: snapshot"):
            assert line
        (shown,) = json.loads((await events.content.readline()).removeprefix(b"data: "))["pools"]
    assert (shown["would_be"], shown["held"], shown["in_flight"], shown["observed"]) == (True, 2, 1, 3)
    (flow,) = shown["flows"]
    assert (flow["tenant"], flow["held"]) == ("anonymous", 2)
    async with it.session.get(f"http://{it.http}/explain", params={"id": flow["id"]}) as why:
        assert (await why.json())["observed"] is True
    for call in passing:
        call.cancel()
    await until(lambda: it.service.observers() == [] or it.service.observers()[0].queued == 0)
    history = it.service._telemetry.history
    await until(lambda: "sim~" in history.plain()["pools"])
