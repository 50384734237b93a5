"""Base64 media inside a JSON body, found by searches over its bytes.

The work is bounded: the number of media, and the bytes of text among which they are looked for. What comes after counts
as text, so that a client is never charged less for hiding something there.
"""

from __future__ import annotations

import re

MAX_URIS = 256  # inline media looked at in one body; what comes after counts as text
MAX_TEXT = 1 << 22  # bytes of text in a large body among which media are looked for; no engine's context holds it
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-\\"  # some write `\/` for `/`
_URI = b";base64,"
_URI_HEAD = re.compile(rb"data:([A-Za-z]{1,40})\\?/[\w.+-]{1,100}(?:;[\w.=+-]{1,100}){0,4}")
_MAX_URI_HEAD = 560
_MIN_MEDIA = 1024  # bytes of base64 under "data" in a large body that are taken for media


def data_uris(body: bytes) -> tuple[int, int]:
    """Bytes of the base64 in `data:` URIs, headers included, and how many of them are images."""
    total = images = pos = 0
    room = MAX_TEXT
    for _ in range(MAX_URIS):
        mark = body.find(_URI, pos, pos + room)
        if mark < 0:
            break
        room -= mark - pos
        start = body.rfind(b"data:", max(pos, mark - _MAX_URI_HEAD), mark)
        pos = mark + len(_URI)
        head = None if start < 0 else _URI_HEAD.fullmatch(body, start, mark)
        if head is not None:
            pos = _base64_end(body, pos)
            total += pos - start
            images += head[1].lower() == b"image"
    return total, images


def _base64_end(body: bytes, pos: int) -> int:
    """Where the base64 alphabet ends, so that nobody hides a prompt behind an image's header."""
    start = pos
    while pos < len(body):
        # Short pieces first: what is read of the piece behind the end is read again for the next URI.
        piece = body[pos : pos + min(max(1024, (pos - start) // 4), 1 << 16)]
        other = piece.translate(None, _BASE64)
        clean = piece.index(other[:1]) if other else len(piece)
        if b"\\" in piece:
            escape = body.find(b"\\u", pos, pos + clean + 1)
            if 0 <= escape < pos + clean:
                return escape
        if other:
            return pos + clean
        pos += len(piece)
    return pos


def data_members(body: bytes, known: int) -> int:
    """Bytes of base64 that make up a whole value named `"data"`, for a body that is not built.

    `known`: bytes that are known as media already, and do not count for what may be looked through.
    """
    room = MAX_TEXT + known
    total = pos = 0
    for _ in range(MAX_URIS):
        mark = body.find(b'"data":', pos, pos + room)
        if mark < 0:
            break
        room -= mark - pos
        pos = mark + len(b'"data":')
        pos += body.startswith(b" ", pos)
        if body.startswith(b'"', pos):
            start = pos + 1
            pos = _base64_end(body, start)
            if pos - start >= _MIN_MEDIA and body.startswith(b'"', pos):
                total += pos - start
    return total
