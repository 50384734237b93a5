"""Members added to a JSON body by its bytes: what the client sent stays as it was sent.

A body that is parsed and written again is another body: key order, spacing, integers beyond 2^53, duplicate keys
and escapes change, and so do signatures and prefix caches that hang on them. So ours are put before the closing
brace of the outermost object. RFC 8259 leaves the meaning of a name that comes twice open; Python's json, orjson
and pydantic take the last, so the engine reads our value and not the client's, however the client spelt the name
("\\u0070riority"). Readers made by serde (TGI's, Dynamo's, that of vLLM's Rust frontend) refuse a name that they know
if it comes twice: TGI does not know `priority`, `stream_options` is to be added only where the client gave none, and
`model` cannot be rewritten for any of them.

Nothing is parsed. A broken body stays broken: wherever its fault is, the text in front of ours ends in what no
JSON can go on from. Bodies that begin or end with something else than a brace are not touched: compressed ones,
arrays, UTF-16. An engine that reads UTF-16 (Python's json does, by its zero bytes) then takes the client's own
value, so let such bodies be refused where the priority goes by the body.
"""

from __future__ import annotations

import re

import orjson

_BLANK = b" \t\r\n"  # JSON's white space; bytes.strip() would also take form feeds
_OPEN = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")  # Python's json.loads(bytes) accepts a byte order mark
_EMPTY = re.compile(rb"[ \t\r\n]*\}")


def members(priority: int | None = None, include_usage: bool = False, model: str | None = None) -> bytes:
    """The text for `append_members`: members of a JSON object without braces and without a leading comma.

    `include_usage` replaces the whole `stream_options`. An engine refuses it on a request that is no stream. `model`
    replaces the client's.
    """
    parts = []
    if model is not None:
        parts.append(b'"model":' + orjson.dumps(model))
    if priority is not None:
        parts.append(b'"priority":%d' % priority)
    if include_usage:
        parts.append(b'"stream_options":{"include_usage":true}')
    return b",".join(parts)


def append_members(body: bytes, members: bytes) -> bytes | None:
    """`body` with `members` as the last members of its outermost object. One copy.

    None: the body is no JSON object by its first and last bytes that are not blank. Pass it on as it is.
    """
    opened = _OPEN.match(body)
    close = body.rfind(b"}")
    if opened is None or close < opened.end() or body[close + 1 :].strip(_BLANK):
        return None
    if not members:
        return body
    comma = b"" if _EMPTY.match(body, opened.end()) else b","
    view = memoryview(body)
    return b"".join((view[:close], comma, members, view[close:]))
