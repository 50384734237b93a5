"""The exporter of the SDK's that spans are sent with, by the settings and the environment, and what it says of the
service.

To the HTTP exporter any status below 400 means that the spans have been taken, and it follows no redirect: spans would
be lost unseen. So its session takes a redirect for an error. A session that a credential provider makes
(OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER) is left as it is: the exporter shows it to nobody.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import SpanExporter

from extproc.config.telemetry import Traces
from extproc.telemetry.printable import printable

if TYPE_CHECKING:
    import requests

_GRPC_PORT = 4317
_HTTP_PATH = "/v1/traces"
_SESSIONS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)


class SpansError(Exception):
    """Spans cannot be sent. The message names the cause and the cure."""


class _Service(Resource):
    """What the spans are of. The exporter asks for its hash with each span; the SDK's is that of a JSON of it all."""

    def __init__(self, found: Resource) -> None:
        super().__init__(found.attributes, found.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def service_of(version: str) -> Resource:
    """What the environment says of the service counts for more."""
    ours = Resource.create({"service.name": "fairlane", "service.version": version})
    return _Service(ours.merge(OTELResourceDetector().detect()))


def make_exporter(settings: Traces) -> SpanExporter:
    url = settings.otlp or ""
    parts = urlsplit(url)
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        if parts.path.strip("/"):
            raise SpansError(
                f"telemetry.traces.otlp has the path {printable(parts.path)!r}, and gRPC has none: leave it out, or "
                "set telemetry.traces.protocol to http"
            )
        if parts.port is None and parts.scheme == "http":
            url = f"http://{parts.netloc}:{_GRPC_PORT}"  # gRPC would take 443
        return OTLPSpanExporter(endpoint=url)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OTLPHttpSpanExporter

    return OTLPHttpSpanExporter(
        endpoint=url if parts.path.strip("/") else url.rstrip("/") + _HTTP_PATH,
        session=None if any(os.environ.get(name) for name in _SESSIONS) else _session(),
    )


def _session() -> requests.Session:
    import requests

    session = requests.Session()
    session.hooks["response"].append(_no_redirect)
    return session


def _no_redirect(response: requests.Response, *_: object, **__: object) -> None:
    if 300 <= response.status_code < 400:  # where to is not told: it may hold a token
        from requests.exceptions import HTTPError

        raise HTTPError(
            f"it answers {response.status_code}: its traces are taken at another address, which telemetry.traces.otlp "
            "must have"
        )
