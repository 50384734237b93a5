"""What other engines, and vLLM with other models, answer besides generating text from JSON.

    POST /v1/embeddings, /v1/rerank                        one forward pass for each text
    POST /v1/audio/transcriptions, /v1/audio/translations  a form with a file; 50 prompt tokens for a second of sound
    POST /v1/audio/speech                                  JSON in, sound out
    POST /generate, /generate_stream                       TGI's own API

All of it takes slots and steps of the same engine as the rest, so that it waits and is counted like the rest. Left out:
what no test here looks at (the vectors' meaning, the sound, sampling parameters); streams of transcripts.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from typing import Any, Final

import orjson
from aiohttp import HttpVersion11, web

from extproc.sim.answer import Answer, sse, text_of
from extproc.sim.call import Api, Call, Prompt
from extproc.sim.driver import Driver
from extproc.sim.engine import Engine, Event
from extproc.sim.exchange import Exchange, Stream
from extproc.sim.fields import ApiError, JsonObject, boolean, invalid, optional_integer, string
from extproc.sim.journal import Entry, Journal, Outcome
from extproc.sim.sequence import FinishReason

_BYTES_PER_TOKEN: Final = 4
_SOUND_BYTES_PER_SECOND: Final = 32_000  # 16,000 samples of 16 bits
_TOKENS_PER_SECOND: Final = 50
_SPEECH_BYTES_PER_TOKEN: Final = 960
_TRANSCRIPT_TOKENS: Final = 16
_TGI_TOKENS: Final = 100  # TGI's default of max_new_tokens
_MOST_TOKENS: Final = 8_192
_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Work:
    """A valid request: what the engine does, and how the answer is made of its last events."""

    call: Call
    render: Callable[[Sequence[Event]], web.StreamResponse]
    details: bool = False  # of TGI's stream


class OtherRoutes:
    """Adds the routes to an engine's server."""

    def __init__(self, engine: Engine, driver: Driver, journal: Journal, model: str) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._journal: Final = journal
        self._model: Final = model

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/embeddings", self._json(self._embeddings))
        router.add_post("/v1/rerank", self._json(self._rerank))
        router.add_post("/v1/audio/speech", self._json(self._speech))
        router.add_post("/v1/audio/transcriptions", self._form)
        router.add_post("/v1/audio/translations", self._form)
        router.add_post("/generate", self._json(self._generate))
        router.add_post("/generate_stream", self._json(self._generate))

    # -- reading a request -------------------------------------------------------------------------

    def _json(self, read: Callable[[JsonObject], _Work]) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            return await self._run(request, raw, lambda: read(_object(raw)))

        return handle

    async def _form(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        return await self._run(request, raw, lambda: self._transcript(_fields(request.headers["content-type"], raw)))

    def _embeddings(self, body: JsonObject) -> _Work:
        texts = _texts(body, "input")
        call = self._call(body, texts, 1)
        usage = {"prompt_tokens": call.prompt_tokens, "total_tokens": call.prompt_tokens, "completion_tokens": 0}

        def render(_: Sequence[Event]) -> web.StreamResponse:
            vectors = [
                {"index": i, "object": "embedding", "embedding": [p.checksum / 2**32, 0.0]}
                for i, p in enumerate(call.prompts)
            ]
            return _answer({"object": "list", "model": self._model, "data": vectors, "usage": usage})

        return _Work(call, render)

    def _rerank(self, body: JsonObject) -> _Work:
        query = string(body, "query") or ""
        documents = _texts(body, "documents")
        call = self._call(body, [query + text for text in documents], 1)

        def render(_: Sequence[Event]) -> web.StreamResponse:
            results: list[dict[str, Any]] = [
                {"index": i, "document": {"text": text}, "relevance_score": p.checksum / 2**32}
                for i, (p, text) in enumerate(zip(call.prompts, documents, strict=True))
            ]
            results.sort(key=lambda each: -each["relevance_score"])
            usage = {"prompt_tokens": call.prompt_tokens, "total_tokens": call.prompt_tokens}
            return _answer({"model": self._model, "usage": usage, "results": results})

        return _Work(call, render)

    def _speech(self, body: JsonObject) -> _Work:
        (text,) = _texts(body, "input")[:1]
        call = self._call(body, [text], _tokens(text))

        def render(ends: Sequence[Event]) -> web.StreamResponse:
            sound = bytes(sum(end.tokens for end in ends) * _SPEECH_BYTES_PER_TOKEN)
            return web.Response(body=sound, content_type="audio/pcm")

        return _Work(call, render)

    def _transcript(self, fields: dict[str, bytes]) -> _Work:
        if "file" not in fields:
            raise invalid("missing", "file", "Field required")
        seconds = len(fields["file"]) / _SOUND_BYTES_PER_SECOND
        prompt = Prompt(max(1, round(seconds * _TOKENS_PER_SECOND)), zlib.crc32(fields["file"]))
        call = self._made((prompt,), _TRANSCRIPT_TOKENS, {"model": fields.get("model", b"").decode(errors="replace")})

        def render(ends: Sequence[Event]) -> web.StreamResponse:
            text = text_of(call.salt(0), ends[0].tokens)
            return _answer({"text": text, "usage": {"type": "duration", "seconds": max(1, round(seconds))}})

        return _Work(call, render)

    def _generate(self, body: JsonObject) -> _Work:
        """TGI knows no model: it runs one."""
        parameters = body.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise invalid("model_attributes_type", "parameters", "Input should be a valid dictionary", parameters)
        given = optional_integer(parameters, "max_new_tokens")
        call = self._call({}, _texts(body, "inputs")[:1], _TGI_TOKENS if given is None else given)
        details = boolean(parameters, "details")

        def render(ends: Sequence[Event]) -> web.StreamResponse:
            (end,) = ends
            answer: dict[str, Any] = {"generated_text": text_of(call.salt(0), end.tokens)}
            if details:
                answer["details"] = {**_details(end, call), "prefill": [], "tokens": []}
            return _answer(answer)

        return _Work(call, render, details)

    def _call(self, body: JsonObject, texts: list[str], max_tokens: int) -> Call:
        prompts = tuple(Prompt(_tokens(text), zlib.crc32(text.encode())) for text in texts)
        return self._made(prompts, max_tokens, body)

    def _made(self, prompts: tuple[Prompt, ...], max_tokens: int, body: JsonObject) -> Call:
        if (model := string(body, "model")) and model != self._model:
            raise ApiError(404, f"The model `{model[:200]}` does not exist.", "NotFoundError", "model")
        if not 1 <= max_tokens <= _MOST_TOKENS or max(p.tokens for p in prompts) > _MOST_TOKENS * 4:
            raise ApiError(400, f"a text and its answer have 1 to {_MOST_TOKENS} tokens.")
        return Call(
            api=Api.COMPLETIONS,  # for the engine they are all the same
            prompts=prompts,
            max_tokens=max_tokens,
            n=1,
            own_length=False,
            priority=0,
            stream=False,
            usage_at_end=False,
            usage_everywhere=False,
        )

    # -- running it --------------------------------------------------------------------------------

    async def _run(self, request: web.Request, raw: bytes, read: Callable[[], _Work]) -> web.StreamResponse:
        entry = self._journal.add(request.path, request.headers, raw, time.time())
        try:
            work = read()
            entry.request_id = f"{uuid.uuid4().hex}-{entry.seq}"
            if request.path == "/generate_stream":
                return await self._stream(request, work, entry, entry.request_id)
            exchange = Exchange(_Tgi(work.call, self._model, "", 0), entry)
            await self._submit(exchange, entry, entry.request_id)
            return work.render(exchange.ends)
        except ApiError as error:
            entry.end(Outcome.REFUSED, time.time(), status=error.status)
            raise
        finally:
            if entry.outcome is None:  # cancelled: the client has left
                tokens = self._engine.tokens(entry.request_id) if entry.request_id else 0
                entry.end(Outcome.ABORTED, time.time(), status=None, tokens=tokens)
            if entry.request_id is not None:
                self._driver.drop(entry.request_id)

    async def _stream(self, request: web.Request, work: _Work, entry: Entry, request_id: str) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM)
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        answer = _Tgi(work.call, self._model, "", 0, details=work.details)
        exchange = Stream(answer, entry, transport, chunked=request.version >= HttpVersion11)
        await self._submit(exchange, entry, request_id)
        await response.write_eof()
        return response

    async def _submit(self, exchange: Exchange, entry: Entry, request_id: str) -> None:
        self._driver.submit(exchange.answer.call.to_request(request_id), exchange)
        await exchange.done
        entry.end(Outcome.FINISHED, time.time(), status=200, tokens=exchange.completion_tokens)


class _Tgi(Answer):
    """TGI's stream: one event for each token, the last one with the whole text; no [DONE]."""

    prefix = ""

    def __init__(self, call: Call, model: str, name: str, created: int, *, details: bool = False) -> None:
        super().__init__(call, model, name, created)
        self._details: Final = details

    def plain(self, ends: Sequence[Event]) -> dict[str, Any]:
        return {"generated_text": self._text(ends[0])}

    def opening(self) -> bytes:
        return b""

    def token(self, event: Event) -> bytes:
        last = event.reason is not None
        return sse(
            {
                "index": event.tokens,
                "token": {
                    "id": event.tokens,
                    "text": orjson.loads(self._word(event)),
                    "logprob": -0.5,
                    "special": False,
                },
                "generated_text": self._text(event) if last else None,
                "details": _details(event, self.call) if last and self._details else None,
            }
        )

    def closing(self, completion_tokens: int) -> bytes:  # noqa: ARG002 - the last token's event has it
        return b""


def _details(end: Event, call: Call) -> dict[str, Any]:
    reason = "length" if end.reason is FinishReason.LENGTH else "eos_token"
    return {
        "finish_reason": reason,
        "generated_tokens": end.tokens,
        "input_length": call.prompt_tokens,
        "seed": None,
    }


def _object(raw: bytes) -> JsonObject:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid("json_invalid", None, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise invalid("model_attributes_type", None, "Input should be a valid dictionary", body)
    return body


def _fields(content_type: str, raw: bytes) -> dict[str, bytes]:
    """The fields of a form by name. A form is what an e-mail with attachments is."""
    message = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + raw)
    parts: Any = message.get_payload() if message.is_multipart() else []
    return {str(part.get_param("name", "", "content-disposition")): _content(part) for part in parts}


def _content(part: Message) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _texts(body: JsonObject, name: str) -> list[str]:
    given = body.get(name)
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not given or not all(isinstance(each, str) and each for each in given):
        raise invalid("string_type", name, "Input should be a valid string", given)
    return given


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def _answer(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
