"""The handler against whatever may come, in any order: it raises nothing but the end of its stream, each stream has one
outcome, and the books are closed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envoy_by_messages import Context, Edge, Request, a_config, an_entry, body, log_message, message, request, wired
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.events import Settled
from extproc.edge.driver import Interrupted

KINDS = ("response_headers", "request_body", "response_body", "request_trailers", "response_trailers")
OUTCOMES = ("release", "refuse", "refused", "passed", "cancelled", "handed_over")


async def settle() -> None:
    """Lets everything run that can: a handler goes on for a few steps at most before it waits again."""
    for _ in range(20):
        await asyncio.sleep(0)


async def one(context: Context, **changes: Any) -> Edge:
    """One stream from beginning to end."""
    edge = Edge(a_config(**changes))
    await edge.processor.process(None, context)
    edge.close()
    return edge


def charged(edge: Edge) -> list[float]:
    return [effect.cost for effect in edge.recorder.decided if isinstance(effect, Settled)]


# -- single turns that a real connection cannot be brought to at will --------------------------------


async def test_the_client_is_gone_between_verdict_and_answer(logs: list[Any]) -> None:
    context = Context(request())
    context.gone = True
    edge = await one(context)
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim"), ("settled", "sim")]
    assert charged(edge) == [0]  # no engine has seen it
    assert [entry for entry in logs if entry["log_level"] != "debug"] == []


async def test_an_answer_that_cannot_be_written_is_a_fault_and_not_written_twice(logs: list[Any]) -> None:
    context = Context(request())
    context.broken = True
    edge = await one(context)
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim"), ("fault", "stream")]
    faults = [entry for entry in logs if entry["log_level"] == "error"]
    assert [(entry["event"], entry["answered"]) for entry in faults] == [("stream_fault", True)]


async def test_the_verdict_and_the_end_come_together() -> None:
    """Both are there when the handler wakes up: it was released, so its slot is what has to be freed."""
    edge = Edge(a_config())
    first, second = Context(request(), ends=False), Context(request(), ends=False)
    tasks = [asyncio.create_task(edge.processor.process(None, context)) for context in (first, second)]
    await settle()
    assert (edge.inside, edge.held) == (1, 1)
    edge.driver.end(next(iter(edge.driver.scheduler.requests)))
    second.end()
    second.gone = True
    await tasks[1]
    assert second.written == []
    assert edge.recorder.told == [("release", "sim"), ("release", "sim"), ("settled", "sim")]
    assert charged(edge) == [0]
    first.end()
    await tasks[0]
    edge.check_empty()
    edge.close()


async def test_a_cancelled_handler_is_cancelled_and_closes_the_books() -> None:
    edge = Edge(a_config())
    contexts = [Context(request(), ends=False) for _ in range(3)]
    tasks = [asyncio.create_task(edge.processor.process(None, context)) for context in contexts]
    await settle()
    assert (edge.inside, edge.held) == (1, 2)
    for task in reversed(tasks):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    edge.check_empty()
    assert edge.recorder.told == [("release", "sim"), ("cancelled", "sim"), ("cancelled", "sim")]
    edge.close()


async def test_hand_over_writes_nothing() -> None:
    edge = Edge(a_config())
    contexts = [Context(request(), ends=False) for _ in range(2)]
    tasks = [asyncio.create_task(edge.processor.process(None, context)) for context in contexts]
    await settle()
    edge.processor.let_go(Interrupted.HANDED_OVER)
    with pytest.raises(grpc.aio.AbortError):
        await tasks[1]
    assert contexts[1].aborted is grpc.StatusCode.UNAVAILABLE
    assert contexts[1].written == []
    contexts[0].end()
    await tasks[0]
    assert contexts[0].aborted is None
    edge.check_empty()
    edge.close()


async def test_a_message_in_the_wrong_phase_twice_is_answered_twice() -> None:
    """A second header message is answered as one: exactly one answer for each message."""
    context = Context(request(), request(), message("request_headers"))
    edge = await one(context)
    assert context.kinds == ["request_headers"] * 3
    assert [answer.HasField("dynamic_metadata") for answer in context.written] == [True, False, False]
    assert edge.recorder.told == [("release", "sim")]


# -- any order ------------------------------------------------------------------------------------

MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC")
WORDS = ("", "hold", "track", "first-byte", "no-trailers", "hold,first-byte", "track,no-trailers", ",,?")
some_headers = {
    "x-tenant": st.sampled_from("ab"),
    "x-class": st.sampled_from(["urgent", "low", "?"]),
    "content-type": st.sampled_from(["application/json", "multipart/form-data; boundary=b", "?"]),
    ":path": st.sampled_from(["/v1/chat/completions", "/v1/models"]),
}
header_messages = st.builds(
    lambda first, request_body, response_body, alone: _shaped(first, request_body, response_body, alone),
    st.builds(
        request,
        st.sampled_from(["m", "other", "", None, 7]),
        st.fixed_dictionaries({}, optional=some_headers),
        size=st.sampled_from([0, 1000, 2**30, "x", None]),
        n=st.sampled_from([1, 2, "3", -1]),
    ),
    st.sampled_from(MODES),
    st.sampled_from(MODES),
    st.booleans(),
)
first_messages = st.one_of(
    header_messages,
    header_messages,
    st.sampled_from(KINDS).map(message),
    st.just(Request()),
    st.binary(max_size=12),
)
bodies = st.builds(
    body,
    st.sampled_from(["request_body", "response_body"]),
    st.sampled_from([b"", b'{"model": "m", "n": 2}', b'{"mod', b"data: [DONE]\n\n", b'data: {"usage": {"comp']),
    st.booleans(),
)
later_messages = st.one_of(
    st.sampled_from(("request_headers", *KINDS)).map(message), bodies, bodies, st.binary(max_size=6)
)
stream = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("open"), first_messages, st.sampled_from(WORDS)),
    st.tuples(st.just("open"), first_messages, st.sampled_from(WORDS)),
    st.tuples(st.just("track"), stream),
    st.tuples(st.just("send"), stream, later_messages),
    st.tuples(st.just("send"), stream, later_messages),
    st.tuples(st.just("end"), stream),
    st.tuples(st.just("cancel"), stream),
    st.tuples(st.just("gone"), stream),
    st.tuples(st.just("log"), stream, st.sampled_from([0, 200, 500])),
    st.tuples(st.just("late")),
    st.tuples(st.just("let_go"), st.sampled_from([Interrupted.HANDED_OVER, Interrupted.DRAINING])),
)


def _shaped(first: Request, request_body: str, response_body: str, alone: bool) -> Request:
    first.request_headers.end_of_stream = alone
    return wired(first, request_body, response_body)


class Play:
    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.contexts: list[Context] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.claims = 0  # streams that follow a request of another stream

    def open(self, first: Request | bytes, words: str) -> None:
        context = Context(first, ends=False)
        context.wiring = words
        self.contexts.append(context)
        self.tasks.append(asyncio.create_task(self.edge.processor.process(None, context)))

    async def step(self, what: str, *args: Any) -> None:
        if what == "open":
            self.open(*args)
        elif what == "track":
            waiting = list(self.edge.tracking._waiting)
            if waiting:
                self.claims += 1
                self.open(request(headers={"x-fairlane-ticket": waiting[args[0] % len(waiting)]}), "track,first-byte")
        elif what == "let_go":
            self.edge.processor.let_go(args[0])
        elif what == "late":
            for ticket in list(self.edge.tracking._waiting):
                self.edge.tracking._unclaimed(ticket)
        elif what == "log":
            tickets = list(self.edge.driver.scheduler.requests)
            ticket = tickets[args[0] % len(tickets)] if tickets else None
            await self.edge.access_log.stream(_once(log_message(an_entry(ticket, args[1], completion_tokens=3))), None)
        elif args[0] < len(self.contexts):
            number = args[0]
            if what == "send":
                raw = args[1] if isinstance(args[1], bytes) else args[1].SerializeToString()
                self.contexts[number].reads.put_nowait(raw)
            elif what == "cancel":
                self.tasks[number].cancel()
            else:
                self.contexts[number].gone = what == "gone"
                self.contexts[number].end()
        await settle()
        self.edge.check()

    async def over(self) -> None:
        for context in self.contexts:
            context.end()
        await settle()
        await self.step("late")
        for task in self.tasks:
            task.cancel()  # those that only wait for that
        await settle()


async def _once(raw: bytes) -> Any:
    yield raw


CLASSES = {"low": {"rank": 9, "priority": 9000, "preemptible": True, "max_waiting": 0}}


async def play(script: list[tuple[Any, ...]], on_fault: str) -> None:
    edge = Edge(
        a_config(
            slots=2,
            on_fault=on_fault,
            requests={"unknown_model": "reject", "max_body": "1KiB"},
            classes=CLASSES,
            pool={"priority_via": "both"},
        )
    )
    it = Play(edge)
    for what, *args in script:
        await it.step(what, *args)
    await it.over()
    edge.check_empty()
    assert edge.processor.open == 0
    assert len(edge.tracking) == 0
    edge.close()
    ends = await asyncio.gather(*it.tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError | grpc.aio.AbortError) for end in ends), ends
    assert sum(edge.recorder.count(outcome) for outcome in OUTCOMES) == len(it.contexts) - it.claims
    for context in it.contexts:
        if context.aborted is not None:
            assert context.written == []
        assert context.kinds.count("immediate_response") <= 1
        assert "immediate_response" not in context.kinds[:-1]


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.lists(steps, max_size=16), st.sampled_from(["pass", "reject"]))
def test_every_stream_has_one_outcome(script: list[tuple[Any, ...]], on_fault: str) -> None:
    asyncio.run(play(script, on_fault))
