"""What is read at a scrape, and where. All of it is called on the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from extproc.core.fairness import Fairness
from extproc.core.priority import PriorityWay
from extproc.core.view import PoolView


@dataclass(frozen=True, slots=True)
class ScrapeStats:
    """What one endpoint's scraper has done, as far as metrics tell."""

    pool: str
    endpoint: str
    dialect: str
    scrapes: int
    failures: Mapping[str, int]  # by kind
    last_duration_s: float
    way: PriorityWay
    last_failure: str | None = None  # cause and cure, where the last page could not be read


@dataclass(frozen=True, slots=True)
class EndpointSetStats:
    """Where one pool's endpoints come from, as far as metrics tell."""

    pool: str
    endpoints: int
    failures: int
    age_s: float | None  # since it was last known to be right; None: never yet
    last_error: str | None = None  # cause and cure, where it could not be read at last


@dataclass(frozen=True, slots=True)
class ConfigurationStats:
    """What the service runs by, as far as metrics tell."""

    revision: int
    overrides: int  # settings of the overlay
    file_good: bool  # False: the file as it is now cannot be used, and the one before it goes on
    state_read_only: bool  # nothing can be changed live
    expiries_failed: int  # temporary settings that are over, and could not be undone
    outcomes: Mapping[str, int]  # of changes and attempts
    loaded_at: float | None = None  # Unix time at which the file in force was read; None: there is no file


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """What this replica knows of the others, as far as metrics tell."""

    mode: str
    name: str
    replica: str
    expected: int
    active: bool = True  # False: it stands by
    standby_streams: int = 0  # that came all the same
    store_used: bool = False  # False: what follows says nothing
    replicas: int = 1
    lost: bool = False
    in_use: bool = False
    other_versions: int = 0
    exchange_age_s: float | None = None  # None: there was no answer
    exchanges: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)  # by kind
    bad_messages: int = 0
    bytes_told: int = 0
    bytes_read: int = 0


def _no_cluster() -> ClusterStats | None:
    return None


def _no_configuration() -> ConfigurationStats | None:
    return None


def _nothing_held(_pool: str, _tenant: str) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Sources:
    pools: Callable[[], Iterable[PoolView]] = tuple
    scrapers: Callable[[], Iterable[ScrapeStats]] = tuple
    sets: Callable[[], Iterable[EndpointSetStats]] = tuple
    open_streams: Callable[[], int] = int
    observers: Callable[[], Iterable[PoolView]] = tuple  # of what passes, and is not held
    configuration: Callable[[], ConfigurationStats | None] = _no_configuration
    fairness: Callable[[], Mapping[str, Mapping[str, Fairness]]] = dict  # by pool and class, of the last minute
    objectives: Callable[[], Mapping[str, float]] = dict  # class -> seconds that its requests should wait at most
    leaked: Callable[[], Mapping[str, int]] = dict  # by pool
    modes: Callable[[], Mapping[str, str]] = dict  # by pool
    held_of: Callable[[str, str], int] = _nothing_held  # of a pool and a tenant
    page_watchers: Callable[[], int] = int  # live pages that are open
    cluster: Callable[[], ClusterStats | None] = _no_cluster
    certificates: Callable[[], Mapping[str, float | None]] = dict  # port -> Unix time at which its own expires
