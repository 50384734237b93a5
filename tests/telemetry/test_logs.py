"""Logs never hold what clients send: neither in what we say of a request, nor in the story of a fault. What clients may
call themselves does no harm there, and nor does a reader that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
import structlog
from aiohttp.http_exceptions import BadHttpMessage

from extproc.config.load import from_data
from extproc.edge import access_log as access_log_module
from extproc.edge import fault_lines as fault_lines_module
from extproc.edge import scheduler_driver as driver_module
from extproc.edge import stream as stream_module
from extproc.edge.access_log import AccessLog
from extproc.edge.driver import PoolDriver
from extproc.edge.facts import FACTS
from extproc.edge.gate import Gate
from extproc.edge.stream import ExternalProcessor
from extproc.edge.tracking import Tracking
from extproc.edge.usage import TICKET
from extproc.pb.wire.v1 import access_log_pb2, ext_proc_pb2
from extproc.telemetry import logs
from extproc.telemetry.logs import set_up
from extproc.telemetry.metrics import Metrics

SECRETS = ("sk-live-5f2e", "c00kie-77", "tell me about my illness", "jwt-eyJhbGci")


Out = Callable[[], str]


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Out]:
    """What has come on standard error. Loggers that keep their first configuration are replaced for the test."""
    for module in (stream_module, driver_module, access_log_module, fault_lines_module):
        monkeypatch.setattr(module, "log", structlog.get_logger())
    before = logging.getLogger().handlers[:]
    yield lambda: capsys.readouterr().err
    logging.getLogger().handlers[:] = before
    structlog.reset_defaults()


class Context:
    def __init__(self, message: bytes) -> None:
        self._reads = [message, grpc.aio.EOF]

    async def read(self) -> Any:
        return self._reads.pop(0)

    async def write(self, _: bytes) -> None: ...

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.9.0.1:5555"

    def done(self) -> bool:
        return False


def a_message() -> ext_proc_pb2.ProcessingRequest:
    key, cookie, prompt, token = SECRETS
    message = ext_proc_pb2.ProcessingRequest()
    secret = (("authorization", f"Bearer {key}"), ("cookie", cookie), ("x-prompt", prompt))
    for name, value in ((":method", "POST"), (":path", "/v1/completions"), *secret):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    message.metadata_context.filter_metadata[FACTS].update({"model": "m", "prompt": prompt})
    message.metadata_context.filter_metadata["envoy.filters.http.jwt_authn"].update({"raw": token})
    return message


async def one_request(fault: bool) -> None:
    pool = {"name": "sim", "models": ["m"], "endpoints": ["127.0.0.1:1"]}
    config = from_data({"pools": [pool]})
    metrics = Metrics("test")
    driver = PoolDriver(config.pool_policy(config.pools[0]), pool["endpoints"], asyncio.get_running_loop(), metrics)  # type: ignore[arg-type]
    gate = Gate(config, {"sim": driver}, metrics)
    tracking = Tracking(gate, metrics)
    processor = ExternalProcessor(gate, tracking, metrics)
    if fault:
        driver.scheduler.apply = None  # type: ignore[assignment, method-assign]
        driver.scrape_failed("127.0.0.1:1", refused=False)
    else:
        driver.scrape_failed("127.0.0.1:1", refused=False)
    await processor.process(None, Context(a_message().SerializeToString()))
    await processor.process(None, Context(a_message().SerializeToString() + b"\xff"))
    entry = access_log_pb2.HTTPAccessLogEntry()
    entry.request.request_headers.update({TICKET: f"{gate._process}-sim-1", "authorization": SECRETS[0]})
    log_message = access_log_pb2.StreamAccessLogsMessage()
    log_message.http_logs.log_entry.append(entry)

    async def messages() -> AsyncIterator[bytes]:
        yield log_message.SerializeToString()
        yield log_message.SerializeToString() + b"\xff"

    await AccessLog(gate, tracking, metrics).stream(messages(), None)
    driver.close()


@pytest.mark.parametrize("fault", [False, True], ids=["well", "fault"])
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
async def test_no_secret_is_logged(out: Out, as_json: bool, fault: bool) -> None:
    set_up("debug", json=as_json)
    await one_request(fault)
    logged = out()
    assert "stream_malformed" in logged  # of the message that was cut off
    assert "DecodeError" not in logged  # it is no fault of ours, and has no story
    assert ("scheduler_fault" in logged) == fault
    assert ("VerdictLostError" in logged or "TypeError" in logged) == fault
    assert ("scheduler_driver" in logged) == fault  # the story tells where
    for secret in SECRETS:
        assert secret not in logged


def test_json_is_one_object_a_line_with_level_and_time(out: Out) -> None:
    set_up("info", json=True)
    log = structlog.get_logger()
    log.debug("not this")
    log.info("this", count=1)
    with contextlib.suppress(ZeroDivisionError):
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            log.exception("that")
            raise
    first, second = (json.loads(line) for line in out().splitlines())
    assert (first["event"], first["level"], first["count"]) == ("this", "info", 1)
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("that", "error")
    assert second["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert second["exception"][0]["frames"][-1]["name"] == "test_json_is_one_object_a_line_with_level_and_time"


@pytest.mark.parametrize(("level", "lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(out: Out, level: str, lines: int) -> None:
    set_up(level, json=True)
    log = structlog.get_logger()
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("x")
    assert len(out().splitlines()) == lines


def test_lines_for_people_have_no_colours_where_there_is_no_terminal(out: Out) -> None:
    set_up("info", json=False)
    structlog.get_logger().info("this", count=1)
    logged = out()
    assert "this" in logged
    assert "\x1b" not in logged


# -- what clients may call themselves ---------------------------------------------------------------

NASTY = {
    "line": 'a\n{"event": "forged", "level": "error"}',
    "line_for_people": "a\n2026-01-01T00:00:00Z [error    ] forged",
    "other_line_ends": "a\r\x0b\x0c\x1c\x85\u2028\u2029forged",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b31m",
    "direction": "\u202egnp.exe",
    "quotes": "'\"\\ tenant=b",
    "surrogate": "\ud800 and \udfff",
    "emoji": "\U0001f600",
    "zero": "\x00\x08\x7f",
    "long": "n" * 10_000,
}


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY.keys())
@pytest.mark.parametrize("where", ["value", "inside", "event", "exception"])
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
def test_no_name_forges_a_line_or_drives_the_terminal(out: Out, as_json: bool, where: str, name: str) -> None:
    set_up("info", json=as_json)
    log = structlog.get_logger()
    if where == "value":
        log.info("this", tenant=name)
    elif where == "inside":
        log.info("this", tenants={name: [name, {"deep": (name,)}]})
    elif where == "event":
        log.info(name)
    else:
        try:
            raise ValueError(name)
        except ValueError:
            log.exception("that")
    logged = out()
    assert logged.endswith("\n")
    lines = logged[:-1].split("\n")
    assert all(line.isprintable() for line in lines)
    logged.encode()  # no lone surrogate
    if as_json:
        (line,) = lines
        fields = orjson.loads(line)  # strict: refuses lone surrogates
        assert fields["event"] in ("this", "that") or where == "event"
        if where == "value" and "\ud800" not in name:
            assert fields["tenant"] == name
    elif where == "exception":
        assert all(line.startswith("  ") for line in lines[1:])
        assert sum(name[:1] == line[:1] for line in lines) <= 1
    else:
        assert len(lines) == 1


def test_a_surrogate_is_written_out(out: Out) -> None:
    for as_json in (True, False):
        set_up("info", json=as_json)
        structlog.get_logger().info("this", tenant="a\ud800b")
        logged = out()
        assert ("a\\\\ud800b" if as_json else "a\\ud800b") in logged


def test_a_value_with_an_equals_sign_is_quoted_for_people(out: Out) -> None:
    set_up("info", json=False)
    structlog.get_logger().info("this", tenant="a outcome=released")
    assert "tenant='a outcome=released'" in out()


# -- libraries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
def test_what_libraries_say_comes_the_same_way(out: Out, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own do not bear a format that does not fit
    set_up("debug", json=as_json)
    set_up("debug", json=as_json)  # again: still one line each
    library = logging.getLogger("some.library")
    library.info("what a client sent: %s", SECRETS[0])
    library.warning("odd: %s", "a\n\x1b[31mb")
    library.warning("does not fit: %s %s", 1)
    try:
        raise ValueError("cause")
    except ValueError:
        library.exception("failed")
    logged = out()
    assert SECRETS[0] not in logged
    assert "\x1b" not in logged
    if not as_json:
        assert [line.split("] ")[1].split("  ")[0] for line in logged.splitlines() if line[:1] != " "] == [
            "odd: a\\n\\x1b[31mb",
            "does not fit: %s %s",
            "failed",
        ]
        return
    first, second, third = (json.loads(line) for line in logged.splitlines())
    assert (first["event"], first["level"], first["logger"]) == ("odd: a\n\x1b[31mb", "warning", "some.library")
    assert second["event"] == "does not fit: %s %s"
    assert (third["level"], third["exception"][0]["exc_value"]) == ("error", "cause")


def handler_of(clock: Callable[[], float]) -> logs._OfLibraries:
    return logs._OfLibraries(clock)


def a_record(name: str, text: str, *values: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.ERROR, "", 0, text, values, exc_info)


def test_a_library_has_so_many_lines(out: Out) -> None:
    """Ten in a row, then one a second; and what was left out is counted."""
    set_up("info", json=True)
    now = [100.0]
    handler = handler_of(lambda: now[0])

    def told() -> list[tuple[str, str, int | None]]:
        found = [json.loads(line) for line in out().splitlines()]
        return [(line["event"], line["logger"], line.get("lines")) for line in found]

    for number in range(25):
        handler.handle(a_record("noisy.part", f"line {number}"))
    assert told() == [(f"line {number}", "noisy.part", None) for number in range(10)]
    handler.handle(a_record("other", "of another"))
    assert told() == [("of another", "other", None)]
    now[0] += 0.5
    handler.handle(a_record("noisy.second", "too early"))
    assert told() == []
    now[0] += 0.5
    handler.handle(a_record("noisy", "line 26"))
    handler.handle(a_record("noisy", "line 27"))
    assert told() == [("library_lines_left_out", "noisy", 16), ("line 26", "noisy", None)]
    now[0] += 3_600.0
    for number in range(12):
        handler.handle(a_record("noisy", f"line {number}"))
    expected = [("library_lines_left_out", "noisy", 1)] + [(f"line {number}", "noisy", None) for number in range(10)]
    assert told() == expected
    handler.close()
    handler.close()
    assert told() == [("library_lines_left_out", "noisy", 2)]


def test_many_names_of_libraries_are_no_way_around(out: Out) -> None:
    set_up("info", json=True)
    handler = handler_of(lambda: 100.0)
    for number in range(500):
        handler.handle(a_record(f"library{number}", "line"))
    assert len(out().splitlines()) == 100 + 10


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
def test_a_server_does_not_repeat_what_it_was_sent(out: Out, as_json: bool) -> None:
    """Neither in its text nor in an exception, nor in one that has it as a cause; kind and place are told."""
    set_up("info", json=as_json)
    handler = handler_of(lambda: 100.0)
    secret = SECRETS[0]
    try:
        raise BadHttpMessage(f"Authorization: {secret}")
    except BadHttpMessage as error:
        bad = error
    try:
        try:
            raise bad
        except BadHttpMessage as error:
            raise RuntimeError(f"because of {secret}") from error
    except RuntimeError as error:
        worse = error
    handler.handle(a_record("aiohttp.server", "Error handling request from %s", secret, error=bad))
    handler.handle(a_record("aiohttp.web", "cookie %r is odd", secret))
    handler.handle(a_record("aiohttp.server", "Unhandled", error=ValueError(secret)))
    handler.handle(a_record("asyncio", f"Task exception was never retrieved\nfuture: {secret}", error=bad))
    handler.handle(a_record("asyncio", f"Unhandled exception\n{secret}", error=worse))
    logged = out()
    assert secret not in logged
    assert "Error handling request from %s" in logged
    assert "cookie %r is odd" in logged
    assert "BadHttpMessage" in logged
    assert "test_logs.py:" in logged
    assert len(logged.splitlines()) == 5


# -- nobody reads -----------------------------------------------------------------------------------

WRITES = """
import os, resource, sys
import structlog
from extproc.telemetry.logs import set_up
set_up("info", json={json})
log = structlog.get_logger()
sys.stdin.readline()  # until the reader has gone
for number in range(6_000):
    log.info("this", number=number, tenant="t" * 100)
    try:
        1 / 0
    except ZeroDivisionError:
        if number % 500 == 0:
            log.exception("that")
    if number == 1_000:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
os.fstat(2)  # something is there: nothing that is opened later has this number
print("went on", "and grew" if grown > 2_000 else "")
"""


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
@pytest.mark.parametrize("stderr", ["reader gone", "closed", "full"])
def test_it_goes_on_when_nobody_reads(stderr: str, as_json: bool) -> None:
    """The reader of a pipe has ended; there was no standard error from the start; the disk is full."""
    command = [sys.executable, "-c", WRITES.format(json=as_json)]
    if stderr == "closed":
        command = ["sh", "-c", 'exec "$0" "$@" 2>&-', *command]
    read_end, write_end = os.pipe()
    with Path("/dev/full").open("wb") as full:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=full if stderr == "full" else write_end,
            text=True,
        )
    os.close(write_end)
    os.close(read_end)
    try:
        told, _ = child.communicate("go\n", timeout=60)
    finally:
        child.kill()
        child.wait()
    assert told.strip() == "went on"
    assert child.returncode == 0


def test_a_terminal_that_has_no_such_letters() -> None:
    code = 'import structlog; from extproc.telemetry.logs import set_up; set_up("info", json=False)\n'
    code += 'structlog.get_logger().info("this", tenant="\\u00e9\\U0001f600\\ud800")'
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"tenant=\\xe9\\U0001f600\\ud800" in done.stderr
