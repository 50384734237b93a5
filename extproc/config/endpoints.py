"""Where the endpoints of a pool come from: the value of `pools[].endpoints`.

A plain list of `ip:port`, or one source of a set that changes:

    endpoints: [10.0.0.1:8000, 10.0.0.2:8000]
    endpoints: {dns: {name: engines.llm.svc.cluster.local, port: 8000}}
    endpoints: {file: /etc/fairlane/llama.yaml}
    endpoints: {kubernetes: {service: llama, port: http}}

Whatever the source, what comes of it is `ip:port`: Envoy matches Fairlane's choice by address, so its cluster must know
the same endpoints, best from the same source.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from extproc.config.section import Section
from extproc.config.units import IpPort, Seconds, shown

_HOST_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_HOST_LABEL}(?:\.{_HOST_LABEL})*\.?\Z")
_KUBERNETES_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
# of a Service; one of digits alone would pass for a number
_PORT_NAME = re.compile(r"(?=[0-9-]*[a-z])[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")

Port = Annotated[int, Field(ge=1, le=65535)]
_PORT_OF_SERVICE = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 65535},
        {"type": "string", "pattern": "^(?=[0-9-]*[a-z])[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    ]
}
PortOfService = Annotated[int | str, WithJsonSchema(_PORT_OF_SERVICE, mode="validation")]
Text = Annotated[str, Field(min_length=1, max_length=4096)]


def _once(value: list[str]) -> list[str]:
    seen: set[str] = set()
    twice = sorted({each for each in value if each in seen or seen.add(each)})  # type: ignore[func-returns-value]
    if twice:
        more = f" and {len(twice) - 10} more" if len(twice) > 10 else ""
        raise ValueError(f"named twice: {', '.join(twice[:10])}{more}")
    return value


Addresses = Annotated[list[IpPort], Field(min_length=1), AfterValidator(_once)]
_ADDRESSES: TypeAdapter[list[str]] = TypeAdapter(Addresses)


class Dns(Section):
    """A name in DNS, asked again and again."""

    name: Text
    port: Port | None = None  # of all addresses; SRV records have their own
    record: Literal["a", "aaaa", "any", "srv"] = "a"  # any: A and AAAA
    interval: Seconds = 5.0  # between two questions, at least; the records' TTL where that is longer
    max_interval: Seconds = 60.0  # however long the TTL
    timeout: Seconds = 5.0  # of one question, with all tries
    resolver: IpPort | None = None  # none: those of the system

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if _is_address(value):
            raise ValueError(f"{shown(value)} is an address and no name: write it as a list, endpoints: [ip:port]")
        if not _HOST.match(value) or len(value.removesuffix(".")) > 253:
            raise ValueError(f"{shown(value)} is no name for DNS: labels of letters, digits, '-' and '_', between dots")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Dns:
        if self.record == "srv" and self.port is not None:
            raise ValueError("port: SRV records have their own; leave it out, or ask for the record a, aaaa or any")
        if self.record != "srv" and self.port is None:
            raise ValueError("port: is missing; only SRV records have one of their own")
        if not 0.1 <= self.interval <= self.max_interval:
            raise ValueError("interval must be at least 100ms and no longer than max_interval")
        if not 0 < self.timeout <= 60:
            raise ValueError("timeout must be above 0 and at most 60s")
        return self


class File(Section):
    """A file that is read again when it changes."""

    path: Text
    cluster: Text | None = None  # where the file is Envoy's too: whose it has to be, as for Envoy

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        if not isinstance(value, str | Mapping | File):
            raise ValueError(f"expected the path of a file, not {shown(value)}")
        return {"path": value} if isinstance(value, str) else value


class Kubernetes(Section):
    """EndpointSlices of the Kubernetes API, watched."""

    service: str | None = None
    selector: Text | None = None  # of labels of EndpointSlices, as in `kubectl get endpointslices -l`
    namespace: str | None = None  # none: Fairlane's own, or the kubeconfig's
    port: PortOfService | None = None  # of the pods, by number or name; none: the only one
    kubeconfig: Text | None = None  # none: Fairlane runs in the cluster
    context: Text | None = None  # of the kubeconfig; none: its current one

    @field_validator("service", "namespace")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        if value is not None and not _KUBERNETES_NAME.match(value):
            raise ValueError(f"{shown(value)} must be lower-case letters, digits and '-', and at most 63 of them")
        return value

    @field_validator("port")
    @classmethod
    def _port_name(cls, value: int | str | None) -> int | str | None:
        good = bool(_PORT_NAME.match(value)) if isinstance(value, str) else value is None or 0 < value < 65536
        if not good:
            raise ValueError(
                f"{shown(value)} is no port: a number of 1 to 65535, or the name that the Service gives it"
            )
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Kubernetes:
        if (self.service is None) == (self.selector is None):
            raise ValueError("give either service, the name of one, or selector, for labels of EndpointSlices")
        if self.context is not None and self.kubeconfig is None:
            raise ValueError("context means nothing without kubeconfig")
        return self


class Endpoints(Section):
    """Exactly one source."""

    static: Addresses | None = None  # what a plain list becomes
    dns: Dns | None = None
    file: File | None = None
    kubernetes: Kubernetes | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _list_or_one(cls, value: Any, handler: ModelWrapValidatorHandler[Endpoints]) -> Endpoints:
        if isinstance(value, Endpoints):
            return value
        if isinstance(value, list):
            # apart from the sections, so that a fault in the list is at endpoints.0 and not at endpoints.static.0
            return cls.model_construct(static=_ADDRESSES.validate_python(value))
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a list of ip:port, or one of {', '.join(cls.model_fields)}, not {shown(value)}")
        read = handler(value)
        given = [name for name in cls.model_fields if getattr(read, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "nothing"
            raise ValueError(f"expected a list of ip:port, or one of {', '.join(cls.model_fields)}, not {found}")
        return read

    @property
    def known(self) -> list[str]:
        """The addresses that the file itself has; none where they come from elsewhere, while Fairlane runs."""
        return self.static or []

    @property
    def told(self) -> str:
        """For people: how many, or where they come from."""
        if self.static is not None:
            return f"{len(self.static)} endpoints"
        return f"endpoints by {next(name for name in type(self).model_fields if getattr(self, name) is not None)}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True
