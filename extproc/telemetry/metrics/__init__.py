"""Prometheus metrics: what happens is counted as it happens; what is, is read at the scrape.

    requests        counters of what becomes of requests; the edge's recorder
    tenants         the same by tenant, for a few of them
    pools           pools and classes, read from their views
    endpoints       engines: their windows, how reading them goes, where they come from
    configuration   what the service runs by
    cluster         other replicas, and the store by which they meet
    metrics         all of it in one registry
    exposition      the page, in the format that is asked for

    counts          counters and histograms that are quick enough for each request, and the cap on them
    labels          what may stand in a label
    families        families filled from rows of state

Names: base units, `fairlane_` in front; a counter ends in `_total`. A limit that is not set, and what is not known, has
no sample. No label holds a request's id or a client's text: pools, classes, endpoints and reasons are configured or
fixed, and tenants have series of their own only where `telemetry.tenants` names them or they are among the top ones.
Whatever comes, there is a hard cap: what it leaves out is counted (`fairlane_series_left_out_total`).

Left out: a summary with quantiles, which cannot be added up over replicas; labels by model, which are clients' text.
"""

from extproc.telemetry.metrics.exposition import Exposition
from extproc.telemetry.metrics.metrics import Metrics
from extproc.telemetry.metrics.sources import ClusterStats, ConfigurationStats, EndpointSetStats, ScrapeStats, Sources

__all__ = [
    "ClusterStats",
    "ConfigurationStats",
    "EndpointSetStats",
    "Exposition",
    "Metrics",
    "ScrapeStats",
    "Sources",
]
