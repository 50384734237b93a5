"""Facts of a JSON body by searches over its bytes, for bodies that are too large to be built as objects.

Facts that shaped it:
- Building costs by the number of values: 20 MB of `[],` take four seconds and 700 MB, and the event loop stands still.
  Here one pass at C level may see every byte, and whatever costs Python time has a fixed number of steps. `LARGE`
  bytes from either end are looked at, as clients write the parameters before or behind the conversation.
- Inside a string each quote is escaped, so text cannot fake a member. Strings that are cut off by the end of what is
  looked at are known as such, and depth is counted from the outermost brace on, or from the last one back.
- Where the steps do not suffice, a member is taken wherever it stands, so a nested one may be taken for it. That, a
  name written with `\\u` escapes and a duplicate between the two ends are read otherwise than by the engine. Only that
  client's own request is judged wrongly; rules that must not be passed belong to the engine.
- It is not noticed that such a body is no JSON: the engine refuses it.

Left out: a tokenizer of the whole in Python (a second for 20 MB).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import orjson

LARGE = 1 << 18  # bytes above which a body is not built, and the bytes from either end in which members are looked for
MAX_ELEMENTS = 128  # of a list; more are not told apart, as a request never takes more slots
_MAX_TOKENS = 5000  # strings and brackets looked at from either end
_MAX_STEPS = 4000  # through all lists whose elements are counted
_MAX_LISTS = 1 << 20  # bytes of all of them that are read
_MAX_HITS = 8  # of one name where depth is not known
_FAR = 1 << 22  # bytes from either end in which a model's name is looked for
_MAX_OBJECT = 4096  # bytes of `stream_options` and `parameters`

SCALARS = ("model", "stream", "n", "max_completion_tokens", "max_tokens", "max_output_tokens")
OBJECTS = ("stream_options", "parameters")
INNER = "max_new_tokens"  # in `parameters`
PROMPTS = ("messages", "prompt", "input", "inputs", "texts", "documents")

_NAMES = {b'"%s"' % name.encode(): name for name in (*SCALARS, *OBJECTS, *PROMPTS)}
_DEPTH = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_TOKEN = re.compile(rb'[\[\]{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}")
_SCALAR = re.compile(
    rb'("[^"\\]{0,1024}+(?:\\.[^"\\]{0,1024}+){0,64}+"|true|false|null|-?[0-9][0-9.eE+-]{0,40})(?=[ \t\r\n,}])',
    re.DOTALL,
)
_OBJECT = re.compile(rb"\{[^{}]{0,%d}\}" % _MAX_OBJECT)
_LIST = re.compile(rb'\[[ \t\r\n]{0,64}(?=(["\[{]))')
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # of a string
_INNER = re.compile(rb'["\[\]{}]')
_OUTER = re.compile(rb'["\[\]{},]')

Found = dict[str, int]  # where the value of a member begins


def members(text: bytes) -> Found:
    """The outermost members of `SCALARS`, `OBJECTS` and `PROMPTS` that can be found; of duplicates, the last."""
    head, known = _from_start(text)
    tail, tail_start = _from_end(text, max(known, len(text) - LARGE))
    found = head | tail
    near = ((known, LARGE), (max(known, len(text) - LARGE), tail_start))
    far = ((known, _FAR), (max(known, len(text) - _FAR), tail_start))
    for name in (*PROMPTS, *SCALARS, *OBJECTS):
        if name in found or (name in PROMPTS and "messages" in found):
            continue
        for start, stop in far if name == "model" else near:
            value = _anywhere(text, name, start, min(stop, tail_start))
            if value is not None:
                found[name] = value
                break
    return found


def _from_start(text: bytes) -> tuple[Found, int]:
    """Members in front, and up to where all are known."""
    found: Found = {}
    depth = steps = last = 0
    for token in islice(_TOKEN.finditer(text, 0, LARGE), _MAX_TOKENS):
        steps += 1
        last = token.end()
        word = token[0]
        if word in _DEPTH:
            depth += _DEPTH[word]
        elif depth == 1 and word in _NAMES and (colon := _COLON.match(text, last)):
            found[_NAMES[word]] = colon.end()
    return found, last if steps == _MAX_TOKENS else min(LARGE, len(text))


def _from_end(text: bytes, start: int) -> tuple[Found, int]:
    """Members behind, and from where on all are known."""
    firsts = [key for name in _NAMES if (key := _key(text, name, start, len(text))) is not None]
    lasts = [key for name in _NAMES if (key := text.rfind(name, start)) >= 0 and _is_key(text, name, key)]
    for begin in (min(firsts, default=None), max(lasts, default=None)):
        if begin is None:
            continue
        seen: list[tuple[int, bytes, int]] = []
        depth = steps = 0
        for token in islice(_TOKEN.finditer(text, begin), _MAX_TOKENS):
            steps += 1
            word = token[0]
            if word in _DEPTH:
                depth += _DEPTH[word]
            elif word in _NAMES and (colon := _COLON.match(text, token.end())):
                seen.append((depth, word, colon.end()))
        if steps < _MAX_TOKENS:  # the end is reached, where no brace is open
            return {_NAMES[word]: value for level, word, value in seen if level == depth + 1}, begin
    return {}, len(text)


def _key(text: bytes, name: bytes, start: int, stop: int) -> int | None:
    for _ in range(_MAX_HITS):
        start = text.find(name, start, stop)
        if start < 0:
            return None
        if _is_key(text, name, start):
            return start
        start += len(name)
    return None


def _is_key(text: bytes, name: bytes, at: int) -> bool:
    return text[at - 1 : at] != b"\\" and _COLON.match(text, at + len(name)) is not None


def _anywhere(text: bytes, name: str, start: int, stop: int) -> int | None:
    """The first member of this name, at any depth, whose value is of the kind that is looked for."""
    quoted = b'"%s"' % name.encode()
    for _ in range(_MAX_HITS):
        key = _key(text, quoted, start, stop)
        if key is None:
            return None
        start = key + len(quoted)
        colon = _COLON.match(text, start)
        value = start if colon is None else colon.end()
        if name in SCALARS or name == INNER:
            fits = _SCALAR.match(text, value) is not None
        else:
            fits = text[value : value + 1] in ((b"{",) if name in OBJECTS else (b"[", b'"'))
        if fits:
            return value
    return None


def inner_scalar(text: bytes, at: int | None) -> object:
    """The value of `INNER` in the object that begins there, if it stands among its first bytes."""
    if at is None or text[at : at + 1] != b"{":
        return None
    return scalar(text, _anywhere(text, INNER, at, at + _MAX_OBJECT))


def scalar(text: bytes, at: int | None) -> object:
    """The value that begins there; None if it is none, or a very long string."""
    found = None if at is None else _SCALAR.match(text, at)
    return None if found is None else _loaded(found[1])


def flat_object(text: bytes, at: int | None) -> object:
    """The value that begins there, if it is an object without objects in it, or a scalar. `{}` stands for others."""
    if at is None:
        return None
    found = _OBJECT.match(text, at)
    if found is not None:
        return _loaded(found[0])
    return scalar(text, at) if _SCALAR.match(text, at) else {}


def _loaded(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def most_elements(text: bytes, lists: Iterable[tuple[int | None, bool]]) -> int:
    """How many strings or lists (or objects, if true stands beside it) the longest of the lists holds that begin there.

    Up to `MAX_ELEMENTS`, which also stands for those that take too many steps; 0: there is no such list.
    """
    most = 0
    steps, room = iter(range(_MAX_STEPS)), _MAX_LISTS
    for at, objects in lists:
        count, read = _elements(text, at, objects, steps, room)
        most = max(most, count)
        room -= read
        if most == MAX_ELEMENTS:
            break
    return most


def _elements(text: bytes, at: int | None, objects: bool, steps: Iterator[int], room: int) -> tuple[int, int]:
    """The count, and the bytes read for it out of `room`."""
    begin = None if at is None else _LIST.match(text, at)
    if begin is None or (begin[1] == b"{" and not objects):
        return 0, 0
    count = depth = 1
    pos = begin.end()
    limit = pos + room
    for _ in steps:
        found = (_OUTER if depth == 1 else _INNER).search(text, pos, limit)
        if found is None:
            break
        pos = found.end()
        word = found[0]
        if word == b'"':
            string = _REST.match(text, pos, limit)
            if string is None:
                break
            pos = string.end()
        elif word == b",":
            count += 1
            if count == MAX_ELEMENTS:
                break
        else:
            depth += _DEPTH[word]
            if depth == 0:
                return count, pos - begin.end()
    return MAX_ELEMENTS, room
