"""What may stand in `fairlane.yaml`. Every key has a default but `pools`; see the file of that name at
the root of the project for all of them with comments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from extproc.config.administration import Administration
from extproc.config.cluster import Cluster
from extproc.config.identity import Identity
from extproc.config.names import name_fault
from extproc.config.recording import Recording
from extproc.config.requests import Requests
from extproc.config.scheduling import ALL, NAME, NAME_TEXT, Class, Pool, Tenant, check_tree
from extproc.config.schema import meant
from extproc.config.section import Section
from extproc.config.served import Served
from extproc.config.telemetry import Telemetry
from extproc.config.tls import Tls
from extproc.config.units import HostPort, ListenAddress, Seconds, shown
from extproc.core.model import PoolPolicy
from extproc.core.policy_check import check_policy


class Listen(Section):
    ext_proc: HostPort = "127.0.0.1:50051"
    admin: ListenAddress = "127.0.0.1:50052"
    http: HostPort = "127.0.0.1:9090"
    ext_proc_tls: Tls | None = None  # None: plain text. The admin port's is `admin.tls`
    http_tls: Tls | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Listen:
        seen: dict[str, str] = {}
        for name in ("ext_proc", "admin", "http"):
            other = seen.setdefault(getattr(self, name), name)
            if other != name:
                raise ValueError(f"{other} and {name} are both {getattr(self, name)}; each needs a port of its own")
        return self


class Shutdown(Section):
    grace: Seconds = 30.0  # for answers under way
    # What becomes of held requests: they go to another replica at once, unanswered; or they keep their turn here until
    # the grace is over, and then go; or they are refused.
    held: Literal["hand_over", "finish", "refuse"] = "hand_over"


class Config(Section):
    listen: Listen = Listen()
    admin: Administration = Administration()
    identity: Identity = Identity()
    classes: dict[str, Class] = Field(
        default_factory=lambda: dict(_CLASSES), json_schema_extra={"minProperties": 1, "propertyNames": NAME_TEXT}
    )
    default_class: str = "default"
    tenants: dict[str, Tenant] = Field(default_factory=dict)
    pools: Annotated[list[Pool], Field(min_length=1)]
    requests: Requests = Requests()
    on_fault: Literal["pass", "reject"] = "pass"
    shutdown: Shutdown = Shutdown()
    recording: Recording = Recording()
    telemetry: Telemetry = Telemetry()
    cluster: Cluster = Cluster()

    @field_validator("tenants")
    @classmethod
    def _names(cls, value: dict[str, Tenant]) -> dict[str, Tenant]:
        for name in value:
            if fault := name_fault(name):
                raise ValueError(f"the name {shown(name)} {fault}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if not self.classes:
            raise ValueError("classes: at least one is needed")
        for name in self.classes:
            if not NAME.match(name):
                raise ValueError(
                    f"classes: the name {name!r} must be letters, digits, '.', '_' or '-', and at most 63 of them"
                )
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
        for place, name in self.identity.named_classes():
            self._known_class(place, name)
        check_tree(self.tenants, self.identity.separator)
        names = [pool.name for pool in self.pools]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"pools: two are named {twice!r}")
        Served(self.pools)
        self._balanced_together()
        self._places_are_ours()
        for pool in self.pools:
            try:
                check_policy(self.pool_policy(pool))
            except ValueError as error:
                raise ValueError(f"pools: {pool.name}: {error}") from None
        return self

    def _balanced_together(self) -> None:
        """Raises ValueError where Envoy's balancing, which takes any engine of its one cluster, would mix pools up."""
        by_envoy = next((pool for pool in self.pools if pool.pick.by == "envoy"), None)
        if by_envoy is None:
            return
        wanted = _engines(by_envoy)
        for pool in self.pools:
            if _engines(pool) != wanted:
                raise ValueError(
                    f"pools: {by_envoy.name}: pick.by is envoy, and {pool.name} has other endpoints: Envoy balances "
                    "over the engines of all pools, so requests would reach engines that do not have their model. Take "
                    "pick.by fairlane (the default), give all pools the same endpoints, or this pool an Envoy and a "
                    "Fairlane of its own"
                )

    def _places_are_ours(self) -> None:
        """Raises ValueError where replicas are to divide each endpoint's room, and Envoy chooses the endpoint."""
        if self.cluster.mode != "shared":
            return
        for pool in self.pools:
            if pool.pick.by == "envoy":
                raise ValueError(
                    f"pools: {pool.name}: pick.by is envoy, and cluster.mode is shared: the replicas divide the room "
                    "of each endpoint, and with pick.by envoy nobody knows which one a request goes to. Take pick.by "
                    "fairlane (the default), or cluster.mode standby or partition"
                )

    def _known_class(self, where: str, name: str) -> None:
        if name not in self.classes:
            raise ValueError(f"{where}: there is no class {shown(name)}; {meant(name, self.classes, 'there are ')}")

    def tenant(self, name: str) -> Tenant:
        """The settings of a tenant: its own, else those of its siblings ("acme/*"), else of "*", else the defaults."""
        found, separator = self.tenants.get(name), self.identity.separator
        if found is None and separator is not None and separator in name:
            found = self.tenants.get(name.rpartition(separator)[0] + separator + ALL)
        return found or self.tenants.get(ALL) or _DEFAULT_TENANT

    def pool_of(self, model: str | None) -> Pool | None:
        """The pool that serves `model`; None: no pool does. See `Served`, which is for those who ask more than once."""
        match = Served(self.pools).of(model)
        return None if match is None else match.pool

    def pool_policy(self, pool: Pool) -> PoolPolicy:
        """What the core is told about `pool`."""
        default = self.tenants.get(ALL) or _DEFAULT_TENANT
        policy = pool.policy(self.classes, self.tenants, default, self.identity.separator)
        return replace(policy, shared=True) if self.cluster.mode == "shared" else policy


def _engines(pool: Pool) -> tuple[object, ...]:
    """Equal for pools with the same engines."""
    source = pool.endpoints
    return frozenset(source.known), source.dns, source.file, source.kubernetes


_DEFAULT_TENANT = Tenant()
# as a file would have them
DEFAULT_CLASSES: dict[str, dict[str, Any]] = {
    "interactive": {"rank": 0, "priority": 0, "wait_objective": "5s"},
    "default": {"rank": 1, "priority": 1_000_000, "queue_timeout": "5m"},
    "batch": {"rank": 2, "priority": 2_000_000, "queue_timeout": "3500s", "max_waiting": 0, "min_share": 0.02},
}
_CLASSES: dict[str, Class] = {name: Class.model_validate(cls) for name, cls in DEFAULT_CLASSES.items()}
