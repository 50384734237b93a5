"""Durations, sizes and addresses as they are written in the file.

A message quotes what it is about by `shown`, and nothing else: in YAML, nine lines of anchors are a list of 9^9 entries
that takes no room until somebody makes a text of it.
"""

from __future__ import annotations

import re
import socket
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*$", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 366 * 24 * 3600.0
_SIZE = re.compile(r"^\s*(\d+)\s*(B|KiB|MiB|GiB)\s*$", re.ASCII)
_HOST_PORT = re.compile(r"^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]):([0-9]{1,5})\Z")
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_LARGEST_SIZE = 1024**5
UNIX = "unix:"
_LONGEST_SOCKET = 107
_SHOWN = 200  # characters
_SHOWN_BITS = 64
_KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}


def kind(value: object) -> str:
    """What it is, in the words of YAML and JSON."""
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def shown(value: object) -> str:
    """For messages: a text or number as it would be in Python, and cut where it is long; of others only the kind."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."
    if value is None or isinstance(value, float):
        return repr(value)
    # Python refuses to write numbers of thousands of digits
    return repr(value) if isinstance(value, int) and value.bit_length() <= _SHOWN_BITS else kind(value)


def _duration(value: object) -> float:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a duration with its unit, like 250ms, 30s, 5m or 1h, not {shown(value)}")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST_S:
        raise ValueError(f"{shown(value)} is longer than anything here can last")
    return seconds


def _size(value: object) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a size with its unit, like 32MiB or 2GiB, not {shown(value)}")
    digits = match[1].lstrip("0") or "0"
    # Python refuses to read numbers of thousands of digits
    if len(digits) > len(str(_LARGEST_SIZE)) or int(digits) * _BYTES[match[2]] > _LARGEST_SIZE:
        raise ValueError(f"{shown(value)} is more than any memory or disk here: at most {written_size(_LARGEST_SIZE)}")
    return int(digits) * _BYTES[match[2]]


def written_duration(seconds: float) -> str:
    """In the largest unit that gives a whole number; where none does, in seconds with all their digits. Reading it
    gives the same float."""
    for unit in ("h", "m", "s", "ms"):
        number = round(seconds / _SECONDS[unit])
        if number * _SECONDS[unit] == seconds and (number or unit == "s"):
            return f"{number}{unit}"
    return f"{Decimal(repr(seconds)):f}s"


def written_size(size: int) -> str:
    """In the largest unit that gives a whole number."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % _BYTES[unit] == 0), "B")
    return f"{size // _BYTES[unit]}{unit}"


def _address(value: object) -> tuple[str, int] | None:
    """Host, in brackets where it is IPv6, and port; None where it has not that form."""
    match = _HOST_PORT.match(value) if isinstance(value, str) else None
    return (match[1], int(match[2])) if match is not None and 0 < int(match[2]) < 65536 else None


def _host_port(value: object) -> str:
    if isinstance(value, str) and _address(value) is not None:
        return value
    raise ValueError(f"expected host:port, like 127.0.0.1:8001 or [::1]:8001, not {shown(value)}")


def ip_port(value: object) -> str:
    """An `ip:port` in the one form in which Envoy writes it. Raises ValueError."""
    address = _address(value)
    if address is not None:
        host, port = address
        v6 = host.startswith("[")
        family = socket.AF_INET6 if v6 else socket.AF_INET
        try:
            # inet_ntop as Envoy does it: [0::1] would be another text than its [::1]
            ip = socket.inet_ntop(family, socket.inet_pton(family, host.strip("[]")))
        except OSError:
            pass
        else:
            return f"[{ip}]:{port}" if v6 else f"{ip}:{port}"
    raise ValueError(
        f"{shown(value)} is not ip:port: Envoy matches Fairlane's choice by address, and would ignore a name"
    )


def _listen_address(value: object) -> str:
    if isinstance(value, str) and value.startswith(UNIX):
        path = value.removeprefix(UNIX)
        # sun_path has 108 bytes, and ends with a zero
        if not path or "\0" in path or len(path.encode()) > _LONGEST_SOCKET:
            raise ValueError(f"expected unix:PATH with a path of 1 to {_LONGEST_SOCKET} bytes, not {shown(value)}")
        return value
    if isinstance(value, str) and _address(value) is not None:
        return value
    raise ValueError(f"expected host:port, like 127.0.0.1:50052, or unix:/run/fairlane/admin.sock, not {shown(value)}")


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    """As it is written, for `json_schema`. `pattern`: in ECMAScript's syntax, and none that refuses what is good."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [*examples]}, mode="validation")


def at_most(largest: int) -> str:
    """A pattern of the whole numbers from 1 to `largest`, zeros before them allowed."""
    digits = str(largest)
    same_length = []
    for place, digit in enumerate(digits):
        least = 0 if place else 1
        if int(digit) > least:
            rest = len(digits) - place - 1
            same_length.append(f"{digits[:place]}[{least}-{int(digit) - 1}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    shorter = [f"[1-9][0-9]{{0,{len(digits) - 2}}}"] if len(digits) > 1 else []
    return f"0*({'|'.join([digits, *same_length, *shorter])})"


def size_text(largest: int) -> WithJsonSchema:
    """Of a size of at most that many bytes."""
    units = "|".join(rf"{at_most(largest // size)}\s*{unit}" for unit, size in _BYTES.items() if size <= largest)
    return _text(rf"^\s*({units}|0+\s*(B|KiB|MiB|GiB))\s*$", "32MiB", "2GiB")


_PORT_TEXT = at_most(65535)
_HOST_PORT_TEXT = rf"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):{_PORT_TEXT}$"

Seconds = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(written_duration, when_used="json-unless-none"),
    _text(r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|h)\s*$", "250ms", "30s", "5m", "1h"),
]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(written_size, when_used="json-unless-none"),
    size_text(_LARGEST_SIZE),
]
HostPort = Annotated[str, BeforeValidator(_host_port), _text("^" + _HOST_PORT_TEXT, "127.0.0.1:9090", "[::1]:9090")]
ListenAddress = Annotated[  # host:port, or unix:path
    str,
    BeforeValidator(_listen_address),
    _text(rf"^(unix:[\s\S]|{_HOST_PORT_TEXT})", "127.0.0.1:50052", "unix:/run/fairlane/admin.sock"),
]
IpPort = Annotated[
    str,
    BeforeValidator(ip_port),
    _text(rf"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):{_PORT_TEXT}$", "10.0.0.11:8000", "[fd00::11]:8000"),
]


def split_host_port(value: str) -> tuple[str, int]:
    """Host without brackets, and port, of a valid `HostPort`."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)
