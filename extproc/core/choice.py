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

Fallbacks are for a connection that is refused: the best of the others by the same score, also those without room.

Left out: seconds in place of scores (queue time and uncached tokens by the window's own estimates). The prefill of a
token and the wait for a slot are not known for engines without histograms, and a weight can be understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.model import Gates, Request
from extproc.core.windows import Window

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler

_FALLBACKS = 3

_Key = tuple[float, int, int]
"""The smallest is the best: what its score lacks, requests inside, number of its last release."""


def affinity(scheduler: Scheduler, request: Request, window: Window, now: float) -> float:
    """The part of the score that is the request's own."""
    weights, endpoint = scheduler.policy.pick, window.endpoint
    score = 0.0
    if request.prefix:
        score += weights.prefix * scheduler.prefixes.share(endpoint, request.prefix, request.body_bytes, now)
    if request.adapter is not None:
        shown, slots = window.adapters
        score += weights.adapter * scheduler.adapters.fit(endpoint, request.adapter, shown, slots, now)
    if request.session is not None and scheduler.sessions.of(request.session) == endpoint:
        score += weights.session
    return score


def best(scheduler: Scheduler, request: Request, among: list[Window], q: float, now: float) -> Window:
    """Of at least one. `q`: the standing queue that the request's class may use."""
    weights = scheduler.policy.pick
    by_load, by_kv = weights.load, weights.kv_usage
    drawn = request.prefix or request.adapter is not None or request.session is not None
    found, found_key = among[0], None
    for window in among:  # `_key`, written out: each release into a pool with room comes by here
        limit, load = window.limit(q, now), window.in_flight + window.foreign
        lacks = by_load * (load / (limit if limit > 1.0 else 1.0)) + by_kv * window.kv_usage
        if drawn:
            lacks -= affinity(scheduler, request, window, now)
        key = (lacks, load, window.last_take)
        if found_key is None or key < found_key:
            found, found_key = window, key
    return found


def fallbacks(
    scheduler: Scheduler, request: Request, chosen: Window, q: float, gates: Gates | None, now: float
) -> tuple[str, ...]:
    """Up to three other endpoints that may take `request` in place of `chosen`, the best first. `q` and `gates` are of
    its class: where a gate is closed it is not to go in any case."""
    first: Window | None = None
    more: list[Window] | None = None
    for window in scheduler.windows.values():
        if window is chosen or window.limit(q, now) <= 0.0:  # 0: it may not be used
            continue
        if gates is not None and window.gate(gates, now) is not None:
            continue
        if first is None:
            first = window
        elif more is None:
            more = [first, window]
        else:
            more.append(window)
    if first is None:
        return ()
    if more is None:
        return (first.endpoint,)
    more.sort(key=lambda window: _key(scheduler, request, window, q, now))
    return tuple([window.endpoint for window in more[:_FALLBACKS]])


def _key(scheduler: Scheduler, request: Request, window: Window, q: float, now: float) -> _Key:
    weights, limit, load = scheduler.policy.pick, window.limit(q, now), window.in_flight + window.foreign
    lacks = weights.load * (load / (limit if limit > 1.0 else 1.0)) + weights.kv_usage * window.kv_usage
    return lacks - affinity(scheduler, request, window, now), load, window.last_take
