"""`fairlane replay --exact`: does a recording give the recorded effects?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from extproc.cli import replay_start
from extproc.core.model import PoolPolicy
from extproc.core.player import Play, Player
from extproc.core.recording import Reader
from extproc.sim.trace import readers_of
from extproc.sim.traffic import TraceError


def replay_exactly(traces: Sequence[Path], policy: PoolPolicy | None, json_file: Path | None) -> bool:
    """Play, and tell what came out: whether all effects are the recorded ones. `policy`: in place of the recorded one.

    Raises TraceError, RecordingError, OSError for `json_file`."""
    readers = readers_of(traces)
    _one_run(readers)
    player = Player(readers[0].header, policy)
    first = None
    for reader in readers:
        for record in reader:
            difference = player.play(record)
            if difference is not None and first is None:
                first = f"{reader.name}: {difference.text()}"
    play, notes = player.result, _notes(readers, policy)
    for note in notes:
        click.echo(f"Note: {note}.")
    click.echo(f"{play.events} events, of which {play.differing} have other effects than recorded.")
    for kind in sorted(play.recorded | play.played):
        click.echo(f"  {kind}: {play.recorded[kind]} recorded, {play.played[kind]} played")
    click.echo("The same effects came out." if first is None else f"The first difference:\n{first}")
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(_as_json(play, first, notes), option=orjson.OPT_INDENT_2))
    return play.same


def _one_run(readers: Sequence[Reader]) -> None:
    runs = {reader.header.run for reader in readers}
    if len(runs) > 1:
        raise TraceError(
            f"these are {len(runs)} runs of Fairlane, each of which began with an empty scheduler; play one at a time"
        )
    numbers = [reader.header.part for reader in readers]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise TraceError(f"these are the parts {', '.join(map(str, numbers))} of a run; give each of a stretch, once")


def _notes(readers: Sequence[Reader], policy: PoolPolicy | None) -> list[str]:
    notes = []
    begins = replay_start.begins(readers)
    if begins is not None:
        notes.append(f"{begins}, so differences are to be expected; for an exact replay give the run from part 1 on")
    if policy is not None:
        notes.append("another configuration is played than was recorded; look at the first difference, where they part")
    if readers[-1].cut:
        notes.append("the last line is cut off, and was left out")
    return notes


def _as_json(play: Play, first: str | None, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "same": play.same,
        "events": play.events,
        "differing": play.differing,
        "first_difference": first,
        "recorded": dict(play.recorded),
        "played": dict(play.played),
        "notes": list(notes),
    }
