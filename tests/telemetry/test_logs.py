"""Logs never hold what clients send: neither in what we say of a request, nor in the story of a fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
import structlog

from extproc.config.load import from_data
from extproc.edge import access_log as access_log_module
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
from extproc.telemetry.logs import set_up
from extproc.telemetry.metrics import Metrics

SECRETS = ("sk-live-5f2e", "c00kie-77", "tell me about my illness", "jwt-eyJhbGci")


Out = Callable[[], str]


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Out]:
    """What has come on standard error. Loggers that keep their first configuration are replaced for the test."""
    for module in (stream_module, driver_module, access_log_module):
        monkeypatch.setattr(module, "log", structlog.get_logger())
    yield lambda: capsys.readouterr().err
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
    assert "stream_fault" in logged  # of the message that was cut off
    assert ("scheduler_fault" in logged) == fault
    assert "DecodeError" in logged
    assert "process" in logged  # the story tells where
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
