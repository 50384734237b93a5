"""The source that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable

from extproc.config.endpoints import Endpoints
from extproc.engines.endpoints.dns import DnsSource
from extproc.engines.endpoints.file import FileSource
from extproc.engines.endpoints.kubernetes import KubernetesSource
from extproc.engines.endpoints.source import EndpointSet
from extproc.engines.endpoints.static import StaticSet


def make(endpoints: Endpoints, *, pool: str, clock: Callable[[], float]) -> EndpointSet:
    """Nothing is asked or read before its `run`. `pool`: its name, for logs; `clock`: seconds."""
    if endpoints.dns is not None:
        return DnsSource(endpoints.dns, pool, clock)
    if endpoints.file is not None:
        return FileSource(endpoints.file, pool, clock)
    if endpoints.kubernetes is not None:
        return KubernetesSource(endpoints.kubernetes, pool, clock)
    return StaticSet(endpoints.known, clock)
