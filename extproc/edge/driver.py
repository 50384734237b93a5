"""One pool on the event loop: the scheduler that releases its requests and, while the pool's mode asks for it, an
observer of those that pass.

Both are told of the same endpoints and the same pages. Who reads these (`engines`) knows the pool alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from extproc.core.model import PoolPolicy, Sample
from extproc.edge.observer import Observer
from extproc.edge.recorder import Journal, Recorder, Tape
from extproc.edge.scheduler_driver import Interrupted, Outcome, SchedulerDriver, VerdictLostError

__all__ = ["Interrupted", "Outcome", "PoolDriver", "VerdictLostError"]


class PoolDriver(SchedulerDriver):
    """Raises nothing but what the scheduler raises for a fault of its own."""

    def __init__(
        self,
        policy: PoolPolicy,
        endpoints: Iterable[str],
        loop: asyncio.AbstractEventLoop,
        recorder: Recorder,
        tape: Tape | None = None,
        journal: Journal | None = None,
    ):
        """`tape`: writes down all that happens to what is not observed; None: nobody does. `journal`: likewise,
        of single requests."""
        self.observer: Observer | None = None  # also after the last that it takes, until that one is over
        self.observing = False  # whether it takes more
        self._pages: dict[str, Sample] = {}  # endpoint -> its last one
        self._reports_to = recorder
        self._journal_of_observer = None if journal is None else journal.of_observers
        interrupted = None if journal is None else journal.interrupted
        super().__init__(policy, endpoints, loop, recorder, tape, journal, interrupted)

    def observe(self, on: bool) -> None:
        """Whether requests are observed from now on. What is being observed is, to its end."""
        self.observing = on
        if not on:
            self._observer_changed()
        elif self.observer is None:
            observer = Observer(
                self.scheduler.policy,
                self._loop,
                self._reports_to,
                self._pages,
                self._observer_changed,
                self._journal_of_observer,
            )
            for endpoint in self.endpoints:
                observer.add_endpoint(endpoint, self._on_busy.get(endpoint))
            for endpoint, page in self._pages.items():
                observer.scraped(endpoint, page)
            self.observer = observer

    def _observer_changed(self) -> None:
        """An observed request is over, or nothing is awaited any more."""
        self._changed.set()
        if self.observer is not None and not self.observing and not self.observer.busy:
            self.observer.close()
            self.observer = None

    @property
    def busy(self) -> bool:
        """Whether anything is held or inside the engines."""
        return bool(self.scheduler.requests) or (self.observer is not None and self.observer.busy)

    def busy_at(self, endpoint: str) -> bool:
        return super().busy_at(endpoint) or (self.observer is not None and self.observer.busy_at(endpoint))

    async def emptied(self) -> None:
        await super().emptied()
        while self.observer is not None and self.observer.passing:
            self._changed.clear()
            await self._changed.wait()

    def add_endpoint(
        self, endpoint: str, on_busy: Callable[[], None] | None = None, on_release: Callable[[], None] | None = None
    ) -> None:
        super().add_endpoint(endpoint, on_busy, on_release)
        if self.observer is not None:
            self.observer.add_endpoint(endpoint, on_busy)

    def remove_endpoint(self, endpoint: str) -> None:
        self._pages.pop(endpoint, None)
        super().remove_endpoint(endpoint)
        if self.observer is not None:
            self.observer.remove_endpoint(endpoint)

    def scraped(self, endpoint: str, sample: Sample) -> None:
        self._pages[endpoint] = sample
        super().scraped(endpoint, sample)
        if self.observer is not None:
            self.observer.scraped(endpoint, sample)

    def scrape_failed(self, endpoint: str, refused: bool) -> None:
        if refused:
            self._pages.pop(endpoint, None)  # whatever it showed is gone
        super().scrape_failed(endpoint, refused)
        if self.observer is not None:
            self.observer.scrape_failed(endpoint, refused)

    def reconfigure(self, policy: PoolPolicy) -> None:
        super().reconfigure(policy)
        if self.observer is not None:
            self.observer.reconfigure(policy)

    def close(self) -> None:
        super().close()
        if self.observer is not None:
            self.observer.close()
