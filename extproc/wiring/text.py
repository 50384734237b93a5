"""A configuration as text that Envoy reads as it is meant.

Envoy's YAML reader follows YAML 1.1, in which an unquoted `n` (a field of OpenAI's requests) is the value false. PyYAML
takes it for text and would write it without quotes, so every word that YAML 1.1 knows for a truth value is quoted here.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence

import yaml

from extproc.wiring.parts import Data

_TRUTH = re.compile(r"(?i)y|yes|n|no|true|false|on|off|null|~")
_NUMBER = re.compile(r"(?i)[-+.]?\d[\d_.,:]*(e[-+]?\d+)?|0x[\da-f]+|0o?[0-7]+|[-+]?\.(inf|nan)")
_COMMENT_WIDTH = 116
_UNFOLDED = 2**20  # characters: what is one line stays one


class _Dumper(yaml.SafeDumper):
    """Lists are indented, text of several lines stands as it is, and nothing is an alias."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - what PyYAML asks
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None
    if "\n" in value:
        style = "|"
    elif _TRUTH.fullmatch(value) or _NUMBER.fullmatch(value):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(config: Data, head: Sequence[str] = ()) -> str:
    """`head`: paragraphs of a comment at the beginning; one that begins with a dash is an item of a list."""
    comment = "\n#\n".join(map(_comment, head))
    body = yaml.dump(
        config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_UNFOLDED, default_flow_style=False
    )
    return f"{comment}\n\n{body}" if comment else body


def as_documents(documents: Sequence[Data], head: Sequence[str] = ()) -> str:
    """Several in one text; `head` stands before the first."""
    first, *others = documents
    return "---\n".join([as_yaml(first, head), *map(as_yaml, others)])


def _comment(paragraph: str) -> str:
    further = "#   " if paragraph.startswith("- ") else "# "
    return textwrap.fill(
        paragraph,
        _COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(config: Data) -> str:
    """What `envoy --config-path` reads too, whatever the file's name."""
    return json.dumps(config, indent=1) + "\n"
