"""Making a `Setup` out of a document: which listeners ask Fairlane, and what belongs to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import betterproto2
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import Address, GrpcService
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import FilterConfig, Route, RouteConfiguration, VirtualHost
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import HttpGrpcAccessLogConfig
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.filters.network.tcp_proxy.v3 import TcpProxy
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions

from extproc.config.model import Config
from extproc.config.units import ip_port, split_host_port
from extproc.wiring.doctor.document import Document, Resource, at, inside, listed
from extproc.wiring.doctor.finding import Hit
from extproc.wiring.doctor.setup import (
    FAIRLANE,
    ClusterView,
    Filter,
    Gateway,
    LogView,
    Override,
    Processor,
    RouteView,
    Setup,
    cluster_of,
)
from extproc.wiring.doctor.typed import Part, Reader

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def read(document: Document, config: Config, raw: Resource, cluster: str | None = None) -> Setup:
    """`cluster`: the name of Fairlane's cluster, where it cannot be told by its name or its address."""
    reader = Reader()
    clusters = {}
    for resource in document.clusters:
        view = _cluster(reader, resource, document)
        if view is not None:
            clusters[view.name] = view
    found = [each for resource in document.listeners for each in _network_filters(reader, resource)]
    managers = [each for each in found if isinstance(each, _Found)]
    gateways = [_gateway(reader, each, document, config, clusters, cluster) for each in managers]
    bootstrap = reader.read(Bootstrap, _own(document.bootstrap.raw), document.bootstrap.where)
    return Setup(
        config=config,
        gateways=tuple(each for each in gateways if each.processors),
        others=tuple(each for each in gateways if not each.processors),
        proxies=tuple(each for each in found if isinstance(each, Part)),
        clusters=clusters,
        bootstrap=bootstrap,
        version=document.version,
        raw=raw,
        not_checked=(*document.not_checked, *reader.not_checked.values()),
        invalid=tuple(reader.invalid.values()),
    )


def _own(bootstrap: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is read by itself, and without the node: in a dump it is 80 KB of names."""
    return {key: value for key, value in bootstrap.items() if key not in ("static_resources", "node")}


def _cluster(reader: Reader, resource: Resource, document: Document) -> ClusterView | None:
    part = reader.read(Cluster, resource.raw, resource.where)
    if part is None:
        return None
    options = inside(resource.raw, "typed_extension_protocol_options").get(_HTTP_OPTIONS)
    place = at(resource.where, "typed_extension_protocol_options", f'["{_HTTP_OPTIONS}"]').replace(".[", "[")
    read = reader.read_as(HttpProtocolOptions, options, place) if options is not None else None
    assignment = part.message.load_assignment
    if part.message.name in document.endpoints:
        found = document.endpoints[part.message.name]
        eds = reader.read(ClusterLoadAssignment, found.raw, found.where)
        assignment = eds.message if eds is not None else None
    endpoints, complete = _endpoints(assignment)
    return ClusterView(part, read, endpoints, complete)


def _endpoints(assignment: ClusterLoadAssignment | None) -> tuple[tuple[str, ...], bool]:
    if assignment is None:
        return (), False
    found, complete = [], True
    for locality in assignment.endpoints:
        for each in locality.lb_endpoints:
            text = _address(each.endpoint.address if each.endpoint is not None else None)
            if text is None:
                complete = False
                continue
            try:
                text = ip_port(text)
            except ValueError:
                complete = False  # a name
            found.append(text)
    return tuple(found), complete


def _address(address: Address | None) -> str | None:
    socket = address.socket_address if address is not None else None
    if socket is None or socket.port_value is None:
        return None
    host = f"[{socket.address}]" if ":" in socket.address else socket.address
    return f"{host}:{socket.port_value}"


class _Found(NamedTuple):
    listener: Part[Listener]
    manager: Part[HttpConnectionManager]


def _network_filters(reader: Reader, resource: Resource) -> Iterator[_Found | Part[TcpProxy]]:
    """The HTTP connection managers of a listener, and its TCP proxies."""
    listener = reader.read(Listener, resource.raw, resource.where)
    if listener is None:
        return
    chains = list(listed(resource.raw, "filter_chains", resource.where))
    if inside(resource.raw, "default_filter_chain"):
        chains.append((at(resource.where, "default_filter_chain"), inside(resource.raw, "default_filter_chain")))
    for chain_at, chain in chains:
        for place, raw in listed(chain, "filters", chain_at):
            if "typed_config" in raw:
                part = reader.read_any(raw["typed_config"], at(place, "typed_config"))
                if part is not None and isinstance(part.message, HttpConnectionManager):
                    yield _Found(listener, Part(part.where, part.message, part.raw))
                elif part is not None and isinstance(part.message, TcpProxy):
                    yield Part(part.where, part.message, part.raw)


def _gateway(
    reader: Reader,
    found: _Found,
    document: Document,
    config: Config,
    clusters: Mapping[str, ClusterView],
    cluster: str | None,
) -> Gateway:
    """Without processors where nothing asks Fairlane."""
    paths = tuple(config.requests.queued)
    filters = list(_filters(reader, found.manager))
    ours = []
    for each in filters:
        if each.part is not None and isinstance(each.part.message, ExternalProcessor):
            name = cluster_of(each.part.message.grpc_service or GrpcService())
            if _is_ours(name, each.part.message, config, clusters, cluster):
                ours.append(each)
    if not ours:
        # What cannot be read of it is not worth a word: it is nobody's gateway to Fairlane.
        others = tuple(_routes(Reader(), found.manager, document))
        return Gateway(found.listener, found.manager, (), others, (), paths)
    routes = tuple(_routes(reader, found.manager, document))
    for each in ours:
        assert each.part is not None and isinstance(each.part.message, ExternalProcessor)  # noqa: S101 - chosen above
        filters[each.index] = Processor(
            each.index, each.name, each.where, each.disabled, each.part, each.part.message, _alone(each, ours, routes)
        )
    names = {cluster_of(p.service) for p in filters if isinstance(p, Processor)}
    logs = tuple(_logs(reader, found.manager, names, clusters))
    return Gateway(found.listener, found.manager, tuple(filters), routes, logs, paths)


def _alone(each: Filter, ours: Sequence[Filter], routes: Sequence[RouteView]) -> bool:
    """Whether no request passes this one and another one. Envoy Gateway has a filter for each policy, and each at
    routes of its own."""
    others = [other for other in ours if other is not each]
    if not routes:  # they are not here
        return not others
    return not any(route.runs(each) and route.runs(other) for route in routes for other in others)


def _filters(reader: Reader, manager: Part[HttpConnectionManager]) -> Iterator[Filter]:
    items = manager.raw.get("http_filters")
    for index, raw in enumerate(items if isinstance(items, list) else ()):
        where = at(manager.where, "http_filters", index)
        read = reader.read(HttpFilter, raw, where)
        if read is None:
            yield Filter(index, "", where, True, None)
            continue
        part = None
        if "typed_config" in read.raw:
            part = reader.read_any(read.raw["typed_config"], at(where, "typed_config"))
        else:
            reader.not_checked[where] = Hit(where, "a filter whose configuration is not here")
        yield Filter(index, read.message.name, where, read.message.disabled, part)


def _is_ours(
    name: str,
    processor: ExternalProcessor,
    config: Config,
    clusters: Mapping[str, ClusterView],
    cluster: str | None,
) -> bool:
    if cluster is not None:
        return name == cluster
    if FAIRLANE in name.lower():
        return True
    options = processor.metadata_options
    namespaces = [
        text
        for group in ((options.forwarding_namespaces, options.receiving_namespaces) if options is not None else ())
        if group is not None
        for text in group.untyped
    ]
    if any(text.startswith(f"{FAIRLANE}.") for text in namespaces):
        return True
    view, port = clusters.get(name), split_host_port(config.listen.ext_proc)[1]
    return view is not None and any(split_host_port(each)[1] == port for each in view.endpoints)


def _routes(reader: Reader, manager: Part[HttpConnectionManager], document: Document) -> Iterator[RouteView]:
    resource = Resource(at(manager.where, "route_config"), inside(manager.raw, "route_config"))
    if manager.message.rds is not None:
        name = manager.message.rds.route_config_name
        if name not in document.tables:
            reader.not_checked[at(manager.where, "rds")] = Hit(
                at(manager.where, "rds"), f"the routes {name!r} come from a control plane and are not in this file"
            )
            return
        resource = document.tables[name]
    elif not resource.raw:
        reader.not_checked[manager.where] = Hit(manager.where, "routes that are neither here nor named (route_config)")
        return
    table = reader.read(RouteConfiguration, resource.raw, resource.where)
    if table is None:
        return
    outer = dict(_overrides(reader, resource.raw, resource.where))
    for host_at, host_raw in listed(resource.raw, "virtual_hosts", resource.where):
        host = reader.read(VirtualHost, host_raw, host_at)
        if host is None:
            continue
        middle = {**outer, **dict(_overrides(reader, host_raw, host_at))}
        for route_at, raw in listed(host_raw, "routes", host_at):
            route = reader.read(Route, raw, route_at)
            if route is not None:
                yield RouteView(route, host, table, {**middle, **dict(_overrides(reader, raw, route_at))})


def _overrides(reader: Reader, raw: Mapping[str, Any], where: str) -> Iterator[tuple[str, Override]]:
    for name, given in inside(raw, "typed_per_filter_config").items():
        place = f'{where}.typed_per_filter_config["{name}"]'
        if isinstance(given, Mapping) and given.get("config") == {}:  # Envoy Gateway switches a filter on by this
            given = {key: value for key, value in given.items() if key != "config"}
        part = reader.read_any(given, place)
        if part is None:
            yield name, Override(place, False, None)
        elif isinstance(part.message, FilterConfig):
            inner = given.get("config")
            read = reader.read_any(inner, at(place, "config")) if isinstance(inner, Mapping) else None
            disabled = part.message.disabled or (read is not None and _disabled(read.message))
            yield name, Override(at(place, "config") if read else place, disabled, read.message if read else None)
        else:
            yield name, Override(place, _disabled(part.message), part.message)


def _disabled(message: betterproto2.Message) -> bool:
    return bool(getattr(message, "disabled", False))


def _logs(
    reader: Reader, manager: Part[HttpConnectionManager], names: set[str], clusters: Mapping[str, ClusterView]
) -> Iterator[LogView]:
    """`names`: the clusters that are asked. A log may go to one replica by a cluster of its own."""
    replicas = {address for name in names if name in clusters for address in clusters[name].endpoints}
    for where, raw in listed(manager.raw, "access_log", manager.where):
        entry = reader.read(AccessLog, raw, where)
        if entry is None or "typed_config" not in raw:
            continue
        config = reader.read_as(HttpGrpcAccessLogConfig, raw["typed_config"], at(where, "typed_config"))
        common = config.message.common_config if config is not None else None
        if config is None or common is None:
            continue
        name = cluster_of(common.grpc_service or GrpcService())
        addresses = clusters[name].endpoints if name in clusters else ()
        if name in names or FAIRLANE in name.lower() or (addresses and replicas.issuperset(addresses)):
            yield LogView(where, name, entry.message, config.message)
