"""Changes of a configuration by chance, good and bad ones, for what must hold whatever operators do.

Each is a part of the file, as `UpdateConfig` takes it. A good one fits whatever good ones came before it: names are
those of the base that is given, or of tenants and pools that it makes itself, and settings that depend on each other
are set together. A bad one is wrong whatever came before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Change = dict[str, Any]

_CLASSES: Final = ("interactive", "default", "batch")
_TENANTS: Final = ("team-0", "team-1", "team-2", "team-3", "*")
_RANKS: Final = ((0, 1, 2), (2, 1, 0), (5, 3, 4), (1, 0, 7))
_GOOD_DURATIONS: Final = ("60s", "2m", "5m", "50m")


class Changes:
    """Of a stack with one pool. The same seed gives the same changes."""

    def __init__(self, seed: int, pool: str, endpoints: Sequence[str]) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._pool = pool
        self._endpoints = list(endpoints)
        self._settled = {"*"}  # tenants that have settings by now
        self._has_another = False

    def good(self) -> Change:
        return self._random.choice(self._good)(self)

    def bad(self) -> Change:
        return self._random.choice(self._bad)(self)

    def calm(self) -> Change:
        """After it, whatever has been changed, requests get their turn, and there is one pool."""
        change = self._of_pool(traffic="open", mode="enforce", percentage=100)
        if self._has_another:
            change["pools"]["another"] = None
            self._has_another = False
        return change

    # -- good ones --------------------------------------------------------------------------------

    def _of_pool(self, **settings: Any) -> Change:
        return {"pools": {self._pool: settings}}

    def _one_of(self, choices: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        key = self._random.choice(sorted(choices))
        return {key: self._random.choice(choices[key])}

    def _class(self) -> Change:
        settings = self._one_of(
            {
                "queue_timeout": _GOOD_DURATIONS,
                "max_waiting": (0, 1, 3, 10),
                "max_queued": (5_000, 10_000),
                "max_queued_bytes": (None, "1GiB"),
                "max_queued_tokens": (None, 10_000_000),
                "max_in_flight": (None, 4, 16),
                "min_share": (0, 0.02, 0.3),
                "overflow": ("shed_heaviest", "reject_newest"),
                "order": ("fifo", "shortest_first", "deadline"),
                "promote_after": (None, "1s", "1m"),
                "headroom": (None, 0.01, 0.2),
                "when": ("always", "idle"),
                "gates": ({"max_waiting": 5}, {"max_waiting": None}, {"max_kv_usage": 0.9}, {"max_kv_usage": None}),
                "preemptible": (False, True),
            }
        )
        return {"classes": {self._random.choice(_CLASSES): settings}}

    def _ranks(self) -> Change:
        ranks = self._random.choice(_RANKS)
        return {"classes": {name: {"rank": rank} for name, rank in zip(_CLASSES, ranks, strict=True)}}

    def _priorities(self) -> Change:
        return {"classes": {self._random.choice(_CLASSES): {"priority": self._random.randrange(-100, 3_000_000)}}}

    def _tenant(self) -> Change:
        settings = self._one_of(
            {
                "weight": (0.5, 1, 2, 10),
                "boost": (1, 3),
                "max_queued": (1_000, 5_000),
                "max_queued_bytes": ("64MiB", "512MiB"),
                "max_in_flight": (None, 2, 8),
                "burst": (0, 1000),
            }
        )
        return self._of_tenant(settings)

    def _rate(self) -> Change:
        rate = self._random.choice(({"rate": 1e6, "rate_burst": 100}, {"rate": None, "rate_burst": 0}))
        return self._of_tenant(rate)

    def _of_tenant(self, settings: dict[str, Any]) -> Change:
        name = self._random.choice(_TENANTS)
        self._settled.add(name)
        return {"tenants": {name: settings}}

    def _no_tenant(self) -> Change:
        """Its settings are taken away."""
        if not self._settled:
            return self._tenant()
        name = self._random.choice(sorted(self._settled))
        self._settled.remove(name)
        return {"tenants": {name: None}}

    def _window(self) -> Change:
        settings = self._one_of(
            {
                "controller": ("fixed", "adaptive", "threshold", "first"),
                "fixed": (2, 4, 8, 16),
                "start": (1, 8),
                "max_tpot": ("20ms", "150ms", "1s"),
                "max_kv_usage": (0.5, 0.95),
                "overtake": (0, 1, 2),
                "outage": ("degrade", "hold", "open"),
                "max_num_seqs": (None, 4, 16),
                "threshold": (1, 3),
                "stalled_after": (None, "30s"),
            }
        )
        return self._of_pool(window=settings)

    def _limits(self) -> Change:
        return self._of_pool(
            **self._one_of(
                {
                    "max_queued": (5_000, 20_000),
                    "max_queued_bytes": ("1GiB", "2GiB"),
                    "promote_every": (2, 8),
                    "priority_steps": (1, 4),
                    "prefix_slack": (0, 1000),
                    "no_endpoint_timeout": ("2m", "5m"),
                    "session_header": (None, "x-session"),
                    "pick": ({"load": 2}, {"prefix": 0}, {"session": 1, "load": 1}),
                    "cost": ({"prompt": 2}, {"output": 1}, {"prompt": 1, "output": 2}),
                    "preemption": ({"per_second": 1}, {"per_second": 10}),
                    "metrics": ({"interval": "250ms"}, {"interval": "500ms"}),
                }
            )
        )

    def _traffic(self) -> Change:
        # Paused more seldom than opened, so that something flows.
        return self._of_pool(traffic=self._random.choice(("open", "open", "open", "paused")))

    def _mode(self) -> Change:
        mode = self._random.choice(("enforce", "enforce", "observe", "off"))
        return self._of_pool(mode=mode, percentage=self._random.choice((0, 30, 100, 100)),
                             percentage_of=self._random.choice(("tenants", "requests")))  # fmt: skip

    def _engines(self) -> Change:
        count = self._random.randint(1, len(self._endpoints))
        return self._of_pool(endpoints=sorted(self._random.sample(self._endpoints, count)))

    def _another_pool(self) -> Change:
        """It comes, or goes."""
        there = {"models": ["nobody-asks-for-it"], "endpoints": self._endpoints[:1]}
        self._has_another = not self._has_another
        return {"pools": {"another": there if self._has_another else None}}

    def _others(self) -> Change:
        return self._random.choice(
            (
                {"on_fault": "pass"},
                {"on_fault": "reject"},
                {"default_class": "batch"},
                {"default_class": "default"},
                {"shutdown": {"grace": "20s"}},
                {"requests": {"max_buffered": "1GiB"}},
                {"requests": {"unknown_model": "pass"}},
            )
        )

    _good: Final[Sequence[Callable[[Changes], Change]]] = (
        _class, _class, _class, _ranks, _priorities, _tenant, _tenant, _rate, _no_tenant, _window, _window, _limits,
        _limits, _traffic, _mode, _engines, _another_pool, _others,
    )  # fmt: skip

    # -- bad ones ---------------------------------------------------------------------------------

    def _bad_value(self) -> Change:
        return self._random.choice(
            (
                {"tenants": {"team-0": {"weight": 0}}},
                {"tenants": {"team-0": {"weight": -1}}},
                {"tenants": {"team-0": {"weight": float("nan")}}},
                {"tenants": {"team-0": {"weight": float("inf")}}},
                {"tenants": {"team-0": {"max_in_flight": 0}}},
                {"tenants": {"team-0": {"rate": -5}}},
                {"tenants": {"team-0": {"classes": []}}},
                {"classes": {"batch": {"queue_timeout": "-5s"}}},
                {"classes": {"batch": {"queue_timeout": "1000000000s"}}},
                {"classes": {"batch": {"queue_timeout": "soon"}}},
                {"classes": {"batch": {"min_share": 1.5}}},
                {"classes": {"batch": {"max_queued": 0}}},
                {"classes": {"batch": {"max_queued": 1.5}}},
                {"classes": {"batch": {"order": "random"}}},
                {"classes": {"batch": {"rank": -1}}},
                {"classes": {"batch": {"rank": 3}, "default": {"rank": 3}}},
                self._of_pool(window={"max_tpot": "0s"}),
                self._of_pool(window={"fixed": 0}),
                self._of_pool(window={"overtake": 99}),
                self._of_pool(traffic="stopped"),
                self._of_pool(percentage=101),
                self._of_pool(endpoints=[]),
                self._of_pool(endpoints=["nowhere"]),
                self._of_pool(models=[]),
                self._of_pool(pick={"load": -1}),
            )
        )

    def _bad_name(self) -> Change:
        return self._random.choice(
            (
                {"clases": {"batch": {"rank": 1}}},
                {"classes": {"batch": {"rnk": 1}}},
                {"classes": {"bad name": {"rank": 9, "priority": 9}}},
                {"tenants": {"team-1": {"wieght": 1}}},
                {"default_class": "bacth"},
                {"tenants": {"team-1": {"default_class": "bacth"}}},
                self._of_pool(windw={"fixed": 1}),
                {"pools": {"unheard-of": {"window": {"fixed": 2}}}},
                {"": 1},
            )
        )

    def _bad_whole(self) -> Change:
        """Each part by itself would do."""
        return self._random.choice(
            (
                {"classes": {"default": None, "batch": None, "interactive": None}},
                {"pools": {self._pool: None, "another": None}},
                {"tenants": {"team-1": {"parent": "team-2"}, "team-2": {"parent": "team-1"}}},
                {"tenants": {"team-1": {"weight": 3, "max_in_flight": "many"}}, "default_class": "default"},
                {"classes": {"interactive": {"min_share": 0.6}, "default": {"min_share": 0.6}}},
            )
        )

    def _needs_a_restart(self) -> Change:
        return self._random.choice(
            (
                {"listen": {"http": "127.0.0.1:1"}},
                {"admin": {"keep_audit": 12_345}},
                self._of_pool(cost={"unit": "requests"}),
                self._of_pool(pick={"by": "envoy"}),
                {"requests": {"max_body": "1GiB"}},
            )
        )

    _bad: Final[Sequence[Callable[[Changes], Change]]] = (_bad_value, _bad_value, _bad_name, _bad_whole,
                                                          _needs_a_restart)  # fmt: skip
