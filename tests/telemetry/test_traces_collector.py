"""Collectors that hang, refuse, fail, are not there or come later: nothing waits for them, and what is lost is counted.
Both protocols, the standard environment variables, and traces that are off."""

from __future__ import annotations

import http.server
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import structlog
from otlp_collector import (
    Asked,
    Pool,
    attributes,
    grpc_collector,
    http_collector,
    silent_listener,
    until,
)

from extproc.cli.ports import free_ports
from extproc.config.telemetry import Traces
from extproc.core.events import Arrive, End, Release, Usage
from extproc.core.model import Source
from extproc.telemetry import traces_export
from extproc.telemetry.traces import TraceError, Tracer
from extproc.telemetry.traces_complaints import Complaints
from extproc.telemetry.traces_export import Export
from extproc.telemetry.traces_record import Record

pytestmark = pytest.mark.slow

CLOSE_S = 3.0  # that a stop of the service may be held up
BUSY_S = 2.0  # that a busy machine may add
FINISH_S = traces_export._FINISH_S


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_export, "_FLUSH_S", 0.01)
    monkeypatch.setattr(traces_export, "_FINISH_S", 0.2)
    monkeypatch.setattr(traces_export, "_CALM_S", 0.0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spans"]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Whatever a collector did: in the end no thread is left, and OpenTelemetry's logger is as it was."""
    logger = logging.getLogger("opentelemetry")
    before = logger.propagate
    yield
    until(lambda: not threads(), "the thread has ended")
    assert logger.propagate == before
    assert not [handler for handler in logger.handlers if isinstance(handler, Complaints)]


class Traced:
    """A pool at work, whose requests are all followed."""

    def __init__(self, tracer: Tracer, lost: Counter[str]) -> None:
        self.tracer = tracer
        self.lost = lost
        self.pool = Pool(tracer, slots=10)
        self.count = 0

    def serve(self, requests: int = 1) -> None:
        for _ in range(requests):
            self.count += 1
            name = str(self.count)
            self.tracer.begin(name, Asked())
            assert any(isinstance(e, Release) for e in self.pool.apply(Arrive(name, "t", "interactive", 100.0, 10)))
            self.pool.apply(Usage(name, Source.USAGE, 3, 0, 4))
            self.pool.apply(End(name))


@contextmanager
def traced(address: str, protocol: Literal["grpc", "http"] = "grpc") -> Iterator[Traced]:
    """It must end in time, whatever the collector does."""
    lost: Counter[str] = Counter()

    def dropped(reason: str, spans: int) -> None:
        lost[reason] += spans

    tracer = Tracer.of(Traces(otlp=address, protocol=protocol, sample=1.0), "1.2.3", dropped)
    assert tracer is not None
    try:
        yield Traced(tracer, lost)
    finally:
        start = time.monotonic()
        tracer.close()
        assert time.monotonic() - start < CLOSE_S + BUSY_S


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as found:
        yield found


def named(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


@contextmanager
def environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


# -- a collector that works -----------------------------------------------------------------------


def test_http() -> None:
    with http_collector() as (address, collected), traced(address, "http") as it:
        it.serve(3)
        collected.until(6)
        assert {span.name for span in collected.spans} == {"fairlane request", "fairlane wait"}
        assert collected.headers[0]["content-type"] == "application/x-protobuf"


def test_http_with_a_path_of_its_own() -> None:
    with http_collector() as (address, collected):
        with traced(f"{address}/v1/traces", "http") as it:
            it.serve()
            collected.until(2)
        with traced(f"{address}/elsewhere", "http") as it:
            it.serve()
            until(lambda: it.lost["export_failed"] == 2, "a path that is not there")


def test_what_is_there_at_the_end_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_export, "_FLUSH_S", 60.0)
    monkeypatch.setattr(traces_export, "_FINISH_S", 60.0)
    with grpc_collector() as (address, collected):
        with traced(address) as it:
            it.serve(200)
        assert len(collected.spans) == 400
        assert it.lost == {}
    assert not threads()


def test_a_batch_does_not_wait_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_export, "_FLUSH_S", 60.0)
    with grpc_collector() as (address, collected), traced(address) as it:
        it.serve(64)
        collected.until(128)


def test_the_service_is_named_and_the_environment_may_name_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_collector() as (address, collected), traced(address) as it:
        it.serve()
        collected.until(2)
        assert collected.resource["service.name"] == "fairlane"
        assert collected.resource["service.version"] == "1.2.3"
    named = {"OTEL_SERVICE_NAME": "gate", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod"}
    with environment(monkeypatch, **named), grpc_collector() as (address, collected), traced(address) as it:
        it.serve()
        collected.until(2)
        assert collected.resource["service.name"] == "gate"
        assert collected.resource["service.version"] == "1.2.3"
        assert collected.resource["deployment.environment.name"] == "prod"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_headers_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, protocol: Literal["grpc", "http"], lines: list[Any]
) -> None:
    collector = grpc_collector if protocol == "grpc" else http_collector
    with (
        environment(monkeypatch, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret"),
        collector() as (address, collected),
        traced(address, protocol) as it,
    ):
        it.serve()
        collected.until(2)
        assert collected.headers[0]["authorization"] == "Bearer s3cret"
        collected.fails = True
        it.serve()
        until(lambda: it.lost["export_failed"] == 2, "a failed export")
        until(lambda: len(named(lines, "spans_lost")) == 1, "a line of it")
    assert "s3cret" not in str(lines)


def test_the_sdk_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        environment(monkeypatch, OTEL_SDK_DISABLED="true"),
        grpc_collector() as (address, collected),
        traced(address) as it,
    ):
        it.serve()
    assert (collected.asked, it.lost) == (0, {})


def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "2",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "4",
        "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
    }
    with environment(monkeypatch, **limits), grpc_collector() as (address, collected), traced(address) as it:
        it.serve()
        collected.until(2)
    request, wait = collected.named("fairlane request"), collected.named("fairlane wait")
    tokens = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}
    assert attributes(request.attributes) == tokens  # the last ones stay
    assert request.dropped_attributes_count == 12
    (settled,) = request.events
    assert attributes(settled.attributes) == tokens
    assert settled.dropped_attributes_count == 3  # where the cost comes from, the cost, and the estimate
    (released,) = wait.events
    assert released.name == "released"
    assert attributes(released.attributes)["fairlane.endpoint"] == "10.0"
    assert wait.dropped_events_count == 1  # `enqueued`
    assert (request.dropped_events_count, released.dropped_attributes_count) == (0, 0)


# -- one that does not ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_one_that_accepts_and_never_answers(
    monkeypatch: pytest.MonkeyPatch, protocol: Literal["grpc", "http"], lines: list[Any]
) -> None:
    """The event loop's side goes on; what does not fit is dropped, and all of it is counted in the end."""
    monkeypatch.setattr(traces_export, "_MOST_WAITING", 100)
    with silent_listener() as address:
        with traced(address, protocol) as it:
            it.serve()
            until(lambda: not it.tracer._export._waiting, "the thread has it")
            it.serve(500)
            assert len(it.tracer._export._waiting) == 100
            assert it.lost["queue_full"] == 2 * 400
        # the one that was on its way has failed by gRPC; by HTTP nobody can call it off
        assert it.lost["export_failed"] == (2 if protocol == "grpc" else 0)
        assert it.lost["shutdown"] == 2 * (100 if protocol == "grpc" else 101)
    (line,) = lines
    assert (line["event"], line["log_level"], line["collector"]) == ("spans_lost", "warning", address)
    assert line["lost"] == 2 * 501
    assert line["error"] == "the collector had not taken them when the service ended"


@pytest.mark.slow  # it takes the time that a stop may take
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_one_whose_answer_stays_away(monkeypatch: pytest.MonkeyPatch, protocol: Literal["grpc", "http"]) -> None:
    monkeypatch.setattr(traces_export, "_FINISH_S", FINISH_S)
    collector = grpc_collector if protocol == "grpc" else http_collector
    with collector() as (address, collected):
        collected.answers.clear()
        with traced(address, protocol) as it:
            it.serve()
            until(lambda: collected.asked == 1, "it is asked")
            it.serve(3)
        assert it.lost["shutdown"] + it.lost["export_failed"] == 8


def test_one_that_hangs_until_the_time_is_up_and_then_works(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    with (
        environment(monkeypatch, OTEL_EXPORTER_OTLP_TIMEOUT="0.3"),
        grpc_collector() as (address, collected),
        traced(address) as it,
    ):
        collected.answers.clear()
        it.serve()
        until(lambda: it.lost["export_failed"] == 2, "the time is up")
        it.serve()
        until(lambda: it.lost["export_failed"] == 4, "again")
        collected.answers.set()
        until(lambda: len(collected.spans) == 4, "what hung has come after all, and nobody waits for it")
        it.serve()
        until(lambda: len(named(lines, "spans_exported_again")) == 1, "it works")
        assert len(collected.spans) == 6
    (lost,) = named(lines, "spans_lost")
    assert lost["log_level"] == "warning"
    assert "DEADLINE_EXCEEDED" in lost["error"]
    assert lost["collector"] == address
    (again,) = named(lines, "spans_exported_again")
    assert again["lost"] == 4


def test_one_that_answers_errors(lines: list[Any]) -> None:
    """One line when it begins and one when it is over, whatever the number of exports."""
    with grpc_collector() as (address, collected), traced(address) as it:
        for turn in (1, 2):
            collected.fails = True
            for number in range(3):
                it.serve()
                until(lambda n=number, t=turn: it.lost["export_failed"] == 2 * (3 * (t - 1) + n + 1), "a failure")
            collected.fails = False
            it.serve()
            until(lambda t=turn: len(named(lines, "spans_exported_again")) == t, "it works")
        assert len(collected.spans) == 4
    assert [line["event"] for line in lines] == ["spans_lost", "spans_exported_again"] * 2
    assert "not today" in lines[0]["error"]
    assert [line["lost"] for line in named(lines, "spans_exported_again")] == [6, 6]


def test_one_that_comes_later(lines: list[Any]) -> None:
    """What waits for it is tried again for a while, by the exporter."""
    port = free_ports(1)[0]
    with traced(f"http://127.0.0.1:{port}") as it:
        it.serve()
        until(lambda: not it.tracer._export._waiting, "the thread has it")
        with grpc_collector(port) as (_, collected):
            until(lambda: len(collected.spans) >= 2, "it has come")
            it.serve()
            until(lambda: len(collected.spans) >= 4, "and stays")


def test_one_that_is_not_there_at_all(lines: list[Any]) -> None:
    with traced(f"http://127.0.0.1:{free_ports(1)[0]}") as it:
        it.serve(70)  # more than a batch
    assert sum(it.lost.values()) == 140
    with traced(f"http://127.0.0.1:{free_ports(1)[0]}", "http") as it:
        it.serve(70)
    assert sum(it.lost.values()) == 140
    assert [line["lost"] for line in named(lines, "spans_lost") if "lost" in line] == [140, 140]


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308])
def test_one_that_is_elsewhere(status: int, lines: list[Any]) -> None:
    """A redirect is no success, and is not followed; where to is not told."""

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("location", "/login?token=sk-PLANTED")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with traced(f"http://127.0.0.1:{server.server_port}", "http") as it:
                it.serve()
                until(lambda: it.lost["export_failed"] == 2, "a failure")
                until(lambda: bool(lines), "a line of it")
        finally:
            server.shutdown()
            thread.join()
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("spans_lost", "warning")
    assert f"it answers {status}" in line["error"]
    assert "telemetry.traces.otlp" in line["error"]
    assert "PLANTED" not in str(lines)


def test_requests_that_are_under_way_at_the_stop_are_told(lines: list[Any]) -> None:
    with grpc_collector() as (address, _), traced(address) as it:
        it.tracer.begin("1", Asked())
        it.pool.apply(Arrive("1", "t", "interactive", 100.0, 10))
    assert it.lost == {"shutdown": 2}
    (line,) = lines
    assert (line["event"], line["lost"]) == ("spans_lost", 2)
    assert line["error"] == "their requests were under way when the service ended"


@pytest.mark.parametrize("late", ["fails", "works", "raises"])
def test_one_that_answers_after_the_end_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any], late: str
) -> None:
    monkeypatch.setattr(traces_export, "_LEAVE_S", 0.01)
    go = threading.Event()
    busy = threading.Event()
    ended: list[str] = []

    def send(_: Any) -> str | None:
        busy.set()
        go.wait()
        if late == "raises":
            raise ValueError("Cannot invoke RPC on closed channel!")
        ended.append("sent")
        return "late" if late == "fails" else None

    lost: Counter[str] = Counter()

    def dropped(reason: str, spans: int) -> None:
        lost[reason] += spans

    export = Export(send, lambda: None, dropped, "here", lambda: ended.append("ended"))
    export.offer(Record("1", "", "", None, "/", False))
    busy.wait()
    export.offer(Record("2", "", "", None, "/", False))
    export.close()
    assert ended == []  # its complaints are kept from the log until it has
    go.set()
    until(lambda: not threads(), "it has ended")
    assert ended == (["ended"] if late == "raises" else ["sent", "ended"])
    assert lost == {"shutdown": 4}
    assert [(line["event"], line["lost"]) for line in lines] == [("spans_lost", 4)]


def test_two_that_overlap_keep_complaints_to_themselves(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("opentelemetry")
    first, second = Complaints(), Complaints()
    logger.getChild("exporter.otlp.proto.grpc").error("one")
    first.close()
    first.close()
    logger.getChild("exporter.otlp.proto.grpc").error("two")
    assert (first.last, second.last) == ("one", "two")
    second.close()
    assert not caplog.records
    logger.error("three")
    assert [record.message for record in caplog.records] == ["three"]


# -- the collector's credentials ------------------------------------------------------------------

HEADERS = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("variable", HEADERS)
@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("Authorization: Bearer sk-PLANTED", 1),
        ("x-a=1,Authorization: Bearer sk-PLANTED,sk-PLANTED", 2),
        ("x key=sk-PLANTED", 1),
        ('authorization=Bearer "sk-PLANTED"', 1),
    ],
    ids=["colon", "some of them", "blank in the name", "quotes"],
)
def test_headers_that_cannot_be_read_are_told_without_their_values(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    lines: list[Any],
    protocol: Literal["grpc", "http"],
    variable: str,
    value: str,
    entries: int,
) -> None:
    collector = grpc_collector if protocol == "grpc" else http_collector
    with (
        environment(monkeypatch, **{variable: value}),
        collector() as (address, collected),
        traced(address, protocol) as it,
    ):
        it.serve()
        collected.until(2)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("otlp_headers_ignored", "warning")
    assert (line["variable"], line["entries"]) == (variable, entries)
    assert "name=value, percent-encoded" in line["cure"]
    assert not caplog.records
    assert "PLANTED" not in str(lines) + "".join(capfd.readouterr())


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("variable", HEADERS)
def test_a_header_that_cannot_be_sent_is_told_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    lines: list[Any],
    protocol: Literal["grpc", "http"],
    variable: str,
) -> None:
    """requests repeats it in its errors; gRPC has one line of its own, with the name alone."""
    collector = grpc_collector if protocol == "grpc" else http_collector
    with (
        environment(monkeypatch, **{variable: "authorization=Bearer%20sk-PLANTED%0Amore-PLANTED"}),
        collector() as (address, collected),
        traced(address, protocol) as it,
    ):
        it.serve()
        until(lambda: it.lost["export_failed"] == 2, "a failure")
        until(lambda: bool(lines), "a line of it")
    assert [line["event"] for line in lines] == ["spans_lost"]
    assert collected.asked == 0
    assert ("***" in lines[0]["error"]) == (protocol == "http")
    assert "PLANTED" not in str(lines) + "".join(capfd.readouterr())


def test_a_setting_that_the_exporter_ignores_is_told(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    with (
        environment(monkeypatch, OTEL_EXPORTER_OTLP_COMPRESSION="brotli-PLANTED"),
        http_collector() as (address, collected),
        traced(address, "http") as it,
    ):
        it.serve()
        collected.until(2)
    assert [line["event"] for line in lines] == ["otlp_setting_ignored"]
    assert lines[0]["complaint"] == "Unsupported compression type: %s"


def test_complaints_of_the_sdk_go_nowhere_else(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """They would be on standard error, each time, with text of clients in them."""
    with grpc_collector() as (address, collected), traced(address) as it:
        collected.fails = True
        it.tracer.begin("1", Asked("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "pl4nted secret", "m"))
        it.pool.apply(Arrive("1", "t", "interactive", 100.0, 10))
        it.pool.apply(End("1"))
        it.pool.apply(Usage("1", Source.USAGE, 1, 0, 1))
        until(lambda: it.lost["export_failed"] == 2, "a failure")
    out, err = capfd.readouterr()
    assert "pl4nted" not in out + err
    assert "Failed to export" not in err
    assert not caplog.records
    assert logging.getLogger("opentelemetry").propagate  # it is as it was


def test_a_record_that_no_span_can_be_made_of_does_not_take_others_with_it() -> None:
    with grpc_collector() as (address, collected), traced(address) as it:
        it.tracer._export.offer(Record("bad", "", "", None, "/", False, endpoint="no port"))
        it.serve(2)
        collected.until(4)
        assert it.lost == {"fault": 2}


# -- the thread -----------------------------------------------------------------------------------


def _sending(send: Callable[[Any], str | None]) -> tuple[Export, Counter[str]]:
    lost: Counter[str] = Counter()

    def dropped(reason: str, spans: int) -> None:
        lost[reason] += spans

    return Export(send, lambda: None, dropped, "here"), lost


def test_it_sends_batches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_export, "_FINISH_S", 60.0)
    sent: list[list[str]] = []
    go = threading.Event()

    def send(records: Any) -> None:
        go.wait()
        sent.append([record.id for record in records])

    export, lost = _sending(send)
    for number in range(150):
        export.offer(Record(str(number), "", "", None, "/", False))
    go.set()
    export.close()
    assert [name for batch in sent for name in batch] == [str(number) for number in range(150)]
    assert max(len(batch) for batch in sent) <= 64
    assert lost == {}
    export.offer(Record("late", "", "", None, "/", False))
    assert lost == {"shutdown": 2}


def test_a_fault_of_the_sdk_loses_a_batch_and_not_the_thread(lines: list[Any]) -> None:
    def send(records: Any) -> None:
        if records[0].id == "bad":
            raise KeyError("what")

    export, lost = _sending(send)
    export.offer(Record("bad", "", "", None, "/", False))
    until(lambda: lost["export_failed"] == 2, "it failed")
    export.offer(Record("good", "", "", None, "/", False))
    until(lambda: len(named(lines, "spans_exported_again")) == 1, "it goes on")
    export.close()
    assert named(lines, "spans_lost")[0]["error"] == "KeyError: 'what'"


def test_a_queue_that_runs_over_is_told_once(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    monkeypatch.setattr(traces_export, "_MOST_WAITING", 10)
    go = threading.Event()
    busy = threading.Event()

    def send(_: Any) -> None:
        busy.set()
        go.wait()

    export, lost = _sending(send)
    export.offer(Record("first", "", "", None, "/", False))
    busy.wait()
    for number in range(25):
        export.offer(Record(str(number), "", "", None, "/", False))
    assert lost == {"queue_full": 30}
    go.set()
    until(lambda: len(named(lines, "spans_exported_again")) == 1, "it has caught up")
    export.close()
    (line,) = named(lines, "spans_lost")
    assert line["error"] == "the collector takes them more slowly than they come"
    assert named(lines, "spans_exported_again")[0]["lost"] == 30


def test_one_that_fails_now_and_then_is_one_state(monkeypatch: pytest.MonkeyPatch, lines: list[Any]) -> None:
    monkeypatch.setattr(traces_export, "_CALM_S", 30.0)
    seen: list[str] = []

    def send(records: Any) -> str | None:
        seen.extend(record.id for record in records)
        return "no" if records[0].id.endswith(("1", "3", "5")) else None

    export, lost = _sending(send)
    for number in range(7):
        export.offer(Record(str(number), "", "", None, "/", False))
        until(lambda n=number: len(seen) == n + 1, "it is sent")
    export.close()
    assert lost == {"export_failed": 6}
    assert [line["event"] for line in lines] == ["spans_lost"]


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module", ["extproc.telemetry.traces", pytest.param("extproc.service", marks=pytest.mark.slow)]
)
def test_off_is_nothing_and_imports_nothing(module: str) -> None:
    assert Tracer.of(Traces(), "1", lambda _, __: None) is None
    code = f"""
import sys
import {module}
from extproc.config.telemetry import Traces
from extproc.telemetry.traces import Tracer
assert Tracer.of(Traces(sample=1.0), "1", print) is None
found = sorted(name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "requests"))
print(found)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "extproc.telemetry.traces_spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # an import of it fails
    with pytest.raises(TraceError, match=r"what it needs is not installed .*pip install '\.\[otel\]'"):
        Tracer.of(Traces(otlp="http://collector:4317"), "1", lambda _, __: None)


def test_an_exporter_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TraceError, match=r"pip install '\.\[otel\]'"):
        Tracer.of(Traces(otlp="http://collector:4318", protocol="http"), "1", lambda _, __: None)


@pytest.mark.parametrize(
    ("settings", "environ", "message"),
    [
        ({"otlp": "http://c:4317/v1/traces"}, {}, "has the path '/v1/traces', and gRPC has none"),
        ({"otlp": "http://c:4317"}, {"OTEL_EXPORTER_OTLP_COMPRESSION": "brotli"}, "begin with OTEL_"),
        ({"otlp": "http://c:4317"}, {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "begin with OTEL_"),
    ],
)
def test_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with environment(monkeypatch, **environ), pytest.raises(TraceError, match=message):
        Tracer.of(Traces(**settings), "1", lambda _, __: None)


def test_attributes_of_a_span_hold_in_the_standard_limits() -> None:
    """128 attributes and 128 events: 100 changes of what holds it fit."""
    with grpc_collector() as (address, collected), traced(address) as it:
        it.serve()
        collected.until(2)
        for span in collected.spans:
            assert span.dropped_attributes_count == span.dropped_events_count == 0
            assert len(attributes(span.attributes)) < 128
