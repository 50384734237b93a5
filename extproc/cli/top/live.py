"""The loop between keys, figures and the screen. It sleeps until one of them has something, and a second at most."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from extproc.cli.ctl.connection import Connection
from extproc.cli.top.bars import Look
from extproc.cli.top.choices import Choices, press
from extproc.cli.top.feed import MOST_FLOWS, Feed, Wanted
from extproc.cli.top.figures import Figures, Seen, key_of, order_by, sorted_flows
from extproc.cli.top.keys import ESC_WAIT_S, Keys
from extproc.cli.top.picture import drawn
from extproc.cli.top.terminal import Signals, Terminal
from extproc.pb.admin.v1 import admin_pb2 as pb

_TICK_S = 1.0  # ages and delays that are shown go on
_PORTION = 50  # flows: so many more are asked for than are seen, and in these steps


@dataclass(frozen=True)
class Watched:
    """What is shown of which service."""

    connect: Callable[[], Connection]
    request: pb.WatchStatsRequest
    address: str

    @property
    def interval_s(self) -> float:
        return float(self.request.interval.ToNanoseconds()) / 1e9


def wanted(choices: Choices, pool: str = "") -> Wanted:
    """Flows that are shown, those that the next keys show, and no more. `pool`: that is watched; empty: all."""
    seen = choices.first + 2 * choices.rows
    return Wanted(
        pool=choices.pool or pool,
        order_by=order_by(choices.sort, choices.down),
        top=min(MOST_FLOWS, (seen // _PORTION + 2) * _PORTION),
        explained=choices.chosen if choices.explained else None,
    )


def run(watched: Watched, figures: Figures, choices: Choices, look: Look, terminal: Terminal) -> int:
    """Until it is ended by a key or a signal. Returns the exit code. Raises Failure, with the terminal as it was."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs, Signals(theirs) as signals:

        def wake() -> None:
            with contextlib.suppress(OSError):  # full: it is awake; closed: it is over
                theirs.send(b"\0")

        feed = Feed(watched.connect, watched.request, wanted(choices, watched.request.pool), figures, wake)
        feed.start()
        try:
            with terminal.shown():
                return _Loop(watched, feed, choices, look, terminal, signals, ours).run()
        finally:
            feed.close()


class _Loop:
    def __init__(
        self,
        watched: Watched,
        feed: Feed,
        choices: Choices,
        look: Look,
        terminal: Terminal,
        signals: Signals,
        woken: socket.socket,
    ) -> None:
        self._watched = watched
        self._feed = feed
        self._choices = choices
        self._look = look
        self._terminal = terminal
        self._signals = signals
        self._woken = woken
        self._keys = Keys()
        self._size = terminal.size()
        self._paused: Figures | None = None  # that are shown while it is paused

    def run(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._terminal.keys, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                self._draw()
                self._feed.want(wanted(self._choices, self._watched.request.pool))
                ready = selector.select(ESC_WAIT_S if self._keys.waits else _TICK_S)
                files = {key.fileobj for key, _ in ready}
                if self._woken in files:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                for number in self._signals.taken():
                    if number in Signals.ENDS:
                        # Ctrl-C is how it is meant to end.
                        return 0 if number == signal.SIGINT else 128 + number
                    self._on_signal(number)
                if not self._read(typed=self._terminal.keys in files, quiet=not ready):
                    return 0

    def _read(self, *, typed: bool, quiet: bool) -> bool:
        """False: the end."""
        keys = self._keys.end() if quiet else []
        if typed:
            try:
                data = os.read(self._terminal.keys, 1024)
            except OSError:  # the terminal has gone
                return False
            if not data:
                return False
            keys = self._keys.feed(data)
        return all(self._press(key) for key in keys)

    def _press(self, key: str) -> bool:
        """False: the end."""
        figures = self._seen().figures
        choices = self._choices
        flows = [key_of(flow) for flow in sorted_flows(figures.flows, choices.sort, choices.down, choices.pool)]
        pools = sorted(pool.name for pool in figures.stats.pools)
        pressed = press(key, choices, flows, pools)
        if pressed is None:
            return False
        if pressed.paused != choices.paused:
            self._paused = figures if pressed.paused else None
        self._choices = pressed
        return True

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._terminal.leave()
            self._signals.stop()
            self._terminal.enter()
        elif number == signal.SIGWINCH:
            self._resized()

    def _resized(self) -> None:
        size = self._terminal.size()
        if size != self._size:
            self._size = size
            self._terminal.forget()

    def _draw(self) -> None:
        self._resized()  # a signal may come between two pictures, or not at all
        picture = drawn(self._seen(), self._choices, *self._size, self._look)
        self._choices = picture.choices
        self._terminal.paint(picture.lines, self._size[0])

    def _seen(self) -> Seen:
        figures, lost, told = self._feed.seen()
        return Seen(
            figures=figures if self._paused is None else self._paused,
            now=time.monotonic(),
            interval_s=self._watched.interval_s,
            address=self._watched.address,
            lost=lost,
            told=told,
            newest_at=figures.taken_at,
        )
