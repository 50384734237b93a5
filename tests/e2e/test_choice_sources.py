"""Envoy and Fairlane get their engines from one source, which changes while they run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from choice_case import FAST, METRICS, Engine, seen_by, traffic
from rig import Json, Rig, chat, running, until

from extproc.cli.ports import HostPort, free_ports
from extproc.config.load import from_data
from extproc.wiring import derive
from extproc.wiring.build import build

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

NAME = "engines.example"


class OneName(asyncio.DatagramProtocol):
    """A name server that knows one name, with these addresses; without any the name does not exist."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        (question,) = query.question
        if not self.addresses or question.name.to_text(omit_final_dot=True) != NAME:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text_list(question.name, 0, "IN", "A", list(self.addresses)))
        self._transport.sendto(answer.to_wire(), addr)


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[tuple[OneName, str]]:
    server = OneName()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    port = udp.getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, sock=udp)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def two_engines(directory: Path, port: int, endpoints: Json) -> AsyncIterator[tuple[Rig, list[Engine]]]:
    """At one port of two addresses, as pods are; Envoy's cluster is what `fairlane envoy-config` makes of the pool."""
    fairlane = from_data({"pools": [{"name": "sim", "models": ["*"], "endpoints": endpoints}]})
    made = build(derive.wiring(fairlane), derive.addresses(fairlane)).config

    def use(envoy: dict[str, Any]) -> None:
        (cluster,) = [each for each in envoy["static_resources"]["clusters"] if each["name"] == "vllm"]
        (wanted,) = [each for each in made["static_resources"]["clusters"] if each["name"] == "vllm"]
        cluster.clear()
        cluster.update(wanted)
        if "node" in made:
            envoy["node"] = made["node"]

    engines = [Engine(i, FAST, directory, HostPort(f"127.0.0.{i}", port)) for i in (1, 2)]
    pool = {"metrics": METRICS, "endpoints": endpoints}
    try:
        for engine in engines:
            await engine.start()
        at = [engine.at for engine in engines]
        async with running(directory, engines=at, pool=pool, envoy_patch=use) as rig:
            yield rig, engines
    finally:
        for engine in engines:
            engine.kill()


async def known(rig: Rig, *wanted: Engine) -> None:
    names = sorted(str(engine.at) for engine in wanted)
    await rig.until(lambda pool: sorted(e["endpoint"] for e in pool["endpoints"]) == names, f"known: {names}")


async def changes(rig: Rig, engines: list[Engine], show: Callable[[list[Engine]], None]) -> None:
    """One engine, two, the other one: no request is lost."""
    first, second = engines

    show([first])
    await known(rig, first)
    async with traffic(rig, "steady", at_once=12) as flowing:
        await flowing.more(20)
        assert await seen_by(rig, second, "steady") == 0
        show([first, second])
        await until(lambda: seen_by(rig, second, "steady"), lambda count: count > 10, "the second one is used")
        show([second])
        await known(rig, second)
        before = await seen_by(rig, first, "steady")
        await flowing.more(30)
        assert await seen_by(rig, first, "steady") == before
    assert set(flowing.statuses) == {200}
    await rig.books_closed()


async def test_a_name_in_dns(tmp_path: Path) -> None:
    async with name_server() as (server, resolver):
        (port,) = free_ports(1)
        endpoints = {"dns": {"name": NAME, "port": port, "interval": "200ms", "resolver": resolver}}
        async with two_engines(tmp_path, port, endpoints) as (rig, engines):

            def show(wanted: list[Engine]) -> None:
                server.addresses = [engine.at.host for engine in wanted]

            await changes(rig, engines, show)


async def test_a_file_in_envoys_form(tmp_path: Path) -> None:
    file = tmp_path / "endpoints" / "engines.json"
    file.parent.mkdir()

    def write(addresses: Sequence[HostPort]) -> None:
        each = [
            {"endpoint": {"address": {"socket_address": {"address": a.host, "port_value": a.port}}}} for a in addresses
        ]
        kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
        resource = {"@type": kind, "cluster_name": "vllm", "endpoints": [{"lb_endpoints": each}]}
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({"resources": [resource]}))
        fresh.replace(file)

    write([])
    (port,) = free_ports(1)
    async with two_engines(tmp_path, port, {"file": str(file)}) as (rig, engines):
        await changes(rig, engines, lambda wanted: write([engine.at for engine in wanted]))
        write([])
        await known(rig)
        held = [rig.start(chat()) for _ in range(4)]
        await rig.until_held(4)
        write([engines[0].at])
        assert {answer.status for answer in await asyncio.gather(*held)} == {200}
        await rig.books_closed()
