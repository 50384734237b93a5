"""Who sends a request, and in which class it waits. Sources in order of trust; the first that gives a
name wins; what a tenant may not use is clamped to its default and counted.

The configuration is made into functions once, since this runs for every request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.struct_pb2 import Struct, Value

from extproc.config.identity import ApiKeySource, CertificateSource, ClaimSource, ClassSource, Source, usable
from extproc.config.model import Config
from extproc.edge.facts import Facts
from extproc.edge.key_file import Key, Keys
from extproc.edge.names import joiner, name_of

_LONGEST_KEY = 4096  # characters; a longer one is not worth its hash
_LONGEST_SAN = 1024  # characters that a pattern is tried on
# Of Envoy; they have to be asked for in the filter's request_attributes.
_CERTIFICATE = {
    "uri_san": "connection.uri_san_peer_certificate",
    "dns_san": "connection.dns_san_peer_certificate",
    "subject": "connection.subject_peer_certificate",
    "sha256": "connection.sha256_peer_certificate_digest",
}

_Read = Callable[[Facts], str | Key | None]
_Join = Callable[[Sequence[str | None]], str | None]


@dataclass(slots=True)
class Identity:
    """Not to be changed once made, like `Facts`."""

    tenant: str
    cls: str
    clamped: bool  # it asked for a class that does not exist, or that its tenant or its key may not use


class Identifier:
    """Reads identities by one configuration. `keys`: the files of keys that it names."""

    def __init__(self, config: Config, keys: Keys) -> None:
        join = joiner(config.identity.separator)
        self._config = config
        self._classes = list(config.classes)
        self._tenant = [_reader(source, keys, join) for source in config.identity.tenant]
        self._class = [_reader(source, keys, join) for source in config.identity.request_class]

    def identify(self, facts: Facts) -> Identity:
        """Never raises for what a client can send."""
        config, key = self._config, None
        found = _first(self._tenant, facts)
        if isinstance(found, Key):
            key, tenant = found, found.tenant
        else:
            tenant = found or config.identity.anonymous
        policy = config.tenant(tenant)
        allowed = self._classes if policy.classes is None else policy.classes
        if key is not None and key.classes is not None:
            allowed = [cls for cls in allowed if cls in key.classes]
        default = policy.default_class or config.default_class
        if key is not None and key.cls is not None:
            default = key.cls
        if default not in allowed:
            default = allowed[0]
        asked = _first(self._class, facts)
        if isinstance(asked, Key):
            asked = asked.cls
        if asked is None or asked in allowed:
            return Identity(tenant, asked or default, clamped=False)
        return Identity(tenant, default, clamped=True)


def _first(readers: Sequence[_Read], facts: Facts) -> str | Key | None:
    for read in readers:
        found = read(facts)
        if found is not None:
            return found
    return None


def _reader(source: Source, keys: Keys, join: _Join) -> _Read:
    if source.metadata is not None:
        return _claim(source.metadata, join)
    if source.certificate is not None:
        return _certificate(source.certificate, join)
    if source.api_key is not None:
        return _api_key(source.api_key, keys, of_class=isinstance(source, ClassSource))
    if isinstance(source, ClassSource) and source.path is not None:
        by_path = _matcher(source.path)
        return lambda facts: by_path(facts.path)
    if isinstance(source, ClassSource) and source.model is not None:
        by_model = _matcher(source.model)
        return lambda facts: None if facts.model is None else by_model(facts.model)
    header = (source.header or "").lower()

    def read(facts: Facts) -> str | None:
        value = facts.headers.get(header)
        return None if value is None else usable(value)

    return read


def _claim(source: ClaimSource, join: _Join) -> _Read:
    namespace, path, paths = source.namespace, source.path, source.paths

    def read(facts: Facts) -> str | None:
        metadata = facts.metadata
        if namespace not in metadata:
            return None
        struct = metadata[namespace]
        return join([_at(struct, each) for each in paths]) if path is None and paths is not None else _at(struct, path)

    return read


def _at(struct: Struct, path: Sequence[str] | None) -> str | None:
    """The name at `path` inside nested structs."""
    fields: Mapping[str, Value] = struct.fields
    *parents, last = path or [""]
    for key in parents:
        if key not in fields or fields[key].WhichOneof("kind") != "struct_value":
            return None
        fields = fields[key].struct_value.fields
    return name_of(fields[last]) if last in fields else None


def _certificate(source: CertificateSource, join: _Join) -> _Read:
    attribute = _CERTIFICATE[source.which]
    pattern = re.compile(source.pattern if source.pattern is not None else "(.*)", re.DOTALL)

    def read(facts: Facts) -> str | None:
        if attribute not in facts.attributes:
            return None
        value = facts.attributes[attribute].string_value
        found = pattern.fullmatch(value) if len(value) <= _LONGEST_SAN else None
        return None if found is None else join([usable(level or "") for level in found.groups()])

    return read


def _api_key(source: ApiKeySource, keys: Keys, *, of_class: bool) -> _Read:
    header, names = source.header.lower(), source.sha256 or {}
    file = None if source.file is None else keys.file(source.file)

    def read(facts: Facts) -> str | Key | None:
        digest = _digest(facts.headers.get(header, ""))
        if digest is None:
            return None
        if file is None:
            return names.get(digest)
        key = file.lookup(digest)
        return None if key is None or (of_class and key.cls is None) else key

    return read


def _digest(value: str) -> str | None:
    """Of the key in a header, with or without `Bearer`."""
    scheme, _, token = value.partition(" ")
    secret = token.strip() if scheme.lower() == "bearer" else value
    # No key is nobody, even where the hash of nothing has found its way into the file; and bytes that are no text
    # all look the same by now.
    if not secret or len(secret) > _LONGEST_KEY or "\ufffd" in secret:
        return None
    return hashlib.sha256(secret.encode()).hexdigest()


def _matcher(patterns: Mapping[str, str]) -> Callable[[str], str | None]:
    """By whole text, or by its beginning or end where the pattern has a `*` there; the longest pattern counts."""
    whole = {pattern: name for pattern, name in patterns.items() if "*" not in pattern}
    ends = [
        (pattern[:-1], "", name) if pattern.endswith("*") else ("", pattern[1:], name)
        for pattern, name in sorted(patterns.items(), key=lambda item: len(item[0]), reverse=True)
        if "*" in pattern
    ]

    def match(text: str) -> str | None:
        name = whole.get(text)
        if name is not None or not ends:
            return name
        return next((name for begin, end, name in ends if text.startswith(begin) and text.endswith(end)), None)

    return match
