"""YAML as the configuration is written in: what the reader would not see is refused.

YAML takes the last of two equal keys in silence; here that is an error. What JSON could not have has no place. And
nesting has a bound of its own, since what may follow it down is deeper in the stack at times.
"""

from __future__ import annotations

from typing import Any

import yaml

# What `read` may raise. ValueError: 2026-99-99 has the form of a date; the others: a tag such as !!int before what is
# none; RecursionError: nested too deeply.
ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)

_MOST_LEVELS = 64
_MERGE = "tag:yaml.org,2002:merge"  # the key <<


def read(text: str) -> Any:
    """The data of a text. Raises one of `ERRORS`."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader that refuses duplicate keys


class _Loader(yaml.SafeLoader):
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands there twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _refuse(_: yaml.SafeLoader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(None, None, f"{node.tag} has no place here", node.start_mark)


# What these make is no data that JSON has too, and pydantic would take some of it for lists and texts.
for _tag in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse)
