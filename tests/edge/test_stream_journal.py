"""What the journal is told of single requests: where they come from, what became of them, and slots that leak."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import Start, an_entry, log_message, request, until

from extproc.core.events import End
from extproc.edge.driver import Interrupted
from extproc.edge.facts import ATTRIBUTES
from extproc.edge.recorder import Origin

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACED = {"telemetry": {"traces": {"otlp": "http://127.0.0.1:4317"}}}
ONE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


async def test_all_that_happens_to_a_request(start: Start) -> None:
    edge, envoy = await start()
    edge.journal.events.clear()
    stream = envoy.stream()
    await stream.ask(request())
    await stream.end()
    await until(lambda: edge.inside == 0)
    assert edge.journal.events == [("sim", "Arrive", ("Release",)), ("sim", "End", ())]
    assert edge.journal.begun == []  # nobody traces


@pytest.mark.parametrize(
    ("metadata", "headers", "parent", "state"),
    [
        ({}, {}, "", ""),
        ({}, {"traceparent": ONE, "tracestate": "a=b"}, ONE, "a=b"),
        ({"traceparent": OTHER, "tracestate": "c=d"}, {"traceparent": ONE, "tracestate": "a=b"}, OTHER, "c=d"),
        ({"traceparent": OTHER}, {"traceparent": ONE, "tracestate": "a=b"}, OTHER, ""),
        ({}, {"traceparent": "nonsense"}, "nonsense", ""),  # for who traces to say
    ],
)
async def test_where_a_traced_request_comes_from(
    start: Start, metadata: dict[str, str], headers: dict[str, str], parent: str, state: str
) -> None:
    edge, envoy = await start(**TRACED)
    stream = envoy.stream(**metadata)
    await stream.ask(request(headers={":path": "/v1/completions?key=secret", **headers}, stream=True))
    ((begun, origin),) = edge.journal.begun
    assert begun == edge.recorder.decided[0].id
    assert origin == Origin(parent, state, "m", "/v1/completions", True)
    await stream.end()


async def test_traces_are_looked_for_only_where_they_are_wanted(start: Start) -> None:
    edge, _ = await start()
    assert "traceparent" not in edge.gate.rules.headers


@pytest.mark.parametrize(
    ("facts", "config", "code"),
    [
        ({"model": "another"}, {"requests": {"unknown_model": "reject"}}, "model_not_found"),
        ({"size": 2_000_000}, {"requests": {"max_body": "1MiB"}}, "body_too_large"),
    ],
)
async def test_what_is_refused_at_the_door(
    start: Start, facts: dict[str, Any], config: dict[str, Any], code: str
) -> None:
    edge, envoy = await start(**config)
    await envoy.stream().ask(request(**facts))
    ((reason, message, model),) = edge.journal.refused
    assert (reason, model) == (code, facts.get("model", "m"))
    assert message


async def test_a_request_whose_end_is_lost_is_a_leak(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, envoy = await start(slots=2)
    scheduler, apply = edge.driver.scheduler, edge.driver.scheduler.apply

    def fails_at_the_end(event: Any, now: float) -> Any:
        if isinstance(event, End):
            raise RuntimeError("a bug")
        return apply(event, now)

    stream, ticket = await envoy.released()
    other, _ = await envoy.released()
    assert edge.driver.leaked() == 0
    monkeypatch.setattr(scheduler, "apply", fails_at_the_end)
    await stream.end()
    await until(lambda: edge.driver.leaked() == 1)
    monkeypatch.undo()
    await other.end()
    await until(lambda: edge.inside == 1)
    assert edge.driver.leaked() == 1
    edge.driver.end(ticket)  # so that the books can be closed
    assert edge.driver.leaked() == 0


async def test_what_envoy_calls_it(start: Start) -> None:
    edge, envoy = await start(requests={"unknown_model": "reject"})
    for model, name in (("m", "x1"), ("another", "x2")):
        message = request(model)
        message.attributes[ATTRIBUTES].update({"request.id": name})
        await envoy.stream().ask(message)
    assert edge.journal.came == [(edge.recorder.decided[0].id, "x1"), ("", "x2")]


@pytest.mark.parametrize("traced", [True, False])
async def test_the_first_byte_as_the_access_log_has_it(start: Start, traced: bool) -> None:
    edge, envoy = await start(**(TRACED if traced else {}))
    stream, ticket = await envoy.released()
    entry = an_entry(ticket, prompt_tokens=3, completion_tokens=4)
    entry.common_properties.time_to_first_upstream_rx_byte.FromMilliseconds(1250)
    log = envoy.access_log()
    await log.write(log_message(entry))
    await until(lambda: edge.recorder.count("access_log", "matched"))
    assert edge.journal.first_bytes == ([(ticket, 1.25)] if traced else [])
    await stream.end()
    log.cancel()


async def test_how_a_held_one_ends(start: Start) -> None:
    edge, envoy = await start()
    inside, _ = await envoy.released()
    held = [envoy.stream() for _ in range(2)]
    for stream in held:
        await stream.send(request())
    await until(lambda: edge.held == 2)
    held[0].cancel()
    await until(lambda: edge.held == 1)
    assert edge.journal.ways_out == []  # its client has left
    edge.processor.let_go(Interrupted.HANDED_OVER)
    await until(lambda: edge.held == 0)
    assert [how for _, how in edge.journal.ways_out] == ["handed_over"]
    await inside.end()
