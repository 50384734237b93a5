"""One connection to where the store takes writes, and a new one where it breaks.

All keys of a cluster are in one slot, so one connection is enough for each kind of store:

- `single`: to the address.
- `sentinel`: the Sentinels are asked one after the other which one takes writes.
- `cluster`: any node says which one has the slot (MOVED).

A command whose connection breaks is given to a new one once, so everything that is sent here may run twice. Nothing
else is tried again, and all of it ends within the time-out. An address that fails goes to the end of the list, so that
one behind a wall costs one time-out and not each.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from inspect import signature
from pathlib import Path
from typing import Any, Final, TypeVar

from redis import exceptions as redis
from redis.asyncio.connection import AbstractConnection, Connection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider

from extproc.cluster import faults
from extproc.cluster.errors import StoreError
from extproc.cluster.scripts import Script
from extproc.config.cluster import Store as Settings
from extproc.config.cluster import StoreTls
from extproc.config.units import UNIX, split_host_port, written_duration

_LONGEST_PASSWORD: Final = 64 * 1024  # bytes of the file

_Connection = Connection | UnixDomainSocketConnection
_Command = Callable[[_Connection], Awaitable[Any]]
_T = TypeVar("_T")

# By who reads an answer, the library or us: whatever answers there, it ends nothing but the command.
_ODD: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Link:
    """Belongs to one event loop. One command at a time: others wait for it."""

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self.connections = 0  # that were opened to where writes are taken
        self._settings = settings
        self._timeout_s = timeout_s
        self._login = _Login("password_file", settings.username, settings.password_file)
        self._sentinel_login = _Login("sentinel_password_file", None, settings.sentinel_password_file)
        self._contexts = None if settings.tls is None else _Contexts(settings.tls)
        self._addresses = list(settings.addresses)
        self._connection: _Connection | None = None
        self._address = settings.addresses[0]  # that was tried last
        self._opening = False
        self._node: str | None = None  # of a cluster, that has the slot
        self._lock = asyncio.Lock()

    async def run(self, script: Script, keys: list[str], *args: str | bytes | int, read: Callable[[Any], _T]) -> _T:
        """Its answer, as `read` makes it: that may fail at what is not one. Raises StoreError."""

        async def command(connection: _Connection) -> Any:
            evaluate = ("EVALSHA", script.sha, len(keys), *keys, *args)
            try:
                return await _ask(connection, *evaluate)
            except redis.NoScriptError:
                await _ask(connection, "SCRIPT", "LOAD", script.text)
            return await _ask(connection, *evaluate)

        return await self._within(command, read)

    async def command(self, *args: str | bytes | int, read: Callable[[Any], _T]) -> _T:
        """As `run`."""
        return await self._within(lambda connection: _ask(connection, *args), read)

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _within(self, command: _Command, read: Callable[[Any], _T]) -> _T:
        async with self._lock:
            done = self._opening = False
            try:
                async with asyncio.timeout(self._timeout_s):
                    reply = read(await self._anywhere(command))
                done = True
                return reply
            except TimeoutError:
                self._avoid(self._address)
                raise self._too_late() from None
            except (redis.RedisError, OSError) as error:
                raise faults.told(error, self._address) from error
            except _ODD as error:
                address = self._address
                self._avoid(address)
                raise faults.odd(error, address) from error
            finally:
                if not done:  # an answer that is still to come would be taken for that of the next command
                    await self._drop()

    def _too_late(self) -> StoreError:
        within = written_duration(self._timeout_s)
        if self._opening:
            return StoreError(
                "timeout",
                f"the store at {self._address} has not taken a connection within {within}: is it overloaded, does a "
                "firewall swallow what we send, or does one side speak TLS and the other not (cluster.store.tls)?",
            )
        return StoreError(
            "timeout",
            f"the store at {self._address} has not answered within {within}: look at its load (SLOWLOG, redis-cli "
            "--latency) and at the network, or give cluster.timeout more",
        )

    async def _anywhere(self, command: _Command) -> Any:
        if self._connection is not None:
            try:
                return await command(self._connection)
            except (redis.RedisError, OSError) as error:
                if not self._elsewhere(error):
                    raise
                await self._drop()
        failures: list[StoreError] = []
        async with aclosing(self._candidates(failures)) as candidates:
            async for address in candidates:
                try:
                    return await command(await self._connect(address))
                except (redis.RedisError, OSError) as error:
                    if not self._elsewhere(error):
                        raise
                    if not isinstance(error, redis.MovedError):
                        failures.append(faults.told(error, address))
                    await self._drop()
        raise (
            failures[-1]
            if failures
            else StoreError(
                "other", f"the nodes of the cluster send us from one to the other, {self._address} being the last one"
            )
        )

    def _elsewhere(self, error: Exception) -> bool:
        """Whether another connection, or another address, may do better."""
        if isinstance(error, redis.MovedError) and self._settings.kind == "cluster":
            host = error.host if error.host not in ("", "?") else _host(self._address)
            self._node = f"{host}:{error.port}"
            return True
        return faults.is_of_address(error)

    async def _candidates(self, failures: list[StoreError]) -> AsyncGenerator[str, None]:
        """Each address once. Where the caller comes back for another one, the last one has failed."""
        seen: set[str] = set()
        for configured in tuple(self._addresses):
            address: str | None = configured
            if self._settings.kind == "sentinel":
                address = await self._master(configured, failures)
            while self._node is not None and self._node not in seen:
                seen.add(self._node)
                yield self._node
            if address is not None and address not in seen:
                seen.add(address)
                yield address
            self._avoid(configured)
        while self._node is not None and self._node not in seen:
            seen.add(self._node)
            yield self._node

    async def _master(self, sentinel: str, failures: list[StoreError]) -> str | None:
        """The address that takes writes, by a Sentinel."""
        name = self._settings.sentinel_name or ""
        self._address = sentinel
        connection = self._new(sentinel, self._sentinel_login, 0)
        try:
            await self._open(connection)
            reply = await _ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            found = None if reply is None else _host_and_port(reply)
        except (redis.RedisError, OSError) as error:
            failures.append(faults.told(error, sentinel))
            return None
        except _ODD as error:
            failures.append(StoreError("other", f"what answers at {sentinel} is no Sentinel: {error}"))
            return None
        finally:
            await _end(connection)
        if found is None:
            failures.append(
                StoreError(
                    "other",
                    f"the Sentinel at {sentinel} watches no service {name!r}: check cluster.store.sentinel_name",
                )
            )
            return None
        return found

    def _avoid(self, address: str) -> None:
        if address == self._node:
            self._node = None
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    async def _connect(self, address: str) -> _Connection:
        self._address = address
        connection = self._connection = self._new(address, self._login, self._settings.database)
        await self._open(connection)
        self.connections += 1
        return connection

    def _new(self, address: str, login: _Login, database: int) -> _Connection:
        if address.startswith(UNIX):
            return UnixDomainSocketConnection(
                path=address.removeprefix(UNIX), db=database, credential_provider=login.provider(), **_PLAIN
            )
        host, port = split_host_port(address)
        return _Tcp(
            host=host,
            port=port,
            db=database,
            credential_provider=login.provider(),
            context=None if self._contexts is None else self._contexts.latest(),
            name=None if self._settings.tls is None else self._settings.tls.name,
            **_PLAIN,
        )

    async def _open(self, connection: _Connection) -> None:
        self._opening = True
        await connection.connect()  # type: ignore[no-untyped-call]
        self._opening = False

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _end(connection)


# RESP 2, and neither names nor versions told: an account of the store needs the right to nothing but what is asked.
# `asyncio.timeout` in Link is over all of it.
_PLAIN: Final[dict[str, Any]] = {"protocol": 2, "socket_timeout": None, "socket_connect_timeout": None} | (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}  # before 7.1
)


class _Tcp(Connection):
    """With a context of ours: the library's own trusts the system's authorities beside the one that is given, and takes
    no name but the host's."""

    def __init__(self, *, context: ssl.SSLContext | None, name: str | None, **given: Any) -> None:
        super().__init__(**given)
        self._context = context
        self._name = name

    def _connection_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"host": self.host, "port": self.port}
        if self._context is not None:
            arguments |= {"ssl": self._context, "server_hostname": self._name or self.host}
        return arguments


class _Login:
    """A password that is in a file, read for each connection."""

    def __init__(self, setting: str, username: str | None, file: str | None) -> None:
        self._setting = f"cluster.store.{setting}"
        self._username = username
        self._file = file

    def provider(self) -> CredentialProvider | None:
        """Raises StoreError."""
        if self._file is None:
            return None
        try:
            with Path(self._file).open("rb") as file:
                password = file.read(_LONGEST_PASSWORD + 1)
        except OSError as error:
            raise StoreError(
                "auth", f"{self._setting} {self._file}: {error.strerror}; put the password there"
            ) from None
        if len(password) > _LONGEST_PASSWORD:
            raise StoreError(
                "auth", f"{self._setting} {self._file}: is longer than any password; is it the right file?"
            )
        try:
            text = password.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise StoreError("auth", f"{self._setting} {self._file}: is no text in UTF-8") from None
        if not text:
            raise StoreError("auth", f"{self._setting} {self._file}: is empty; put the password there")
        return _Credentials(self._username, text)


class _Credentials(CredentialProvider):
    def __init__(self, username: str | None, password: str) -> None:
        self._given = (password,) if username is None else (username, password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return self._given

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self._given


class _Contexts:
    """A context for the files as they are now. It takes some ms to make one, with all of the system's authorities."""

    def __init__(self, tls: StoreTls) -> None:
        self._tls = tls
        self._files = tuple(each for each in (tls.ca, tls.certificate, tls.key) if each is not None)
        self._made: tuple[tuple[tuple[int, ...], ...], ssl.SSLContext] | None = None

    def latest(self) -> ssl.SSLContext:
        """Raises StoreError."""
        file = ""
        try:
            seen = []
            for file in self._files:
                found = Path(file).stat()
                seen.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
            if self._made is None or self._made[0] != tuple(seen):
                file = self._tls.ca or ""
                context = ssl.create_default_context(cafile=self._tls.ca)
                if self._tls.certificate is not None:
                    file = f"{self._tls.certificate} and {self._tls.key}"
                    context.load_cert_chain(self._tls.certificate, self._tls.key, password=_no_passphrase)
                self._made = tuple(seen), context
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise StoreError(
                "tls",
                f"cluster.store.tls: {file} cannot be used: {reason}. PEM is expected, and a key without passphrase",
            ) from None
        return self._made[1]


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted")


async def _ask(connection: _Connection, *command: str | bytes | int) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


async def _end(connection: _Connection) -> None:
    """At once: what is still to be sent to a store that does not read would keep the connection for ever."""
    writer = connection._writer  # the library has no way to do it
    await connection.disconnect(nowait=True)
    if writer is not None:
        writer.transport.abort()


def _host_and_port(reply: Any) -> str:
    """As a Sentinel says them. Fails at what is not that."""
    host, port = (part.decode() for part in reply)
    return f"[{host}]:{int(port)}" if ":" in host else f"{host}:{int(port)}"


def _host(address: str) -> str:
    return address.rpartition(":")[0]
