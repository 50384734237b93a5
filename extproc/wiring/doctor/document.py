"""The resources of a configuration: listeners, clusters, route tables, endpoints, each with its place.

Two forms are taken: a bootstrap (what `envoy -c` reads) and a dump of the admin interface (`/config_dump`). In a dump
the static resources stand twice, in the bootstrap and in the dump of their kind; those of their kind are taken, since
the dynamic ones are there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from extproc.wiring.doctor.finding import Hit, NotReadableError
from extproc.wiring.doctor.source import Source
from extproc.wiring.doctor.typed import type_name

Json = Mapping[str, Any]

_VERSION = re.compile(r"(?:^|/)(\d+)\.(\d+)\.(\d+)")
_BOOTSTRAP_KEYS = ("static_resources", "dynamic_resources", "admin", "node")
_STATIC = {"listeners": "Listener", "clusters": "Cluster"}
_DYNAMIC = {
    "lds_config": "listeners",
    "lds_resources_locator": "listeners",
    "cds_config": "clusters",
    "cds_resources_locator": "clusters",
}


@dataclass(frozen=True, slots=True)
class Resource:
    where: str
    raw: Json


@dataclass
class Document:
    bootstrap: Resource = field(default_factory=lambda: Resource("", {}))
    listeners: list[Resource] = field(default_factory=list)
    clusters: list[Resource] = field(default_factory=list)
    tables: dict[str, Resource] = field(default_factory=dict)  # route configurations that came by RDS, by name
    endpoints: dict[str, Resource] = field(default_factory=dict)  # that came by EDS, by cluster
    version: tuple[int, int, int] | None = None
    not_checked: list[Hit] = field(default_factory=list)


def document(source: Source) -> Document:
    """Raises NotReadableError where it is no configuration of Envoy."""
    data = source.data
    if isinstance(data.get("configs"), list):
        _check_dump(data["configs"], source.name)
        result = _dump(data["configs"])
    elif any(key in data for key in _BOOTSTRAP_KEYS):
        _check_bootstrap(data, source.name)
        result = Document(bootstrap=Resource("", data))
        _static(result)
        result.not_checked += _dynamic(data)
    else:
        keys = ", ".join(map(str, list(data)[:5])) or "none"
        raise NotReadableError(
            f"{source.name}: is no configuration of Envoy: it has neither static_resources (a bootstrap) nor configs "
            f"(a dump of /config_dump); its members: {keys}"
        )
    version = _VERSION.search(source.version or "")
    if version is not None:
        result.version = (int(version[1]), int(version[2]), int(version[3]))
    return result


def at(place: str, *steps: str | int) -> str:
    """The path of what stands below `place`."""
    for step in steps:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    return place


def listed(raw: object, key: str, where: str) -> Iterator[tuple[str, Json]]:
    """The objects of the list under `key`, each with its place; nothing where there is no such list."""
    items = raw.get(key) if isinstance(raw, Mapping) else None
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, Mapping):
            yield at(where, key, number), item


def inside(raw: object, *keys: str) -> Json:
    """The object at the end of the keys; an empty one where there is none."""
    for key in keys:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, Mapping) else {}


def _static(result: Document) -> None:
    base, where = inside(result.bootstrap.raw, "static_resources"), at(result.bootstrap.where, "static_resources")
    result.listeners = [Resource(place, raw) for place, raw in listed(base, "listeners", where)]
    result.clusters = [Resource(place, raw) for place, raw in listed(base, "clusters", where)]


def _check_bootstrap(data: Json, name: str) -> None:
    """Where its upper levels are of the wrong kind there is nothing to look at, and "no ext_proc filter" would mislead.

    A member that is null is absent to Envoy. That is in order where everything comes from a control plane; else it is
    the mark of a template that was filled with nothing."""
    bare = not inside(data, "dynamic_resources")
    for key in _BOOTSTRAP_KEYS:
        if key in data:
            _expect(data[key], dict, key, name, bare and key == "static_resources")
    resources = inside(data, "static_resources")
    for key, kind in _STATIC.items():
        if key not in resources:
            continue
        place, items = at("static_resources", key), resources[key]
        _expect(items, list, place, name, bare)
        for number, item in enumerate(items or ()):
            _expect(item, dict, at(place, number), name, True)
            given = type_name(item) if "@type" in item else kind
            if given.rpartition(".")[2] != kind:
                what = f"{at(place, number)} is of the type {given or item['@type']!r}"
                _refuse(name, what, f"write a {kind} there, without @type")


def _check_dump(configs: list[Any], name: str) -> None:
    for number, item in enumerate(configs):
        _expect(item, dict, at("configs", number), name, True)
        if not type_name(item).startswith("envoy.admin."):
            what = f"{at('configs', number)} is of the type {item.get('@type')!r}"
            _refuse(name, what, "save all that /config_dump of Envoy's admin interface answers")


def _expect(value: object, kind: type, place: str, name: str, needed: bool) -> None:
    """`needed`: null will not do either."""
    if isinstance(value, kind) or (value is None and not needed):
        return
    wanted = "a list" if kind is list else "a mapping"
    _refuse(name, f"{place} is {_shown(value)}", f"write {wanted} there, or leave it out")


def _shown(value: object) -> str:
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "a mapping"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(name: str, what: str, cure: str) -> NoReturn:
    raise NotReadableError(f"{name}: is no configuration of Envoy: {what}; {cure}")


def _dynamic(bootstrap: Json) -> Iterator[Hit]:
    told = set()
    for key, kind in _DYNAMIC.items():
        if key in inside(bootstrap, "dynamic_resources") and kind not in told:
            told.add(kind)
            yield Hit(f"dynamic_resources.{key}", f"{kind} come from a control plane and are not in this file")


def _dump(configs: list[Any]) -> Document:
    result = Document()
    kinds: set[str] = set()
    for number, raw in enumerate(configs):
        where, kind = at("configs", number), type_name(raw).rpartition(".")[2]
        kinds.add(kind)
        if kind == "BootstrapConfigDump":
            result.bootstrap = Resource(at(where, "bootstrap"), inside(raw, "bootstrap"))
            result.version = _version_of(inside(raw, "bootstrap", "node", "user_agent_build_version", "version"))
        elif kind == "ListenersConfigDump":
            result.listeners += _resources(raw, where, ("static_listeners",), "listener")
            for place, item in listed(raw, "dynamic_listeners", where):
                state = next((s for s in ("active_state", "warming_state") if s in item), None)
                if state is not None:
                    result.listeners.append(Resource(at(place, state, "listener"), inside(item, state, "listener")))
                else:
                    result.not_checked.append(Hit(place, "a listener that is not running"))
        elif kind == "ClustersConfigDump":
            clusters = ("static_clusters", "dynamic_active_clusters", "dynamic_warming_clusters")
            result.clusters += _resources(raw, where, clusters, "cluster")
        elif kind == "RoutesConfigDump":
            tables = ("static_route_configs", "dynamic_route_configs")
            result.tables |= {str(r.raw.get("name", "")): r for r in _resources(raw, where, tables, "route_config")}
        elif kind == "EndpointsConfigDump":
            endpoints = ("static_endpoint_configs", "dynamic_endpoint_configs")
            found = _resources(raw, where, endpoints, "endpoint_config")
            result.endpoints |= {str(r.raw.get("cluster_name", "")): r for r in found}
    if not kinds & {"ListenersConfigDump", "ClustersConfigDump"} and result.bootstrap.raw:
        _static(result)
    result.not_checked += [
        Hit("configs", f"the dump has no {kind}: save all of /config_dump")
        for kind in ("ListenersConfigDump", "ClustersConfigDump")
        if kind not in kinds
    ]
    return result


def _resources(raw: object, where: str, lists: tuple[str, ...], member: str) -> list[Resource]:
    return [
        Resource(at(place, member), inside(item, member)) for key in lists for place, item in listed(raw, key, where)
    ]


def _version_of(raw: Json) -> tuple[int, int, int] | None:
    numbers = [raw.get(key, 0) for key in ("major_number", "minor_number", "patch")]
    if not raw or not all(isinstance(number, int) for number in numbers):
        return None
    return (numbers[0], numbers[1], numbers[2])
