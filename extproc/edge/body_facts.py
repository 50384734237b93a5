"""What a request's body says: model, limits, size of the prompt, and hashes by which equal prefixes are found.

Facts that shaped it:
- The body is the client's. Whatever it holds gives facts with a reason, and nothing raises. `facts.py` checks types
  and ranges; here values are only found. JSON is read once, by orjson: NaN, half surrogates and nesting beyond 1024
  are no JSON to it.
- One body must not hold up the others: 20 MB of empty lists take orjson four seconds. Bodies beyond `LARGE`, and those
  with very many braces, are not built but searched (`json_scan.py`, with what is lost by that). An ordinary one gives
  the same facts either way.
- The size that predicts prompt tokens is that of the body without inline media: an image of 2 MB in base64 is some
  hundred tokens. The scale from bytes to tokens is learnt, so keys and braces need not be taken out.
- Prefix hashes are taken over the raw bytes from where the prompt's value begins. A conversation that goes on
  repeats its bytes; what stands in front (model, temperature) does not count.
- Forms (audio uploads) name the model in a field, often behind the file. The file is counted, never copied. What the
  parser takes byte by byte (headers, blanks behind a boundary) is measured first and refused where it is long.

Left out: exact token counts (the engine's tokenizer would be needed), compressed bodies (an engine that inflates
them is not known, and a bomb is easily built), the order of duplicate keys (the last counts, as in the engines).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

import orjson
from python_multipart.multipart import MultipartParser, parse_options_header

from extproc.edge import inline_media, json_scan
from extproc.edge.json_scan import LARGE

MAX_BRACES = 3000  # `{` and `[`, those in strings included, beyond which a body is searched; each may cost 1 us
PREFIX_BYTES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
MAX_PARTS = 100  # of a form; each costs Python time, and 20 MB hold millions of empty ones
_MAX_HEADER = 1024  # bytes in front of a part's data
_MAX_HEADERS = 16 << 10  # of a form's parts together; the parser takes 1 ms for the worst KiB
_MAX_VALUE = 1024  # bytes of a form field that are kept
_MAX_BEFORE = 2 * LARGE  # bytes in front of the prompt's candidates that are read again, in all

Scalar = str | int | float | bool | None

_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*{")
_JSON = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json")
_BOM = b"\xef\xbb\xbf"
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_PROMPTS = ("messages", "prompt", "input", "inputs")  # the order in which the start of the prompt is looked for
_LISTS = ("prompt", "input", "inputs", "texts", "documents")  # members that may hold several prompts
_IMAGES = frozenset({"image", "image_url", "input_image"})
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})  # what engines take for true in a form
_FIELDS = frozenset({"model", "stream", "stream_include_usage", "n", *_LIMITS})

# The parser warns of each faulty form, so any client could fill the log. The reason goes into the answer.
_SILENT = logging.Logger("multipart", logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """Values as sent, with their types; lists and objects where a scalar belongs are None."""

    model: Scalar = None
    stream: bool = False
    max_output: Scalar = None  # the first given limit of the answer's length, in tokens
    n: Scalar = None
    include_usage: bool = False
    stream_options_given: bool = False  # present and not null
    malformed: str | None = None  # why nothing can be read; None: it can
    is_object: bool = False  # it is a JSON object
    text_bytes: int = 0  # bytes of the body without base64 media and file parts
    file_bytes: int = 0  # bytes of a form's file parts
    images: int = 0
    prompts: int = 1  # prompts of a list, each of which takes a slot; a list of token ids is one
    prefix: tuple[int, ...] = ()  # hashes of the prompt's first PREFIX_BYTES, shortest first, full lengths only


def read(content_type: str, content_encoding: str, body: bytes) -> BodyFacts:
    """Facts of a whole request body. Never raises for what a client can send."""
    coding = content_encoding.strip().lower()
    # Engines do not look at that header, so a body that is an object as it stands is one whatever it says.
    if coding not in ("", "identity") and not _OBJECT.match(body):
        return _unreadable(f"the body is compressed (content-encoding: {_shown(coding)})", body)
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _form(content_type, body)
    if _JSON.fullmatch(kind):
        return _json(body)
    if not kind:
        return _unreadable("the request has no content-type; application/json is expected", body)
    return _unreadable(f"the content-type {_shown(kind)} is neither application/json nor multipart/form-data", body)


def _unreadable(reason: str, body: bytes) -> BodyFacts:
    return BodyFacts(malformed=reason, text_bytes=len(body))


def _shown(text: str) -> str:
    """A client's words, fit for an error message."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:40])


# --- JSON


def _json(body: bytes) -> BodyFacts:
    text = body[len(_BOM) :] if body.startswith(_BOM) else body  # engines in Python accept the mark
    text = text.strip()
    if not text:
        return _unreadable("the body is empty", body)
    if len(text) > LARGE or text.count(b"{") + text.count(b"[") > MAX_BRACES:
        return _searched(text, body)
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _unreadable(f"the body is not JSON ({error})", body)
    if not isinstance(parsed, dict):
        return _unreadable("the body is JSON, but no object", body)
    options = parsed.get("stream_options")
    parameters = parsed.get("parameters")  # TGI's
    nested = parameters if isinstance(parameters, dict) else {}
    limits = (*(_scalar(parsed.get(key)) for key in _LIMITS), _scalar(nested.get("max_new_tokens")))
    uris, shown = inline_media.data_uris(text)
    images, encoded = _parts(parsed)
    return BodyFacts(
        model=_scalar(parsed.get("model")),
        stream=parsed.get("stream") is True,
        max_output=next((limit for limit in limits if limit is not None), None),
        n=_scalar(parsed.get("n")),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        stream_options_given=options is not None,
        is_object=True,
        text_bytes=max(0, len(body) - uris - encoded),
        images=max(images, shown),
        prompts=_prompts(parsed),
        prefix=_prefix(parsed, text),
    )


def _searched(text: bytes, body: bytes) -> BodyFacts:
    """Facts of an object that is too large to be built, or has too many members."""
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return _unreadable("the body is not JSON, or no object", body)
    found = json_scan.members(text)
    get = found.get
    options = json_scan.flat_object(text, get("stream_options"))
    limits = (
        *(_scalar(json_scan.scalar(text, get(key))) for key in _LIMITS),
        _scalar(json_scan.inner_scalar(text, get("parameters"))),
    )
    uris, shown = inline_media.data_uris(text)
    start = next((found[key] for key in _PROMPTS if key in found and not _is_null(text, found[key])), None)
    chat = "messages" in found and not _is_null(text, found["messages"])
    lists = [(get(name), name == "documents") for name in _LISTS if not (chat and name == "documents")]
    return BodyFacts(
        model=_scalar(json_scan.scalar(text, get("model"))),
        stream=json_scan.scalar(text, get("stream")) is True,
        max_output=next((limit for limit in limits if limit is not None), None),
        n=_scalar(json_scan.scalar(text, get("n"))),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        stream_options_given=options is not None,
        is_object=True,
        text_bytes=max(0, len(body) - uris - inline_media.data_members(text, uris)),
        images=max(
            shown,
            text.count(b'"image_url":', 0, inline_media.MAX_TEXT)
            + text.count(b'"type":"image"', 0, inline_media.MAX_TEXT),
        ),
        prompts=max(1, json_scan.most_elements(text, lists)),
        prefix=() if start is None else _hashes(start, text),
    )


def _is_null(text: bytes, at: int) -> bool:
    return text.startswith(b"null", at)


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, str | int | float) else None  # bool is an int


def _parts(parsed: dict[str, Any]) -> tuple[int, int]:
    """Images among the parts of messages, and bytes of base64 that stand there without a `data:` URI."""
    images = encoded = 0
    stack: list[Any] = [parsed.get("messages"), parsed.get("input")]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            if node and isinstance(node[0], dict | str):  # not through a million token ids
                stack.extend(item for item in node if isinstance(item, dict))
        elif isinstance(node, dict):
            kind = node.get("type")
            images += kind in _IMAGES if isinstance(kind, str) else "image_url" in node
            for key in ("source", "input_audio"):  # Anthropic's images and documents; OpenAI's audio
                inner = node.get(key)
                data = inner.get("data") if isinstance(inner, dict) and inner.get("type") != "text" else None
                if isinstance(data, str) and not data.startswith("data:"):
                    encoded += len(data)
            content = node.get("content")
            if isinstance(content, list):
                stack.append(content)
    return images, encoded


def _prompts(parsed: dict[str, Any]) -> int:
    """The most that any member could mean: which one the engine reads depends on the path."""
    return max(1, *(_listed(name, parsed) for name in _LISTS))


def _listed(name: str, parsed: dict[str, Any]) -> int:
    value = parsed.get(name)
    if not isinstance(value, list) or not value:
        return 0
    # Objects in `input` are the turns of one conversation (/v1/responses); in `documents` each is ranked by itself, but
    # beside `messages` they are the context of a chat.
    if name == "documents":
        return 0 if parsed.get("messages") is not None else len(value)
    return len(value) if isinstance(value[0], str | list) else 0


def _prefix(parsed: dict[str, Any], body: bytes) -> tuple[int, ...]:
    name = next((key for key in _PROMPTS if parsed.get(key) is not None), None)
    start = None if name is None else _value_of(name, body)
    return () if start is None else _hashes(start, body)


def _hashes(start: int, body: bytes) -> tuple[int, ...]:
    hashes = []
    digest = blake2b(digest_size=8)
    done = 0
    for size in PREFIX_BYTES:
        if start + size > len(body):
            break
        digest.update(body[start + done : start + size])
        hashes.append(int.from_bytes(digest.digest()))
        done = size
    return tuple(hashes)


def _value_of(name: str, body: bytes) -> int | None:
    """Where the value of the outermost object's member `name` begins, in a body that is known to be JSON."""
    room = _MAX_BEFORE
    for found in islice(re.finditer(rb'(?<!\\)"%s"[ \t\r\n]*:[ \t\r\n]*' % name.encode(), body), 8):
        room -= found.start()
        if room < 0:
            return None
        # Exactly one brace is open in front of it if one more member and one brace make it whole.
        try:
            orjson.loads(body[: found.start()] + b'"":0}')
        except orjson.JSONDecodeError:
            continue
        return found.end()
    return None


# --- forms


@dataclass(slots=True)
class _Form:
    """Collects what `MultipartParser` calls back. A part with a file name is a file."""

    values: dict[str, str] = field(default_factory=dict)
    text_bytes: int = 0
    file_bytes: int = 0
    whole: bool = False  # the last boundary was seen
    _header: bytes = b""
    _value: bytes = b""
    _name: str | None = None
    _file: bool = False
    _kept: bytearray = field(default_factory=bytearray)

    def on_part_begin(self) -> None:
        self._name, self._file, self._kept = None, False, bytearray()
        self._header = self._value = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"name")
            self._name = None if name is None else name.decode("utf-8", "replace")
            self._file = b"filename" in options
        self._header = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file:
            self.file_bytes += end - start
            return
        self.text_bytes += end - start
        if self._name in _FIELDS:
            room = _MAX_VALUE - len(self._kept)
            self._kept += data[start : min(end, start + room)]

    def on_part_end(self) -> None:
        if self._name in _FIELDS and not self._file:
            self.values[self._name or ""] = self._kept.decode("utf-8", "replace")

    def on_end(self) -> None:
        self.whole = True


def _form(content_type: str, body: bytes) -> BodyFacts:
    form = _Form()
    try:
        _, options = parse_options_header(content_type.encode("utf-8", "replace"))
        boundary = options.get(b"boundary", b"")
        if not boundary:
            return _unreadable("the form's content-type names no boundary", body)
        fault = _costly(body, b"\r\n--" + boundary)
        if fault is not None:
            return _unreadable(fault, body)
        parser = MultipartParser(boundary, _callbacks(form))
        parser.logger = _SILENT
        parser.write(body)
    except ValueError as error:  # all of the parser's errors are, and those of text encodings
        return _unreadable(f"the form cannot be read ({_shown(str(error))})", body)
    if not form.whole:
        return _unreadable("the form ends before its last boundary", body)
    get = form.values.get
    return BodyFacts(
        model=get("model"),
        stream=get("stream", "").strip().lower() in _TRUE,
        max_output=next((form.values[key] for key in _LIMITS if form.values.get(key)), None),
        n=get("n"),
        include_usage=get("stream_include_usage", "").strip().lower() in _TRUE,
        text_bytes=form.text_bytes,
        file_bytes=form.file_bytes,
    )


def _costly(body: bytes, mark: bytes) -> str | None:
    """What would make the parser slow: many parts, long headers, and blanks behind a boundary, taken one by one."""
    pos = body.find(b"-") - 2  # the first boundary has no line in front
    headers = 0
    for _ in range(MAX_PARTS + 1):
        after = pos + len(mark)
        if body[after : after + 64].strip(b" \t") == b"":
            if after + 64 <= len(body):
                return "the form cannot be read (too many blanks behind a boundary)"
            return None
        if body[after : after + 1] in (b"\r", b" ", b"\t"):
            end = body.find(b"\r\n\r\n", after, after + _MAX_HEADER)
            if end < 0:
                return None if after + _MAX_HEADER > len(body) else "the form cannot be read (a header is too long)"
            headers += end - after
            if headers > _MAX_HEADERS:
                return "the form cannot be read (its headers are too long)"
            after = end + 4
        pos = body.find(mark, after)
        if pos < 0:
            return None
    return f"the form has more than {MAX_PARTS} parts"


def _callbacks(form: _Form) -> Any:
    names = ("part_begin", "header_field", "header_value", "header_end", "part_data", "part_end", "end")
    return {f"on_{name}": getattr(form, f"on_{name}") for name in names}
