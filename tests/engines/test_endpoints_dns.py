"""Endpoints from DNS, against a real server on this machine that behaves and does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import dns.asyncresolver
import dns.rcode
import dns.resolver
import pytest
from endpoints_case import Follower, followed, until
from name_server import Answer, Handler, NameServer, Query, garbage, rcode, rrset, serving, silence, zone
from structlog.testing import capture_logs

from extproc.config.endpoints import Dns
from extproc.engines.endpoints.dns import DnsSource
from extproc.engines.endpoints.source import SourceError

NAME = "engines.test"


def source(server: NameServer, **more: Any) -> DnsSource:
    settings: dict[str, Any] = {"name": NAME, "port": 8000, "timeout": "300ms", **more}
    if settings.get("record") == "srv":
        del settings["port"]
    config = Dns.model_validate({"resolver": server.address, **settings})
    if "interval" not in more:
        config = config.model_copy(update={"interval": 0.01})  # shorter than a file may say
    return DnsSource(config, "llama", time.monotonic)


@contextlib.asynccontextmanager
async def following(handler: Handler, **more: Any) -> AsyncIterator[tuple[NameServer, Follower]]:
    async with serving(handler) as server, followed(source(server, **more)) as follower:
        yield server, follower


async def test_addresses_are_sorted_and_each_there_once() -> None:
    async with following(zone({f"{NAME} A": ["127.0.0.2", "127.0.0.1", "127.0.0.2"]})) as (_, follower):
        await follower.until("127.0.0.1:8000", "127.0.0.2:8000")
        assert [each.identity for each in follower.sets[0]] == ["", ""]


async def test_ipv6_is_spelt_as_envoy_spells_it() -> None:
    async with following(zone({f"{NAME} AAAA": ["fd00:0:0:0::0A", "::1"]}), record="aaaa") as (_, follower):
        await follower.until("[::1]:8000", "[fd00::a]:8000")


async def test_any_is_both_kinds() -> None:
    records = {f"{NAME} A": ["127.0.0.1"], f"{NAME} AAAA": ["::1"]}
    async with following(zone(records), record="any") as (_, follower):
        await follower.until("127.0.0.1:8000", "[::1]:8000")


async def test_any_needs_both_answers() -> None:
    whole = zone({f"{NAME} A": ["127.0.0.1"], f"{NAME} AAAA": ["::1"]})

    async def one_fails(query: Query, tcp: bool) -> Answer:
        broken = query.question[0].rdtype == dns.rdatatype.AAAA
        return await (rcode(dns.rcode.SERVFAIL) if broken else whole)(query, tcp)

    async with following(whole, record="any") as (server, follower):
        await follower.until("127.0.0.1:8000", "[::1]:8000")
        server.handler = one_fails
        await follower.until_failed("SERVFAIL")
        assert len(follower.sets) == 1


async def test_a_server_that_rotates_its_answers_changes_nothing() -> None:
    ips = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    turn = 0

    async def rotating(query: Query, tcp: bool) -> Answer:
        nonlocal turn
        turn += 1
        return await zone({f"{NAME} A": ips[turn % 3 :] + ips[: turn % 3]})(query, tcp)

    async with following(rotating) as (_, follower):
        await until(lambda: turn >= 4)
        assert len(follower.sets) == 1


async def test_a_set_that_changes_with_each_question() -> None:
    turn = 0

    async def changing(query: Query, tcp: bool) -> Answer:
        nonlocal turn
        turn += 1
        return await zone({f"{NAME} A": [f"127.0.0.{turn}", f"127.0.1.{turn}"]}, ttl=0)(query, tcp)

    async with following(changing) as (_, follower):
        await until(lambda: len(follower.sets) >= 6)
        for number, found in enumerate(follower.sets[:6], 1):
            assert [each.address for each in found] == [f"127.0.0.{number}:8000", f"127.0.1.{number}:8000"]


# -- really empty, and failed ---------------------------------------------------------------------


@pytest.mark.parametrize("records", [{}, {f"{NAME} AAAA": ["::1"]}])
async def test_no_such_name_and_no_such_records_are_the_empty_set(records: dict[str, list[str]]) -> None:
    with capture_logs() as logs:
        async with following(zone({f"{NAME} A": ["127.0.0.1"]}), timeout="10s") as (server, follower):
            await follower.until("127.0.0.1:8000")
            server.handler = zone(records)
            await follower.until()
            await follower.until_well()
            server.handler = zone({f"{NAME} A": ["127.0.0.9"]})
            await follower.until("127.0.0.9:8000")
            assert follower.source.failures == 0
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "DNS has no addresses: the pool has no endpoints"
    ]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (rcode(dns.rcode.SERVFAIL), ["SERVFAIL", "see what that name server has against the name"]),
        (rcode(dns.rcode.REFUSED), ["REFUSED"]),
        (rcode(dns.rcode.FORMERR), ["FORMERR"]),
        (silence(), [f"no answer for {NAME} within 0.3 s", "127.0.0.1", "see whether that name server runs"]),
        (garbage(), ["that could be read"]),
    ],
)
@pytest.mark.slow
async def test_a_failure_changes_nothing_and_is_said_once(broken: Handler, words: list[str]) -> None:
    with capture_logs() as logs:
        async with following(zone({f"{NAME} A": ["127.0.0.1"]})) as (server, follower):
            await follower.until("127.0.0.1:8000")
            well_at = follower.source.last_success_at
            server.handler = broken
            await follower.until_failed(*words)
            await until(lambda: follower.source.failures >= 2)
            assert follower.sets == [follower.sets[0]]
            server.handler = zone({f"{NAME} A": ["127.0.0.2"]})
            await follower.until("127.0.0.2:8000")
            await follower.until_well()
            assert (follower.source.last_success_at or 0) > (well_at or 0)
    told = [each for each in logs if each["event"] == "endpoints not read"]
    assert len(told) == 1
    assert (told[0]["pool"], told[0]["source"], told[0]["count"]) == ("llama", f"dns a {NAME}", 1)
    assert sum(each["event"] == "endpoints can be read again" for each in logs) == 1


async def test_before_the_first_answer_the_set_is_not_known() -> None:
    async with following(rcode(dns.rcode.SERVFAIL)) as (server, follower):
        await until(lambda: follower.source.failures >= 2)
        assert follower.sets == []
        assert follower.source.last_success_at is None
        server.handler = zone({})
        await follower.until()


@pytest.mark.slow
async def test_a_server_that_is_not_there() -> None:
    async with serving(silence()) as server:
        pass
    async with followed(source(server)) as follower:
        await follower.until_failed(f"no answer for {NAME}")


async def test_without_a_configuration_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise dns.resolver.NoResolverConfiguration("nothing")

    monkeypatch.setattr(dns.asyncresolver, "Resolver", none)
    config = Dns.model_validate({"name": NAME, "port": 1, "interval": "100ms"})
    async with followed(DnsSource(config, "llama", time.monotonic)) as follower:
        await follower.until_failed("/etc/resolv.conf names no server: give endpoints.dns.resolver")


@pytest.mark.slow
async def test_an_answer_that_comes_late_is_no_answer() -> None:
    good = zone({f"{NAME} A": ["127.0.0.2"]})
    late: list[bool] = []

    async def first_late(query: Query, tcp: bool) -> Answer:
        if len(late) < 2:
            late.append(True)
            await asyncio.sleep(0.5)  # more than the source waits for
            return await zone({f"{NAME} A": ["127.0.0.66"]})(query, tcp)
        return await good(query, tcp)

    async with following(first_late) as (_, follower):
        await follower.until("127.0.0.2:8000")
        assert len(follower.sets) == 1


@pytest.mark.slow
async def test_an_answer_to_another_question_is_none() -> None:
    async def other(query: Query, tcp: bool) -> Answer:
        answer = await zone({f"{NAME} A": ["127.0.0.66"]})(query, tcp)
        assert isinstance(answer, dns.message.Message)
        answer.id = (query.id + 1) % 65536
        return answer

    async with following(other) as (_, follower):
        await follower.until_failed("no answer")
        assert follower.sets == []


# -- large answers, CNAME, SRV --------------------------------------------------------------------


async def test_a_thousand_addresses_come_by_tcp() -> None:
    ips = [f"127.{number // 250}.{number % 250}.1" for number in range(1000)]
    async with following(zone({f"{NAME} A": ips}), timeout="5s") as (server, follower):
        await until(lambda: follower.sets)
        assert follower.addresses == sorted(f"{ip}:8000" for ip in ips)
        assert server.asked[:2] == [f"{NAME} A", f"{NAME} A tcp"]


@pytest.mark.slow
async def test_truncated_without_tcp_is_a_failure() -> None:
    ips = [f"127.0.{number}.1" for number in range(200)]

    async def only_udp(query: Query, tcp: bool) -> Answer:
        return None if tcp else await zone({f"{NAME} A": ips})(query, tcp)

    async with following(only_udp) as (_, follower):
        await follower.until_failed("no answer")
        assert follower.sets == []


CHAIN = {f"{NAME} CNAME": ["b.test"], "b.test CNAME": ["c.test"], "c.test A": ["127.0.0.7"]}


@pytest.mark.parametrize("follow", [True, False])
async def test_chains_of_cnames(follow: bool) -> None:
    async with following(zone(CHAIN, follow=follow)) as (server, follower):
        await follower.until("127.0.0.7:8000")
        assert server.asked[: 1 if follow else 3] == [f"{NAME} A", "b.test A", "c.test A"][: 1 if follow else 3]


async def test_a_cname_to_nowhere_is_the_empty_set() -> None:
    async with following(zone({f"{NAME} CNAME": ["gone.test"]})) as (_, follower):
        await follower.until()


@pytest.mark.parametrize("follow", [True, False])
async def test_cnames_in_a_circle(follow: bool) -> None:
    records = {f"{NAME} CNAME": ["b.test"], "b.test CNAME": [NAME]}
    async with following(zone(records, follow=follow)) as (_, follower):
        await follower.until_failed()
        assert follower.sets == []


SRV = "_http._tcp.engines.test"


async def test_srv_records_with_their_addresses_along() -> None:
    records = {f"{SRV} SRV": ["0 1 8001 a.test.", "9 1 8002 b.test."]}
    along = {"a.test A": ["127.0.0.1"], "b.test A": ["127.0.0.2"], "b.test AAAA": ["::2"]}
    async with following(zone(records, along=along), name=SRV, record="srv") as (server, follower):
        await follower.until("127.0.0.1:8001", "127.0.0.2:8002", "[::2]:8002")
        assert set(server.asked) == {f"{SRV} SRV"}


async def test_srv_records_whose_targets_are_asked_for() -> None:
    records = {
        f"{SRV} SRV": ["0 1 8001 a.test.", "0 1 8002 a.test.", "0 1 8001 b.test.", "0 1 8001 gone.test."],
        "a.test A": ["127.0.0.1"],
        "b.test AAAA": ["::2"],
    }
    async with following(zone(records), name=SRV, record="srv") as (server, follower):
        await follower.until("127.0.0.1:8001", "127.0.0.1:8002", "[::2]:8001")
        once = ["a.test A", "a.test AAAA", "b.test A", "b.test AAAA", "gone.test A", "gone.test AAAA"]
        assert sorted(server.asked[1:7]) == once


async def test_srv_that_says_there_is_no_service() -> None:
    async with following(zone({f"{SRV} SRV": ["0 0 0 ."]}), name=SRV, record="srv") as (_, follower):
        await follower.until()


async def test_srv_with_a_port_that_is_none() -> None:
    records = {f"{SRV} SRV": ["0 0 0 a.test."], "a.test A": ["127.0.0.1"]}
    async with following(zone(records), name=SRV, record="srv") as (_, follower):
        await follower.until_failed("a record has the port 0")


async def test_srv_whose_targets_fail_changes_nothing() -> None:
    records = {f"{SRV} SRV": ["0 1 8001 a.test."], "a.test A": ["127.0.0.1"]}

    async def targets_fail(query: Query, tcp: bool) -> Answer:
        broken = query.question[0].rdtype != dns.rdatatype.SRV
        return await (rcode(dns.rcode.SERVFAIL) if broken else zone(records))(query, tcp)

    async with following(zone(records), name=SRV, record="srv") as (server, follower):
        await follower.until("127.0.0.1:8001")
        server.handler = targets_fail
        await follower.until_failed("SERVFAIL", "a.test")
        assert len(follower.sets) == 1


# -- when it is asked again -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "pause_s"),
    [(0, 2.0), (2, 2.0), (7, 7.0), (30, 30.0), (86_400, 30.0)],
)
async def test_the_ttl_within_bounds_tells_when_it_is_asked_again(ttl: int, pause_s: float) -> None:
    async with serving(zone({f"{NAME} A": ["127.0.0.1"]}, ttl=ttl)) as server:
        assert await source(server, interval="2s", max_interval="30s")._round() == pause_s


async def test_the_shortest_ttl_of_a_chain_counts() -> None:
    async def handle(query: Query, _: bool) -> Answer:
        answer = dns.message.make_response(query)
        answer.answer += [rrset(NAME, 5, "CNAME", ["b.test"]), rrset("b.test", 50, "A", ["127.0.0.1"])]
        return answer

    async with serving(handle) as server:
        assert await source(server, interval="1s")._round() == 5.0


async def test_an_empty_set_is_asked_for_again_soon() -> None:
    async with serving(zone({}, ttl=50)) as server:
        assert await source(server, interval="1s")._round() == 1.0


async def test_a_round_that_fails_says_so() -> None:
    async with serving(rcode(dns.rcode.SERVFAIL)) as server:
        with pytest.raises(SourceError):
            await source(server)._round()
