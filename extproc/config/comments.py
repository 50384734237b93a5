"""What the comments of the shipped `fairlane.yaml` say of each key, for whoever shows keys one by one.

A comment belongs to the key on its line, and goes on in lines that have nothing but a comment in the same column. Where
a key has none, it is the block of comments right above it, unless that shows other keys. A key that is commented out
(`# parent: acme   # hangs under this tenant`) belongs to the section whose keys stand in its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from extproc.config.model import Config
from extproc.config.schema import keys, section_of, step
from extproc.config.section import Section

_COMMENT = re.compile(r"\s*#\s?(.*?)\s*$")
_SET_IN = re.compile(r" *#  ")  # goes on with what is commented out
_COMMENTED_KEY = re.compile(r"( *)# (\w+): .*?\s{2,}# (.+?)\s*$")


def comments(text: str) -> dict[tuple[type[Section], str], str]:
    """Of the text of the shipped file: what is said of the keys of each section."""
    lines = text.split("\n")
    found: dict[tuple[type[Section], str], str] = {}
    columns: dict[int, list[tuple[int, type[Section]]]] = {}  # -> (line of a key there, its section)
    active: set[tuple[type[Section], str]] = set()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for section, key, key_node, value_node in _keys(root, Config):
        line, column = key_node.start_mark.line, key_node.start_mark.column
        active.add((section, key))
        columns.setdefault(column, []).append((line, section))
        told = _beside(lines, line, value_node) or _above(lines, line, column)
        if told:
            found.setdefault((section, key), told)
    for number, line_text in enumerate(lines):
        match = _COMMENTED_KEY.match(line_text)
        if match is None:
            continue
        before = [section for at, section in columns.get(len(match[1]), []) if at < number]
        if before and match[2] in keys(before[-1]) and (before[-1], match[2]) not in active:
            found.setdefault((before[-1], match[2]), _continued(lines, number, line_text.rindex("# " + match[3])))
    return found


def _keys(node: Any, annotation: Any) -> Iterator[tuple[type[Section], str, Any, Any]]:
    """Section, key, and the nodes of key and value, of all keys that are in the file."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _keys(each, step(annotation, 0))
    if not isinstance(node, yaml.MappingNode):
        return
    section = section_of(annotation)
    for key_node, value_node in node.value:
        if section is not None and issubclass(section, Section):
            yield section, key_node.value, key_node, value_node
        yield from _keys(value_node, step(annotation, key_node.value))


def _beside(lines: list[str], line: int, value: Any) -> str:
    """The comment behind the value, or behind the key where the value begins below."""
    below = value.start_mark.line > line
    end = value.end_mark
    if not below and end.line != line:
        return ""
    rest = lines[line].partition(":")[2] if below else lines[line][end.column :]
    return _continued(lines, line, lines[line].index("#", len(lines[line]) - len(rest))) if _begins(rest) else ""


def _begins(rest: str) -> bool:
    return rest.lstrip().startswith("#")


def _continued(lines: list[str], line: int, column: int) -> str:
    told = [lines[line][column:]]
    for each in lines[line + 1 :]:
        if not each.startswith(" " * column + "#"):
            break
        told.append(each[column:])
    return _joined(told)


def _above(lines: list[str], line: int, column: int) -> str:
    if lines[line][:column].strip():
        return ""  # another key stands before it
    told: list[str] = []
    while line > 0 and lines[line - 1].startswith(" " * column + "#"):
        line -= 1
        told.insert(0, lines[line])
    return "" if any(_COMMENTED_KEY.match(each) or _SET_IN.match(each) for each in told) else _joined(told)


def _joined(told: list[str]) -> str:
    return " ".join(match[1] for each in told if (match := _COMMENT.match(each)) is not None).strip()
