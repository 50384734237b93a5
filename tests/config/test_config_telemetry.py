"""The section `telemetry`: what it takes, and what it says of what it does not."""

from __future__ import annotations

import pytest
from config_case import error, good

from extproc.config.telemetry import Telemetry


def test_defaults() -> None:
    telemetry = good().telemetry
    assert telemetry == Telemetry()
    assert (telemetry.enabled, telemetry.page, telemetry.tenants.top, telemetry.tenants.names) == (True, True, 10, [])
    assert (telemetry.log.slow_after, telemetry.log.refused, telemetry.log.lines_per_second) == (10.0, True, 20.0)
    assert (telemetry.traces.otlp, telemetry.traces.protocol, telemetry.traces.sample) == (None, "grpc", 0.01)


@pytest.mark.parametrize("address", ["http://collector:4317", "https://[::1]:4318/v1/traces", "http://10.0.0.1"])
def test_addresses_of_collectors(address: str) -> None:
    assert good(telemetry={"traces": {"otlp": address}}).telemetry.traces.otlp == address


@pytest.mark.parametrize(
    ("telemetry", "told"),
    [
        ({"traces": {"otlp": "collector:4317"}}, "must be like http://collector:4317"),
        ({"traces": {"otlp": ""}}, "must be like http://collector:4317"),
        ({"traces": {"otlp": "http://a b:1"}}, "must be like http://collector:4317"),
        ({"traces": {"otlp": "http://collector:99999"}}, "is no address"),
        ({"traces": {"otlp": "http://collector:0"}}, "must have a scheme, a host, a port"),
        ({"traces": {"otlp": "http://collector:1?key=abc"}}, "nothing else"),
        ({"traces": {"otlp": "http://me:secret@collector:4317"}}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"traces": {"protocol": "udp"}}, "protocol"),
        ({"traces": {"sample": 1.5}}, "sample"),
        ({"traces": {"sample": "nan"}}, "sample"),
        ({"tenants": {"top": 501}}, "top"),
        ({"tenants": {"names": ["a", "a"]}}, "names a tenant twice"),
        ({"tenants": {"names": ["a\nb"]}}, "names"),
        ({"log": {"slow_after": "10"}}, "slow_after"),
        ({"log": {"lines_per_second": 0}}, "lines_per_second"),
        ({"metrics": True}, "metrics"),
    ],
)
def test_what_cannot_be(telemetry: dict[str, object], told: str) -> None:
    assert told in error(telemetry=telemetry)


def test_no_credentials_are_repeated() -> None:
    assert "hunter2" not in error(telemetry={"traces": {"otlp": "http://me:hunter2@collector:4317"}})


def test_an_objective_is_for_those_who_look() -> None:
    classes = {"default": {"rank": 0, "priority": 0, "wait_objective": "5s"}}
    config = good(classes=classes)
    assert config.classes["default"].wait_objective == 5.0
    assert good().classes["default"].wait_objective is None
