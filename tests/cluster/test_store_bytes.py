"""How much is said in a period, and how long it takes, with many tenants at many replicas."""

from __future__ import annotations

import contextlib

import pytest
from member_case import Replica, endpoint
from redis_rig import RedisServer, Wall, wall
from store_case import store

from extproc.cluster.exchange import Exchange
from extproc.cluster.store import LARGEST_MESSAGE
from extproc.core.sharing.words import FlowReport

REPLICAS = 8
TENANTS = 10_000
IN_A_REPORT = 1_032  # flows, at most, see `core.sharing.flows`
LEASE_S = 60.0


def _flows(first: int, count: int, usage: float) -> tuple[FlowReport, ...]:
    return tuple(
        FlowReport("interactive", f"team-{number % 100}/tenant-{number:05}", usage + number / 7, 123.456, 1)
        for number in range(first, first + count)
    )


async def _rounds(
    server: RedisServer, stack: contextlib.AsyncExitStack
) -> tuple[list[Wall], list[Replica], list[Exchange]]:
    walls, members, exchanges = [], [], []
    for number in range(REPLICAS):
        between = await stack.enter_async_context(wall(server))
        link = await stack.enter_async_context(store(between.settings()))
        member = Replica([endpoint(f"host-{each}:8000", inside=3, want=8) for each in range(16)], info={"version": "1"})
        walls.append(between)
        members.append(member)
        exchanges.append(Exchange(link, member, f"replica-{number}", period_s=0.1, lease_s=LEASE_S))
    for _ in range(2):
        for exchange in exchanges:
            await exchange.once()
    return walls, members, exchanges


def _take(walls: list[Wall]) -> list[int]:
    found = [each.sent + each.received for each in walls]
    for each in walls:
        each.sent = each.received = 0
    return found


@pytest.mark.slow
async def test_bytes_of_a_period_are_bounded_whatever_the_number_of_tenants(server: RedisServer) -> None:
    """10,000 tenants at each of 8 replicas, all of which change all the time: no period says more than a report's
    flows, and everything is told in the end. Counted on the wire, both ways."""
    async with contextlib.AsyncExitStack() as stack:
        walls, members, exchanges = await _rounds(server, stack)
        _take(walls)
        for exchange in exchanges:
            await exchange.once()
        quiet = max(_take(walls))
        told: set[str] = set()
        busiest = 0
        for turn in range(-(-TENANTS // IN_A_REPORT)):
            for member in members:
                first = turn * IN_A_REPORT
                member.flows = _flows(first, min(IN_A_REPORT, TENANTS - first), turn)
            for exchange in exchanges:
                await exchange.once()
            busiest = max(busiest, *_take(walls))
        for exchange in exchanges:
            await exchange.once()
        for news in members[0].news:
            told |= {flow.tenant for other in news.of("p").others for flow in other.report.flows}
        assert len(told) == TENANTS and not any(news.missed for news in members[0].news)
        assert all(len(exchange._outbox) == 0 for exchange in exchanges)
        print(f"on the wire, a replica and period: {quiet} bytes with nothing new, at most {busiest}")
        assert quiet < 16 * 1024
        of_a_message = 64 * 1024  # 1,032 flows of 64 bytes
        assert busiest < REPLICAS * (of_a_message + 2048)


async def test_a_message_is_never_larger_than_its_bound(server: RedisServer) -> None:
    """Though 20 pools have each as much to say as they may, in the longest of names."""
    async with contextlib.AsyncExitStack() as stack:
        walls, members, exchanges = await _rounds(server, stack)
        _take(walls)
        members[0].flows = tuple(FlowReport("c", f"{number:05}{'€' * 251}", 1.0, 1.0, 0) for number in range(4_000))
        rounds = 0
        while rounds == 0 or len(exchanges[0]._outbox):
            await exchanges[0].once()
            await exchanges[1].once()
            rounds += 1
            assert max(_take(walls)) < LARGEST_MESSAGE + 16 * 1024
        assert rounds > 10
        told = {flow.tenant for news in members[1].news for o in news.of("p").others for flow in o.report.flows}
        assert len(told) == 4_000
