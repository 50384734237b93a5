"""Which pool a request belongs to, by the name of the model in it.

A name is looked up among the models, aliases and adapters of all pools; then among the adapters that are given by how
their names begin ("team-*"), the longest first; then it belongs to the pool that takes all ("*"). A name stands for one
thing: two pools that serve it, or a pool that has it twice, are a mistake.

An alias is told to the engine as another name, which is appended to the JSON body: of equal names the last counts.
Readers that are made by serde (Rust) refuse a body that names a member they know twice, so TGI and Dynamo cannot have
aliases; nor can vLLM behind its Rust frontend (VLLM_USE_RUST_FRONTEND), of which the configuration knows nothing. And
nothing can be appended to a form, so `gate` refuses an alias there.

Left out: patterns for models and aliases. Who serves whatever is asked for says `models: ["*"]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.config.scheduling import ALL, Pool

LONGEST_NAME = 256  # characters of an adapter's name that is found by how it begins; clients write it
_REFUSES_TWICE = frozenset({"tgi", "dynamo"})
_MODEL, _ALIAS, _ADAPTER = "a model", "an alias", "an adapter"


@dataclass(frozen=True, slots=True)
class Match:
    pool: Pool
    adapter: str | None = None  # LoRA adapter that the request asks for
    rewritten: str | None = None  # what the engine is told as its model; None: what the client said


class Served:
    """The names that pools serve."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        """Raises ValueError, with the text that its user is to read, for names that cannot be."""
        pools = list(pools)
        self._exact: dict[str, Match] = {}
        self._patterns: list[tuple[str, Pool]] = []  # how names of adapters begin, the longest first
        kinds: dict[str, tuple[str, str]] = {}  # name -> kind and pool
        for pool in pools:
            for kind, names in ((_MODEL, pool.models), (_ALIAS, pool.aliases), (_ADAPTER, pool.adapters)):
                for name in dict.fromkeys(names):
                    _check(pool, kind, name)
                    known = kinds.setdefault(name, (kind, pool.name))
                    if known != (kind, pool.name):
                        raise ValueError(_twice(name, known, (kind, pool.name)))
            self._exact |= {name: Match(pool) for name in pool.models}
            self._exact |= {name: Match(pool, name) for name in pool.adapters if not name.endswith(ALL)}
            self._patterns += [(name[: -len(ALL)], pool) for name in pool.adapters if name.endswith(ALL)]
        self._patterns.sort(key=lambda each: -len(each[0]))
        # Last, since what stands for an adapter is one of that adapter's requests.
        for pool in pools:
            self._exact |= {alias: Match(pool, self._adapter(name, pool), name) for alias, name in pool.aliases.items()}
        self._all = self._exact.pop(ALL, None)
        self._unnamed = self._all or (Match(pools[0]) if len(pools) == 1 else None)

    def of(self, model: str | None) -> Match | None:
        """Where a request for `model` belongs; None: no pool serves it. One that names no model belongs to the pool
        that takes all, or to the only one: engines have a default model too."""
        if model is None:
            return self._unnamed
        found = self._exact.get(model)
        if found is not None:
            return found
        if self._patterns and len(model) <= LONGEST_NAME:
            for start, pool in self._patterns:
                if model.startswith(start):
                    return Match(pool, model)
        return self._all

    def _adapter(self, name: str, pool: Pool) -> str | None:
        """`name`, if it is one of the pool's adapters."""
        known = name in pool.adapters or any(name.startswith(s) for s, other in self._patterns if other is pool)
        return name if known else None


def _check(pool: Pool, kind: str, name: str) -> None:
    if kind == _ALIAS:
        target = pool.aliases[name]
        if target in pool.aliases:
            raise ValueError(
                f"pools: {pool.name}: the alias {name!r} stands for {target!r}, which is an alias itself; name what "
                "the engine serves"
            )
        if ALL in name:
            raise ValueError(
                f"pools: {pool.name}: the alias {name!r} must be one name, without *; models: ['*'] takes whatever is "
                "asked for"
            )
        if pool.engine in _REFUSES_TWICE:
            raise ValueError(
                f"pools: {pool.name}: aliases cannot be had with engine {pool.engine}: the name is appended to the "
                "body, and that engine refuses a body with two members `model`; give the model that name in the engine"
            )
    if kind == _ADAPTER and (name == ALL or ALL in name[:-1]):
        raise ValueError(
            f"pools: {pool.name}: the adapter {name!r} must be a name, or the beginning of names and one * behind it, "
            "like team-*"
        )


def _twice(name: str, one: tuple[str, str], other: tuple[str, str]) -> str:
    if one[0] == other[0] == _MODEL:
        return f"pools: model {name!r} is served by both {one[1]} and {other[1]}"
    return f"pools: {name!r} is {one[0]} of {one[1]} and {other[0]} of {other[1]}; a name can stand for one thing"
