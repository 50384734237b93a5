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
from itertools import islice

import orjson

LARGE = 1 << 18  # bytes above which a body is not built, and the bytes from either end in which members are looked for
MAX_ELEMENTS = 128  # of a list; more are not told apart, as a request never takes more slots
_MAX_TOKENS = 12_000  # strings and brackets looked at from either end
_MAX_STEPS = 24_000  # through a list whose elements are counted
_MAX_GAP = 1 << 20  # bytes outside strings that are looked at for the same
_MAX_HITS = 8  # of one name where depth is not known
_FAR = 1 << 22  # bytes from either end in which a model's name is looked for
_MAX_OBJECT = 4096  # bytes of `stream_options` and `parameters`

SCALARS = ("model", "stream", "n", "max_completion_tokens", "max_tokens", "max_output_tokens")
OBJECTS = ("stream_options", "parameters")
PROMPTS = ("messages", "prompt", "input", "inputs", "texts", "documents")

_NAMES = {b'"%s"' % name.encode(): name for name in (*SCALARS, *OBJECTS, *PROMPTS)}
_TOKEN = re.compile(rb'[\[\]{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_KEY = re.compile(rb'(?<!\\)(?:%s)[ \t\r\n]{0,64}:' % b"|".join(map(re.escape, _NAMES)))
_COLON = re.compile(rb"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}")
_SCALAR = re.compile(
    rb'("[^"\\]{0,1024}+(?:\\.[^"\\]{0,1024}+){0,64}+"|true|false|null|-?[0-9][0-9.eE+-]{0,40})(?=[ \t\r\n,}])', re.DOTALL
)
_OBJECT = re.compile(rb"\{[^{}]{0,%d}\}" % _MAX_OBJECT)
_LIST = re.compile(rb'\[[ \t\r\n]{0,64}(?=(["\[{]))')
_INNER = re.compile(rb'["\[\]{}]')
_OUTER = re.compile(rb'["\[\]{},]')

Found = dict[str, int]  # where the value of a member begins


def members(text: bytes) -> Found:
    """The outermost members of `SCALARS`, `OBJECTS` and `PROMPTS` that can be found; of duplicates, the last."""
    head, head_end = _from_start(text)
    tail, tail_start = _from_end(text, max(head_end, len(text) - LARGE))
    found = head | tail
    near = ((head_end, LARGE), (max(head_end, len(text) - LARGE), tail_start))
    far = ((head_end, _FAR), (max(head_end, len(text) - _FAR), tail_start))
    for name in (*SCALARS, *OBJECTS, *PROMPTS):
        if name in found or (name in PROMPTS and "messages" in found):
            continue
        for start, stop in far if name == "model" else near:
            value = _anywhere(text, name, start, stop)
            if value is not None:
                found[name] = value
                break
    return found


def _from_start(text: bytes) -> tuple[Found, int]:
    """Members in front, and how far they are all known."""
    found: Found = {}
    depth = 0
    end = min(LARGE, len(text))
    for token in islice(_TOKEN.finditer(text, 0, end), _MAX_TOKENS):
        word = token[0]
        if word in b"[{":
            depth += 1
        elif word in b"]}":
            depth -= 1
        elif depth == 1 and word in _NAMES and (colon := _COLON.match(text, token.end())):
            found[_NAMES[word]] = colon.end()
        last = token.end()
    else:
        return found, end if _covered(text, end) else last
    return found, last


def _covered(text: bytes, end: int) -> bool:
    return end == len(text)
