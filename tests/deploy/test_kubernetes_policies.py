"""What the manifests must keep to: nobody is root, names and ports fit each other, a node can be drained."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from kubernetes_case import (
    EVERYTHING,
    FOLDER,
    OF_FAIRLANE,
    REPLICATED,
    built,
    container,
    containers,
    environment,
    fairlane,
    file,
    of_kind,
    one,
    pod,
    workloads,
)

from extproc.config.model import Config

pytestmark = pytest.mark.slow

EACH = pytest.mark.parametrize("name", EVERYTHING)
EACH_FAIRLANE = pytest.mark.parametrize("name", OF_FAIRLANE)


def config(objects: list[dict[str, Any]]) -> Config:
    return Config.model_validate(yaml.safe_load(file(objects)))


# -- security -----------------------------------------------------------------------------------------


@EACH
def test_nobody_is_root_or_may_become_it(name: str) -> None:
    for workload in workloads(built(name)):
        spec = pod(workload)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not [each for each in spec.get("volumes", ()) if "hostPath" in each]
        for each in containers(workload):
            context = each["securityContext"]
            assert context == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@EACH
def test_namespaces_ask_for_as_much(name: str) -> None:
    for namespace in of_kind(built(name), "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@EACH
def test_images_have_a_version(name: str) -> None:
    for workload in workloads(built(name)):
        for each in containers(workload):
            assert re.search(r":v?\d+\.\d+\.\d+$", each["image"]), each["image"]


@EACH
def test_what_may_grow_has_a_limit(name: str) -> None:
    for workload in workloads(built(name)):
        for each in containers(workload):
            resources = each["resources"]
            assert resources["requests"].keys() >= {"cpu", "memory", "ephemeral-storage"}
            assert resources["limits"].keys() >= {"memory", "ephemeral-storage"}
            assert "cpu" not in resources["limits"], "a throttled process makes every request wait"
        for volume in pod(workload).get("volumes", ()):
            assert volume.get("emptyDir", {"sizeLimit": ""}).keys() >= {"sizeLimit"}


@EACH
def test_tokens_are_mounted_where_they_are_used_alone(name: str) -> None:
    objects = built(name)
    for workload in workloads(objects):
        mounted = pod(workload)["automountServiceAccountToken"]
        of_ours = pod(workload).get("serviceAccountName") == "fairlane"
        asks = of_ours and any(pool.endpoints.kubernetes for pool in config(objects).pools)
        assert mounted is asks
        assert pod(workload)["enableServiceLinks"] is False
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


# -- names and ports ----------------------------------------------------------------------------------


def ports(workload: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for each in containers(workload) for port in each.get("ports", ())}


@EACH
def test_selectors_find_the_pods_that_are_meant(name: str) -> None:
    objects = built(name)
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in workloads(objects)]
    for workload in workloads(objects):
        chosen = workload["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        for spread in pod(workload).get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"] == chosen
    for each in of_kind(objects, "Service"):
        assert sum(each["spec"]["selector"].items() <= found.items() for found in labels) == 1
    for each in of_kind(objects, "PodDisruptionBudget"):
        assert sum(each["spec"]["selector"]["matchLabels"].items() <= found.items() for found in labels) == 1
    for each in of_kind(objects, "NetworkPolicy"):
        assert sum(each["spec"]["podSelector"]["matchLabels"].items() <= found.items() for found in labels) == 1


@EACH
def test_ports_that_are_named_exist(name: str) -> None:
    objects = built(name)
    for service in of_kind(objects, "Service"):
        (workload,) = [
            each
            for each in workloads(objects)
            if service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        for port in service["spec"]["ports"]:
            assert ports(workload)[port["targetPort"]] == port["port"]
            assert port["name"] == port["targetPort"]
    for workload in workloads(objects):
        known = ports(workload)
        for each in containers(workload):
            probes = [each[key] for key in ("startupProbe", "readinessProbe", "livenessProbe") if key in each]
            assert len(probes) >= 2
            for probe in probes:
                assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in known
    policies = of_kind(objects, "NetworkPolicy")
    named = {port["port"] for each in policies for rule in each["spec"].get("ingress", ()) for port in rule["ports"]}
    assert named <= {key for workload in workloads(objects) for key in ports(workload)}


@EACH_FAIRLANE
def test_ports_are_those_of_the_configuration(name: str) -> None:
    objects = built(name)
    listen = config(objects).listen
    known = ports(fairlane(objects))
    assert str(listen.ext_proc) == f"0.0.0.0:{known['grpc-ext-proc']}"
    assert str(listen.http) == f"0.0.0.0:{known['http']}"
    admin = environment(objects).get("FAIRLANE__LISTEN__ADMIN", str(listen.admin))
    # On loopback nobody reaches it over the network, so it is no port of the pod.
    assert admin == (f"0.0.0.0:{known['grpc-admin']}" if "grpc-admin" in known else "127.0.0.1:50052")


@EACH_FAIRLANE
def test_the_monitor_reads_the_service_by_the_name_that_the_rules_have(name: str) -> None:
    objects = built(name)
    for monitor in of_kind(objects, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        chosen = [
            each["metadata"]["name"]
            for each in of_kind(objects, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
            and endpoint["port"] in [port["name"] for port in each["spec"]["ports"]]
        ]
        assert chosen == ["fairlane"], "the job has the name of the Service"
        assert "jobLabel" not in monitor["spec"]


@EACH_FAIRLANE
def test_volumes_are_there_and_never_by_subpath(name: str) -> None:
    objects = built(name)
    volumes = {each["name"]: each for each in pod(fairlane(objects))["volumes"]}
    mounts = container(objects)["volumeMounts"]
    assert {each["name"] for each in mounts} == set(volumes)
    assert not [each for each in mounts if "subPath" in each], "a file mounted so never changes"
    places = [each["mountPath"] for each in mounts]
    assert not [(a, b) for a in places for b in places if a != b and b.startswith(f"{a}/")], "none inside another"
    writable = {each["mountPath"] for each in mounts if not each.get("readOnly")}
    assert writable == {"/var/lib/fairlane", "/tmp"}


@EACH_FAIRLANE
def test_what_is_mounted_is_what_is_read(name: str) -> None:
    objects = built(name)
    places = [each["mountPath"] for each in container(objects)["volumeMounts"]]
    args = container(objects)["args"]
    read = [args[args.index("--config") + 1], str(config(objects).admin.state)]
    store = config(objects).cluster.store
    read += [] if store is None else [str(store.password_file)]
    read += [path for value in environment(objects).values() for path in re.findall(r"/[\w./-]+", value)]
    assert not [path for path in read if not any(path.startswith(f"{place}/") for place in places)]


# -- coming and going ---------------------------------------------------------------------------------


@EACH_FAIRLANE
def test_a_pod_has_time_to_end(name: str) -> None:
    objects = built(name)
    grace = pod(fairlane(objects))["terminationGracePeriodSeconds"]
    assert grace > config(objects).shutdown.grace
    assert "lifecycle" not in container(objects), "a sleep before the end keeps requests in a pod that goes"


@EACH_FAIRLANE
def test_a_node_can_always_be_drained(name: str) -> None:
    objects = built(name)
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert "minAvailable" not in budget
    assert budget["maxUnavailable"] >= 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@EACH_FAIRLANE
def test_a_pod_that_serves_ends_after_another_is_there(name: str) -> None:
    workload = fairlane(built(name))
    spec = workload["spec"]
    volumes = {each["name"]: each for each in pod(workload)["volumes"]}
    if workload["kind"] == "StatefulSet":
        assert spec["replicas"] == 3
        if name != "shared, own store":  # whose fairlane.yaml is the user's
            assert config(built(name)).cluster.replicas == 3
        assert spec["updateStrategy"] == {"type": "RollingUpdate"}
        assert "strategy" not in spec
    elif "persistentVolumeClaim" in volumes["state"]:
        assert spec["strategy"] == {"type": "Recreate"}, "one process writes the file"
        assert volumes["state"] == {"name": "state", "persistentVolumeClaim": {"claimName": "fairlane-state"}}
    else:
        assert spec["replicas"] == 1
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["minReadySeconds"] >= 5


@EACH_FAIRLANE
def test_probes_are_patient_where_they_kill(name: str) -> None:
    probes = container(built(name))
    assert probes["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"] >= 60
    assert probes["livenessProbe"]["timeoutSeconds"] >= 5
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert probes["startupProbe"]["periodSeconds"] * probes["startupProbe"]["failureThreshold"] >= 30


EACH_REPLICATED = pytest.mark.parametrize("name", REPLICATED)


@EACH_REPLICATED
def test_replicas_have_names(name: str) -> None:
    objects = built(name)
    service = one(objects, "Service", "fairlane-pods")["spec"]
    assert fairlane(objects)["spec"]["serviceName"] == "fairlane-pods"
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    # a single one has no health checks of Envoy's: what is not ready must not be named
    assert "publishNotReadyAddresses" not in one(built("overlays/single"), "Service", "fairlane-pods")["spec"]


@EACH_REPLICATED
def test_pods_of_replicas_are_those_of_a_single_one_that_know_their_names(name: str) -> None:
    single, replicas = fairlane(built("overlays/single")), fairlane(built(name))
    assert replicas["kind"] == "StatefulSet"
    (ours,) = containers(replicas)
    (called,) = ours.pop("env")
    assert called == {
        "name": "FAIRLANE__CLUSTER__REPLICA",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
    }
    if name != "overlays/partition":  # which needs no store
        assert ours["volumeMounts"].pop(0)["name"] == pod(replicas)["volumes"].pop(0)["name"] == "store"
    assert replicas["spec"]["template"] == single["spec"]["template"]


@EACH_REPLICATED
def test_the_mode_is_that_of_the_overlay(name: str) -> None:
    cluster = config(built(name)).cluster
    assert cluster.mode == name.removeprefix("overlays/")
    assert cluster.replica is None, "that of the variable counts"
    assert config(built("overlays/single")).cluster.mode == "single"


@pytest.mark.parametrize("name", ["overlays/standby", "overlays/shared"])
def test_the_store_is_the_valkey_beside_it(name: str) -> None:
    objects = built(name)
    store = config(objects).cluster.store
    assert store is not None
    valkey = one(objects, "Deployment", "valkey")
    service = one(objects, "Service", "valkey")
    assert store.addresses == [f"valkey:{service['spec']['ports'][0]['port']}"]
    assert service["metadata"]["namespace"] == fairlane(objects)["metadata"]["namespace"], "a name of one word"
    secrets = [
        next(each["secret"] for each in pod(workload)["volumes"] if each["name"] == "store")
        for workload in (valkey, fairlane(objects))
    ]
    assert secrets[0] == secrets[1]
    folder, _, _ = str(store.password_file).rpartition("/")
    for workload in (valkey, fairlane(objects)):
        (found,) = containers(workload)
        assert {"name": "store", "mountPath": folder, "readOnly": True} in found["volumeMounts"]
    assert valkey["spec"]["replicas"] == 1
    assert valkey["spec"]["strategy"] == {"type": "Recreate"}, "two behind one name would be two stores"
    (ours,) = containers(valkey)
    limit = int(ours["resources"]["limits"]["memory"].removesuffix("Mi"))
    settings = dict(line.split(" ", 1) for line in valkey_conf(objects).splitlines() if line[0] != "#")
    assert limit >= 2 * int(settings["maxmemory"].removesuffix("mb"))
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["save"], settings["appendonly"]) == ('""', "no")


def valkey_conf(objects: list[dict[str, Any]]) -> str:
    (found,) = [each for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"].startswith("valkey-")]
    conf: str = found["data"]["valkey.conf"]
    return conf


def test_the_configuration_keeps_its_name_so_that_it_is_read_again_and_not_rolled_out() -> None:
    for name in OF_FAIRLANE:
        objects = built(name)
        assert one(objects, "ConfigMap", "fairlane")
        assert {"name": "config", "configMap": {"name": "fairlane"}} in pod(fairlane(objects))["volumes"]


def test_a_sidecar_is_asked_for_in_the_pod_that_is_chosen() -> None:
    told = fairlane(built("single, mesh"))["spec"]["template"]["metadata"]
    before = fairlane(built("overlays/single"))["spec"]["template"]["metadata"]
    assert told["labels"] == {**before["labels"], "sidecar.istio.io/inject": "true"}
    assert told["annotations"] == {**before["annotations"], "sidecar.istio.io/nativeSidecar": "true"}
    assert pod(fairlane(built("single, mesh"))) == pod(fairlane(built("overlays/single")))
    assert pod(fairlane(built("single, mesh")))["securityContext"]["runAsUser"] != 1337, "which is the sidecar's"
    service = one(built("single, mesh"), "Service", "fairlane")["spec"]
    assert [each["name"] for each in service["ports"]] == ["grpc-ext-proc", "http"], "tells Istio the protocols"


def test_vllm_is_called_as_in_compose() -> None:
    compose = yaml.safe_load((FOLDER.parents[1] / "compose.yaml").read_text())["services"]["vllm"]
    (workload,) = workloads(built("examples/vllm"))
    (engine,) = containers(workload)
    assert engine["image"] == compose["image"]
    assert engine["command"] == compose["entrypoint"] == ["vllm", "serve"]
    model, *options = engine["args"]
    assert not model.startswith("-"), "by position: --model is deprecated for `vllm serve`"
    assert set(options) < set(compose["command"])
    user = pod(workload)["securityContext"]["runAsUser"]
    assert str(user) == compose["user"].partition(":")[0]


@pytest.mark.parametrize("name", ["examples/sim", "examples/vllm"])
def test_the_engines_are_those_that_the_overlay_names(name: str) -> None:
    (pool,) = config(built("overlays/single")).pools
    assert pool.endpoints.kubernetes is not None
    (dns,) = [each.endpoints.dns for each in config(built("base")).pools]
    assert dns is not None
    service = one(built(name), "Service")
    wanted = (pool.endpoints.kubernetes.service, pool.endpoints.kubernetes.namespace, pool.endpoints.kubernetes.port)
    assert (
        service["metadata"]["name"],
        service["metadata"]["namespace"],
        service["spec"]["ports"][0]["port"],
    ) == wanted
    assert (dns.name, dns.port) == (f"{wanted[0]}.{wanted[1]}.svc.cluster.local.", wanted[2])
    assert service["spec"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in service["spec"]
    (engine,) = [each for workload in workloads(built(name)) for each in containers(workload)]
    assert any("priority" in argument for argument in engine["args"])


def test_the_two_examples_of_engines_share_their_files() -> None:
    for name in ("namespace.yaml", "service.yaml", "network-policy.yaml"):
        texts = [(FOLDER / "examples" / each / name).read_text() for each in ("sim", "vllm")]
        assert texts[0] == texts[1]
