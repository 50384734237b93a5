"""What a tenant without settings of its own has, when it is given the first ones.

`Config.tenant` takes a tenant's settings from one entry: its own, or "acme/*", or "*". So the first setting of its own
would take all others from it: with `tenants: {"*": {rate: 1000}}`, a weight for one tenant would lift its rate. Whoever
sets one thing means that one thing. So the others are copied into the same change.

A boost is not copied: it is for a while, and would stay for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.config.faults import Fault, Path, path_text
from extproc.config.model import Config
from extproc.config.written import written_part

_TENANTS = "tenants"


@dataclass(frozen=True, slots=True)
class OwnTenants:
    """A patch and mask, as `Overlay.patched` takes them, with what was copied; and warnings that say so."""

    patch: dict[str, Any]
    mask: list[Path] | None
    warnings: list[Fault]


def own_tenants(patch: Mapping[str, Any], mask: Sequence[Path] | None, config: Config) -> OwnTenants:
    """`config`: in force; for a change that is to stay, without the settings that expire."""
    tenants = patch.get(_TENANTS)
    if not isinstance(tenants, dict):
        return OwnTenants(dict(patch), list(mask) if mask else None, [])
    copied, more, warnings = dict(tenants), [], []
    for name, given in tenants.items():
        if not isinstance(name, str) or not isinstance(given, dict) or name in config.tenants:
            continue
        path = (_TENANTS, name)
        set_now = {key for key in given if _in_mask((*path, key), mask)}
        if not set_now and (given or not _in_mask(path, mask)):
            continue
        inherited = {key: value for key, value in written_part(config.tenant(name)).items() if key != "boost"}
        added = {key: value for key, value in inherited.items() if key not in set_now}
        if added:
            copied[name] = {**given, **added}
            more += [(*path, key) for key in added]
            told = ", ".join(f"{key} {value}" for key, value in added.items())
            warnings.append(Fault(path_text(path), f"begins with the settings that it had until now: {told}"))
    return OwnTenants({**patch, _TENANTS: copied}, [*mask, *more] if mask else None, warnings)


def _in_mask(path: Path, mask: Sequence[Path] | None) -> bool:
    return not mask or any(path[: len(each)] == each for each in mask)
