"""`fairlane up --replicas`: what it refuses, and what its stack is made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.ports import HostPort, PortInUseError, Use, check_free
from extproc.cli.stack import Addresses, ServiceAddresses, Stack, StackOptions
from extproc.cli.up import _welcome, up
from extproc.cli.up_replicas import Replicas, replicated

STORE = HostPort("127.0.0.1", 6379)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mode", "standby"], "--mode is for several Fairlanes: give --replicas 2, or leave it out"),
        (["--store", "127.0.0.1:6379"], "--store is for several Fairlanes: give --replicas 2, or leave it out"),
        (["--replicas", "2", "--store", "redis"], "--store: expected host:port, like 127.0.0.1:8001, not 'redis'"),
        (["--replicas", "9"], "9 is not in the range 1<=x<=8"),
        (["--replicas", "2", "--mode", "single"], "'single' is not one of 'shared', 'standby', 'partition'"),
    ],
)
def test_it_refuses_what_makes_no_sense(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(up, arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_a_file_says_where_one_listens(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("")
    result = CliRunner().invoke(up, ["--replicas", "2", "--config", str(file)])
    assert result.exit_code == 2
    assert "--replicas cannot be given with --config: the file says where one Fairlane listens" in result.output


async def test_the_first_one_is_where_one_alone_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    at = Addresses.free(1)
    async with replicated(StackOptions(addresses=at), Replicas(3, "standby", STORE)) as options:
        first, *others = options.replicas
        assert first == ServiceAddresses(at.ext_proc, at.admin, at.http)
        assert len({each.http for each in (first, *others)}) == 3
        assert options.config["cluster"] == {
            "mode": "standby",
            "replicas": 3,
            "store": {"addresses": ["127.0.0.1:6379"]},
        }
        assert options.wiring.mode == "standby"
        said = _welcome(Stack(StackOptions(**{**vars(options), "directory": Path("/run/f")})))
        assert all(f"http://{each.http}/metrics" in said for each in options.replicas)
    assert capsys.readouterr().out == "Store       127.0.0.1:6379  (yours)\n"


async def test_partition_needs_no_store(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    async with replicated(StackOptions(), Replicas(2, "partition")) as options:
        assert options.config["cluster"]["store"] is None
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here (apt install redis-server)")
async def test_a_store_is_started_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    async with replicated(StackOptions(), Replicas(2, "shared")) as options:
        (address,) = options.config["cluster"]["store"]["addresses"]
        at = HostPort.parse(address)
        assert capsys.readouterr().out == f"Store       {address}  (started here)\n"
        with pytest.raises(PortInUseError):
            check_free([Use(at, "the store", "--store")])
    check_free([Use(at, "the store", "--store")])


def test_without_a_program_for_the_store_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    result = CliRunner().invoke(up, ["--replicas", "2"])
    assert result.exit_code == 1
    assert "no redis-server or valkey-server on PATH: install Redis or Valkey" in result.output
