"""EndpointSlices of Kubernetes (discovery.k8s.io/v1) as endpoints.

An endpoint counts when it is `ready` (a missing condition counts as ready, as the API's documents ask of consumers) and
not `terminating`. A pod that is told to end may still be `serving`, and kube-proxy falls back to such pods when there
are no others; Fairlane does not, since an answer of an engine takes longer than what is left of the pod's life. What
it is answering goes on. `publishNotReadyAddresses` makes all pods ready by definition; Fairlane's reading of metrics
is what tells there.

Only the first address of an endpoint counts: the meaning of more is not defined. One pod can stand in several slices
for a while, when the controller moves it. Slices of names (FQDN) are passed by: Envoy's choice is by address.

The port: by name, by number, or the only TCP port that there is. A slice without ports, or with a port that stands for
all, takes a number as it is. An endpoint of a slice that has not got the port does not count; when none has it, that
is an error and not an empty set.

`identity` is the pod's uid: a new pod that was given the address of an old one is another engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from extproc.config.units import ip_port
from extproc.engines.endpoints.source import MOST, Endpoint, SourceError

Slice = Mapping[str, Any]
_TOO_MANY: Final = f"there are more than {MOST} endpoints; divide them among Services and pools"


def endpoints(slices: Iterable[Slice], port: int | str | None) -> list[Endpoint]:
    """Sorted by address. Raises SourceError: a port that is none or not the only one, no slices, or too many
    endpoints."""
    found: list[Endpoint] = []
    other: set[str] = set()  # ports of usable slices that are not the one asked for
    usable = 0
    for each in sorted(slices, key=_name):
        try:
            ready = list(_ready(each))
            if not ready:
                continue
            usable += 1
            number = _number(each, port)
            if number is None:
                other.update(_text(known) for known in _tcp(each))
                continue
            if len(found) + len(ready) > 2 * MOST:  # a pod may stand in several slices
                raise SourceError(_TOO_MANY)
            found += [_endpoint(pod, number) for pod in ready]
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise SourceError(
                f"the EndpointSlice {_name(each)} cannot be read ({error!r}): is that the Kubernetes API?"
            ) from error
    if usable and not found:
        raise SourceError(
            f"no EndpointSlice has the TCP port {port}; there are: {', '.join(sorted(other)) or 'none'}; "
            "mend endpoints.kubernetes.port"
        )
    if len({each.address for each in found}) > MOST:
        raise SourceError(_TOO_MANY)
    return sorted(found, key=lambda endpoint: endpoint.address)


def _ready(slice_: Slice) -> Iterator[Mapping[str, Any]]:
    if slice_.get("addressType") not in ("IPv4", "IPv6"):
        return
    for pod in slice_.get("endpoints") or ():
        conditions = pod.get("conditions") or {}
        if conditions.get("ready") is not False and not conditions.get("terminating") and pod.get("addresses"):
            yield pod


def _tcp(slice_: Slice) -> list[Mapping[str, Any]]:
    return [port for port in slice_.get("ports") or () if (port.get("protocol") or "TCP") == "TCP"]


def _number(slice_: Slice, wanted: int | str | None) -> int | None:
    """None: the slice has not got that port. Raises SourceError where the choice is open."""
    ports = _tcp(slice_)
    if isinstance(wanted, int):
        stands_for_all = not slice_.get("ports") or any(port.get("port") is None for port in ports)
        return wanted if stands_for_all or any(port.get("port") == wanted for port in ports) else None
    if wanted is not None:
        ports = [port for port in ports if (port.get("name") or "") == wanted]
        if not ports:
            return None
    if len(ports) != 1:
        known = ", ".join(_text(port) for port in ports) or "none"
        raise SourceError(f"which port is meant? The EndpointSlice {_name(slice_)} has: {known}; give kubernetes.port")
    number = ports[0].get("port")
    if number is None:
        raise SourceError(f"the EndpointSlice {_name(slice_)} leaves the port open: give kubernetes.port as a number")
    return int(number)


def _endpoint(pod: Mapping[str, Any], port: int) -> Endpoint:
    ip = pod["addresses"][0]
    address = ip_port(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
    return Endpoint(address, str((pod.get("targetRef") or {}).get("uid") or ""))


def _name(slice_: Slice) -> str:
    return str(slice_["metadata"]["name"])


def _text(port: Mapping[str, Any]) -> str:
    name = port.get("name")
    return f"{name} ({port.get('port')})" if name else str(port.get("port"))
