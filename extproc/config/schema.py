"""Which keys the sections of the file know, found out from the model itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

_SHOWN = 10  # names of many


def step(annotation: Any, part: str | int) -> Any:
    """The type of what stands at `part` of a section, list or mapping; None: it has no such key."""
    for kind in _kinds(annotation):
        if get_origin(kind) in (list, dict):
            return get_args(kind)[-1]
    section = section_of(annotation)
    return None if section is None else _fields(section).get(str(part))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section itself, or inside Optional[...]."""
    for kind in _kinds(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def is_mapping_by_name(annotation: Any) -> bool:
    """Whether its keys are names that people give: tenants, classes, aliases."""
    return any(get_origin(kind) is dict for kind in _kinds(annotation))


def is_list(annotation: Any) -> bool:
    return any(get_origin(kind) is list for kind in _kinds(annotation))


def keys(annotation: Any) -> list[str]:
    """The keys that a section knows; none: it is no section."""
    section = section_of(annotation)
    return [] if section is None else list(_fields(section))


def required(annotation: Any) -> list[str]:
    """The keys that a section cannot be without."""
    section = section_of(annotation)
    fields = {} if section is None else section.model_fields
    return [field.alias or name for name, field in fields.items() if field.is_required()]


def meant(name: str, known: Iterable[str], words: str = "known here: ") -> str:
    """For messages about a name that is not known: the one that was meant, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name[:100], names[:1000], n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN * 2 else ""
    return words + ", ".join(names[:_SHOWN] if more else names) + more


def _kinds(annotation: Any) -> Iterator[Any]:
    """The alternatives of a type, without what is annotated to them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _kinds(each)
    else:
        yield annotation


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
