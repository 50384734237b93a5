"""What may stand under `pools[].endpoints`: a list, or exactly one source."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from extproc.config.endpoints import Dns, Endpoints, File, Kubernetes


class _Pool(BaseModel):
    endpoints: Endpoints


def good(value: Any) -> Endpoints:
    return _Pool(endpoints=value).endpoints


def error(value: Any) -> str:
    """Place and message of the one fault."""
    with pytest.raises(ValidationError) as caught:
        _Pool(endpoints=value)
    (fault,) = caught.value.errors()
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"


@pytest.mark.parametrize("value", [["10.0.0.1:80", "[::0:1]:80"], {"static": ["10.0.0.1:80", "[::0:1]:80"]}])
def test_a_list(value: Any) -> None:
    assert good(value).static == ["10.0.0.1:80", "[::1]:80"]
    assert good(value).known == ["10.0.0.1:80", "[::1]:80"]
    assert good(good(value)) == good(value)


def test_dns() -> None:
    found = good({"dns": {"name": "engines.llm.svc", "port": 8000, "max_interval": "2m", "resolver": "10.0.0.10:53"}})
    assert found.dns == Dns(name="engines.llm.svc", port=8000, max_interval="2m", resolver="10.0.0.10:53")
    assert found.dns is not None
    assert (found.dns.record, found.dns.interval, found.dns.max_interval, found.dns.timeout) == ("a", 5.0, 120.0, 5.0)
    assert found.known == []
    assert good({"dns": {"name": "_http._tcp.engines.llm.svc.", "record": "srv"}}).dns is not None


def test_a_file_by_its_path_alone() -> None:
    assert good({"file": "/etc/fairlane/llama.yaml"}).file == File(path="/etc/fairlane/llama.yaml")
    assert good({"file": {"path": "a", "cluster": "llama"}}).file == File(path="a", cluster="llama")


def test_kubernetes() -> None:
    assert good({"kubernetes": {"service": "llama"}}).kubernetes == Kubernetes(service="llama")
    found = good({"kubernetes": {"selector": "app=llama,tier in (a,b)", "namespace": "llm", "port": "http"}}).kubernetes
    assert found is not None
    assert (found.service, found.selector, found.namespace, found.port) == (
        None,
        "app=llama,tier in (a,b)",
        "llm",
        "http",
    )
    assert good({"kubernetes": {"service": "a", "port": 8000}}).kubernetes == Kubernetes(service="a", port=8000)


EXPECTED = "endpoints: expected a list of ip:port, or one of static, dns, file, kubernetes, not"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, f"{EXPECTED} None"),
        ("10.0.0.1:80", f"{EXPECTED} '10.0.0.1:80'"),
        (5, f"{EXPECTED} 5"),
        ({}, f"{EXPECTED} nothing"),
        ({"dns": None}, f"{EXPECTED} nothing"),
        ({"file": "a", "kubernetes": {"service": "a"}}, f"{EXPECTED} file and kubernetes"),
        ([], "endpoints: List should have at least 1 item after validation, not 0"),
        ({"static": []}, "endpoints.static: List should have at least 1 item after validation, not 0"),
        (["10.0.0.1:80", "[::1]:1", "10.0.0.1:80", "[0::1]:1"], "endpoints: named twice: 10.0.0.1:80, [::1]:1"),
        (
            ["10.0.0.1:80", "vllm:80"],
            "endpoints.1: 'vllm:80' is not ip:port: Envoy matches Fairlane's choice by address, "
            "and would ignore a name",
        ),
    ],
)
def test_exactly_one_source(value: Any, message: str) -> None:
    assert error(value) == message


NAME = "endpoints.dns.name: {} is no name for DNS: labels of letters, digits, '-' and '_', between dots"


@pytest.mark.parametrize(
    ("dns", "message"),
    [
        ({"name": "a"}, "endpoints.dns: port: is missing; only SRV records have one of their own"),
        (
            {"name": "a", "port": 1, "record": "srv"},
            "endpoints.dns: port: SRV records have their own; leave it out, or",
        ),
        (
            {"name": "10.0.0.1", "port": 1},
            "endpoints.dns.name: '10.0.0.1' is an address and no name: write it as a list",
        ),
        ({"name": "[::1]", "port": 1}, "endpoints.dns.name: '[::1]' is an address"),
        ({"name": "a..b", "port": 1}, NAME.format("'a..b'")),
        ({"name": "-a", "port": 1}, NAME.format("'-a'")),
        ({"name": "a:80", "port": 1}, NAME.format("'a:80'")),
        ({"name": "a\n", "port": 1}, NAME.format("'a\\n'")),
        ({"name": "a" * 64, "port": 1}, NAME.format(repr("a" * 64))),
        ({"name": ".".join(["a" * 63] * 4), "port": 1}, NAME.format(repr(".".join(["a" * 63] * 4)[:200]) + "...")),
        ({"name": "a", "port": 0}, "endpoints.dns.port: Input should be greater than or equal to 1"),
        (
            {"name": "a", "port": 1, "record": "txt"},
            "endpoints.dns.record: Input should be 'a', 'aaaa', 'any' or 'srv'",
        ),
        ({"name": "a", "port": 1, "interval": "10ms"}, "endpoints.dns: interval must be at least 100ms"),
        (
            {"name": "a", "port": 1, "interval": "2m"},
            "endpoints.dns: interval must be at least 100ms and no longer than",
        ),
        ({"name": "a", "port": 1, "timeout": "0s"}, "endpoints.dns: timeout must be above 0 and at most 60s"),
        ({"name": "a", "port": 1, "resolver": "dns:53"}, "endpoints.dns.resolver: 'dns:53' is not ip:port"),
    ],
)
def test_what_is_wrong_with_dns(dns: Any, message: str) -> None:
    assert error({"dns": dns}).startswith(message)


@pytest.mark.parametrize(
    ("kubernetes", "message"),
    [
        ({}, ": give either service, the name of one, or selector, for labels of EndpointSlices"),
        ({"service": "a", "selector": "b=c"}, ": give either service"),
        ({"service": "A"}, ".service: 'A' must be lower-case letters, digits and '-', and at most 63 of them"),
        ({"service": "a/b"}, ".service: 'a/b' must be"),
        ({"service": "a", "namespace": "x.y"}, ".namespace: 'x.y' must be"),
        ({"service": "a", "context": "c"}, ": context means nothing without kubeconfig"),
    ],
)
def test_what_is_wrong_with_kubernetes(kubernetes: Any, message: str) -> None:
    assert error({"kubernetes": kubernetes}).startswith("endpoints.kubernetes" + message)


@pytest.mark.parametrize("port", [0, 65536, "HTTP", "", "8000", "-a", "a" * 64])
def test_what_is_no_port_of_kubernetes(port: Any) -> None:
    assert error({"kubernetes": {"service": "a", "port": port}}) == (
        f"endpoints.kubernetes.port: {port!r} is no port: a number of 1 to 65535, or the name that the Service gives it"
    )


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("", "endpoints.file.path: String should have at least 1 character"),
        ({}, "endpoints.file.path: Field required"),
        (5, "endpoints.file: expected the path of a file, not 5"),
        (["a"], "endpoints.file: expected the path of a file, not a list"),
        ({"path": "a", "cluster": ""}, "endpoints.file.cluster: String should have at least 1 character"),
        ({"path": "a", "x": 1}, "endpoints.file.x: Extra inputs are not permitted"),
    ],
)
def test_what_is_no_file(file: Any, message: str) -> None:
    assert error({"file": file}) == message


def nested(depth: int) -> list[Any]:
    """9^depth texts that take no room, as anchors of YAML make them."""
    value: list[Any] = ["x"] * 9
    for _ in range(depth):
        value = [value] * 9
    return value


@pytest.mark.parametrize(
    "value",
    [
        [nested(12)],
        nested(12),
        {"static": [nested(12)]},
        {"file": nested(12)},
        {"dns": {"name": "a", "port": 1, "resolver": nested(12), "interval": nested(12)}},
        {"kubernetes": {"service": nested(12), "port": nested(12)}},
    ],
)
def test_what_would_be_endless_as_a_text_is_not_made_one(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        _Pool(endpoints=value)
    for fault in caught.value.errors():
        assert len(fault["msg"]) < 300
