"""`fairlane ctl completion`: the scripts are such as the shells take, and they complete commands, options and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ctl_case import Service, run

from extproc.cli.main import main
from extproc.pb.admin.v1 import admin_pb2 as pb


def complete(words: str, env: dict[str, str] | None = None) -> list[str]:
    """What a shell would offer for the last word."""
    typed = words.split(" ")
    asked = {"_FAIRLANE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(typed) - 1)}
    result = CliRunner().invoke(main, [], prog_name="fairlane", env={**asked, **(env or {})})
    assert result.exit_code == 0, result.output
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("shell", "told"), [("bash", "complete -o"), ("zsh", "#compdef fairlane"), ("fish", "complete ")]
)
def test_there_is_a_script_for_each_shell(shell: str, told: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert told in result.stdout
    assert f"_FAIRLANE_COMPLETE={shell}_complete" in result.stdout
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=result.stdout, text=True, check=True, timeout=60)


def test_commands_options_and_values() -> None:
    assert complete("fairlane ctl reco") == ["record"]
    assert sorted(complete("fairlane ctl record st")) == ["start", "status", "stop"]
    assert complete("fairlane ctl pause --rea") == ["--reason"]
    assert complete("fairlane ctl --output ") == ["table", "json", "yaml"]
    assert complete("fairlane ctl mode llama o") == ["observe", "off"]


def test_names_are_asked_of_the_service() -> None:
    with Service() as service:
        names = ("llama", "llava", "qwen", "evil\x1b[2J", "two words")
        classes = [pb.ClassStats(name="batch"), pb.ClassStats(name="interactive")]
        service.answers["ListPools"] = pb.ListPoolsResponse(pools=[pb.Pool(name=n, classes=classes) for n in names])
        service.answers["ListFlows"] = pb.ListFlowsResponse(flows=[pb.Flow(tenant="team-a"), pb.Flow(tenant="team-a")])
        env = {"FAIRLANE_ADDRESS": service.address}
        assert complete("fairlane ctl pause l", env) == ["llama", "llava"]
        assert complete("fairlane ctl pause ", env) == ["llama", "llava", "qwen"]
        assert complete("fairlane ctl class ", env) == ["batch", "interactive"]
        assert complete("fairlane ctl boost te", env) == ["team-a"]
        assert complete(f"fairlane ctl --address {service.address} pool q") == ["qwen"]


def test_without_a_service_there_are_no_names() -> None:
    assert complete("fairlane ctl pause l", {"FAIRLANE_ADDRESS": "127.0.0.1:1"}) == []
    assert complete("fairlane ctl pause l", {"FAIRLANE_ADDRESS": "nonsense"}) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_real_bash_takes_the_script() -> None:
    """As a user has it: the script is read, and the function that it defines fills COMPREPLY."""
    lines = (
        'eval "$(fairlane ctl completion bash)"',
        "COMP_WORDS=(fairlane ctl roll) COMP_CWORD=2",
        "_fairlane_completion fairlane",
        'echo "${COMPREPLY[@]}"',
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert done.stdout == "rollback\n"
