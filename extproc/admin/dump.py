"""All state, for a support case, in portions that fit into a message each and do not hold the loop.

    status     as GetStatus has it
    config     what is in force, by its parts; `overlay` and `file` beside it
    pool       of each pool, and of what it observes: its books, its classes, and what is odd
    endpoints  of each pool: its windows with all their figures, and what is known of the engines
    flows      of each pool: the longest first
    requests   of each pool, in the order in which they reached this process
    revisions  the last of them, each with its first changes

Contents are those of the dataclasses, so that a field that is added is there. A number that is none (inf, nan) is a
text. The sections are each as of their own moment: what comes and goes while they are written may be in one of them
and not in another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format, struct_pb2

from extproc.admin import flows
from extproc.admin.control import Control, RunningPool
from extproc.admin.portions import Portions, Work
from extproc.admin.records import Revision, changes_to_plain
from extproc.admin.values import struct_of, value_of
from extproc.config.overlay import Overlay
from extproc.config.written import written
from extproc.core.plain import to_plain
from extproc.core.scheduler import Scheduler
from extproc.core.view import request_view, view
from extproc.pb.admin.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from extproc.admin.revisions import Revisions

ROWS_AT_ONCE: Final = 500  # in a message
_MOST_BYTES: Final = 512 * 1024  # of a message, but for its last row
_NAMES_AT_ONCE: Final = 100  # of a mapping of the configuration
_MOST_FLOWS: Final = 10_000
_REVISIONS: Final = 100
_REVISIONS_AT_ONCE: Final = 5  # each comes with all of its changes
_MOST_CHANGES: Final = 50  # of a revision; DiffRevisions tells all
_LARGEST: Final = 64 * 1024  # bytes, of all of those together


class Dump:
    """One dump."""

    def __init__(self, control: Control, revisions: Revisions, portions: Portions) -> None:
        self._control = control
        self._revisions = revisions
        self._portions = portions
        self._work = Work(portions)

    async def portions(self, status: pb.Status, request_limit: int) -> AsyncIterator[pb.DumpStateResponse]:
        """`request_limit`: requests of each pool, and of what it observes."""
        await self._work.next()
        yield _section("status", json_format.MessageToDict(status, preserving_proto_field_name=True))
        for part in self._config(await asyncio.to_thread(written, self._revisions.config)):
            await self._work.next()
            yield _section("config", part)
        async for portion in self._overlay():
            yield portion
        for running in list(self._control.running()):
            for observed, scheduler in ((False, running.scheduler), (True, running.observed)):
                if scheduler is None:
                    continue
                named = {"pool": running.pool.name, "observed": observed}
                await self._pause()
                yield _section("pool", {**named, **self._pool(running, scheduler)})
                yield _section("endpoints", {**named, "endpoints": self._endpoints(running, scheduler)})
                async for portion in self._flows(replace(running, scheduler=scheduler), named):
                    yield portion
                async for portion in self._requests(running, scheduler, named, request_limit):
                    yield portion
        async for portion in self._history():
            yield portion

    def _config(self, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        file = self._revisions.file
        yield {"file": {"path": str(file.path or ""), "sha256": file.sha256, "loaded_at": file.loaded_at}}
        for key, value in config.items():
            if not isinstance(value, Mapping) or len(value) <= _NAMES_AT_ONCE:
                yield {key: value}
                continue
            names = list(value)
            for first in range(0, len(names), _NAMES_AT_ONCE):
                yield {key: {name: value[name] for name in names[first : first + _NAMES_AT_ONCE]}}

    async def _overlay(self) -> AsyncIterator[pb.DumpStateResponse]:
        rows = _Rows("config", "overlay", {})
        for setting in self._revisions.overlay.settings:
            await self._pause()
            if rows.full:
                yield rows.response
                rows = _Rows("config", "overlay", {})
            rows.add(Overlay((setting,)).to_plain()[0])
        yield rows.response

    def _pool(self, running: RunningPool, scheduler: Scheduler) -> dict[str, Any]:
        plain = to_plain(view(scheduler, running.now()))
        del plain["pool"], plain["endpoints"]
        policy = to_plain(replace(scheduler.policy, tenants={}))  # those are in the configuration
        return {
            **plain,
            "retiring": running.retiring,
            "odd": dict(scheduler.counts),
            "next_deadline": scheduler.next_deadline(),
            "now": running.now(),
            "policy": policy,
        }

    def _endpoints(self, running: RunningPool, scheduler: Scheduler) -> list[dict[str, Any]]:
        name, now = running.pool.name, running.now()
        engines = {each.endpoint: each for each in self._control.engines() if each.pool == name}
        found = []
        for window in scheduler.windows.values():
            engine = engines.get(window.endpoint)
            known = {} if engine is None else {"engine": to_plain(engine)}
            found.append({**to_plain(window.view(now)), "removed": window.removed, **known})
        return found

    async def _flows(self, running: RunningPool, named: Mapping[str, Any]) -> AsyncIterator[pb.DumpStateResponse]:
        found, _ = await flows.first([running], _MOST_FLOWS, flows.order_of(""), self._portions)
        await self._work.next()
        rows = _Rows("flows", "flows", named)
        for flow in found:
            await self._pause()
            rows.add(flow._asdict())
            if rows.full:
                yield rows.response
                rows = _Rows("flows", "flows", named)
        if len(rows):
            yield rows.response

    async def _requests(
        self, running: RunningPool, scheduler: Scheduler, named: Mapping[str, Any], limit: int
    ) -> AsyncIterator[pb.DumpStateResponse]:
        rows = _Rows("requests", "requests", named)
        for request in list(islice(scheduler.requests.values(), limit)):
            await self._pause()
            if scheduler.requests.get(request.id) is not request:
                continue  # it has ended since
            plain = to_plain(request_view(request, running.now()))
            rows.add({**plain, "priority": request.priority})
            if rows.full:
                yield rows.response
                rows = _Rows("requests", "requests", named)
        if len(rows):
            yield rows.response

    async def _history(self) -> AsyncIterator[pb.DumpStateResponse]:
        rows = _Rows("revisions", "revisions", {})
        before: int | None = None
        for _ in range(_REVISIONS // _REVISIONS_AT_ONCE):
            found = await self._revisions.list_revisions(before, _REVISIONS_AT_ONCE)
            await self._work.next()
            for each in found:
                if rows.full:
                    yield rows.response
                    rows = _Rows("revisions", "revisions", {})
                rows.append(await self._revision(each))
                before = each.number
            if len(found) < _REVISIONS_AT_ONCE:
                break
        yield rows.response

    async def _revision(self, kept: Revision) -> struct_pb2.Value:
        row = value_of(
            {
                "revision": kept.number,
                "created_at": kept.created_at,
                "kind": kept.kind.value,
                "who": kept.who,
                "reason": kept.reason,
                "expires_at": kept.expires_at,
                "rolled_back_to": kept.rolled_back_to,
                "file_sha256": kept.file_sha256,
                "version": kept.version,
                "changes": [],
                "change_count": len(kept.changes),
            }
        )
        changes, left = row.struct_value.fields["changes"].list_value.values, _LARGEST
        for change in kept.changes[:_MOST_CHANGES]:
            await self._pause()
            (plain,) = changes_to_plain((change,))
            value = value_of(plain)
            left -= value.ByteSize()
            if left < 0:
                break
            changes.append(value)
        return row

    async def _pause(self) -> None:
        if self._work.over:
            await self._work.next()


class _Rows:
    """A message of many, made one by one: all at once would hold the loop."""

    def __init__(self, section: str, key: str, named: Mapping[str, Any]) -> None:
        """`named`: what stands beside the rows, which are under `key`."""
        self.response = _section(section, named)
        listed = self.response.content.fields[key].list_value
        listed.SetInParent()
        self._rows = listed.values
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self) >= ROWS_AT_ONCE or self._bytes >= _MOST_BYTES

    def add(self, plain: Mapping[str, Any]) -> None:
        self.append(value_of(plain))

    def append(self, row: struct_pb2.Value) -> None:
        self._bytes += row.ByteSize()
        self._rows.append(row)


def _section(name: str, content: Mapping[str, Any]) -> pb.DumpStateResponse:
    return pb.DumpStateResponse(section=name, content=struct_of(content))
