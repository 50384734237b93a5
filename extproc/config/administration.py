"""The section `admin` of `fairlane.yaml`: who may see and change the running service, and where changes are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from extproc.config.section import Section
from extproc.config.tls import Path, Tls

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")  # each may do what those before it may


class CertificateRole(Section):
    """Which role a client certificate has, by its SAN: a name as it stands, or with * at the end."""

    san: Annotated[str, Field(min_length=1, max_length=512)]
    role: Role

    @field_validator("san")
    @classmethod
    def _pattern(cls, value: str) -> str:
        if "*" in value[:-1]:
            raise ValueError(f"{value!r}: a * may stand at the end, for anything")
        return value


class Administration(Section):
    """Nothing is asked of those who come over loopback or a Unix socket, unless there are tokens or `tls.client_ca`."""

    state: Path | None = None  # file of the overlay, revisions and audit; None: they are gone with the process
    tls: Tls | None = None
    tokens_file: Path | None = None  # SHA-256 of a token: {name: ..., role: ...}
    certificates: list[CertificateRole] = Field(default_factory=list)  # the first that matches counts
    keep_revisions: Annotated[int, Field(ge=10, le=100_000)] = 1000
    keep_audit: Annotated[int, Field(ge=100, le=10_000_000)] = 100_000  # records

    @model_validator(mode="after")
    def _authenticates(self) -> Administration:
        by_certificate = self.tls is not None and self.tls.client_ca is not None
        if self.certificates and not by_certificate:
            raise ValueError("certificates mean nothing without tls.client_ca: nobody shows one")
        if by_certificate and not self.certificates and self.tokens_file is None:
            raise ValueError("with tls.client_ca somebody must have a role: name them in certificates, or tokens_file")
        return self

    @property
    def authenticates(self) -> bool:
        """Whether a caller must show a token or a certificate."""
        return self.tokens_file is not None or (self.tls is not None and self.tls.client_ca is not None)
