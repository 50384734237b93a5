"""Reads chosen samples out of a Prometheus text page (exposition format 0.0.4, and OpenMetrics 1.0 where it differs).

A full vLLM page has some 600 samples, of which the window wants a dozen. So there is no model of families, types and
help here: a line is looked at only when it begins with a wanted sample's name, all others are stepped over unread,
well-formed or not. A wanted line that cannot be read is an error and never a guess: a wrong `waiting` would open or
close the window.

Left out: names in the quoted UTF-8 form (`{"a.b", ...} 1`): a name of the plain form is never written so.
Formats: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Sample name -> (labels, value) in the page's order. A name without a sample on the page is not there."""

# Possessive quantifiers: a page is foreign input, and a missing quote must not cost exponential time.
_LABEL = re.compile(
    rb"""[ \t]*+ (?: ([a-zA-Z_][a-zA-Z0-9_]*+) | "((?:[^"\\]++|\\.)*+)" ) [ \t]*+ = [ \t]*+
         "((?:[^"\\]++|\\.)*+)" [ \t]*+ ([,}])""",
    re.VERBOSE,
)
_END_OF_LABELS = re.compile(rb"[ \t]*+\}")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}
_BLANKS = b" \t\r"
_EXCERPT = 120  # bytes of a bad line in the error


class MetricsError(Exception):
    """A wanted sample is on the page but cannot be read. The text names the sample, the line and the cause."""


def parse(page: bytes, wanted: AbstractSet[str]) -> Samples:
    """The wanted samples of a page. Raises MetricsError when one of them is malformed."""
    found: Samples = {}
    starts = tuple(name.encode() for name in wanted)
    lines = page.split(b"\n")
    for position, raw in enumerate(lines):
        line = raw.strip(_BLANKS)
        if not line.startswith(starts):
            continue
        name_end = _name_end(line)
        name = line[:name_end].decode("ascii", "replace")
        if name not in wanted:  # a longer name with a wanted one at its start
            continue
        try:
            if position == len(lines) - 1:
                # the format ends every line; an answer cut off here could read 1 for 12
                raise ValueError("the page ends inside this line")
            labels, value_start = _labels(line, name_end)
            found.setdefault(name, []).append((labels, _value(line[value_start:])))
        except ValueError as error:
            raise MetricsError(f"sample {name} is malformed: {error}; line: {line[:_EXCERPT]!r}") from error
    return found


def _name_end(line: bytes) -> int:
    brace, blank = line.find(b"{"), len(line.split(None, 1)[0])
    return blank if brace < 0 else min(brace, blank)


def _labels(line: bytes, start: int) -> tuple[dict[str, str], int]:
    """Labels, and the index at which the value begins. `start`: just behind the name."""
    labels: dict[str, str] = {}
    opened = start
    while line[opened : opened + 1] in (b" ", b"\t"):
        opened += 1
    if line[opened : opened + 1] != b"{":
        return labels, start
    at = opened + 1
    while True:
        if end := _END_OF_LABELS.match(line, at):  # {} or a comma before the brace
            return labels, end.end()
        label = _LABEL.match(line, at)
        if label is None:
            raise ValueError(f"no label at byte {at}")
        plain, quoted, value, separator = label.groups()
        key = _text(quoted) if plain is None else plain.decode("ascii")
        if key in labels:
            raise ValueError(f"label {key} is given twice")
        labels[key] = _text(value)
        at = label.end()
        if separator == b"}":
            return labels, at


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8")  # UnicodeDecodeError is a ValueError
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _value(rest: bytes) -> float:
    fields = rest.split()
    if b"#" in fields:  # OpenMetrics: an exemplar follows
        fields = fields[: fields.index(b"#")]
    if not 1 <= len(fields) <= 2:
        raise ValueError("expected a value and at most a timestamp")
    numbers = [_number(field) for field in fields]
    return numbers[0]


def _number(field: bytes) -> float:
    if b"_" in field:  # Python's own notation, not the format's
        raise ValueError(f"{field[:_EXCERPT]!r} is no number")
    try:
        return float(field)
    except ValueError:
        raise ValueError(f"{field[:_EXCERPT]!r} is no number") from None
