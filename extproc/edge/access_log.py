"""The handler of `StreamAccessLogs`: each entry trues up one request's cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import DecodeError

from extproc.edge import usage
from extproc.edge.gate import Gate
from extproc.edge.lenient import log_entries
from extproc.edge.recorder import Recorder
from extproc.edge.request_ids import AMBIGUOUS
from extproc.edge.tracking import Tracking
from extproc.pb.wire.v1 import access_log_pb2


class AccessLog:
    """Envoy keeps one stream per worker open for ever; it ends when Envoy or this process does."""

    def __init__(self, gate: Gate, tracking: Tracking, recorder: Recorder) -> None:
        self._gate = gate
        self._tracking = tracking
        self._recorder = recorder

    async def stream(self, messages: AsyncIterator[bytes], _: Any) -> bytes:
        async for raw in messages:
            try:
                entries = log_entries(raw)
            except DecodeError:
                self._recorder.access_log("malformed")
                continue
            for entry in entries:
                self._entry(entry)
        return access_log_pb2.StreamAccessLogsResponse().SerializeToString()

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
        said = usage.read(entry, ticket)
        if said.unedited is not None:
            self._recorder.body_edit(said.unedited)
        if said.unreachable is not None:
            driver.unreachable(said.unreachable)
        driver.usage(said.usage)
        self._tracking.over(ticket)
