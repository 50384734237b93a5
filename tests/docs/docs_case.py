"""Commands of a page, and a service that they can be asked of."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from extproc.cli.ports import free_ports

ROOT = Path(__file__).parents[2]
_START_S = 60.0


def ctl_commands(text: str) -> list[list[str]]:
    """Every `fairlane ctl` of the page, once, as words: on lines of shell blocks, after prompts, and in the text."""
    written = r"^(?:\$ )?(?:\.venv/bin/)?fairlane (ctl [^#\n]+)|`(?:\.venv/bin/)?fairlane (ctl [^`]+)`"
    found = dict.fromkeys(
        " ".join((block or inline).split()) for block, inline in re.findall(written, text, re.MULTILINE)
    )
    return [shlex.split(line) for line in found]


@contextlib.contextmanager
def running_service(folder: Path, pool: str) -> Iterator[str]:
    """The address of the admin port of a process with the shipped configuration, whose pool is called so and has an
    engine that is away. Its files are in `folder`."""
    ext_proc, admin, http, engine = (f"127.0.0.1:{port}" for port in free_ports(4))
    shipped = yaml.safe_load((ROOT / "fairlane.yaml").read_text())
    pools = [{**shipped["pools"][0], "name": pool, "endpoints": [engine]}]
    listen = {"ext_proc": ext_proc, "admin": admin, "http": http}
    file, log = folder / "fairlane.yaml", folder / "log"
    file.write_text(yaml.safe_dump({**shipped, "listen": listen, "pools": pools}))
    command = [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file)]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until = time.monotonic() + _START_S
        while not _is_ready(f"http://{http}/readyz"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield admin
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
