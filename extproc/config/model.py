"""What may stand in `fairlane.yaml`. Every key has a default but `pools`; see the file of that name at
the root of the project for all of them with comments."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from extproc.config.units import Bytes, HostPort, IpPort, Seconds
from extproc.core.model import ClassPolicy, CostWeights, PoolPolicy, TenantPolicy, WindowPolicy

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
# Envoy gives up on a silent processor after 3600 s at most (ext_proc message_timeout).
_LONGEST_HOLD_S = 3500.0
_ALL = "*"

Share = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Bytestring = Annotated[str, Field(min_length=1, max_length=256)]


class Section(BaseModel):
    """A part of the file: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object) -> object:
        if isinstance(value, bool):
            # pydantic would take it for 1 or 0
            raise ValueError(
                "no key here is a switch; YAML reads yes, no, on and off as such: quote them if they are names"
            )
        return value


class Listen(Section):
    ext_proc: HostPort = "127.0.0.1:50051"
    admin: HostPort = "127.0.0.1:50052"
    http: HostPort = "127.0.0.1:9090"

    @model_validator(mode="after")
    def _distinct(self) -> Listen:
        seen: dict[str, str] = {}
        for name in ("ext_proc", "admin", "http"):
            other = seen.setdefault(getattr(self, name), name)
            if other != name:
                raise ValueError(f"{other} and {name} are both {getattr(self, name)}; each needs a port of its own")
        return self


class ClaimSource(Section):
    """A value that a filter of Envoy wrote into dynamic metadata. Clients cannot write there."""

    namespace: Bytestring = "envoy.filters.http.jwt_authn"
    path: Annotated[list[Bytestring], Field(min_length=1, max_length=8)]


class ApiKeySource(Section):
    """A bearer token, looked up by its SHA-256. The key itself is never stored, logged or passed on."""

    header: Bytestring = "authorization"
    sha256: Annotated[dict[str, Bytestring], Field(min_length=1)]  # hex digest -> name

    @field_validator("sha256")
    @classmethod
    def _digests(cls, value: dict[str, str]) -> dict[str, str]:
        for digest in value:
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise ValueError(
                    f"{digest[:8]!r}... is no SHA-256 in lower-case hex; make it with: printf %s KEY | sha256sum"
                )
        return value


class Source(Section):
    """Where a name comes from: exactly one of these."""

    metadata: ClaimSource | None = None
    api_key: ApiKeySource | None = None
    header: Bytestring | None = None  # trusted: your Envoy must set it or strip it

    @model_validator(mode="after")
    def _one(self) -> Source:
        given = [name for name in ("metadata", "api_key", "header") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a source is one of metadata, api_key or header, not {given or 'nothing'}")
        if self.header is not None and self.header.lower().startswith(("x-fairlane-", "x-vllm-", ":")):
            raise ValueError(f"{self.header!r} cannot be a source: Fairlane writes it, or Envoy strips it")
        return self


class Identity(Section):
    """Sources in order of trust; the first that gives a value wins."""

    tenant: list[Source] = [Source(header="x-tenant")]
    request_class: list[Source] = Field(default=[Source(header="x-class")], alias="class")
    anonymous: Bytestring = "anonymous"  # the tenant of requests without any


class Class(Section):
    rank: Annotated[int, Field(ge=0, le=1000)]
    priority: Annotated[int, Field(ge=-(2**53), le=2**53)]
    queue_timeout: Seconds = 60.0
    max_waiting: Annotated[int, Field(ge=0, le=1000)] = 3
    max_queued: Count = 10_000
    max_in_flight: Count | None = None
    min_share: Share = 0.0

    @field_validator("queue_timeout")
    @classmethod
    def _within_envoy(cls, value: float) -> float:
        if not 0 < value <= _LONGEST_HOLD_S:
            raise ValueError(f"must be above 0 and at most {_LONGEST_HOLD_S:g}s: Envoy holds no request for longer")
        return value


class Tenant(Section):
    weight: Positive = 1.0
    max_queued: Count = 1_000
    max_queued_bytes: Bytes = 512 * 1024**2
    max_in_flight: Count | None = None
    default_class: str | None = None  # of requests that name none
    classes: list[str] | None = None  # that it may use; none given: all

    @field_validator("weight")
    @classmethod
    def _sane(cls, value: float) -> float:
        if not 1e-6 <= value <= 1e6 or math.isnan(value):
            raise ValueError("must be between 0.000001 and 1000000")
        return value


class Metrics(Section):
    interval: Seconds = 0.25
    idle_interval: Seconds = 2.0
    timeout: Seconds = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Metrics:
        if not 0.02 <= self.interval <= self.idle_interval:
            raise ValueError("interval must be at least 20ms and no longer than idle_interval")
        if not 0 < self.timeout <= 30:
            raise ValueError("timeout must be above 0 and at most 30s")
        return self


class Window(Section):
    start: Annotated[float, Field(ge=1, le=4096)] = 8.0
    max_tpot: Seconds = 0.150
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] = 0.95
    overtake: Annotated[int, Field(ge=0, le=4)] = 1

    @field_validator("max_tpot")
    @classmethod
    def _some_time(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("must be above 0: no engine makes a token in no time")
        return value


class Cost(Section):
    prompt: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    cached: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0

    @model_validator(mode="after")
    def _something(self) -> Cost:
        if self.prompt + self.output <= 0:
            raise ValueError("prompt or output must be above 0, or nothing would cost anything")
        return self


class Pool(Section):
    name: str
    models: Annotated[list[Bytestring], Field(min_length=1)]
    endpoints: Annotated[list[IpPort], Field(min_length=1)]
    engine: Literal["auto", "vllm", "llamacpp"] = "auto"
    metrics: Metrics = Metrics()
    window: Window = Window()
    cost: Cost = Cost()
    max_queued: Count = 20_000
    max_queued_bytes: Bytes = 2 * 1024**3

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"{value!r} must be letters, digits, '.', '_' or '-', and at most 63 of them")
        return value

    @field_validator("endpoints")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        twice = {e for e in value if value.count(e) > 1}
        if twice:
            raise ValueError(f"named twice: {', '.join(sorted(twice))}")
        return value


class Requests(Section):
    """What becomes of requests that cannot be read or placed. `pass`: they are forwarded as they came;
    those that might run on an engine all the same wait their turn like any other."""

    malformed: Literal["pass", "reject"] = "pass"
    unknown_model: Literal["pass", "reject"] = "pass"
    max_body: Bytes = 32 * 1024**2


class Shutdown(Section):
    grace: Seconds = 30.0  # for answers under way


class Config(Section):
    listen: Listen = Listen()
    identity: Identity = Identity()
    classes: dict[str, Class] = Field(default_factory=lambda: dict(_CLASSES))
    default_class: str = "default"
    tenants: dict[str, Tenant] = {}
    pools: Annotated[list[Pool], Field(min_length=1)]
    requests: Requests = Requests()
    on_fault: Literal["pass", "reject"] = "pass"
    shutdown: Shutdown = Shutdown()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if not self.classes:
            raise ValueError("classes: at least one is needed")
        for name in self.classes:
            if not _NAME.match(name):
                raise ValueError(f"classes: the name {name!r} must be letters, digits, '.', '_' or '-'")
        ranks: dict[int, str] = {}
        for name, cls in self.classes.items():
            other = ranks.setdefault(cls.rank, name)
            if other != name:
                raise ValueError(f"classes: {other} and {name} both have rank {cls.rank}; each needs its own")
        if sum(cls.min_share for cls in self.classes.values()) > 1:
            raise ValueError("classes: the min_share of all classes together must not exceed 1")
        self._known_class("default_class", self.default_class)
        for tenant, policy in self.tenants.items():
            for name in [*(policy.classes or []), *([policy.default_class] if policy.default_class else [])]:
                self._known_class(f"tenants: {tenant}", name)
            if policy.classes is not None and not policy.classes:
                raise ValueError(f"tenants: {tenant}: classes must name at least one, or be left out for all")
            if policy.default_class and policy.classes and policy.default_class not in policy.classes:
                raise ValueError(
                    f"tenants: {tenant}: its default_class {policy.default_class!r} is not among its classes"
                )
        names = [pool.name for pool in self.pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"pools: two are named {name!r}")
        models: dict[str, str] = {}
        for pool in self.pools:
            for model in pool.models:
                other = models.setdefault(model, pool.name)
                if other != pool.name:
                    raise ValueError(f"pools: model {model!r} is served by both {other} and {pool.name}")
        return self

    def _known_class(self, where: str, name: str) -> None:
        if name not in self.classes:
            raise ValueError(f"{where}: there is no class {name!r}; there are {', '.join(self.classes)}")

    def tenant(self, name: str) -> Tenant:
        """The settings of a tenant: its own, else those of "*", else the defaults."""
        return self.tenants.get(name) or self.tenants.get(_ALL) or _DEFAULT_TENANT

    def pool_of(self, model: str | None) -> Pool | None:
        """The pool that serves `model`; None: no pool does. A request that names no model belongs to
        the pool that takes all models, or to the only one: engines have a default model too."""
        everything = next((pool for pool in self.pools if _ALL in pool.models), None)
        if model is None:
            return everything or (self.pools[0] if len(self.pools) == 1 else None)
        return next((pool for pool in self.pools if model in pool.models), everything)

    def pool_policy(self, pool: Pool) -> PoolPolicy:
        """What the core is told about `pool`."""
        default = self.tenants.get(_ALL) or _DEFAULT_TENANT
        return PoolPolicy(
            name=pool.name,
            classes=tuple(
                ClassPolicy(
                    name=name,
                    rank=c.rank,
                    priority_base=c.priority,
                    queue_timeout_s=c.queue_timeout,
                    max_waiting=c.max_waiting,
                    max_queued=c.max_queued,
                    max_in_flight=c.max_in_flight,
                    min_share=c.min_share,
                )
                for name, c in self.classes.items()
            ),
            tenants={name: _tenant_policy(t) for name, t in self.tenants.items() if name != _ALL},
            default_tenant=_tenant_policy(default),
            weights=CostWeights(prompt=pool.cost.prompt, cached=pool.cost.cached, output=pool.cost.output),
            window=WindowPolicy(
                start=pool.window.start,
                max_tpot_s=pool.window.max_tpot,
                max_kv_usage=pool.window.max_kv_usage,
                overtake=pool.window.overtake,
                scrape_interval_s=pool.metrics.interval,
                idle_scrape_interval_s=pool.metrics.idle_interval,
                first_scrape_grace_s=pool.metrics.timeout + 1.0,
            ),
            max_queued=pool.max_queued,
            max_queued_bytes=pool.max_queued_bytes,
        )


_DEFAULT_TENANT = Tenant()
_CLASSES: dict[str, Class] = {
    "interactive": Class(rank=0, priority=0),
    "default": Class.model_validate({"rank": 1, "priority": 1_000_000, "queue_timeout": "5m"}),
    "batch": Class.model_validate(
        {"rank": 2, "priority": 2_000_000, "queue_timeout": "3500s", "max_waiting": 0, "min_share": 0.02}
    ),
}


def _tenant_policy(tenant: Tenant) -> TenantPolicy:
    return TenantPolicy(
        weight=tenant.weight,
        max_queued=tenant.max_queued,
        max_queued_bytes=tenant.max_queued_bytes,
        max_in_flight=tenant.max_in_flight,
    )
