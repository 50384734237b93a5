"""Token counts read out of an answer as it passes, in pieces that are cut anywhere.

Facts that shaped it:
- Usage comes in the last chunk, in every chunk (`continuous_usage_stats`: the last counts), split in two (/v1/messages:
  the prompt in message_start, the rest in message_delta), or inside `response` (/v1/responses). `usage: null` says
  nothing.
- OpenAI's `prompt_tokens` contain the cached ones. Anthropic's `input_tokens` do not: the prompt is input_tokens +
  cache_read_input_tokens + cache_creation_input_tokens. vLLM keeps to that since it reports the cache there; before
  it knows of the cache (message_start) it gives the whole prompt. So the three are kept apart and added at the end.
- An engine that sheds load in a stream answers 200 and says so in an event. TGI's errors are strings.
- Keep-alive comments and pings come before the engine has looked at the request, and /v1/responses tells that it
  has begun: none of them is a first token.
- Most chunks carry no count. A search for the few words that matter comes before any JSON is parsed; a word in the
  model's own text is harmless, as its quotes are escaped and the parsed object decides.

Memory: an event over `MAX_EVENT` is not looked at (`skipped`); of a plain JSON answer the last `MAX_TAIL` bytes are
kept, so counts that more than that follows (log-probabilities of a long prompt) are not found. Compressed answers,
audio and the like pass by unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from extproc.core.model import MAX_TOKENS
from extproc.edge.no_room import says_no_room

MAX_EVENT = 1 << 20  # bytes of one event's data
MAX_HELD = 1 << 16  # bytes of an event that may be dropped; usage has some hundred
MAX_TAIL = 1 << 20  # bytes of a plain JSON answer

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOUNDARY = (b"\n\n", b"\r\n\r\n")
# Events that come before the first token: Anthropic's and OpenAI's.
_BEFORE = frozenset({"ping", "error", "response.created", "response.queued", "response.in_progress", "response.failed"})
_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_COUNTS = re.compile(rb'(?<!\\)"(?:usage|details)"[ \t\r\n]*:')
_CHOICE = re.compile(rb'"choices"[ \t]*:[ \t]*\[[ \t]*[^ \t\]]')


@dataclass(frozen=True, slots=True)
class Metered:
    prompt_tokens: int | None  # cached ones included
    output_tokens: int | None
    cached_tokens: int | None
    error: bool  # the engine reported an error
    done: bool  # the answer came to its proper end
    no_room: bool = False  # the error says that the engine is full


class Meter:
    """Reads one answer. `feed` every piece of its body, then look at `result`; both at any time.

    `drop_usage_chunk`: take out the event that `stream_options.include_usage` adds, for a client that has not asked
    for it. Then, and only then, bytes are held back: of the event that is not complete, while it may be that one.
    """

    def __init__(self, content_type: str, content_encoding: str = "", *, drop_usage_chunk: bool = False) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        plain = content_encoding.strip().lower() in ("", "identity")
        self._tally = _Tally()
        self._events = _Events(self._tally, drop_usage_chunk) if plain and kind == "text/event-stream" else None
        json = plain and (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")))
        self._document = _Document(self._tally) if json else None
        self._seen = False

    def feed(self, chunk: bytes, last: bool) -> bytes:
        """What is to be passed on: `chunk` itself unless something is dropped or held back. Never raises."""
        if self._events is not None:
            return self._events.feed(chunk, last)
        self._seen = self._seen or bool(chunk)
        if self._document is not None:
            self._document.feed(chunk, last)
        return chunk

    @property
    def first_token(self) -> bool:
        """The engine has begun to answer: an event that is no comment, ping or error. Otherwise any byte."""
        return self._seen if self._events is None else self._events.first_token

    @property
    def skipped(self) -> int:
        """Events that were too large to look at."""
        return 0 if self._events is None else self._events.skipped

    @property
    def result(self) -> Metered:
        return self._tally.result()


class _Tally:
    """What the objects of an answer say, the last word counting."""

    def __init__(self) -> None:
        self.error = False
        self.no_room = False
        self.done = False
        self._prompt: int | None = None  # OpenAI's: all of it
        self._input: int | None = None  # Anthropic's: what was neither read from the cache nor written to it
        self._cache_read: int | None = None
        self._cache_written: int | None = None
        self._cached: int | None = None
        self._output: int | None = None

    def read(self, parsed: dict[str, Any]) -> None:
        self._usage(_object(parsed, "usage"))
        if "response" in parsed:
            response = _object(parsed, "response")
            self._usage(_object(response, "usage"))
            if _failed(response):
                self._failure(response)
        if "message" in parsed:
            # The output of message_start is no count but a beginning: a client that leaves after it has had more.
            self._inputs(_object(_object(parsed, "message"), "usage"))
        if "details" in parsed:
            self._tgi(_object(parsed, "details"))
        kind = parsed.get("type")
        if _failed(parsed) or kind == "error":
            self._failure(parsed)
        if not isinstance(kind, str):
            return
        self.error = self.error or kind == "response.failed"
        self.done = self.done or kind in _ENDS

    def _usage(self, usage: dict[str, Any]) -> None:
        if not usage:
            return
        prompt, output = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
        if output is None:
            output = _tokens(usage.get("output_tokens"))
        total = _tokens(usage.get("total_tokens"))
        if output is None and prompt is not None and total is not None:
            output = max(0, total - prompt)  # embeddings and rerank name no completion
        cached = _tokens(_object(usage, "prompt_tokens_details").get("cached_tokens"))
        if cached is None:
            cached = _tokens(_object(usage, "input_tokens_details").get("cached_tokens"))
        self._prompt = self._prompt if prompt is None else prompt
        self._cached = self._cached if cached is None else cached
        self._output = self._output if output is None else output
        self._inputs(usage)

    def _failure(self, holder: dict[str, Any]) -> None:
        """`holder` has an error. TGI's is a text with its type beside it; that of /v1/responses has its code there."""
        self.error = True
        error = holder.get("error")
        if isinstance(error, dict):
            code, kind = error.get("code"), error.get("type")
        else:
            code, kind = holder.get("code"), holder.get("error_type")
        self.no_room = self.no_room or says_no_room(code, kind)

    def _inputs(self, usage: dict[str, Any]) -> None:
        self._input = _last(self._input, usage.get("input_tokens"))
        self._cache_read = _last(self._cache_read, usage.get("cache_read_input_tokens"))
        self._cache_written = _last(self._cache_written, usage.get("cache_creation_input_tokens"))

    def _tgi(self, details: dict[str, Any]) -> None:
        output = _tokens(details.get("generated_tokens"))
        if output is None:
            return
        self._output = output
        self.done = True
        prefill = details.get("prefill")
        prompt = _tokens(details.get("input_length"))
        if prompt is None and isinstance(prefill, list) and prefill:  # empty unless the client asked for it
            prompt = min(len(prefill), MAX_TOKENS)
        self._prompt = self._prompt if prompt is None else prompt

    def result(self) -> Metered:
        prompt, cached = self._prompt, self._cached
        if prompt is None and self._input is not None:
            prompt = min(self._input + (self._cache_read or 0) + (self._cache_written or 0), MAX_TOKENS)
        cached = self._cache_read if cached is None else cached
        return Metered(prompt, self._output, cached, self.error, self.done, self.no_room)


def _object(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _failed(holder: dict[str, Any]) -> bool:
    error = holder.get("error")
    return isinstance(error, dict | str) and bool(error)


def _tokens(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return int(min(value, MAX_TOKENS))


def _last(before: int | None, value: object) -> int | None:
    count = _tokens(value)
    return before if count is None else count


class _Document:
    """A plain JSON answer: parsed when it has ended. One that is too long is searched from its end."""

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        self._body = bytearray()
        self._cut = False

    def feed(self, chunk: bytes, last: bool) -> None:
        self._body += chunk
        if len(self._body) > 2 * MAX_TAIL:
            del self._body[:-MAX_TAIL]
            self._cut = True
        if not last:
            return
        body, self._body = bytes(self._body), bytearray()
        if self._cut:
            self._search(body)
        else:
            self._whole(body)

    def _whole(self, body: bytes) -> None:
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            return
        if isinstance(parsed, dict):
            self._tally.read(parsed)
            # vLLM's older errors say so in `object`, and FastAPI's have a bare `detail`, which the status tells.
            self._tally.error = self._tally.error or parsed.get("object") == "error"
        self._tally.done = True

    def _search(self, tail: bytes) -> None:
        # A key belongs to the outermost object if what follows it closes exactly one brace.
        for found in islice(reversed(list(_COUNTS.finditer(tail))), 8):
            try:
                parsed = orjson.loads(b"{" + tail[found.start() :])
            except orjson.JSONDecodeError:
                continue
            self._tally.read(parsed)
            self._tally.done = True
            return


class _Events:
    """Server-sent events: lines end with LF, CR or CRLF, an empty one ends the event, `:` begins a comment.

    Unlike a browser it takes the last event also if no empty line follows.
    """

    def __init__(self, tally: _Tally, drop: bool) -> None:
        self.first_token = False
        self.skipped = 0
        self._tally = tally
        self._drop = drop
        self._start = True  # no line has ended yet, so there may be a byte order mark
        self._line = bytearray()  # of the line that has not ended
        self._name = b""  # of the event, from its `event:` line
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._line_size = 0  # bytes, also of what was too much to keep
        self._event_size = 0
        self._fresh = True  # nothing of an event or line is pending
        self._after_cr = False  # an LF that comes now belongs to the line end before it
        # Only where events are dropped:
        self._held = bytearray()  # of the event, not passed on yet
        self._passing = False  # the event is none that is dropped
        self._swallow = False  # the LF after the CR that ended a dropped event

    def feed(self, chunk: bytes, last: bool) -> bytes:
        whole = self._fresh and self.first_token and chunk.endswith(_BOUNDARY) and len(chunk) <= MAX_EVENT
        if whole and not _telling(chunk):
            return chunk  # most pieces are: whole events that say nothing
        out = bytearray() if self._drop else None
        self._lines(chunk, out)
        if last:
            self._finish(out)
        self._fresh = not (self._line_size or self._event_size or self._after_cr)
        if out is None or out == chunk:
            return chunk
        return bytes(out)

    def _lines(self, chunk: bytes, out: bytearray | None) -> None:
        begin = 0
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 0x0A:
                begin = 1
                if out is not None and not self._swallow:
                    (self._held if self._held else out).append(0x0A)
            self._swallow = False
        for end in _LINE_END.finditer(chunk, begin):
            if out is not None:
                self._held += chunk[begin : end.end()]
            self._add(chunk[begin : end.start()])
            self._end_line(out, end.end() == len(chunk) and chunk.endswith(b"\r"))
            begin = end.end()
        if begin < len(chunk):
            self._add(chunk[begin:])
            if out is not None:
                self._held += chunk[begin:]
                self._pass_early(out)
        elif chunk.endswith(b"\r"):
            self._after_cr = True

    def _add(self, part: bytes) -> None:
        self._line_size += len(part)
        if self._event_size + self._line_size <= MAX_EVENT:
            self._line += part
        elif len(self._line) < 8:  # enough to see that the line is not empty, and what it is
            self._line += part[:8]

    def _end_line(self, out: bytearray | None, cr: bool) -> None:
        line, size = bytes(self._line), self._line_size
        self._line.clear()
        self._line_size = 0
        if self._start:
            self._start = False
            line = line.removeprefix(_BOM)
        if not line:
            dropped = self._end_event(out)
            self._swallow = dropped and cr
        elif line.startswith(b":"):
            if out is not None and not self._data:
                self._pass(out)
        else:
            self._event_size += size
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif out is not None:
                self._passing = True
            if field == b"event":
                self._name = value.removeprefix(b" ")
            if out is not None:
                self._pass_early(out)

    def _end_event(self, out: bytearray | None) -> bool:
        """Whether the event was dropped."""
        usage_only = False
        if self._event_size > MAX_EVENT:
            self.skipped += 1
            self.first_token = True
        elif self._data:
            usage_only = self._event(self._name, b"\n".join(self._data))
        dropped = usage_only and out is not None and not self._passing
        if out is not None:
            if dropped:
                comments = (line for line in self._held.splitlines(True) if line.startswith(b":"))
                self._held = bytearray(b"".join(comments))
            self._pass(out)
        self._data = []
        self._name = b""
        self._event_size = 0
        self._passing = False
        return dropped

    def _event(self, name: bytes, data: bytes) -> bool:
        """Takes an event into account. Whether it holds the usage and nothing else."""
        if data == b"[DONE]":
            self._tally.done = True
            return False
        if self.first_token and not _telling(data):
            return False
        parsed: object = None
        if data.startswith(b"{"):
            try:
                parsed = orjson.loads(data)
            except orjson.JSONDecodeError:
                parsed = None
        kind: object = name.decode("utf-8", "replace")
        if isinstance(parsed, dict):
            self._tally.read(parsed)
            kind = parsed.get("type") or kind
            if _failed(parsed):
                kind = "error"
        elif kind == "error":
            self._tally.error = True
        if data and not (isinstance(kind, str) and kind in _BEFORE):
            self.first_token = True
        return isinstance(parsed, dict) and parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict)

    def _finish(self, out: bytearray | None) -> None:
        if self._line:
            self._end_line(out, False)
        self._end_event(out)

    def _pass_early(self, out: bytearray) -> None:
        """Passes on what cannot belong to an event that is dropped."""
        if not self._passing:
            line = self._line.removeprefix(_BOM) if self._start else self._line
            if line.startswith(b":") and not self._data:
                self._pass(out)
                return
            maybe = (
                not line or line.startswith((b"data:"[: len(line)], b":")) or (self._start and _BOM.startswith(line))
            )
            chosen = _CHOICE.search(line) or (self._data and _CHOICE.search(self._data[-1]))
            self._passing = not maybe or bool(chosen) or self._event_size + self._line_size > MAX_HELD
        if self._passing:
            self._pass(out)

    def _pass(self, out: bytearray) -> None:
        out += self._held
        self._held.clear()


def _telling(text: bytes) -> bool:
    """Whether it may hold a count, an error or an end."""
    return (
        b'"usage"' in text
        or b'"error"' in text
        or b"[DONE]" in text
        or b"message_stop" in text
        or b'"generated_tokens"' in text
    )
