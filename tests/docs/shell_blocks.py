"""Commands that the pages show: the lines of their `sh` and `console` blocks, and of indented ones that are commands.

A block of kind `console` has commands behind `$ ` and what they print below; one of kind `sh` has commands alone. A
line that ends with a backslash goes on, and so does one that opens a here-document or a quotation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
KINDS = ("sh", "console")
_PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "envoy/**/*.md", "deploy/**/*.md")
_FENCE = re.compile(r"^( *)(`{3,})(\w*)\s*$")
_INDENTED = re.compile(
    r"^( {4,})(?:\.venv/bin/)?(?:curl|docker|envoy|fairlane|helm|istioctl|kubectl|make|openssl|pip) "
)
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_PROMPT = "$ "


class Block(NamedTuple):
    page: str  # its path from the root
    line: int  # of the opening fence, from 1
    kind: str
    text: str  # without the indentation of the fence


class Command(NamedTuple):
    page: str
    line: int
    text: str  # as a shell reads it, without a comment that is all of the line
    printed: str | None  # what the page shows of the output; None in a block of kind `sh`

    @property
    def at(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def one_line(self) -> str:
        """Without continuations, comments and double spaces: how tables name it."""
        return " ".join(without_comment(self.text).replace("\\\n", " ").split())

    @property
    def program(self) -> str:
        """Its first word that is no assignment, without a folder."""
        words = self.one_line.split()
        while len(words) > 1 and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
            words = words[1:]
        return words[0].rsplit("/", 1)[-1]


def pages() -> list[Path]:
    """Every page whose commands are looked at."""
    return sorted({page for pattern in _PAGES for page in ROOT.glob(pattern)})


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of every kind, and as `sh` the indented ones that begin with a command."""
    name = str(page.relative_to(ROOT))
    opened: tuple[int, str] | None = None
    indent, fence, lines, before = "", "", list[str](), ""
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        found = _FENCE.match(line)
        if opened is not None and not fence:
            if line.startswith(indent):
                lines.append(line.removeprefix(indent))
                continue
            yield Block(name, *opened, "\n".join(lines))
            opened = None
        starts = _INDENTED.match(line) if opened is None and not before.strip() else None
        before = line
        if starts:
            indent, fence = starts[1], ""
            opened, lines = (number - 1, "sh"), [line.removeprefix(indent)]
        elif opened is None and found:
            indent, fence = found[1], found[2]
            opened, lines = (number, found[3]), []
        elif opened is not None and found and found[2] == fence and not found[3]:
            yield Block(name, *opened, "\n".join(lines))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(indent))
    assert opened is None, f"{page}: a block is not closed"


def commands(block: Block) -> Iterator[Command]:
    """Those of one block, in order."""
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        begun, line = at, lines[at]
        at += 1
        if block.kind == "console" and not line.startswith(_PROMPT):
            raise ValueError(f"{block.page}:{block.line}: output before the first command: {line!r}")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text = line.removeprefix(_PROMPT) if block.kind == "console" else line
        while at < len(lines) and goes_on(text):
            text += "\n" + lines[at].removeprefix("> ")
            at += 1
        printed = None
        if block.kind == "console":
            first = at
            while at < len(lines) and not lines[at].startswith(_PROMPT):
                at += 1
            printed = "\n".join(lines[first:at])
        yield Command(block.page, block.line + 1 + begun, text, printed)


def goes_on(text: str) -> bool:
    """Whether a shell would wait for more."""
    document = _HERE_DOCUMENT.search(text.split("\n", 1)[0])
    if document:
        return not re.search(rf"^\s*{document[1]}$", text, re.MULTILINE)
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:  # no closing quotation
        return True
    return False


def without_comment(text: str) -> str:
    """A line without the comment at its end; of several lines (a here-document, a quotation) all."""
    if "<<" in text:
        return text
    kept = []
    for line in text.split("\n"):
        quote = ""
        for at, sign in enumerate(line):
            if quote:
                quote = "" if sign == quote else quote
            elif sign in "'\"":
                quote = sign
            elif sign == "#" and (at == 0 or line[at - 1].isspace()):
                line = line[:at].rstrip()
                break
        kept.append(line)
    return "\n".join(kept)


def all_commands() -> list[Command]:
    return [command for page in pages() for block in blocks(page) if block.kind in KINDS for command in commands(block)]
