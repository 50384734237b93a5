"""Reads chosen samples out of a Prometheus text page (exposition format 0.0.4, and OpenMetrics 1.0 where it differs).

A full vLLM page has some 600 samples, of which the window wants two dozen. So there is no model of families, types and
help here: one regular expression of all wanted names goes over the page once and stops only at lines that begin with
one of them. A name inside a comment, a help text or a label's value begins no line; a line break inside a label's
value is written as two characters. All other lines are stepped over unread, well-formed or not. A wanted line that
cannot be read is an error and never a guess: a wrong `waiting` would open or close the window.

prometheus-client's parser gives the same values for the wanted names, or refuses as well, with these exceptions:

- It reads the whole page, and refuses it for a line that nobody asked for.
- It is lax where this one is not: it takes a last line that has no end (which may be half of one), more fields behind
  the value than a timestamp, a comma before the first label, and a colon in a label's name.
- It is made for text. Blanks are spaces and tabs here, at the ends of a line also the other blanks of ASCII.

Samples come in the page's order, also when one series is there twice: what that means is the dialect's business.

Left out: names in the quoted UTF-8 form (`{"a.b", ...} 1`): a name of the plain form is never written so.
Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

# Possessive quantifiers: a page is foreign input, and a missing quote must not cost exponential time.
_LABEL: Final = re.compile(
    r"""[ \t]*+ (?: ([a-zA-Z_][a-zA-Z0-9_]*+) | "((?:[^"\\]++|\\.)*+)" ) [ \t]*+ = [ \t]*+
         "((?:[^"\\]++|\\.)*+)" [ \t]*+ ([,}])""",
    re.VERBOSE,
)
_END_OF_LABELS: Final = re.compile(r"[ \t]*+\}")
_START_OF_LABELS: Final = re.compile(r"[ \t]*+\{")
_EXEMPLAR: Final = re.compile(r"[ \t]#[ \t]")  # OpenMetrics
_FIELD: Final = re.compile(r"[^ \t]++")
_NUMBER: Final = re.compile(r"[a-zA-Z0-9.+-]++")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"\\": "\\", '"': '"', "n": "\n"}
_ANY_LINE: Final = re.compile(rb"\n\s*+[^#\s]")
_SOMETHING_ELSE: Final = re.compile(
    rb"""\s*+ (?: (?P<HTML><) | (?P<JSON>\[ | \{ \s*+ (?: \} | "(?:[^"\\]|\\.)*+" \s*+ :)) | (?P<gzip>\x1f\x8b) )""",
    re.VERBOSE,
)
_BLANKS: Final = " \t\r\f\v"
_EXCERPT: Final = 120  # bytes of a bad line in the error


class Samples(dict[str, list[tuple[dict[str, str], float]]]):
    """Sample name -> (labels, value) in the page's order. A name without a sample on the page is not there.

    `blank`: the page has no sample at all, of whatever name."""

    blank = False


class MetricsError(Exception):
    """A wanted sample on the page cannot be read, or it is no metrics page at all. The text says what is wrong."""


def parse(page: bytes, wanted: AbstractSet[str]) -> Samples:
    """The wanted samples of a page. Raises MetricsError when one of them is malformed, or on HTML, JSON or gzip."""
    if other := _SOMETHING_ELSE.match(page):
        hint = "; TensorRT-LLM has its metrics page at /prometheus/metrics" if other.lastgroup == "JSON" else ""
        raise MetricsError(f"the answer is {other.lastgroup} and no metrics page: {page[:_EXCERPT]!r}{hint}")
    found = Samples()
    if not wanted:
        return found
    text = b"\n" + page  # each line then begins with what the expression begins with, which makes it fast
    for match in _lines_of(frozenset(wanted)).finditer(text):
        name = match[1].decode()
        try:
            if match.end() == len(text):
                # the format ends every line; an answer cut off here could read 1 for 12
                raise ValueError("the page ends inside this line")
            rest = match[2].decode()  # UnicodeDecodeError is a ValueError
            labels, value_at = _labels(rest)
            found.setdefault(name, []).append((labels, _value(rest[value_at:])))
        except ValueError as error:
            line = match[0].strip()[:_EXCERPT]
            raise MetricsError(f"sample {name} is malformed: {error}; line: {line!r}") from error
    found.blank = not found and _ANY_LINE.search(text) is None
    return found


@functools.lru_cache(maxsize=64)
def _lines_of(names: frozenset[str]) -> re.Pattern[bytes]:
    """Matches a whole line that begins with one of the names: (name, rest)."""
    return re.compile(rb"\n[ \t\r\f\v]*+(" + _any_of(names).encode() + rb")(?=[ \t\r\n{]|\Z)([^\n]*+)")


def _any_of(words: Iterable[str]) -> str:
    """An expression for any of the words that tries each character of a line once, however many words there are."""
    words = sorted(words)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(words[0], words[-1], strict=False))
    shared = words[0][: sum(1 for _ in same)]  # by all of them: those between are, in order, between
    tails = [word[len(shared) :] for word in words]
    branches = [_any_of(group) for head, group in itertools.groupby(tails, key=lambda tail: tail[:1]) if head]
    if not branches:
        return re.escape(shared)
    return re.escape(shared) + "(?:" + "|".join(branches) + ")" + ("?" if "" in tails else "")


def _labels(rest: str) -> tuple[dict[str, str], int]:
    """Labels, and the index at which the value begins. `rest`: the line behind the name."""
    labels: dict[str, str] = {}
    opening = _START_OF_LABELS.match(rest)
    if opening is None:
        return labels, 0
    at = opening.end()
    while True:
        label = _LABEL.match(rest, at)
        if label is None:
            if end := _END_OF_LABELS.match(rest, at):  # {} or a comma before the brace
                return labels, end.end()
            raise ValueError(f"no label at {rest[at : at + _EXCERPT]!r}")
        plain, quoted, value, separator = label.groups()
        key = _unescaped(quoted) if plain is None else plain
        if key in labels:
            raise ValueError(f"label {key} is given twice")
        labels[key] = _unescaped(value)
        at = label.end()
        if separator == "}":
            return labels, at


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _value(rest: str) -> float:
    sample, *exemplar = _EXEMPLAR.split(rest, maxsplit=1)
    numbers = _numbers(sample)
    for text in exemplar:
        _, value_at = _labels(text)
        _numbers(text[value_at:])  # not wanted; but where it is broken, the line is
    return numbers[0]


def _numbers(text: str) -> list[float]:
    fields = _FIELD.findall(text.rstrip(_BLANKS))
    if not 1 <= len(fields) <= 2:
        raise ValueError("expected a value and at most a timestamp")
    return [_number(field) for field in fields]


def _number(field: str) -> float:
    try:
        if _NUMBER.fullmatch(field):  # else it would be Python's own notation
            return float(field)
    except ValueError:
        pass
    raise ValueError(f"{field[:_EXCERPT]!r} is no number")
