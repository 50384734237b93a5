"""Another configuration of the gate while requests come, are read, wait and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from envoy_by_messages import (
    Context,
    Edge,
    Immediate,
    Start,
    a_config,
    body,
    headers_set,
    request,
    until,
    wired,
)

from extproc.core.reasons import Reason
from extproc.edge import facts
from extproc.edge.gate import Deny, Pass, Queue
from extproc.edge.key_file import KeyFileError

pytestmark = pytest.mark.asyncio(loop_scope="session")

PEER = "ipv4:10.9.0.1:5555"
JSON = {"content-type": "application/json", ":path": "/v1/chat/completions"}
BODY = b'{"model": "m", "messages": []}'


def decided(edge: Edge, model: str = "m", **headers: str) -> Queue | Pass | Deny:
    return edge.gate.decide(facts.read(request(model, headers=headers), edge.gate.rules.headers), PEER)


def placed(edge: Edge, model: str = "m", **headers: str) -> tuple[str, str]:
    """(tenant, class) of a request."""
    place = decided(edge, model, **headers)
    assert isinstance(place, Queue)
    return place.event.tenant, place.event.cls


async def test_all_that_follows_from_a_configuration_follows_another() -> None:
    edge = Edge(a_config())
    assert placed(edge, **{"x-tenant": "a", "x-org": "b"}) == ("a", "default")
    assert isinstance(decided(edge, "new"), Pass)
    edge.change(
        a_config(
            pool={"models": ["m", "new"], "session_header": "x-session"},
            identity={"tenant": [{"header": "x-org"}]},
            default_class="urgent",
            requests={"unknown_model": "reject", "queued": ["/mine"], "max_body": "1KiB"},
        )
    )
    assert placed(edge, **{"x-tenant": "a", "x-org": "b"}) == ("b", "urgent")
    assert placed(edge, "new") == ("anonymous", "urgent")
    place = decided(edge, **{"x-session": "s"})
    assert isinstance(place, Queue)
    assert place.event.session is not None
    assert not edge.gate.queues(facts.read(request()))
    assert edge.gate.queues(facts.read(request(headers={":path": "/mine"})))
    unknown = decided(edge, "x")
    assert isinstance(unknown, Deny)
    assert unknown.reason is Reason.MODEL_NOT_FOUND
    large = edge.gate.decide(facts.read(request(size=1025)), PEER)
    assert isinstance(large, Deny)
    assert "may have 1024" in large.message
    edge.close()


async def test_a_configuration_that_cannot_be_made_ready_changes_nothing(tmp_path: Path) -> None:
    edge = Edge(a_config())
    before = edge.gate.rules
    missing = a_config(identity={"tenant": [{"api_key": {"file": str(tmp_path / "none.yaml")}}]})
    with pytest.raises(KeyFileError, match="none"):
        edge.gate.prepare(missing, edge.drivers)
    assert edge.gate.rules is before
    assert placed(edge) == ("anonymous", "default")
    edge.close()


async def test_tickets_of_a_pool_that_is_gone_find_it_while_it_is_kept() -> None:
    other = {"name": "other", "models": ["n"], "endpoints": ["10.0.0.9:8000"]}
    edge = Edge(a_config(more_pools=[other]))
    place = decided(edge, "n")
    assert isinstance(place, Queue)
    edge.gate.configure(edge.gate.prepare(a_config(), edge.drivers))
    assert isinstance(decided(edge, "n"), Pass)
    assert edge.gate.owner(place.event.id) is edge.drivers["other"]
    assert edge.gate.holds(place)
    edge.gate.configure(edge.gate.prepare(a_config(), {"sim": edge.driver}))
    assert edge.gate.owner(place.event.id) is None
    edge.close()


async def test_one_that_waits_is_told_its_priority_in_the_way_of_its_release(start: Start) -> None:
    edge, envoy = await start()
    first, _ = await envoy.released()
    held = envoy.stream()
    await held.send(request())
    await until(lambda: edge.held == 1)
    edge.change(a_config(pool={"priority_via": "body"}))
    await first.end()
    answer = await held.answer()
    assert "x-vllm-priority" not in headers_set(answer)
    assert answer.dynamic_metadata.fields["fairlane.body"].struct_value["append"] == '"priority":1000'
    await held.end()


async def test_one_that_waits_in_a_pool_that_is_gone_gets_its_turn(start: Start) -> None:
    other = {"name": "other", "models": ["n"], "endpoints": ["10.0.0.9:8000"], "priority_via": "off"}
    window = {"window": {"start": 1, "overtake": 0}, "metrics": {"interval": "60s", "idle_interval": "60s"}}
    edge, envoy = await start(more_pools=[{**other, **window}])
    first = envoy.stream()
    assert "x-vllm-priority" not in headers_set(await first.ask(request("n")))
    held = envoy.stream()
    await held.send(request("n"))
    await until(lambda: edge.drivers["other"].scheduler.queued == 1)
    edge.gate.configure(edge.gate.prepare(a_config(), edge.drivers))
    edge.processor.let_pass("other")
    await first.end()
    answer = headers_set(await held.answer())
    assert answer["x-fairlane-class"] == "default"
    assert "x-vllm-priority" not in answer
    await held.end()


async def test_a_body_that_comes_meanwhile_is_decided_by_the_new_one_with_all_its_headers(start: Start) -> None:
    edge, envoy = await start(slots=2)
    stream = envoy.stream()
    await stream.ask(wired(request(None, headers={**JSON, "x-org": "b", "x-tenant": "a"}), "BUFFERED"))
    edge.change(a_config(slots=2, identity={"tenant": [{"header": "x-org"}]}))
    await stream.ask(body("request_body", BODY, end=True))
    assert [effect.tenant for effect in edge.recorder.decided] == ["b"]
    await stream.end()


async def test_bytes_that_are_here_count_towards_the_new_limit(start: Start) -> None:
    edge, envoy = await start(requests={"max_body": "1KiB", "max_buffered": "1MiB"}, tenants={})
    first = envoy.stream()
    await first.send(wired(request(None, headers={**JSON, "x-tenant": "a"}), "FULL_DUPLEX_STREAMED"))
    await first.send(body("request_body", b"a" * 1000))
    buffer = edge.processor._limits.buffer
    await until(lambda: buffer.used == 1000)
    edge.change(a_config(requests={"max_body": "2KiB", "max_buffered": "2KiB"}))
    second = envoy.stream()
    await second.send(wired(request(None, headers={**JSON, "x-tenant": "b"}), "FULL_DUPLEX_STREAMED"))
    answer = Immediate.of(await second.ask(body("request_body", b"b" * 1100)))  # together more than 2048
    assert answer.error["code"] == "queue_full"
    await first.send(body("request_body", b"a" * 24))  # half of 2 KiB is the tenant's own
    await until(lambda: buffer.used == 1024)
    assert Immediate.of(await first.ask(body("request_body", b"a"))).error["code"] == "queue_full"
    await until(lambda: buffer.used == 0)


@pytest.mark.parametrize("on_fault", ["pass", "reject"])
async def test_a_fault_is_dealt_with_by_the_new_one(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any], on_fault: str
) -> None:
    edge = Edge(a_config(on_fault="reject" if on_fault == "pass" else "pass"))
    edge.change(a_config(on_fault=on_fault))
    monkeypatch.setattr(edge.gate, "decide", lambda *_: 1 / 0)
    context = Context(request())
    await edge.processor.process(None, context)
    assert context.kinds == (["request_headers"] if on_fault == "pass" else ["immediate_response"])
    assert [entry["event"] for entry in logs] == ["stream_fault"]
    edge.close()
