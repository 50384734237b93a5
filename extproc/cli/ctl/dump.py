"""`fairlane ctl dump`."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import click

from extproc.cli.ctl.output import note, plain
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2


@click.command("dump", cls=Command)
@click.argument("file")
@click.option("--requests", type=click.IntRange(1, 2**31 - 1), help="Of each pool, at most.  [default: 10000]")
@pass_session
def dump(session: Session, file: str, requests: int | None) -> None:
    """All state into FILE, for a support case; gzipped if it ends in .gz, "-" for standard output. A line of JSON for
    each portion, with its section. It has the names of tenants, and no text of requests."""
    answers = session.stream("DumpState", admin_pb2.DumpStateRequest(request_limit=requests or 0))
    lines = (json.dumps(plain(answer), separators=(",", ":"), sort_keys=True) for answer in answers)
    if file == "-":
        for line in lines:
            click.echo(line)
        return
    note(f"{_write(Path(file), lines)} portions in {file}")


def _write(path: Path, lines: Iterable[str]) -> int:
    """Whole or not at all, and for its owner's eyes. Returns how many lines there were."""
    part = path.with_name(f"{path.name}.part")
    count = 0
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            # with no name and no time in its header the same state gives the same file
            zipped = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
            with zipped or contextlib.nullcontext():
                for count, line in enumerate(lines, 1):  # noqa: B007 - told at the end
                    (zipped or raw).write(line.encode() + b"\n")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return count
