"""What the checks look at: Envoy's configuration seen from Fairlane.

Of all listeners those count whose HTTP filters ask Fairlane, each of them a `Gateway`: its filters in order, its routes
with what they change of the filters, and its access logs. A route is queued if it forwards requests and has not
disabled the filter that asks Fairlane. Of the other listeners only the routes are kept, to see whether one leads past
Fairlane to an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import betterproto2
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import GrpcService
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import Route, RouteAction, RouteConfiguration, VirtualHost
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import HttpGrpcAccessLogConfig
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExtProcOverrides,
    ExtProcPerRoute,
    ProcessingMode,
    ProcessingModeBodySendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeHeaderSendMode as Send
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
)
from envoy_data_plane.envoy.extensions.filters.network.tcp_proxy.v3 import TcpProxy
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions

from extproc.config.model import Config
from extproc.wiring.doctor.document import Resource, at
from extproc.wiring.doctor.finding import Hit
from extproc.wiring.doctor.reach import reached
from extproc.wiring.doctor.typed import Part

Body = ProcessingModeBodySendMode
FAIRLANE = "fairlane"
WIRING = "fairlane-wiring"  # gRPC initial metadata that says what a filter is for


class Mode(NamedTuple):
    """A processing mode with Envoy's defaults put in: headers are sent, trailers are not."""

    where: str  # of the filter or of the route that sets it
    request_headers: bool
    request_body: ProcessingModeBodySendMode
    response_headers: bool
    response_body: ProcessingModeBodySendMode
    response_trailers: bool

    @classmethod
    def of(cls, mode: ProcessingMode | None, where: str) -> Mode:
        mode = mode or ProcessingMode()
        return cls(
            where,
            mode.request_header_mode != Send.SKIP,
            mode.request_body_mode,
            mode.response_header_mode != Send.SKIP,
            mode.response_body_mode,
            mode.response_trailer_mode == Send.SEND,
        )


@dataclass(frozen=True)
class Filter:
    """An HTTP filter. `part`: its configuration, None where it is not readable here."""

    index: int
    name: str
    where: str
    disabled: bool
    part: Part[betterproto2.Message] | None

    @property
    def kind(self) -> str:
        return type(self.part.message).__name__ if self.part is not None else ""

    @property
    def lua(self) -> str:
        """Its program, where it is a Lua filter that has it inline."""
        message = self.part.message if self.part is not None else None
        if not isinstance(message, Lua):
            return ""
        source = message.default_source_code
        return (source.inline_string or "" if source is not None else "") or message.inline_code


@dataclass(frozen=True)
class Processor(Filter):
    """An ext_proc filter that asks Fairlane."""

    config: ExternalProcessor = field(default_factory=ExternalProcessor)
    alone: bool = True  # no request that it sees goes through another one that asks Fairlane

    @property
    def at(self) -> str:
        """Where its configuration stands."""
        return at(self.where, "typed_config")

    @property
    def mode(self) -> Mode:
        return Mode.of(self.config.processing_mode, self.at)

    @property
    def service(self) -> GrpcService:
        return self.config.grpc_service or GrpcService()

    @property
    def words(self) -> frozenset[str]:
        given = [each.value for each in self.service.initial_metadata if each.key == WIRING]
        return frozenset(word.strip() for text in given for word in text.split(","))

    @property
    def tracks_only(self) -> bool:
        """It follows responses, and another filter has held the request."""
        return "track" in self.words or (not self.alone and self.mode.response_trailers and "hold" not in self.words)

    @property
    def holds_only(self) -> bool:
        return "hold" in self.words or (not self.alone and not self.tracks_only)


@dataclass(frozen=True)
class Override:
    """What a route, a virtual host or a route table says of one filter."""

    where: str
    disabled: bool
    message: betterproto2.Message | None


@dataclass(frozen=True)
class RouteView:
    route: Part[Route]
    host: Part[VirtualHost]
    table: Part[RouteConfiguration]
    overrides: Mapping[str, Override]  # by the filter's name; the nearest one

    @property
    def where(self) -> str:
        return self.route.where

    @property
    def action(self) -> RouteAction | None:
        return self.route.message.route

    @property
    def clusters(self) -> list[str]:
        action = self.action
        if action is None:
            return []
        weighted = action.weighted_clusters.clusters if action.weighted_clusters is not None else []
        return [name for name in (action.cluster, *(each.name for each in weighted)) if name]

    def runs(self, each: Filter) -> bool:
        override = self.overrides.get(each.name)
        return not each.disabled if override is None else not override.disabled

    def mode(self, processor: Processor) -> Mode:
        override = self.overrides.get(processor.name)
        given = override.message.overrides if override and isinstance(override.message, ExtProcPerRoute) else None
        if override is None or given is None or given.processing_mode is None:
            return processor.mode
        return Mode.of(given.processing_mode, at(override.where, "overrides"))

    def changed(self, processor: Processor) -> ExtProcOverrides | None:
        override = self.overrides.get(processor.name)
        return override.message.overrides if override and isinstance(override.message, ExtProcPerRoute) else None


@dataclass(frozen=True)
class LogView:
    """An access log that goes to Fairlane. `where`: of its entry; its configuration stands in typed_config."""

    where: str
    cluster: str
    entry: AccessLog
    config: HttpGrpcAccessLogConfig


@dataclass(frozen=True)
class ClusterView:
    part: Part[Cluster]
    options: Part[HttpProtocolOptions] | None
    endpoints: tuple[str, ...]  # host:port
    complete: bool  # these are all that there are; else names are looked up, or a control plane knows them

    @property
    def name(self) -> str:
        return self.part.message.name

    @property
    def where(self) -> str:
        return self.part.where

    @property
    def options_at(self) -> str:
        return self.options.where if self.options is not None else self.where

    @property
    def several(self) -> bool:
        return len(self.endpoints) > 1 or not self.complete


@dataclass(frozen=True)
class Gateway:
    listener: Part[Listener]
    manager: Part[HttpConnectionManager]
    filters: tuple[Filter, ...]
    routes: tuple[RouteView, ...]
    logs: tuple[LogView, ...]
    paths: tuple[str, ...]  # requests.queued of fairlane.yaml

    @cached_property
    def processors(self) -> tuple[Processor, ...]:
        return tuple(each for each in self.filters if isinstance(each, Processor))

    @cached_property
    def holders(self) -> tuple[Processor, ...]:
        """Those that hold requests, not those that only follow a response."""
        return tuple(each for each in self.processors if not each.tracks_only)

    @cached_property
    def asking(self) -> tuple[RouteView, ...]:
        """Routes whose requests go to Fairlane."""
        return tuple(r for r in self.routes if r.action is not None and any(r.runs(p) for p in self.holders))

    @cached_property
    def queued(self) -> tuple[RouteView, ...]:
        """Those of them that a queued path can reach, so that requests are held there."""
        return tuple(route for route in self.asking if route.where in self._reached)

    @cached_property
    def _reached(self) -> frozenset[str]:
        hosts: dict[str, list[RouteView]] = {}
        for route in self.routes:
            hosts.setdefault(route.host.where, []).append(route)
        found = []
        for routes in hosts.values():
            verdicts = reached([route.route.message.match for route in routes], self.paths)
            found += [route.where for route, verdict in zip(routes, verdicts, strict=True) if verdict]
        return frozenset(found)

    @property
    def chain(self) -> str:
        return at(self.manager.where, "http_filters")

    def modes(self, processor: Processor) -> list[Mode]:
        """The filter's own, and those that queued routes put in its place."""
        found = [route.mode(processor) for route in self.queued if route.runs(processor)] or [processor.mode]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine says of itself. `error`: it cannot be reached."""

    version: str | None = None
    policy: str | None = None
    error: str = ""


@dataclass(frozen=True)
class Setup:
    config: Config
    gateways: tuple[Gateway, ...]
    others: tuple[Gateway, ...]  # filter chains that do not ask Fairlane
    proxies: tuple[Part[TcpProxy], ...]  # and those that pass bytes on
    clusters: Mapping[str, ClusterView]
    bootstrap: Part[Bootstrap] | None
    version: tuple[int, int, int] | None
    raw: Resource  # all that was given
    not_checked: tuple[Hit, ...]
    invalid: tuple[Hit, ...]
    answers: Mapping[str, Answer] | None = None  # of the engines, by address; None: they were not asked

    @property
    def longest_s(self) -> float:
        """The longest that a request may be held."""
        return max(each.queue_timeout for each in self.config.classes.values())

    @property
    def held(self) -> int:
        """The most that are held at a time."""
        return sum(pool.max_queued for pool in self.config.pools)

    @property
    def enforcing(self) -> bool:
        """Whether anything is held already: a pool in mode observe holds nothing, and may be told to."""
        return any(pool.mode == "enforce" for pool in self.config.pools)

    @property
    def held_shown(self) -> str:
        """What a limit is compared with."""
        held = f"{self.held} requests may be held"
        return held if self.enforcing else f"{held} once a pool is in mode enforce"

    def holders(self) -> Iterator[tuple[Gateway, Processor]]:
        """Every filter that holds requests."""
        for gateway in self.gateways:
            for each in gateway.holders:
                yield gateway, each

    def modes(self) -> Iterator[tuple[Gateway, Processor, Mode]]:
        """Every processing mode that a filter has somewhere."""
        for gateway in self.gateways:
            for each in gateway.processors:
                for mode in gateway.modes(each):
                    yield gateway, each, mode

    @property
    def fairlane(self) -> list[ClusterView]:
        names = dict.fromkeys(cluster_of(p.service) for g in self.gateways for p in g.processors)
        return [self.clusters[name] for name in names if name in self.clusters]

    @property
    def engines(self) -> list[ClusterView]:
        names = dict.fromkeys(name for g in self.gateways for route in g.queued for name in route.clusters)
        return [self.clusters[name] for name in names if name in self.clusters]


def cluster_of(service: GrpcService) -> str:
    """The cluster that a gRPC service is in; Google's client has an address instead."""
    if service.envoy_grpc is not None:
        return service.envoy_grpc.cluster_name
    return service.google_grpc.target_uri if service.google_grpc is not None else ""
