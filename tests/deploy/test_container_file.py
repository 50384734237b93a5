"""The container file: what it may contain, and that it is followed by a program that runs as it says."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from container_case import (
    FILE,
    ROOT,
    Running,
    arguments,
    context,
    environment,
    follow_build,
    need_bubblewrap,
    stages,
    values,
)

from extproc import __version__
from extproc.cli.main import main

MOST_BYTES = 150_000_000  # of what the last stage copies


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, FILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_hadolint_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM python:latest\nRUN cd /tmp\nCMD fairlane serve\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", wrong], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert {"DL3007", "DL3003", "DL3025"} <= set(re.findall(r"DL\d+", done.stdout))


def test_two_stages_of_one_pinned_python() -> None:
    build, last = stages()
    assert values(build, "FROM") == ["python:${PYTHON}-slim-bookworm AS build"]
    assert values(last, "FROM") == ["python:${PYTHON}-slim-bookworm"]
    (pinned,) = re.findall(r"^ARG PYTHON=(.*)$", FILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"3\.\d+\.\d+", pinned)


def test_the_last_stage_takes_nothing_but_what_was_built() -> None:
    _, last = stages()
    assert values(last, "COPY") == ["--from=build /opt/fairlane /opt/fairlane"]
    assert values(last, "ADD") == []
    for command in values(last, "RUN"):
        assert not re.search(r"pip\S* install|apt|curl|wget|chmod|setuid", command)
    assert "pip uninstall --yes --root-user-action=ignore pip setuptools wheel" in values(last, "RUN")[0]


def test_it_is_not_root_and_the_user_is_the_one_of_compose() -> None:
    _, last = stages()
    (user,) = values(last, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)  # a number: Kubernetes' runAsNonRoot believes no names
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services["fairlane"]["user"] == user


def test_no_shell_stands_between_signals_and_the_process() -> None:
    _, last = stages()
    entrypoint, command = (json.loads(values(last, name)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert entrypoint == ["fairlane"]
    exists(command)
    assert values(last, "STOPSIGNAL") == ["SIGTERM"]


def test_the_health_check_is_a_command_of_ours() -> None:
    options, command = health_check()
    assert options.keys() == {"--interval", "--timeout", "--start-period", "--retries"}
    assert command[0] == "fairlane"
    exists(command[1:])


def health_check() -> tuple[dict[str, str], list[str]]:
    (text,) = values(stages()[-1], "HEALTHCHECK")
    options, _, command = text.partition(" CMD ")
    return dict(each.split("=") for each in options.split()), json.loads(command)


def exists(given: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), given[0])
        assert found is not None
        command, given = found, given[1:]
    command.make_context("test", list(given))  # raises on an unknown option or a bad value


def test_labels_say_what_it_is() -> None:
    (text,) = values(stages()[-1], "LABEL")
    labels = dict(each.split("=", 1) for each in shlex.split(text))
    prefix = "org.opencontainers.image."
    assert labels.keys() == {prefix + name for name in ("title", "description", "version", "licenses")}
    assert labels[prefix + "version"] == __version__


def test_the_image_is_called_by_its_version() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services["fairlane"]["image"] == f"fairlane:{__version__}"
    assert f"-t fairlane:{__version__}" in FILE.read_text()


def test_what_is_copied_is_let_through_and_nothing_else_is() -> None:
    build, _ = stages()
    copied = {source for value in values(build, "COPY") for source in value.split()[:-1]}
    files = set(context())
    assert {file.parts[0] for file in files} == copied
    assert not [file for file in files if "__pycache__" in file.parts]


def test_extras_can_be_chosen_and_exist() -> None:
    build, _ = stages()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(arguments(build)["EXTRAS"].split(",")) <= set(extras)
    for chosen in re.findall(r"EXTRAS=(\S+)", FILE.read_text()):
        assert set(chosen.split(",")) <= set(extras)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_built_and_runs_as_the_file_says(tmp_path: Path) -> None:
    """The build stage's commands, word for word, at the same paths. Then the last stage's entry point, command, user,
    environment and health check, with a root that cannot be written. Not followed: the last stage's RUN, which takes
    pip out of the image of Python and compiles its library."""
    need_bubblewrap()
    build, last = stages()
    installed = follow_build(tmp_path, build, {})

    # What is in it, and what is not
    programs = {file.name for file in (installed / "bin").iterdir()}
    assert "fairlane" in programs
    assert not {name for name in programs if re.match(r"pip|easy_install|wheel|gcc|cc|hatch", name)}
    (site,) = installed.glob("lib/python3.*/site-packages")
    assert not [name for name in ("pip", "setuptools", "wheel", "hatchling", "pytest") if (site / name).exists()]
    (root,) = site.glob("extproc")
    assert not [file for file in root.rglob("*.py") if not list(file.parent.glob(f"__pycache__/{file.stem}.*.pyc"))]
    assert sum(file.lstat().st_size for file in installed.rglob("*") if not file.is_dir()) < MOST_BYTES

    # It runs
    command = json.loads(values(last, "CMD")[0])
    _, check = health_check()
    config = ROOT / "deploy" / "compose" / "fairlane.yaml"
    with Running(tmp_path, installed, last, command, config) as container:
        deadline = time.monotonic() + 60
        while (asked := container.exec(check)).returncode != 0:
            assert container.running, container.log.read_text()
            assert time.monotonic() < deadline, f"{asked.stdout}{asked.stderr}\n{container.log.read_text()}"
            assert asked.stdout == ""
            time.sleep(0.1)
        assert asked.stdout == "http://127.0.0.1:9090/readyz: ready\n"
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert "\nCapEff:\t0000000000000000\n" in status
        inside = container.exec(["python", "-c", _LOOK])
        assert inside.stdout == "10001 1 fairlane\n/: Read-only file system\n/opt/fairlane: Read-only file system\n"
        said = container.exec(["fairlane", "ctl", "status"])
        assert said.returncode == 0, said.stderr
        assert re.search(r"^pools +1$", said.stdout, re.MULTILINE)
        assert container.stop(signal.SIGTERM, 40) == 0
    log = container.log.read_text()
    assert "Traceback" not in log
    assert '"level": "error"' not in log


# Who is process 1, as whom, and what can be written.
_LOOK = """
import os, pathlib
name = pathlib.Path("/proc/1/cmdline").read_bytes().split(b"\\0")[1].decode().rpartition("/")[2]
print(os.stat("/proc/1").st_uid, 1, name)
for folder in ("/", "/opt/fairlane"):
    try:
        (pathlib.Path(folder) / "x").touch()
        print(folder, "was written")
    except OSError as error:
        print(f"{folder}: {error.strerror}")
"""


def test_the_environment_lets_nothing_be_compiled_later() -> None:
    variables = environment(stages()[-1])
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert variables["PYTHONUNBUFFERED"] == "1"
    assert variables["PATH"].startswith("/opt/fairlane/bin:")
