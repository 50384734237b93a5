"""Where a request goes: which pool, which tenant and class, or straight to an answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.config.model import Config
from extproc.core.events import Arrive
from extproc.core.reasons import Reason
from extproc.edge.arrival import ArrivalClocks
from extproc.edge.driver import PoolDriver
from extproc.edge.facts import Facts
from extproc.edge.identity import identify
from extproc.edge.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Queue:
    """It takes its turn in a pool."""

    driver: PoolDriver
    event: Arrive


@dataclass(frozen=True, slots=True)
class Pass:
    """It is none of ours: forwarded as it came."""

    why: str


@dataclass(frozen=True, slots=True)
class Deny:
    """It is refused at once, whatever the load."""

    reason: Reason
    message: str
    param: str | None = None


class Gate:
    """Decides for each request. `ticket`s name a request in Envoy's access log: process, pool, number."""

    def __init__(self, config: Config, drivers: Mapping[str, PoolDriver], recorder: Recorder) -> None:
        self.config = config
        self.drivers = drivers
        self._recorder = recorder
        self._process = secrets.token_hex(4)
        self._count = 0
        self._arrivals = ArrivalClocks()

    def decide(self, facts: Facts, peer: str) -> Queue | Pass | Deny:
        """`peer`: the Envoy that asks, as gRPC names the other end of its connection."""
        rules = self.config.requests
        if facts.body_bytes > rules.max_body:
            return Deny(
                Reason.BODY_TOO_LARGE,
                f"the body has {facts.body_bytes} bytes, and may have {rules.max_body} (requests.max_body)",
            )
        if facts.malformed is not None and rules.malformed == "reject":
            return Deny(Reason.INVALID_REQUEST, f"{facts.malformed}", None if facts.model else "model")
        pool = self.config.pool_of(facts.model)
        if pool is None:
            if facts.model is not None and rules.unknown_model == "reject":
                return Deny(Reason.MODEL_NOT_FOUND, f"the model {facts.model[:128]!r} is not served here", "model")
            return Pass("unknown_model" if facts.model is not None else "not_placed")
        identity = identify(self.config, facts)
        if identity.clamped:
            self._recorder.clamped()
        driver = self.drivers[pool.name]
        self._count += 1
        event = Arrive(
            id=f"{self._process}-{pool.name}-{self._count:x}",
            tenant=identity.tenant,
            cls=identity.cls,
            arrival=self._arrivals.of(peer).arrival(facts.arrival, time.time(), driver.now()),
            body_bytes=facts.body_bytes,
            max_output=facts.max_output,
            n=facts.n,
        )
        return Queue(driver, event)

    def owner(self, ticket: str) -> PoolDriver | None:
        """The pool that gave out `ticket`; None: another process did, or nobody."""
        process, _, rest = ticket.partition("-")
        return self.drivers.get(rest.rpartition("-")[0]) if process == self._process else None
