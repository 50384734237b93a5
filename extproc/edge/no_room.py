"""How engines say that they have no room, in an answer that has begun as a good one.

An engine that sheds a stream has sent its status by then, so it says so in an event. vLLM and SGLang name a code, 503
or 429; where the API has none (/v1/messages) the type alone tells, in several spellings. TGI says "overloaded".
"""

from __future__ import annotations

CODES = frozenset({429, 503})  # of HTTP
_NOT_ITS_FAULT = frozenset({501, 505})  # what was asked for is not there
_TYPES = frozenset(
    {
        "serviceunavailable",
        "serviceunavailableerror",
        "overloaded",
        "overloadederror",
        "ratelimiterror",
        "toomanyrequests",
        "toomanyrequestserror",
    }
)
_LONGEST = 64  # characters of a type


def says_no_room(code: object, kind: object) -> bool:
    """Whether an error with this code and type means that another time, or another engine, may do."""
    number = _number(code)
    if number is not None:
        return number in CODES
    if not isinstance(kind, str) or len(kind) > _LONGEST:
        return False
    return "".join(filter(str.isalpha, kind)).lower() in _TYPES


def says_failure(code: object) -> bool:
    """Whether an error with this code is the engine's fault, and no want of room."""
    number = _number(code)
    return number is not None and 500 <= number < 600 and number not in CODES | _NOT_ITS_FAULT


def _number(code: object) -> float | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        return int(code)
    return code if isinstance(code, int | float) and not isinstance(code, bool) else None
