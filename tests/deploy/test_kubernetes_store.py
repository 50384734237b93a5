"""The Valkey of components/valkey, as its container starts it: with Redis in its place, which takes the same file; and
a Fairlane of the overlays that have it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from kubernetes_case import built, container, containers, of_kind, one
from test_kubernetes_config import Authority, Mounted, answers, ctl, metric, running

from extproc.cli.child import Child
from extproc.cli.ports import free_ports
from extproc.cli.probe import until

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PASSWORD = "0123456789abcdef"
_WITHIN_S = 60.0


@asynccontextmanager
async def started(place: Path, password: str) -> AsyncIterator[tuple[Child, int]]:
    """The container's command, with its files in a folder of the test's and at a port of its own."""
    if shutil.which("redis-server") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("redis-server is not installed")
    objects = built("overlays/shared")
    (given,) = [each for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"].startswith("valkey-")]
    (port,) = free_ports(1)
    for folder, name, text in (
        ("etc/valkey", "valkey.conf", f"{given['data']['valkey.conf']}bind 127.0.0.1\nport {port}\n"),
        ("etc/fairlane-store", "password", password),
    ):
        (place / folder).mkdir(parents=True)
        (place / folder / name).write_text(text)
    (container,) = containers(one(objects, "Deployment", "valkey"))
    *shell, script = container["command"]
    assert shell == ["sh", "-ec"]
    script = script.replace("valkey-server", "redis-server")
    for folder in ("/etc/valkey", "/etc/fairlane-store"):
        script = script.replace(folder, f"{place}{folder}")
    child = Child("valkey", [*shell, script], log=place / "log", directory=place, env=dict(os.environ))
    child.start()
    try:
        yield child, port
    finally:
        child.kill()


def asked(port: int, password: str | None) -> str:
    """What comes of a PING: an answer, or the name of the error."""
    client = redis.Redis(port=port, password=password, socket_timeout=30)
    try:
        return str(client.ping())
    except redis.exceptions.RedisError as error:
        return type(error).__name__
    finally:
        client.close()


def shown(child: Child) -> str:
    """What others may read of it: its log, and its command line while it runs."""
    line = Path(f"/proc/{child.pid}/cmdline").read_text() if child.running else ""
    return line + child.log.read_text()


def kept(place: Path) -> list[Path]:
    return [each for kind in ("*.rdb", "*.aof") for each in place.rglob(kind)]


async def test_it_asks_for_the_password_keeps_nothing_and_ends_when_it_is_told(tmp_path: Path) -> None:
    async with started(tmp_path, PASSWORD) as (child, port):
        assert await until(lambda: child.failed or asked(port, PASSWORD) == "True", _WITHIN_S)
        assert child.running, child.tail()
        assert PASSWORD not in shown(child)
        assert asked(port, None) == "AuthenticationError"
        assert asked(port, "another") == "AuthenticationError"
        client = redis.Redis(port=port, password=PASSWORD, decode_responses=True)
        wanted = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction", "maxmemory": str(128 << 20)}
        assert {key: client.config_get(key)[key] for key in wanted} == wanted
        client.set("a", "b")
        client.close()
        assert await child.stop(_WITHIN_S), "the server is the container's first process, and gets its signal"
        assert child.exit_code == 0
        assert PASSWORD not in shown(child)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("overlay", ["standby", "shared"])
async def test_fairlane_starts_without_it_and_finds_it(overlay: str, tmp_path: Path) -> None:
    """kubectl applies all at once: which of them is there first, nobody knows."""
    mounted = Mounted(tmp_path / "fairlane", Authority("of a test"))
    for folder in ("var/lib/fairlane", "etc/fairlane-store"):
        (mounted.place / folder).mkdir(parents=True)
    (mounted.place / "etc/fairlane-store/password").write_text(f"{PASSWORD}\n")
    async with started(tmp_path / "valkey", PASSWORD) as (store, port):
        store.kill()
        at = {"FAIRLANE__CLUSTER__STORE__ADDRESSES": f'["127.0.0.1:{port}"]'}
        async with running(f"overlays/{overlay}", mounted, at) as (fairlane, ports, objects):
            lost = "fairlane_cluster_store_lost"
            assert await until(lambda: metric(ports, lost) == 1, _WITHIN_S), fairlane.tail()
            assert answers(container(objects)["readinessProbe"], ports), "it serves all the same"
            store.start()
            assert await until(lambda: metric(ports, lost) == 0, _WITHIN_S), fairlane.tail()
            assert await until(lambda: metric(ports, "fairlane_cluster_active") == 1, _WITHIN_S), fairlane.tail()
            status = ctl(ports, "status")
            assert "fairlane-0" in status.stdout, "the name of its pod"
            assert PASSWORD not in shown(fairlane)


async def test_an_empty_password_would_be_none(tmp_path: Path) -> None:
    async with started(tmp_path, "") as (child, _):
        assert await until(lambda: not child.running, _WITHIN_S)
        assert child.exit_code != 0
