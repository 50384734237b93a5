"""What the store keeps and grants, by a real server."""

from __future__ import annotations

import asyncio
import random

import orjson
import pytest
from redis_rig import RedisServer
from store_case import Voice, at, store

from extproc.cluster import scripts
from extproc.cluster.store import LARGEST_DOCUMENT, StoreError
from extproc.cluster.words import InUse, Tell

KEYS = scripts.Keys.of("test")
SHORT_S = 3.0  # a lease that a test waits for: long enough for a busy machine to come to something within it


async def test_the_first_one_gets_what_it_wants_and_the_next_what_is_left(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        answer = await one.exchange(at(want=10), at("f", want=99))
        assert answer.fresh and answer.claims == {"e": 10, "f": 16} and answer.peers == ()
        answer = await two.exchange(at(want=10), at("f", want=3))
        assert answer.fresh and answer.claims == {"e": 6, "f": 0}
        assert [(peer.replica, peer.life) for peer in answer.peers] == [("one", "life-of-one")]
        await one.exchange(at(want=4))  # and gives f up
        answer = await two.exchange(at(want=10), at("f", want=3.5))
        assert not answer.fresh and answer.claims == {"e": 10, "f": 3.5}


async def test_what_is_inside_may_stay_and_an_endpoint_that_takes_nothing_gets_nothing(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        await one.exchange(at(want=16))
        assert (await two.exchange(at(inside=5, want=9))).claims == {"e": 5}
        assert (await one.exchange(at(inside=12, want=16))).claims == {"e": 12}
        assert (await one.exchange(at(inside=3, want=9, limit=0))).claims == {"e": 3}
        assert (await one.exchange(at(want=0))).claims == {"e": 0}


async def test_claims_are_never_more_than_the_limit_whoever_comes_when(server: RedisServer) -> None:
    """Each its own connection, all at once; nobody has more inside than it was granted."""
    limit, replicas, rounds = 16, 6, 40
    claims: dict[str, dict[str, float]] = {}
    most = 0.0

    async def life(number: int) -> None:
        nonlocal most
        chance = random.Random(number)
        async with store(server.settings()) as link:
            voice = Voice(link, f"r{number}")
            granted = {"e": 0.0, "f": 0.0}
            for _ in range(rounds):
                asks = [
                    at(name, inside=chance.randint(0, int(slots)), want=chance.choice([0, 1, 3.5, 8, 16, 40]))
                    for name, slots in granted.items()
                ]
                granted = dict((await voice.exchange(*asks, document=b"[%d]" % number)).claims)

    async def watch() -> None:
        """As the store has them, at one moment each."""
        nonlocal most
        while True:
            records = await asyncio.to_thread(server.ask, "HGETALL", KEYS.replicas)
            claims.clear()
            for name, record in records.items():
                if b":" not in name:
                    claims[name.decode()] = orjson.loads(record.partition(b"\n")[2])
            for endpoint in ("e", "f"):
                most = max(most, sum(each.get(endpoint, 0.0) for each in claims.values()))
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(life(number) for number in range(replicas)))
    watcher.cancel()
    assert len(claims) == replicas
    assert 8 < most <= limit


@pytest.mark.slow
async def test_a_lease_that_is_over_gives_the_claims_back(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        gone, here = Voice(link, "gone"), Voice(link, "here")
        await gone.exchange(at(inside=9, want=9), lease_s=SHORT_S)
        granted: list[float] = []
        lives: list[int] = []

        while not granted or granted[-1] < 16:
            answer = await here.exchange(at(want=16))
            granted.append(answer.claims["e"])
            lives.append(len(answer.peers))
        assert set(granted) == {7, 16} and lives[-1] == 0
        back = await gone.exchange(at(inside=9, want=9))
        assert back.fresh and back.claims == {"e": 9}, "what is inside may end there"


async def test_leaving_gives_everything_back_at_once_and_only_ones_own(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        await one.exchange(at(want=16))
        assert not await link.leave("one", "another life")
        assert (await two.exchange(at(want=16))).claims == {"e": 0}
        assert await link.leave("one", one.life)
        answer = await two.exchange(at(want=16))
        assert answer.claims == {"e": 16} and answer.peers == ()
        assert (await one.exchange(at(want=16))).fresh


@pytest.mark.slow
async def test_a_replica_id_that_is_used_twice_is_told_and_changes_nothing(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        first, second = Voice(link, "same", "a"), Voice(link, "same", "b")
        await first.exchange(at(want=5), document=b'["first"]', lease_s=SHORT_S)
        answer = await second.ask(at(want=16), document=b'["second"]', message=b"[1]")
        assert isinstance(answer, InUse) and answer.life == "a" and 0 <= answer.remaining_s <= SHORT_S
        other = await Voice(link, "other").exchange(at(want=16))
        assert [(peer.document, peer.messages) for peer in other.peers] == [(b'["first"]', ())]
        assert other.claims == {"e": 11}
        while isinstance(answer, InUse):  # until the first one's lease is over
            answer = await second.ask(at(want=16))
        assert answer.fresh
        assert isinstance(await first.ask(at(want=16)), InUse), "now it is the first one that is not known"


async def test_an_exchange_that_is_late_changes_nothing(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        voice = Voice(link, "one")
        late = voice.tell(at(want=16), document=b'["late"]', message=b"[0]")
        voice.seq = 5
        await voice.exchange(at(want=2), document=b'["latest"]')
        with pytest.raises(StoreError, match="comes after a later one"):
            await link.exchange(late)
        peer = (await Voice(link, "two").exchange()).peers[0]
        assert (peer.document, peer.messages) == (b'["latest"]', ())


async def test_the_same_exchange_again_says_the_same(server: RedisServer) -> None:
    """As after a connection that broke before the answer came."""
    async with store(server.settings()) as link:
        voice = Voice(link, "one")
        voice.seq = 1
        tell = voice.tell(at(want=3), message=b"[1]")
        first, second = await link.exchange(tell), await link.exchange(tell)
        assert first.fresh and second.fresh  # type: ignore[union-attr]
        assert first.claims == second.claims == {"e": 3}  # type: ignore[union-attr]
        assert (await Voice(link, "two").exchange()).peers[0].messages == (b"[1]",)


async def test_each_message_is_read_once_by_each_of_the_others(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two, three = (Voice(link, name) for name in ("one", "two", "three"))
        await one.exchange(message=b"[1]")
        assert (await two.exchange(message=b"[2]")).peers[0].messages == (b"[1]",)
        assert (await one.exchange(message=b"[3]")).peers[0].messages == (b"[2]",)
        await one.exchange(message=b"[4]\xff\n")
        answer = await two.exchange()
        assert answer.peers[0].messages == (b"[3]", b"[4]\xff\n") and not answer.missed
        assert (await two.exchange()).peers[0].messages == ()
        late = {peer.replica: peer.messages for peer in (await three.exchange()).peers}
        assert late == {"one": (b"[1]", b"[3]", b"[4]\xff\n"), "two": (b"[2]",)}
        assert [peer.messages for peer in (await one.exchange()).peers] == [(), ()]


async def test_messages_of_a_former_life_are_not_told_as_the_new_ones(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        await Voice(link, "one", "a").exchange(message=b"[1]")
        await link.leave("one", "a")
        await Voice(link, "one", "b").exchange(message=b"[2]")
        assert (await Voice(link, "two").exchange()).peers[0].messages == (b"[2]",)


async def test_messages_that_are_too_many_are_trimmed_and_those_who_have_not_read_them_are_told(
    server: RedisServer,
) -> None:
    large = b"[" + b" " * (250 * 1024) + b"]"
    fit = scripts.MOST_MESSAGE_BYTES // len(large)
    async with store(server.settings()) as link:
        one, reads, lags = Voice(link, "one"), Voice(link, "reads"), Voice(link, "lags")
        await reads.exchange()
        await lags.exchange()
        for number in range(fit + 3):
            await one.exchange(message=large)
            answer = await reads.exchange()
            assert not answer.missed and len(answer.peers[1].messages) == 1, number
        answer = await lags.exchange()
        assert answer.missed
        assert len(next(peer for peer in answer.peers if peer.replica == "one").messages) in (fit - 1, fit)
        assert server.ask("MEMORY", "USAGE", KEYS.messages) < 1.3 * scripts.MOST_MESSAGE_BYTES
        assert not (await lags.exchange()).missed


@pytest.mark.slow
async def test_messages_older_than_a_lease_are_trimmed(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one = Voice(link, "one")
        await one.exchange(message=b"[1]", lease_s=1.0)
        while server.ask("LLEN", KEYS.messages):
            await one.exchange(lease_s=1.0)
        assert (await Voice(link, "two").exchange(lease_s=1.0)).missed


async def test_all_keys_but_the_configuration_expire(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        await Voice(link, "one").exchange(at(want=1), message=b"[]")
        await link.acquire("active", "one", 3.0)
        await link.config_put(0, b"{}")
    found = {key.decode(): server.ask("PTTL", key) for key in server.ask("KEYS", "*")}
    assert set(found) == {KEYS.replicas, KEYS.messages, KEYS.leases, KEYS.configuration, KEYS.versions}
    assert {key for key, left in found.items() if left < 0} == {KEYS.configuration}
    assert all(left <= 4 * 60_000 for left in found.values())


async def test_a_store_that_is_emptied_knows_nobody_and_goes_on(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        await one.exchange(at(want=16), message=b"[1]")
        before = (await two.exchange(at(want=16))).cursor
        server.ask("FLUSHALL")
        server.ask("SCRIPT", "FLUSH")
        answer = await two.exchange(at(want=6), message=b"[2]")
        assert answer.fresh and answer.peers == () and answer.cursor.epoch != before.epoch
        answer = await one.exchange(at(want=16))
        assert answer.fresh and answer.claims == {"e": 10} and answer.peers[0].messages == (b"[2]",)
        assert not (await two.exchange(at(want=6))).fresh


async def test_a_store_that_has_lost_its_messages_says_so(server: RedisServer) -> None:
    """As one that evicts keys may."""
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        await two.exchange()
        await one.exchange(message=b"[1]")
        server.ask("DEL", KEYS.messages)
        await one.exchange(message=b"[2]")
        answer = await two.exchange()
        assert answer.missed and answer.peers[0].messages == (b"[2]",)


@pytest.mark.slow
async def test_a_clock_of_the_store_that_goes_back_starts_leases_anew(server: RedisServer) -> None:
    """As after a fail-over to another machine: a record that was written minutes from now."""
    async with store(server.settings()) as link:
        gone, here = Voice(link, "gone"), Voice(link, "here")
        await gone.exchange(at(want=9), document=b'["d"]', lease_s=SHORT_S)
        record = server.ask("HGET", KEYS.replicas, "gone")
        head, rest = record.split(b"\n", 1)
        fields = head.split()
        fields[3] = b"%d" % (int(fields[3]) + 600_000)
        server.ask("HSET", KEYS.replicas, "gone", b" ".join(fields) + b"\n" + rest)
        answer = await here.exchange(at(want=16))
        assert answer.claims == {"e": 7}
        assert answer.peers[0].age_s == 0.0 and answer.peers[0].document == b'["d"]'
        while answer.peers:
            answer = await here.exchange(at(want=16))
        assert answer.claims == {"e": 16}


async def test_other_versions_of_the_format_are_told_while_they_are_spoken(server: RedisServer) -> None:
    now = 1000 * int(server.ask("TIME")[0])
    server.ask("HSET", KEYS.versions, "2", f"{now} 60000", "0", f"{now - 61_000} 60000", "x", "garbage")
    server.ask("HSET", scripts.Keys.of("test", "2").replicas, "other", "of a later format")
    async with store(server.settings()) as link:
        answer = await Voice(link, "one").exchange()
        assert answer.versions == ("2",) and answer.peers == () and answer.garbage == ()
    assert set(server.ask("HGETALL", KEYS.versions)) == {b"1", b"2"}


async def test_records_that_are_none_are_dropped_and_told(server: RedisServer) -> None:
    fields = ("evil", b"\xff\x00", "odd", "a 1 2 3\n", "orphan:document", "x", ":messages", "no numbers")
    server.ask("HSET", KEYS.replicas, *fields)
    server.ask("RPUSH", KEYS.messages, b"no header", b"\xff")
    async with store(server.settings()) as link:
        answer = await Voice(link, "one").exchange(at(want=16), message=b"[1]")
        assert sorted(answer.garbage) == ["evil", "odd"] and answer.peers == () and answer.claims == {"e": 16}
        assert (await Voice(link, "two").exchange()).peers[0].messages == (b"[1]",)
    expected = {b":messages", *(each for name in (b"one", b"two") for each in (name, name + b":document"))}
    assert set(server.ask("HKEYS", KEYS.replicas)) == expected


@pytest.mark.parametrize("claims", [b"{", b"3", b'{"e":"much"}', b'{"e":-4}', b'{"e":{}}', b"[[[[[", b""])
async def test_claims_that_are_none_count_for_nothing(server: RedisServer, claims: bytes) -> None:
    now = 1000 * int(server.ask("TIME")[0])
    server.ask("HSET", KEYS.replicas, "evil", b"life 1 1 %d 60000\n" % now + claims, "evil:document", b"[]")
    async with store(server.settings()) as link:
        answer = await Voice(link, "one").exchange(at(want=16))
        assert answer.claims == {"e": 16} and answer.peers[0].document == b"[]"


async def test_clusters_on_one_store_know_nothing_of_each_other(server: RedisServer) -> None:
    async with store(server.settings(), "a") as a, store(server.settings(), "b") as b:
        await Voice(a, "one").exchange(at(want=16), message=b"[1]")
        answer = await Voice(b, "one", "another").exchange(at(want=16))
        assert answer.claims == {"e": 16} and answer.peers == () and answer.fresh
        assert await a.config_put(0, b"of a") == 1
        assert await b.config_get() == (0, b"")
        await a.acquire("active", "one", 3.0)
        assert (await b.acquire("active", "two", 3.0)).holder == "two"


async def test_what_is_too_large_is_refused_before_it_is_sent(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        with pytest.raises(StoreError, match=r"the document of replica one has 262145 bytes, and may have 262144"):
            await link.exchange(Tell("one", "l", 1, 3.0, b" " * (LARGEST_DOCUMENT + 1)))
        assert link.connections == 0


@pytest.mark.slow
async def test_one_holds_the_lease_until_it_is_over_or_given_back(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        first = await link.acquire("active", "one a", 60.0)
        assert first.holder == "one a" and first.remaining_s == 60.0
        other = await link.acquire("active", "two b", 60.0)
        assert other.holder == "one a" and other.remaining_s <= 60.0 and other.since_ms == first.since_ms
        assert (await link.acquire("active", "one a", SHORT_S)).since_ms == first.since_ms
        assert not await link.release("active", "two b")
        while (found := await link.acquire("active", "two b", 60.0)).holder != "two b":
            pass
        assert found.since_ms > first.since_ms
        assert await link.release("active", "two b")
        assert (await link.acquire("active", "one a", 60.0)).holder == "one a"


@pytest.mark.slow
async def test_a_lease_from_the_future_is_one_that_begins_now(server: RedisServer) -> None:
    later = 1000 * int(server.ask("TIME")[0]) + 600_000
    server.ask("HSET", KEYS.leases, "active", f"{later} 3000 {later} one a", "broken", "x")
    async with store(server.settings()) as link:
        assert (await link.acquire("broken", "two b", SHORT_S)).holder == "two b"
        found = await link.acquire("active", "two b", SHORT_S)
        assert found.holder == "one a" and found.remaining_s <= SHORT_S
        while (await link.acquire("active", "two b", SHORT_S)).holder != "two b":
            pass


async def test_the_configuration_is_written_by_who_has_read_the_last_one(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        assert await link.config_get() == (0, b"")
        assert await link.config_put(0, b"first\xff") == 1
        assert await link.config_put(0, b"second") is None
        assert await link.config_put(2, b"second") is None
        assert await link.config_get() == (1, b"first\xff")
        puts = await asyncio.gather(*(link.config_put(1, b"%d" % number) for number in range(5)))
        assert sorted(puts, key=str) == [2, None, None, None, None]
        assert (await Voice(link, "one").exchange()).configuration == 2


@pytest.mark.parametrize("number", ["x", "", "-1", "1.5", "1e3", "9" * 400, "0x10"])
async def test_a_configuration_whose_number_is_none_is_told_and_written_over(server: RedisServer, number: str) -> None:
    server.ask("HSET", KEYS.configuration, "number", number, "document", "y")
    async with store(server.settings()) as link:
        voice = Voice(link, "one")
        assert await link.config_get() == (0, b"y")
        answer = await voice.exchange()
        assert (answer.configuration, answer.garbage) == (0, ("configuration:number",))
        assert await link.config_put(3, b"mine") is None
        assert await link.config_put(0, b"mine") == 1
        assert await link.config_get() == (1, b"mine")
        answer = await voice.exchange()
        assert (answer.configuration, answer.garbage) == (1, ())


async def test_a_configuration_without_a_document_can_be_written_over(server: RedisServer) -> None:
    server.ask("HSET", KEYS.configuration, "number", "3")
    async with store(server.settings()) as link:
        assert await link.config_get() == (3, b"")
        assert await link.config_put(3, b"mine") == 4


# -- numbers that nobody of ours writes -----------------------------------------------------------

MOST_MS = scripts.LONGEST_LEASE_MS
HUGE = ("60001", "9" * 15, "9" * 16, "9" * 400)


def _now_ms(server: RedisServer) -> int:
    return 1000 * int(server.ask("TIME")[0])


def _expire_soon_enough(server: RedisServer) -> bool:
    return all(0 < server.ask("PTTL", key) <= 4 * MOST_MS for key in server.ask("KEYS", "*"))


@pytest.mark.parametrize("lease", HUGE)
async def test_a_record_with_a_lease_that_none_of_ours_has_is_dropped(server: RedisServer, lease: str) -> None:
    server.ask("HSET", KEYS.replicas, "odd", f'life 1 1 {_now_ms(server)} {lease}\n{{"e":16}}')
    async with store(server.settings()) as link:
        answer = await Voice(link, "one").exchange(at(want=16))
        assert (answer.garbage, answer.peers, answer.claims) == (("odd",), (), {"e": 16})
        assert server.ask("HGET", KEYS.replicas, "odd") is None and _expire_soon_enough(server)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_an_own_record_with_a_number_that_is_too_large_is_dropped(server: RedisServer, place: int) -> None:
    async with store(server.settings()) as link:
        voice = Voice(link, "one")
        await voice.exchange()
        numbers = ["1", "1", str(_now_ms(server))]
        numbers[place] = "9" * 400
        server.ask("HSET", KEYS.replicas, "one", f"{voice.life} {' '.join(numbers)} 60000\n{{}}")
        assert (await voice.exchange(at(want=3))).garbage == ("one",)
        answer = await voice.exchange(at(want=3))
        assert (answer.garbage, answer.fresh, answer.claims) == ((), False, {"e": 3})


async def test_the_longest_lease_of_the_configuration_is_one(server: RedisServer) -> None:
    server.ask("HSET", KEYS.replicas, "other", f'life 1 1 {_now_ms(server)} {MOST_MS}\n{{"e":6}}')
    async with store(server.settings()) as link:
        answer = await Voice(link, "one").exchange(at(want=16), lease_s=MOST_MS / 1000)
        assert [peer.replica for peer in answer.peers] == ["other"] and answer.claims == {"e": 10}


@pytest.mark.parametrize("value", [f"{{now}} {lease}" for lease in HUGE] + ["9" * 15 + " 3000", "9" * 400 + " 3000"])
async def test_a_version_that_would_never_end_is_dropped(server: RedisServer, value: str) -> None:
    server.ask("HSET", KEYS.versions, "2", value.format(now=_now_ms(server)))
    async with store(server.settings()) as link:
        assert (await Voice(link, "one").exchange()).versions == ()
        assert server.ask("HKEYS", KEYS.versions) == [b"1"] and _expire_soon_enough(server)


@pytest.mark.parametrize("value", ["x 9", f"e {'9' * 400} 1", f"e 1 {'9' * 400}"])
async def test_messages_of_which_too_much_is_said_begin_anew(server: RedisServer, value: str) -> None:
    async with store(server.settings()) as link:
        one, two = Voice(link, "one"), Voice(link, "two")
        await one.exchange(message=b"[1]")
        server.ask("HSET", KEYS.replicas, ":messages", value)
        await two.exchange()
        await one.exchange(message=b"[2]")
        assert [peer.messages for peer in (await two.exchange()).peers] == [(b"[2]",)]


@pytest.mark.parametrize(
    "value", [f"{{now}} {lease} 5 somebody x" for lease in HUGE] + ["{now} 3000 " + "9" * 400 + " somebody x"]
)
async def test_a_lease_that_none_of_ours_has_is_free(server: RedisServer, value: str) -> None:
    now = _now_ms(server)
    server.ask("HSET", KEYS.leases, "active", value.format(now=now))
    async with store(server.settings()) as link:
        held = await link.acquire("active", "one x", 3.0)
        assert held.holder == "one x" and now <= held.since_ms < now + 3_600_000
        assert 0 < server.ask("PTTL", KEYS.leases) <= MOST_MS


async def test_one_round_trip_and_one_command_for_each_exchange(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        voice = Voice(link, "one")
        await voice.exchange()
        server.ask("CONFIG", "RESETSTAT")
        for number in range(20):
            await voice.exchange(*(at(f"e{i}", want=1) for i in range(50)), message=b"[%d]" % number)
        assert link.connections == 1
    told = server.ask("INFO", "commandstats")
    assert told["cmdstat_evalsha"]["calls"] == 20
    inside = {"time", "hgetall", "hget", "hset", "llen", "lindex", "lpush", "pexpire", "lrange", "rpop", "hdel"}
    of_the_test = {"config|resetstat", "info", "client|setinfo", "hello"}
    assert {name.removeprefix("cmdstat_") for name in told} <= {"evalsha"} | inside | of_the_test
