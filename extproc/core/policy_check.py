"""Which policies can be, and which a running pool can change to.

The configuration is checked where it is read, with better messages. This is the last door before the state: a
policy that passes it cannot make a later event fail half way, so an event changes everything or nothing.
"""

from __future__ import annotations

from extproc.core.model import Pick, PoolPolicy
from extproc.core.node import check_policy as check_node

Bounds = dict[str, tuple[float, float]]

_MOST = 1e16  # of what is only to be a number: seconds, requests, bytes, cost units
_CLASS: Bounds = {
    "priority_base": (-_MOST, _MOST),
    "queue_timeout_s": (0.0, _MOST),
    "max_waiting": (0, _MOST),
    "max_queued": (0, _MOST),
    "max_in_flight": (0, _MOST),
    "min_share": (0.0, 1.0),
    "max_queued_bytes": (0, _MOST),
    "max_queued_tokens": (0, _MOST),
    "promote_after_s": (0.0, _MOST),
    "headroom": (1e-9, 1.0),
    "preempt_after_s": (0.0, _MOST),
}
_GATES: Bounds = {
    "max_waiting": (0, _MOST),
    "max_tpot_s": (0.0, _MOST),
    "max_kv_usage": (0.0, 1.0),
    "max_ttft_s": (0.0, _MOST),
}
_TENANT: Bounds = {"max_queued": (0, _MOST), "max_queued_bytes": (0, _MOST), "max_queued_tokens": (0, _MOST)}
_WEIGHTS: Bounds = {"prompt": (0.0, _MOST), "cached": (0.0, _MOST), "output": (0.0, _MOST)}
_WINDOW: Bounds = {
    "start": (1.0, _MOST),
    "floor": (0.0, _MOST),
    "ceiling": (1.0, _MOST),
    "max_tpot_s": (1e-6, _MOST),
    "max_kv_usage": (1e-6, 1.0),
    "overtake": (0, _MOST),
    "scrape_interval_s": (0.0, _MOST),
    "idle_scrape_interval_s": (0.0, _MOST),
    "first_scrape_grace_s": (0.0, _MOST),
    "max_num_seqs": (1, _MOST),
    "threshold": (0, _MOST),
    "fixed": (0, _MOST),
    "stalled_after_s": (1e-3, _MOST),
}
_PICK: Bounds = dict.fromkeys(("load", "prefix", "adapter", "session", "kv_usage"), (0.0, 1e6))
_POOL: Bounds = {
    "max_queued": (0, _MOST),
    "max_queued_bytes": (0, _MOST),
    "usage_grace_s": (0.0, _MOST),
    "priority_steps": (1, _MOST),
    "promote_every": (1, _MOST),
    "prefix_slack": (0.0, _MOST),
    "preempt_per_s": (1e-6, 1e6),
    "no_endpoint_timeout_s": (0.0, _MOST),
}


def check_policy(policy: PoolPolicy) -> None:
    """Raise ValueError, naming the setting and its value, for a policy that cannot be. O(classes + tenants)."""
    pool = f"pool {policy.name!r}"
    if not policy.classes:
        raise ValueError(f"{pool} needs at least one class")
    ranks = [c.rank for c in policy.classes]
    if len(set(ranks)) < len(ranks) or len({c.name for c in policy.classes}) < len(ranks):
        raise ValueError(f"classes of {pool} need a name and a rank of their own each")
    for cls in policy.classes:
        _within(f"class {cls.name!r}", cls, _CLASS)
        _within(f"gates of class {cls.name!r}", cls.gates, _GATES)
    shares = sum(c.min_share for c in policy.classes)
    if shares > 1.0 + 1e-9:
        raise ValueError(f"min_share of all classes of {pool} together must not exceed 1, and is {shares:g}")
    _within(pool, policy, _POOL)
    _within(f"cost of {pool}", policy.weights, _WEIGHTS)
    _within(f"window of {pool}", policy.window, _WINDOW)
    _within(f"pick of {pool}", policy.pick, _PICK)
    if policy.shared and policy.pick.by is Pick.ENVOY:
        raise ValueError(
            f"{pool} cannot be shared between replicas while Envoy picks its endpoints (pick.by: envoy): nobody knows "
            "what runs where then; let Fairlane pick them (pick.by: fairlane)"
        )
    for name, tenant in [("*", policy.default_tenant), *policy.tenants.items()]:
        check_node(name, tenant)
        _within(f"tenant {name!r}", tenant, _TENANT)
        policy.path(name)


def check_change(old: PoolPolicy, new: PoolPolicy) -> None:
    """Raise ValueError, naming the cure, where a running pool cannot change from `old` to `new`."""
    if new.name != old.name:
        raise ValueError(f"pool {old.name!r} cannot become {new.name!r}; add a pool of that name instead")
    if new.unit is not old.unit:
        raise ValueError(
            f"the unit of pool {old.name!r} cannot change from {old.unit.value} to {new.unit.value} while it runs: "
            "what each tenant has had is counted in it; restart with the new unit"
        )
    if new.shared is not old.shared:
        raise ValueError(
            f"pool {old.name!r} cannot {'begin' if new.shared else 'cease'} to be shared with other replicas while it "
            "runs: what they hold is part of its books; restart it"
        )
    check_policy(new)


def _within(who: str, settings: object, bounds: Bounds) -> None:
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, int | float) and least <= value <= most):
            raise ValueError(f"{name} of {who} must be a number from {least:g} to {most:g}, not {value!r}")
