"""The command itself: what it lists, and that no subcommand is loaded before it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc import __version__
from extproc.cli.main import main

COMMANDS = ("check-config", "demo", "serve", "sim", "up")


def test_help_lists_every_command_with_a_line_of_its_own() -> None:
    for flag in ("--help", "-h"):
        result = CliRunner().invoke(main, [flag])
        assert result.exit_code == 0
        lines = [line.split(maxsplit=1) for line in result.output.partition("Commands:")[2].splitlines() if line]
        names = [name for name, _ in lines]
        assert names == sorted(names)
        assert set(COMMANDS) <= set(names)
        assert all(len(text) > 10 for _, text in lines)


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"fairlane, version {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {command} ")


def test_a_command_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["srve"])
    assert result.exit_code == 2
    assert "No such command 'srve'" in result.output


def test_the_installed_command() -> None:
    """As users call it; and it imports neither gRPC nor the service to say its version."""
    script = "import sys; sys.argv[1:] = ['--version']\n"
    script += "from extproc.cli.main import main\n"
    script += "try: main()\n"
    script += "finally: print({'grpc', 'extproc.service', 'aiohttp'} & set(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"fairlane, version {__version__}\nset()\n"
    assert done.stderr == ""
    assert (Path(sys.executable).parent / "fairlane").exists()
