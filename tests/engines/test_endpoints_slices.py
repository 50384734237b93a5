"""EndpointSlices as endpoints: which pods count, and at which port."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_api import endpoint_slice, pod, port

from extproc.engines.endpoints.slices import endpoints
from extproc.engines.endpoints.source import MOST, Endpoint, SourceError


def addresses(*slices: dict[str, Any], at: int | str | None = None) -> list[str]:
    return [each.address for each in endpoints(slices, at)]


def fault(*slices: dict[str, Any], at: int | str | None = None) -> str:
    with pytest.raises(SourceError) as error:
        endpoints(slices, at)
    return str(error.value)


def test_pods_of_several_slices_in_both_families() -> None:
    found = endpoints(
        [
            endpoint_slice("b", pod("10.0.0.2", "u2"), pod("10.0.0.1", "u1")),
            endpoint_slice("a", pod("FD00:0::1", "u1"), kind="IPv6"),
            endpoint_slice("names", pod("vllm.example.com"), kind="FQDN"),
        ],
        None,
    )
    assert found == [Endpoint("10.0.0.1:8000", "u1"), Endpoint("10.0.0.2:8000", "u2"), Endpoint("[fd00::1]:8000", "u1")]


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({}, True),
        ({"ready": None}, True),  # not known: to be taken for ready, says the API
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),  # publishNotReadyAddresses
        ({"serving": False}, True),  # ready is what counts
    ],
)
def test_ready_and_not_terminating(conditions: dict[str, bool | None], counts: bool) -> None:
    assert addresses(endpoint_slice("a", pod("10.0.0.1", **conditions))) == (["10.0.0.1:8000"] if counts else [])


def test_members_that_may_be_missing() -> None:
    bare = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.9"]}]}
    assert endpoints([{**bare, "ports": [{"port": 80}]}], None) == [Endpoint("10.0.0.1:80", "")]
    assert endpoints([{**bare, "endpoints": None, "ports": None}], None) == []
    assert endpoints([], None) == []


HTTP, METRICS, QUIC = port(8000, "http"), port(9000, "metrics"), port(8443, "quic", "UDP")


@pytest.mark.parametrize(
    ("ports", "at", "found"),
    [
        ([HTTP], None, 8000),
        ([HTTP, QUIC], None, 8000),
        ([HTTP, METRICS], "metrics", 9000),
        ([HTTP, METRICS], 8000, 8000),
        ([port(8000, "")], None, 8000),
        ([], 8000, 8000),
        ([port(None)], 8000, 8000),
    ],
)
def test_ports(ports: list[dict[str, Any]], at: int | str | None, found: int) -> None:
    assert addresses(endpoint_slice("a", pod("10.0.0.1"), ports=ports), at=at) == [f"10.0.0.1:{found}"]


@pytest.mark.parametrize(
    ("ports", "at", "words"),
    [
        ([HTTP, METRICS], None, "which port is meant? The EndpointSlice a has: http (8000), metrics (9000)"),
        ([], None, "which port is meant? The EndpointSlice a has: none; give kubernetes.port"),
        ([QUIC], None, "has: none"),
        ([port(None)], None, "leaves the port open: give kubernetes.port as a number"),
        ([HTTP, METRICS], "grpc", "no EndpointSlice has the TCP port grpc; there are: http (8000), metrics (9000)"),
        ([HTTP], 9000, "no EndpointSlice has the TCP port 9000; there are: http (8000)"),
        ([QUIC], "quic", "no EndpointSlice has the TCP port quic; there are: none"),
        ([port(0)], None, "the EndpointSlice a cannot be read"),
    ],
)
def test_ports_that_are_none(ports: list[dict[str, Any]], at: int | str | None, words: str) -> None:
    assert words in fault(endpoint_slice("a", pod("10.0.0.1"), ports=ports), at=at)


def test_slices_that_have_another_port_are_passed_by() -> None:
    # pods of two versions, whose port of the same name has another number or is not there
    old = endpoint_slice("old", pod("10.0.0.1"), ports=[port(8000)])
    new = endpoint_slice("new", pod("10.0.0.2"), ports=[port(8080)])
    sidecar = endpoint_slice("side", pod("10.0.0.3"), ports=[METRICS])
    assert addresses(old, new, sidecar, at="http") == ["10.0.0.1:8000", "10.0.0.2:8080"]


def test_no_ready_pod_is_no_fault_of_the_port() -> None:
    assert addresses(endpoint_slice("a", pod("10.0.0.1", ready=False), ports=[HTTP, METRICS])) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"endpoints": 5},
        {"endpoints": [5]},
        {"endpoints": [{"addresses": [5]}]},
        {"endpoints": [{"addresses": ["x"]}]},
        {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": 5}]},
        {"ports": 5},
        {"ports": [5]},
        {"ports": [{"port": "http"}]},
    ],
)
def test_what_is_no_slice(broken: dict[str, Any]) -> None:
    message = fault({**endpoint_slice("a", pod("10.0.0.1")), **broken})
    assert "the EndpointSlice a cannot be read" in message
    assert "is that the Kubernetes API?" in message


def many(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [pod(f"10.{i // 62_500}.{i // 250 % 250}.{i % 250}", "u") for i in range(first, first + count)]


@pytest.mark.slow
def test_as_many_as_may_be_and_too_many() -> None:
    found = addresses(endpoint_slice("a", *many(MOST)), endpoint_slice("b", *many(9, 5)))
    assert len(set(found)) == MOST
    words = "there are more than 10000 endpoints; divide them among Services and pools"
    assert fault(endpoint_slice("a", *many(MOST)), endpoint_slice("b", *many(1, MOST))) == words
    assert fault(*[endpoint_slice(name, *many(MOST)) for name in "abc"]) == words


def test_what_is_no_address_is_not_said_whole() -> None:
    assert len(fault(endpoint_slice("a", pod("x" * 100_000)))) < 500
