"""What goes wrong with a store: what is said, that no password is in it, and that it is over when the store is back."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis_rig import RedisServer, eventually, redis_server, until, wall
from store_case import Voice, at, store

from extproc.cluster import scripts
from extproc.cluster.errors import StoreError
from extproc.cluster.store import Store
from extproc.cluster.words import Tell
from extproc.config.cluster import Store as Settings

SECRET = "s3cret-of-the-store"
SHORT_S = 0.2
KEYS = scripts.Keys.of("test")


async def _fails(link: Store) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await link.exchange(Tell("probe", "l", 1, 60.0, b"[]"))
    return caught.value


async def _error(settings: Settings, timeout_s: float = 30.0) -> StoreError:
    async with store(settings, timeout_s=timeout_s) as link:
        return await _fails(link)


async def test_nobody_listens_and_then_somebody_does(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings()) as link:
            await Voice(link, "one").exchange()
            server.kill()
            error = await _fails(link)
            assert error.kind == "unreachable"
            assert f"no connection to the store at {server.address}" in error.message
            assert "Is it running" in error.message
            server.start()
            assert (await Voice(link, "two").exchange()).fresh


async def test_a_connection_that_breaks_costs_no_exchange(server: RedisServer) -> None:
    async with wall(server) as between, store(between.settings()) as link:
        voice = Voice(link, "one")
        await voice.exchange(at(want=3))
        between.cut()
        server.ask("SCRIPT", "FLUSH")
        answer = await voice.exchange(at(want=3))
        assert not answer.fresh and link.connections == between.connections == 2


async def test_a_frozen_store_costs_the_time_out_and_no_more(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings(), timeout_s=SHORT_S) as link:
            voice = Voice(link, "one")
            with contextlib.suppress(StoreError):  # this machine may be as slow
                await voice.exchange()
            server.freeze()
            try:
                error = await _fails(link)
            finally:
                server.thaw()
            assert error.kind == "timeout"
            assert "has not answered within 200ms" in error.message and "cluster.timeout" in error.message
            until("it answers", lambda: server.ask("PING"))
            assert await _within_some_attempts(link)


async def _within_some_attempts(link: Store) -> bool:
    voice = Voice(link, "some")
    for _ in range(100):
        with contextlib.suppress(StoreError):
            await voice.exchange()
            return True
    return False


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(server: RedisServer) -> None:
    async with wall(server) as between, store(between.settings(), timeout_s=SHORT_S) as link:
        between.delay_s = 2 * SHORT_S
        assert (await _fails(link)).kind == "timeout"
        between.delay_s = 0.0
        assert await _within_some_attempts(link)
        assert await link.config_get() == (0, b"")


@pytest.mark.slow
async def test_a_script_that_another_program_runs_for_long(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings(), timeout_s=SHORT_S) as link:
            sleeper = asyncio.create_task(asyncio.to_thread(server.ask, "DEBUG", "SLEEP", "1.5"))
            kinds = []
            while not sleeper.done():
                with contextlib.suppress(StoreError):
                    try:
                        await Voice(link, "one", f"l{len(kinds)}").ask()
                    except StoreError as error:
                        kinds.append(error.kind)
                await asyncio.sleep(0)
            assert "timeout" in kinds
            assert await _within_some_attempts(link)


async def test_cancelling_leaves_nothing_behind(server: RedisServer) -> None:
    async with wall(server) as between, store(between.settings()) as link:
        await Voice(link, "one").exchange()
        between.open.clear()
        asked = asyncio.create_task(Voice(link, "two").exchange())
        await eventually("it waits for an answer", lambda: link._link._lock.locked())
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        between.open.set()
        assert await link.config_get() == (0, b"")
        assert (await Voice(link, "three").exchange()).time_ms > 0
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]


async def test_a_replica_of_another_one_takes_no_writes(tmp_path: Path) -> None:
    with redis_server(tmp_path / "a") as master:
        options = (("replicaof", f"127.0.0.1 {master.port}"),)
        with redis_server(tmp_path / "b", options=options) as replica:
            until("it follows", lambda: replica.ask("INFO", "replication")["master_link_status"] == "up")
            error = await _error(replica.settings())
            assert error.kind == "read_only"
            assert "it is the replica of another one" in error.message and "kind: sentinel" in error.message
            # one that becomes a replica while it is used
            async with store(master.settings()) as link:
                await Voice(link, "one").exchange()
                replica.ask("REPLICAOF", "NO", "ONE")
                master.ask("REPLICAOF", "127.0.0.1", replica.port)
                assert (await _fails(link)).kind == "read_only"
                master.ask("REPLICAOF", "NO", "ONE")
                await Voice(link, "two").exchange()


async def test_a_store_without_memory(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings()) as link:
            voice = Voice(link, "one")
            await voice.exchange()
            server.ask("CONFIG", "SET", "maxmemory", "1")
            error = await _fails(link)
            assert error.kind == "full" and "maxmemory" in error.message
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert not (await voice.exchange()).fresh


@pytest.mark.parametrize("key", [KEYS.replicas, KEYS.messages, KEYS.configuration, KEYS.versions])
async def test_a_key_of_another_type_is_named(server: RedisServer, key: str) -> None:
    server.ask("SET", key, "somebody else's")
    error = await _error(server.settings())
    assert error.kind == "wrong_type"
    assert f"the key {key} is of another type" in error.message and "cluster.name" in error.message
    assert server.ask("KEYS", "*") == [key.encode()], "nothing was written"


async def test_a_lease_of_another_type_is_named(server: RedisServer) -> None:
    server.ask("SET", KEYS.leases, "x")
    async with store(server.settings()) as link:
        for asked in (link.acquire("active", "one", 1.0), link.release("active", "one")):
            with pytest.raises(StoreError, match="leases is of another type") as caught:
                await asked
            assert caught.value.kind == "wrong_type"


async def test_what_answers_is_no_store() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        error = await _error(Settings(addresses=[f"127.0.0.1:{port}"]))
    assert error.kind == "unreachable"
    assert "neither Valkey nor Redis" in error.message


async def test_no_such_host() -> None:
    error = await _error(Settings(addresses=["no-such-host.invalid:6379"]))
    assert error.kind == "unreachable" and "no-such-host.invalid:6379" in error.message


# -- logins ---------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[RedisServer]:
    with redis_server(folder, options=(("requirepass", SECRET),), client={"password": SECRET}) as server:
        yield server


def _told(error: StoreError) -> str:
    """All that a log with a traceback would have of it."""
    texts, cause = [], error.__cause__ or error
    while cause is not None:
        texts += [str(cause), repr(cause)]
        cause = cause.__cause__ or cause.__context__
    return "\n".join((error.message, repr(error), *texts))


async def test_a_password_is_needed_wrong_or_changed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    async with _locked(tmp_path / "redis") as server:
        settings = server.settings(password_file=str(file))
        error = await _error(server.settings())
        assert error.kind == "auth" and "password_file" in error.message
        for content, expected in (
            (None, "No such file or directory"),
            ("", "is empty"),
            ("\n", "is empty"),
            ("wrong-" + SECRET, "does not take the login"),
            ("x" * 70_000, "longer than any password"),
        ):
            if content is not None:
                file.write_text(content)
            error = await _error(settings)
            assert error.kind == "auth" and expected in error.message, content
            assert SECRET not in _told(error)
        file.write_bytes(b"\xff\xfe")
        assert "UTF-8" in (await _error(settings)).message
        file.write_text(SECRET + "\n")
        async with store(settings) as link:
            voice = Voice(link, "one")
            await voice.exchange()
            file.write_text("new-" + SECRET)
            server.ask("CONFIG", "SET", "requirepass", "new-" + SECRET)
            server.client["password"] = "new-" + SECRET
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert not (await voice.exchange()).fresh, "it is read again for each connection"


async def test_a_store_without_a_password_refuses_one(server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    error = await _error(server.settings(password_file=str(file)))
    assert error.kind == "auth" and SECRET not in _told(error)


def _user(*rights: str) -> tuple[tuple[str, str], ...]:
    return (("user", f"fairlane on >{SECRET} {' '.join(rights)}"),)


async def test_an_account_needs_just_the_commands_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    rights = ["~{fairlane:test}:*", "resetchannels", "-@all", *(f"+{command}" for command in scripts.COMMANDS)]
    with redis_server(tmp_path / "redis", options=_user(*rights)) as server:
        settings = server.settings(username="fairlane", password_file=str(file))
        async with store(settings) as link:
            voice, other = Voice(link, "one"), Voice(link, "two")
            await voice.exchange(at(want=3), message=b"[1]", lease_s=1.0)
            await other.exchange(at(want=3), message=b"[2]")
            await voice.exchange(message=b"[3]")
            await link.leave("one", voice.life)
            await link.acquire("active", "one", 1.0)
            await link.release("active", "one")
            await link.config_put(0, b"{}")
            assert await link.config_get() == (1, b"{}")
            # what is there after a loss: messages of which nothing is known, records that are none, an old version
            server.ask("HSET", KEYS.replicas, ":messages", "x", "garbage", "y")
            server.ask("HSET", KEYS.versions, "0", "x")
            assert (await voice.exchange()).garbage == ("garbage",)
            server.ask("RPUSH", KEYS.messages, "0 old life\n[]")
            await voice.exchange(message=b"[4]")
        async with store(settings, "another") as link:
            error = await _fails(link)
            assert error.kind == "auth"
            assert error.message.startswith("the account needs the keys ~{fairlane:NAME}:*")
            assert "+evalsha" in error.message
            assert SECRET not in _told(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", sorted(set(scripts.COMMANDS) - {"hmget", "lindex", "lrange", "rpop", "hdel", "del"})
)
async def test_each_command_of_the_table_is_needed(tmp_path: Path, command: str) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    rights = ["~{fairlane:test}:*", "-@all", *(f"+{each}" for each in scripts.COMMANDS if each != command)]
    with redis_server(tmp_path / "redis", options=_user(*rights)) as server:
        async with store(server.settings(username="fairlane", password_file=str(file))) as link:
            with pytest.raises(StoreError) as caught:
                await Voice(link, "one").exchange(at(want=1), message=b"[]")
        assert caught.value.kind == "auth"
        assert caught.value.message.startswith("the account may not do that")
        assert f"+{command}" in caught.value.message and SECRET not in _told(caught.value)


# -- the package ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_the_package_it_says_what_to_install() -> None:
    program = """
        import sys
        sys.modules["redis"] = None
        from extproc.cluster.exchange import Exchange
        from extproc.cluster.standby import Standby
        from extproc.cluster.store import Store, StoreError
        from extproc.config.cluster import Store as Settings
        try:
            Store(Settings(addresses=["127.0.0.1:1"]), "test", 1.0)
        except StoreError as error:
            print(error.kind, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("missing cluster.store is set") and "pip install '.[cluster]'" in done.stdout
