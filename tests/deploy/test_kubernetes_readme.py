"""deploy/kubernetes/README.md: its folders, its commands, and its kustomization, as they stand."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from kubernetes_case import FOLDER, REPLICATED, ROOT, built, check_manifests, fairlane, needs_kustomize, pod

from extproc.cli.envoy_config import envoy_config

pytestmark = pytest.mark.slow

README = (FOLDER / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Of the blocks of shell, one a line, without what continues and without comments."""
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    lines = [re.sub(r"\s{2,}#.*", "", line).strip() for line in text.splitlines()]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


def test_the_table_has_each_folder() -> None:
    told = set(re.findall(r"^\| `((?:base|overlays|components)[\w/-]*)`", README, re.MULTILINE))
    assert told == {
        str(each.parent.relative_to(FOLDER))
        for each in FOLDER.rglob("kustomization.yaml")
        if not each.is_relative_to(FOLDER / "examples")
    }
    (row,) = re.findall(r"^\| `examples` \|.*", README, re.MULTILINE)
    assert set(re.findall(r"\(?`([\w-]+)`", row)) - {"examples"} == {
        each.name for each in (FOLDER / "examples").iterdir()
    }


def test_what_is_applied_is_there() -> None:
    applied = [each.split()[3] for each in commands() if each.startswith("kubectl apply -k")]
    assert len(applied) >= 4
    for each in applied:
        assert yaml.safe_load((ROOT / each / "kustomization.yaml").read_text())["kind"] == "Kustomization"


def test_objects_that_commands_name_are_there() -> None:
    known = {
        (each["metadata"].get("namespace"), each["kind"].lower(), each["metadata"]["name"])
        for name in ("overlays/single", "overlays/shared", "examples/envoy", "examples/sim")
        for each in built(name)
    }
    named = re.findall(
        r"kubectl -n ([\w-]+) [^\n&|`]*?\b(deploy|deployment|service|svc)/([\w-]+)", "\n".join([*commands(), README])
    )
    assert len(named) >= 6
    long = {"deploy": "deployment", "svc": "service"}
    assert not {(space, long.get(kind, kind), name) for space, kind, name in named} - known


@pytest.mark.parametrize(
    "command",
    [each for each in commands() if each.startswith("fairlane envoy-config")],
    ids=lambda each: str(len(each)),
)
def test_envoys_are_made_by_the_commands(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(envoy_config, shlex.split(command)[2:])
    assert done.exit_code == 0, done.output
    made = yaml.safe_load(done.stdout)
    names = set(re.findall(r"--ext-proc (\S+):50051", command))
    clusters = {each["name"]: each for each in made["static_resources"]["clusters"]}
    endpoints = clusters["fairlane"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert {each["endpoint"]["address"]["socket_address"]["address"] for each in endpoints} == names
    assert ("transport_socket" in clusters["fairlane"]) is ("--fairlane-ca" in command)
    assert ("health_checks" in clusters["fairlane"]) is (len(names) > 1)


def test_there_is_a_command_for_each_way() -> None:
    made = [each for each in commands() if each.startswith("fairlane envoy-config")]
    assert len(made) == 3
    replicas = [f"{each}.fairlane-pods" for each in ("fairlane-0", "fairlane-1", "fairlane-2")]
    (for_three,) = [command for command in made if all(each in command for each in replicas)]
    assert "overlays/shared/fairlane.yaml" in for_three
    for name in REPLICATED:
        assert fairlane(built(name))["spec"]["replicas"] == len(replicas)


@pytest.mark.parametrize("name", REPLICATED)
def test_the_command_for_three_is_for_each_of_their_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (command,) = [each for each in commands() if "overlays/shared/fairlane.yaml" in each]
    done = CliRunner().invoke(envoy_config, shlex.split(command.replace("overlays/shared", name))[2:])
    assert done.exit_code == 0, done.output
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert not [each for each in notes if "cluster.mode" in each or "cluster.replicas" in each], "both fit"
    clusters = {each["name"]: each for each in yaml.safe_load(done.stdout)["static_resources"]["clusters"]}
    assert (clusters["fairlane"].get("lb_policy") == "RING_HASH") is (name == "overlays/partition")


def test_what_the_other_overlay_leaves_behind_is_deleted() -> None:
    """What `kubectl apply` of one does not change of the other, and the Services still choose."""

    def objects(overlay: str) -> set[str]:
        """But the ConfigMap with a hash, which harms nobody."""
        named = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in built(overlay)}
        return {each for each in named if not each.startswith("configmap/valkey-")}

    single = objects("overlays/single")
    assert single ^ objects("overlays/partition") == {"deployment/fairlane", "statefulset/fairlane"}
    assert objects("overlays/standby") == objects("overlays/shared")
    deleted = re.findall(r"kubectl -n fairlane delete ([^`#\n]+)", README)
    assert set(" ".join(deleted).split()) == single ^ objects("overlays/shared")


def test_what_is_forwarded_is_waited_for() -> None:
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    behind = [lines[at + 1] for at, line in enumerate(lines) if " port-forward " in line and line.endswith("&")]
    assert behind
    assert all(line.startswith("curl ") and "--retry-connrefused" in line for line in behind)


def test_the_kustomization_of_ones_own_builds(tmp_path: Path) -> None:
    needs_kustomize()
    (written,) = blocks("yaml")
    mine = tmp_path.resolve() / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(written.replace("../fairlane", os.path.relpath(ROOT, mine)))
    (mine / "fairlane.yaml").write_text("pools: [{name: mine, models: ['*'], endpoints: ['10.0.0.1:8000']}]\n")
    objects = check_manifests.objects(str(mine))
    assert [str(each) for each in check_manifests.check("mine", objects, check_manifests.Crds())] == []
    assert pod(fairlane(objects))["containers"][0]["image"] == "registry.example/llm/fairlane:0.1.0"
    (config,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "fairlane")]
    assert "mine" in config["data"]["fairlane.yaml"]
