"""What a running service says, asked for in two threads of their own.

One follows WatchStats, and connects again when it ends. The other asks, each time that figures have come, for the
status, for the flows that are shown, and for the explanation of the chosen one: one call for each. It asks at once when
the keys choose something else. What it has found is one `Figures`, so a picture mixes no moments further apart than
these calls.

A stream that is silent says nothing of whether the service hangs: when nothing has come for a while, the second thread
asks for the status, which has a deadline, and closes the connection when that has passed.

A connection that was there for a while is tried again at once; then after 0.5 s, twice as long each time, 10 s at most.
It is lost when the first of these has failed: a service that wants certificates ends connections that are old, and that
is no fault.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from extproc.cli.ctl.connection import Connection
from extproc.cli.ctl.failure import Exit, Failure
from extproc.cli.top.figures import Figures, FlowKey, Lost, Told, key_of
from extproc.pb.admin.v1 import admin_pb2 as pb

MOST_FLOWS: Final = 10_000  # that the service gives
_SILENT_S: Final = 5.0
_AGED_S: Final = 5.0  # a connection that has been there so long is tried again at once
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 10.0


@dataclass(frozen=True)
class Wanted:
    """Flows, by the API's `order_by`, and the one whose next request is explained."""

    pool: str = ""
    order_by: str = "queued_count desc"
    top: int = 50
    explained: FlowKey | None = None


def first(connection: Connection, watched: pb.WatchStatsRequest, wanted: Wanted) -> Figures:
    """One picture's worth. Raises Failure."""
    answers: Iterator[pb.Stats] = connection.stream("WatchStats", watched)
    with closing(answers):  # type: ignore[type-var]  # it is a generator
        stats = next(answers, pb.Stats())
    return _figures(connection, stats, wanted)


def _figures(connection: Connection, stats: pb.Stats, wanted: Wanted) -> Figures:
    status = connection.call("GetStatus", pb.GetStatusRequest())
    asked = pb.ListFlowsRequest(pool=wanted.pool, top_k=wanted.top, order_by=wanted.order_by)
    listed = _listed(connection, asked)
    return Figures(_shown(stats), status, listed.flows, listed.total_count, time.monotonic())


def _shown(stats: pb.Stats) -> pb.Stats:
    """Of a pool that only observes, what would be: nothing waits in it. Its mode says which it is."""
    shown = pb.Stats(time=stats.time, revision=stats.revision)
    for pool in stats.pools:
        if not pool.HasField("observed"):
            shown.pools.append(pool)
            continue
        would_be = shown.pools.add()
        would_be.CopyFrom(pool.observed)
        would_be.observed_count, would_be.leaked_slots = pool.observed_count, pool.leaked_slots
    return shown


def _listed(connection: Connection, asked: pb.ListFlowsRequest) -> Any:
    """Of a pool that is no longer there: nothing."""
    try:
        return connection.call("ListFlows", asked)
    except Failure as failure:
        if failure.exit_code != Exit.REFUSED:
            raise
        return pb.ListFlowsResponse()


class Feed:
    """Runs from `start` to `close`. `wake` is called, in a thread of the feed, when there is something new."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        watched: pb.WatchStatsRequest,
        wanted: Wanted,
        figures: Figures,
        wake: Callable[[], None],
    ) -> None:
        """`connect` is called for each connection, so that files of tokens and certificates are read anew."""
        self._connect = connect
        self._watched = watched
        self._wake = wake
        self._changed = threading.Condition()
        self._wanted = wanted
        self._figures = figures
        self._stats: pb.Stats | None = None  # that has come, and for which the rest is not asked yet
        self._asked = True  # for what is wanted
        self._connection: Connection | None = None
        self._lost: Lost | None = None
        self._told: Told | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"top: {name}", daemon=True)
            for name, work in (("watch", self._watch), ("ask", self._ask))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends calls that are under way; what hangs in spite of it ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            connection = self._connection
        if connection is not None:
            connection.close()
        for thread in self._threads:
            thread.join(2.0)

    def seen(self) -> tuple[Figures, Lost | None, Told | None]:
        """The newest. Raises what no new try would mend: Failure."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return self._figures, self._lost, self._told

    def want(self, wanted: Wanted) -> None:
        """Asked for at once where it is something else than before."""
        with self._changed:
            if wanted != self._wanted:
                self._wanted = wanted
                self._asked = False
                self._changed.notify_all()

    # -- the first thread -------------------------------------------------------------------------

    def _watch(self) -> None:
        tries = 0
        while not self._closed:
            words, opened = "the service ended the stream", time.monotonic()
            try:
                connection = self._connect()
                with closing(connection):
                    if not self._joined(connection):
                        return
                    for stats in connection.stream("WatchStats", self._watched):
                        self._came(stats)
            except Failure as failure:
                if failure.exit_code == Exit.NOT_ALLOWED:
                    raise
                words = " ".join((failure.message, *failure.details))
            except click.UsageError as error:  # a file of the options is away or empty
                words = error.format_message()
            if time.monotonic() - opened >= _AGED_S:
                tries = 0
            self._parted(words, 0.0 if tries == 0 else min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (tries - 1)))
            tries += 1

    def _joined(self, connection: Connection) -> bool:
        with self._changed:
            self._connection = connection
            return not self._closed

    def _came(self, stats: pb.Stats) -> None:
        with self._changed:
            self._stats = stats
            self._changed.notify_all()

    def _parted(self, words: str, delay_s: float) -> None:
        """Wait until the next try. Without a delay nothing is said yet."""
        now = time.monotonic()
        with self._changed:
            self._connection = None
            if self._closed:
                return
            if not delay_s:
                return
            lost = self._lost or Lost(now, f"{datetime.datetime.now():%H:%M:%S}", words)
            self._lost = replace(lost, words=words, again_at=now + delay_s)
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: self._closed, delay_s)
            if self._lost is not None:
                self._lost = replace(self._lost, again_at=None)

    # -- the second thread ------------------------------------------------------------------------

    def _ask(self) -> None:
        interval_s = self._watched.interval.ToNanoseconds() / 1e9
        while True:
            with self._changed:
                due = self._changed.wait_for(
                    lambda: self._closed or self._stats is not None or not self._asked, max(_SILENT_S, 3 * interval_s)
                )
                if self._closed:
                    return
                stats, self._stats = self._stats, None
                wanted, self._asked = self._wanted, True
                connection = self._connection
            if connection is None:
                continue
            try:
                if due:
                    self._take(connection, stats, wanted)
                else:
                    connection.call("GetStatus", pb.GetStatusRequest())
            except Failure as failure:
                if failure.exit_code == Exit.NOT_ALLOWED:
                    raise
                connection.close()  # then the stream ends as well
            except ValueError:  # gRPC's, of a channel that was closed meanwhile
                continue

    def _take(self, connection: Connection, stats: pb.Stats | None, wanted: Wanted) -> None:
        figures = _figures(connection, stats if stats is not None else self._figures.stats, wanted)
        if stats is None:
            figures = replace(figures, taken_at=self._figures.taken_at)
        told = None if wanted.explained is None else _explained(connection, figures, wanted.explained)
        with self._changed:
            self._figures, self._told = figures, told
            if stats is not None:
                self._lost = None
        self._wake()

    def _guarded(self, work: Callable[[], None]) -> None:
        """What ends a thread ends the command, and not unseen."""
        try:
            work()
        except Exception as error:
            with self._changed:
                if self._closed:  # calls of a connection that was closed beneath them
                    return
                self._failure = error
            self._wake()


def _explained(connection: Connection, figures: Figures, key: FlowKey) -> Told:
    flow = next((flow for flow in figures.flows if key_of(flow) == key), None)
    if flow is None:
        return Told(key, words="It is not among the flows that are shown: it has gone, or others come before it.")
    if not flow.next_request_id:
        return Told(key, words="Nothing of it waits.")
    try:
        found = connection.call("ExplainRequest", pb.ExplainRequestRequest(id=flow.next_request_id))
    except Failure as failure:
        if failure.exit_code != Exit.REFUSED:
            raise
        return Told(key, words="Its next request has just gone.")
    return Told(key, found)
