"""The connections of the HTTP port: how many there may be, and how long one may take to ask.

aiohttp waits for ever for the end of a request that has begun, and takes every connection: a few hundred clients that
send half a request hold as many of the process's file descriptors, which the gRPC ports need too. So there is a most,
beyond which the one that has waited for longest is closed, so that probes get in; all are being answered: the new one
is. And there are these times:

    whole_s     from a request's first byte (of the first one: from the connection) to the end of its headers; where
                there is TLS, its handshake is in it
    idle_s      from an answer to the next request's first byte; an answer must be taken in this time, too

While a request is answered there is no limit: a stream of events is open for hours. It counts among the most.

A protocol stands before aiohttp's own and sees the bytes come; a middleware says when a request is whole and when it
has been answered. There is no timer for each request: while there are connections, one sweep looks at all of them five
times in `whole_s`. A body is no matter of ours: aiohttp gives it ten seconds and then closes.

TLS begins when the connection is here and counted: asyncio's own server would tell us of a connection only after its
handshake, and would go by one set of certificates for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Final, cast

from extproc.telemetry.http_refusals import Refusals
from extproc.transport.tls_files import TlsFiles

_SWEEPS: Final = 5  # in `whole_s`


@dataclass(frozen=True, slots=True)
class Limits:
    most: int = 512  # connections
    whole_s: float = 10.0
    idle_s: float = 30.0


class _Stage(Enum):
    NEW = "new"
    ASKING = "asking"
    ANSWERING = "answering"
    IDLE = "idle"


class Connections:
    """To be used from one event loop. `clock`: seconds; None: the loop's."""

    def __init__(
        self, refusals: Refusals, limits: Limits | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._refusals = refusals
        self._limits = limits or Limits()
        self._clock = clock
        self._open: dict[object, _Connection] = {}  # by transport; by itself during its handshake
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def sweeping(self) -> bool:
        return self._timer is not None

    def protocol(self, server: Callable[[], asyncio.Protocol], tls: TlsFiles | None = None) -> asyncio.Protocol:
        """For one new connection. `server`: makes the protocol that answers; `tls`: None: plain text."""
        return _Connection(self, server) if tls is None else _Arrival(self, server, tls)

    @contextlib.contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Around the answer to a request that is whole. None: its client has gone."""
        connection = None if transport is None else self._open.get(transport)
        if connection is None:
            yield
            return
        connection.begin()
        try:
            yield
        finally:
            connection.end()

    def sweep(self) -> None:
        """Closes those whose time is over."""
        now, limits = self.now(), self._limits
        for connection in list(self._open.values()):
            waited = now - connection.since
            match connection.stage:
                case _Stage.NEW | _Stage.ASKING if waited >= limits.whole_s:
                    if connection.stage is _Stage.ASKING:  # a browser connects ahead, and says nothing
                        self._refusals.count("not_whole")
                    connection.abort()
                case _Stage.IDLE if waited >= limits.idle_s:
                    connection.abort()

    def close(self) -> None:
        """Closes all that are still there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open.values()):
            connection.abort()

    # -- for a connection -------------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()

    def enter(self, key: object, connection: _Connection) -> bool:
        """Whether it may stay."""
        if len(self._open) >= self._limits.most:
            self._refusals.count("too_many_connections")
            waiting = [(each.since, there) for there, each in self._open.items() if each.stage is not _Stage.ANSWERING]
            if not waiting:
                return False
            _, longest = min(waiting, key=itemgetter(0))
            self._open.pop(longest).abort()
        self._open[key] = connection
        if self._timer is None:
            self._arm()
        return True

    def leave(self, key: object) -> None:
        self._open.pop(key, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def moved(self, connection: _Connection, transport: asyncio.BaseTransport) -> bool:
        """It has come through TLS. False: its time was over before."""
        if self._open.pop(connection, None) is None:
            return False
        self._open[transport] = connection
        return True

    @property
    def handshake_s(self) -> float:
        return self._limits.whole_s

    def no_tls(self, error: Exception) -> None:
        """A client that goes, or is too slow, has been counted or is not worth a word: some only look who is there."""
        if isinstance(error, ssl.SSLError):
            self._refusals.no_tls(error)
        elif not isinstance(error, OSError):
            self._refusals.failed(error)

    def failed(self, error: Exception) -> None:
        self._refusals.failed(error)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.whole_s / _SWEEPS, self._tick)

    def _tick(self) -> None:
        self._arm()
        self.sweep()


class _Arrival(asyncio.Protocol):
    """A connection before its TLS. Its socket goes on by a handle of its own: nothing has been read of it yet, and one
    loop or the other reads on before `start_tls` has its turn."""

    def __init__(self, all_of_them: Connections, server: Callable[[], asyncio.Protocol], tls: TlsFiles) -> None:
        self._all = all_of_them
        self._make = server
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        try:
            ours = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        except OSError:  # no more file descriptors
            return
        finally:
            plain.abort()
        ours.setblocking(False)
        _Connection(self._all, self._make).begin_tls(ours, self._tls)


class _Connection(asyncio.Protocol):
    def __init__(self, all_of_them: Connections, server: Callable[[], asyncio.Protocol]) -> None:
        self._all = all_of_them
        self._make = server
        self._server: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._more = False  # something has come while the request before was answered
        self.stage = _Stage.NEW
        self.since = 0.0

    def begin(self) -> None:
        self.stage, self._more = _Stage.ANSWERING, False

    def end(self) -> None:
        self.stage, self.since = _Stage.ASKING if self._more else _Stage.IDLE, self._all.now()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()

    def begin_tls(self, plain: socket.socket, tls: TlsFiles) -> None:
        """It counts from now on, and is made (`connection_made`) when it has come through."""
        self.since = self._all.now()
        if not self._all.enter(self, self):
            plain.close()
            return

        def over(_: object) -> None:
            if self._transport is None:
                self._all.leave(self)
                plain.close()

        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(plain, tls), name="TLS handshake")
        self._handshake.add_done_callback(over)

    async def _shake_hands(self, plain: socket.socket, tls: TlsFiles) -> None:
        seconds = self._all.handshake_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                plain,
                ssl=tls.context(),
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except Exception as error:  # nobody else looks at this task
            self._all.no_tls(error)

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self._handshake is not None:
            if not self._all.moved(self, transport):
                self._transport.abort()
                return
        else:
            self.since = self._all.now()
            if not self._all.enter(transport, self):
                self._transport.abort()
                return
        self._server = self._make()
        self._server.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._server is None:
            return
        if self.stage is _Stage.ANSWERING:
            self._more = True
        elif self.stage is not _Stage.ASKING:
            if self.stage is _Stage.IDLE:
                self.since = self._all.now()
            self.stage = _Stage.ASKING
        try:
            self._server.data_received(data)
        except Exception as error:  # asyncio would log its text
            self._all.failed(error)
            self.abort()

    def eof_received(self) -> bool | None:
        return None if self._server is None else self._server.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._all.leave(self._transport)
        if self._server is not None:
            self._server.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.resume_writing()
