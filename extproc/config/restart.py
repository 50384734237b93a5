"""What cannot change while Fairlane runs.

Addresses and the admin port's credentials belong to servers that are bound; what tenants have had is counted in the
pool's unit; requests that Envoy balances have no endpoint of ours; and the server of the ext_proc port has a bound for
its messages, from the largest body at the start. Who exports spans, and whether a page is served, is said at the start.
So is which of several replicas this one is: the others know it by that.
"""

from __future__ import annotations

from extproc.config.data_tree import differences
from extproc.config.faults import Fault, path_text
from extproc.config.model import Config
from extproc.config.units import written_size
from extproc.config.written import written_part

_WHOLE_SECTIONS = ("listen", "admin", "cluster")
_TELEMETRY = ("enabled", "traces", "page")


def needs_restart(old: Config, new: Config, started: Config | None = None) -> list[Fault]:
    """Why a process that goes by `old`, and was started with `started` (None: with `old`), cannot go by `new`."""
    faults = []
    for name in _WHOLE_SECTIONS:
        before, after = written_part(getattr(old, name)), written_part(getattr(new, name))
        faults += [Fault(path_text(change.path), _told()) for change in differences(before, after, (name,))]
    for name in _TELEMETRY:
        if getattr(old.telemetry, name) != getattr(new.telemetry, name):
            faults.append(Fault(f"telemetry.{name}", _told()))
    pools = {pool.name: pool for pool in old.pools}
    for pool in new.pools:
        known = pools.get(pool.name)
        if known is None:
            continue
        for path, was, will in (
            (("cost", "unit"), known.cost.unit, pool.cost.unit),
            (("pick", "by"), known.pick.by, pool.pick.by),
        ):
            if was != will:
                faults.append(Fault(path_text(("pools", pool.name, *path)), _told(f"from {was} to {will}")))
    most = (started or old).requests.max_body
    if new.requests.max_body > most:
        faults.append(Fault("requests.max_body", _told(f"the server was started for {written_size(most)} at most")))
    return faults


def _told(detail: str = "") -> str:
    return f"needs a restart{f' ({detail})' if detail else ''}: the file says it when Fairlane starts"
