"""The handler of `StreamAccessLogs`: each entry trues up one request's cost, and tells of the endpoint it went to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from extproc.core.model import Pick
from extproc.edge import usage
from extproc.edge.gate import Gate
from extproc.edge.lenient import log_entries
from extproc.edge.recorder import Journal, Recorder
from extproc.edge.request_ids import AMBIGUOUS
from extproc.edge.scheduler_driver import SchedulerDriver
from extproc.edge.tracking import Tracking
from extproc.pb.wire.v1 import access_log_pb2

log = structlog.get_logger()

_WARN_EACH_S = 60.0
_MOST_STREAMS = 20_000  # one for each worker of each Envoy


class AccessLog:
    """Envoy keeps one stream per worker open for ever; it ends when Envoy or this process does."""

    def __init__(self, gate: Gate, tracking: Tracking, recorder: Recorder, journal: Journal | None = None) -> None:
        self._gate = gate
        self._tracking = tracking
        self._recorder = recorder
        self._journal = journal
        self._warned_at = float("-inf")
        self.open = 0  # streams

    async def stream(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        if self.open >= _MOST_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_STREAMS} streams of access logs are open")
        self.open += 1
        try:
            async for raw in messages:
                self._message(raw)
        finally:
            self.open -= 1
        return access_log_pb2.StreamAccessLogsResponse().SerializeToString()

    def _message(self, raw: bytes) -> None:
        try:
            entries = log_entries(raw)
        except DecodeError:
            self._recorder.access_log("malformed")
            return
        for entry in entries:
            self._entry(entry)

    def _entry(self, entry: access_log_pb2.HTTPAccessLogEntry) -> None:
        matched, ticket = "matched", usage.ticket_of(entry)
        if ticket is None:
            # A log without the ticket's header; else a route that is not queued, or a request that was never released.
            matched, ticket = "matched_by_id", self._gate.request_ids.ticket(entry.request.request_id)
        if ticket is None:
            self._recorder.access_log("no_ticket")
            return
        if ticket == AMBIGUOUS:
            self._recorder.access_log("ambiguous")
            return
        if entry.common_properties.intermediate_log_entry:
            self._recorder.access_log("intermediate")  # the request goes on: its usage is not final
            return
        driver = self._gate.owner(ticket)
        if driver is None:
            self._recorder.access_log("other_process")
            return
        self._recorder.access_log(matched)
        named = _named(driver, ticket)
        said = usage.read(entry, ticket, named)
        if said.unedited is not None:
            self._recorder.body_edit(said.unedited)
        if said.ignored is not None:
            self._ignored(driver, named, said.ignored)
        for fault in said.faults:
            driver.endpoint_fault(fault)
        if self._journal is not None and self._journal.followed(ticket):
            self._first_byte(ticket, entry.common_properties)
        driver.usage(said.usage)
        self._tracking.over(ticket)

    def _first_byte(self, ticket: str, seen: access_log_pb2.AccessLogCommon) -> None:
        """Envoy counts from the request's first byte, which is when it arrived."""
        if self._journal is not None and seen.HasField("time_to_first_upstream_rx_byte"):
            after = seen.time_to_first_upstream_rx_byte
            self._journal.first_byte(ticket, after.seconds + after.nanos / 1e9)

    def _ignored(self, driver: SchedulerDriver, named: str | None, used: str) -> None:
        """Envoy sent a request to `used` in place of `named`."""
        self._recorder.choice_ignored(driver.name)
        now = driver.now()
        if now - self._warned_at >= _WARN_EACH_S:
            self._warned_at = now
            log.warning(
                "choice_ignored",
                pool=driver.name,
                chosen=named,
                used=used,
                cure="Envoy's cluster must list the chosen address and use override_host with the metadata "
                "fairlane.endpoint; or set pick: {by: envoy} for the pool",
            )


def _named(driver: SchedulerDriver, ticket: str) -> str | None:
    """The endpoint that Envoy was told; None: none, or it is not known any more."""
    scheduler = driver.scheduler
    request = scheduler.requests.get(ticket)
    return None if request is None or scheduler.policy.pick.by is Pick.ENVOY else request.endpoint
