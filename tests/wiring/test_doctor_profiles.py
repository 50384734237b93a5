"""Whatever `fairlane envoy-config` writes passes the doctor, with the notes that each choice deserves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_case import ROOT, USUAL, Envoy, classes, config, findings, pool

from extproc.config.model import Config
from extproc.wiring import derive
from extproc.wiring.build import build
from extproc.wiring.doctor import examine
from extproc.wiring.doctor.source import Source, parse, read_file
from extproc.wiring.text import as_yaml

pytestmark = pytest.mark.slow

NOTES = {"duplex.yaml": {"full_duplex_fails_open"}, "standard-estimate.yaml": {"usage_estimated"}}
FILES = sorted((ROOT / "envoy").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_files(file: Path) -> None:
    report = examine(read_file(file), config())
    assert report.clean, report.findings
    assert {each.id for each in report.findings} - USUAL == NOTES.get(file.name, set())


def generated(fairlane: Config, replicas: list[tuple[str, int]] | None = None, **chosen: Any) -> set[str]:
    """What is said of the configuration that is made from fairlane.yaml."""
    at = derive.addresses(fairlane, **({"ext_proc": replicas} if replicas else {}))
    built = build(derive.wiring(fairlane, **chosen), at)
    text = as_yaml(built.config, [])
    return {each.id for each in examine(Source("made", parse(text, "made")), fairlane).findings} - USUAL


CHOICES = [
    ({"profile": profile, "usage": usage, "facts": facts}, set())
    for profile in ("standard", "strict", "body")
    for usage in ("access_log", "stream")
    for facts in ("json", "lua")
]


@pytest.mark.parametrize(("chosen", "notes"), CHOICES, ids=lambda each: "-".join(each.values()) if each else "")
def test_generated_files(chosen: dict[str, str], notes: set[str]) -> None:
    assert generated(config(), **chosen) == notes


@pytest.mark.parametrize("envoy", [36, 37, 38, 39])
def test_for_older_envoys(envoy: int) -> None:
    assert generated(config(), envoy=envoy) == set()


@pytest.mark.parametrize("profile", ["standard", "strict", "body"])
def test_for_two_replicas(profile: str) -> None:
    two = [("127.0.0.1", 50051), ("127.0.0.1", 50061)]
    assert generated(config(), profile=profile, replicas=two) <= {"access_log_replicas"}


def test_what_fairlane_yaml_asks_for() -> None:
    for profile, notes in (("standard", set()), ("strict", set()), ("body", {"body_priority_fails_open"})):
        assert generated(config(pools=pool(priority_via="both")), profile=profile) == notes
    assert generated(config(requests={"include_usage": "inject"})) == {"usage_chunk_shown"}
    assert generated(config(requests={"include_usage": "inject"}), usage="stream") == set()
    assert generated(config(classes=classes(preemptible=True))) == set()
    assert generated(config(identity={"tenant": [{"certificate": {}}], "class": []})) == set()
    claims = {"tenant": [{"metadata": {"namespace": "my.claims", "path": ["sub"]}}], "class": []}
    assert generated(config(identity=claims)) == set()
    few = {"queued": ["/v1/chat/completions", "/v2/mine"], "max_body": "64MiB"}
    assert generated(config(requests=few)) == set()


def test_a_file_made_for_another_fairlane_yaml() -> None:
    """The shipped file, and a fairlane.yaml that wants more of it."""
    more = {"queued": [*config().requests.queued, "/v2/mine"], "max_body": "64MiB"}
    found = {each.id for each in findings(Envoy(), config(requests=more))}
    assert found == {"path_not_queued", "body_limit"}
