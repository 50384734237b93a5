"""What the admin API needs of the running service. `service` implements it; nothing here knows how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from extproc.config.model import Config
from extproc.config.scheduling import Pool
from extproc.core.fairness import Fairness
from extproc.core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class RunningPool:
    """One pool at work. The schedulers are to be read only."""

    pool: Pool  # its configuration in force
    scheduler: Scheduler
    observed: Scheduler | None  # of requests that passed as they came, and what would have become of them
    retiring: bool  # no longer configured: it goes on until what it has is done
    now: Callable[[], float]  # the schedulers' clock, seconds
    cancel: Callable[[str, str], None]  # (request id, message for its client); one that is not known is ignored
    leaked: Callable[[], int] = int  # slots that no stream holds
    objectives: Mapping[str, float] = field(default_factory=dict)  # class -> seconds that it may wait, where it says
    fairness: Mapping[str, Fairness] = field(default_factory=dict)  # by class, where tenants compete
    observed_fairness: Mapping[str, Fairness] = field(default_factory=dict)  # likewise, of what is observed

    @property
    def would_be(self) -> RunningPool | None:
        """The pool as it would be if its requests waited, where it only observes them."""
        if self.observed is None or self.pool.mode != "observe":
            return None
        return replace(self, scheduler=self.observed, observed=None, leaked=int, fairness=self.observed_fairness)


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is known of an endpoint beside its window."""

    pool: str
    endpoint: str
    dialect: str
    priority_told: str  # "header", "body", "both" or "none"
    last_failure: str | None


@dataclass(frozen=True, slots=True)
class SourceState:
    """Where a pool's endpoints come from."""

    pool: str
    told: str
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RecordingState:
    active: bool
    files: tuple[str, ...]
    stopped_by_error: bool


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica of the cluster, as it told of itself."""

    replica: str
    age_s: float  # since it was heard of last
    version: str = ""
    revision: int = 0  # of its configuration, counted by itself
    cluster_revision: int = 0  # of the live changes that all share; 0: none
    refused: str = ""  # why the newest of these cannot be in force there
    mode: str = ""  # its `cluster.mode`; empty: it has not said


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster, as this replica sees it."""

    mode: str  # as configured
    name: str
    replica: str  # this process
    expected: int
    active: bool = True  # False: another one is, of mode standby
    active_replica: str = ""  # by the store, of mode standby
    store_used: bool = False  # False: the replicas know nothing of each other
    lost_s: float | None = None  # since when the store has not answered; None: it does
    error: str = ""  # cause and cure of the last failure
    exchange_age_s: float | None = None  # since the last answer
    exchanges: int = 0
    failures: int = 0
    replicas: tuple[ReplicaState, ...] = ()  # that live, this one first
    in_use: bool = False  # another process has this one's id
    other_versions: tuple[str, ...] = ()


class Control(Protocol):
    """The running service. To be called from its event loop."""

    @property
    def serving(self) -> bool:
        """False while it drains."""

    @property
    def started_at(self) -> float:
        """Seconds since 1970."""

    def check(self, config: Config) -> None:
        """Whether what runs could go by `config`, as far as can be said without reading the files that it names. To be
        called from a thread: with many tenants it takes a while. Raises ConfigError with the faults."""

    async def prepare(self, config: Config) -> Callable[[], None]:
        """Make ready to run by `config`: everything that can fail is done here (files of keys and certificates are
        read), and nothing of it is in force.

        The result puts it in force, whole, within one turn of the event loop; it does not raise. To be called before
        anything else is prepared, or not at all. Raises ConfigError with the faults, for what cannot be while it
        runs."""

    def running(self) -> Sequence[RunningPool]:
        """Pools by the order of the configuration, retiring ones last."""

    def engines(self) -> Sequence[EngineState]: ...

    def sources(self) -> Sequence[SourceState]: ...

    def recording(self) -> RecordingState: ...

    def cluster(self) -> ClusterState | None:
        """None: this process is the only one, and asks no store."""

    def ticket_of(self, x_request_id: str) -> str | None:
        """Id of the request that Envoy or its client calls `x_request_id`. None: not known; "": several have it."""
