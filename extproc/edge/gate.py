"""Where a request goes: which pool, which tenant and class, or straight to an answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from extproc.config.model import Config
from extproc.config.requests import QueuedPaths
from extproc.config.scheduling import Pool
from extproc.config.served import Served
from extproc.core.events import Arrive
from extproc.core.reasons import Reason
from extproc.edge import facts as facts_of
from extproc.edge.arrival import ArrivalClocks
from extproc.edge.driver import Interrupted, PoolDriver
from extproc.edge.facts import Facts
from extproc.edge.identity import Identifier
from extproc.edge.key_file import Keys
from extproc.edge.recorder import Recorder
from extproc.edge.request_ids import RequestIds
from extproc.edge.ways import Ways

# The others carry their token count unasked.
_ASKED_FOR_USAGE = ("/chat/completions", "/v1/completions")

_NOT_IN_FORMS = (
    "the model {!r} is another name for a model that is served here, and names cannot be replaced in a form: send the "
    "model's own name"
)


@dataclass(slots=True)
class Queue:
    """It takes its turn in a pool. Not to be changed once made, like `Facts`."""

    driver: PoolDriver
    pool: Pool
    event: Arrive
    usage_injected: bool = False  # its stream is made to carry a token count that its client has not asked for
    request_id: str = ""  # Envoy's
    model: str | None = None  # what the engine is told as its model; None: what the client said


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

    def __init__(
        self,
        config: Config,
        drivers: Mapping[str, PoolDriver],
        recorder: Recorder,
        keys: Keys | None = None,
        ways: Mapping[str, Ways] | None = None,
    ) -> None:
        """`keys`: the files of keys that the configuration names; None: read them. `ways`: of each pool by its name,
        how its engines are told a priority; None: as configured. Raises KeyFileError."""
        self.config = config
        self.drivers = drivers
        self.ways = ways or {pool.name: Ways.configured(pool) for pool in config.pools}
        self._recorder = recorder
        self._process = secrets.token_hex(4)
        self._count = 0
        self._arrivals = ArrivalClocks()
        self._identifier = Identifier(config, keys or Keys(config))
        self._served = Served(config.pools)
        # Pool -> name of the header that tells which conversation a request belongs to
        self._sessions = {pool.name: pool.session_header for pool in config.pools if pool.session_header}
        self.headers = facts_of.HEADERS | config.identity.headers | set(self._sessions.values())  # that are looked at
        self._queued = QueuedPaths(config.requests.queued)
        self.request_ids = RequestIds()

    def queues(self, facts: Facts) -> bool:
        """Whether it is one of the requests that wait their turn."""
        return facts.method == "POST" and facts.path in self._queued

    def too_large(self, what: str) -> Deny:
        return Deny(Reason.BODY_TOO_LARGE, f"{what}, and may have {self.config.requests.max_body} (requests.max_body)")

    def tenant_of(self, facts: Facts) -> str:
        """Whose the request is, as far as its headers say."""
        return self._identifier.identify(facts).tenant

    def buffer_full(self) -> Deny:
        most = self.config.requests.max_buffered
        return Deny(
            Reason.QUEUE_FULL,
            f"too many bytes of bodies are in memory: there may be {most} (requests.max_buffered), half of it for one "
            "tenant",
        )

    def decide(self, facts: Facts, peer: str, first_byte_seen: bool = False) -> Queue | Pass | Deny:
        """`peer`: the Envoy that asks, as gRPC names the other end of its connection. `first_byte_seen`: the start of
        the answer will come by here."""
        rules = self.config.requests
        if facts.body_bytes > rules.max_body:
            return self.too_large(f"the body has {facts.body_bytes} bytes")
        if facts.malformed is not None and rules.malformed == "reject":
            return Deny(Reason.INVALID_REQUEST, f"{facts.malformed}", None if facts.model else "model")
        match = self._served.of(facts.model)
        if match is None:
            if facts.model is not None and rules.unknown_model == "reject":
                return Deny(Reason.MODEL_NOT_FOUND, f"the model {facts.model[:128]!r} is not served here", "model")
            return Pass("unknown_model" if facts.model is not None else "not_placed")
        if match.rewritten is not None and facts.is_form:
            return Deny(Reason.INVALID_REQUEST, _NOT_IN_FORMS.format(facts.model), "model")
        pool, adapter = match.pool, match.adapter
        identity = self._identifier.identify(facts)
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
            prompt_tokens=facts.prompt_tokens,
            prefix=facts.prefix if adapter is None else _of_adapter(facts.prefix, adapter),
            first_byte_seen=first_byte_seen,
            adapter=adapter,
            session=self._session(facts, pool, identity.tenant) if self._sessions else None,
        )
        self.request_ids.began(facts.request_id, event.id)
        return Queue(driver, pool, event, self._injects(facts), facts.request_id, match.rewritten)

    def _session(self, facts: Facts, pool: Pool, tenant: str) -> int | None:
        """Which conversation of its tenant the request belongs to; None: it does not say. Two tenants may number theirs
        alike."""
        told = facts.headers.get(self._sessions.get(pool.name, ""), "").strip()
        return _hash(f"{tenant}\n{told}") if told else None

    def _injects(self, facts: Facts) -> bool:
        return (
            self.config.requests.include_usage == "inject"
            and facts.stream
            and not facts.usage_asked
            and facts.path.endswith(_ASKED_FOR_USAGE)
        )

    def close(self, place: Queue, how: Interrupted = Interrupted.LEFT) -> None:
        """The request's way is over; `how`: where it was held to the end. Never raises: it is called from clean-up."""
        place.driver.end(place.event.id, how)
        self.request_ids.ended(place.request_id, place.driver.now())

    def owner(self, ticket: str) -> PoolDriver | None:
        """The pool that gave out `ticket`; None: another process did, or nobody."""
        process, _, rest = ticket.partition("-")
        return self.drivers.get(rest.rpartition("-")[0]) if process == self._process else None


def _hash(text: str) -> int:
    """64 bits, the same in every process and at every time."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


@lru_cache(maxsize=1024)
def _salt(adapter: str) -> int:
    return _hash(adapter)


def _of_adapter(prefix: tuple[int, ...], adapter: str) -> tuple[int, ...]:
    """Another adapter computes other values from the same prompt, so nothing that is cached for one serves another."""
    salt = _salt(adapter)
    return tuple(each ^ salt for each in prefix)
