"""The network policies admit exactly what their comments say: a small evaluator of the API's documented meaning.

Policies that choose a pod add up; a pod that one chooses for a direction takes nothing else in that direction. A rule's
`from` and `to` are alternatives, as its ports are; without ports all are meant.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes_case import REPLICATED, built, fairlane, of_kind, one, pod, workloads

pytestmark = pytest.mark.slow

Labels = dict[str, str]


@dataclass(frozen=True)
class Peer:
    """A pod somewhere, or an address outside of the cluster."""

    namespace: str = ""
    of_namespace: Labels = field(default_factory=dict, hash=False)
    labels: Labels = field(default_factory=dict, hash=False)
    address: str = ""

    def is_in(self, rule: dict[str, Any], own_namespace: str) -> bool:
        if "ipBlock" in rule:
            block = rule["ipBlock"]
            assert "except" not in block
            network = ipaddress.ip_network(block["cidr"])
            address = ipaddress.ip_address(self.address or "10.1.2.3")  # a pod has an address too
            return address.version == network.version and address in network
        if self.address:
            return False
        spaces = {"kubernetes.io/metadata.name": self.namespace, **self.of_namespace}
        chosen = rule.get("namespaceSelector")
        in_space = self.namespace == own_namespace if chosen is None else fits(chosen, spaces)
        return in_space and fits(rule.get("podSelector", {}), self.labels)


def fits(selector: dict[str, Any], labels: Labels) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def admits(objects: list[dict[str, Any]], workload: dict[str, Any], way: str, peer: Peer, port: int, kind: str) -> bool:
    """`way`: Ingress or Egress, of a pod of the workload."""
    space = workload["metadata"]["namespace"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    named = {each["name"]: each["containerPort"] for c in pod(workload)["containers"] for each in c.get("ports", ())}
    policies = [
        each["spec"]
        for each in of_kind(objects, "NetworkPolicy")
        if each["metadata"]["namespace"] == space
        and fits(each["spec"]["podSelector"], labels)
        and way in each["spec"]["policyTypes"]
    ]
    peers = "from" if way == "Ingress" else "to"
    return not policies or any(
        any(peer.is_in(each, space) for each in rule[peers])
        and any(
            named.get(each["port"], each["port"]) == port and each.get("protocol", "TCP") == kind
            for each in rule["ports"]
        )
        for policy in policies
        for rule in policy.get(way.lower(), ())
    )


GATEWAY = Peer("istio-ingress", {"fairlane/gateway": "true"})
PROMETHEUS = Peer("monitoring", {"fairlane/monitoring": "true"})
OPERATORS = Peer("sre", {"fairlane/admin": "true"})
NEIGHBOUR = Peer("fairlane")
STRANGER = Peer(
    "team-a", {"team": "a"}, {"fairlane/gateway": "true"}
)  # a label of the pod is no label of its namespace
INTERNET = Peer(address="203.0.113.7")
ENGINE = Peer("llm")
NAME_SERVER = Peer("kube-system", labels={"k8s-app": "kube-dns"})
ISTIOD = Peer("istio-system", labels={"app": "istiod", "istio.io/rev": "default"})
VALKEY = Peer("fairlane", labels={"app.kubernetes.io/name": "valkey"})
SCHEDULER = Peer("fairlane", labels={"app.kubernetes.io/name": "fairlane", "app.kubernetes.io/component": "scheduler"})
BESIDE_ISTIOD = Peer("istio-system", labels={"app": "kiali"})
PEERS = (
    *(GATEWAY, PROMETHEUS, OPERATORS, NEIGHBOUR, STRANGER, INTERNET, ENGINE, NAME_SERVER, ISTIOD, BESIDE_ISTIOD),
    *(VALKEY, SCHEDULER),
)
PORTS = [(port, "TCP") for port in (22, 53, 80, 443, 6379, 6443, 8000, 9090, 10250, 15010, 15012, 50051, 50052)] + [
    (53, "UDP"),
    (443, "UDP"),
]


def admitted(name: str, way: str) -> set[tuple[Peer, int, str]]:
    objects = built(name)
    ours = fairlane(objects)
    return {
        (peer, port, kind) for peer in PEERS for port, kind in PORTS if admits(objects, ours, way, peer, port, kind)
    }


IN = {(GATEWAY, 50051, "TCP"), (PROMETHEUS, 9090, "TCP")}
OUT = {(ENGINE, 8000, "TCP"), (NAME_SERVER, 53, "TCP"), (NAME_SERVER, 53, "UDP")}


@pytest.mark.parametrize(
    "name",
    ["base", "overlays/single", *REPLICATED, "single, tokens", "single, kept", "single, mesh", "shared, own store"],
)
def test_who_may_come_in(name: str) -> None:
    assert admitted(name, "Ingress") == IN


@pytest.mark.parametrize("name", ["single, all", "partition, all", "shared, all"])
def test_who_may_come_in_with_the_admin_port(name: str) -> None:
    assert admitted(name, "Ingress") == IN | {(OPERATORS, 50052, "TCP")}


def test_where_it_may_go() -> None:
    assert admitted("base", "Egress") == OUT


@pytest.mark.parametrize("name", ["overlays/single", "overlays/partition", "single, all"])
def test_where_it_may_go_with_the_api_server(name: str) -> None:
    # The address of the API server is another in each cluster: by its ports alone, until somebody narrows it.
    api_server = {(peer, port, "TCP") for peer in PEERS for port in (443, 6443)}
    assert admitted(name, "Egress") == OUT | api_server


@pytest.mark.parametrize("name", ["overlays/standby", "overlays/shared", "shared, all", "shared, own store"])
def test_where_it_may_go_with_a_store(name: str) -> None:
    api_server = {(peer, port, "TCP") for peer in PEERS for port in (443, 6443)}
    assert admitted(name, "Egress") == OUT | api_server | {(VALKEY, 6379, "TCP")}


@pytest.mark.parametrize("name", ["overlays/standby", "overlays/shared"])
def test_nobody_but_the_replicas_reaches_the_store(name: str) -> None:
    objects = built(name)
    store = one(objects, "Deployment", "valkey")
    ways = {
        way: {(peer, port) for peer in PEERS for port, kind in PORTS if admits(objects, store, way, peer, port, kind)}
        for way in ("Ingress", "Egress")
    }
    assert ways == {"Ingress": {(SCHEDULER, 6379)}, "Egress": set()}


def test_a_sidecar_reaches_its_control_plane() -> None:
    api_server = {(peer, port, "TCP") for peer in PEERS for port in (443, 6443)}
    assert admitted("single, mesh", "Egress") == OUT | api_server | {(ISTIOD, 15012, "TCP")}


@pytest.mark.parametrize("name", ["examples/sim", "examples/vllm"])
def test_nobody_reaches_an_engine_past_the_gateway(name: str) -> None:
    objects = built(name)
    (engine,) = workloads(objects)
    reached = {peer for peer in PEERS if admits(objects, engine, "Ingress", peer, 8000, "TCP")}
    assert reached == {GATEWAY, NEIGHBOUR, VALKEY, SCHEDULER}, "by namespaces, and Fairlane's has these"


def test_the_example_gateway_is_let_in() -> None:
    (space,) = of_kind(built("examples/envoy"), "Namespace")
    peer = Peer(space["metadata"]["name"], space["metadata"]["labels"])
    objects = built("overlays/single")
    assert admits(objects, fairlane(objects), "Ingress", peer, 50051, "TCP")
