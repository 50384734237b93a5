"""YAML as a small file needs it, with bounded work whatever stands in it. For files that are read while requests wait.

The parser's events, which cost little, are looked through before any object is made:

- Aliases are refused. With them a text of 300 bytes is a structure of 10^9 entries: harmless until it is walked, or
  merged by `<<`, where PyYAML itself walks it.
- So is too much of anything. 50,000 values, the most there may be, take 0.3 s of CPU (2026-11, one core of a server).
- So are long numbers in base 60 (`1:20:30:...`), which take PyYAML time by the square of their length.

libyaml's parser is used, which comes with PyYAML's wheels: it is ten times faster than the one in Python. Where PyYAML
was built without it, the one in Python is.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

MOST_VALUES: Final = 50_000  # events of the parser: texts, keys among them, and both ends of lists and mappings
DEEPEST: Final = 64
_MOST_COLONS: Final = 64  # in what may be a number
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainYamlError(Exception):
    """The message says what is wrong, beginning with a verb, and quotes no value: it may be a secret."""


def load(text: str) -> Any:
    """What stands in one document. Raises PlainYamlError."""
    try:
        _check(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  both are safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.rstrip("\n").count("\n") + 1  # libyaml finds a missing end one line behind the last
        line = f" in line {min(mark.line + 1, lines)}" if mark is not None else ""
        problem = (error.problem or "cannot be read").partition("'!")[0].strip()
        raise PlainYamlError(f"is neither YAML nor JSON{line}: {problem[:100]}") from None
    except Exception as error:  # PyYAML's constructors raise anything: IndexError for `!!int ""`, ValueError for a date
        if isinstance(error, PlainYamlError):
            raise
        raise PlainYamlError("is neither YAML nor JSON: is it the right file?") from None


def _check(text: str) -> None:
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.AliasEvent):
            raise PlainYamlError(
                f"has an alias (*){_line(event)}, which is not taken here: write out what it stands for"
            )
        if number >= MOST_VALUES:
            raise PlainYamlError(f"has more than {MOST_VALUES} values in YAML: write so many as JSON")
        if isinstance(event, yaml.ScalarEvent):
            may_be_number = event.implicit[0] or event.tag is not None
            if may_be_number and event.value.count(":") > _MOST_COLONS:
                raise PlainYamlError(f"has a text with too many colons{_line(event)}: write it as text, in quotes")
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise PlainYamlError("is nested too deeply: is it the right file?")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(event: yaml.Event) -> str:
    return f" in line {event.start_mark.line + 1}" if event.start_mark is not None else ""
