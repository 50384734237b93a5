"""A configuration as a file would have it.

`from_data(written(config)) == config`. All keys stand there with their values, the defaults too; only what is nothing
unless it is given is left out. What the file can say in two ways is said in the shorter one: endpoints as a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from extproc.config.data_tree import Plain
from extproc.config.endpoints import Endpoints
from extproc.config.model import Config
from extproc.config.patch import plain_number
from extproc.config.section import Section


def written(config: Config) -> dict[str, Any]:
    """The whole configuration as plain data in the file's notation."""
    dumped = config.model_dump(mode="json", by_alias=True, exclude={"tenants"})
    # One by one: there may be thousands, and pydantic holds all threads for as long as one call takes.
    dumped["tenants"] = {name: tenant.model_dump(mode="json", by_alias=True) for name, tenant in config.tenants.items()}
    return _mapping(config, dumped)


def written_part(section: Section) -> dict[str, Any]:
    """Of a section, only what differs from its defaults."""
    return _mapping(section, section.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML. Reading it gives the same data. Letters stand there as they are; where anything cannot be
    printed, such as what turns the direction of writing, all but ASCII is escaped."""
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    escaped: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, width=120)
    return escaped


class _Dumper(yaml.SafeDumper):
    """Says again what is there twice, in place of an anchor."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML calls it so
        return True


def _plain(value: object, dumped: Plain) -> Plain:
    """`dumped` has the units; `value` knows which parts are sections."""
    if isinstance(value, Endpoints) and value.static is not None:
        return dumped["static"]
    if isinstance(value, Section):
        return _mapping(value, dumped)
    if isinstance(value, dict):
        return {name: _plain(each, dumped[name]) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(*pair) for pair in zip(value, dumped, strict=True)]
    return plain_number(dumped) if isinstance(dumped, float) else dumped


def _mapping(section: Section, dumped: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, field in type(section).model_fields.items():
        key = field.alias or name
        value = getattr(section, name)
        if key in dumped and not (value is None and field.default is None):
            found[key] = _plain(value, dumped[key])
    return found
