"""Where a request goes: which pool, which tenant and class, or straight to an answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
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
from extproc.edge.observer import MARK, Observer
from extproc.edge.recorder import Recorder
from extproc.edge.request_ids import RequestIds
from extproc.edge.rollout import enforces, mode_for
from extproc.edge.ways import Ways

TRACE_HEADERS = ("traceparent", "tracestate")
# The others carry their token count unasked.
_ASKED_FOR_USAGE = ("/chat/completions", "/v1/completions")

_NOT_IN_FORMS = (
    "the model {!r} is another name for a model that is served here, and names cannot be replaced in a form: send the "
    "model's own name"
)


@dataclass(slots=True)
class Queue:
    """It takes its turn in a pool; or it passes, and the pool's observer is told. Not to be changed once made, like
    `Facts`."""

    driver: PoolDriver | Observer
    pool: Pool
    event: Arrive
    ways: Ways  # of the pool, when it came
    usage_injected: bool = False  # its stream is made to carry a token count that its client has not asked for
    request_id: str = ""  # Envoy's
    model: str | None = None  # what the engine is told as its model; None: what the client said

    @property
    def observed(self) -> bool:
        return isinstance(self.driver, Observer)


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


@dataclass(frozen=True, slots=True)
class Rules:
    """One configuration, and all that follows from it."""

    config: Config
    drivers: Mapping[str, PoolDriver]  # also of pools that are not configured any more, and have requests still
    ways: Mapping[str, Ways]
    identifier: Identifier
    served: Served
    pools: Mapping[str, Pool]  # by name
    sessions: Mapping[str, str]  # pool -> name of the header that tells which conversation a request belongs to
    headers: frozenset[str]  # that are looked at
    queued: QueuedPaths
    enforces: bool  # whether any request may be held or refused
    # Envoy's Lua filter gives each body that nothing is said of a priority of its own: right where nobody was asked,
    # wrong where none is to be told.
    lua_appends: bool


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
        """As `prepare`. Raises KeyFileError."""
        self.rules = self.prepare(config, drivers, keys, ways)
        self._recorder = recorder
        self._process = secrets.token_hex(4)
        self._count = 0
        self._arrivals = ArrivalClocks()
        self.request_ids = RequestIds()

    @staticmethod
    def prepare(
        config: Config,
        drivers: Mapping[str, PoolDriver],
        keys: Keys | None = None,
        ways: Mapping[str, Ways] | None = None,
    ) -> Rules:
        """What `configure` puts in force. `keys`: the files of keys that the configuration names; None: read them.
        `ways`: of each pool by its name, how its engines are told a priority; None: as configured. Raises
        KeyFileError."""
        pools = config.pools
        sessions = {pool.name: pool.session_header for pool in pools if pool.session_header}
        return Rules(
            config=config,
            drivers=drivers,
            ways={pool.name: Ways.configured(pool) for pool in pools} if ways is None else ways,
            identifier=Identifier(config, keys or Keys(config)),
            served=Served(pools),
            pools={pool.name: pool for pool in pools},
            sessions=sessions,
            headers=_headers(config, sessions.values()),
            queued=QueuedPaths(config.requests.queued),
            enforces=any(enforces(pool) for pool in pools),
            lua_appends=any(pool.priority_via in ("body", "both") for pool in pools),
        )

    def configure(self, rules: Rules) -> None:
        """Decide by `rules` from now on. What was decided before stays as it was."""
        self.rules = rules

    def queues(self, facts: Facts) -> bool:
        """Whether it is one of the requests that wait their turn."""
        return facts.method == "POST" and facts.path in self.rules.queued

    def too_large(self, what: str) -> Deny:
        most = self.rules.config.requests.max_body
        return Deny(Reason.BODY_TOO_LARGE, f"{what}, and may have {most} (requests.max_body)")

    def tenant_of(self, facts: Facts) -> str:
        """Whose the request is, as far as its headers say."""
        return self.rules.identifier.identify(facts).tenant

    def buffer_full(self) -> Deny:
        most = self.rules.config.requests.max_buffered
        return Deny(
            Reason.QUEUE_FULL,
            f"too many bytes of bodies are in memory: there may be {most} (requests.max_buffered), half of it for one "
            "tenant",
        )

    def too_many_streams(self) -> Deny:
        most = self.rules.config.requests.max_streams
        return Deny(
            Reason.QUEUE_FULL, f"too many requests are under way here: there may be {most} (requests.max_streams)"
        )

    def decide(
        self, facts: Facts, peer: str, first_byte_seen: bool = False, *, full: bool = False, crowded: bool = False
    ) -> Queue | Pass | Deny:
        """`peer`: the Envoy that asks, as gRPC names the other end of its connection. `first_byte_seen`: the start of
        the answer will come by here. `full`: there are more streams than there may be; `crowded`: more than those of
        requests that only pass may take."""
        rules = self.rules
        match = rules.served.of(facts.model)
        if match is None:
            unknown = facts.model is not None
            deny = self._unreadable(facts) or (self._unknown(facts) if unknown else None)
            return deny if deny is not None and rules.enforces else Pass("unknown_model" if unknown else "not_placed")
        pool, adapter = match.pool, match.adapter
        identity = rules.identifier.identify(facts)
        mode = mode_for(pool, identity.tenant, facts.request_id)
        driver: PoolDriver | Observer = rules.drivers[pool.name]
        if mode != "enforce":
            observer = rules.drivers[pool.name].observer
            if mode == "off" or observer is None or crowded:
                return Pass(mode)
            driver = observer
        deny = self.too_many_streams() if full and mode == "enforce" else self._unreadable(facts)
        if deny is None and match.rewritten is not None and facts.is_form:
            deny = Deny(Reason.INVALID_REQUEST, _NOT_IN_FORMS.format(facts.model), "model")
        if deny is not None:
            if mode == "enforce":
                return deny
            self._recorder.observed(pool.name, identity.cls, deny.reason.code, 0.0)
            return Pass(mode)
        if identity.clamped:
            self._recorder.clamped()
        self._count += 1
        event = Arrive(
            id=f"{self._process}-{driver.name}-{self._count:x}",
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
            session=self._session(facts, pool, identity.tenant) if rules.sessions else None,
        )
        self.request_ids.began(facts.request_id, event.id)
        ways = rules.ways[pool.name]
        if mode == "observe":
            return Queue(driver, pool, event, ways, request_id=facts.request_id)
        return Queue(driver, pool, event, ways, self._injects(facts), facts.request_id, match.rewritten)

    def _unreadable(self, facts: Facts) -> Deny | None:
        requests = self.rules.config.requests
        if facts.body_bytes > requests.max_body:
            return self.too_large(f"the body has {facts.body_bytes} bytes")
        if facts.malformed is not None and requests.malformed == "reject":
            return Deny(Reason.INVALID_REQUEST, f"{facts.malformed}", None if facts.model else "model")
        return None

    def _unknown(self, facts: Facts) -> Deny | None:
        if self.rules.config.requests.unknown_model == "pass":
            return None
        return Deny(Reason.MODEL_NOT_FOUND, f"the model {(facts.model or '')[:128]!r} is not served here", "model")

    def holds(self, place: Queue) -> bool:
        """Whether a request that waits in a pool would also do so by the configuration in force. One whose pool is not
        configured any more does."""
        pool = self.rules.pools.get(place.pool.name)
        return pool is None or mode_for(pool, place.event.tenant, place.request_id) == "enforce"

    def _session(self, facts: Facts, pool: Pool, tenant: str) -> int | None:
        """Which conversation of its tenant the request belongs to; None: it does not say. Two tenants may number theirs
        alike."""
        told = facts.headers.get(self.rules.sessions.get(pool.name, ""), "").strip()
        return _hash(f"{tenant}\n{told}") if told else None

    def _injects(self, facts: Facts) -> bool:
        return (
            self.rules.config.requests.include_usage == "inject"
            and facts.stream
            and not facts.usage_asked
            and facts.path.endswith(_ASKED_FOR_USAGE)
        )

    def close(self, place: Queue, how: Interrupted = Interrupted.LEFT) -> None:
        """The request's way is over; `how`: where it was held to the end. Never raises: it is called from clean-up."""
        place.driver.end(place.event.id, how)
        self.request_ids.ended(place.request_id, place.driver.now())

    def owner(self, ticket: str) -> PoolDriver | Observer | None:
        """Who gave out `ticket`, for a pool or for its observer; None: another process did, or nobody."""
        process, _, rest = ticket.partition("-")
        if process != self._process:
            return None
        name = rest.rpartition("-")[0]
        driver = self.rules.drivers.get(name.removesuffix(MARK))
        return driver.observer if driver is not None and name.endswith(MARK) else driver


def _headers(config: Config, sessions: Iterable[str]) -> frozenset[str]:
    traced = TRACE_HEADERS if config.telemetry.traces.otlp is not None else ()
    return facts_of.HEADERS | config.identity.headers | frozenset((*sessions, *traced))


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
