"""The simulated engine behind vLLM's HTTP API.

What vLLM has: POST to the four generating endpoints and those in `other_routes`, GET /v1/models, /health, /ping,
/version, /metrics and the filtered /metrics/?name[]=. What it has not: everything under /sim/, which shows what the
engine was sent and breaks its metrics page.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiohttp import HttpVersion11, web

from extproc.sim.answer import DONE, Answer, sse
from extproc.sim.answer_events import ANSWERS
from extproc.sim.call import Api, Call, Limits, read_call
from extproc.sim.driver import Driver
from extproc.sim.engine import Engine, EngineOptions
from extproc.sim.exchange import Exchange, Stream
from extproc.sim.faults import Faults, MetricsFault, ShedFault
from extproc.sim.fields import ApiError
from extproc.sim.journal import Entry, Journal, Outcome, printable
from extproc.sim.other_routes import OtherRoutes
from extproc.sim.pages import CONTENT_TYPE, MetricsPage

VERSION: Final = "0.32.0+sim"
MAX_BODY_BYTES: Final = 64 * 2**20
# Headers may carry long tokens; the default of 8 KiB per field is less than proxies in front allow.
_MAX_HEADER_BYTES: Final = 64 * 2**10
# Seconds for handlers to end at a stop. Nothing will be computed for them any more.
_STOP_SECONDS: Final = 0.1
_BACKLOG: Final = 1024

_log: Final = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the server around the engine is told.

    max_model_len         tokens of prompt and output together, per sequence
    max_num_queued_reqs   sequences running and waiting from which on requests get 503; None: no limit
    force_usage           usage in every chunk of every stream, asked for or not
    record_requests       requests that GET /sim/requests can show
    record_body_bytes     bytes of bodies that are kept for GET /sim/requests/{seq}/body
    seed                  changes texts and lengths
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    model: str = "sim-7b"
    max_model_len: int = 32_768
    max_num_queued_reqs: int | None = None
    force_usage: bool = False
    record_requests: int = 10_000
    record_body_bytes: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_model_len > self.engine.kv_tokens:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) is more than the KV cache holds ({self.engine.kv_tokens} tokens)"
            )


class SimServer:
    """One engine and its API. Must be made inside a running event loop."""

    def __init__(self, options: ServerOptions) -> None:
        self.options: Final = options
        self.engine: Final = Engine(options.engine)
        self.driver: Final = Driver(self.engine)
        self.journal: Final = Journal(options.record_requests, options.record_body_bytes)
        self.faults = Faults()
        self._created: Final = time.time()
        self._limits: Final = Limits(options.model, options.max_model_len, options.force_usage, options.seed)
        self.page: Final = MetricsPage(
            self.engine.stats,
            options.engine,
            model=options.model,
            max_model_len=options.max_model_len,
            created=self._created,
        )

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        for api in Api:
            app.router.add_post(api.value, self._generate)
        OtherRoutes(self.engine, self.driver, self.journal, self.options.model).add_to(app.router)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", _empty)
        app.router.add_get("/ping", _empty)
        app.router.add_post("/ping", _empty)
        app.router.add_get("/version", _version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/", self._metrics)
        app.router.add_get("/sim/requests", self._requests)
        app.router.add_delete("/sim/requests", self._forget_requests)
        app.router.add_get(r"/sim/requests/{seq:\d{1,18}}/body", self._request_body)
        app.router.add_get("/sim/faults", self._show_faults)
        app.router.add_put("/sim/faults", self._set_faults)
        app.on_shutdown.append(self._shut_down)
        return app

    async def _shut_down(self, _app: web.Application) -> None:
        self.driver.close()

    # -- generation ------------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        api = Api(request.path)
        body = await request.read()
        entry = self.journal.add(request.path, request.headers, body, time.time())
        try:
            return await self._answer(request, api, body, entry)
        except ApiError as error:
            entry.end(Outcome.REFUSED, time.time(), status=error.status)
            return _refuse(error, api)
        finally:
            if entry.outcome is None:  # cancelled: the client has left
                tokens = self.engine.tokens(entry.request_id) if entry.request_id else 0
                entry.end(Outcome.ABORTED, time.time(), status=None, tokens=tokens)
            if entry.request_id is not None:
                self.driver.drop(entry.request_id)

    async def _answer(self, request: web.Request, api: Api, body: bytes, entry: Entry) -> web.StreamResponse:
        call = read_call(api, body, request.headers, self._limits)
        entry.priority = call.priority
        if (busy := self._busy(call)) is not None:
            if not call.stream or self.faults.shed is ShedFault.STATUS:
                raise busy
            entry.end(Outcome.REFUSED, time.time(), status=200)
            return web.Response(body=sse(busy.body()) + DONE, headers=_STREAM_HEADERS)
        name = printable(request.headers.get("x-request-id", "")) or uuid.uuid4().hex
        answer = ANSWERS[api](call, self.options.model, name, int(time.time()))
        # Clients may repeat an X-Request-Id, also at the same time.
        entry.request_id = f"{answer.id}-{entry.seq}"
        if call.stream:
            return await self._stream(request, answer, entry, entry.request_id)
        exchange = Exchange(answer, entry)
        await self._run(exchange, entry, entry.request_id)
        return _json(answer.plain(exchange.ends))

    def _busy(self, call: Call) -> ApiError | None:
        limit = self.options.max_num_queued_reqs
        if limit is None or self.engine.unfinished + call.size <= limit:
            return None
        self.page.rejections += 1
        message = f"The engine is currently busy: max_num_queued_reqs ({limit}) is reached. Please retry later."
        return ApiError(503, message, "Service Unavailable")

    async def _stream(self, request: web.Request, answer: Answer, entry: Entry, request_id: str) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        # As vLLM, the headers go out at once, also when the request will wait: a first byte is not a first token.
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        exchange = Stream(answer, entry, transport, chunked=request.version >= HttpVersion11)
        await self._run(exchange, entry, request_id)
        await response.write_eof()
        return response

    async def _run(self, exchange: Exchange, entry: Entry, request_id: str) -> None:
        """Let the engine do it. Cancelled by aiohttp when the client leaves."""
        self.driver.submit(exchange.answer.call.to_request(request_id), exchange)
        await exchange.done
        entry.end(Outcome.FINISHED, time.time(), status=200, tokens=exchange.completion_tokens)

    # -- the rest of vLLM's API ------------------------------------------------------------------------------------

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self.options.model,
            "object": "model",
            "created": int(self._created),
            "owned_by": "vllm",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.options.max_model_len,
            "permission": [],
        }
        return _json({"object": "list", "data": [model]})

    async def _metrics(self, request: web.Request) -> web.Response:
        # Without the slash vLLM ignores the filter.
        names = request.query.getall("name[]", None) if request.path.endswith("/") else None
        fault = self.faults.metrics
        if fault is MetricsFault.SLOW:
            await asyncio.sleep(self.faults.seconds)
        elif fault is MetricsFault.DOWN:
            return web.Response(status=500, text="Internal Server Error")
        elif fault is MetricsFault.HTML:
            return web.Response(text="<!DOCTYPE html>\n<html><body>Sign in</body></html>\n", content_type="text/html")
        page = b"" if fault is MetricsFault.EMPTY else self.page.render(names)
        if fault is MetricsFault.HALF:
            page = page[: len(page) // 2]
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    # -- what vLLM does not have -----------------------------------------------------------------------------------

    async def _requests(self, _request: web.Request) -> web.Response:
        return _json(self.journal.dump(self.engine))

    async def _forget_requests(self, _request: web.Request) -> web.Response:
        self.journal.clear()
        return web.Response(status=204)

    async def _request_body(self, request: web.Request) -> web.Response:
        body = self.journal.body(int(request.match_info["seq"]))
        if body is None:
            raise web.HTTPNotFound
        return web.Response(body=body, content_type="application/octet-stream")

    async def _show_faults(self, _request: web.Request) -> web.Response:
        return _json(self.faults.to_json())

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            given = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise ApiError(400, f"faults: {error}") from None
        self.faults = Faults.from_json(given)
        self.driver.hang(self.faults.hang)
        return _json(self.faults.to_json())


async def serve(server: SimServer, host: str, port: int, stop: asyncio.Event, ready: Callable[[int], None]) -> None:
    """Serve until ``stop`` is set; ``ready`` gets the port, which matters when 0 was asked for. OSError: not free."""
    runner = web.AppRunner(
        server.app(),
        access_log=None,
        handler_cancellation=True,  # a client that leaves ends its request
        shutdown_timeout=_STOP_SECONDS,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        ready(runner.addresses[0][1])
        await stop.wait()
    finally:
        await runner.cleanup()


_STREAM_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _refuse(error: ApiError, api: Api | None = None) -> web.Response:
    body = error.body()
    if api is Api.MESSAGES:  # Anthropic's shape knows no code
        body = {"type": "error", "error": {"type": error.kind, "message": str(error)}}
    return _json(body, error.status)


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every error is JSON: none shows a stack trace."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refuse(error)
    except web.HTTPRequestEntityTooLarge:
        return _refuse(ApiError(413, f"The body is longer than {MAX_BODY_BYTES} bytes.", "Request Entity Too Large"))
    except web.HTTPException as error:
        # Starlette's shape for unknown paths and methods.
        return _json({"detail": error.reason}, error.status)
    except ConnectionError:
        return web.Response()  # nobody is there to read it; aiohttp drops it in silence
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _refuse(ApiError(500, "", "InternalServerError"))


async def _empty(_request: web.Request) -> web.Response:
    return web.Response()


async def _version(_request: web.Request) -> web.Response:
    return _json({"version": VERSION})
