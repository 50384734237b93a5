"""All checks, in the order in which they are told. A new one goes into the module of its subject."""

from __future__ import annotations

from extproc.wiring.doctor import (
    away,
    bypass,
    capacity,
    clusters,
    coverage,
    endpoints,
    engines,
    facts,
    identity,
    order,
    processor,
    queued,
    replicas,
    routes,
    timers,
    tls,
    usage,
)
from extproc.wiring.doctor.check import Check

SUBJECTS: dict[str, tuple[Check, ...]] = {
    "What was looked at": coverage.CHECKS,
    "Clocks": timers.CHECKS,
    "Limits": capacity.CHECKS,
    "The ext_proc filter": processor.CHECKS,
    "When Fairlane is away": away.CHECKS,
    "Facts and body": facts.CHECKS,
    "Token counts": usage.CHECKS,
    "Identity": identity.CHECKS,
    "Order of filters": order.CHECKS,
    "Clusters": clusters.CHECKS,
    "Several replicas": replicas.CHECKS,
    "TLS to Fairlane": tls.CHECKS,
    "Endpoints": endpoints.CHECKS,
    "Routes and headers": (*queued.CHECKS, *routes.CHECKS),
    "Ways past Fairlane": bypass.CHECKS,
    "Engines": engines.CHECKS,
}
CHECKS: tuple[Check, ...] = tuple(check for checks in SUBJECTS.values() for check in checks)
