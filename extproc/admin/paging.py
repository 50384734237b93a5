"""Pages of a list: how many entries, and where the next page begins.

A page token says what it was given for, so that one from another list, another filter or another process is refused
instead of skipping entries in silence. It is opaque to clients, and nothing secret: it holds places, not contents.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any, Final

from extproc.admin.errors import invalid

_LONGEST_TOKEN: Final = 2048  # characters


def page_size(asked: int, *, default: int, most: int, field: str = "page_size") -> int:
    """0 means the default; more than the most is the most. Raises AdminError for a negative one."""
    if asked < 0:
        raise invalid(field, f"must be 0 for {default}, or from 1 to {most}, not {asked}")
    return min(asked or default, most)


def to_token(scope: str, *place: str | int | bool) -> str:
    """`scope`: the list, its filter, and whatever else the place means nothing without."""
    text = json.dumps([_mark(scope), *place], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def from_token(scope: str, token: str, *types: type) -> tuple[Any, ...] | None:
    """The place, one value of each of `types`. None: no token, the first page. Raises AdminError."""
    if not token:
        return None
    try:
        if len(token) > _LONGEST_TOKEN:
            raise ValueError
        found = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise invalid("page_token", "is none that was given here; leave it out for the first page") from None
    if not isinstance(found, list) or [type(each) for each in found] != [str, *types]:
        raise invalid("page_token", "is none that was given for this list; leave it out for the first page")
    mark, *place = found
    if mark != _mark(scope):
        raise invalid(
            "page_token",
            "was given for another list or filter, or before a restart; leave it out for the first page",
        )
    return tuple(place)


def _mark(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:12]
