"""The parts of the file that the scheduler is told: classes, tenants, pools."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, WithJsonSchema, field_validator, model_validator

from extproc.config.endpoints import Endpoints
from extproc.config.metrics import Metrics
from extproc.config.names import name_fault
from extproc.config.section import Section
from extproc.config.units import Bytes, Seconds, shown
from extproc.core.model import (
    MAX_DEPTH,
    ClassPolicy,
    Controller,
    CostWeights,
    Gates,
    Order,
    Outage,
    Overflow,
    PickPolicy,
    PoolPolicy,
    TenantPolicy,
    Traffic,
    Unit,
    WindowPolicy,
)
from extproc.core.model import Pick as PickBy

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
# the same for `json_schema`
NAME_TEXT: dict[str, JsonValue] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"}
ALL = "*"
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110's token, in lower case
# Envoy gives up on a silent processor after 3600 s at most (ext_proc message_timeout).
_LONGEST_HOLD_S = 3500.0
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6

Share = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, le=1e12, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]  # cost units
Price = Annotated[float, Field(ge=0.0, le=1e4, allow_inf_nan=False)]  # cost units of a token
Count = Annotated[int, Field(ge=1)]
Bytestring = Annotated[str, Field(min_length=1, max_length=256)]


class ClassGates(Section):
    """Beyond these signals of an engine the class sends it nothing."""

    max_waiting: Count | None = None
    max_tpot: Seconds | None = None
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] | None = None
    max_ttft: Seconds | None = None


class Class(Section):
    rank: Annotated[int, Field(ge=0, le=1000)]
    priority: Annotated[int, Field(ge=-(2**53), le=2**53)]
    queue_timeout: Seconds = 60.0
    max_waiting: Annotated[int, Field(ge=0, le=1000)] = 3
    max_queued: Count = 10_000
    max_queued_bytes: Bytes | None = None
    max_queued_tokens: Count | None = None
    max_in_flight: Count | None = None
    min_share: Share = 0.0
    overflow: Literal["shed_heaviest", "reject_newest"] = "shed_heaviest"
    order: Literal["fifo", "shortest_first", "deadline"] = "fifo"
    promote_after: Seconds | None = None
    headroom: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    when: Literal["always", "idle"] = "always"
    hopeless: Literal["wait", "refuse"] = "wait"
    gates: ClassGates = ClassGates()
    preemptible: bool = False
    preempt_after: Seconds | None = None
    wait_objective: Seconds | None = None  # for metrics and alerts alone: nothing is scheduled by it

    @field_validator("queue_timeout")
    @classmethod
    def _within_envoy(cls, value: float) -> float:
        if not 0 < value <= _LONGEST_HOLD_S:
            raise ValueError(f"must be above 0 and at most {_LONGEST_HOLD_S:g}s: Envoy holds no request for longer")
        return value

    def policy(self, name: str) -> ClassPolicy:
        """What the core is told."""
        gates = self.gates
        return ClassPolicy(
            name=name,
            rank=self.rank,
            priority_base=self.priority,
            queue_timeout_s=self.queue_timeout,
            max_waiting=self.max_waiting,
            max_queued=self.max_queued,
            max_in_flight=self.max_in_flight,
            min_share=self.min_share,
            max_queued_bytes=self.max_queued_bytes,
            max_queued_tokens=self.max_queued_tokens,
            overflow=Overflow(self.overflow),
            order=Order(self.order),
            promote_after_s=self.promote_after,
            headroom=self.headroom,
            idle_only=self.when == "idle",
            gates=Gates(gates.max_waiting, gates.max_tpot, gates.max_kv_usage, gates.max_ttft),
            fail_fast=self.hopeless == "refuse",
            preemptible=self.preemptible,
            preempt_after_s=self.preempt_after,
        )


class Tenant(Section):
    """A tenant, or a node above tenants where their names have levels."""

    weight: Positive = 1.0
    boost: Positive = 1.0  # times its weight: for a while, by an operator
    max_queued: Count = 1_000
    max_queued_bytes: Bytes = 512 * 1024**2
    max_queued_tokens: Count | None = None
    max_in_flight: Count | None = None
    rate: Positive | None = None  # cost units a second
    rate_burst: NotNegative = 0.0  # cost units
    burst: NotNegative = 0.0  # cost units
    parent: str | None = None
    default_class: str | None = None  # of requests that name none
    classes: list[str] | None = None  # that it may use; none given: all

    @field_validator("parent")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and (fault := name_fault(value)):
            raise ValueError(f"the name {shown(value)} {fault}")
        return value

    @field_validator("weight", "boost")
    @classmethod
    def _sane(cls, value: float) -> float:
        if not _LEAST_WEIGHT <= value <= _MOST_WEIGHT or math.isnan(value):
            raise ValueError("must be between 0.000001 and 1000000")
        return value

    @model_validator(mode="after")
    def _of_each_other(self) -> Tenant:
        if self.rate_burst and self.rate is None:
            raise ValueError("rate_burst means nothing without a rate")
        if not _LEAST_WEIGHT <= self.weight * self.boost <= _MOST_WEIGHT:
            raise ValueError(
                f"weight times boost must be between 0.000001 and 1000000, and is {self.weight * self.boost:g}"
            )
        return self

    def policy(self) -> TenantPolicy:
        """What the core is told."""
        return TenantPolicy(
            weight=self.weight * self.boost,
            max_queued=self.max_queued,
            max_queued_bytes=self.max_queued_bytes,
            max_in_flight=self.max_in_flight,
            max_queued_tokens=self.max_queued_tokens,
            burst=self.burst,
            rate=self.rate,
            rate_burst=self.rate_burst,
            parent=self.parent,
        )


class Window(Section):
    controller: Literal["adaptive", "first", "threshold", "fixed"] = "adaptive"
    start: Annotated[float, Field(ge=1, le=4096)] = 8.0
    max_tpot: Seconds = 0.150
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] = 0.95
    overtake: Annotated[int, Field(ge=0, le=4)] = 1
    outage: Literal["degrade", "hold", "open"] = "degrade"
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    threshold: Count = 3
    fixed: Count = 32
    stalled_after: Seconds | None = 30.0

    @field_validator("stalled_after")
    @classmethod
    def _some_pages(cls, value: float | None) -> float | None:
        if value is not None and value < 0.1:
            raise ValueError("must be at least 100ms, or null for never")
        return value

    @field_validator("max_tpot")
    @classmethod
    def _some_time(cls, value: float) -> float:
        if value < 0.001:
            raise ValueError("must be at least 1ms: no engine makes a token in less")
        return value


class Cost(Section):
    unit: Literal["tokens", "requests", "time"] = "tokens"
    prompt: Price = 1.0
    cached: Price = 0.1
    output: Price = 2.0

    @model_validator(mode="after")
    def _something(self) -> Cost:
        if self.prompt + self.output <= 0:
            raise ValueError("prompt or output must be above 0, or nothing would cost anything")
        return self


class Preemption(Section):
    """How requests of preemptible classes are evicted."""

    per_second: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] = 1.0  # at most
    after_first_byte: bool = False  # also what has begun to answer, or may have


Weight = Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)]


class Pick(Section):
    """How an endpoint is chosen; the numbers weigh scores of 0 to 1."""

    by: Literal["fairlane", "envoy"] = "fairlane"
    load: Weight = 1.0
    prefix: Weight = 0.5
    adapter: Weight = 1.0
    session: Weight = 0.5
    kv_usage: Weight = 0.25


class Pool(Section):
    name: Annotated[str, WithJsonSchema(NAME_TEXT, mode="validation")]
    models: Annotated[list[Bytestring], Field(min_length=1)]
    aliases: dict[Bytestring, Bytestring] = Field(default_factory=dict)  # name in requests -> what the engine is told
    adapters: list[Bytestring] = Field(default_factory=list)  # LoRA adapters; "x*": all whose names begin with x
    endpoints: Endpoints
    engine: Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "tensorrt_llm", "triton", "dynamo"] = "auto"
    # How the engine is told a request's priority: by X-Vllm-Priority, by the member `priority` of the body, or not.
    priority_via: Literal["auto", "header", "body", "both", "off"] = "auto"
    priority_order: Literal["auto", "low_first", "high_first"] = "auto"  # which one runs first in the engine
    pick: Pick = Pick()
    session_header: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    no_endpoint_timeout: Seconds = 300.0
    metrics: Metrics = Metrics()
    window: Window = Window()
    cost: Cost = Cost()
    max_queued: Count = 20_000
    max_queued_bytes: Bytes = 2 * 1024**3
    promote_every: Annotated[int, Field(ge=2)] = 8
    priority_steps: Annotated[int, Field(ge=1, le=1000)] = 4
    prefix_slack: NotNegative = 0.0
    preemption: Preemption = Preemption()
    # enforce: requests wait their turn. observe: they pass as they came, and it is reported what would have become of
    # them. off: they pass.
    mode: Literal["enforce", "observe", "off"] = "enforce"
    # For how many of the tenants (or requests) the mode holds; for the others it is the next weaker one.
    percentage: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 100.0
    percentage_of: Literal["tenants", "requests"] = "tenants"
    # paused: nothing is released, what comes waits. draining: nothing more is taken in, what waits gets its turn.
    traffic: Literal["open", "paused", "draining"] = "open"

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not NAME.match(value):
            raise ValueError(f"{value!r} must be letters, digits, '.', '_' or '-', and at most 63 of them")
        return value

    @field_validator("session_header")
    @classmethod
    def _reaches_fairlane(cls, value: str | None) -> str | None:
        if value is None:
            return None
        name = value.lower()
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{value!r} is no name of a header")
        if name.startswith(("x-fairlane-", "x-vllm-")) or name in ("cookie", "proxy-authorization"):
            raise ValueError(f"{value!r} does not reach Fairlane: Envoy takes it out")
        return name

    @property
    def high_first(self) -> bool:
        """Whether its engines run the highest number first, as far as the file knows."""
        return self.priority_order == "high_first" or (self.priority_order == "auto" and self.engine == "sglang")

    @property
    def tells_in_body(self) -> bool:
        """Whether its engines are told priorities in the body, as far as the file knows. What `auto` finds out of a
        running engine (vLLM before 0.28) it finds too late for Envoy, whose configuration says whether bodies are
        edited."""
        return self.priority_via in ("body", "both") or (self.priority_via == "auto" and self.engine == "sglang")

    def policy(
        self, classes: Mapping[str, Class], tenants: Mapping[str, Tenant], default: Tenant, separator: str | None
    ) -> PoolPolicy:
        """What the core is told. `default`: the tenant of those that `tenants` does not name."""
        window, cost, pick = self.window, self.cost, self.pick
        return PoolPolicy(
            name=self.name,
            classes=tuple(each.policy(name) for name, each in classes.items()),
            tenants={name: tenant.policy() for name, tenant in tenants.items() if name != ALL},
            default_tenant=default.policy(),
            weights=CostWeights(prompt=cost.prompt, cached=cost.cached, output=cost.output),
            window=WindowPolicy(
                start=window.start,
                max_tpot_s=window.max_tpot,
                max_kv_usage=window.max_kv_usage,
                overtake=window.overtake,
                scrape_interval_s=self.metrics.interval,
                idle_scrape_interval_s=self.metrics.idle_interval,
                first_scrape_grace_s=self.metrics.timeout + 1.0,
                controller=Controller(window.controller),
                outage=Outage(window.outage),
                max_num_seqs=window.max_num_seqs,
                threshold=window.threshold,
                fixed=window.fixed,
                # Progress shows from page to page.
                stalled_after_s=None
                if window.stalled_after is None
                else max(window.stalled_after, 4 * self.metrics.interval),
            ),
            max_queued=self.max_queued,
            max_queued_bytes=self.max_queued_bytes,
            unit=Unit(cost.unit),
            separator=separator,
            promote_every=self.promote_every,
            priority_steps=self.priority_steps,
            prefix_slack=self.prefix_slack,
            preempt_per_s=self.preemption.per_second,
            preempt_after_first_byte=self.preemption.after_first_byte,
            pick=PickPolicy(
                by=PickBy(pick.by),
                load=pick.load,
                prefix=pick.prefix,
                adapter=pick.adapter,
                session=pick.session,
                kv_usage=pick.kv_usage,
            ),
            no_endpoint_timeout_s=self.no_endpoint_timeout,
            traffic=Traffic(self.traffic),
        )


def check_tree(tenants: Mapping[str, Tenant], separator: str | None) -> None:
    """Raise ValueError where `parent`s run in a circle, or deeper than the tree may be."""
    for name, tenant in tenants.items():
        if tenant.parent is not None and (name == ALL or name.endswith((separator or "/") + ALL)):
            raise ValueError(f"tenants: {name}: a parent can be given to one name, not to all that match")
        path = [name]
        while (parent := _parent(path[-1], tenants, separator)) is not None:
            if parent in path:
                raise ValueError(f"tenants: {' -> '.join([*path, parent])}: the parents run in a circle")
            path.append(parent)
        if len(path) > MAX_DEPTH:
            raise ValueError(f"tenants: {' -> '.join(path)}: {len(path)} levels, and there may be {MAX_DEPTH}")


def _parent(name: str, tenants: Mapping[str, Tenant], separator: str | None) -> str | None:
    own = tenants.get(name)
    if own is not None and own.parent is not None:
        return own.parent
    if separator is None or separator not in name:
        return None
    return name.rpartition(separator)[0] or None
