"""Addresses and ports of a local stack: which are used for what, which are free, which are taken.

Free ports are looked for *below* the range from which the kernel takes the local ports of outgoing
connections. A port inside it can be lost between two starts of a service: while nothing listens there, a
client's attempt to connect may be given that very port as its own and then talks to itself (TCP
simultaneous open), after which the service cannot bind any more.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_FREE = 10_500
_ATTEMPTS = 2_000

# What this process has given away. Whoever asked for a port listens on it later: until then it looks free.
_given: set[int] = set()


class PortInUseError(Exception):
    """A port that is to be listened on is taken. The message names it, its use and the option that changes it."""


class HostPort(NamedTuple):
    """A host (name or address, without brackets) and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """From `host:port` or `[v6 address]:port`. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"expected host:port, like 127.0.0.1:8001, not {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Use:
    """One address that a stack listens on."""

    at: HostPort
    purpose: str  # as in an error message: "Envoy's listener"
    option: str  # what chooses another one: "--envoy-port"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports on which nothing listens now, and that this process was not given before; where the
    kernel has to choose them, it may have been.

    All are tried before any is let go. Raises OSError when there are not that many."""
    held: list[socket.socket] = []
    try:
        held.extend(_bind_somewhere(host) for _ in range(count))  # on an error those before it are in the list
        ports = [int(s.getsockname()[1]) for s in held]
        _given.update(ports)
        return ports
    finally:
        for s in held:
            s.close()


def check_free(uses: Iterable[Use]) -> None:
    """Raise PortInUseError for the first address that is taken, or that is wanted twice.

    Envoy and gRPC listen with SO_REUSEPORT: a second one would not fail, but share the port with a stranger in
    silence. So it is looked at before anything starts."""
    wanted: dict[HostPort, Use] = {}
    for use in uses:
        other = wanted.setdefault(use.at, use)
        if other is not use:
            raise PortInUseError(
                f"port {use.at.port} is wanted twice, for {other.purpose} ({other.option}) and for {use.purpose} "
                f"({use.option}): choose another for one of them"
            )
    for use in wanted.values():
        try:
            _bind(use.at).close()
        except OSError as error:
            raise PortInUseError(_refusal(use, error)) from error


def _refusal(use: Use, error: OSError) -> str:
    what = f"port {use.at.port} ({use.purpose}) on {use.at.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{what} is in use: stop what listens there or choose another with {use.option}"
    reason = error.strerror or str(error)
    return f"{what} cannot be listened on ({reason}): choose another with {use.option}"


def _bind(at: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    try:
        # as servers do: connections of the last run that linger in TIME_WAIT are no reason to refuse
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((at.host, at.port))
        s.listen(1)
    except BaseException:
        s.close()
        raise
    return s


def _bind_somewhere(host: str) -> socket.socket:
    highest = _first_outgoing_port() - 1
    if highest - _LOWEST_FREE > 1_000:
        for _ in range(_ATTEMPTS):
            port = random.randint(_LOWEST_FREE, highest)  # noqa: S311 - no secret
            if port in _given:
                continue
            try:
                return _bind(HostPort(host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
    return _bind(HostPort(host, 0))


def _first_outgoing_port() -> int:
    try:
        return int(_OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0  # not Linux: let the kernel choose
