"""Environment variables that lie over the file: one for every key.

`FAIRLANE__LISTEN__HTTP=0.0.0.0:9090` says what `listen: {http: 0.0.0.0:9090}` in the file would say, and wins over it.
The parts of the name are parted by two underscores, since keys have single ones; and there are two after FAIRLANE,
since Kubernetes gives each container variables such as FAIRLANE_PORT for a Service of that name. A value is YAML.

Keys are found in any case. Where names are people's (tenants, classes, aliases), a name that is there in another case
is meant, else the text in lower case. Entries of a list have numbers from 0; the number after the last one appends.
What is not in the file is as it is by default: FAIRLANE__CLASSES__BATCH__RANK changes one of the default classes.

A mapping is merged key by key into what is there, and null takes a name away; everything else, lists too, is one value.
Only the endpoints of a pool, which are one source or another, are replaced. Of two variables the one with the longer
name wins, since it is laid on after the one that it continues.

What comes of it counts as the file, for all that lies over it (`overlay`). Values may be secrets that somebody put into
the wrong variable: messages tell names and places, not what a variable holds.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from extproc.config import strict_yaml
from extproc.config.endpoints import Endpoints, File
from extproc.config.faults import ConfigError, Fault
from extproc.config.model import Config
from extproc.config.schema import is_list, is_mapping_by_name, keys, section_of, step
from extproc.config.section import Section
from extproc.config.written import written_part

PREFIX: Final = "FAIRLANE__"
Place = tuple[str | int, ...]  # in the file: the names of keys, and the numbers of entries of lists

_NAME = "FAIRLANE"
_LONGEST = 1024**2  # bytes of a value
_SHOWN = 100  # characters of a name
_DIGITS = 9  # of the number of an entry
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    parts: tuple[str, ...]  # of the name, as they are written
    value: Any
    text: str  # of which the value was made


@dataclass(frozen=True, slots=True)
class Laid:
    """Data with variables over them."""

    data: dict[str, Any]
    places: dict[Place, Variable]  # of each variable, in the data


@dataclass(frozen=True, slots=True)
class Environment:
    """Immutable, in the order in which the variables are laid on."""

    variables: tuple[Variable, ...] = ()
    ignored: tuple[str, ...] = ()  # names of variables that were most likely meant for this, and are not

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Environment:
        """Raises ConfigError for values that are no YAML, with a line for each."""
        found, faults = [], []
        for name, text in environ.items():
            if name.startswith(PREFIX):
                try:
                    found.append(Variable(name, tuple(name.removeprefix(PREFIX).split("__")), _value(name, text), text))
                except ConfigError as error:
                    faults.append(str(error))
        if faults:
            raise _error(sorted(faults))
        # Each after those that it continues, and entries of lists by their numbers.
        found.sort(key=lambda each: (*map(_order, each.parts), (-1, 0, each.name)))
        return cls(tuple(found), tuple(sorted(filter(_near_miss, environ))))

    @property
    def names(self) -> list[str]:
        """As they can be shown."""
        return [shown_name(each.name) for each in self.variables]

    def sha256(self, of_file: str) -> str:
        """Of the file and the variables, in hex. `of_file`: of the file alone, which it is without variables."""
        if not self.variables:
            return of_file
        text = "\0".join((of_file, *(f"{each.name}={each.text}" for each in self.variables)))
        return hashlib.sha256(text.encode()).hexdigest()

    def over(self, data: Mapping[str, Any]) -> Laid:
        """`data`: a file's; left as they are, and shared with the result where equal. Raises ConfigError for names that
        lead nowhere, with a line for each."""
        root: Any = dict(data)
        places: dict[Place, Variable] = {}
        faults = []
        for variable in self.variables:
            try:
                root, place = _lay(root, Config, _Way(variable))
                if (other := places.setdefault(place, variable)) is not variable:
                    also = shown_name(other.name)
                    raise _error([f"{shown_name(variable.name)}: says the same key as {also}: unset one of the two"])
            except ConfigError as error:
                faults.append(str(error))
        if faults:
            raise _error(faults)
        return Laid(root, places)


NOTHING: Final = Environment()


def shown_name(name: str) -> str:
    """The name of a variable in messages: it may be of any length, and have anything in it."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def ignored_note(name: str) -> str:
    """What to do about one of `Environment.ignored`."""
    rest = name.upper().removeprefix(_NAME).strip("_")
    meant = next((each for each in _plain_names() if each.replace("__", "_") == rest.replace("__", "_")), rest)
    return f"is no setting, since the name of one begins with {PREFIX}: is {shown_name(PREFIX + meant)} meant?"


@dataclass(slots=True)
class _Way:
    """How far a variable's name has been followed."""

    variable: Variable
    place: list[str | int] = field(default_factory=list)

    @property
    def part(self) -> str | None:
        """The next one; None: all have been."""
        parts = self.variable.parts
        return parts[len(self.place)] if len(self.place) < len(parts) else None

    def fault(self, message: str) -> ConfigError:
        return _error([f"{shown_name(self.variable.name)}: {message}"], ".".join(map(str, self.place)))

    def so_far(self) -> str:
        return shown_name(".".join(map(str, self.place))) or "the file"

    def meant(self, known: Sequence[str]) -> str:
        """Which variable was, or what there is."""
        assert self.part is not None  # noqa: S101 - asked only then
        close = difflib.get_close_matches(self.part.lower()[:_SHOWN], known, n=1, cutoff=0.5)
        if close:
            before = self.variable.parts[: len(self.place)]
            return f"did you mean {shown_name(PREFIX + '__'.join((*before, close[0])).upper())}?"
        return f"known there: {', '.join(known)}"


def _lay(node: Any, annotation: Any, way: _Way) -> tuple[Any, Place]:
    """`node` with the variable's value in it, and where. `annotation`: of `node` in the model. Raises ConfigError."""
    part = way.part
    if part is None:
        return _merged(node, way.variable.value, annotation), tuple(way.place)
    if not part:
        raise way.fault(f"names no key; a variable is like {PREFIX}LISTEN__HTTP, for the key http of listen")
    if is_list(annotation):
        return _lay_in_list(node, annotation, way, part)
    if is_mapping_by_name(annotation):
        held = node if isinstance(node, dict) else {}
        key = _name_in(held, way, part)
        default = _ABSENT
    elif (section := section_of(annotation)) is not None:
        held = _as_mapping(node, annotation)
        key = part.lower()
        if key not in keys(section):
            raise way.fault(f"there is no key {shown_name(part).lower()} in {way.so_far()}; {way.meant(keys(section))}")
        default = _default(section, key)
    else:
        raise way.fault(f"{way.so_far()} is one value and has no keys: end the name there")
    way.place.append(key)
    inside = held.get(key, _ABSENT if way.part is None else default)
    laid, place = _lay(inside, step(annotation, key), way)
    if laid is None and is_mapping_by_name(annotation):
        return {name: each for name, each in held.items() if name != key}, place
    return {**held, key: laid}, place


def _lay_in_list(node: Any, annotation: Any, way: _Way, part: str) -> tuple[Any, Place]:
    held = node if isinstance(node, list) else []
    if not (part.isascii() and part.isdigit() and len(part) <= _DIGITS):
        raise way.fault(
            f"{way.so_far()} is a list: its entries have the numbers 0, 1, ... in place of {shown_name(part)}; or give "
            "all of it as one value"
        )
    number = int(part)
    if number > len(held):
        have = "is empty" if not held else f"ends with {len(held) - 1}"
        raise way.fault(f"{way.so_far()} {have}, so the next entry has the number {len(held)}, not {number}")
    way.place.append(number)
    laid, place = _lay(held[number] if number < len(held) else _ABSENT, step(annotation, number), way)
    return [*held[:number], laid, *held[number + 1 :]], place


def _name_in(held: Mapping[Any, Any], way: _Way, part: str) -> str:
    """A name that people give: as it is there in any case, else in lower case."""
    if part in held:
        return part
    same = [name for name in held if isinstance(name, str) and name.lower() == part.lower()]
    if len(same) > 1:
        raise way.fault(f"{way.so_far()} has {len(same)} names of these letters: give a mapping with the one meant")
    return same[0] if same else part.lower()


def _as_mapping(node: Any, annotation: Any) -> dict[Any, Any]:
    """A section that is written in its short form, in the long one. What is none makes way."""
    if isinstance(node, dict):
        return node
    section = section_of(annotation)
    if section is Endpoints and isinstance(node, list):
        return {"static": node}
    if section is File and isinstance(node, str):
        return {"path": node}
    return {}


def _merged(node: Any, value: Any, annotation: Any) -> Any:
    """The value over `node`. It goes down no further than the model, however YAML's anchors multiply a value."""
    section, by_name = section_of(annotation), is_mapping_by_name(annotation)
    if not isinstance(value, dict) or not (by_name or section):
        return value
    held = dict(node) if isinstance(node, dict) and section is not Endpoints else {}
    for key, each in value.items():
        inside = step(annotation, key) if isinstance(key, str) else None
        if by_name and each is None:
            held.pop(key, None)
        elif inside is None:
            held[key] = each
        else:
            held[key] = _merged(held.get(key, _ABSENT), each, inside)
    return held


def _default(section: Any, key: str) -> Any:
    """Of a list or mapping that is not in the file: what it has then, in the file's notation."""
    found = next(each for name, each in section.model_fields.items() if (each.alias or name) == key)
    default = _ABSENT if found.is_required() else found.get_default(call_default_factory=True)
    if isinstance(default, list):
        return [_written(each) for each in default]
    return {name: _written(each) for name, each in default.items()} if isinstance(default, dict) else _ABSENT


def _written(value: Any) -> Any:
    return written_part(value) if isinstance(value, Section) else value


def _value(name: str, text: str) -> Any:
    """Raises ConfigError. What PyYAML says is not told: it quotes the text."""
    told = shown_name(name)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _error([f"{told}: its value is not UTF-8"]) from None
    if size > _LONGEST:
        raise _error([f"{told}: its value has more than {_LONGEST // 1024**2} MiB; put it into the file"])
    if not text.strip():
        raise _error([f"{told}: is empty; unset it, or write null where nothing is meant, '' for an empty text"])
    try:
        return strict_yaml.read(text)
    except RecursionError:
        raise _error([f"{told}: its value is nested too deeply"]) from None
    except strict_yaml.ERRORS as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        what = "has a key twice" if "stands there twice" in str(error) else "is not YAML"
        raise _error(
            [f"{told}: its value {what}{where}; text that begins with one of * & ! % @ ` [ {{ or has ': ' needs quotes"]
        ) from None


def _error(lines: Sequence[str], path: str = "") -> ConfigError:
    return ConfigError("\n".join(lines), [Fault(path, line) for line in lines])


def _order(part: str) -> tuple[int, int, str]:
    number = part.isascii() and part.isdigit() and len(part) <= _DIGITS
    return (0, int(part), "") if number else (1, 0, part.upper())


def _near_miss(name: str) -> bool:
    """Whether whoever set it most likely meant a setting: it has double underscores further on, begins with the name in
    small letters, or is a key with single underscores throughout."""
    if name.startswith(PREFIX) or not name.upper().startswith(_NAME + "_"):
        return False
    rest = name.upper().removeprefix(_NAME).lstrip("_")
    return "__" in name or rest in {each.replace("__", "_") for each in _plain_names() if "__" in each}


def _plain_names(section: Any = Config, before: str = "") -> Iterator[str]:
    """Names, after the prefix, of keys that are in no list and no mapping of names."""
    for key in keys(section):
        annotation = step(section, key)
        yield (name := before + key.upper())
        if section_of(annotation) is not None:
            yield from _plain_names(annotation, f"{name}__")
