"""Each model at one replica: what the wiring needs for it, and where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from wiring_case import REPLICAS, addresses, cluster, filters, inside, routes

from extproc.wiring.build import build
from extproc.wiring.description import Wiring, WiringError

HEADER = {"key": "x-fairlane-spread", "value": "%DYNAMIC_METADATA(fairlane.spread:model)%"}


def made(replicas: Any = REPLICAS, **choices: Any) -> dict[str, Any]:
    return build(Wiring(spread="model", **choices), addresses(ext_proc=replicas)).config


@pytest.mark.parametrize("profile", ["standard", "strict", "body"])
def test_both_halves_are_there(profile: Any) -> None:
    """The header without the hash, or the hash without the header, does nothing, and Envoy does not say so."""
    config = made(profile=profile)
    processors = [each for each in filters(config).values() if "ExternalProcessor" in each["@type"]]
    assert len(processors) == (2 if profile == "strict" else 1)
    for each in processors:
        assert HEADER in each["grpc_service"]["initial_metadata"]
    found = cluster(config, "fairlane")
    assert found["lb_policy"] == "RING_HASH"
    (policies,) = inside(found, "hash_policy")
    first = {"header": {"header_name": "x-fairlane-spread"}}
    if profile == "strict":
        assert policies == [{**first, "terminal": True}, {"header": {"header_name": "x-request-id"}}]
    else:
        assert policies == [first]
    assert all("lb_policy" not in each for each in inside(config, "clusters") if each is not found)


def test_the_name_is_made_fit_between_the_facts_and_the_call() -> None:
    order = list(filters(made(facts="lua")))
    assert order[:4] == ["fairlane.facts", "fairlane.facts.lua", "fairlane.spread.lua", "envoy.filters.http.ext_proc"]
    assert routes(made())["direct"]["typed_per_filter_config"]["fairlane.spread.lua"]["disabled"] is True


def test_no_cel_in_a_header_of_the_call() -> None:
    """Envoy 1.40.0 drops the connection when it makes one there."""
    for each in inside(made(profile="strict"), "initial_metadata"):
        assert not any("%CEL" in pair["value"] for pair in each)


def test_pods_are_known_by_their_names() -> None:
    names = [(f"fairlane-{number}.fairlane", 50_051) for number in range(2)]
    by_name = cluster(made(names), "fairlane")["common_lb_config"]
    assert by_name["consistent_hashing_lb_config"] == {"use_hostname_for_hashing": True}
    assert "consistent_hashing_lb_config" not in cluster(made(), "fairlane")["common_lb_config"]


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"profile": "duplex"}, "take the profile standard, strict or body"),
        ({"profile": "body", "facts": "none"}, "take facts json"),
        ({"envoy": 36}, "take a later Envoy, or one replica"),
        ({"spread": "tenant"}, "there are requests, model"),
    ],
)
def test_where_it_cannot_be_the_cure_is_said(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        Wiring(**{"spread": "model", **choices})


def test_one_address_is_nothing_to_spread_over() -> None:
    with pytest.raises(WiringError, match=r"--ext-proc host:port, as often as there are replicas"):
        made(REPLICAS[:1])
