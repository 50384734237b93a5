"""For whom a pool's mode holds: `percentage` of its tenants, or of its requests.

Who is in follows from a hash of the tenant's name, or of Envoy's request id, and from nothing else: so each replica
decides alike, and a request that is sent again decides as it did before. Who is in at 10 % is in at 20 %, so that
opening up touches nobody who was in already. The same tenants come first in all pools.

Outside of the percentage the next weaker mode holds: enforce -> observe, observe -> off. Off is off for all.

A client can choose its request id where Envoy keeps what comes from outside (`preserve_external_request_id`), and so
whether it is in: share by tenants there. A request without an id goes by its tenant.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from extproc.config.scheduling import Pool

Mode = Literal["enforce", "observe", "off"]


def mode_for(pool: Pool, tenant: str, request_id: str) -> Mode:
    """`request_id`: Envoy's; empty: it did not say."""
    mode, percentage = pool.mode, pool.percentage
    if mode == "off" or percentage >= 100.0:
        return mode
    if percentage > 0.0:
        by_request = pool.percentage_of == "requests" and request_id
        place = _place(request_id) if by_request else _place_of_tenant(tenant)
        if place < percentage:
            return mode
    return "observe" if mode == "enforce" else "off"


def enforces(pool: Pool) -> bool:
    """Whether any of its requests may be held or refused."""
    return pool.mode == "enforce" and pool.percentage > 0.0


def observes(pool: Pool) -> bool:
    """Whether any of its requests may pass and be observed."""
    return (pool.mode == "observe" and pool.percentage > 0.0) or (pool.mode == "enforce" and pool.percentage < 100.0)


def _place(text: str) -> float:
    """Among all names, from 0 to under 100."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest) * 100.0 / 2**48


@lru_cache(maxsize=4096)
def _place_of_tenant(tenant: str) -> float:
    return _place(tenant)
