"""`fairlane up --replicas 2` as a user runs it: two services and their store, and nothing of them left at the end.
One of the two may be killed, to see what happens."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from rig import chat, until

from extproc.cli.cluster_rig import StoreServer
from extproc.cli.ports import HostPort, Use, check_free
from extproc.cli.stack import Addresses, StackError

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _a_store_is_there(tmp_path: Path) -> None:
    try:
        StoreServer(tmp_path / "none")
    except StackError as error:
        pytest.skip(str(error))


def left_in(directory: Path) -> list[str]:
    """Folders for logs, configurations and the store."""
    return [each.name for each in directory.glob("fairlane-*")]


def pid_of(service: str, supervisor: int) -> int:
    """Of the child whose configuration is that service's."""
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if "serve" in words and any(Path(word).stem == service for word in words):
            return int(child)
    raise AssertionError(f"{service} does not run")


async def test_two_that_share(tmp_path: Path) -> None:
    at = Addresses.free(1)
    ports = {"envoy": at.envoy, "envoy-admin": at.envoy_admin, "grpc": at.ext_proc, "admin": at.admin, "http": at.http}
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("fairlane")), "up", "--replicas", "2"),
        *(f"--{name}-port={address.port}" for name, address in ports.items() if isinstance(address, HostPort)),
        f"--engine-port={at.engines[0].port}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            said = (await process.stdout.readuntil(b"Ctrl-C stops everything.")).decode()
        services = [HostPort.parse(each) for each in re.findall(r"http://(\S+)/metrics", said)]
        assert len(services) == 2
        assert services[0] == at.http
        async with aiohttp.ClientSession() as http:

            async def known() -> list[int]:
                counts = []
                for service in services:
                    async with http.get(f"http://{service}/status") as answer:
                        counts.append((await answer.json())["cluster"]["replicas"])
                return counts

            await until(known, lambda counts: counts == [2, 2], "they know each other")
            async with http.post(f"http://{at.envoy}/v1/chat/completions", json=chat()) as answer:
                assert answer.status == 200, await answer.text()
            os.kill(pid_of("fairlane-2", process.pid), signal.SIGKILL)
            del services[1]
            async with asyncio.timeout(DEADLINE_S):
                told = b"fairlane-2 ended by signal 9: the other replicas go on without it"
                while told not in await process.stderr.readline():
                    pass
            await until(known, lambda counts: counts == [1], "it knows that the other one is gone")
            async with http.post(f"http://{at.envoy}/v1/chat/completions", json=chat()) as answer:
                assert answer.status == 200, await answer.text()
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(DEADLINE_S):
            assert await process.wait() == 0
        check_free([Use(each, "x", "--x") for each in (at.envoy, at.ext_proc, *services, *at.engines)])
        assert left_in(tmp_path) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
