"""TLS from Envoy to Fairlane.

All that Envoy sends there goes by one cluster or by copies of it: ext_proc's streams, the access log, health checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.wiring.description import FairlaneTls
from extproc.wiring.parts import Address, Data, Parts, is_ip

_SOCKET = "envoy.transport_sockets.tls"
_CONTEXT = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


def transport_socket(tls: FairlaneTls, ext_proc: Sequence[Address]) -> Data:
    """`ext_proc`: the names that a replica may have, where `tls` gives none: one of the authority's other certificates
    will not do."""
    names = _names(tls, ext_proc)
    common: Data = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": ["h2"],  # gRPC's servers may insist on it, and Envoy offers nothing by itself
        "validation_context": {
            "trusted_ca": {"filename": tls.ca},
            "match_typed_subject_alt_names": [_matcher(name) for name in names],
        },
    }
    if tls.certificate is not None and tls.key is not None:
        common["tls_certificates"] = [
            {"certificate_chain": {"filename": tls.certificate}, "private_key": {"filename": tls.key}}
        ]
    config: Data = {"@type": _CONTEXT, "common_tls_context": common}
    if len(names) == 1 and _kind(names[0]) == "DNS":
        config["sni"] = names[0]
    return {"name": _SOCKET, "typed_config": config}


def apply(parts: Parts, tls: FairlaneTls | None, ext_proc: Sequence[Address]) -> list[str]:
    """What is different now. To be done before the cluster is copied."""
    if tls is None:
        return []
    parts.fairlane["transport_socket"] = transport_socket(tls, ext_proc)
    shown = " and shows its own certificate" if tls.certificate is not None else ""
    return [
        f"Envoy speaks TLS to Fairlane (transport_socket of the cluster){shown}. Fairlane's certificate must be for "
        f"{' or '.join(_names(tls, ext_proc))} (SAN). Envoy reads these files once, at its start: to have it take new "
        "ones while it runs, give them to it by SDS."
    ]


def _names(tls: FairlaneTls, ext_proc: Sequence[Address]) -> list[str]:
    return list(dict.fromkeys([tls.name] if tls.name is not None else [host for host, _ in ext_proc]))


def _matcher(name: str) -> Data:
    return {"san_type": _kind(name), "matcher": {"exact": name}}


def _kind(name: str) -> str:
    if is_ip(name):
        return "IP_ADDRESS"
    return "URI" if "://" in name else "DNS"
