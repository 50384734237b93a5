"""Ports of a local stack: what is free, what is taken, and what is said then."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from extproc.cli.ports import HostPort, PortInUseError, Use, check_free, free_ports


def test_one_port_wanted_for_two_purposes() -> None:
    at = HostPort("127.0.0.1", free_ports(1)[0])
    with pytest.raises(PortInUseError, match=r"wanted twice, for tea \(--tea\) and for coffee \(--coffee\)"):
        check_free([Use(at, "tea", "--tea"), Use(at, "coffee", "--coffee")])


def test_a_port_that_may_not_be_listened_on_says_why() -> None:
    with pytest.raises(PortInUseError, match=r"on 192\.0\.2\.77 cannot be listened on \(.*\): choose another with --x"):
        check_free([Use(HostPort("192.0.2.77", 12_345), "nobody's address", "--x")])


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with contextlib.ExitStack() as servers:
        for port in ports:
            servers.enter_context(socket.create_server(("127.0.0.1", port)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_port_is_given_once() -> None:
    """Nobody listens on those that were given and are not used yet. Without a memory some of so many would be alike."""
    ports = [port for _ in range(100) for port in free_ports(10)]
    assert len(set(ports)) == len(ports)


def test_free_ports_are_never_given_to_outgoing_connections() -> None:
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest_outgoing < 12_000:
        pytest.skip("this machine leaves no room below its outgoing ports")
    assert all(port < lowest_outgoing for port in free_ports(20))


@pytest.mark.parametrize("text", ["8001", ":8001", "host:", "host:0", "host:65536", "host:x"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        HostPort.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:8001", "[::1]:8001", "engine-1:80"])
def test_host_and_port_read_and_written(text: str) -> None:
    assert str(HostPort.parse(text)) == text
