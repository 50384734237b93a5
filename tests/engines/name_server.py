"""A small name server by UDP and TCP on one free port. A test exchanges what it answers while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

Query = dns.message.Message
# None: silence; bytes: as they are
Answer = dns.message.Message | bytes | None
Handler = Callable[[Query, bool], Awaitable[Answer]]  # the query, and whether it came by TCP


class NameServer(asyncio.DatagramProtocol):
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.asked: list[str] = []  # "name TYPE", with " tcp" where it came so
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.create_task(self._by_udp(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _by_udp(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = await self._answer(data, tcp=False)
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)

    async def by_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                answer = await self._answer(await reader.readexactly(size), tcp=True)
                if answer is not None:
                    writer.write(len(answer).to_bytes(2, "big") + answer)
        writer.close()

    async def _answer(self, data: bytes, *, tcp: bool) -> bytes | None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{question.name.to_text(omit_final_dot=True)} {kind}{' tcp' if tcp else ''}")
        answer = await self.handler(query, tcp)
        if not isinstance(answer, dns.message.Message):
            return answer
        try:
            return answer.to_wire(max_size=65535 if tcp else 1232)
        except dns.exception.TooBig:
            cut = dns.message.make_response(query)
            cut.flags |= dns.flags.TC
            return cut.to_wire()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.close()


def rcode(code: dns.rcode.Rcode) -> Handler:
    async def handle(query: Query, _: bool) -> Answer:
        answer = dns.message.make_response(query)
        answer.set_rcode(code)
        return answer

    return handle


def silence() -> Handler:
    async def handle(_: Query, __: bool) -> Answer:
        return None

    return handle


def garbage() -> Handler:
    async def handle(query: Query, _: bool) -> Answer:
        return query.to_wire()[:2] + b"\x81\x80\xff\xff" + bytes(range(40))

    return handle


def zone(
    records: Mapping[str, list[str]], *, ttl: int = 0, along: Mapping[str, list[str]] | None = None, follow: bool = True
) -> Handler:
    """`records`: "name TYPE" -> values. Names without any record do not exist. `along`: sent along with each answer.
    `follow`: whether the ends of CNAMEs are in the answer too."""

    async def handle(query: Query, _: bool) -> Answer:
        answer = dns.message.make_response(query)
        (question,) = query.question
        kind = dns.rdatatype.to_text(question.rdtype)
        name = question.name.to_text(omit_final_dot=True)
        seen: set[str] = set()
        while (target := records.get(f"{name} CNAME")) is not None and name not in seen:
            seen.add(name)
            answer.answer.append(rrset(name, ttl, "CNAME", target))
            name = target[0]
            if not follow:
                return answer
        if not any(entry.split()[0] == name for entry in records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
            return answer
        if found := records.get(f"{name} {kind}"):
            answer.answer.append(rrset(name, ttl, kind, found))
        for entry, values in (along or {}).items():
            answer.additional.append(rrset(entry.split()[0], ttl, entry.split()[1], values))
        return answer

    return handle


def rrset(name: str, ttl: int, kind: str, values: list[str]) -> dns.rrset.RRset:
    whole = [f"{value}." if kind == "CNAME" else value for value in values]
    return dns.rrset.from_text_list(f"{name}.", ttl, "IN", kind, whole)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    server = NameServer(handler)
    tcp = await asyncio.start_server(server.by_tcp, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))  # another protocol: free but for a rare accident
    await loop.create_datagram_endpoint(lambda: server, sock=udp)
    server.address = f"127.0.0.1:{port}"
    try:
        yield server
    finally:
        server.close()
        tcp.close()
        await tcp.wait_closed()
