"""The section `telemetry` of `fairlane.yaml`: what is told of requests, and to whom."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, WithJsonSchema, field_validator

from extproc.config.names import name_fault
from extproc.config.section import Section
from extproc.config.units import Seconds, shown

MOST_TENANTS = 500  # with series of their own


class TenantSeries(Section):
    """Tenants that have series of their own at the metrics port; all others are `other` together."""

    top: Annotated[int, Field(ge=0, le=MOST_TENANTS)] = 10  # those with the most service of late
    names: list[str] = Field(default_factory=list, max_length=MOST_TENANTS)  # and these, always

    @field_validator("names")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for name in value:
            if fault := name_fault(name):
                raise ValueError(f"the name {shown(name)} {fault}")
        if len(set(value)) < len(value):
            raise ValueError("names a tenant twice")
        return value


class RequestLog(Section):
    """Lines of single requests. Those of the service itself are always written."""

    slow_after: Seconds | None = 10.0  # a request that has waited for longer gets a line; None: none does
    refused: bool = True  # one that is refused gets a line
    lines_per_second: Annotated[float, Field(gt=0.0, le=10_000.0)] = (
        20.0  # of each kind; then one says how many are left out
    )


Collector = Annotated[
    str,
    WithJsonSchema(
        {"type": "string", "pattern": r"^[hH][tT][tT][pP][sS]?://\S+$", "examples": ["http://collector:4317"]},
        mode="validation",
    ),
]


class Traces(Section):
    """Spans over OTLP. Needs the extra `otel`. Headers, such as credentials, come from the standard environment
    variables (OTEL_EXPORTER_OTLP_HEADERS)."""

    otlp: Collector | None = None  # "http://collector:4317"; None: off
    protocol: Literal["grpc", "http"] = "grpc"
    # Of the requests that come without a trace of their own; one that has one goes by its sampled flag.
    sample: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01

    @field_validator("otlp")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{shown(value)} is no address: {error}") from None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or any(c == " " or not c.isprintable() for c in value)
        ):
            raise ValueError(f"must be like http://collector:4317 or https://collector:4318, not {shown(value)}")
        if port == 0 or parts.query or parts.fragment:
            raise ValueError("must have a scheme, a host, a port and, with protocol http, a path; nothing else")
        if parts.username or parts.password:
            raise ValueError("must have no credentials: give them in OTEL_EXPORTER_OTLP_HEADERS")
        return value


class Telemetry(Section):
    enabled: bool = True  # False: nothing is told of any request. For measuring what telling costs
    tenants: TenantSeries = TenantSeries()
    log: RequestLog = RequestLog()
    traces: Traces = Traces()
    page: bool = True  # the live page at / of the HTTP port
