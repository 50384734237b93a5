"""Figures of a service for `fairlane top`, made of messages, and pictures of them as plain lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from rich.cells import cell_len

from extproc.cli.top.bars import Look
from extproc.cli.top.choices import Choices
from extproc.cli.top.figures import Figures, FlowKey, Seen
from extproc.cli.top.picture import drawn, whole
from extproc.pb.admin.v1 import admin_pb2 as pb

NOON = 1_700_000_000  # 2023-11-14 22:13:20Z
NOW = 1000.0  # of the monotonic clock

HOSTILE = (
    "evil\x1b[2J\x1b]0;title\x07",
    "two\nlines\tand\r",
    "x" * 10_000,
    "👩" * 300,
    "\u202edlrow\u2066olleh",
    "👨\u200d👩\u200d👧 🇩🇪 ❤\ufe0f 👍🏽",
    "z" + "\u0301" * 500,
    "\"quoted\" 'twice' [bold]no markup[/bold]",
    "नमस्ते ไทยกำ 한국어 日本語",
    "\u1112\u1161\u11ab",
    "",
    " ",
)


def seconds(value: float) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromNanoseconds(round(value * 1e9))
    return made


def flow(tenant: str, cls: str = "batch", queued: int = 1, pool: str = "llama", **fields: Any) -> pb.Flow:
    wait = fields.pop("oldest_s", None)
    made = pb.Flow(pool=pool, tenant=tenant, queued_count=queued, weight=fields.pop("weight", 1.0), **fields)
    setattr(made, "class", cls)
    if wait is not None:
        made.oldest_wait.CopyFrom(seconds(wait))
    return made


def a_class(name: str = "batch", **fields: Any) -> pb.ClassStats:
    for field in ("oldest_wait", "wait_objective"):
        if f"{field}_s" in fields:
            fields[field] = seconds(fields.pop(f"{field}_s"))
    return pb.ClassStats(name=name, **fields)


def an_endpoint(address: str = "10.0.0.1:8000", pool: str = "llama", **fields: Any) -> pb.Endpoint:
    given = {"stance": pb.FRESH, "in_flight_slots": 6, "foreign_count": 2, "limit": 16.0, "room": 8.0, "capacity": 13.0}
    return pb.Endpoint(address=address, pool=pool, **(given | fields))


def a_pool(name: str = "llama", **fields: Any) -> pb.Pool:
    given = {"mode": pb.ENFORCE, "percentage": 100.0, "traffic": pb.OPEN, "queued_count": 30, "in_flight_slots": 6}
    return pb.Pool(name=name, **(given | fields))


def seen(pools: Sequence[pb.Pool] = (), flows: Sequence[pb.Flow] = (), total: int = 0, **fields: Any) -> Seen:
    status = pb.Status(
        version="1.2.3",
        serving=True,
        start_time=timestamp_pb2.Timestamp(seconds=NOON - 3 * 86400 - 3600),
        file=pb.FileStatus(path="/etc/fairlane.yaml", good=True),
        caller="ann",
        caller_role=pb.VIEWER,
    )
    status.MergeFrom(fields.pop("status", pb.Status()))
    stats = pb.Stats(time=timestamp_pb2.Timestamp(seconds=NOON), revision=7, pools=pools)
    figures = Figures(stats, status, flows, total or len(flows), NOW)
    return replace(Seen(figures, NOW, 1.0, "127.0.0.1:50052"), **fields)


def usual(**fields: Any) -> Seen:
    """One pool with two endpoints, three classes and three flows."""
    pool = a_pool(
        endpoints=[
            an_endpoint(),
            an_endpoint("10.0.0.2:8000", stance=pb.DOWN, in_flight_slots=0, foreign_count=0, limit=0.0, room=0.0),
        ],
        classes=[
            a_class("interactive", rank=0, queued_count=2, oldest_wait_s=0.4, wait_objective_s=2, hold="window"),
            a_class("agent", rank=1, in_flight_slots=3, releases_per_second=1.25, jain_index=0.987, competing_count=2),
            a_class(
                "batch", rank=2, queued_count=28, oldest_wait_s=95, wait_objective_s=30, hold="higher_class",
                sentence="2 requests of class 'interactive' go first",
            ),
        ],
    )  # fmt: skip
    flows = [
        flow("team-a", queued=20, in_flight_slots=3, oldest_s=95, tag=1234.5, next_request_id="17"),
        flow("team-b", queued=8, weight=2.5, oldest_s=12, tag=80.25, next_request_id="18"),
        flow("team-c", "interactive", queued=2, oldest_s=0.4, tag=9000),
    ]
    return seen([pool], flows, **fields)


def crowd(count: int) -> Seen:
    """`count` tenants with hostile names among them, in three pools."""
    names = [HOSTILE[i % len(HOSTILE)] + f"-{i}" if i % 3 == 0 else f"tenant-{i}" for i in range(count)]
    pools = [
        a_pool(
            f"pool-{p}",
            endpoints=[an_endpoint(f"10.0.{p}.{i}:8000", f"pool-{p}", last_error=HOSTILE[i % 9]) for i in range(40)],
            classes=[a_class(HOSTILE[i % 9] + f"{i}", rank=i, sentence=HOSTILE[i % 9] * 9) for i in range(8)],
        )
        for p in range(3)
    ]
    flows = [flow(name, HOSTILE[i % 7], count - i, f"pool-{i % 3}", oldest_s=i) for i, name in enumerate(names)]
    return seen(pools, flows, total=10 * count)


def lines(
    found: Seen, choices: Choices | None = None, columns: int = 80, height: int = 24, unicode: bool = True
) -> list[str]:
    """A screen, as text; no line is wider than the screen, and none has what a terminal acts on."""
    picture = drawn(found, choices or Choices(), columns, height, Look(unicode))
    return checked([line.plain for line in picture.lines], columns, unicode)


def all_lines(found: Seen, choices: Choices | None = None, columns: int = 200) -> list[str]:
    made = whole(found, choices or Choices(), columns, Look())
    return checked([line.plain for line in made], columns, True)


def checked(shown: list[str], columns: int, unicode: bool) -> list[str]:
    for line in shown:
        assert cell_len(line) <= columns, line
        assert line.isprintable(), line
        assert unicode or line.isascii(), line
    return shown


def part(shown: Sequence[str], head: str) -> list[str]:
    """Rows below the head that begins so, up to the next head or a blank line."""
    heads = re.compile(r"\s*(#|pool|endpoint|class|tenant|q quit)([ ▲▼^v]|$)")
    (begin,) = (place for place, line in enumerate(shown) if (at := heads.match(line)) and at[1] == head)
    rows: list[str] = []
    for line in shown[begin + 1 :]:
        if not line.strip() or heads.match(line) or line[:1] in "─-":
            break
        rows.append(line)
    return rows


TEAM_A = FlowKey("llama", "team-a", "batch")
TEAM_B = FlowKey("llama", "team-b", "batch")
TEAM_C = FlowKey("llama", "team-c", "interactive")
