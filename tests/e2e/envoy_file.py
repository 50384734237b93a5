"""A file of envoy/, run as it stands but for its addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until_answered
from extproc.cli.stack import envoy_binary
from extproc.wiring.shipped import REPLICAS

Config = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[2] / "envoy"
LISTENER, ADMIN = 10_000, 9_901
_ENGINES = (8_001, 8_002)


def of_replicas(name: str, *, listener: int, admin: int, ext_proc: Sequence[int], engines: Sequence[int]) -> Config:
    """A file of envoy/replicas, at these ports of loopback."""
    read: Config = yaml.safe_load((FOLDER / "replicas" / f"{name}.yaml").read_text(encoding="utf-8"))
    old = [port for _, port in REPLICAS[f"replicas/{name}.yaml"][2]]
    ports = dict(zip((LISTENER, ADMIN), (listener, admin), strict=True))
    ports |= dict(zip(old, ext_proc, strict=True))
    ports |= dict(zip(_ENGINES, (*engines, *engines)[:2], strict=True))
    moved: Config = _moved(read, ports)
    return moved


def _moved(value: Any, ports: dict[int, int]) -> Any:
    if isinstance(value, dict):
        return {k: ports[v] if k == "port_value" else _moved(v, ports) for k, v in value.items()}
    if isinstance(value, list):
        return [_moved(each, ports) for each in value]
    return value


@contextlib.asynccontextmanager
async def envoy_of_replicas(
    directory: Path,
    name: str,
    ext_proc: Sequence[int],
    engines: Sequence[int],
    *,
    change: Callable[[Config], None] | None = None,
) -> AsyncIterator[tuple[HostPort, HostPort]]:
    """A running Envoy: where its clients go, and its admin interface."""
    at, admin = (HostPort("127.0.0.1", port) for port in free_ports(2))
    made = of_replicas(name, listener=at.port, admin=admin.port, ext_proc=ext_proc, engines=engines)
    if change is not None:
        change(made)
    file = directory / "envoy.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    command = [str(envoy_binary()), "--config-path", str(file), "--disable-hot-restart", "--log-level", "warning"]
    child = Child("envoy", command, log=directory / "envoy.log", directory=directory, env=dict(os.environ))
    child.start()
    try:
        try:
            async with asyncio.timeout(60):
                await until_answered(admin, "/ready")
        except TimeoutError:
            raise AssertionError(child.tail()) from None
        yield at, admin
    finally:
        child.kill()
