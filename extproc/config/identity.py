"""Where a request's tenant and class come from.

A source is worth as much as whoever writes it. Dynamic metadata is written by Envoy's own filters, a certificate is
checked by Envoy's TLS, a key is a secret; a header is what somebody says, unless Envoy sets it or strips it. So the
sources are a list in order of trust, and the first that gives a name wins. Path and model are the client's choice: they
say how urgent a request is (its tenant's rights still hold), never whose it is, so they are sources of classes alone.

Left out: refusing the unknown. That is Envoy's part (`jwt_authn`, `ext_authz`, `require_client_certificate`); here a
request without a name is anonymous, and has a share like any other tenant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from extproc.config.scheduling import Bytestring
from extproc.config.section import Section
from extproc.core.model import MAX_DEPTH

_DIGEST = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 128  # characters
DIGEST_HINT = "make it with: printf %s KEY | sha256sum"


def usable(name: str) -> str | None:
    """A name without the white space around it; None where it is empty, too long, or has what cannot be printed.
    U+FFFD stands for bytes that were no text, so that names with it could be those of several people."""
    name = name.strip()
    return name if 0 < len(name) <= LONGEST_NAME and name.isprintable() and "\ufffd" not in name else None


def _tenant(name: str) -> str:
    if usable(name) != name:
        raise ValueError(f"a tenant is printable text of at most {LONGEST_NAME} characters, without space around it")
    return name


def is_digest(text: object) -> bool:
    """Whether it is a SHA-256 in lower-case hex."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


TenantName = Annotated[str, AfterValidator(_tenant)]
Digest = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"}, mode="validation")]
Path = Annotated[list[Bytestring], Field(min_length=1, max_length=8)]
Patterns = Annotated[dict[Bytestring, Bytestring], Field(min_length=1, max_length=1000)]


class ClaimSource(Section):
    """A value that a filter of Envoy wrote into dynamic metadata. Clients cannot write there.

    `path` leads to one value, taken as it stands. `paths` lead to the levels of one name, top level first; each is one
    level whatever is in it."""

    namespace: Bytestring = "envoy.filters.http.jwt_authn"
    path: Path | None = None
    paths: Annotated[list[Path], Field(min_length=1, max_length=MAX_DEPTH)] | None = None

    @model_validator(mode="after")
    def _one(self) -> ClaimSource:
        if (self.path is None) == (self.paths is None):
            raise ValueError("give either path, to one value, or paths, to the levels of a name")
        return self

    @property
    def levels(self) -> int:
        return len(self.paths or ())


class CertificateSource(Section):
    """The client's certificate, as Envoy's TLS has read it. Of several names of one kind Envoy tells the first."""

    which: Literal["uri_san", "dns_san", "subject", "sha256"] = "uri_san"
    pattern: Annotated[str, Field(min_length=1, max_length=1000)] | None = None  # must match the whole value

    @field_validator("pattern")
    @classmethod
    def _with_a_group(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                groups = re.compile(value).groups
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from error
            if not 1 <= groups <= MAX_DEPTH:
                raise ValueError(
                    f"{value!r} has {groups} groups; one takes the name out, like spiffe://cluster/ns/([^/]+)/sa/.*, "
                    f"and up to {MAX_DEPTH} its levels"
                )
        return value

    @property
    def levels(self) -> int:
        return 1 if self.pattern is None else re.compile(self.pattern).groups


class ApiKeySource(Section):
    """A bearer token, looked up by its SHA-256. The key itself is never stored, logged or passed on."""

    header: Bytestring = "authorization"
    sha256: Annotated[dict[Digest, TenantName], Field(min_length=1)] | None = None  # hex digest -> name
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # of hex digest -> tenant, class, classes

    @field_validator("sha256", mode="before")
    @classmethod
    def _digests(cls, value: object) -> object:
        """Before anything else reads it: what else is told of this mapping names its keys, and by mistake one of
        them may be a secret."""
        if isinstance(value, dict):
            for number, digest in enumerate(value, 1):
                if not is_digest(digest):
                    raise ValueError(f"entry {number} is no SHA-256 in lower-case hex; {DIGEST_HINT}")
        return value

    @model_validator(mode="after")
    def _one(self) -> ApiKeySource:
        if (self.sha256 is None) == (self.file is None):
            raise ValueError("give either sha256, a mapping of digests to names, or file, the name of a file of them")
        return self


class Source(Section):
    """Where a tenant comes from: exactly one of these."""

    metadata: ClaimSource | None = None
    certificate: CertificateSource | None = None
    api_key: ApiKeySource | None = None
    header: Bytestring | None = None  # trusted: your Envoy must set it or strip it

    @model_validator(mode="after")
    def _one(self) -> Source:
        kinds = list(type(self).model_fields)
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a source is one of {', '.join(kinds[:-1])} or {kinds[-1]}, not {given or 'nothing'}")
        if self.header is not None and self.header.lower().startswith(("x-fairlane-", "x-vllm-", ":")):
            raise ValueError(f"{self.header!r} cannot be a source: Fairlane writes it, or Envoy strips it")
        return self

    @property
    def levels(self) -> int:
        """Of a name that the source puts together; 0: it gives names as they stand."""
        source = self.metadata or self.certificate
        return 0 if source is None else source.levels


class ClassSource(Source):
    """Where a class comes from. Of the patterns that match, the longest counts."""

    path: Patterns | None = None  # "/v1/batches/*", "*/v1/embeddings" or a whole path -> class
    model: Patterns | None = None  # a name, or with * at one end -> class

    @field_validator("path", "model")
    @classmethod
    def _patterns(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for pattern in value or ():
            if "*" in pattern.removeprefix("*").removesuffix("*") or (len(pattern) > 1 and pattern.count("*") > 1):
                raise ValueError(f"{pattern!r}: a * may stand at one end, for anything")
        return value

    @field_validator("path")
    @classmethod
    def _paths(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for pattern in value or ():
            if not pattern.startswith(("/", "*")) or "?" in pattern or "#" in pattern:
                raise ValueError(f"{pattern!r} must be a path such as /v1/embeddings or /v1/batches/*, without a query")
        return value


class Identity(Section):
    """Sources in order of trust; the first that gives a value wins."""

    tenant: list[Source] = Field(default_factory=lambda: [Source(header="x-tenant")])
    request_class: list[ClassSource] = Field(default_factory=lambda: [ClassSource(header="x-class")], alias="class")
    anonymous: TenantName = "anonymous"  # the tenant of requests without any
    separator: Annotated[str, Field(min_length=1, max_length=8)] | None = None  # parts names into levels

    @field_validator("separator")
    @classmethod
    def _can_be_escaped(cls, value: str | None) -> str | None:
        """Inside a level it is written as %2F or the like, which must not have it in turn."""
        if value is not None and any(char.isalnum() or char == "%" or not char.isprintable() for char in value):
            raise ValueError(f"{value!r}: letters, digits and % cannot part names; / can")
        return value

    @model_validator(mode="after")
    def _levels(self) -> Identity:
        if self.separator is None:
            for kind, sources in (("tenant", self.tenant), ("class", self.request_class)):
                for index, source in enumerate(sources):
                    if source.levels > 1:
                        raise ValueError(f"{kind}.{index} gives a name of levels, and there is no identity.separator")
        return self

    @property
    def key_files(self) -> list[str]:
        """Each file of keys that is named, once."""
        sources = [*self.tenant, *self.request_class]
        return list(dict.fromkeys(s.api_key.file for s in sources if s.api_key is not None and s.api_key.file))

    @property
    def headers(self) -> frozenset[str]:
        """Names of the request headers that the sources read, in lower case."""
        sources = [*self.tenant, *self.request_class]
        named = [s.header or (s.api_key.header if s.api_key is not None else None) for s in sources]
        return frozenset(name.lower() for name in named if name)

    def named_classes(self) -> Iterator[tuple[str, str]]:
        """(place, class) of each class that the sources name."""
        for index, source in enumerate(self.request_class):
            inline = source.api_key.sha256 if source.api_key is not None else None
            for kind, names in (("api_key", inline), ("path", source.path), ("model", source.model)):
                for name in dict.fromkeys((names or {}).values()):
                    yield f"identity: class.{index}.{kind}", name
