"""All that shows figures shows the same ones: /status, /metrics, the live page's events, `fairlane top` and `fairlane
ctl`. In the end the counters are what was sent, and what the engines counted themselves."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from rig import Answer, Json, Rig, chat, running

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

WINDOW = {"controller": "fixed", "fixed": 2, "overtake": 0}  # of each of two engines
INSIDE = 4
PROMPT_TOKENS = 6  # of the request that `chat` makes, by the engine's template
CLASSES = ("interactive", "default", "batch")


class Group(NamedTuple):
    """Requests that are held."""

    tenant: str
    cls: str
    number: int
    tokens: int
    stream: bool


GROUPS = (
    Group("team-a", "interactive", 3, 7, stream=False),
    Group("team-b", "interactive", 1, 2, stream=True),
    Group("team-b", "default", 2, 5, stream=True),
    Group("team-a", "batch", 4, 3, stream=False),
    Group("team-c", "batch", 1, 11, stream=True),
)
FIRST = Group("first", "default", INSIDE, 4, stream=False)  # inside the engines
HELD = {"interactive": 4, "default": 2, "batch": 5}
SLOTS = {"interactive": 0, "default": INSIDE, "batch": 0}


class Figures(NamedTuple):
    """What one place shows."""

    held: dict[str, int]  # by class
    inside: dict[str, int]  # slots, by class
    endpoints: dict[str, int]  # slots, by endpoint


def send(rig: Rig, group: Group) -> list[asyncio.Task[Answer]]:
    more = {"stream": True, "stream_options": {"include_usage": True}} if group.stream else {}
    body, headers = chat(group.tokens, **more), {"x-class": group.cls}
    return [rig.start(body, tenant=group.tenant, headers=headers) for _ in range(group.number)]


async def fairlane(rig: Rig, *arguments: str) -> str:
    """What the command prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.cli.main", *arguments, "--address", str(rig.stack.addresses.admin)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def snapshot(rig: Rig) -> Json:
    """The next one of the live page's events."""
    async with rig.http.get(f"http://{rig.service_at}/events") as answer, asyncio.timeout(30):
        while not (await answer.content.readline()).startswith(b"event: snapshot"):
            pass
        line = await answer.content.readline()
    found: Json = orjson.loads(line.removeprefix(b"data: "))
    return found


async def metrics(at: object, rig: Rig) -> dict[str, Metric]:
    async with rig.http.get(f"http://{at}/metrics") as answer:
        return {family.name: family for family in text_string_to_metric_families(await answer.text())}


def by(family: Metric, *labels: str, name: str = "") -> dict[str, int]:
    """Sums of the samples, by labels put together with a slash. `name`: of the samples; empty: as the family's."""
    found: Counter[str] = Counter()
    for sample in family.samples:
        if sample.name == (name or family.name):
            assert sample.value == int(sample.value)
            found["/".join(sample.labels[each] for each in labels)] += int(sample.value)
    return dict(found)


def counted(page: dict[str, Metric], name: str, *labels: str) -> dict[str, int]:
    """Of a counter, without what is 0."""
    found = by(page[f"fairlane_{name}"], *labels, name=f"fairlane_{name}_total")
    return {key: count for key, count in found.items() if count}


def table(printed: str, first_head: str) -> list[dict[str, str]]:
    """The rows of one table of `fairlane top`, by its heads: the one whose first head is this. Columns are parted by
    two spaces or more."""
    lines = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
    (at,) = (place for place, cells in enumerate(lines) if cells[0] == first_head)
    heads = lines[at]
    rows = []
    for cells in lines[at + 1 :]:
        if len(cells) != len(heads):
            break
        rows.append(dict(zip(heads, cells, strict=True)))
    return rows


def endpoints(rows: Iterable[tuple[str, object]]) -> dict[str, int]:
    return {address: int(str(slots)) for address, slots in rows}


async def of_status(rig: Rig) -> Figures:
    pool = await rig.pool()
    assert (pool["queued"], pool["in_flight"], pool["known"]) == (
        sum(HELD.values()),
        INSIDE,
        sum(HELD.values()) + INSIDE,
    )
    return Figures(
        {cls["name"]: cls["queued"] for cls in pool["classes"]},
        {cls["name"]: cls["in_flight"] for cls in pool["classes"]},
        endpoints((each["endpoint"], each["in_flight"]) for each in pool["endpoints"]),
    )


async def of_metrics(rig: Rig) -> Figures:
    page = await metrics(rig.service_at, rig)
    return Figures(
        by(page["fairlane_held_requests"], "class"),
        by(page["fairlane_class_in_flight_slots"], "class"),
        by(page["fairlane_endpoint_in_flight_slots"], "endpoint"),
    )


async def of_events(rig: Rig) -> Figures:
    shown = await snapshot(rig)
    (pool,) = shown["pools"]
    assert (shown["held"], shown["in_flight"]) == (pool["held"], pool["in_flight"]) == (sum(HELD.values()), INSIDE)
    return Figures(
        {cls["name"]: cls["held"] for cls in pool["classes"]},
        {cls["name"]: cls["in_flight"] for cls in pool["classes"]},
        endpoints((each["address"], each["ours"]) for each in pool["endpoints"]),
    )


async def of_top(rig: Rig) -> Figures:
    printed = await fairlane(rig, "top", "--once")
    (pool,) = table(printed, "pool")
    assert (pool["held"], pool["in flight"]) == (str(sum(HELD.values())), str(INSIDE))
    classes = table(printed, "class")
    return Figures(
        {row["class"]: int(row["held"]) for row in classes},
        {row["class"]: int(row["in flight"]) for row in classes},
        endpoints((row["endpoint"], row["used/limit"].removesuffix("/2")) for row in table(printed, "endpoint")),
    )


async def of_ctl(rig: Rig) -> Figures:
    (pool,) = orjson.loads(await fairlane(rig, "ctl", "pools", "-o", "json"))["pools"]
    assert (pool["queued_count"], pool["in_flight_slots"]) == (str(sum(HELD.values())), str(INSIDE))
    return Figures(
        {cls["name"]: int(cls["queued_count"]) for cls in pool["classes"]},
        {cls["name"]: int(cls["in_flight_slots"]) for cls in pool["classes"]},
        endpoints((each["address"], each["in_flight_slots"]) for each in pool["endpoints"]),
    )


async def flows_of(rig: Rig) -> dict[str, dict[str, int]]:
    """Held requests by tenant and class, as each place shows them."""
    pool = await rig.pool()
    (shown,) = (await snapshot(rig))["pools"]
    listed = orjson.loads(await fairlane(rig, "ctl", "flows", "-o", "json"))["flows"]
    printed = table(await fairlane(rig, "top", "--once"), "tenant")
    found = {
        "status": {f"{flow['tenant']}/{flow['cls']}": flow["queued"] for flow in pool["flows"]},
        "events": {f"{flow['tenant']}/{flow['cls']}": flow["held"] for flow in shown["flows"]},
        "ctl": {f"{flow['tenant']}/{flow['class']}": int(flow["queued_count"]) for flow in listed},
        "top": {f"{row['tenant']}/{row['class']}": int(row["queued▼"]) for row in printed},
    }
    return {where: {flow: held for flow, held in flows.items() if held} for where, flows in found.items()}


async def test_all_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "200")
    config = {"telemetry": {"tenants": {"names": ["first", "team-a", "team-b"], "top": 0}}}
    async with running(tmp_path, engines=2, pool={"window": WINDOW}, config=config) as rig:
        async with rig.hung_engines():
            tasks = send(rig, FIRST)
            await rig.until_inside(INSIDE)
            for group in GROUPS:
                tasks += send(rig, group)
            await rig.until_held(sum(HELD.values()))

            wanted = Figures(HELD, SLOTS, {str(engine): 2 for engine in rig.engines})
            for place in (of_status, of_metrics, of_events, of_top, of_ctl):
                assert await place(rig) == wanted, place.__name__
            waiting = {f"{group.tenant}/{group.cls}": group.number for group in GROUPS}
            for where, flows in (await flows_of(rig)).items():
                assert flows == waiting, where
            page = await metrics(rig.service_at, rig)
            named = by(page["fairlane_tenant_held_requests"], "tenant")
            assert named == {"first": 0, "team-a": 7, "team-b": 3}
            assert counted(page, "released_requests", "class") == {"default": INSIDE}
            assert by(page["fairlane_leaked_slots"], "pool") == {"sim": 0}
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        await rig.books_closed()
        await settled(rig)


async def settled(rig: Rig) -> None:
    """What was sent, by hand and by the engines' own count."""
    page = await metrics(rig.service_at, rig)
    requests = {"interactive": 4, "default": 6, "batch": 5}
    assert counted(page, "released_requests", "class") == requests
    assert counted(page, "settled_requests", "class", "source") == {
        f"{cls}/usage": count for cls, count in requests.items()
    }
    waits = by(page["fairlane_queue_wait_seconds"], "class", "outcome", name="fairlane_queue_wait_seconds_count")
    assert waits == {f"{cls}/released": count for cls, count in requests.items()}
    assert counted(page, "refused_requests", "reason") == {}
    assert counted(page, "tenant_released_requests", "tenant") == {"first": 4, "team-a": 7, "team-b": 3, "other": 1}
    for family in ("held_requests", "class_in_flight_slots"):
        assert by(page[f"fairlane_{family}"], "class") == dict.fromkeys(CLASSES, 0)
    assert by(page["fairlane_endpoint_in_flight_slots"], "endpoint") == {str(engine): 0 for engine in rig.engines}

    output = {"interactive": 3 * 7 + 1 * 2, "default": 4 * 4 + 2 * 5, "batch": 4 * 3 + 1 * 11}
    tokens = {f"{cls}/output": count for cls, count in output.items()}
    tokens |= {f"{cls}/prompt": PROMPT_TOKENS * count for cls, count in requests.items()}
    assert counted(page, "settled_tokens", "class", "kind") == tokens

    ours = counted(page, "settled_tokens", "kind")
    theirs: Counter[str] = Counter()
    for engine in rig.engines:
        shown = await metrics(engine, rig)
        for kind, name in (("prompt", "vllm:prompt_tokens"), ("output", "vllm:generation_tokens")):
            theirs[kind] += sum(int(s.value) for s in shown[name].samples if s.name == f"{name}_total")
    assert ours == theirs
    entries = await rig.seen()
    assert (len(entries), sum(entry["tokens"] for entry in entries)) == (15, theirs["output"])
    assert Counter(entry["headers"]["x-fairlane-class"] for entry in entries) == requests
