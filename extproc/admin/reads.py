"""The reading methods, by their names in the service. They change nothing, and hold the loop in portions only, see
`portions`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from extproc.admin import flows, messages
from extproc.admin.access import CALLER
from extproc.admin.control import Control, RunningPool
from extproc.admin.dump import Dump
from extproc.admin.errors import AdminError, invalid
from extproc.admin.filter import parse
from extproc.admin.paging import from_token, page_size, to_token
from extproc.admin.pool_messages import PoolMessages
from extproc.admin.portions import Portions, Work
from extproc.admin.scan import Position, Scan, find
from extproc.admin.status import status
from extproc.admin.watch import Watch, interval_of
from extproc.config.schema import meant
from extproc.core.explanation import explain
from extproc.core.view import request_view
from extproc.pb.admin.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from extproc.admin.revisions import Revisions

_POOLS_PAGE: Final = (100, 1000)  # unless asked for, and at most
_ENDPOINTS_PAGE: Final = (500, 5000)
_REQUESTS_PAGE: Final = (100, 1000)
_FLOWS: Final = (20, 10_000)
_DUMPED_REQUESTS: Final = (10_000, 1_000_000)
_PAGE_S: Final = 0.5  # looking for a page takes no longer: it may be short, or empty, and the next one goes on


class Reads:
    """Methods of the service, by their names there."""

    def __init__(self, control: Control, revisions: Revisions, portions: Portions | None = None) -> None:
        """`portions`: shared with what else looks through all requests."""
        self._control = control
        self._revisions = revisions
        self._portions = portions or Portions()
        self._pools = PoolMessages(control, self._portions)
        self._watch = Watch(self._pools, lambda: revisions.revision)
        # The numbers of requests begin anew with the process, so a page token of another one would skip some.
        self._process = secrets.token_hex(8)

    def close(self) -> None:
        """Ends all watchers: the server stops."""
        self._watch.close()

    # -- status, pools, endpoints -----------------------------------------------------------------

    async def GetStatus(self, _: pb.GetStatusRequest, __: Any) -> pb.Status:  # noqa: N802
        return status(self._control, self._revisions, CALLER.get(), self._watch.watchers)

    async def ListPools(self, request: pb.ListPoolsRequest, _: Any) -> pb.ListPoolsResponse:  # noqa: N802
        size = _page_size(request.page_size, _POOLS_PAGE)
        after = from_token("pools", request.page_token, str)
        pools = self._pools.running()
        if after is not None:
            pools = [each for each in pools if each.pool.name > after[0]]
        page = pools[:size]
        return pb.ListPoolsResponse(
            pools=await self._pools.told(page),
            next_page_token=to_token("pools", page[-1].pool.name) if len(pools) > size else "",
        )

    async def GetPool(self, request: pb.GetPoolRequest, _: Any) -> pb.Pool:  # noqa: N802
        if not request.pool:
            raise invalid("pool", f"is missing; {self._known_pools('there is ')}")
        (found,) = await self._pools.told(self._named(request.pool))
        return found

    async def ListEndpoints(  # noqa: N802
        self, request: pb.ListEndpointsRequest, _: Any
    ) -> pb.ListEndpointsResponse:
        size = _page_size(request.page_size, _ENDPOINTS_PAGE)
        scope = f"endpoints {request.pool}"
        after = from_token(scope, request.page_token, str, str)
        endpoints = await self._pools.endpoints(self._named(request.pool))
        if after is not None:
            endpoints = [each for each in endpoints if (each.pool, each.address) > after]
        page = endpoints[:size]
        return pb.ListEndpointsResponse(
            endpoints=page,
            next_page_token=to_token(scope, page[-1].pool, page[-1].address) if len(endpoints) > size else "",
        )

    # -- flows and requests -----------------------------------------------------------------------

    async def ListFlows(self, request: pb.ListFlowsRequest, _: Any) -> pb.ListFlowsResponse:  # noqa: N802
        default, most = _FLOWS
        top_k = page_size(request.top_k, default=default, most=most, field="top_k")
        key = flows.order_of(request.order_by)
        found, total = await flows.first(self._named(request.pool), top_k, key, self._portions)
        response = pb.ListFlowsResponse(total_count=total)
        work = Work(self._portions)
        await work.next()
        for flow in found:
            if work.over:
                await work.next()
            response.flows.append(flow.message())
        return response

    async def ListRequests(  # noqa: N802
        self, request: pb.ListRequestsRequest, _: Any
    ) -> pb.ListRequestsResponse:
        size = _page_size(request.page_size, _REQUESTS_PAGE)
        wanted = parse(request.filter)
        scope = f"requests {self._process} {request.filter}"
        place = from_token(scope, request.page_token, str, bool, int)
        scan = Scan(
            self._control,
            self._portions,
            wanted.matches,
            after=None if place is None else Position(*place),
            for_s=_PAGE_S,
        )
        response = pb.ListRequestsResponse()
        async with aclosing(aiter(scan)) as matching:
            async for found in matching:
                response.requests.append(messages.request(found.view, found.running.pool.name, observed=found.observed))
                if len(response.requests) == size:
                    break
        if not scan.complete and scan.position is not None:
            response.next_page_token = to_token(scope, *scan.position)
        return response

    async def ExplainRequest(self, request: pb.ExplainRequestRequest, _: Any) -> pb.Explanation:  # noqa: N802
        running, observed, seen = self._meant(request)
        scheduler = running.observed if observed else running.scheduler
        now = running.now()
        found = None if scheduler is None else explain(scheduler, seen, now)
        if scheduler is None or found is None:
            raise _not_there(seen)
        view = request_view(scheduler.requests[seen], now)
        return messages.explanation(found, view, running.pool.name, observed=observed)

    def _meant(self, request: pb.ExplainRequestRequest) -> tuple[RunningPool, bool, str]:
        if bool(request.id) == bool(request.x_request_id):
            raise invalid("id" if request.id else "", "give one of id and x_request_id")
        ticket: str | None = request.id
        if request.x_request_id:
            ticket = self._control.ticket_of(request.x_request_id)
            if ticket == "":
                raise AdminError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"several requests share the x-request-id {request.x_request_id[:200]!r}: clients may choose it; "
                    "find the one that is meant with ListRequests, and ask by its id",
                )
        found = None if ticket is None else find(self._control, ticket)
        if found is None:
            raise _not_there(request.id or request.x_request_id)
        return found[0], found[1], found[2].id

    # -- streams ----------------------------------------------------------------------------------

    async def WatchStats(  # noqa: N802
        self, request: pb.WatchStatsRequest, _: Any
    ) -> AsyncIterator[pb.Stats]:
        interval_s = interval_of(request.interval if request.HasField("interval") else None)
        self._named(request.pool)
        async for stats in self._watch.watch(interval_s, request.pool):
            yield stats

    async def DumpState(  # noqa: N802
        self, request: pb.DumpStateRequest, _: Any
    ) -> AsyncIterator[pb.DumpStateResponse]:
        default, most = _DUMPED_REQUESTS
        limit = page_size(request.request_limit, default=default, most=most, field="request_limit")
        now = status(self._control, self._revisions, CALLER.get(), self._watch.watchers)
        async for portion in Dump(self._control, self._revisions, self._portions).portions(now, limit):
            yield portion

    # -- what several of them do ------------------------------------------------------------------

    def _named(self, pool: str) -> list[RunningPool]:
        """All of them for an empty name. Raises AdminError where there is none of that name."""
        running = self._pools.running()
        if not pool:
            return running
        found = [each for each in running if each.pool.name == pool]
        if not found:
            raise AdminError(
                grpc.StatusCode.NOT_FOUND, f"there is no pool {pool[:200]!r}; {self._known_pools('there is ', pool)}"
            )
        return found[:1]

    def _known_pools(self, words: str, name: str = "") -> str:
        return meant(name, [each.pool.name for each in self._pools.running()], words)


def _page_size(asked: int, bounds: tuple[int, int]) -> int:
    default, most = bounds
    return page_size(asked, default=default, most=most)


def _not_there(name: str) -> AdminError:
    return AdminError(
        grpc.StatusCode.NOT_FOUND,
        f"request {name[:200]!r} is not here: it never came, it is over, or another replica has it",
    )
