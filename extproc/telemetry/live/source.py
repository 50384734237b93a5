"""What the live page is told. All of it is JSON as it stands: seconds, counts, texts that can be shown; None where a
figure is not known.

A snapshot:

    time, uptime_s      seconds since 1970, and since the start
    version, revision, serving, held, in_flight, observed, watchers
    cluster             None, or mode, name, replica, active, active_replica, replicas (that live), expected,
                        store_used, store_lost_s (None: it answers), error
    file_error          why the configuration's file cannot be used as it is now; ""
    pools_left_out      how many more there are
    pools[]             name, mode, percentage, traffic, models, retiring, held, held_bytes, in_flight, observed,
                        released_per_s, since_release_s, leaked, source, source_error, would_be (all figures of it are
                        what would be if its requests waited)
      .classes[]        name, rank, held, in_flight, tenants, retiring, oldest_wait_s, objective_s, hold, sentence,
                        next, gates [{name, closed}], released_per_s, jain, spread, competing
      .endpoint_count, .stances {stance: count}
      .limit            slots of all windows together
      .endpoints[]      address, stance, ours, foreign, capacity, queue_target, limit, room, running, waiting, kv,
                        tpot_s, page_age_s, dialect, priority_told, last_error, turned_away, failed, at_floor, removed,
                        others, claim (slots that other replicas hold, and that this one may)
      .flow_count       flows that have something waiting
      .flows[]          key, tenant, cls, held, in_flight, oldest_wait_s, weight, id (of its next request), hold,
                        sentence, next, own (False: the words are about the next request of the class)

A history has the last minutes of each pool at equal steps: step_s, and pools {name: {t [seconds since 1970], held
{class: [...]}, in_flight [...], limit [...], ...}}, see `telemetry.history`.
"""

from __future__ import annotations

from typing import Any, Protocol


class LiveSource(Protocol):
    """To be called from the service's event loop, which no call holds for longer than a portion."""

    async def snapshot(self) -> dict[str, Any]: ...

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        """Why a request waits; None: it is not here (any more)."""

    def history(self) -> dict[str, Any]: ...
