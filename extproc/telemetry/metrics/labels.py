"""What may stand in a label's value.

Both formats of the page know three escapes, for backslash, quote and line feed, and all else stands there as it is. So
a lone surrogate breaks the whole page, for it cannot be encoded; a control character may break those who read it; and
a long value costs memory in each of its samples. Two names that differ stay apart after they were cut or mended.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

LONGEST = 128  # characters
_DIGITS = 8  # of the hash
_REPLACEMENT = "\ufffd"


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """`text` as it may stand in a label. Where something had to be changed, a hash of all of it stands at the end."""
    if len(text) <= LONGEST and text.isprintable():
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    kept = "".join(char if char.isprintable() else _REPLACEMENT for char in text[: LONGEST - _DIGITS - 1])
    return f"{kept}~{digest}"
