"""The container file, and a box to follow it in: the same paths, another user, a root that cannot be written, a network
and processes of its own. bubblewrap makes it; no container engine is needed."""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
BASE = Path(sys.base_prefix)  # in place of the image of Python
PYTHON = BASE / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"

Step = tuple[str, str]  # "RUN", "pip install ..."


def stages() -> list[list[Step]]:
    """Each begins with its FROM."""
    found: list[list[Step]] = []
    for each in DockerfileParser(path=str(FILE)).structure:
        if each["instruction"] == "FROM":
            found.append([])
        if found and each["instruction"] != "COMMENT":
            found[-1].append((each["instruction"], each["value"]))
    return found


def values(stage: Sequence[Step], instruction: str) -> list[str]:
    return [value for name, value in stage if name == instruction]


def arguments(stage: Sequence[Step]) -> dict[str, str]:
    """Names of ARG -> defaults."""
    return dict(value.split("=", 1) for value in values(stage, "ARG"))


def environment(stage: Sequence[Step]) -> dict[str, str]:
    """Of ENV."""
    return dict(each.split("=", 1) for value in values(stage, "ENV") for each in shlex.split(value))


def context() -> Iterator[Path]:
    """What the build is given: every file that .dockerignore lets through. Relative to the root."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"  # nothing, unless it is named
    let_in = [line[1:] for line in lines if line.startswith("!")]
    kept_out = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    for name in let_in:
        top = ROOT / name
        for file in [top] if top.is_file() else sorted(top.rglob("*")):
            within = file.relative_to(ROOT)
            if file.is_file() and not any(fnmatch.fnmatch(part, each) for part in within.parts for each in kept_out):
                yield within


def need_bubblewrap() -> None:
    """Skips where it is not, and fails in CI; skips where the kernel does not let it."""
    if shutil.which("bwrap") is None or shutil.which("nsenter") is None:
        reason = "bubblewrap is not installed (Debian: apt install bubblewrap)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"user namespaces are not allowed here: {done.stderr.strip()}")


def follow_build(directory: Path, stage: Sequence[Step], given: Mapping[str, str]) -> Path:
    """Run what the stage says, at the paths that it names but for its working directory. `given`: for its ARGs.

    Returns where its /opt/fairlane is. Raises CalledProcessError, with what was said."""
    source, made = directory / "context", directory / "made"
    for file in context():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, source / file)
    work = directory
    made.mkdir()
    temporary = directory / "tmp"
    temporary.mkdir()
    box = ["bwrap", "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/opt"]
    box += ["--ro-bind-try", str(BASE), str(BASE), "--bind", str(directory), str(directory)]
    box += ["--bind", str(made), "/opt/fairlane"]
    ours = {**os.environ, "PATH": f"{_named_python(directory)}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # it is not set while the image is built
    ours |= {**arguments(stage), **given}
    for instruction, value in stage[1:]:
        if instruction == "WORKDIR":
            work = directory / value.lstrip("/")
            work.mkdir(parents=True)
        elif instruction == "COPY":
            *sources, target = value.split()
            for name in sources:
                from_, to = source / name, work / target
                if from_.is_dir():
                    shutil.copytree(from_, to, dirs_exist_ok=True)
                else:
                    to.mkdir(parents=True, exist_ok=True)
                    shutil.copy(from_, to)
        elif instruction == "RUN":
            shell = [*box, "--chdir", str(work), "/bin/sh", "-e", "-c", value]
            done = subprocess.run(shell, env=ours, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, f"{value}\n{done.stdout}\n{done.stderr}"
        else:
            assert instruction == "ARG", f"{instruction} is not followed: teach it to follow_build"
    return made


def _named_python(directory: Path) -> Path:
    """A folder in which this Python is `python`, as in the image: Debian's has no such name. No link, since a virtual
    environment would lead to it."""
    folder = directory / "bin"
    folder.mkdir()
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(PYTHON))} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return folder


class Running:
    """The last stage: its ENTRYPOINT with `command`, as its user, as process 1. Ended with the block."""

    def __init__(
        self, directory: Path, installed: Path, stage: Sequence[Step], command: Sequence[str], config: Path
    ) -> None:
        user, _, group = values(stage, "USER")[-1].partition(":")
        state = directory / "state"
        state.mkdir()
        state.chmod(0o777)
        self.log = directory / "log"
        variables = environment(stage)
        variables["PATH"] = variables["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        self._box = ["bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL", "--new-session"]
        self._box += ["--uid", user, "--gid", group, "--clearenv", "--proc", "/proc", "--dev", "/dev"]
        for name, value in variables.items():
            self._box += ["--setenv", name, value]
        self._box += ["--ro-bind", "/usr", "/usr"]
        for link in ("bin", "lib", "lib64", "sbin"):
            self._box += ["--symlink", f"usr/{link}", f"/{link}"]
        self._box += ["--ro-bind-try", str(BASE), str(BASE), "--ro-bind", str(installed), "/opt/fairlane"]
        self._box += [
            "--ro-bind",
            str(config),
            "/etc/fairlane/fairlane.yaml",
            "--bind",
            str(state),
            "/var/lib/fairlane",
        ]
        self._box += ["--remount-ro", "/"]
        self._command = [*json.loads(values(stage, "ENTRYPOINT")[-1]), *command]
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # outside of the box

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._box, "--info-fd", str(writing), "--", *self._command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writing],
            )  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as said:
            text = said.read()
        assert text, self.log.read_text()
        self.pid = json.loads(text)["child-pid"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()  # what is inside goes with it
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exec(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """As `docker exec`, or a health check."""
        enter = ["nsenter", "--target", str(self.pid), "--user", "--net", "--mount", "--pid", "--preserve-credentials"]
        path = "/opt/fairlane/bin:/usr/bin:/bin"
        return subprocess.run(
            [*enter, "/usr/bin/env", "-i", f"PATH={path}", *command],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def stop(self, number: signal.Signals, timeout_s: float) -> int:
        """As `docker stop`; its exit code. Raises TimeoutExpired."""
        assert self._process is not None
        os.kill(self.pid, number)
        return self._process.wait(timeout_s)
