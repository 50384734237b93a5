"""The section `cluster` of `fairlane.yaml`: whether this process is one of several, and by which store they meet.

What several processes do is in docs/operations.md, "Several replicas". Whether the files that are named here can be
used is found out when the store is asked: the machine that checks a configuration need not have the secrets.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from extproc.config.metrics import FileName
from extproc.config.section import Section
from extproc.config.units import UNIX, ListenAddress, Seconds, shown, written_duration

Mode = Literal["single", "standby", "partition", "shared"]

_ID = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_SERVER_NAME = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9.:_-]{0,252})", re.ASCII)
_MOST_ADDRESSES = 64
_EXCHANGES_IN_A_LEASE = 3  # so that one that is late, and one that fails, cost no lease
_PERIODS = (0.05, 2.0)
_TIMEOUTS = (0.05, 5.0)
_LEASES = (1.0, 60.0)


class StoreTls(Section):
    """Files are PEM. They are read again for each connection."""

    ca: FileName | None = None  # of those that may vouch for the store; None: whom the system trusts
    certificate: FileName | None = None  # ours, with those between it and its CA, where the store asks for one
    key: FileName | None = None  # of `certificate`, not encrypted
    name: str | None = None  # that the store's certificate must carry; None: the host of the address

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _SERVER_NAME.fullmatch(value):
            raise ValueError(f"{shown(value)} must be a host's name as it stands in a certificate, like store.internal")
        return value

    @model_validator(mode="after")
    def _together(self) -> StoreTls:
        if (self.certificate is None) != (self.key is None):
            given, other = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{given} is given without {other}; TLS needs both, or neither")
        return self


class Store(Section):
    """Valkey or Redis, 6.2 or later."""

    addresses: Annotated[list[ListenAddress], Field(min_length=1, max_length=_MOST_ADDRESSES)]
    kind: Literal["single", "sentinel", "cluster"] = "single"
    sentinel_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None  # of the service that they watch
    database: Annotated[int, Field(ge=0, le=65_535)] = 0
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None  # None: the store's default one
    password_file: FileName | None = None  # read again for each connection
    sentinel_password_file: FileName | None = None  # of the Sentinels themselves
    tls: StoreTls | None = None  # None: plain text

    @field_validator("addresses")
    @classmethod
    def _distinct(cls, value: list[str]) -> list[str]:
        twice = next((address for address, count in Counter(value).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} stands there twice")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Store:
        socket = next((address for address in self.addresses if address.startswith(UNIX)), None)
        if self.kind == "single" and len(self.addresses) > 1:
            raise ValueError(
                f"kind single has one address, and there are {len(self.addresses)}: which of them holds what the "
                "replicas share? Say kind: sentinel or kind: cluster, or name one"
            )
        if socket is not None and self.kind != "single":
            raise ValueError(f"{socket} is a socket of this machine, which no {self.kind} is: give host:port")
        if socket is not None and self.tls is not None:
            raise ValueError(
                f"tls is given, but {socket} is a socket of this machine: leave tls out, or give host:port"
            )
        if self.kind == "sentinel" and self.sentinel_name is None:
            raise ValueError("kind sentinel needs sentinel_name: the name by which the Sentinels know the service")
        if self.kind != "sentinel":
            for key in ("sentinel_name", "sentinel_password_file"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} means nothing with kind {self.kind}: leave it out, or say kind: sentinel")
        if self.kind == "cluster" and self.database != 0:
            raise ValueError(f"kind cluster has no database but 0, and {self.database} is given")
        if self.username is not None and self.password_file is None:
            raise ValueError("username is given without password_file; a login needs both, or the password alone")
        return self


class Cluster(Section):
    mode: Mode = "single"
    name: str = "fairlane"  # several clusters may use one store
    replica: str | None = None  # this process, as no other of the cluster; None: made of the host's name at each start
    replicas: Annotated[int, Field(ge=1, le=64)] = 2  # how many there should be
    period: Seconds = 0.1
    timeout: Seconds = 0.5
    lease: Seconds = 3.0
    store: Store | None = None

    @field_validator("name", "replica")
    @classmethod
    def _is_an_id(cls, value: str | None) -> str | None:
        if value is not None and not _ID.fullmatch(value):
            raise ValueError(f"{shown(value)} must be letters, digits, '.', '_' or '-', and at most 63 of them")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        for key, (least, most) in (("period", _PERIODS), ("timeout", _TIMEOUTS), ("lease", _LEASES)):
            if not least <= getattr(self, key) <= most:
                raise ValueError(
                    f"{key} must be from {written_duration(least)} to {written_duration(most)}, "
                    f"not {written_duration(getattr(self, key))}"
                )
        if self.lease < _EXCHANGES_IN_A_LEASE * self.period:
            raise ValueError(
                f"lease is {written_duration(self.lease)}, and must be {_EXCHANGES_IN_A_LEASE} periods at least "
                f"({written_duration(_EXCHANGES_IN_A_LEASE * self.period)}): one late exchange would count as the end "
                "of a replica. Take a longer lease, or a shorter period"
            )
        if self.lease <= 2 * self.timeout:
            raise ValueError(
                f"lease is {written_duration(self.lease)}, and must be longer than two timeouts "
                f"({written_duration(2 * self.timeout)}): one slow exchange would count as the end of a replica. Take "
                "a longer lease, or a shorter timeout"
            )
        if self.store is None and self.mode in ("standby", "shared"):
            what = (
                "who is active is agreed" if self.mode == "standby" else "the replicas tell each other what they have"
            )
            raise ValueError(
                f"mode {self.mode} needs a store, by which {what}: name a Valkey or Redis, like "
                "store: {addresses: [127.0.0.1:6379]}; or take mode partition, which needs none"
            )
        return self
