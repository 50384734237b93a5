"""The script grants and tells as the rule in Python does, which the benchmarks in virtual time go by."""

from __future__ import annotations

import random

import pytest
from redis_rig import RedisServer
from store_case import LEASE_S, Voice, store

from extproc.cluster import codec, scripts
from extproc.cluster.words import Ask
from extproc.core.sharing.words import EndpointReport, FlowReport, PoolReport
from extproc.sim.meeting_place import MeetingPlace

KEYS = scripts.Keys.of("test")
NAMES = ("a", "b", "c", "d")
ENDPOINTS = ("e", "f", "g")


def _report(chance: random.Random, granted: dict[str, float], serial: int) -> PoolReport:
    endpoints = tuple(
        EndpointReport(
            name,
            chance.randint(0, int(granted.get(name, 0)) + (chance.random() < 0.1)),
            serial,
            chance.choice([0.0, 8.0, 16.5, 24.0]),
            chance.choice([0.0, 1.0, 4.0, 7.5, 16.0, 30.0]),
        )
        for name in ENDPOINTS
    )
    flows = tuple(FlowReport("c", f"t{serial}-{number}", 1.5, 0.0, 0) for number in range(chance.randint(0, 2)))
    return PoolReport("p", (), endpoints, flows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_same_answers_in_any_order_of_events(server: RedisServer, seed: int) -> None:
    chance = random.Random(seed)
    place = MeetingPlace(LEASE_S)
    begun = 1000 * int(server.ask("TIME")[0])
    read: dict[str, set[str]] = {name: set() for name in NAMES}  # tenants that each has been told of
    async with store(server.settings()) as link:
        voices = {name: Voice(link, name) for name in NAMES}
        granted: dict[str, dict[str, float]] = {name: {} for name in voices}
        for serial in range(150):
            name = chance.choice(list(voices))
            voice = voices[name]
            event = chance.random()
            if event < 0.03:
                server.ask("FLUSHALL")
                place.flush()
                continue
            if event < 0.07:
                await link.leave(name, voice.life)
                place.leave(name)
                continue
            if event < 0.12:  # the lease of one runs out
                record = server.ask("HGET", KEYS.replicas, name)
                if record is not None:
                    head, rest = record.split(b"\n", 1)
                    fields = head.split()
                    fields[3] = b"%d" % (begun - 120_000)
                    server.ask("HSET", KEYS.replicas, name, b" ".join(fields) + b"\n" + rest)
                    place.leave(name)
                continue
            report = _report(chance, granted[name], serial)
            asks = [Ask(each.endpoint, each.in_flight, each.want, each.limit) for each in report.endpoints]
            message = codec.message((report.pool, flow) for flow in report.flows)
            answer = await voice.exchange(*asks, document=codec.document([report], {}), message=message)
            heard = place.exchange(name, voice.life, report, 0.0, 0.0)
            assert answer.fresh == heard.fresh, serial
            assert dict(answer.claims) == heard.claims, serial
            assert sorted(peer.replica for peer in answer.peers) == sorted(other.replica for other in heard.others)
            others = {other.replica: other.report for other in heard.others}
            for peer in answer.peers:
                told = others[peer.replica]
                assert codec.read_document(peer.document, peer.replica)[1]["p"].endpoints == told.endpoints
                flows = [flow for each in peer.messages for _, flow in codec.read_message(each, peer.replica)]
                tenants = {flow.tenant for flow in flows}
                assert len(tenants) == len(flows) and not tenants & read[name], "each is read once"
                read[name] |= tenants
                # the rule forgets what a replica has told when it goes, and the store only after a lease
                assert {flow.tenant for flow in told.flows} <= read[name], serial
            granted[name] = dict(answer.claims)
