"""Filters on requests: a part of AIP-160.

    filter      = any | all | term
    any         = term OR term ...
    all         = term AND term ...
    term        = [NOT] "(" filter ")" | [NOT] comparison
    comparison  = field operator value
    operator    = "=" "!=" "<" "<=" ">" ">="
    value       = a word, or anything in double or single quotes, with a backslash before a quote or a backslash

Each field has a type, and a comparison must fit it:

    text        =, !=; "abc*" means all that begin with abc, "\\*" a star
    words       =, != one of a few words, in any case
    durations   all operators; a number with its unit: 250ms, 30s, 5m, 1h
    numbers     all operators
    yes or no   =, != true or false

`timeout_in` of a request that is not held is nothing: it is unequal to every value, and no other comparison holds. An
endpoint or adapter that is not there is the empty text.

AND and OR side by side need parentheses. AIP-160 binds OR tighter than AND, most languages do it the other way round,
and a filter may say what is to be cancelled. Left out of AIP-160: bare words, juxtaposition, "-", ":", functions.

A filter is read once, into one function of a request. What does not ask for times needs no view of it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from extproc.admin.errors import invalid
from extproc.admin.scan import Matches
from extproc.config.schema import meant
from extproc.core.model import Request
from extproc.core.view import request_view

MOST_CHARACTERS: Final = 4096
DEEPEST: Final = 32  # parentheses and NOTs in each other
STATES: Final = ("queued", "released", "running", "ended")

_Get = Callable[[Request, float, str, bool], Any]
_TEXT, _WORD, _DURATION, _NUMBER, _BOOL = "text", "word", "duration", "number", "bool"

_FIELDS: Final[dict[str, tuple[str, _Get]]] = {
    "id": (_TEXT, lambda request, _, __, ___: request.id),
    "pool": (_TEXT, lambda _, __, pool, ___: pool),
    "tenant": (_TEXT, lambda request, _, __, ___: request.tenant),
    "class": (_TEXT, lambda request, _, __, ___: request.cls),
    "state": (_WORD, lambda request, _, __, ___: request.state.value),
    "endpoint": (_TEXT, lambda request, _, __, ___: request.endpoint or ""),
    "adapter": (_TEXT, lambda request, _, __, ___: request.adapter or ""),
    "waited": (_DURATION, lambda request, now, _, __: request_view(request, now).waited_s),
    "inside": (_DURATION, lambda request, now, _, __: request_view(request, now).inside_s),
    "timeout_in": (_DURATION, lambda request, now, _, __: _timeout_in_s(request, now)),
    "cost": (_NUMBER, lambda request, _, __, ___: request.cost),
    "body_bytes": (_NUMBER, lambda request, _, __, ___: request.body_bytes),
    "slots": (_NUMBER, lambda request, _, __, ___: request.slots),
    "observed": (_BOOL, lambda _, __, ___, observed: observed),
}
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_KEYWORDS: Final = ("AND", "OR", "NOT")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER_FORM: Final = re.compile(r"-?\d{1,30}(\.\d{1,30})?([eE][+-]?\d{1,3})?")
_DURATION_FORM: Final = re.compile(r"(-?\d{1,30}(?:\.\d{1,30})?)(ms|s|m|h)")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<paren>[()])
          |(?P<operator><=|>=|!=|=|<|>)
          |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
          |(?P<word>[^\s()<>=!"']+))""",
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str  # a group of `_TOKEN`, or "end"
    text: str
    at: int  # the first character is 1

    @property
    def told(self) -> str:
        return "the end" if self.kind == "end" else repr(_short(self.text))


@dataclass(frozen=True, slots=True)
class Filter:
    """`fields`: those that it names."""

    text: str
    fields: frozenset[str]
    matches: Matches


def parse(text: str) -> Filter:
    """An empty text means every request. Raises AdminError, INVALID_ARGUMENT, with the position of what is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise invalid("filter", f"has {len(text)} characters; {MOST_CHARACTERS} are the most")
    tokens = _tokens(text)
    if tokens[0].kind == "end":
        return Filter(text, frozenset(), lambda *_: True)
    parser = _Parser(tokens)
    matches = parser.filter()
    if parser.token.kind != "end":
        if parser.token.text == ")":
            _wrong(parser.token, "this parenthesis was never opened")
        _wrong(parser.token, f"expected AND or OR, found {parser.token.told}")
    return Filter(text, frozenset(parser.fields), matches)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            what = "this quote is never closed" if text[place] in "\"'" else f"cannot be read: {text[place]!r}"
            _wrong(_Token("", text[place], place + 1), what)
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    found.append(_Token("end", "", len(text) + 1))
    return found


class _Parser:
    """By recursive descent; `token` is the next one."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.fields: set[str] = set()
        self._tokens = iter(tokens)
        self._depth = 0
        self.token = next(self._tokens)

    def filter(self) -> Matches:
        terms = [self._term()]
        joint = self.token
        if not _is_word(joint, "AND") and not _is_word(joint, "OR"):
            self._no_lower_case()
            return terms[0]
        while _is_word(self.token, "AND") or _is_word(self.token, "OR"):
            if self.token.text != joint.text:
                _wrong(self.token, "AND and OR side by side: say with parentheses which goes first")
            self._take()
            terms.append(self._term())
        self._no_lower_case()
        parts = tuple(terms)
        if joint.text == "AND":
            return lambda *about: all(part(*about) for part in parts)
        return lambda *about: any(part(*about) for part in parts)

    def _term(self) -> Matches:
        opening = self.token
        if not (opening.text == "(" and opening.kind == "paren") and not _is_word(opening, "NOT"):
            return self._comparison()
        self._depth += 1
        if self._depth > DEEPEST:
            _wrong(opening, f"more than {DEEPEST} parentheses and NOTs in each other")
        self._take()
        if _is_word(opening, "NOT"):
            inner = self._term()
            found: Matches = lambda *about: not inner(*about)  # noqa: E731
        else:
            found = self.filter()
            if self.token.text != ")" or self.token.kind != "paren":
                _wrong(self.token, f"expected AND, OR or ), found {self.token.told}")
            self._take()
        self._depth -= 1
        return found

    def _comparison(self) -> Matches:
        name = self._take()
        if name.kind != "word" or name.text in _KEYWORDS:
            _wrong(name, f"expected a comparison such as class = batch, found {name.told}")
        field = _FIELDS.get(name.text)
        if field is None:
            _wrong(name, f"{_short(name.text)!r} is no field of a request; {meant(name.text.lower(), _FIELDS)}")
        sign = self._take()
        if sign.kind != "operator":
            _wrong(sign, f"expected one of {' '.join(_OPERATORS)} after {name.text}, found {sign.told}")
        value = self._take()
        if value.kind not in ("word", "quoted") or (value.kind == "word" and value.text in _KEYWORDS):
            _wrong(value, f"expected a value for {name.text}, found {value.told}")
        self.fields.add(name.text)
        kind, get = field
        if kind in (_TEXT, _WORD, _BOOL) and sign.text not in ("=", "!="):
            _wrong(sign, f"{name.text} can be compared by = and !=, not by {sign.text}")
        if kind == _TEXT:
            return _text(get, sign.text, value)
        return _compared(get, _OPERATORS[sign.text], _VALUES[kind](name.text, value))

    def _take(self) -> _Token:
        taken = self.token
        self.token = next(self._tokens, taken)
        return taken

    def _no_lower_case(self) -> None:
        token = self.token
        if token.kind == "word" and token.text.upper() in ("AND", "OR"):
            _wrong(token, f"did you mean {token.text.upper()}? Its letters are capitals")


def _timeout_in_s(request: Request, now: float) -> float:
    seconds = request_view(request, now).timeout_in_s
    return math.nan if seconds is None else seconds


def _compared(get: _Get, compare: Callable[[Any, Any], bool], value: Any) -> Matches:
    return lambda *about: compare(get(*about), value)


def _text(get: _Get, sign: str, token: _Token) -> Matches:
    wanted, starred = _unquoted(token)
    equal = sign == "="
    if starred:
        return lambda *about: get(*about).startswith(wanted) is equal
    return lambda *about: (get(*about) == wanted) is equal


def _unquoted(token: _Token) -> tuple[str, bool]:
    """(the text, whether a star stands for more). Raises AdminError for a star elsewhere than at the end."""
    inner = token.text[1:-1] if token.kind == "quoted" else token.text
    out: list[str] = []
    starred = escaped = False
    for i, each in enumerate(inner):
        if not escaped and each == "\\":
            escaped = True
            continue
        if each == "*" and not escaped:
            if i != len(inner) - 1:
                _wrong(token, 'a * may stand at the end, for anything; for a star write "\\*"')
            starred = True
        else:
            out.append(each)
        escaped = False
    if escaped:
        _wrong(token, "a backslash must stand before a character")
    return "".join(out), starred


def _word(field: str, token: _Token) -> str:
    text = _plain(token).lower()
    if text not in STATES:
        _wrong(token, f"{_short(text)!r} is no {field}; {meant(text, STATES, 'it is one of ')}")
    return text


def _boolean(field: str, token: _Token) -> bool:
    text = _plain(token).lower()
    if text not in ("true", "false"):
        _wrong(token, f"{field} is true or false, not {_short(text)!r}")
    return text == "true"


def _number(field: str, token: _Token) -> float:
    text = _plain(token)
    if _NUMBER_FORM.fullmatch(text) is None:
        _wrong(token, f"{field} is a number, such as 1000 or 0.5, not {_short(text)!r}")
    return float(text)


def _duration(field: str, token: _Token) -> float:
    text = _plain(token)
    match = _DURATION_FORM.fullmatch(text)
    if match is None:
        _wrong(token, f"{field} is a duration with its unit, such as 250ms, 30s, 5m or 1h, not {_short(text)!r}")
    return float(match[1]) * _UNITS[match[2]]


def _plain(token: _Token) -> str:
    return token.text[1:-1] if token.kind == "quoted" else token.text


_VALUES: Final[dict[str, Callable[[str, _Token], Any]]] = {
    _WORD: _word,
    _DURATION: _duration,
    _NUMBER: _number,
    _BOOL: _boolean,
}


def _is_word(token: _Token, word: str) -> bool:
    return token.kind == "word" and token.text == word


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _wrong(token: _Token, what: str) -> NoReturn:
    raise invalid("filter", f"at {token.at}: {what}")
