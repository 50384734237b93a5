"""The manifests as kustomize builds them: the folders, and the overlays with the components."""

from __future__ import annotations

import copy
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from promql import ROOT

sys.path.append(str(ROOT / "tools"))

import check_manifests

Json = dict[str, Any]
FOLDER = ROOT / "deploy" / "kubernetes"
REPLICATED = ("overlays/standby", "overlays/partition", "overlays/shared")
FOLDERS = (
    "base",
    "overlays/single",
    *REPLICATED,
    *(f"examples/{each}" for each in ("sim", "vllm", "envoy", "envoy-three")),
)
WITH_CRDS = ("monitoring", "tls")
# Name: overlay and components, as a user would put them together.
TOGETHER: dict[str, tuple[str, tuple[str, ...]]] = {
    "single, kept": ("overlays/single", ("state",)),
    "single, tokens": ("overlays/single", ("admin-tokens",)),
    "single, mesh": ("overlays/single", ("monitoring", "mesh-sidecar")),
    "single, all": ("overlays/single", ("monitoring", "tls", "admin-tokens", "admin-network", "state")),
    "partition, all": ("overlays/partition", ("monitoring", "tls", "admin-tokens", "admin-network")),
    "shared, all": ("overlays/shared", ("monitoring", "tls", "admin-tokens", "admin-network")),
    "shared, own store": ("overlays/single", ("replicas", "store")),
}
EVERYTHING = (*FOLDERS, "examples/cert-manager", *TOGETHER)
OF_FAIRLANE = ("base", "overlays/single", *REPLICATED, *TOGETHER)


def built(name: str) -> list[Json]:
    """The objects of a folder, or of one of TOGETHER. Skips without a kustomize that has components, fails in CI."""
    return copy.deepcopy(_built(name))  # each test has its own


@functools.cache
def _built(name: str) -> list[Json]:
    needs_kustomize()
    if name not in TOGETHER:
        return check_manifests.objects(str(FOLDER / name))
    overlay, components = TOGETHER[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        written = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(FOLDER / overlay, place)],
            "components": [os.path.relpath(FOLDER / "components" / each, place) for each in components],
        }
        (place / "kustomization.yaml").write_text(yaml.safe_dump(written))
        return check_manifests.objects(str(place))


@functools.cache
def _kustomize() -> str | None:
    """Why there is none that will do; None: there is."""
    command = check_manifests.builder()
    if command is None:
        return "neither kustomize nor kubectl is installed"
    words = [command[0], "version", *(["--client", "--output=yaml"] if command[-1] == "kustomize" else [])]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"(?:kustomizeVersion: |^)\{?(?:kustomize/)?v(\d+)", told, re.MULTILINE)
    if found is None or int(found[1]) < 4:
        return f"{' '.join(words)} tells no kustomize of 4 or later: {told[:200]}"
    return None


def needs_kustomize() -> None:
    reason = _kustomize()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def of_kind(objects: list[Json], *kinds: str) -> list[Json]:
    return [each for each in objects if each["kind"] in kinds]


def one(objects: list[Json], kind: str, name: str | None = None) -> Json:
    (found,) = [each for each in of_kind(objects, kind) if name in (None, each["metadata"]["name"])]
    return found


def workloads(objects: list[Json]) -> list[Json]:
    return of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod")


def fairlane(objects: list[Json]) -> Json:
    (found,) = [each for each in workloads(objects) if each["metadata"]["name"] == "fairlane"]
    return found


def pod(workload: Json) -> Json:
    return workload["spec"]["template"]["spec"]


def containers(workload: Json) -> Iterator[Json]:
    yield from pod(workload)["containers"]
    yield from pod(workload).get("initContainers", ())


def container(objects: list[Json]) -> Json:
    (found,) = containers(fairlane(objects))
    return found


def environment(objects: list[Json]) -> dict[str, str]:
    """Of the first pod."""
    found = {}
    for each in container(objects).get("env", ()):
        if "valueFrom" in each:
            assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        found[each["name"]] = each["value"] if "value" in each else f"{fairlane(objects)['metadata']['name']}-0"
    return found


def file(objects: list[Json]) -> str:
    """fairlane.yaml of the ConfigMap."""
    return one(objects, "ConfigMap", "fairlane")["data"]["fairlane.yaml"]
