"""Answers on standard output: as tables for people, or whole as JSON or YAML for programs.

On a terminal tables are drawn; elsewhere they are plain columns with two blanks between them, one line a row, nothing
cut. JSON is protobuf's (64-bit integers are texts), with all fields, by the names of the .proto file in alphabetical
order, since a Struct has none; YAML is the same content. Names are chosen by clients of the service: nothing in them
reaches a terminal unescaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import yaml

from extproc.cli.ctl.failure import escaped

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.table import Table

FORMATS = ("table", "json", "yaml")
_EVER = 10**9


class Printer:
    """Prints in one of FORMATS. `terminal`: whether tables are drawn; None: if standard output is one."""

    def __init__(self, form: str, terminal: bool | None = None) -> None:
        self.form = form
        self.terminal = (sys.stdout is not None and sys.stdout.isatty()) if terminal is None else terminal

    @property
    def for_people(self) -> bool:
        return self.form == "table"

    def message(self, message: Message) -> None:
        """A whole answer, as JSON or YAML."""
        if self.form == "yaml":
            click.echo(yaml.safe_dump(plain(message), width=_EVER), nl=False)
        else:
            click.echo(json.dumps(plain(message), indent=2, sort_keys=True))

    def one_of_many(self, message: Message) -> None:
        """An answer of a stream: JSON in a line, or a YAML document."""
        if self.form == "yaml":
            click.echo("---")
            self.message(message)
        else:
            click.echo(json.dumps(plain(message), separators=(",", ":"), sort_keys=True))

    def line(self, text: str = "") -> None:
        click.echo(escaped(text))

    def block(self, text: str) -> None:
        """Text of several lines. To a file or a program it goes as it came."""
        lines = text.rstrip("\n")
        click.echo("\n".join(map(escaped, lines.split("\n"))) if self.terminal else lines)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """A name and a value a line."""
        rows = list(pairs)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name.ljust(width)}  {value}".rstrip())

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[str] = ()) -> None:
        """`numbers`: heads of columns that are aligned to the right."""
        right = set(numbers)
        if self.terminal:
            from rich.console import Console

            Console(highlight=False).print(drawn(heads, rows, right))
            return
        shown = [[head.upper() for head in heads], *([escaped(cell) for cell in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        for row in shown:
            cells = (
                cell.rjust(width) if head in right else cell.ljust(width)
                for head, cell, width in zip(heads, row, widths, strict=True)
            )
            click.echo("  ".join(cells).rstrip())


def drawn(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> Table:
    """A table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    return table


def yaml_text(data: Any, **options: Any) -> str:
    """For people: letters as they are, unless a terminal would act on any of it. Then as YAML's escapes, which read
    back as the same."""
    text: str = yaml.safe_dump(data, allow_unicode=True, width=_EVER, **options)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    escapes: str = yaml.safe_dump(data, allow_unicode=False, width=_EVER, **options)
    return escapes


def note(text: str) -> None:
    """Said to people, beside the output."""
    click.echo(escaped(text), err=True)


def plain(message: Message) -> Any:
    """A message as protobuf's JSON has it, as data."""
    from google.protobuf import json_format

    return whole_numbers(
        json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )


def whole_numbers(value: Any) -> Any:
    """With 3 for each 3.0: a Struct knows no integers, and the configuration is full of them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole_numbers(each) for each in value]
    return value
