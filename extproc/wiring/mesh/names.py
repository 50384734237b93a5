"""Which names Kubernetes and the Gateway API take, so that a wrong one is refused here and not by the cluster later.

    label      of a namespace: RFC 1123, 63 characters of a-z, 0-9 and "-"
    subdomain  of most objects, of a Gateway's listener and in DNS: labels with dots between, 253 characters
    hostname   of a Gateway API route: a subdomain, or "*." and one; no address
    selector   of pods: [subdomain/]NAME=VALUE, where NAME and VALUE have 63 characters, upper case and "_" too

Each raises ValueError with what was expected.
"""

from __future__ import annotations

import re

from extproc.config.units import shown
from extproc.wiring.parts import is_ip

_LONGEST = 253
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LABEL = re.compile(_PART)
_SUBDOMAIN = re.compile(rf"{_PART}(?:\.{_PART})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(
            f"{shown(text)} is no name that Kubernetes takes here: 1 to 63 of a-z, 0-9 and -, and no - at its ends"
        )
    return text


def subdomain(text: str) -> str:
    if not _is_subdomain(text):
        raise ValueError(
            f"{shown(text)} is no name that Kubernetes takes here: a-z, 0-9, - and dots, with a letter or digit at the "
            f"ends of each part, {_LONGEST} characters at most"
        )
    return text


def service(host: str) -> str:
    """The name of a Service in the cluster's DNS."""
    if is_ip(host) or not _is_subdomain(host.lower().removesuffix(".")):
        raise ValueError(f"{shown(host)} is no name of a Service; give it in full, as service.namespace.svc")
    return host


def hostname(text: str) -> str:
    if is_ip(text) or not _is_subdomain(text.removeprefix("*.")):
        raise ValueError(
            f"{shown(text)} is no hostname that the Gateway API takes: llm.example.com, or *.example.com, in lower "
            "case, and no address"
        )
    return text


def istio_host(text: str) -> str:
    """Of a Gateway of Istio, which takes addresses and any host, too."""
    if text != "*" and not (is_ip(text) and ":" not in text) and not _is_subdomain(text.lower().removeprefix("*.")):
        raise ValueError(
            f"{shown(text)} is no host that Istio takes: llm.example.com, *.example.com, an IPv4 address, or *"
        )
    return text


def selector(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(f"expected LABEL=VALUE, got {shown(text)}")
    prefix, slash, own = name.rpartition("/")
    if (slash and not _is_subdomain(prefix)) or not _QUALIFIED.fullmatch(own) or not _QUALIFIED.fullmatch(value):
        raise ValueError(
            f"{shown(text)} is no label that Kubernetes takes: [prefix/]LABEL=VALUE, each of the two 1 to 63 of "
            "letters, digits, -, _ and dots, with a letter or digit at its ends, and the prefix a name in DNS"
        )
    return name, value


def _is_subdomain(text: str) -> bool:
    return len(text) <= _LONGEST and _SUBDOMAIN.fullmatch(text) is not None
