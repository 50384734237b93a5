"""What can be chosen about Envoy's side, and what cannot be chosen together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from extproc.config.cluster import Mode
from extproc.config.requests import QUEUED_PATHS

Profile = Literal["standard", "strict", "body", "duplex"]
Usage = Literal["access_log", "stream", "estimate"]
Facts = Literal["json", "lua", "none"]
Pick = Literal["fairlane", "envoy", "mixed"]
Spread = Literal["requests", "model"]

OLDEST, NEWEST = 36, 40
"""Minor versions of Envoy 1.x for which configurations are made and tested."""

LONGEST_PATH = 80
"""Bytes of a queued path."""

_VERSION = re.compile(r"v?1\.(\d{1,3})(?:\.\d{1,3})?")


class WiringError(Exception):
    """What was asked for cannot be. The message names cause and cure."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """One way to put Envoy before Fairlane. Raises WiringError for choices that exclude each other.

    profile           standard: the body stays in Envoy, a request passes when Fairlane is away.
                      strict: the same, but a request that was not scheduled is refused.
                      body: the body comes to Fairlane in one piece, after the request was released.
                      duplex: it comes in pieces, before the request is queued.
    usage             access_log: Envoy reads token counts out of the answer.
                      stream: the answer goes through Fairlane, which reads them.
                      estimate: nobody does.
    facts             json: Envoy reads model and lengths out of the body.
                      lua: and a filter in Lua the text's length, images and prefixes.
                      none: only Fairlane looks into the body (profiles body and duplex).
                      None: json, except in the profile duplex.
    envoy             minor version: 40 for 1.40
    append            a filter in Lua appends `priority`, and what else Fairlane asks for, to the JSON body
                      (profiles standard and strict; in the others Fairlane does that itself)
    first_byte        Fairlane is shown the answer's headers, so that it knows what it may still preempt
    queued            paths; `*/x` is /x below any prefix
    max_body          bytes; more is 413
    default_priority  what an engine is told about requests that pass unscheduled; None: no header
    unscheduled_priority  the same in the body, where a filter appends; one for all pools; None: nothing
    attributes        that Fairlane is told besides those of the base file: what identifies a client's certificate
    namespaces        of dynamic metadata that it is told: where identity filters leave their claims
    pick              fairlane: Envoy takes the endpoint that Fairlane names; envoy: it balances by itself, and leaves
                      out engines that fail; mixed: the first in some pools, the second in others
    retry_turned_away  Envoy asks another engine when one answers 429 or 503
    mode              what several replicas of Fairlane are to each other: `cluster.mode` of fairlane.yaml
    spread            over several replicas of Fairlane. requests: each to any of them.
                      model: all requests for one model to the same one, so that there is one order for it.
                      None: model in the mode partition, else requests.
    """

    profile: Profile = "standard"
    usage: Usage = "access_log"
    facts: Facts | None = None
    envoy: int = NEWEST
    append: bool = False
    first_byte: bool = False
    queued: tuple[str, ...] = QUEUED_PATHS
    max_body: int = 32 * 1024**2
    default_priority: int | None = 1_000_000
    unscheduled_priority: int | None = None
    attributes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    pick: Pick = "fairlane"
    retry_turned_away: bool = False
    mode: Mode = "single"
    spread: Spread | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("profile", self.profile, get_args(Profile)),
            ("usage", self.usage, get_args(Usage)),
            ("facts", self.facts, (*get_args(Facts), None)),
            ("pick", self.pick, get_args(Pick)),
            ("cluster mode", self.mode, get_args(Mode)),
            ("spread", self.spread, (*get_args(Spread), None)),
        ):
            if value not in known:
                raise WiringError(f"{name}: there is no {value!r}; there are {', '.join(filter(None, known))}")
        if not OLDEST <= self.envoy <= NEWEST:
            raise WiringError(
                f"Envoy 1.{self.envoy}: configurations are made and tested for 1.{OLDEST} to 1.{NEWEST}; "
                "for a later Envoy take the last of these"
            )
        if self.facts == "none" and not self.body_in_fairlane:
            raise WiringError(
                f"facts none: in the profile {self.profile} the body stays in Envoy, so nobody would know the model; "
                "take facts json, or the profile body"
            )
        if self.profile == "duplex" and self.facts in ("json", "lua"):
            raise WiringError(
                f"facts {self.facts}: it would hold the whole body in Envoy before the first piece of it reaches "
                "Fairlane, which is what the profile duplex avoids; leave facts out, or take the profile body"
            )
        if self.spread == "model" and self.mode == "standby":
            raise WiringError(
                "spread model: in the cluster mode standby one replica serves all models, and there is nothing to "
                "spread over; leave spread out, or take the mode partition"
            )
        if self.spread == "requests" and self.mode == "partition":
            raise WiringError(
                "spread requests: in the cluster mode partition each model has one replica, by which alone there is "
                "one order for it; leave spread out, or take the mode shared"
            )
        if self.spread_used == "model" and self.facts_used == "none":
            cure = "take the profile standard, strict or body" if self.profile == "duplex" else "take facts json"
            raise WiringError(
                "spread model: Envoy chooses the replica before it has read the body, since nobody but Fairlane looks "
                f"into that; {cure}, or leave spread out"
            )
        if self.spread_used == "model" and self.envoy <= 36:
            raise WiringError(
                f"spread model: Envoy 1.{self.envoy} cannot choose a replica by a hash (a cluster's hash_policy came "
                "with 1.37); take a later Envoy, or one replica"
            )
        if self.append and self.body_in_fairlane:
            raise WiringError(
                f"append: in the profile {self.profile} Fairlane itself edits the body; leave the Lua filter out"
            )
        if not self.queued:
            raise WiringError("queued: name at least one path, or nothing would reach Fairlane")
        for path in self.queued:
            if len(path.encode()) > LONGEST_PATH:
                raise WiringError(
                    f"queued: {path[:30]!r}... is longer than {LONGEST_PATH} bytes, and Envoy refuses patterns of more "
                    f"than 100 RE2 instructions; write its end as */..."
                )

    @property
    def body_in_fairlane(self) -> bool:
        return self.profile in ("body", "duplex")

    @property
    def facts_used(self) -> Facts:
        """`facts`, or the profile's own."""
        return self.facts or ("none" if self.profile == "duplex" else "json")

    @property
    def spread_used(self) -> Spread:
        """`spread`, or the mode's own."""
        return self.spread or ("model" if self.mode == "partition" else "requests")

    @property
    def oldest_envoy(self) -> int:
        """Minor version of the first Envoy that takes the configuration."""
        if self.envoy <= 36:
            return self.envoy
        return 37 if self.usage != "access_log" else min(self.envoy, 38)

    @property
    def response_headers_sent(self) -> bool:
        """Whether Fairlane sees the answer's headers. What it cannot see in the messages has to be said to it."""
        return self.first_byte or self.usage == "stream"


@dataclass(frozen=True, slots=True)
class FairlaneTls:
    """How Envoy speaks TLS to Fairlane. Paths are those of PEM files as Envoy sees them. Raises WiringError.

    ca           of the authority that has signed Fairlane's certificate
    certificate  that Envoy shows, with its key: needed where Fairlane has a `client_ca`
    name         that must stand in Fairlane's certificate (SAN): a DNS name, an address or a URI; None: the host
                 of its address (one of them, where there are several replicas)
    """

    ca: str
    certificate: str | None = None
    key: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise WiringError("Fairlane's TLS: Envoy's certificate and its key are given together, or neither is")
        if "" in (self.ca, self.certificate, self.key, self.name):
            raise WiringError("Fairlane's TLS: a path or name is empty")


def minor_version(text: str) -> int:
    """40 for `1.40`, `1.40.0` or `v1.40.0`. Raises WiringError."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise WiringError(f"{text!r} is no version of Envoy: expected one like 1.40 or 1.40.0")
    return int(match[1])
