"""A configuration as a file would have it, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from config_case import POOL, good
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from extproc.config.load import from_data, load, parse
from extproc.config.scheduling import Tenant
from extproc.config.units import Bytes, Seconds, written_duration, written_size
from extproc.config.written import to_yaml, written, written_part

SHIPPED = Path(__file__).resolve().parents[2] / "fairlane.yaml"
RUN = settings(derandomize=True, deadline=None, max_examples=200)
SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
BYTES: TypeAdapter[int] = TypeAdapter(Bytes)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.25, "250ms"),
        (0.15, "150ms"),
        (0.0015, "0.0015s"),
        (1.0, "1s"),
        (1.5, "1500ms"),
        (90.0, "90s"),
        (300.0, "5m"),
        (3500.0, "3500s"),
        (7200.0, "2h"),
        (1 / 3, "0.3333333333333333s"),
        (1e-7, "0.0000001s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert written_duration(seconds) == text
    assert SECONDS.validate_python(text) == seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1000, "1000B"),
        (1536, "1536B"),
        (2048, "2KiB"),
        (32 * 1024**2, "32MiB"),
        (2**40, "1024GiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert written_size(size) == text
    assert BYTES.validate_python(text) == size


@RUN
@given(st.floats(0.0, 366 * 24 * 3600.0) | st.integers(0, 10**7).map(lambda ms: ms * 0.001))
def test_every_duration_is_read_as_it_was(seconds: float) -> None:
    assert SECONDS.validate_python(written_duration(seconds)) == seconds


@RUN
@given(st.integers(0, 2**50))
def test_every_size_is_read_as_it_was(size: int) -> None:
    assert BYTES.validate_python(written_size(size)) == size


def test_the_shipped_file_says_all_keys_and_so_does_what_is_written() -> None:
    config = load(SHIPPED)
    plain = written(config)
    assert from_data(plain) == config
    assert parse(to_yaml(plain)) == config
    # all that stands there uncommented is there again, in its own words but for the unit of a duration
    data = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    assert plain.keys() == data.keys()
    for section in ("listen", "identity", "requests", "recording", "on_fault", "default_class"):
        assert plain[section] == data[section], section
    (pool,), (said,) = plain["pools"], data["pools"]
    assert pool.keys() - said.keys() <= {"aliases", "adapters"}  # which are empty
    assert said.keys() <= pool.keys()
    assert pool["endpoints"] == ["127.0.0.1:8001", "127.0.0.1:8002"]
    assert pool["max_queued_bytes"] == "2GiB"


def test_defaults_are_written_and_nothing_is_not() -> None:
    plain = written(good())
    assert plain["shutdown"] == {"grace": "30s", "held": "hand_over"}
    assert plain["identity"]["tenant"] == [{"header": "x-tenant"}]
    assert plain["pools"][0]["endpoints"] == ["127.0.0.1:8001"]
    assert plain["pools"][0]["metrics"] == {
        "interval": "250ms",
        "idle_interval": "4s",
        "timeout": "1s",
        "scheme": "http",
    }
    assert plain["classes"]["batch"]["queue_timeout"] == "3500s"
    assert "max_in_flight" not in plain["classes"]["batch"]


def test_nothing_is_written_where_it_is_not_the_default() -> None:
    config = good({"window": {"stalled_after": None}})
    assert written(config)["pools"][0]["window"]["stalled_after"] is None
    assert from_data(written(config)) == config


def test_a_part_has_what_differs_from_its_defaults() -> None:
    tenant = Tenant.model_validate({"weight": 2.0, "max_queued": 1000, "max_queued_bytes": "1GiB", "rate": 7})
    assert written_part(tenant) == {"weight": 2, "max_queued_bytes": "1GiB", "rate": 7}


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


TIMES = st.floats(0.1, 3000.0).map(lambda s: f"{s:.17f}s") | st.integers(1, 50).map(lambda n: f"{n}m")
SIZES = st.integers(1, 2**40).map(lambda n: f"{n}B")
COUNTS = st.integers(1, 10**9)
NAMES = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() and text.strip() == text)
RATIOS = st.floats(0.001, 0.999)
TENANTS = st.dictionaries(
    NAMES,
    some(
        weight=st.floats(1e-3, 1e3),
        boost=st.floats(1e-3, 1e3),
        rate=st.none() | st.floats(1e-3, 1e12),
        max_queued_bytes=SIZES,
        max_in_flight=st.none() | COUNTS,
        classes=st.none() | st.just(["default", "batch"]),
        default_class=st.none() | st.just("batch"),
    ),
    max_size=4,
)
CLASSES = st.fixed_dictionaries(
    {
        name: some(
            queue_timeout=TIMES,
            max_waiting=st.integers(0, 1000),
            headroom=st.none() | RATIOS,
            promote_after=st.none() | TIMES,
            when=st.sampled_from(["always", "idle"]),
            gates=some(max_ttft=st.none() | TIMES, max_kv_usage=st.none() | RATIOS),
        ).map(lambda cls, rank=rank: {"rank": rank, "priority": rank * 1000, **cls})  # type: ignore[misc]
        for rank, name in enumerate(("interactive", "default", "batch"))
    }
)
ENDPOINTS = st.sampled_from(
    [
        ["127.0.0.1:1", "[::1]:2"],
        {"static": ["127.0.0.1:1"]},
        {"file": "/etc/llama.yaml"},
        {"file": {"path": "/etc/llama.yaml", "cluster": "llama"}},
        {"dns": {"name": "engines.llm.svc", "port": 8000, "interval": "7s"}},
        {"dns": {"name": "_http._tcp.llm", "record": "srv"}},
        {"kubernetes": {"service": "llama", "port": "http"}},
    ]
)
POOLS = some(
    endpoints=ENDPOINTS,
    aliases=st.dictionaries(st.sampled_from(["gpt", "true", "1"]), st.just("m")),
    mode=st.sampled_from(["enforce", "observe", "off"]),
    percentage=st.floats(0, 100),
    window=some(max_tpot=TIMES, stalled_after=st.none() | TIMES, max_num_seqs=st.none() | st.integers(1, 4096)),
    cost=some(output=st.floats(0, 1e4)),
    max_queued_bytes=SIZES,
    metrics=some(path=st.just("/m"), token_file=st.none() | st.just("/t"), scheme=st.sampled_from(["http", "https"])),
)
IDENTITIES = some(
    anonymous=NAMES,
    tenant=st.sampled_from(
        [
            [],
            [{"header": "x-org"}],
            [{"metadata": {"path": ["payload", "sub"]}}, {"api_key": {"sha256": {"0" * 64: "team-a"}}}],
            [{"certificate": {"which": "dns_san", "pattern": "(.*)"}}],
        ]
    ),
    **{"class": st.just([{"path": {"/v1/embeddings": "batch"}}, {"model": {"big-*": "batch"}}])},
)
FILES = st.fixed_dictionaries(
    {"pools": POOLS.map(lambda pool: [{**POOL, **pool}])},
    optional={
        "tenants": TENANTS,
        "classes": CLASSES,
        "identity": IDENTITIES,
        "on_fault": st.sampled_from(["pass", "reject"]),
        "shutdown": some(grace=TIMES, held=st.sampled_from(["hand_over", "finish", "refuse"])),
        "recording": some(file=st.none() | NAMES, max_size=st.just("1MiB"), tenants=st.just("hashed")),
        "admin": some(state=st.none() | NAMES, keep_audit=st.integers(100, 1000)),
        "listen": st.just({"admin": "unix:/run/fairlane/admin.sock"}),
    },
)


@settings(derandomize=True, deadline=None, max_examples=40, phases=(Phase.generate,))
@given(FILES)
@pytest.mark.slow
def test_what_is_written_is_read_as_the_same_configuration(data: dict[str, Any]) -> None:
    config = from_data(data)
    plain = written(config)
    assert from_data(plain) == config
    assert written(from_data(plain)) == plain
    assert parse(to_yaml(plain)) == config
    assert parse(to_yaml(data)) == config


def test_what_yaml_would_read_as_something_else() -> None:
    names = [
        "on",
        "no",
        "null",
        "~",
        "1",
        "1e3",
        "0x1f",
        "1_000",
        "12:30:00",
        "2026-01-01",
        "<<",
        "=",
        "a: b",
        "#x",
        "é",
        "&a",
    ]
    config = good(tenants={name: {"weight": 2} for name in names})
    assert list(parse(to_yaml(written(config))).tenants) == names


def test_what_is_there_twice_is_written_twice() -> None:
    window = {"start": 3}
    assert to_yaml({"a": window, "b": window}) == "a:\n  start: 3\nb:\n  start: 3\n"


def test_what_cannot_be_printed_is_escaped_and_letters_are_not() -> None:
    assert "é" in to_yaml({"name": "é"})
    data = {"name": "é", "alias": "a\u202eb\u200fc\x1b"}
    text = to_yaml(data)
    assert all(line.isprintable() for line in text.splitlines())
    assert yaml.safe_load(text) == data
