"""A replica that says what a test gives it to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from extproc.cluster.errors import StoreError
from extproc.cluster.news import News
from extproc.core.sharing.words import EndpointReport, FlowReport, PoolReport


class Replica:
    def __init__(self, endpoints: Iterable[EndpointReport] = (), pool: str = "p", info: Any = None) -> None:
        self.endpoints = tuple(endpoints)
        self.pool = pool
        self.info: dict[str, Any] = {} if info is None else info
        self.flows: tuple[FlowReport, ...] = ()  # told with the next exchange, once
        self.is_busy = False
        self.news: list[News] = []
        self.errors: list[StoreError] = []
        self.told = 0
        self.fault: Exception | None = None

    def tell(self) -> tuple[Sequence[PoolReport], Mapping[str, Any]]:
        self.told += 1
        self._break()
        flows, self.flows = self.flows, ()
        return [PoolReport(self.pool, (), self.endpoints, flows)], self.info

    def heard(self, news: News) -> None:
        self.news.append(news)
        self._break()

    def lost(self, error: StoreError) -> None:
        self.errors.append(error)
        self._break()

    def busy(self) -> bool:
        self._break()
        return self.is_busy

    def _break(self) -> None:
        if self.fault is not None:
            raise self.fault


def endpoint(name: str = "e:1", *, inside: int = 0, want: float = 0.0, limit: float = 16.0) -> EndpointReport:
    return EndpointReport(name, inside, 0, limit, want)


def flow(tenant: str, usage: float = 1.0) -> FlowReport:
    return FlowReport("c", tenant, usage, 0.0, 1)
