"""One file of endpoints feeds the real Envoy and Fairlane: both take the same of it, and refuse the same.

The file changes as the kubelet changes a mounted ConfigMap: by the link of its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rig import until

from extproc.cli.child import Child
from extproc.cli.ports import free_ports
from extproc.cli.stack import envoy_binary
from extproc.config.endpoints import File
from extproc.engines.endpoints.file import FileSource
from extproc.engines.endpoints.source import Endpoint

pytestmark = pytest.mark.e2e

NAME = "engines.json"
TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
WRAPPER = "type.googleapis.com/envoy.service.discovery.v3.Resource"
# what Envoy says of hosts that it sends requests to
GOOD = {"HEALTHY", "UNKNOWN", "DEGRADED"}


@dataclass
class Both:
    """`fairlane`: the last set; `fairlane_says`: what it holds against the file."""

    directory: Path
    source: FileSource
    http: aiohttp.ClientSession
    admin: str
    sets: list[tuple[Endpoint, ...]] = field(default_factory=list)
    versions: int = 0

    def put(self, text: str) -> None:
        self.versions += 1
        name = f"..version-{self.versions}"
        (self.directory / name).mkdir()
        (self.directory / name / NAME).write_text(text)
        (self.directory / "..data_tmp").symlink_to(name)
        (self.directory / "..data_tmp").rename(self.directory / "..data")

    @property
    def fairlane(self) -> list[str] | None:
        return sorted(each.address for each in self.sets[-1]) if self.sets else None

    async def envoy(self) -> list[str]:
        """The addresses to which it sends requests, in its own spelling."""
        async with self.http.get(f"http://{self.admin}/clusters?format=json") as answer:
            clusters = (await answer.json(content_type=None)).get("cluster_statuses", [])
        found = []
        for host in next(each for each in clusters if each["name"] == "llama").get("host_statuses", []):
            socket_address = host["address"]["socket_address"]
            ip = socket_address["address"]
            if host["health_status"].get("eds_health_status", "UNKNOWN") in GOOD:
                found.append(f"[{ip}]:{socket_address['port_value']}" if ":" in ip else f"{ip}:8000")
        return sorted(found)

    async def stat(self, name: str) -> int:
        async with self.http.get(f"http://{self.admin}/stats?format=json&filter=^cluster.llama.{name}$") as answer:
            (found,) = (await answer.json(content_type=None))["stats"]
        return int(found["value"])

    async def agree(self, *addresses: str) -> None:
        async def both() -> tuple[list[str], list[str] | None]:
            return await self.envoy(), self.fairlane

        await until(both, lambda found: found == (list(addresses), list(addresses)), f"both have {addresses}")

    async def fairlane_refuses(self, words: str) -> None:
        async def says() -> str:
            return self.source.last_error or ""

        await until(says, lambda error: words in error)

    async def envoy_counts(self, name: str, more_than: int) -> None:
        async def count() -> int:
            return await self.stat(name)

        await until(count, lambda value: value > more_than, name)


def assignment(*entries: Any, clusters: tuple[str, ...] = ("llama",), wrapped: bool = False) -> str:
    endpoints = [{"lb_endpoints": list(entries)}]
    resources: list[Any] = [{"@type": TYPE, "cluster_name": name, "endpoints": endpoints} for name in clusters]
    if wrapped:
        resources = [{"@type": WRAPPER, "name": each["cluster_name"], "resource": each} for each in resources]
    return json.dumps({"resources": resources})


def entry(ip: str, health: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"endpoint": {"address": {"socket_address": {"address": ip, "port_value": 8000}}}}
    return found if health is None else {**found, "health_status": health}


@contextlib.asynccontextmanager
async def both(tmp_path: Path, text: str) -> AsyncIterator[Both]:
    directory = tmp_path / "mounted"
    directory.mkdir()
    path = directory / NAME
    path.symlink_to(f"..data/{NAME}")
    admin = f"127.0.0.1:{free_ports(1)[0]}"
    host, port = admin.split(":")
    eds = {
        "resource_api_version": "V3",
        "path_config_source": {"path": str(path), "watched_directory": {"path": str(directory)}},
    }
    config = {
        "node": {"id": "n", "cluster": "c"},  # EDS wants one
        "admin": {"address": {"socket_address": {"address": host, "port_value": int(port)}}},
        "static_resources": {"clusters": [{"name": "llama", "type": "EDS", "eds_cluster_config": {"eds_config": eds}}]},
    }
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(config))
    argv = [str(envoy_binary()), "--config-path", str(file), "--disable-hot-restart", "--concurrency", "1"]
    envoy = Child("envoy", argv, log=tmp_path / "envoy.log", directory=tmp_path, env=os.environ)
    source = FileSource(File(path=str(path), cluster="llama"), "llama", time.monotonic, poll_s=0.05)
    async with aiohttp.ClientSession() as http:
        it = Both(directory, source, http, admin)
        it.put(text)
        reading = asyncio.create_task(source.run(it.sets.append))
        envoy.start()
        try:

            async def ready() -> bool:
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"http://{admin}/ready") as answer:
                        return answer.status == 200
                assert envoy.running, envoy.tail()
                return False

            await until(ready, bool, "Envoy is ready")
            yield it
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await envoy.stop(5.0)


async def test_both_take_and_refuse_the_same(tmp_path: Path) -> None:
    async with both(tmp_path, assignment(entry("10.0.0.1"), entry("FD00:0:0::0A"))) as it:
        await it.agree("10.0.0.1:8000", "[fd00::a]:8000")
        it.put(
            assignment(
                entry("10.0.0.2", "HEALTHY"),
                entry("10.0.0.3", "DRAINING"),
                entry("10.0.0.4", "UNHEALTHY"),
                entry("10.0.0.5", "DEGRADED"),
                entry("10.0.0.6", "TIMEOUT"),
            )
        )
        await it.agree("10.0.0.2:8000", "10.0.0.5:8000")

        failed = await it.stat("update_failure")
        it.put('{"resources": [{"@type": "type.goog')
        await it.fairlane_refuses("is neither YAML nor JSON")
        await it.envoy_counts("update_failure", failed)
        await it.agree("10.0.0.2:8000", "10.0.0.5:8000")

        empty = await it.stat("update_empty")
        it.put('{"resources": []}')
        await it.fairlane_refuses("expected one assignment")
        await it.envoy_counts("update_empty", empty)
        await it.agree("10.0.0.2:8000", "10.0.0.5:8000")

        for clusters, words in ((("llama", "qwen"), "found 2"), (("llama", "llama"), "found 2"), (("qwen",), "qwen")):
            rejected = await it.stat("update_rejected")
            it.put(assignment(entry("10.0.0.1"), clusters=clusters))
            await it.fairlane_refuses(words)
            await it.envoy_counts("update_rejected", rejected)
            await it.agree("10.0.0.2:8000", "10.0.0.5:8000")

        rejected = await it.stat("update_rejected")
        it.put(assignment(entry("vllm-0.llm")))
        await it.fairlane_refuses("'vllm-0.llm:8000' is not ip:port")
        await it.envoy_counts("update_rejected", rejected)
        await it.agree("10.0.0.2:8000", "10.0.0.5:8000")

        it.put(assignment())
        await it.agree()
        it.put(assignment(entry("10.0.0.1"), wrapped=True))
        await it.agree("10.0.0.1:8000")
        it.put(re.sub(r"_([a-z])", lambda found: found[1].upper(), assignment(entry("10.0.0.2"))))
        await it.agree("10.0.0.2:8000")
