"""What a request asks for, as a patch of the configuration, in the shape of the file.

What is in force is looked at only where the answer must be of help: whether there is such a pool, what can be given
back to the file. `Revisions` looks again when the change has its turn, and `etag` is for those who want to be certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from extproc.admin import fields
from extproc.admin.control import RunningPool
from extproc.admin.errors import AdminError, Violation, invalid
from extproc.admin.values import plain_of
from extproc.config.faults import ConfigError, Fault, Path, parse_path, path_text
from extproc.config.model import Config
from extproc.config.overlay import Overlay
from extproc.config.schema import meant
from extproc.core.scheduler import Scheduler
from extproc.pb.admin.v1 import admin_pb2 as pb

_LEAST_BOOST: Final = 1e-6
_MOST_BOOST: Final = 1e6
_NO_STAR: Final = (
    "'*' would be the whole file, and is not taken here: leave update_mask out to change all that config names and "
    "nothing else; to give parts back to the file, name them, like tenants.acme or classes"
)
_ELEMENT: Final = 2  # names in the path of a tenant, class or pool


@dataclass(frozen=True, slots=True)
class Asked:
    """A change of the configuration."""

    patch: dict[str, Any]
    mask: Sequence[Path] | None = None  # see `Overlay.patched`
    named: Mapping[Path, str] = field(default_factory=dict)  # path in the configuration -> field of the request
    warnings: tuple[Fault, ...] = ()

    def told_by_fields(self, error: AdminError) -> AdminError:
        """With the fields of the request instead of the paths that they stand for."""
        violations = [Violation(self._field(each.field), each.description) for each in error.violations]
        return AdminError(error.code, error.message, violations)

    def _field(self, text: str) -> str:
        """Of a path, or of what is below one that a field stands for. An element stands for itself alone: what is wrong
        below it need not be any of its fields."""
        try:
            path = parse_path(text)
        except ConfigError:
            return text  # none of the configuration
        for depth in range(len(path), 0, -1):
            found = self.named.get(path[:depth])
            if found is not None:
                return found if depth == len(path) or depth > _ELEMENT else text
        return text


def not_now(message: str) -> AdminError:
    return AdminError(grpc.StatusCode.FAILED_PRECONDITION, message)


def a_part(request: pb.UpdateConfigRequest | pb.ValidateConfigRequest) -> Asked:
    """Any part of the file. Raises AdminError."""
    if not request.HasField("config") and not request.update_mask.paths:
        told = "is missing: a part of the file, in its shape; or name in update_mask what goes back to it"
        raise invalid("config", told)
    mask, violations = [], []
    for text in request.update_mask.paths:
        try:
            mask.append(parse_path(text))
        except ConfigError as error:
            violations.append(Violation("update_mask", str(error)))
            continue
        if mask[-1] == (fields.ALL,):
            violations.append(Violation("update_mask", _NO_STAR))
    if violations:
        raise fields.refused(violations)
    return Asked(plain_of(request.config, "config"), mask or None)


def a_tenant(request: pb.SetTenantRequest, overlay: Overlay) -> Asked:
    """Raises AdminError."""
    return _element(request, "tenant", "tenants", fields.TENANT, overlay)


def a_class(request: pb.SetClassRequest, overlay: Overlay) -> Asked:
    """Raises AdminError."""
    return _element(request, "class", "classes", fields.CLASS, overlay)


def a_pool(request: pb.SetPoolRequest, config: Config) -> Asked:
    """Raises AdminError."""
    name = fields.checked_name(request.pool, "pool")
    known = [pool.name for pool in config.pools]
    if name not in known:
        told = f"there is no pool {name!r}; {meant(name, known, 'there is ')}"
        raise AdminError(grpc.StatusCode.NOT_FOUND, told, [Violation("pool", told)])
    chosen = fields.choose(request, fields.POOL)
    if not chosen.keys:
        raise invalid("", f"sets nothing: set one of {', '.join(fields.POOL)}")
    stands_for = {("pools", name, *found.key): field_ for field_, found in fields.POOL.items()}
    return Asked({"pools": {name: chosen.patch}}, None, {("pools", name): "pool", **stands_for})


def a_boost(request: pb.BoostTenantRequest, config: Config, running: Sequence[RunningPool]) -> Asked:
    """Raises AdminError."""
    name = fields.checked_name(request.tenant, "tenant")
    if not _LEAST_BOOST <= request.factor <= _MOST_BOOST:
        raise invalid("factor", f"must be between 0.000001 and 1000000, and is {request.factor:g}")
    if not request.HasField("ttl"):
        raise invalid("ttl", "is missing: a boost is for a while; SetTenant changes a weight for good")
    element = ("tenants", name)
    warnings = []
    if name not in config.tenants and not _is_here(name, config, running):
        told = "nothing is known of this tenant by now: it has no settings, and no request of it is here"
        warnings.append(Fault(path_text(element), told))
    return Asked(
        {"tenants": {name: {"boost": fields.number(request.factor)}}},
        None,
        {element: "tenant", (*element, "boost"): "factor"},
        tuple(warnings),
    )


def _element(request: Any, where: str, section: str, table: Mapping[str, fields.Field], overlay: Overlay) -> Asked:
    """`where`: the message in its request. `section`: of the file."""
    if not request.HasField(where):
        raise invalid(where, "is missing")
    message = getattr(request, where)
    name = fields.checked_name(message.name, f"{where}.name")
    masked = request.update_mask.paths
    chosen = fields.choose(message, table, masked, where=where)
    if not chosen.keys:
        raise invalid(where, "sets nothing: set a field, or name one in update_mask to give it back to the file")
    element = (section, name)
    stands_for = {(*element, *found.key): f"{where}.{field_}" for field_, found in table.items()}
    return Asked(
        {section: {name: chosen.patch}},
        [(*element, *key) for key in _with_an_effect(chosen, element, overlay)] if masked else None,
        {element: where, **stands_for},
    )


def _with_an_effect(chosen: fields.Chosen, element: Path, overlay: Overlay) -> Sequence[Path]:
    """Without the keys to be given back to the file that are the file's already: "*" names many of them, and a tenant
    that is not there yet has nothing to give back. All, if none were left: then it is said what is wrong."""
    settings = [each.path[len(element) :] for each in overlay.settings if each.path[: len(element)] == element]
    left = [
        key for key in chosen.keys if _has(chosen.patch, key) or any(setting[: len(key)] == key for setting in settings)
    ]
    return left or chosen.keys


def _has(patch: Mapping[str, Any], path: Path) -> bool:
    node: Any = patch
    for name in path:
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = node[name]
    return True


def _is_here(tenant: str, config: Config, running: Sequence[RunningPool]) -> bool:
    """Whether it has state in a queue; where names have levels, also as a node above others."""
    levels = config.identity.separator is not None
    return any(
        _has_state(tenant, scheduler, levels)
        for each in running
        for scheduler in (each.scheduler, each.observed)
        if scheduler is not None
    )


def _has_state(tenant: str, scheduler: Scheduler, levels: bool) -> bool:
    return any(
        cls.queue.leaf(tenant) is not None or (levels and any(group.path == tenant for group in cls.queue.groups()))
        for cls in scheduler.classes
    )
