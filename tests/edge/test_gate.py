"""Where a request goes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from envoy_by_messages import Edge, a_config, request

from extproc.core.events import Arrive
from extproc.core.reasons import Reason
from extproc.edge import facts
from extproc.edge.gate import Deny, Pass, Queue

PEER = "ipv4:10.9.0.1:5555"
TWO = [{"name": "two", "models": ["n", "n-alias"], "endpoints": ["10.0.0.2:8000"]}]
ALL = [{"name": "rest", "models": ["*"], "endpoints": ["10.0.0.3:8000"]}]


async def decide(message: Any, **config: Any) -> Any:
    edge = Edge(a_config(**config))
    decision = edge.gate.decide(facts.read(message), PEER)
    edge.close()
    if isinstance(decision, Queue):
        return decision.driver.name
    return decision.why if isinstance(decision, Pass) else decision.reason


@pytest.mark.parametrize(
    ("model", "pools", "rules", "goes"),
    [
        ("m", [], {}, "sim"),
        ("n-alias", TWO, {}, "two"),
        ("x", [], {}, "unknown_model"),
        ("x", [], {"unknown_model": "reject"}, Reason.MODEL_NOT_FOUND),
        ("x", ALL, {"unknown_model": "reject"}, "rest"),
        ("m", ALL, {}, "sim"),
        (None, [], {}, "sim"),
        (None, ALL, {}, "rest"),
        (None, TWO, {}, "not_placed"),
        (None, TWO, {"unknown_model": "reject"}, "not_placed"),  # a model that is not named is not unknown
        (None, TWO, {"malformed": "reject"}, Reason.INVALID_REQUEST),
        ("M", [], {}, "unknown_model"),  # names are exact
    ],
)
async def test_the_pool_of_a_model(
    model: str | None, pools: list[dict[str, Any]], rules: dict[str, str], goes: str | Reason
) -> None:
    assert await decide(request(model), more_pools=pools, requests=rules) == goes


async def test_too_large_is_said_before_all_else() -> None:
    rules = {"max_body": "1B", "malformed": "reject", "unknown_model": "reject"}
    assert await decide(request(None), requests=rules) is Reason.BODY_TOO_LARGE


async def test_a_long_name_of_a_model_is_cut_in_the_answer() -> None:
    edge = Edge(a_config(requests={"unknown_model": "reject"}))
    decision = edge.gate.decide(facts.read(request("x" * 100_000)), PEER)
    assert isinstance(decision, Deny)
    assert len(decision.message) < 200
    edge.close()


async def test_what_the_scheduler_is_told() -> None:
    edge = Edge(a_config())
    sent = request(headers={"x-tenant": "a", "x-class": "urgent"}, size=123, max_tokens=9, n=2)
    decision = edge.gate.decide(facts.read(sent), PEER)
    assert isinstance(decision, Queue)
    event = decision.event
    assert (event.tenant, event.cls, event.body_bytes, event.max_output, event.n) == ("a", "urgent", 123, 9, 2)
    assert event.timeout_s is None
    assert event.arrival == pytest.approx(edge.driver.now(), abs=5)
    edge.close()


async def test_each_envoy_has_a_clock_of_its_own() -> None:
    """One is 90 s behind, which its second period shows; the replay that comes by the other keeps its 42 s."""
    edge = Edge(a_config())
    now = time.time()
    monotonic = edge.driver.now()

    def age(peer: str, claimed: float, later: float = 0.0) -> float:
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr(time, "time", lambda: now + later)
            clock.setattr(edge.driver, "now", lambda: monotonic + later)
            at = datetime.fromtimestamp(claimed, UTC).isoformat()
            decision = edge.gate.decide(facts.read(request(at=at)), peer)
        assert isinstance(decision, Queue)
        return monotonic + later - decision.event.arrival

    behind, right = "ipv4:10.9.0.2:1", "ipv4:10.9.0.3:1"
    assert age(behind, now - 90.0) == pytest.approx(90.0, abs=0.01)
    assert age(behind, now + 31.0 - 90.0, 31.0) == pytest.approx(0.0, abs=0.01)
    assert age(right, now + 31.0 - 42.0, 31.0) == pytest.approx(42.0, abs=0.01)
    edge.close()


async def test_a_class_that_may_not_be_used_is_counted() -> None:
    edge = Edge(a_config())
    for cls in ("urgent", "vip", "vip"):
        edge.gate.decide(facts.read(request(headers={"x-class": cls})), PEER)
    assert edge.recorder.told == [("clamped", "")] * 2
    edge.close()


async def test_tickets_are_of_one_process_and_never_the_same() -> None:
    edge, other = Edge(a_config()), Edge(a_config())
    tickets = [edge.gate.decide(facts.read(request()), PEER).event.id for _ in range(20)]  # type: ignore[union-attr]
    assert len(set(tickets)) == 20
    assert all(edge.gate.owner(ticket) is edge.driver for ticket in tickets)
    assert all(other.gate.owner(ticket) is None for ticket in tickets)
    edge.close()
    other.close()


@pytest.mark.parametrize("ticket", ["", "-", "x", "x-sim-1", "--", "\x00", "é-sim-1"])
async def test_tickets_that_nobody_gave_out(ticket: str) -> None:
    edge = Edge(a_config())
    assert edge.gate.owner(ticket) is None
    edge.close()


# -- adapter, prefix, session -----------------------------------------------------------------------------


async def events(*messages: Any, **pool: Any) -> list[Arrive]:
    edge = Edge(a_config(pool={"adapters": ["lora", "team-*"], "aliases": {"sql": "lora"}, **pool}))
    decisions = [edge.gate.decide(facts.read(message, edge.gate.rules.headers), PEER) for message in messages]
    edge.close()
    return [decision.event for decision in decisions if isinstance(decision, Queue)]


@pytest.mark.parametrize(("model", "adapter"), [("m", None), ("lora", "lora"), ("team-x", "team-x"), ("sql", "lora")])
async def test_the_adapter_that_a_request_asks_for(model: str, adapter: str | None) -> None:
    (event,) = await events(request(model))
    assert event.adapter == adapter


async def test_one_adapter_s_cache_is_none_of_another_s() -> None:
    plain, lora, sql, team = await events(*(request(model, prefix="1,2,3") for model in ("m", "lora", "sql", "team-x")))
    assert plain.prefix == (1, 2, 3)
    assert lora.prefix == sql.prefix  # one adapter by two names
    assert len({*plain.prefix, *lora.prefix, *team.prefix}) == 9
    assert all(0 <= each < 2**64 for each in lora.prefix)


async def test_a_session_is_known_by_its_tenant_and_its_header() -> None:
    def of(tenant: str, session: str | None) -> Any:
        return request(headers={"x-tenant": tenant} | ({} if session is None else {"x-session-id": session}))

    messages = [of("a", "1"), of("a", " 1 "), of("b", "1"), of("a", "2"), of("a", None), of("a", "  ")]
    told = [event.session for event in await events(*messages, session_header="X-Session-Id")]
    assert told[0] == told[1] is not None
    assert len(set(told[:4])) == 3
    assert told[4:] == [None, None]
    # blake2b("a\n1") of 8 bytes, by `printf 'a\n1' | b2sum -l 64`: the same in every process
    assert told[0] == 0x2A094F2F3C5033C9
    assert [event.session for event in await events(of("a", "1"))] == [None]  # no header was configured
