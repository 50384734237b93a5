"""What becomes of one request is told alike by its answer, its line in the log, its spans, the metrics and its engine:
one that was slow, one whose time was up, and one that was refused at the door."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from rig import Answer, Json, Rig, chat, log_of, running, until

from extproc.cli.stack import FAIRLANE

sys.path.append(str(Path(__file__).resolve().parent.parent / "telemetry"))  # collectors of spans

from otlp_collector import Collected, attributes, grpc_collector  # isort: skip

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT_S = 3  # of class interactive; within it the log has had its look at those that wait
CONFIG = {
    "classes": {"interactive": {"queue_timeout": f"{TIMEOUT_S}s"}, "batch": {"queue_timeout": "60s"}},
    "tenants": {"*": {"max_queued": 1}},
}
POOL = {"window": {"controller": "fixed", "fixed": 1, "overtake": 0}}


class Story(NamedTuple):
    """All that is told of one request."""

    answer: Answer
    line: Json
    request: Span
    wait: Span

    @property
    def of_request(self) -> dict[str, Any]:
        return attributes(self.request.attributes)

    @property
    def of_wait(self) -> dict[str, Any]:
        return attributes(self.wait.attributes)

    def agrees(self, pool: str, cls: str, tenant: str, outcome: str) -> None:
        """The line and both spans, in all that they share."""
        line, request, wait = self.line, self.of_request, self.of_wait
        assert line["ticket"] == request["fairlane.ticket"]
        assert line["pool"] == request["fairlane.pool"] == wait["fairlane.pool"] == pool
        assert line["class"] == request["fairlane.class"] == wait["fairlane.class"] == cls
        assert line["tenant"] == request["fairlane.tenant"] == tenant
        assert line.get("reason", "released") == outcome
        assert request["fairlane.outcome"] == wait["fairlane.outcome"] == outcome
        assert request["fairlane.queue_wait_seconds"] == wait["fairlane.queue_wait_seconds"]
        assert line["waited_s"] == pytest.approx(wait["fairlane.queue_wait_seconds"], abs=0.0006)  # it is rounded
        assert self.wait_s == pytest.approx(wait["fairlane.queue_wait_seconds"], abs=1e-6)

    def refused_alike(self, reason: str) -> None:
        """Answer, line and spans say the same of a refusal."""
        error = self.answer.error
        assert (error["code"], self.line["reason"]) == (reason, reason)
        assert error["message"] == self.line["message"]
        for span in (self.request, self.wait):
            assert span.status.code == Status.STATUS_CODE_ERROR
            assert span.status.message == error["message"]
            assert attributes(span.attributes)["error.type"] == reason

    @property
    def wait_s(self) -> float:
        """How long its span is."""
        return (self.wait.end_time_unix_nano - self.wait.start_time_unix_nano) / 1e9


def lines_of(rig: Rig) -> list[Json]:
    """Those of single requests."""
    return [line for line in log_of(rig.stack.child(FAIRLANE)) if line["event"].startswith("request_")]


async def told(rig: Rig, collected: Collected, trace: str, answer: Answer) -> Story:
    async def spans() -> dict[str, Span]:
        return {span.name: span for span in collected.spans if span.trace_id.hex() == trace}

    found = await until(spans, lambda found: len(found) == 2, "two spans")
    request, wait = found["fairlane request"], found["fairlane wait"]
    assert wait.parent_span_id == request.span_id
    ticket = attributes(request.attributes)["fairlane.ticket"]
    (line,) = (line for line in lines_of(rig) if line.get("ticket") == ticket)  # exactly one
    return Story(answer, line, request, wait)


async def looked_at(rig: Rig) -> None:
    """Twice more the log has had its look at those that wait, of which each takes a sample of the loop's lag."""
    ticks = "fairlane_loop_lag_seconds_count"
    before = await rig.metric(ticks)
    await until(lambda: rig.metric(ticks), lambda now: now >= before + 2, "two looks")


async def test_a_slow_one_and_two_refused_ones(tmp_path: Path) -> None:
    traces = {name: secrets.token_hex(16) for name in ("slow", "expired", "refused")}

    def of(name: str, cls: str) -> dict[str, str]:
        return {"x-class": cls, "traceparent": f"00-{traces[name]}-b7ad6b7169203331-01"}

    with grpc_collector() as (address, collected):
        telemetry = {"log": {"slow_after": "100ms"}, "traces": {"otlp": address, "sample": 0.0}}
        async with running(tmp_path, pool=POOL, config={**CONFIG, "telemetry": telemetry}) as rig:
            (engine,) = rig.engines
            async with rig.hung_engines():
                first = rig.start(chat(), tenant="first")
                await rig.until_inside(1)
                expired = await rig.post(chat(), tenant="impatient", headers=of("expired", "interactive"))
                slow = rig.start(chat(5), tenant="patient", headers=of("slow", "batch"))
                await rig.until_held(1)
                refused = await rig.post(chat(), tenant="patient", headers=of("refused", "batch"))
                await looked_at(rig)
            served = await slow
            assert [each.status for each in (await first, served, expired, refused)] == [200, 200, 503, 429]
            await rig.books_closed()

            story = await told(rig, collected, traces["slow"], served)
            story.agrees("sim", "batch", "patient", "released")
            assert (story.line["event"], story.line["outcome"]) == ("request_slow", "released")
            _explained(story, str(engine))
            (entry,) = await rig.seen("patient")
            assert entry["headers"]["x-fairlane-ticket"] == story.line["ticket"]
            assert story.line["endpoint"] == str(engine)
            assert (story.of_request["server.address"], story.of_request["server.port"]) == engine
            assert story.of_request["gen_ai.usage.output_tokens"] == entry["tokens"] == 5
            assert int(served.headers["x-fairlane-queue-ms"]) == pytest.approx(1000 * story.wait_s, abs=1)
            assert await _waits(rig, "batch", "released") == pytest.approx((1, story.wait_s), abs=1e-6)

            story = await told(rig, collected, traces["expired"], expired)
            story.agrees("sim", "interactive", "impatient", "queue_timeout")
            story.refused_alike("queue_timeout")
            assert (story.line["event"], story.line["outcome"]) == ("request_refused", "refused")
            _explained(story, str(engine))
            assert story.line["waited_s"] >= TIMEOUT_S
            assert await _waits(rig, "interactive", "queue_timeout") == pytest.approx((1, story.wait_s), abs=1e-6)

            story = await told(rig, collected, traces["refused"], refused)
            story.agrees("sim", "batch", "patient", "tenant_limit")
            story.refused_alike("tenant_limit")
            assert (story.line["event"], story.line["outcome"]) == ("request_refused", "refused")
            assert "explanation" not in story.line  # it has not waited
            assert await _waits(rig, "batch", "tenant_limit") == pytest.approx((1, story.wait_s), abs=1e-6)

            assert await rig.metric("fairlane_refused_requests_total") == 2
            for reason in ("queue_timeout", "tenant_limit"):
                assert await rig.metric("fairlane_refused_requests_total", reason=reason) == 1
            assert len(lines_of(rig)) == 3  # none of the first one, which waited for nothing, and none twice
            assert len(collected.spans) == 6
            assert await rig.metric("fairlane_spans_dropped_total") == 0
            assert await rig.metric("fairlane_log_lines_left_out_total") == 0


def _explained(story: Story, engine: str) -> None:
    """It was next, and the only slot was taken: in the words of the line, and in the span's first event."""
    line = story.line
    assert (line["hold"], line["explained"]) == ("window", "request")
    assert f"{engine} (fresh) holds 1 of ours and 0 others, limit 1.0" in line["explanation"]
    assert line["next"]
    assert 0 <= line["explained_at_s"] <= line["waited_s"]
    enqueued = story.wait.events[0]
    assert (enqueued.name, attributes(enqueued.attributes)["fairlane.hold.kind"]) == ("enqueued", line["hold"])


async def _waits(rig: Rig, cls: str, outcome: str) -> tuple[float, float]:
    """How many, and the sum of their seconds, by the histogram."""
    labels = {"class": cls, "outcome": outcome}
    count = await rig.metric("fairlane_queue_wait_seconds_count", **labels)
    return count, await rig.metric("fairlane_queue_wait_seconds_sum", **labels)
