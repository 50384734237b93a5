"""The HTTP port, asked by a real client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from extproc.cli.ports import free_ports
from extproc.core.priority import PriorityWay
from extproc.core.view import ClassView, FlowView, PoolView
from extproc.core.windows import Stance, WindowView
from extproc.telemetry.http import HttpPort
from extproc.telemetry.metrics import ClusterStats, EndpointSetStats, ScrapeStats


class Port:
    """The port over a state that the test sets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Gauge("a_gauge", "One.", registry=self.registry).set(3)
        self.ready = False
        self.cluster: ClusterStats | None = None
        self.asked: list[tuple[str, int]] = []
        self.number = free_ports(1)[0]
        scrapes = ScrapeStats("sim", "10.0.0.1:8000", "vllm", 3, {}, 0.1, PriorityWay(header=True), "timeout: no page")
        sets = EndpointSetStats("sim", 1, 2, None, "the file is empty")
        self.http = HttpPort(
            self.registry,
            lambda: self.ready,
            self._pools,
            self._flows,
            lambda: [scrapes],
            lambda: [sets],
            cluster=lambda: self.cluster,
        )
        self.session: aiohttp.ClientSession

    def _pools(self) -> list[PoolView]:
        window = WindowView("10.0.0.1:8000", Stance.STALE, 8.0, 0, 1, None, None, 1, 0, None, float("nan"))
        return [
            PoolView("sim", 2, 300, 1, 3, 0.5, (ClassView("default", 1, 2, 1, 1),), (window,)),
            PoolView("other", 0, 0, 0, 0, 0.0, (), ()),
        ]

    def _flows(self, pool: str, most: int) -> list[FlowView]:
        self.asked.append((pool, most))
        return [FlowView("tenant é", "default", 2, 1, 10.0, 1.0)][: most if pool == "sim" else 0]

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        async with self.session.get(f"http://127.0.0.1:{self.number}{path}", headers=headers) as answer:
            return answer.status, answer.headers["content-type"], await answer.text()

    async def status(self, query: str = "") -> Any:
        async with self.session.get(f"http://127.0.0.1:{self.number}/status{query}") as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    await made.http.start("127.0.0.1", made.number)
    async with aiohttp.ClientSession() as made.session:
        yield made
    await made.http.stop()


async def test_metrics_as_plain_text(port: Port) -> None:
    status, kind, text = await port.get("/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.samples[0].value) == ("a_gauge", 3)


async def test_metrics_as_openmetrics_where_prometheus_asks_for_it(port: Port) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"
    status, kind, text = await port.get("/metrics", accept=accept)
    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    (family,) = openmetrics_families(text)
    assert family.name == "a_gauge"


async def test_health_is_of_the_process_and_readiness_of_the_service(port: Port) -> None:
    assert (await port.get("/healthz"))[0] == 200
    assert (await port.get("/readyz"))[::2] == (503, "not ready\n")
    port.ready = True
    assert (await port.get("/readyz"))[::2] == (200, "ready\n")
    port.ready = False
    assert (await port.get("/healthz"))[0] == 200
    assert (await port.get("/readyz"))[0] == 503


async def test_one_that_stands_by_is_ready_and_says_so(port: Port) -> None:
    """It takes over; a restart would help nobody."""
    port.ready = True
    port.cluster = ClusterStats("standby", "fairlane", "r1", 2, active=False, failures={"timeout": 3})
    assert (await port.get("/readyz"))[::2] == (200, "ready, stands by\n")
    cluster = (await port.status())[1]["cluster"]
    assert (cluster["mode"], cluster["active"], cluster["failures"]) == ("standby", False, {"timeout": 3})
    port.cluster = ClusterStats("standby", "fairlane", "r1", 2)
    assert (await port.get("/readyz"))[::2] == (200, "ready\n")
    port.ready = False
    assert (await port.get("/readyz"))[0] == 503


async def test_the_state_as_json(port: Port) -> None:
    port.ready = True
    status, data = await port.status()
    assert status == 200
    assert data["ready"] is True
    assert data["cluster"] is None
    (engine,), (source,) = data["engines"], data["sources"]
    assert (engine["endpoint"], engine["dialect"], engine["last_failure"]) == (
        "10.0.0.1:8000",
        "vllm",
        "timeout: no page",
    )
    assert engine["way"] == {"header": True, "body": False, "high_first": False}
    assert (source["endpoints"], source["last_error"]) == (1, "the file is empty")
    sim, other = data["pools"]
    assert (sim["pool"], sim["queued"], sim["queued_bytes"], sim["in_flight"]) == ("sim", 2, 300, 1)
    (cls,) = sim["classes"]
    assert (cls["name"], cls["rank"], cls["queued"], cls["in_flight"], cls["tenants"]) == ("default", 1, 2, 1, 1)
    assert (cls["retired"], cls["hold"]) == (False, None)
    assert sim["flows"] == [
        {"tenant": "tenant é", "cls": "default", "queued": 2, "in_flight": 1, "tag": 10.0, "weight": 1.0}
    ]
    (endpoint,) = sim["endpoints"]
    assert (endpoint["endpoint"], endpoint["stance"], endpoint["running"]) == ("10.0.0.1:8000", "stale", 1)
    assert endpoint["age_s"] is None  # no number in JSON
    assert other["flows"] == []


@pytest.mark.parametrize(
    ("query", "most"), [("", 20), ("?flows=1", 1), ("?flows=0", 0), ("?flows=-5", 0), ("?flows=999999999", 1000)]
)
async def test_how_many_flows(port: Port, query: str, most: int) -> None:
    await port.status(query)
    assert port.asked == [("sim", most), ("other", most)]


@pytest.mark.parametrize("value", ["many", "1.5", "", "1e3", "9" * 5000])
async def test_a_bad_number_of_flows(port: Port, value: str) -> None:
    assert await port.status(f"?flows={value}") == (400, {"error": "flows must be a whole number"})
    assert port.asked == []


async def test_it_is_read_only(port: Port) -> None:
    for path in ("/metrics", "/healthz", "/readyz", "/status"):
        async with port.session.post(f"http://127.0.0.1:{port.number}{path}") as answer:
            assert answer.status == 405


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/events", "/explain?id=r1"])
async def test_without_a_page_it_says_so(port: Port, path: str) -> None:
    status, kind, text = await port.get(path)
    assert (status, kind) == (404, "text/plain; charset=utf-8")
    assert "telemetry: {page: true}" in text


async def test_what_is_nowhere(port: Port) -> None:
    assert (await port.get("/page/../../secret"))[0] == 404
    assert port.http.watchers == 0


async def test_a_port_that_is_taken() -> None:
    port = Port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await port.http.start("127.0.0.1", taken.getsockname()[1])
    await port.http.stop()
