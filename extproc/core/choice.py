"""Where a request goes, among the endpoints that have room: the score of each, and who is next best.

    score = load     * (1 - fullness)      fullness: (in flight + foreign) / limit of the window
          + prefix   * share of the prompt that its cache is likely to hold, see `prefixes`
          + adapter  * 1: the LoRA adapter is loaded there; 0.5: it has a free slot for it, see `adapters`
          + session  * 1: the session's last request went there
          + kv_usage * (1 - usage of its KV cache, by its last page)

Among equals the one with the fewest requests, then the one that has not been used for longest. A request without
prefix, adapter and session, between endpoints whose caches are as full, so goes to the least full one.

Who goes is not decided here: `dispatch` has the request and asks for a place. Affinity so costs nobody his turn, and no
request waits for a warm endpoint that is full: it goes where there is room. What remains is balance:

    A full window takes nothing, however warm its endpoint is. Limits by slots, latency, KV and prefill hold as they
    are, so a hot prefix cannot push an engine beyond what any other load could.
    Below its limit a warm endpoint is preferred to a cold one until it is fuller by prefix * share / load of its
    window, by default half of it. Then the next request goes to the cold one, and makes it warm.
    What two endpoints both have adds the same to both, and load decides between them. A system prompt that everybody
    sends is soon everywhere, at the cost of one cold prefill for each endpoint; what then draws a conversation is its
    own part alone.

Under full load mostly one endpoint has room at a time, and there is nothing to choose: then a cache is used better by
choosing the request (`prefix_slack`).

Why 0.5 for the prefix and for the session (`fairlane bench affinity`): more for the prefix finds no more in the caches
and fills one engine before the others; with sessions it makes the slow first tokens slower. Sessions give more than
prefixes where clients name them. Hashes are of 512 bytes, 1, 2, 4 KiB and so on, so that a conversation behind a long
system prompt has none of its own until it has doubled it.

Fallbacks are for a connection that is refused. They are the next best of those that accept the request; where these are
too few, of the others that may be used those with the fewest requests, then those unused for longest: better a full
engine than none. Under full load that is each release, and the score of each full endpoint would cost as much as all
else that there is to a choice.

Left out: seconds in place of scores (queue time and uncached tokens by the window's own estimates). The prefill of a
token and the wait for a slot are not known for engines without histograms, and a weight can be understood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, nsmallest
from typing import TYPE_CHECKING

from extproc.core.model import Gates, Request
from extproc.core.windows import Window

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler

_FALLBACKS = 2  # as many as Envoy tries: `num_retries` of the routes to the engines

_Key = tuple[float, int, int, int, Window]
"""The smallest is the best: what its score lacks, requests inside, number of its last release, place in the list."""


def ranked(scheduler: Scheduler, request: Request, among: Sequence[Window], q: float, now: float) -> list[Window]:
    """The best of `among` and those that may stand in for it, the best first. `q`: the standing queue that the
    request's class may use."""
    weights = scheduler.policy.pick
    by_load, by_kv, adapter = weights.load, weights.kv_usage, request.adapter
    shares = scheduler.prefixes.shares(request.prefix, request.body_bytes, now) if request.prefix else {}
    home = None if request.session is None else scheduler.sessions.of(request.session)
    drawn = shares or adapter is not None or home is not None
    keys: list[_Key] = []
    for window in among:  # each release into a pool with room comes by here, with all that have room
        load = window.in_flight + window.foreign
        lacks = by_kv * window.kv_usage
        if window.hangs:
            lacks = math.inf  # it takes one, to see, where there is no other
        elif load:
            limit = window.limit(q, now)
            lacks += by_load * (load / (limit if limit > 1.0 else 1.0))
        if drawn:
            endpoint = window.endpoint
            draw = weights.prefix * shares.get(endpoint, 0.0)
            if adapter is not None:
                shown, slots = window.adapters
                draw += weights.adapter * scheduler.adapters.fit(endpoint, adapter, shown, slots, now)
            if endpoint == home:
                draw += weights.session
            lacks -= draw
        keys.append((lacks, load, window.last_take, len(keys), window))
    if len(keys) > 1 + _FALLBACKS:
        keys = nsmallest(1 + _FALLBACKS, keys)
    else:
        keys.sort()
    return [key[-1] for key in keys]


def fallbacks(
    scheduler: Scheduler, chosen: Window, others: Sequence[Window], q: float, gates: Gates | None, now: float
) -> tuple[str, ...]:
    """The endpoints that may take a request in place of `chosen`, the best first, two at most. `others`: those that
    accept it as well, as `ranked`. `q` and `gates` are of its class: where a gate is closed it is not to go."""
    # A limit of 0: it may not be used, or, being stalled, takes one request alone, to see.
    found = [window.endpoint for window in others if window.limit(q, now) > 0.0]
    if len(found) < _FALLBACKS and len(found) + 1 < len(scheduler.windows):
        line = [(w.in_flight + w.foreign, w.last_take, i, w) for i, w in enumerate(scheduler.windows.values())]
        heapify(line)
        while line and len(found) < _FALLBACKS:
            window = heappop(line)[-1]
            if window is chosen or window.endpoint in found or window.limit(q, now) <= 0.0:
                continue
            if window.opens_at(now) < math.inf:
                continue  # it has refused or failed requests
            if gates is None or window.gate(gates, now) is None:
                found.append(window.endpoint)
    return tuple(found)
