"""A gateway of Kubernetes, as far as Envoy sees it: resources as the gateway sends them, patches, and what they give.

`emitted_*.py` say what a gateway makes of Kubernetes objects. Here these become one static configuration, since there
is no control plane: routes that would come by RDS stand in the listener, endpoints that would come by EDS in the
cluster.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jsonpatch
from jsonpath_ng import Child, Fields, Index, JSONPath, Root
from jsonpath_ng.ext import parse

from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring
from extproc.wiring.mesh.forms import Form
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Data, Parts

NAMESPACE, GATEWAY = "llm", "llm"
PLACE = Place(
    namespace=NAMESPACE,
    gateway=GATEWAY,
    host="127.0.0.1",  # what the tests' clients use; the schema would want a name
    engines=("vllm.llm.svc.cluster.local", 8000),
    fairlane=("fairlane.fairlane.svc.cluster.local", 50_051),
)
Endpoint = tuple[str, int]


@dataclass(frozen=True)
class At:
    """Where things are on this machine. `services`: endpoints by (namespace, name)."""

    listener: Endpoint = ("127.0.0.1", 10_000)
    admin: Endpoint = ("127.0.0.1", 9_901)
    services: Mapping[tuple[str, str], tuple[Endpoint, ...]] = field(
        default_factory=lambda: {
            ("llm", "vllm"): (("127.0.0.1", 8_001), ("127.0.0.1", 8_002)),
            ("fairlane", "fairlane"): (("127.0.0.1", 50_051),),
        }
    )


@dataclass
class Resources:
    """What the gateway sends to Envoy, each by name, in Envoy's own field names."""

    listeners: dict[str, Data] = field(default_factory=dict)
    routes: dict[str, Data] = field(default_factory=dict)
    clusters: dict[str, Data] = field(default_factory=dict)
    endpoints: dict[str, tuple[Endpoint, ...]] = field(default_factory=dict)  # by the cluster's name

    def bootstrap(self, admin: Endpoint) -> Data:
        """The same without a control plane."""
        listeners = copy.deepcopy(list(self.listeners.values()))
        for manager in _managers(listeners):
            name = manager.pop("rds")["route_config_name"]
            manager["route_config"] = copy.deepcopy(self.routes[name])
        clusters = []
        for name, each in self.clusters.items():
            cluster = {key: value for key, value in copy.deepcopy(each).items() if key != "eds_cluster_config"}
            ends = [{"endpoint": {"address": socket(at)}} for at in self.endpoints[name]]
            cluster |= {
                "type": "STATIC",
                "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
            }
            clusters.append(cluster)
        return {"admin": {"address": socket(admin)}, "static_resources": {"listeners": listeners, "clusters": clusters}}


Emit = Callable[[list[Data], At], Resources]


def of_kind(documents: Iterable[Data], kind: str) -> list[Data]:
    return [each for each in documents if each["kind"] == kind]


def attached(documents: Iterable[Data], kind: str, route: str) -> Data | None:
    """The spec of the policy of this kind that is for this HTTPRoute."""
    for each in of_kind(documents, kind):
        if any(ref["kind"] == "HTTPRoute" and ref["name"] == route for ref in each["spec"]["targetRefs"]):
            spec: Data = each["spec"]
            return spec
    return None


def socket(at: Endpoint) -> Data:
    return {"socket_address": {"address": at[0], "port_value": at[1]}}


def rewired(
    form: Form, emit: Emit, wiring: Wiring, change: Callable[[Data], None] | None = None
) -> Callable[[Data], None]:
    """For a stack's `envoy_patch`: in place of its Envoy's configuration the one that the gateway makes of our objects,
    with the same addresses. `change`: to it afterwards."""

    def patch(config: Data) -> None:
        parts = Parts(config)
        at = At(
            listener=_address(parts.listener),
            admin=_address(config["admin"]),
            services={
                ("llm", "vllm"): tuple(_endpoints(parts.engines)),
                ("fairlane", "fairlane"): tuple(_endpoints(parts.fairlane)),
            },
        )
        made = configuration(form, emit, wiring, at)
        if change is not None:
            change(made)
        config.clear()
        config.update(made)

    return patch


def configuration(form: Form, emit: Emit, wiring: Wiring, at: At | None = None, place: Place = PLACE) -> Data:
    """Envoy's configuration, complete."""
    at = at or At()
    documents = form(wiring, Addresses(), place)
    resources = emit(documents, at)
    for policy in of_kind(documents, "EnvoyPatchPolicy"):
        apply(resources, policy["spec"]["jsonPatches"])
    return resources.bootstrap(at.admin)


def elsewhere(**changes: Any) -> Place:
    return replace(PLACE, **changes)


# -- patches (RFC 6902), as Envoy Gateway applies them ---------------------------------------------------------------


_KINDS = {
    "type.googleapis.com/envoy.config.listener.v3.Listener": "listeners",
    "type.googleapis.com/envoy.config.route.v3.RouteConfiguration": "routes",
    "type.googleapis.com/envoy.config.cluster.v3.Cluster": "clusters",
}


class PatchError(Exception):
    """A patch finds no resource, or nothing in it."""


def apply(resources: Resources, patches: Iterable[Data]) -> None:
    """In their order, each by itself. Raises PatchError where Envoy Gateway would set `Programmed: False`."""
    for patch in patches:
        operation = patch["operation"]
        found: dict[str, Data] = getattr(resources, _KINDS[patch["type"]])
        if patch["name"] not in found:
            raise PatchError(f"no {patch['type']} is named {patch['name']!r}; there are {sorted(found)}")
        document = found[patch["name"]]
        for pointer in _pointers(document, operation):
            one = {"op": operation["op"], "path": pointer, "value": copy.deepcopy(operation["value"])}
            _make_way(document, pointer)
            document = jsonpatch.apply_patch(document, [one])
        found[patch["name"]] = document


def _pointers(document: Data, operation: Data) -> list[str]:
    if "jsonPath" not in operation:
        return [operation["path"]]
    found = [_pointer(match.full_path) for match in parse(operation["jsonPath"]).find(document)]
    if not found:
        raise PatchError(f"nothing is found by {operation['jsonPath']}")
    return [pointer + operation.get("path", "") for pointer in found]


def _pointer(path: JSONPath) -> str:
    match path:
        case Root():
            return ""
        case Child():
            return _pointer(path.left) + _pointer(path.right)
        case Fields():
            (name,) = path.fields
            return "/" + name.replace("~", "~0").replace("/", "~1")
        case Index():
            (number,) = path.indices
            return f"/{number}"
    raise AssertionError(f"no pointer is known for {path!r}")


def _make_way(document: Any, pointer: str) -> None:
    """Envoy Gateway makes the objects and lists on the way to what is added."""
    *way, last = [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]]
    for name, following in zip(way, [*way, last][1:], strict=True):
        if isinstance(document, list):
            document = document[int(name)]
        else:
            document = document.setdefault(name, [] if following == "-" or following.isdecimal() else {})


# -- parts -----------------------------------------------------------------------------------------------------------


def _managers(listeners: Iterable[Data]) -> Iterator[Data]:
    for listener in listeners:
        for chain in (*listener.get("filter_chains", ()), *filter(None, (listener.get("default_filter_chain"),))):
            for each in chain["filters"]:
                yield each["typed_config"]


def manager_of(config: Data) -> Data:
    (manager,) = _managers(config["static_resources"]["listeners"])
    return manager


def routes_of(config: Data) -> dict[str, Data]:
    """By the name of their HTTPRoute; the first of each."""
    found: dict[str, Data] = {}
    for host in manager_of(config)["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            (name,) = (
                each for each in ("fairlane-queued", "fairlane-uploads", "fairlane-direct") if each in route["name"]
            )
            found.setdefault(name, route)
    return found


def clusters_of(config: Data) -> dict[str, Data]:
    return {each["name"]: each for each in config["static_resources"]["clusters"]}


def _address(of: Data) -> Endpoint:
    at = of["address"]["socket_address"]
    return at["address"], at["port_value"]


def _endpoints(cluster: Data) -> Iterator[Endpoint]:
    for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        yield _address(each["endpoint"])
