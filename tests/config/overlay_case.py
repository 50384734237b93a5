"""A file, and patches of it, for tests of the overlay."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from extproc.config.overlay import Overlay, Path

FILE: dict[str, Any] = {
    "pools": [
        {"name": "llama", "models": ["llama-70b"], "endpoints": ["127.0.0.1:8001"], "window": {"max_tpot": "150ms"}},
        {"name": "qwen.v2", "models": ["qwen"], "aliases": {"gpt": "qwen"}, "endpoints": {"file": {"path": "/e"}}},
    ],
    "tenants": {"*": {"weight": 1}, "acme.com": {"weight": 3, "max_queued": 10}},
    "shutdown": {"grace": "30s"},
}


def change(
    overlay: Overlay,
    patch: dict[str, Any],
    mask: list[Path] | None = None,
    *,
    data: dict[str, Any] | None = None,
    revision: int = 1,
    expires_at: float | None = None,
) -> Overlay:
    return overlay.patched(patch, mask, FILE if data is None else data, revision=revision, expires_at=expires_at)


def _some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


_NUMBERS = st.integers(0, 3)
_TENANT = st.none() | _some(weight=_NUMBERS, rate=st.none() | _NUMBERS, classes=st.lists(st.sampled_from("ab")))
_CLASS = st.none() | _some(
    rank=_NUMBERS, priority=_NUMBERS, gates=st.none() | _some(max_waiting=st.none() | _NUMBERS), max_waiting=_NUMBERS
)
_ENDPOINTS = (
    st.lists(st.sampled_from(["127.0.0.1:1", "127.0.0.1:2"]), max_size=2)
    | _some(dns=st.none() | _some(name=st.just("n"), port=_NUMBERS), file=st.none() | st.just("/e"))
)  # fmt: skip
_POOL = st.none() | _some(
    models=st.just(["m"]),
    endpoints=_ENDPOINTS,
    window=_some(start=_NUMBERS, stalled_after=st.none() | st.just("1s")),
    aliases=_some(gpt=st.none() | st.sampled_from("xy"), other=st.none() | st.just("z")),
)
# Names that the file has, and others; whether a configuration would follow does not matter here.
PATCHES = _some(
    tenants=st.dictionaries(st.sampled_from(["*", "acme.com", "new"]), _TENANT, max_size=2),
    classes=st.dictionaries(st.sampled_from(["batch", "new"]), _CLASS, max_size=2),
    pools=st.dictionaries(st.sampled_from(["llama", "qwen.v2", "new"]), _POOL, max_size=2),
    shutdown=_some(grace=st.sampled_from(["1s", "2s"]), held=st.sampled_from(["refuse", "finish"])),
    on_fault=st.sampled_from(["pass", "reject"]),
)
PATHS: st.SearchStrategy[Path] = st.sampled_from(
    [
        ("tenants",),
        ("tenants", "acme.com"),
        ("tenants", "acme.com", "weight"),
        ("tenants", "*", "rate"),
        ("classes",),
        ("classes", "batch"),
        ("classes", "batch", "gates"),
        ("classes", "batch", "max_waiting"),
        ("pools",),
        ("pools", "llama"),
        ("pools", "llama", "endpoints"),
        ("pools", "llama", "endpoints", "dns"),
        ("pools", "llama", "window", "start"),
        ("pools", "qwen.v2", "aliases"),
        ("pools", "qwen.v2", "aliases", "gpt"),
        ("shutdown",),
        ("shutdown", "held"),
        ("on_fault",),
    ]
)
