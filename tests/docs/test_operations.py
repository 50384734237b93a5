"""docs/operations.md, "Several replicas": the tests that it names, the store's account, and its memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc.cluster.scripts import COMMANDS, MOST_MESSAGE_BYTES, SENTINEL_COMMANDS
from extproc.cluster.store import LARGEST_CONFIGURATION, LARGEST_DOCUMENT
from extproc.config.cluster import Cluster
from extproc.wiring.shipped import REPLICAS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SECTION = (ROOT / "docs" / "operations.md").read_text().split("\n## Several replicas\n", 1)[1].split("\n## ", 1)[0]
NAMED = sorted(set(re.findall(r"`((?:\w+/)?test_\w+\.py)(?:::(test_\w+))?`", SECTION)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    """Without a folder it is one with the real Envoy."""
    text = (TESTS / (file if "/" in file else f"e2e/{file}")).read_text()
    assert f"def {name or 'test_'}" in text


def test_each_fault_has_a_test() -> None:
    table = SECTION.split("\n### When ", 1)[1].split("\n### ", 1)[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert head == ["fault", "`standby`", "`partition`", "`shared`", "test"]
    assert len(rows) >= 9
    assert [row for row in rows if "test_" not in row[-1]] == []


def test_the_account_of_the_store_may_do_what_it_must() -> None:
    """By tests/cluster an account needs each of these and no other."""
    (line,) = re.findall(r"ACL SETUSER .*", SECTION)
    assert [word for word in line.split() if word.startswith("+")] == [f"+{each}" for each in COMMANDS]
    assert f"~{{fairlane:{Cluster().name}}}:*" in line.split()
    for each in SENTINEL_COMMANDS:
        assert f"+{each}" in SECTION


def test_the_memory_that_is_said_is_enough() -> None:
    (said,) = re.findall(r"\*\*memory\*\*: (\d+) MiB hold what (\d+) replicas", SECTION)
    most, replicas = map(int, said)
    with pytest.raises(ValueError, match="replicas"):
        Cluster(replicas=replicas + 1)
    assert MOST_MESSAGE_BYTES + replicas * LARGEST_DOCUMENT + LARGEST_CONFIGURATION < most * 2**20
    conf = (ROOT / "deploy/kubernetes/components/valkey/valkey.conf").read_text()
    (given,) = re.findall(r"^maxmemory (\d+)mb$", conf, re.MULTILINE)
    assert int(given) >= 2 * most


def test_the_files_of_envoy_are_those_that_the_table_names() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("| `")]
    named = {f"{mode}-{count}" for line in rows for mode, count in re.findall(r"(standby|partition|shared)-(\d)", line)}
    assert {f"replicas/{each}.yaml" for each in named} == set(REPLICAS)
