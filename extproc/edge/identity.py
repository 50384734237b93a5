"""Who sends a request, and in which class it waits. Sources in order of trust; the first that gives a
value wins; what a tenant may not use is clamped to its default and counted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from extproc.config.model import Config, Source
from extproc.edge.facts import Facts
from extproc.edge.wire import Scalar, descend

_LONGEST = 128  # characters of a name


@dataclass(frozen=True, slots=True)
class Identity:
    tenant: str
    cls: str
    clamped: bool  # it asked for a class that does not exist or that its tenant may not use


def identify(config: Config, facts: Facts) -> Identity:
    tenant = _first(config.identity.tenant, facts) or config.identity.anonymous
    policy = config.tenant(tenant)
    allowed = policy.classes if policy.classes is not None else config.classes
    default = policy.default_class or config.default_class
    if default not in allowed:
        default = next(iter(allowed))
    asked = _first(config.identity.request_class, facts)
    if asked is None:
        return Identity(tenant, default, clamped=False)
    if asked in config.classes and asked in allowed:
        return Identity(tenant, asked, clamped=False)
    return Identity(tenant, default, clamped=True)


def _first(sources: list[Source], facts: Facts) -> str | None:
    for source in sources:
        name = _name(_value(source, facts))
        if name is not None:
            return name
    return None


def _value(source: Source, facts: Facts) -> Scalar:
    if source.header is not None:
        return facts.headers.get(source.header.lower())
    if source.metadata is not None:
        struct = facts.metadata.get(source.metadata.namespace)
        return None if struct is None else descend(struct, source.metadata.path)
    if source.api_key is not None:
        key = facts.headers.get(source.api_key.header.lower(), "")
        scheme, _, token = key.partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else key
        if not secret:
            return None  # no key is nobody, even where the hash of nothing has found its way into the file
        return source.api_key.sha256.get(hashlib.sha256(secret.encode()).hexdigest())
    return None


def _name(value: Scalar) -> str | None:
    """A usable name: printable and not too long. Anything else is no name at all."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        value = str(int(value)) if value.is_integer() else str(value)
    name = value.strip()
    return name if 0 < len(name) <= _LONGEST and name.isprintable() else None
