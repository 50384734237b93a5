"""What a configuration can say, and its author hardly means.

Nothing here is an error: there are reasons to let a lower class go where a higher one may not. But a threshold that is
looser for the lower class, or a number that the engine runs first, turns the order of the classes round for whoever
meets it, and that shows only under load.

A class is compared with the higher class that has the strictest value, so there is one warning for each key at most.

Likewise an objective that no request can miss, since it is refused before; and a state of a pool, or a recording, that
is for requests that wait, where none does.

Left out: caps (`max_in_flight`, rates), which are there to hold a class while others go.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config.faults import Fault, path_text
from extproc.config.model import Config
from extproc.config.scheduling import Class, ClassGates
from extproc.config.units import written_duration

_DURATIONS = frozenset({"max_tpot", "max_ttft"})


def cautions(config: Config) -> list[Fault]:
    """Warnings that follow from the configuration alone, by class in order of rank."""
    classes = sorted(config.classes.items(), key=lambda item: item[1].rank)
    steps = [pool.priority_steps for pool in config.pools if pool.priority_via != "off"]
    found: list[Fault] = []
    strictest: dict[str, tuple[float, str]] = {}  # of the classes so far: the smallest limit of a kind, and whose it is
    first: tuple[int, str] | None = None  # of the classes so far: the largest priority, and whose it is
    idle: str | None = None  # of the classes so far: one that goes only to idle engines
    for name, cls in classes:
        found += _looser(name, cls, strictest)
        if idle is not None and cls.when != "idle":
            found.append(_fault(name, ("when",), idle, "always", "idle"))
        if first is not None and steps and cls.priority < first[0] + max(steps):
            found.append(_priority(name, cls, first, max(steps)))
        for key, limit in _limits(cls).items():
            if limit is not None and (key not in strictest or limit < strictest[key][0]):
                strictest[key] = (limit, name)
        if first is None or cls.priority > first[0]:
            first = (cls.priority, name)
        if idle is None and cls.when == "idle":
            idle = name
    return [*found, *_objectives(config), *_passing(config)]


def _objectives(config: Config) -> Iterator[Fault]:
    for name, cls in config.classes.items():
        objective, timeout = cls.wait_objective, cls.queue_timeout
        if objective is not None and objective >= timeout:
            told = f"is {written_duration(objective)}, and what waits is refused after {written_duration(timeout)}"
            yield Fault(path_text(("classes", name, "wait_objective")), f"{told} (queue_timeout)")


def _passing(config: Config) -> Iterator[Fault]:
    """What is meant for requests that wait, where they pass."""
    for pool in config.pools:
        if pool.mode != "enforce" and pool.traffic != "open":
            told = f"is {pool.traffic}, and holds nothing up while its mode is {pool.mode}: requests pass"
            yield Fault(path_text(("pools", pool.name, "traffic")), told)
    if config.recording.file is not None and all(pool.mode != "enforce" for pool in config.pools):
        yield Fault("recording.file", "records what waits its turn, and no pool is in mode enforce")


def _limits(cls: Class) -> dict[str, float | None]:
    """By the key; None: there is none."""
    gates = {f"gates.{key}": getattr(cls.gates, key) for key in ClassGates.model_fields}
    return {"max_waiting": cls.max_waiting, **gates}


def _looser(name: str, cls: Class, strictest: dict[str, tuple[float, str]]) -> Iterator[Fault]:
    for key, limit in _limits(cls).items():
        if cls.when == "idle" and key.endswith("max_waiting"):
            continue  # it waits until nothing waits there, whatever its limit
        if key in strictest:
            least, whose = strictest[key]
            if limit is None or limit > least:
                yield _fault(name, tuple(key.split(".")), whose, _told(key, limit), _told(key, least))


def _priority(name: str, cls: Class, first: tuple[int, str], steps: int) -> Fault:
    base, whose = first
    if cls.priority < base:
        return _fault(name, ("priority",), whose, f"{cls.priority}", f"{base}; engines run the lower number first")
    return _fault(
        name,
        ("priority",),
        whose,
        f"{cls.priority}",
        f"{base}; a tenant's numbers go up by as many as {steps - 1} (priority_steps), so bases belong {steps} apart",
    )


def _fault(name: str, key: tuple[str, ...], whose: str, own: str, other: str) -> Fault:
    return Fault(
        path_text(("classes", name, *key)),
        f"lets class {name} pass class {whose}, which goes first: {own} against {other}",
    )


def _told(key: str, limit: float | None) -> str:
    if limit is None:
        return "none"
    return written_duration(limit) if key.rpartition(".")[2] in _DURATIONS else f"{limit:g}"
