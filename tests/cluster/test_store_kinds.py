"""Each kind of store by its real servers: TLS, a socket, a database, Sentinel with a fail-over, a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from redis_rig import (
    MASTER,
    Nodes,
    RedisServer,
    cluster_servers,
    redis_server,
    until,
    watched_servers,
)
from store_case import Voice, at, store

from extproc.cluster import scripts
from extproc.cluster.errors import StoreError
from extproc.config.cluster import Store as Settings

sys.path.append(str(Path(__file__).parents[1] / "transport"))
from pki import Authority, Pair, replace

KEYS = scripts.Keys.of("test")
SHORT_S = 1.0


async def _error(settings: Settings, timeout_s: float = 30.0) -> StoreError:
    async with store(settings, timeout_s=timeout_s) as link:
        with pytest.raises(StoreError) as caught:
            await Voice(link, "one").ask()
    return caught.value


async def _in_some_attempts(voice: Voice) -> bool:
    """Whether it comes to an exchange; each attempt has its own time-out."""
    for _ in range(300):
        with contextlib.suppress(StoreError):
            await voice.exchange(at(want=3))
            return True
    return False


# -- one server -----------------------------------------------------------------------------------


async def test_a_socket_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with redis_server(tmp_path / "redis", options=(("unixsocket", str(path)),)):
        async with store(Settings(addresses=[f"unix:{path}"])) as link:
            assert (await Voice(link, "one").exchange(at(want=3))).claims == {"e": 3}
    error = await _error(Settings(addresses=[f"unix:{path}"]))
    assert error.kind == "unreachable" and str(path) in error.message


async def test_a_database_of_its_own(server: RedisServer) -> None:
    async with store(server.settings(database=3)) as link:
        await Voice(link, "one").exchange()
    assert "db3" in server.ask("INFO", "keyspace") and server.ask("DBSIZE") == 0
    error = await _error(server.settings(database=99))
    assert "out of range" in error.message


# -- TLS ------------------------------------------------------------------------------------------


class Secured:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = Authority("ours")
        self.file("ca.crt", self.ours.pem)
        self.pair("server", self.ours.issue())

    def file(self, name: str, content: bytes) -> str:
        replace(self.folder / name, content)
        return str(self.folder / name)

    def pair(self, name: str, pair: Pair) -> tuple[str, str]:
        return self.file(f"{name}.crt", pair.certificate), self.file(f"{name}.key", pair.key)

    def options(self, clients: str) -> tuple[tuple[str, str], ...]:
        return (
            ("tls-cert-file", str(self.folder / "server.crt")),
            ("tls-key-file", str(self.folder / "server.key")),
            ("tls-ca-cert-file", str(self.folder / "ca.crt")),
            ("tls-auth-clients", clients),
        )


@contextlib.asynccontextmanager
async def _secured(folder: Path, clients: str = "no") -> AsyncIterator[tuple[Secured, RedisServer]]:
    made = Secured(folder)
    certificate, key = made.pair("admin", made.ours.issue())
    client = {
        "ssl": True,
        "ssl_ca_certs": str(folder / "ca.crt"),
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
    }
    with redis_server(folder / "redis", options=made.options(clients), tls=True, client=client) as server:
        yield made, server


async def test_tls_and_the_store_must_be_who_it_is_taken_for(tmp_path: Path) -> None:
    async with _secured(tmp_path) as (made, server):
        ca = str(tmp_path / "ca.crt")
        async with store(server.settings(tls={"ca": ca})) as link:
            assert (await Voice(link, "one").exchange(at(want=3))).claims == {"e": 3}
        other = made.file("other.crt", Authority("theirs").pem)
        for tls, expected in (
            ({"ca": other}, "its certificate does not count"),
            ({}, "its certificate does not count"),
            ({"ca": ca, "name": "store.internal"}, "Hostname mismatch"),
            ({"ca": str(tmp_path / "none.crt")}, "none.crt cannot be used: No such file"),
            ({"ca": made.file("text.crt", b"no certificate")}, "text.crt cannot be used"),
        ):
            error = await _error(server.settings(tls=tls))
            assert error.kind == "tls" and expected in error.message, error.message
        error = await _error(server.settings())
        assert error.kind == "unreachable" and "cluster.store.tls" in error.message


async def test_a_name_that_is_not_the_host(tmp_path: Path) -> None:
    made = Secured(tmp_path)
    made.pair("server", made.ours.issue(x509.DNSName("store.internal")))
    client = {"ssl": True, "ssl_ca_certs": str(tmp_path / "ca.crt"), "ssl_check_hostname": False}
    with redis_server(tmp_path / "redis", options=made.options("no"), tls=True, client=client) as server:
        ca = str(tmp_path / "ca.crt")
        async with store(server.settings(tls={"ca": ca, "name": "store.internal"})) as link:
            await Voice(link, "one").exchange()
        error = await _error(server.settings(tls={"ca": ca}))
        assert error.kind == "tls" and "tls.name" in error.message


async def test_a_certificate_of_ours_and_a_new_one(tmp_path: Path) -> None:
    async with _secured(tmp_path, "yes") as (made, server):
        ca = str(tmp_path / "ca.crt")
        error = await _error(server.settings(tls={"ca": ca}))
        assert error.kind in ("tls", "unreachable"), "TLS 1.3 tells a client only after its greeting"
        certificate, key = made.pair("client", made.ours.issue())
        settings = server.settings(tls={"ca": ca, "certificate": certificate, "key": key})
        async with store(settings) as link:
            voice = Voice(link, "one")
            await voice.exchange()
            made.pair("client", Authority("theirs").issue())
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with pytest.raises(StoreError):
                await voice.exchange()
            made.pair("client", made.ours.issue())
            assert not (await voice.exchange()).fresh
        made.file("client.key", made.ours.issue().with_passphrase())
        error = await _error(settings)
        assert error.kind == "tls" and "without passphrase" in error.message


@pytest.mark.slow
async def test_tls_to_a_port_without(server: RedisServer) -> None:
    """It waits for the rest of what it takes for a command."""
    error = await _error(server.settings(tls={}), timeout_s=SHORT_S)
    assert error.kind == "timeout"
    assert f"the store at {server.address} has not taken a connection within 1s" in error.message
    assert "cluster.store.tls" in error.message


# -- Sentinel -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_sentinels_lead_to_the_new_master(tmp_path: Path) -> None:
    with watched_servers(tmp_path) as watched:
        first = watched.master
        async with store(watched.settings, timeout_s=SHORT_S) as link:
            voice = Voice(link, "one")
            assert await _in_some_attempts(voice)
            first.kill()
            with pytest.raises(StoreError):
                await voice.exchange()
            assert await _after(voice)
            until("this Sentinel knows it too", lambda: watched.master is not first)
            # the old one comes back, as master: nobody asks it
            before = link.connections
            first.start()
            assert await _in_some_attempts(voice)
            assert link.connections == before and first.ask("DBSIZE") == 0
            # one Sentinel less
            watched.sentinels[0].kill()
        async with store(watched.settings, timeout_s=SHORT_S) as link:
            assert await _in_some_attempts(Voice(link, "two"))


async def _after(voice: Voice) -> bool:
    """Whether an exchange comes through; the Sentinels need some seconds to agree."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if await _once(voice):
            return True
        await asyncio.sleep(0.05)
    return False


async def _once(voice: Voice) -> bool:
    with contextlib.suppress(StoreError):
        await voice.exchange()
        return True
    return False


async def test_sentinels_that_do_not_know_or_do_not_answer(tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    with (
        redis_server(tmp_path / "master") as master,
        redis_server(
            tmp_path / "sentinel",
            sentinel=True,
            options=(("sentinel", f"monitor {MASTER} 127.0.0.1 {master.port} 1"),),
        ) as sentinel,
    ):
        sentinel.ask("ACL", "SETUSER", "default", "-@all", *(f"+{each}" for each in scripts.SENTINEL_COMMANDS))
        given = {"addresses": [nobody, sentinel.address], "kind": "sentinel"}
        async with store(Settings.model_validate({**given, "sentinel_name": MASTER})) as link:
            await Voice(link, "one").exchange()
        error = await _error(Settings.model_validate({**given, "sentinel_name": "other"}))
        assert "watches no service 'other'" in error.message and "sentinel_name" in error.message
        error = await _error(Settings.model_validate({**given, "addresses": [nobody], "sentinel_name": MASTER}))
        assert error.kind == "unreachable" and nobody in error.message


async def test_sentinels_with_a_password_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of-the-sentinel\n")
    with redis_server(tmp_path / "master") as master:
        options = (("sentinel", f"monitor {MASTER} 127.0.0.1 {master.port} 1"), ("requirepass", "of-the-sentinel"))
        client = {"password": "of-the-sentinel"}
        with redis_server(tmp_path / "sentinel", sentinel=True, options=options, client=client) as sentinel:
            given = {"addresses": [sentinel.address], "kind": "sentinel", "sentinel_name": MASTER}
            error = await _error(Settings.model_validate(given))
            assert error.kind == "auth" and "sentinel_password_file" in error.message
            async with store(Settings.model_validate({**given, "sentinel_password_file": str(file)})) as link:
                await Voice(link, "one").exchange()


# -- cluster --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with cluster_servers(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.slow
async def test_any_node_leads_to_the_one_that_has_the_slot(nodes: Nodes) -> None:
    owners = set()
    for name in ("test", "a", "b", "c", "d", "e"):
        owners.add(nodes.owner(scripts.Keys.of(name).replicas).port)
        for server in nodes.servers:
            settings = Settings.model_validate({"addresses": [server.address], "kind": "cluster"})
            async with store(settings, name) as link:
                await Voice(link, f"from-{server.port}").exchange(at(want=3), message=b"[1]")
                await link.acquire("active", "one", 1.0)
        async with store(nodes.settings, name) as link:
            assert len((await Voice(link, "last").exchange()).peers) == 3
            assert await link.config_put(0, b"x") == 1
    assert len(owners) > 1, "the names are of several nodes"


async def test_a_slot_that_moves_takes_everything_along(nodes: Nodes) -> None:
    async with store(nodes.settings, "moving") as link:
        voice = Voice(link, "one")
        await voice.exchange(at(want=3), message=b"[1]")
        before = link.connections
        key = scripts.Keys.of("moving").replicas
        owner = nodes.owner(key)
        nodes.move(key, next(each for each in nodes.servers if each is not owner))
        answer = await voice.exchange(at(want=3))
        assert not answer.fresh and link.connections == before + 1


async def test_a_node_of_a_cluster_taken_for_a_single_one(nodes: Nodes) -> None:
    owner = nodes.owner(KEYS.replicas)
    other = next(each for each in nodes.servers if each is not owner)
    error = await _error(other.settings())
    assert error.kind == "other" and "kind: cluster" in error.message


async def test_a_single_one_taken_for_a_cluster(server: RedisServer) -> None:
    """It has all slots, so to say."""
    async with store(server.settings(kind="cluster")) as link:
        await Voice(link, "one").exchange()


async def test_an_address_where_nobody_is_costs_nothing_but_a_look(nodes: Nodes) -> None:
    settings = Settings.model_validate(
        {"addresses": ["127.0.0.1:1", *(each.address for each in nodes.servers)], "kind": "cluster"}
    )
    async with store(settings) as link:
        await Voice(link, "looks").exchange()
