"""How an engine's metrics page is read.

Whatever is wrong with the words of the file is said here; whether the files that it names can be used is found out at
the start, by `engines.access`, since the machine that checks a configuration need not have the secrets.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from extproc.config.section import Section
from extproc.config.units import Seconds

_PATH = re.compile(r"/[!-~]*", re.ASCII)
_SERVER_NAME = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9.:_-]{0,252})", re.ASCII)

FileName = Annotated[str, Field(min_length=1, max_length=4096)]


class Tls(Section):
    """Files are PEM. They are read again when they change."""

    ca: FileName | None = None  # certificates of those that may vouch for an engine; None: whom the system trusts
    certificate: FileName | None = None  # ours, with those between it and its CA, where engines ask for one
    key: FileName | None = None  # of `certificate`, not encrypted
    server_name: str | None = None  # that the engine's certificate must carry; None: the endpoint's IP
    insecure_skip_verify: bool = False  # whoever answers is believed to be the engine; said at each start

    @field_validator("server_name")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _SERVER_NAME.fullmatch(value):
            raise ValueError(f"{value!r} must be a host's name as it stands in a certificate, like engines.internal")
        return value

    @model_validator(mode="after")
    def _together(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            given, other = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{given} is given without {other}; TLS needs both, or neither")
        if self.insecure_skip_verify and self.ca is not None:
            raise ValueError("ca says whom to believe, insecure_skip_verify to believe anybody: give only one")
        return self


class Metrics(Section):
    interval: Seconds = 0.25
    # Below the 5 s after which the HTTP servers of vLLM and llama.cpp close a connection that is not used.
    idle_interval: Seconds = 4.0
    timeout: Seconds = 1.0
    scheme: Literal["http", "https"] = "http"
    path: str | None = None  # None: the engine's own, mostly /metrics
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # None: the endpoint's
    tls: Tls | None = None  # only with https
    token_file: FileName | None = None  # of a bearer token; read again when it changes

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.startswith("/"):
            raise ValueError(f"{value!r} must begin with a slash, like /metrics")
        if not _PATH.fullmatch(value) or "?" in value or "#" in value:
            raise ValueError(f"{value!r} must be a path alone, in ASCII, without white space, ? and #")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Metrics:
        if not 0.02 <= self.interval <= self.idle_interval:
            raise ValueError("interval must be at least 20ms and no longer than idle_interval")
        if not 0 < self.timeout <= 30:
            raise ValueError("timeout must be above 0 and at most 30s")
        if self.tls is not None and self.scheme != "https":
            raise ValueError("tls is given, but the page is read over http; write scheme: https, or leave tls out")
        return self
