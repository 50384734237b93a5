"""A release window on a clock kept by the test, and the pages it is shown.

`q` is 3 unless said. R (capacity) is read through `view`, what may go through `accepts`.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

from scheduler_case import a_sample

from extproc.core.model import Request, State, WindowPolicy
from extproc.core.windows import Stance, Window, WindowView, make_window

Q = 3.0
INTERVAL = 0.25

_serial = itertools.count(1)


def a_request(slots: int = 1, prompt: float = 100.0, output: float = 100.0) -> Request:
    """`output`: estimated tokens of each choice."""
    number = next(_serial)
    return Request(
        id=str(number),
        tenant="a",
        cls="interactive",
        arrival=0.0,
        seq=number,
        body_bytes=1024,
        prompt_tokens=prompt,
        output_tokens=output * slots,
        max_output=None,
        slots=slots,
        deadline=1e9,
    )


class Bench:
    """A window that has been read once, idle, unless `read` is False. Released requests are kept, the oldest first."""

    def __init__(self, *, read: bool = True, window: Window | None = None, **policy: Any) -> None:
        self.now = 1000.0
        settings = {"start": 8.0, "scrape_interval_s": INTERVAL} | policy
        self.window = window or make_window("e", WindowPolicy(**settings), self.now)
        self.inside: list[Request] = []
        if read:
            self.page()

    def page(self, running: int = 0, waiting: int = 0, *, asked: float = Q, q: float = Q, **fields: Any) -> None:
        started = fields.pop("started", self.now)
        self.window.on_sample(a_sample(running, waiting, started, **fields), q, asked, self.now)

    def later(self, seconds: float = INTERVAL) -> None:
        self.now += seconds

    def take(self, count: int = 1, **fields: Any) -> None:
        for _ in range(count):
            self.go(a_request(**fields))

    def go(self, request: Request, *, most: float | None = None) -> Request:
        request.released_at = self.now
        request.guest = self.window.take(request, self.now, most=most)
        request.move(State.RELEASED)
        self.inside.append(request)
        return request

    def free(self, count: int = 1) -> None:
        """The oldest ones end."""
        for request in self.inside[:count]:
            self.end(request)

    def end(self, request: Request) -> None:
        self.inside.remove(request)
        request.move(State.ENDED)
        self.window.free(request, self.now)

    def accepts(self, slots: int = 1, q: float = Q, **fields: Any) -> bool:
        return self.window.accepts(a_request(slots, **fields), q, self.now)

    def may_overtake(self, slots: int = 1, most: int = 1, **fields: Any) -> bool:
        return self.window.may_overtake(a_request(slots, **fields), Q, most, self.now)

    def fill(self, q: float = Q, **fields: Any) -> int:
        """Release while the window takes it. Returns what is inside then."""
        while self.window.accepts(request := a_request(**fields), q, self.now):
            assert self.window.in_flight < 10_000, "the window has no end"
            self.go(request)
        return self.window.in_flight

    def room(self, q: float = Q) -> int:
        """How many the window would take, without taking them."""
        inside, window = self.inside.copy(), self.window
        before = window.in_flight
        self.window = copy.deepcopy(window)
        full = self.fill(q)
        self.inside, self.window = inside, window
        return full - before

    @property
    def view(self) -> WindowView:
        return self.window.view(self.now)

    @property
    def capacity(self) -> float:
        return self.view.capacity

    @property
    def stance(self) -> Stance:
        return self.window.stance(self.now)
