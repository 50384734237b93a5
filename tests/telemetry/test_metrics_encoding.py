"""The page's text: the bytes that prometheus-client's own encoders write, read by its own parsers and by promtool, with
whatever names; and who gets which format."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from extproc.config.telemetry import TenantSeries
from extproc.core.events import Refuse, Release, Settled
from extproc.core.model import Source
from extproc.core.reasons import Reason
from extproc.telemetry.metrics import Exposition, Metrics
from extproc.telemetry.metrics.encoding import chosen, openmetrics, plain
from extproc.telemetry.metrics.labels import label

HOSTILE = [
    '"',
    "\\",
    "\n",
    'a"} 1\n# EOF\nx{a="',
    "\r\n",
    "\x00\x1f\x7f\x85",
    "\ud83d",
    "é😀",
    "<script>",
    "y" * 10_240,
    "{}",
    "other",
    "\u2028",
]


class Families:
    """What prometheus-client's encoders take."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def of_tenants(names: list[str], pool: str | None = None) -> list[Metric]:
    """`pool`: None: pools and classes have these names too."""
    metrics = Metrics("1.2.3")
    metrics.configure(TenantSeries(top=100))
    for name in names:
        cls = pool or name
        metrics.effects(
            cls,
            [
                Release("1", "10.0.0.1:8000", 0, name, cls, 0.25),
                Refuse("2", Reason.QUEUE_FULL, "why", 1, name, cls, 1e7),
                Settled("1", name, cls, Source.USAGE, 123_456_789.5, 1.0),
            ],
        )
    return list(metrics.registry.collect())


def check(families: list[Metric], names: list[str]) -> None:
    text, modern = plain(families), openmetrics(families)
    assert text == generate_latest(Families(families))  # type: ignore[arg-type]
    assert modern == generate_openmetrics(Families(families))  # type: ignore[no-untyped-call]
    wanted = {label(name) for name in names} | ({"other"} if "other" in names else set())
    for parsed in (text_string_to_metric_families(text.decode()), openmetrics_families(modern.decode())):
        samples = [sample for family in parsed for sample in family.samples]
        keys = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
        assert len(keys) == len(set(keys))
        tenants = {s.labels["tenant"] for s in samples if s.name == "fairlane_tenant_released_requests_total"}
        assert tenants == wanted


def test_hostile_names() -> None:
    check(of_tenants(HOSTILE), HOSTILE)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.text(st.characters(), min_size=1, max_size=300), max_size=8, unique=True))
def test_any_names(names: list[str]) -> None:
    families = [family for family in of_tenants(names, "sim") if "tenant" in family.name]
    check(families, names)


@pytest.mark.parametrize("value", [0, -1, 1.5, 1e6, 1e7, 1e300, 5e-324, math.inf, -math.inf, math.nan, True])
def test_any_value(value: float) -> None:
    gauge = GaugeMetricFamily("a_gauge", 'Help with "quotes", \\ and\nlines')
    gauge.add_metric([], value)
    counter = CounterMetricFamily("a_counter", "Help", labels=["b", "a"])
    counter.add_metric(["1", "2"], value, created=3.0)
    families: list[Metric] = [gauge, counter]
    assert plain(families) == generate_latest(Families(families))  # type: ignore[arg-type]
    assert openmetrics(families) == generate_openmetrics(Families(families))  # type: ignore[no-untyped-call]


def test_promtool_has_nothing_against_it() -> None:
    """The linter of Prometheus itself; it also tells names that are not as they should be."""
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is not installed: apt-get install prometheus")
        pytest.skip("promtool is not installed: apt-get install prometheus")
    ours = [family for family in of_tenants(HOSTILE) if family.name.startswith("fairlane_")]
    found = subprocess.run([promtool, "check", "metrics"], input=plain(ours), capture_output=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("accept", "modern"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("Application/OpenMetrics-Text;Version=1.0.0", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=nothing", False),
        ("application/openmetrics-text;version=", False),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            True,
        ),
        (";;,,=;q=", False),
        ("application/openmetrics-text2", False),
        ("x" * 100_000, False),
    ],
)
def test_who_gets_which_format(accept: str, modern: bool) -> None:
    encode, content_type = chosen(accept)
    assert encode is (openmetrics if modern else plain)
    assert content_type.startswith(
        "application/openmetrics-text; version=1.0.0" if modern else "text/plain; version=0.0.4"
    )


async def test_text_is_made_in_a_thread_and_state_is_read_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[tuple[str, int]] = []

    class Source:
        def collect(self) -> Iterable[Metric]:
            threads.append(("read", threading.get_ident()))
            return [GaugeMetricFamily("a_gauge", "One", value=1)]

    def encode(families: list[Metric]) -> bytes:
        threads.append(("write", threading.get_ident()))
        return plain(families)

    registry = CollectorRegistry()
    registry.register(Source())
    threads.clear()
    monkeypatch.setattr("extproc.telemetry.metrics.exposition.chosen", lambda _: (encode, "kind"))
    exposition = Exposition(registry)
    pages = await asyncio.gather(*(exposition.page("") for _ in range(3)))
    assert set(pages) == {(b"# HELP a_gauge One\n# TYPE a_gauge gauge\na_gauge 1.0\n", "kind")}
    assert [what for what, _ in threads] == ["read", "write"]  # one page for all
    here = threading.get_ident()
    assert {thread for what, thread in threads if what == "read"} == {here}
    assert here not in {thread for what, thread in threads if what == "write"}


async def test_those_who_wait_share_the_page_that_begins_next(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    begun, go_on = threading.Event(), threading.Event()

    class Source:
        def collect(self) -> Iterable[Metric]:
            nonlocal reads
            reads += 1
            return [GaugeMetricFamily("reads", "So far", value=reads)]

    def encode(families: list[Metric]) -> bytes:
        begun.set()
        assert go_on.wait(20)
        return b"%d" % families[0].samples[0].value

    def encode_otherwise(families: list[Metric]) -> bytes:
        return b"other %d" % families[0].samples[0].value

    registry = CollectorRegistry()
    registry.register(Source())  # reads it, for the names
    reads = 0
    monkeypatch.setattr(
        "extproc.telemetry.metrics.exposition.chosen",
        lambda accept: (encode_otherwise, "b") if accept == "b" else (encode, "a"),
    )
    exposition = Exposition(registry)
    first = asyncio.create_task(exposition.page("a"))
    assert await asyncio.to_thread(begun.wait, 20)
    later = [asyncio.create_task(exposition.page(accept)) for accept in ("a", "a", "b", "a", "b")]
    await asyncio.sleep(0)  # each begins, and waits
    later[0].cancel()  # takes it from nobody
    go_on.set()
    assert await first == (b"1", "a")
    told = await asyncio.gather(*later, return_exceptions=True)
    assert isinstance(told[0], asyncio.CancelledError)
    assert told[1:] == [(b"2", "a"), (b"other 3", "b"), (b"2", "a"), (b"other 3", "b")]
    assert reads == 3


@pytest.mark.parametrize(
    ("accept", "modern"),
    [
        ("application/openmetrics-text;q=0, text/plain", False),
        ("application/openmetrics-text; version=1.0.0 ; Q = 0.000", False),
        ("application/openmetrics-text;q=0.001", True),
        ("application/openmetrics-text;q=nothing", True),
        ("text/plain;q=0,application/openmetrics-text", True),
        ("application/openmetrics-text;q=0,application/openmetrics-text;version=1.0.0;q=0.5", True),
    ],
)
async def test_what_is_not_wanted(accept: str, modern: bool) -> None:
    _, content_type = await Exposition(CollectorRegistry()).page(accept)
    assert content_type.startswith("application/openmetrics-text" if modern else "text/plain")


async def test_others_have_their_turn_while_state_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.telemetry.metrics.exposition._TURN_S", 0.0)
    seen: list[str] = []

    class Source:
        def collect(self) -> Iterable[Metric]:
            for name in ("first", "second"):
                asyncio.get_running_loop().call_soon(seen.append, "another")
                seen.append(name)
                yield GaugeMetricFamily(name, "One", value=1)

    registry = CollectorRegistry()
    registry.register(Source())
    await Exposition(registry).page("")
    assert seen == ["first", "another", "second", "another"]


async def test_a_page_that_fails_or_is_given_up_is_not_in_the_way_of_the_next() -> None:
    class Source:
        broken = True

        def collect(self) -> Iterable[Metric]:
            if self.broken:
                raise RuntimeError("no metrics")
            return [GaugeMetricFamily("a_gauge", "One", value=1)]

    source, registry = Source(), CollectorRegistry()
    registry.register(source)
    exposition = Exposition(registry)
    with pytest.raises(RuntimeError, match="no metrics"):
        await exposition.page("")
    source.broken = False
    given_up = asyncio.ensure_future(exposition.page(""))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert given_up.cancelled()
    assert b"a_gauge 1.0" in (await exposition.page(""))[0]
