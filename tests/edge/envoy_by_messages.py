"""Envoy as far as this service sees it: a client that sends its messages over a real connection, a pool to send them
to, and a recorder that keeps what the edge tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import orjson

from extproc.config.load import from_data
from extproc.config.model import Config
from extproc.core import invariants
from extproc.core.events import Effect, Event
from extproc.core.model import Sample
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.edge.access_log import AccessLog
from extproc.edge.driver import PoolDriver
from extproc.edge.facts import ATTRIBUTES, FACTS
from extproc.edge.gate import Gate
from extproc.edge.observer import Observer
from extproc.edge.recorder import Origin
from extproc.edge.rollout import observes
from extproc.edge.scheduler_driver import SchedulerDriver
from extproc.edge.stream import ExternalProcessor
from extproc.edge.tracking import Tracking
from extproc.edge.usage import TICKET, USAGE
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from extproc.pb.wire.v1 import access_log_pb2, ext_proc_pb2

ENGINE = "10.0.0.1:8000"
Request = ext_proc_pb2.ProcessingRequest
Response = ext_proc_pb2.ProcessingResponse


class Recording:
    """A recorder that keeps everything, in order: (what, detail)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.decided: list[Effect] = []
        self.foreseen: list[tuple[str, str, str, float, int | None]] = []  # pool, class, outcome, seconds, priority

    def effects(self, pool: str, effects: list[Effect]) -> None:
        self.decided += effects
        self.told += [(type(effect).__name__.lower(), pool) for effect in effects]

    def handed_over(self, pool: str) -> None:
        self.told.append(("handed_over", pool))

    def cancelled(self, pool: str) -> None:
        self.told.append(("cancelled", pool))

    def passed(self, why: str) -> None:
        self.told.append(("passed", why))

    def observed(self, pool: str, cls: str, outcome: str, waited_s: float, priority: int | None = None) -> None:
        self.told.append(("observed", outcome))
        self.foreseen.append((pool, cls, outcome, waited_s, priority))

    def refused(self, reason: str) -> None:
        self.told.append(("refused", reason))

    def untracked(self) -> None:
        self.told.append(("untracked", ""))

    def body_edit(self, outcome: str) -> None:
        self.told.append(("body_edit", outcome))

    def clamped(self) -> None:
        self.told.append(("clamped", ""))

    def fault(self, where: str) -> None:
        self.told.append(("fault", where))

    def choice_ignored(self, pool: str) -> None:
        self.told.append(("choice_ignored", pool))

    def access_log(self, kind: str) -> None:
        self.told.append(("access_log", kind))

    def count(self, what: str, detail: str | None = None) -> int:
        return sum(w == what and detail in (None, d) for w, d in self.told)


class Journaled:
    """A journal that keeps what it is told."""

    def __init__(self, tracing: bool = False, observed: bool = False) -> None:
        self.tracing = tracing
        self.of_observers: Journaled = self if observed else Journaled(observed=True)
        self.begun: list[tuple[str, Origin]] = []
        self.events: list[tuple[str, str, tuple[str, ...]]] = []  # pool, event, effects
        self.refused: list[tuple[str, str, str | None]] = []
        self.came: list[tuple[str, str]] = []
        self.first_bytes: list[tuple[str, float]] = []
        self.ways_out: list[tuple[str, str]] = []

    def samples(self, traceparent: str) -> bool:  # noqa: ARG002
        return True

    def begin(self, request_id: str, origin: Origin) -> None:
        self.begun.append((request_id, origin))

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        told = tuple(type(effect).__name__ for effect in effects)
        self.events.append((scheduler.policy.name, type(event).__name__, told))

    def coming(self, request_id: str, x_request_id: str) -> None:
        self.came.append((request_id, x_request_id))

    def followed(self, request_id: str) -> bool:
        return self.tracing and any(request_id == begun for begun, _ in self.begun)

    def first_byte(self, request_id: str, after_s: float) -> None:
        self.first_bytes.append((request_id, after_s))

    def interrupted(self, request_id: str, how: str) -> None:
        self.ways_out.append((request_id, how))

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str) -> None:
        self.refused.append((reason.code, message, model))
        self.came.append(("", x_request_id))


def a_config(slots: int = 1, **changes: Any) -> Config:
    """One pool `sim` of one engine with `slots` slots and nothing standing in its own queue. Its readings stay
    fresh for as long as a test lasts, and nothing is read from the network."""
    pool = {
        "name": "sim",
        "models": ["m"],
        "endpoints": [ENGINE],
        "window": {"start": slots, "overtake": 0},
        "metrics": {"interval": "60s", "idle_interval": "60s"},
        **changes.pop("pool", {}),
    }
    classes = {
        "default": {"rank": 1, "priority": 1000, "max_waiting": 0},
        "urgent": {"rank": 0, "priority": 0, "max_waiting": 0},
        **changes.pop("classes", {}),
    }
    return from_data({"pools": [pool, *changes.pop("more_pools", [])], "classes": classes, **changes})


def an_idle_page() -> Sample:
    return Sample(0, 0, None, None, None, None, None, None, started=time.monotonic())


class Edge:
    """All parts of the edge but the server, for one configuration; each engine has been read once, idle."""

    def __init__(self, config: Config) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        self.recorder = Recording()
        self.journal = Journaled(tracing=config.telemetry.traces.otlp is not None)
        self.drivers = {
            pool.name: PoolDriver(
                config.pool_policy(pool), pool.endpoints.known, loop, self.recorder, journal=self.journal
            )
            for pool in config.pools
        }
        for pool in config.pools:
            for endpoint in pool.endpoints.known:
                self.drivers[pool.name].scraped(endpoint, an_idle_page())
            self.drivers[pool.name].observe(observes(pool))
        self.gate = Gate(config, self.drivers, self.recorder)
        self.tracking = Tracking(self.gate, self.recorder)
        self.processor = ExternalProcessor(self.gate, self.tracking, self.recorder, self.journal)
        self.access_log = AccessLog(self.gate, self.tracking, self.recorder, self.journal)

    def change(self, config: Config) -> None:
        """Go on by `config`, which has the same pools, within one turn of the loop."""
        rules = self.gate.prepare(config, self.drivers)
        self.config = config
        for pool in config.pools:
            self.drivers[pool.name].reconfigure(config.pool_policy(pool))
        self.gate.configure(rules)
        for pool in config.pools:
            self.drivers[pool.name].observe(observes(pool))
            self.processor.let_pass(pool.name)

    @property
    def observer(self) -> Observer:
        assert self.driver.observer is not None
        return self.driver.observer

    @property
    def driver(self) -> PoolDriver:
        return self.drivers["sim"]

    @property
    def held(self) -> int:
        return self.driver.scheduler.queued

    @property
    def inside(self) -> int:
        return sum(self.driver.scheduler.inside.values())

    @property
    def schedulers(self) -> list[SchedulerDriver]:
        drivers = self.drivers.values()
        return [*drivers, *(driver.observer for driver in drivers if driver.observer is not None)]

    def check(self) -> None:
        for driver in self.schedulers:
            invariants.check(driver.scheduler, driver.now())

    def check_empty(self) -> None:
        """Nothing is left in the books but requests that wait for their usage."""
        self.check()
        for driver in self.schedulers:
            assert driver.scheduler.queued == 0
            assert sum(driver.scheduler.inside.values()) == 0
            assert not driver._waiters
            assert driver.leaked() == 0

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()


Start = Callable[..., Awaitable[tuple[Edge, "Envoy"]]]  # the fixture `start`


async def until(condition: Callable[[], object], what: str = "", within_s: float = 5.0) -> None:
    """Waits for a state of the other side, and fails when it does not come."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the other side tells nobody
            await asyncio.sleep(0.001)


# -- messages -------------------------------------------------------------------------------------


def request(
    model: Any = "m",
    headers: Mapping[str, str] | None = None,
    *,
    size: Any = 1000,
    at: Any = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    **facts: Any,
) -> Request:
    """A header message as the standard profile sends it. `facts` are what was taken out of the body."""
    message = Request()
    for name, value in {":method": "POST", ":path": "/v1/completions", **(headers or {})}.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    if model is not None:
        facts["model"] = model
    if facts:
        message.metadata_context.filter_metadata[FACTS].update(facts)
    for namespace, fields in (metadata or {}).items():
        message.metadata_context.filter_metadata[namespace].update(fields)
    attributes = {"request.size": size, "request.time": at}
    message.attributes[ATTRIBUTES].update({name: value for name, value in attributes.items() if value is not None})
    return message


def wired(made: Request, request_body: str = "NONE", response_body: str = "NONE") -> Request:
    """A first message that announces these body modes."""
    modes = ext_proc_pb2.ProcessingMode.BodySendMode
    made.protocol_config.request_body_mode = modes.Value(f"BODY_SEND_MODE_{request_body}")
    made.protocol_config.response_body_mode = modes.Value(f"BODY_SEND_MODE_{response_body}")
    return made


def body(kind: str, data: bytes, end: bool = False) -> Request:
    """A piece of a body; `kind`: request_body or response_body."""
    made = message(kind)
    getattr(made, kind).body = data
    getattr(made, kind).end_of_stream = end
    return made


def response_headers(content_type: str = "text/event-stream", status: int = 200, **more: str) -> Request:
    made = message("response_headers")
    for name, value in {":status": str(status), "content-type": content_type, **more}.items():
        made.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    return made


def message(kind: str) -> Request:
    """An empty message of another phase."""
    made = Request()
    getattr(made, kind).SetInParent()
    return made


def an_entry(ticket: str | None, code: int = 200, **usage: Any) -> access_log_pb2.HTTPAccessLogEntry:
    entry = access_log_pb2.HTTPAccessLogEntry()
    if ticket is not None:
        entry.request.request_headers[TICKET] = ticket
    entry.response.response_code.value = code
    entry.response.response_code_details = "via_upstream"
    if usage:
        entry.common_properties.metadata.filter_metadata[USAGE].update(usage)
    return entry


def tried(entry: access_log_pb2.HTTPAccessLogEntry, last: str, attempts: int = 1) -> access_log_pb2.HTTPAccessLogEntry:
    """The entry, of a request that Envoy sent to `last` ("ip:port") at the end of so many attempts."""
    address, _, port = last.rpartition(":")
    at = entry.common_properties.upstream_remote_address.socket_address
    at.address, at.port_value = address.strip("[]"), int(port)
    entry.common_properties.upstream_request_attempt_count = attempts
    return entry


def log_message(*entries: access_log_pb2.HTTPAccessLogEntry) -> bytes:
    made = access_log_pb2.StreamAccessLogsMessage()
    made.http_logs.log_entry.extend(entries)
    return made.SerializeToString()


def headers_set(answer: Response) -> dict[str, str]:
    """What an answer to a header message sets; each is written in the only way that Envoy reads and obeys."""
    options = answer.request_headers.response.header_mutation.set_headers
    assert all(not o.header.value and not o.HasField("append") for o in options)
    return {o.header.key: o.header.raw_value.decode() for o in options}


@dataclass(frozen=True)
class Immediate:
    """What the client gets when Envoy answers in our name."""

    status: int
    headers: dict[str, str]
    error: dict[str, Any]
    details: str

    @classmethod
    def of(cls, answer: Response) -> Immediate:
        assert answer.WhichOneof("response") == "immediate_response", answer
        it = answer.immediate_response
        headers = {o.header.key: o.header.raw_value.decode() for o in it.headers.set_headers}
        body = orjson.loads(it.body)
        assert list(body) == ["error"]
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return cls(it.status.code, headers, body["error"], it.details)


# -- over a real connection -----------------------------------------------------------------------


class Stream:
    """One request's stream, from Envoy's side."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, *messages: Request | bytes) -> None:
        for one in messages:
            await self.call.write(one if isinstance(one, bytes) else one.SerializeToString())

    async def read(self) -> Response | None:
        """None: the other side has closed the stream."""
        try:
            async with asyncio.timeout(5):
                raw = await self.call.read()
        except grpc.aio.AioRpcError:
            return None  # `code` tells
        return None if raw is grpc.aio.EOF else Response.FromString(raw)

    async def answer(self) -> Response:
        answer = await self.read()
        assert answer is not None, "the stream was closed without an answer"
        return answer

    async def ask(self, *messages: Request | bytes) -> Response:
        await self.send(*messages)
        return await self.answer()

    async def end(self) -> grpc.StatusCode:
        """The HTTP request is over."""
        await self.call.done_writing()
        assert await self.read() is None, "an answer that nobody asked for"
        return await self.code()

    async def code(self) -> grpc.StatusCode:
        async with asyncio.timeout(5):
            code: grpc.StatusCode = await self.call.code()
        return code

    def cancel(self) -> None:
        self.call.cancel()


class Envoy:
    """A connection to the edge's port."""

    def __init__(self, address: str) -> None:
        self.address = address
        # a connection of its own for each: grpc would share one between equal channels
        self.channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._process = self.channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")
        self._logs = self.channel.stream_unary(f"/{ACCESS_LOG_SERVICE}/StreamAccessLogs")

    def stream(self, wiring: str = "", **metadata: str) -> Stream:
        """`wiring`: the words that the filter's configuration says; `metadata`: more of the stream's."""
        words = (("fairlane-wiring", wiring),) if wiring else ()
        return Stream(self._process(metadata=(*words, *metadata.items())))

    async def released(self, *args: Any, **facts: Any) -> tuple[Stream, str]:
        """A request that is let go at once, and its ticket."""
        stream = self.stream()
        return stream, headers_set(await stream.ask(request(*args, **facts)))[TICKET]

    def access_log(self) -> Any:
        return self._logs()

    async def close(self) -> None:
        await self.channel.close()


# -- without a connection -------------------------------------------------------------------------


class Context:
    """What grpc hands to the handler, as a script: `reads` and then the end of the stream, or silence."""

    def __init__(self, *reads: Request | bytes, ends: bool = True) -> None:
        self.reads: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[Response] = []
        self.gone = False  # the client has left: writing fails
        self.broken = False  # writing fails, and nobody knows why
        self.aborted: grpc.StatusCode | None = None
        self.wiring = ""
        self.writing = False
        for one in reads:
            self.reads.put_nowait(one if isinstance(one, bytes) else one.SerializeToString())
        if ends:
            self.end()

    def end(self) -> None:
        self.reads.put_nowait(grpc.aio.EOF)

    async def read(self) -> Any:
        return await self.reads.get()

    async def write(self, raw: bytes) -> None:
        if self.gone or self.broken:
            raise grpc.aio.UsageError("RPC already finished.")
        assert not self.writing, "grpc.aio takes one write at a time"
        self.writing = True
        try:
            await asyncio.sleep(0)
        finally:
            self.writing = False
        self.written.append(Response.FromString(raw))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("fairlane-wiring", self.wiring),) if self.wiring else ()

    def peer(self) -> str:
        return "ipv4:10.9.0.1:5555"

    def done(self) -> bool:
        return self.gone

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert details
        self.aborted = code
        raise grpc.aio.AbortError("Locally aborted.")

    @property
    def kinds(self) -> list[str | None]:
        return [answer.WhichOneof("response") for answer in self.written]
