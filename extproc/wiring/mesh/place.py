"""Names of what a user has already, in whose configuration Fairlane is put."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.wiring.parts import Address


@dataclass(frozen=True, slots=True)
class Place:
    """What a form has no use for, it does not look at.

    name       of the objects that are made
    namespace  of the gateway, in which they are made
    gateway    its name
    selector   labels of the gateway's pods; none: it is a Gateway of the Gateway API, found by its name
    host       that clients use for the engines, as the gateway knows it
    port       at which the gateway takes their requests
    listener   name of its listener (Gateway API)
    engines    the engines' service, in full (service.namespace.svc.cluster.local), and its port
    fairlane   Fairlane's service, in the same way; None: the addresses in `Addresses.ext_proc`
    folder     in which Envoy finds the files of the form xds
    """

    name: str = "fairlane"
    namespace: str = "istio-ingress"
    gateway: str = "llm"
    selector: tuple[tuple[str, str], ...] = ()
    host: str = "llm.example.com"
    port: int = 80
    listener: str = "http"
    engines: Address = ("vllm.llm.svc.cluster.local", 8000)
    fairlane: Address | None = None
    folder: str = "/etc/envoy/xds"
