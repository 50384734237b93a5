"""Each object against the published schemas of four releases of Kubernetes, strictly, and of the CRDs; and the tool
that does it, tools/check_manifests.py."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_case import EVERYTHING, FOLDER, ROOT, TOGETHER, built, check_manifests, needs_kustomize, one

pytestmark = pytest.mark.slow

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {ports: [{port: 80}]}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: toys.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Toy, plural: toys}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            properties:
              port: {x-kubernetes-int-or-string: true}
              size: {type: string, pattern: '^(?i)(small|large)$'}
              colour: {type: string, nullable: true, enum: [red]}
              open: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {known: {type: string}}}
              default: {type: boolean}
"""
TOY = {"apiVersion": "example.org/v1", "kind": "Toy", "metadata": {"name": "t"}}


def faults(text: str, crds: str | None = None, releases: tuple[str, ...] = ("1.34",)) -> list[str]:
    known = check_manifests.Crds([crds] if crds else [])
    found = check_manifests._parsed(text, "here")
    return [str(each) for each in check_manifests.check("here", found, known, releases)]


@pytest.mark.parametrize("name", EVERYTHING)
def test_objects_are_as_the_schemas_say(name: str) -> None:
    objects = built(name)
    assert objects
    assert [str(each) for each in check_manifests.check(name, objects, check_manifests.Crds())] == []


def test_each_folder_is_looked_at() -> None:
    has = {str(each.parent.relative_to(FOLDER)) for each in FOLDER.rglob("kustomization.yaml")}
    components = {each for each in has if each.startswith("components/")}
    assert has - components == {each for each in EVERYTHING if "," not in each}
    used = {f"components/{each}" for _, names in TOGETHER.values() for each in names}
    in_overlays = {
        f"components/{Path(component).name}"
        for overlay in (FOLDER / "overlays").iterdir()
        for component in yaml.safe_load((overlay / "kustomization.yaml").read_text()).get("components", ())
    }
    assert components - used == in_overlays - used, "the others are in an overlay"
    assert in_overlays - used == {"components/endpoint-slices", "components/valkey"}


def test_the_same_tree_of_objects_is_sent_at_most_once() -> None:
    for name in EVERYTHING:
        keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in built(name)]
        assert len(keys) == len(set(keys))


def test_the_rules_are_those_of_the_file() -> None:
    rule = one(built("single, all"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "fairlane.rules.yaml").read_text())


def test_the_dashboard_is_the_file_and_can_be_applied() -> None:
    config = one(built("single, all"), "ConfigMap", "fairlane-dashboard")
    assert config["data"]["fairlane.json"] == (ROOT / "deploy" / "grafana" / "fairlane.json").read_text()
    # `kubectl apply` keeps the whole object in an annotation, of 256 KiB at most
    assert len(yaml.safe_dump(config)) < 256 * 1024


# -- the tool -----------------------------------------------------------------------------------------


def test_a_good_object_has_no_fault() -> None:
    assert faults(SERVICE) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            SERVICE.replace("port: 80", 'port: "80"'),
            "here: Service/a: spec.ports.0.port: '80' is not of type 'integer'",
        ),
        (SERVICE.replace("spec:", "spek:"), "'spek' was unexpected"),
        (SERVICE.replace("{port: 80}", "{port: 80, colour: red}"), "'colour' was unexpected"),
        (SERVICE.replace("v1", "v3"), "there is no schema for Service of v3"),
        (SERVICE.replace("name: a", ""), "here: Service, document 1: metadata.name is missing"),
        (SERVICE.replace("kind: Service", ""), "here: document 1: is no object"),
        ("just text", "here: document 1: is no object"),
        (f"{SERVICE}---{SERVICE}", "here: Service/a: stands twice"),
        (yaml.safe_dump(TOY), "there is no schema for Toy of example.org/v1: name a folder with its CRD"),
        (
            "{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: a}, "
            "spec: {selector: {}, endpoints: [{port: http, intervall: 15s}]}}",
            "'intervall' was unexpected",
        ),
        (
            "{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: a}, spec: {secretName: s}}",
            "'issuerRef' is a required property",
        ),
    ],
)
def test_faults(text: str, told: str) -> None:
    (found,) = faults(text)
    assert told in found


def test_what_one_release_has_not_yet_is_said_with_its_name() -> None:
    # a release that has no containers[].restartPolicyRules, which came with 1.34
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, restartPolicyRules: "
        "[{action: Restart}]}]}}"
    )
    assert faults(pod, releases=("1.34",)) == []
    (found,) = faults(pod, releases=("1.30", "1.34"))
    assert "'restartPolicyRules' was unexpected" in found
    assert found.endswith("(Kubernetes 1.30)")


def test_lists_are_taken_apart() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(SERVICE.replace("80", "x"))]}
    (found,) = faults(yaml.safe_dump(listed))
    assert "Service/a" in found


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"port": 1, "size": "SMALL", "colour": None, "open": {"any": 1}, "default": True}, None),
        ({"port": "http"}, None),
        ({"port": 1.5}, "spec.port"),
        ({"size": "huge"}, "spec.size"),
        ({"colour": "blue"}, "spec.colour"),
        ({"taste": 1}, "'taste' was unexpected"),
        ({"default": "yes"}, "spec.default"),
        (None, "'spec' is a required property"),
    ],
)
def test_a_crd_of_a_folder(tmp_path: Path, spec: Any, told: str | None) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "crd.yaml").write_text(CRD)
    found = faults(yaml.safe_dump(TOY if spec is None else TOY | {"spec": spec}), str(tmp_path))
    if told is None:
        assert found == []
    else:
        assert len(found) == 1
        assert told in found[0]


def test_as_a_command() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_manifests.py"), "--kubernetes", "1.31", "-"]
    for text, code, told in (
        (SERVICE, 0, "1 objects, 0 faults"),
        (SERVICE.replace("80", "x"), 1, "1 objects, 1 faults"),
    ):
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, f"{told}. Kubernetes 1.31.")


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("a: {", (), "is no YAML"),
        ("a: 1\na: 2", (), "the key 'a' stands twice"),
        ("", (), "there are no objects"),
        (SERVICE, ("--kubernetes", "1.2"), "there are no schemas for Kubernetes 1.2"),
        (SERVICE, ("--crds", str(ROOT / "fairlane.yaml")), "has no CustomResourceDefinition"),
        (SERVICE, ("no/such/file.yaml",), "cannot be read"),
    ],
)
def test_what_cannot_be_checked_is_told_with_another_code(
    text: str,
    options: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert check_manifests.main([*options, "-"]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_is_built_or_read(tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(SERVICE)
    assert len(check_manifests.objects(str(tmp_path))) == 1
    needs_kustomize()
    (tmp_path / "kustomization.yaml").write_text("resources: [service.yaml]\nnamePrefix: my-\n")
    (found,) = check_manifests.objects(str(tmp_path))
    assert found["metadata"]["name"] == "my-a"
    (tmp_path / "kustomization.yaml").write_text("resources: [gone.yaml]\n")
    with pytest.raises(check_manifests.CheckError, match="gone"):
        check_manifests.objects(str(tmp_path))
