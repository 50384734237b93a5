"""Who asks the HTTP port: whether a browser would do it for the page of somebody else.

A port on loopback is reached by every page that is open in a browser on the same machine. The page cannot read what it
gets from another origin, but its owner may let the page's own name point to 127.0.0.1 (DNS rebinding), and then it can:
the origin is the same. What it cannot do is send another `Host` than its own name. So where we listen on loopback only,
`Host` must be loopback, too. A request without one comes from no browser.

A port on another address has names that we do not know, and whoever reaches it may read all of it.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}


class Authority(NamedTuple):
    name: str
    port: int | None


def authority(text: str) -> Authority | None:
    """Of a header `Host`: its name in lower case, without the brackets of an address; None: there is no sense in it."""
    if any(c in "/?#@\\" or c.isspace() for c in text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    return Authority(name.removesuffix("."), port) if name else None


def is_loopback(name: str) -> bool:
    """A name as `authority` gives it, or an address."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def foreign_host(hosts: list[str], bound: str) -> bool:
    """Whether one of the headers `Host` is of another machine. `bound`: the name that we listen at is one of ours."""
    for host in hosts:
        found = authority(host)
        if found is None or not (is_loopback(found.name) or found.name == bound.lower()):
            return True
    return False


def foreign_origin(origin: str | None, host: str | None) -> bool:
    """Whether another origin's page asks. A proxy may leave the port out of `Host`: then any will do."""
    if origin is None:
        return False
    scheme, _, rest = origin.partition("://")
    its, ours = authority(rest), authority(host or "")
    if its is None or ours is None or its.name != ours.name:
        return True
    return ours.port is not None and ours.port != (its.port or _PORTS.get(scheme.lower()))
