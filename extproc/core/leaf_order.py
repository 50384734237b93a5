"""Which request of one flow goes first. What other flows get does not depend on it.

FIFO            by arrival, then `seq`: a request that is put again after a replay has its old place.
SHORTEST_FIRST  of the eight that arrived first the one with the least estimate / (1 + age/tau), tau 10 s:
                one ten times as long has its turn after 90 s of waiting at the latest, and at once when
                nothing shorter is among the eight. A tie goes to the earlier one.
DEADLINE        the one whose deadline is next.

Requests are kept in a sorted sequence (`sorted_blocks`), by arrival or by deadline.
"""

from __future__ import annotations

from itertools import islice

from extproc.core.model import Order, Request
from extproc.core.sorted_blocks import insert, iterate, rank, remove

TAU_S = 10.0
WIDTH = 8

Requests = list[list[tuple[float, int, Request]]]


def key_of(request: Request, order: Order) -> tuple[float, int, Request]:
    return (request.deadline if order is Order.DEADLINE else request.arrival, request.seq, request)


def add(requests: Requests, request: Request, order: Order) -> None:
    insert(requests, key_of(request, order))


def discard(requests: Requests, request: Request, order: Order) -> None:
    """Raises ValueError where it is not there."""
    try:
        remove(requests, key_of(request, order))
    except ValueError:
        # Its deadline has been changed where it stands. Rare: a new timeout, before `reconfigure` says so.
        for i, block in enumerate(requests):
            for j, key in enumerate(block):
                if key[2] is request:
                    del block[j]
                    if not block:
                        del requests[i]
                    return
        raise ValueError(f"not queued here: {request.story()}") from None


def first(requests: Requests, order: Order, now: float) -> Request:
    """Of at least one."""
    if order is not Order.SHORTEST_FIRST:
        return requests[0][0][2]
    return min((key[2] for key in islice(iterate(requests), WIDTH)), key=lambda r: aged(r, now))


def aged(request: Request, now: float) -> float:
    return request.cost / (1.0 + max(0.0, now - request.arrival) / TAU_S)


def ahead(requests: Requests, request: Request, order: Order, now: float) -> list[Request]:
    """Those that go before `request`, were they taken at `now`. O(those)."""
    before = rank(requests, key_of(request, order))
    earlier = [key[2] for key in islice(iterate(requests), before)]
    if order is not Order.SHORTEST_FIRST:
        return earlier
    # Of the first eight those that are shorter; the one beyond them can go when it has become one of them.
    window = [key[2] for key in islice(iterate(requests), WIDTH)]
    if request not in window:
        return earlier
    shorter = sorted(window, key=lambda r: aged(r, now))
    return shorter[: shorter.index(request)]
