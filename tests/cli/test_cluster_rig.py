"""What is read out of an engine's journal, worked out by hand; and the store's server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extproc.cli.cluster_rig import (
    Fill,
    StoreServer,
    StoreServerError,
    Traffic,
    doors,
    fill,
    full_again,
    served,
    store_server,
)
from extproc.cli.ports import HostPort
from extproc.cli.stack import StackError
from extproc.sim import wire_load
from extproc.sim.wire_engine import header
from extproc.sim.wire_load import Load
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring

REPLICAS = [HostPort("127.0.0.1", port) for port in (2001, 2002, 2003)]


def entry(tenant: str, arrived: float, first: float | None, ended: float | None, tokens: int = 10) -> dict[str, Any]:
    return {
        "headers": {"x-tenant": tenant},
        "arrived_at": arrived,
        "first_token_at": first,
        "ended_at": ended,
        "tokens": tokens,
        "state": "finished" if ended is not None else "running",
    }


def test_served_counts_of_an_answer_the_part_of_its_time_that_lies_inside() -> None:
    entries = [
        entry("a", 0.0, 1.0, 3.0),  # the second half
        entry("a", 3.0, 4.0, 5.0),  # all
        entry("b", 4.0, 5.0, 9.0, tokens=8),  # a quarter
        entry("b", 0.0, 0.5, 1.0),  # before
        entry("b", 5.0, 5.5, None),  # not finished
        entry("c", 3.0, 4.0, 4.0, tokens=1),  # at a single moment
    ]
    assert served(entries, 2.0, 6.0) == {"a": 15.0, "b": 2.0, "c": 1.0}


def test_what_is_refused_counts_for_nothing() -> None:
    assert served([{**entry("a", 0.0, None, 1.0), "state": "refused"}], 0.0, 2.0) == {}


def test_fill_is_weighted_by_time() -> None:
    # inside: 1 in [0, 2), 2 in [2, 4), 3 in [4, 5), 2 in [5, 6), 1 in [6, 8), 0 in [8, 10)
    entries = [entry("a", 0, 0, 5), entry("a", 2, 2, 6), entry("b", 4, 4, 8)]
    assert fill(entries, 1, 0, 10) == Fill(waiting_max=2, waiting_999=2, used=0.8)
    assert fill(entries, 2, 0, 10) == Fill(waiting_max=1, waiting_999=1, used=(2 + 4 + 2 + 2 + 2) / 20)
    assert fill(entries, 1, 5, 10) == Fill(waiting_max=1, waiting_999=1, used=0.6)


def test_a_short_peak_is_in_the_maximum_only() -> None:
    entries = [entry("a", 0, 0, 1000), entry("a", 500, 500, 500.5)]
    assert fill(entries, 1, 0, 1000) == Fill(waiting_max=1, waiting_999=0, used=1.0)


def test_who_comes_when_another_one_leaves_does_not_wait() -> None:
    assert fill([entry("a", 0, 0, 1), entry("a", 1, 1, 2)], 1, 0, 2) == Fill(waiting_max=0, waiting_999=0, used=1.0)


def test_an_engine_is_full_again_at_the_end_of_the_stretch_in_which_it_was_not() -> None:
    # of 2 slots: both until 3, one until 5, none until 6, both until 20; then none
    entries = [entry("a", 0, 0, 5), entry("a", 0, 0, 3), entry("b", 6, 6, 20), entry("b", 6, 6, 20)]
    assert full_again(entries, 2, 1, 21, part=0.9, bin_s=1.0) == 5.0  # at 6
    assert full_again(entries, 2, 6, 20, part=0.9, bin_s=1.0) == 0.0
    assert full_again(entries, 2, 18, 24, part=0.9, bin_s=1.0) == 6.0


def test_each_door_leads_to_its_replica_first() -> None:
    at = [HostPort("127.0.0.1", port) for port in (3001, 3002, 3003)]
    config = build(Wiring(), Addresses(ext_proc=REPLICAS)).config
    doors(at)(config)
    _, *added = config["static_resources"]["listeners"]
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    for address, replica, listener in zip(at, REPLICAS, added, strict=True):
        assert listener["address"]["socket_address"] == {"address": address.host, "port_value": address.port}
        (held_by,) = [
            each["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
            for each in listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            if each["name"] == "envoy.filters.http.ext_proc"
        ]
        first, others = clusters[held_by]["load_assignment"]["endpoints"]
        assert ports(first) == [replica.port]
        assert ports(others) == [each.port for each in REPLICAS if each != replica]
        assert (first["priority"], others["priority"]) == (0, 1)


def ports(locality: dict[str, Any]) -> list[int]:
    return [each["endpoint"]["address"]["socket_address"]["port_value"] for each in locality["lb_endpoints"]]


def test_without_a_program_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(StackError, match="install Redis or Valkey"):
        StoreServer(tmp_path)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here (apt install redis-server)")
async def test_the_store_answers_is_counted_and_comes_again(tmp_path: Path) -> None:
    async with store_server(tmp_path / "new") as store:
        assert await store.ask("SET", "a", "b") == "OK"
        assert await store.ask("GET", "a") == "b"
        assert await store.ask("GET", "none") == "-1"
        with pytest.raises(StoreServerError, match="unknown command"):
            await store.ask("NONSENSE")
        before = Traffic.of(await store.info())
        digest = await store.ask("SCRIPT", "LOAD", "return 1")
        for _ in range(3):
            assert await store.ask("EVALSHA", digest, "0") == "1"
        spent = Traffic.of(await store.info()).since(before)
        assert spent.exchanges == 3
        assert spent.bytes_in > 0
        store.kill()
        assert not store.child.running
        with pytest.raises(OSError, match=r"refused|Connect"):
            await store.ask("PING")
        await store.start()
        assert await store.ask("GET", "a") == "-1"
    assert not store.child.running


async def test_clients_of_one_tenant_wait_for_no_other_tenants_answer() -> None:
    """What one that is served slowly sends must not be what holds the others back, or shares could not be seen."""
    seen: Counter[tuple[bytes | None, int]] = Counter()
    slow = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = json.loads(await reader.readexactly(int(header(head, b"content-length") or b"0")))
                tenant = header(head, b"x-tenant")
                seen[tenant, body["max_tokens"]] += 1
                if seen[b"tenant-6", 7] == 9:
                    slow.set()
                if tenant == b"tenant-5":
                    await slow.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = Load(port, 10, clients=2, body_bytes=200, tenants=2, first_tenant=5, apart=True, output=7)
        result = await wire_load.run(load)
    assert result.answers == {"200": 10}
    assert seen == {(b"tenant-5", 7): 1, (b"tenant-6", 7): 9}
