"""What Envoy is told of the endpoint, and the engine of its priority, its model and its adapter."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from envoy_by_messages import ENGINE, Edge, Immediate, Response, Start, body, headers_set, request, wired

from extproc.core.events import Release
from extproc.core.priority import PriorityWay
from extproc.edge import facts
from extproc.edge.gate import Queue

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"content-type": "application/json", ":path": "/v1/chat/completions"}
FORM = {"content-type": "multipart/form-data; boundary=b", ":path": "/v1/audio/transcriptions"}
ALIAS = {"aliases": {"gpt": "m", 'odd "\\ ö': "m"}, "adapters": ["lora", "team-*"]}


def told(answer: Response, namespace: str, name: str) -> Any:
    fields = answer.dynamic_metadata.fields
    return fields[namespace].struct_value[name] if namespace in fields else None


def removed(answer: Response) -> list[str]:
    return list(answer.request_headers.response.header_mutation.remove_headers)


def grant(edge: Edge, verdict: Release, **facts_: Any) -> Any:
    read = facts.read(request(headers=JSON, **facts_))
    place = edge.gate.decide(read, "peer")
    assert isinstance(place, Queue)
    return edge.processor._grant(verdict, place, read)


RELEASE = Release("t", ENGINE, 1000, "a", "default", 0.0)


# -- the endpoint -----------------------------------------------------------------------------------------


async def test_the_ones_to_turn_to_follow_the_chosen_one(start: Start) -> None:
    edge, _ = await start()
    others = ("10.0.0.2:8000", "[::1]:8000")
    granted = grant(edge, dataclasses.replace(RELEASE, fallbacks=others))
    assert granted.address == "10.0.0.1:8000,10.0.0.2:8000,[::1]:8000"
    assert granted.headers["x-fairlane-endpoint"] == ENGINE
    assert grant(edge, RELEASE).address == ENGINE


async def test_where_envoy_chooses_it_is_told_no_endpoint(start: Start) -> None:
    edge, envoy = await start(pool={"pick": {"by": "envoy"}})
    stream = envoy.stream()
    answer = await stream.ask(request(headers={"x-fairlane-endpoint": "10.6.6.6:1"}))
    assert not answer.HasField("dynamic_metadata")
    assert "x-fairlane-endpoint" not in headers_set(answer)
    assert removed(answer) == ["x-fairlane-endpoint"]  # a client's own
    assert headers_set(answer)["x-vllm-priority"] == "1000"
    assert edge.inside == 1
    await stream.end()


async def test_where_envoy_chooses_a_body_that_is_held_here_goes_without_an_endpoint(start: Start) -> None:
    _, envoy = await start(pool={"pick": {"by": "envoy"}})
    stream = envoy.stream()
    await stream.ask(wired(request(None, headers=JSON), "BUFFERED"))
    answer = await stream.ask(body("request_body", b'{"model": "m"}', end=True))
    assert not answer.HasField("dynamic_metadata")
    await stream.end()


# -- the priority -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "header", "appended"),
    [
        (PriorityWay(header=True), "1000", None),
        (PriorityWay(body=True), None, '"priority":1000'),
        (PriorityWay(header=True, body=True), "1000", '"priority":1000'),
        (PriorityWay(body=True, high_first=True), None, '"priority":-1000'),
        (PriorityWay(header=True, high_first=True), "-1000", None),
        (PriorityWay(), None, None),
    ],
)
async def test_it_goes_the_way_of_the_engine_that_was_chosen(
    start: Start, way: PriorityWay, header: str | None, appended: str | None
) -> None:
    edge, envoy = await start()
    edge.gate.rules.ways["sim"].set(ENGINE, way)
    stream = envoy.stream()
    answer = await stream.ask(request(headers={**JSON, "x-vllm-priority": "-9"}))
    assert headers_set(answer).get("x-vllm-priority") == header
    assert removed(answer) == ([] if way.header else ["x-vllm-priority"])  # a client's own
    assert told(answer, "fairlane.body", "append") == appended
    await stream.end()


@pytest.mark.parametrize(
    ("via", "other", "append"),
    [
        ("off", "header", None),  # no filter edits bodies
        ("off", "body", ""),  # the filter would append the priority of what is not scheduled
        ("header", "body", None),  # so it shall, against a client's own
        ("body", "off", '"priority":1000'),
    ],
)
async def test_nothing_is_appended_where_the_switch_is_off(
    start: Start, via: str, other: str, append: str | None
) -> None:
    more = {"name": "other", "models": ["o"], "endpoints": ["10.0.0.2:8000"], "priority_via": other}
    _, envoy = await start(pool={"priority_via": via}, more_pools=[more])
    stream = envoy.stream()
    answer = await stream.ask(request(headers=JSON))
    assert told(answer, "fairlane.body", "append") == append
    await stream.end()


# -- the model --------------------------------------------------------------------------------------------


async def test_an_alias_is_rewritten_in_envoy(start: Start) -> None:
    _, envoy = await start(pool=ALIAS)
    for model, append in (("m", None), ("gpt", '"model":"m"'), ("lora", None), ("team-x", None)):
        stream = envoy.stream()
        answer = await stream.ask(request(model, headers=JSON))
        assert told(answer, "fairlane.body", "append") == append
        await stream.end()


@pytest.mark.parametrize("mode", ["facts", "BUFFERED"])
async def test_an_alias_is_rewritten_here(start: Start, mode: str) -> None:
    edge, envoy = await start(pool=ALIAS)
    sent = b'{"model": "gpt", "seed": 9007199254740993, "messages": []}\n'
    stream = envoy.stream()
    await stream.ask(wired(request("gpt" if mode == "facts" else None, headers=JSON), "BUFFERED"))
    answer = await stream.ask(body("request_body", sent, end=True))
    edited = answer.request_body.response.body_mutation.body
    assert edited == b'{"model": "gpt", "seed": 9007199254740993, "messages": [],"model":"m"}\n'
    assert json.loads(edited)["model"] == "m"
    await stream.end()
    assert edge.recorder.count("body_edit", "edited") == 1


@pytest.mark.parametrize("target", ['a "quoted" \\ name', "ö/模型", "\u2028</script>\x7f\t"])
async def test_any_name_is_written_as_json(start: Start, target: str) -> None:
    _, envoy = await start(pool={"aliases": {"gpt": target}, "priority_via": "body"})
    stream = envoy.stream()
    answer = await stream.ask(request("gpt", headers=JSON))
    assert json.loads("{" + told(answer, "fairlane.body", "append") + "}") == {"model": target, "priority": 1000}
    await stream.end()


async def test_an_alias_in_a_form_is_refused_and_the_model_itself_is_not(start: Start) -> None:
    """Nothing can be appended to a form, and the engine would say that it does not know the model."""
    edge, envoy = await start(pool=ALIAS)
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt\r\n--b--\r\n'
    stream = envoy.stream()
    await stream.ask(wired(request(None, headers=FORM), "BUFFERED"))
    answer = Immediate.of(await stream.ask(body("request_body", form, end=True)))
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert answer.error["message"] == (
        "the model 'gpt' is another name for a model that is served here, and names cannot be replaced in a form: "
        "send the model's own name"
    )
    await stream.end()
    stream = envoy.stream()
    await stream.ask(wired(request(None, headers=FORM), "BUFFERED"))
    released = await stream.ask(body("request_body", form.replace(b"gpt", b"m"), end=True))
    assert not released.request_body.response.HasField("body_mutation")
    await stream.end()
    edge.check_empty()


async def test_a_name_that_is_not_served_tells_nothing_of_those_that_are(start: Start) -> None:
    _, envoy = await start(pool=ALIAS, requests={"unknown_model": "reject"})
    answer = Immediate.of(await envoy.stream().ask(request("gpt-5", headers=JSON)))
    assert (answer.status, answer.error["message"]) == (404, "the model 'gpt-5' is not served here")
