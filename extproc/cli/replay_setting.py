"""What a replay is played with: configurations, engines, baselines, from the command line's words."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extproc.config.load import ConfigError, load
from extproc.config.model import Config
from extproc.config.scheduling import Pool
from extproc.core.model import PoolPolicy, Traffic
from extproc.core.recording import Header, Names
from extproc.sim import shapes, ways
from extproc.sim.engine import EngineOptions
from extproc.sim.jobs import Job
from extproc.sim.scene import Engines, Lag
from extproc.sim.ways import Way

_LAG = Lag(0.06, 0.11)  # of a metrics page, as measured on a real vLLM
ENGINES = {
    "small": Engines(shapes.E1, lag=_LAG),
    "e3": Engines(shapes.E3, lag=_LAG),
    "e8": Engines(shapes.E8, lag=_LAG),
    "e70": Engines(shapes.E70, lag=_LAG),
    "real": Engines(shapes.REAL, lag=shapes.REAL_LAG, way_in=shapes.REAL_WAY_IN),
}
BASELINES = {
    "direct": ways.DIRECT_FIFO,
    "direct-priority": ways.DIRECT_PRIORITY,
    "gateway-fifo": ways.GATEWAY_FIFO,
    "round-robin": ways.ROUND_ROBIN,
    "threshold": ways.THRESHOLD,
    "first": ways.FIRST,
    "saturation": ways.SATURATION,
}

_WHOLE = ("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_blocks", "kv_tokens", "prefix_cache_tokens")
_SECONDS = ("step_base", "step_per_seq", "step_per_prefill_token", "step_per_context_token")


class SettingError(ValueError):
    """Something on the command line cannot be used. The message has the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration that is played."""

    label: str
    policy: PoolPolicy  # for tenants as they stand in the trace
    default: Callable[[str], str]  # tenant -> class of requests that name none, or one that is not to be had
    allowed: Callable[[str], frozenset[str]]  # tenant -> classes that it may use
    engines: int | None = None  # that it names; None: it names none

    def place(self, jobs: Sequence[Job]) -> tuple[list[Job], list[str]]:
        """The jobs in the classes in which they would wait, and notes about those that asked in vain."""
        moved: Counter[str] = Counter()
        placed = []
        for job in jobs:
            cls = job.cls
            if not cls or cls not in self.allowed(job.tenant):
                if cls:
                    moved[cls] += 1
                cls = self.default(job.tenant)
            placed.append(job if cls == job.cls else dataclasses.replace(job, cls=cls))
        return placed, [
            f"{self.label}: {count} requests asked for the class {name!r}, which their tenants may not use there, and "
            "are played in their default"
            for name, count in sorted(moved.items())
        ]


def pool_of(config: Config, name: str | None, header: Header | None) -> Pool:
    """The named pool, else the recording's where the configuration has it, else the first. Raises SettingError."""
    pools = {pool.name: pool for pool in config.pools}
    if name is not None:
        if name not in pools:
            raise SettingError(f"--pool {name}: the configuration has no such pool; it has {', '.join(pools)}")
        return pools[name]
    return pools.get(header.pool if header is not None else "", config.pools[0])


def from_file(path: Path, label: str, pool_name: str | None, header: Header | None) -> Setting:
    """Raises ConfigError, SettingError."""
    config = load(path)
    pool = pool_of(config, pool_name, header)
    names = header.names if header is not None else Names()
    plain = {names.tenant(tenant): tenant for tenant in config.tenants}

    def allowed(tenant: str) -> frozenset[str]:
        own = config.tenant(plain.get(tenant, tenant)).classes
        return frozenset(config.classes if own is None else own)

    def default(tenant: str) -> str:
        name = config.tenant(plain.get(tenant, tenant)).default_class or config.default_class
        may_use = allowed(tenant)
        return name if name in may_use else next(cls for cls in config.classes if cls in may_use)

    policy = dataclasses.replace(config.pool_policy(pool), shared=False)  # there are no other replicas here
    return Setting(label, names.policy(policy), default, allowed, len(pool.endpoints.known))


def from_recording(header: Header) -> Setting:
    """The policy that was in force when it began. A pause or a drain at that moment is not played: it would be for
    ever. Nor are other replicas."""
    policy = dataclasses.replace(header.policy, traffic=Traffic.OPEN, shared=False)
    classes = policy.classes
    return Setting("as recorded", policy, lambda _: classes[0].name, lambda _: frozenset(c.name for c in classes))


def settings(
    config: Path | None, compare: Sequence[Path], pool_name: str | None, header: Header | None
) -> list[Setting]:
    """The one that others are compared with first. Raises ConfigError, SettingError."""
    found = []
    paths = [path for path in (config, *compare) if path is not None]
    if header is not None and config is None:
        found.append(from_recording(header))
    elif config is None:
        try:
            found.append(from_file(Path("fairlane.yaml"), "fairlane.yaml", pool_name, header))
        except ConfigError as error:
            raise ConfigError(f"{error}\nName the configuration with --config") from error
    short = [path.name for path in paths]
    for path in paths:
        label = path.name if short.count(path.name) == 1 else str(path)
        if label in [setting.label for setting in found]:
            label = f"{path} (again)" if str(path) == label else str(path)
        found.append(from_file(path, label, pool_name, header))
    return found


def engine_kind(text: str) -> Engines:
    """Of "e8,max_num_seqs=256": one such engine, and how it is seen. Raises SettingError."""
    first, *rest = text.split(",")
    if "=" in first:
        first, rest = "small", [first, *rest]
    base = ENGINES.get(first.strip().lower())
    if base is None:
        raise SettingError(f"--engine {first}: there is no such engine; there are {', '.join(ENGINES)}")
    changes: dict[str, Any] = {}
    for part in rest:
        key, _, value = (word.strip() for word in part.partition("="))
        changes[key] = _engine_value(key, value)
    cache_tokens = changes.pop("prefix_cache_tokens", 0)
    if "kv_tokens" in changes:
        changes["kv_blocks"] = changes.pop("kv_tokens") // max(1, changes.get("block_size", base.options.block_size))
    try:
        options = dataclasses.replace(base.options, **changes)
    except ValueError as error:
        raise SettingError(f"--engine {text}: {error}") from error
    return dataclasses.replace(base, options=options, prefix_cache_tokens=max(0, cache_tokens))


def _engine_value(key: str, value: str) -> int | float:
    try:
        if key in _WHOLE:
            return int(value)
        if key in _SECONDS:
            return float(value)
    except ValueError:
        kind = "a whole number" if key in _WHOLE else "seconds, as in 0.022"
        raise SettingError(f"--engine: {key} is {value!r}; it must be {kind}") from None
    raise SettingError(f"--engine: there is no {key!r}; there are {', '.join((*_WHOLE, *_SECONDS))}")


def baselines(text: str) -> list[Way]:
    """Of "direct,round-robin,fixed-32". Raises SettingError."""
    found: dict[str, Way] = {}
    for word in filter(None, (word.strip().lower() for word in text.split(","))):
        fixed = re.fullmatch(r"fixed-([1-9][0-9]{0,5})", word)
        if word == "all":
            found |= BASELINES
        elif fixed:
            found[word] = ways.fixed(int(fixed[1]))
        elif word in BASELINES:
            found[word] = BASELINES[word]
        else:
            raise SettingError(f"--baseline {word}: there is none; there are {', '.join(BASELINES)}, fixed-N, all")
    return list(found.values())


def fits(job: Job, options: EngineOptions) -> bool:
    """Whether the KV cache could ever hold it."""
    return job.prompt + job.output <= options.kv_tokens
