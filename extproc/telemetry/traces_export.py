"""Takes records of requests that are over from the event loop to a thread, which makes spans of them and sends them.

The event loop appends to a list and goes on; it never waits for anything here. Up to `_MOST_WAITING` records wait for
the thread, which a collector can hold up for as long as it likes; what comes then is dropped and counted. The thread
sleeps while nothing comes. It takes small batches: making spans is Python, and while it is at that the event loop gets
its turn only every few milliseconds.

The SDK's own `BatchSpanProcessor` does something like it, and is left out on purpose: it takes spans, which would have
to be made on the event loop; it tells nobody how many it lost, neither over a full queue nor over a failed export; its
`shutdown` may take 30 s and cannot be told otherwise; it wakes up every 5 s for nothing. Its exporters, which have all
that is hard (retries, TLS, headers, compression, the standard environment variables), are used.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from extproc.telemetry.traces_record import Record

log = structlog.get_logger()

SPANS = 2  # of each record
_MOST_WAITING = 2_048  # records
_BATCH = 64  # records that are sent at once
_FLUSH_S = 1.0  # a record waits no longer for others
_CALM_S = 30.0  # without a loss, until it is said that all is well: a collector at its limit loses some each second
_FINISH_S = 2.0  # that the thread may take for what is there, at the end
_MOST_ERROR = 300  # characters
_LEAVE_S = 0.5  # and then to notice that its exporter is gone


def _nothing() -> None:
    """Nobody wants to know."""


class Export:
    """`offer` and `close` are called from one thread."""

    def __init__(
        self,
        send: Callable[[Sequence[Record]], str | None],
        shutdown: Callable[[], None],
        dropped: Callable[[str, int], None],
        collector: str,
        ended: Callable[[], None] = _nothing,
    ) -> None:
        """`send` exports spans of the records and returns what went wrong; None: nothing did. It may take long, unless
        `shutdown` is called meanwhile. `dropped(reason, spans)`: so many are lost; called from either thread.
        `ended` is called once, after `close`, from either thread, when `send` is not under way any more: the collector
        may hold it up for longer than `close` waits. Starts the thread."""
        self._send = send
        self._shutdown = shutdown
        self._dropped = dropped
        self._collector = collector
        self._ended = ended
        self._waiting: deque[Record] = deque()
        self._something = threading.Event()
        self._hurry = threading.Event()
        self._closing = False  # what is there is sent still
        self._gone = False  # nothing is, any more
        self._overflowed = 0  # records that found no room, ever
        self._noted = 0  # of them, by the thread
        self._losing = False
        self._lost = 0  # spans, since that began
        self._lost_at = 0.0
        self._lock = threading.Lock()  # over what follows, and over what is taken from those that wait
        self._under_way = 0  # records that are being sent
        self._lost_at_end = 0  # spans, noted since `close` was called
        self._last_error = ""
        self._over = 0  # of the thread and `close`
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def offer(self, record: Record) -> None:
        """Never waits, never raises."""
        if self._closing:
            self._dropped("shutdown", SPANS)
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._overflowed += 1
            self._dropped("queue_full", SPANS)
            return
        self._waiting.append(record)
        if not self._something.is_set():
            self._something.set()
        if len(self._waiting) >= _BATCH and not self._hurry.is_set():
            self._hurry.set()

    def close(self, given_up: int = 0) -> None:
        """Send what is there, for so long as that may take (2.5 s), and end. Blocks. What is lost meanwhile, or was and
        has not been told yet, is told, with `given_up` spans that were never offered."""
        self._closing = True
        self._hurry.set()
        self._something.set()
        self._thread.join(_FINISH_S)
        self._gone = True
        self._shutdown()
        self._thread.join(_LEAVE_S)
        with self._lock:
            left = SPANS * (len(self._waiting) + self._under_way)
            self._waiting.clear()
            self._under_way = 0
            lost = self._lost_at_end + left + given_up + SPANS * (self._overflowed - self._noted)
        if left:
            self._dropped("shutdown", left)
        if lost:
            why = "their requests were under way" if lost == given_up else "the collector had not taken them"
            log.warning(
                "spans_lost",
                collector=self._collector,
                lost=lost,
                error=self._last_error or f"{why} when the service ended",
                cure="none: these are lost with the end of the service; see that the collector runs and keeps up",
            )
        self._end()

    def _end(self) -> None:
        """Of the thread and `close`; the second one tells."""
        with self._lock:
            self._over += 1
            last = self._over == 2
        if last:
            self._ended()

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._send_all()
        finally:
            self._end()

    def _send_all(self) -> None:
        while not self._gone:
            self._something.wait()
            self._hurry.wait(_FLUSH_S)
            self._something.clear()  # before the records are taken: one that comes now sets it again
            if not self._closing:
                self._hurry.clear()
            left = len(self._waiting)  # what comes from now on may wait for others
            while left > 0 and not self._gone:
                batch = self._taken()
                if batch:
                    self._export(batch)
                left -= len(batch)
            if self._closing and not self._waiting:
                return

    def _taken(self) -> list[Record]:
        batch: list[Record] = []
        with self._lock:
            while self._waiting and len(batch) < _BATCH and not self._gone:
                batch.append(self._waiting.popleft())
            self._under_way = len(batch)
        return batch

    def _export(self, batch: list[Record]) -> None:
        try:
            error = self._send(batch)
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
        with self._lock:
            if not self._under_way:  # it has taken so long that `close` counts it as lost
                return
            self._under_way = 0
            overflowed, self._noted = self._overflowed - self._noted, self._overflowed
            lost = SPANS * (overflowed + (0 if error is None else len(batch)))
            closing = self._closing
            if closing:
                self._lost_at_end += lost
                if error is not None and not self._gone:  # else it is what `shutdown` did to it
                    self._last_error = error[:_MOST_ERROR]
        if error is not None:
            self._dropped("export_failed", SPANS * len(batch))
        if not lost:
            self._recover()
        elif not closing:  # else `close` tells
            self._lose(lost, error or "the collector takes them more slowly than they come")

    def _lose(self, spans: int, error: str) -> None:
        self._lost += spans
        self._lost_at = time.monotonic()
        if self._losing:
            return
        self._losing = True
        log.warning(
            "spans_lost",
            collector=self._collector,
            error=error[:_MOST_ERROR],
            cure="see that the collector runs and takes OTLP by telemetry.traces.protocol, or set "
            "telemetry.traces.otlp to null; requests are served as before",
        )

    def _recover(self) -> None:
        if self._losing and time.monotonic() - self._lost_at >= _CALM_S:
            log.info("spans_exported_again", collector=self._collector, lost=self._lost)
            self._losing, self._lost = False, 0
