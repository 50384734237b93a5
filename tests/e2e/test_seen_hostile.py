"""Names that clients choose to do harm, through the real Envoy while all is held, in every place that shows them:
metrics, the live page and what it reads, terminals, the log and spans.

A tenant's name is one that can be printed, of at most 128 characters: who comes with another one is anonymous. A model
may be called anything: an adapter's name is shown with its request, and that of a model which no pool has is in a line
of the log."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from identity_case import bearer, claims, jwt_authn, token
from page_case import chromium, page_of
from playwright.async_api import Dialog
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain
from rich.cells import cell_len
from rig import Answer, Json, Rig, chat, log_of, running, until

from extproc.cli.stack import FAIRLANE

sys.path.append(str(Path(__file__).resolve().parent.parent / "telemetry"))  # collectors of spans

from otlp_collector import Collected, attributes, grpc_collector  # isort: skip

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"
GOOD = (  # as names of tenants: shown as they are
    MARKUP,
    "\"quotes' \\ &amp; <b>bold</b>",
    'a="b",c="d"} 1 # {',
    "[bold red]rich[/] %s {0} $(id) `id`",
    "👍🚀",
    "漢字 مرحبا",
    "x" * 128,
)
BAD = (  # not as names of tenants (white space around a name is taken off)
    "line\nbreak\r\ttab",
    'a\n{"event": "forged"}\nb',
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31mred",
    "\u202egnirts evil\u2066",
    "nul\x00",
    "👨\u200d👩",
    "\u2028\u2029",
    "y" * 10_000,
)
IN_HEADERS = (*GOOD, "a\ttab", "\x9b31mred", "\u202egnirts evil", "z" * 10_000)  # what HTTP has room for
MODELS = (*GOOD, *BAD[:-1])  # Envoy hands on none of 10 KB
ADAPTER = "lora"
SURROGATE = "\ud83d"  # half a pair: JSON may have it, UTF-8 may not
LONGEST_NAME = 128  # characters
LONGEST_TEXT = 1_000
LONGEST_LINE = 5_000
JOINERS = "\u200c\u200d"  # parts of words and of emoji
NARROW, WIDE = "80", "300"  # columns of a terminal

CONFIG: dict[str, Any] = {
    "identity": {"tenant": [{"metadata": {"path": ["payload", "name"]}}, {"header": "x-tenant"}]},
    "requests": {"unknown_model": "reject"},
    "telemetry": {
        "tenants": {"names": [*GOOD, "anonymous"]},
        "log": {"slow_after": "100ms", "lines_per_second": 1_000},
    },
}
POOL = {
    "models": ["sim-7b"],
    "adapters": [f"{ADAPTER}*"],
    "window": {"controller": "fixed", "fixed": 1, "overtake": 0},
}
EVERYWHERE = {  # with each request
    "x-class": MARKUP,
    "x-request-id": MARKUP,
    "traceparent": f"00-{MARKUP}-01",
    "tracestate": "k=" + "v" * 600,
    "user-agent": "\u202e<b>",
    "x-fairlane-ticket": "forged",
}


@dataclass
class Scene:
    """Held requests of hostile names, of which `waiting` says how many by tenant."""

    rig: Rig
    collected: Collected
    waiting: dict[str, int]


def named(name: str) -> dict[str, str]:
    return {**EVERYWHERE, **bearer(token(claims(name=name)))}


def body(model: str) -> bytes:
    """All but ASCII is escaped in it, so that it may have half a pair."""
    return json.dumps(chat(model=model)).encode()


def known_headers(name: str) -> dict[str, str]:
    return {**EVERYWHERE, "x-tenant": name}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """At its end all have their answer, and no span has what it must not have."""
    with grpc_collector() as (address, collected):
        telemetry = {**CONFIG["telemetry"], "traces": {"otlp": address, "sample": 1.0}}
        config = {**CONFIG, "telemetry": telemetry}
        directory = tmp_path_factory.mktemp("stack")
        async with running(directory, config=config, pool=POOL, envoy_patch=jwt_authn, debug=True) as rig:
            async with rig.hung_engines():
                first = rig.start(chat(), tenant="first")
                await rig.until_inside(1)
                by_token = [rig.start(chat(), headers=named(name)) for name in (*GOOD, *BAD)]
                by_header = [rig.start(chat(), headers=known_headers(name)) for name in IN_HEADERS]
                adapters = [rig.start(body(ADAPTER + name), headers=EVERYWHERE) for name in MODELS]
                waiting = Counter(dict.fromkeys(GOOD, 2))
                waiting["anonymous"] = len(BAD) + len(IN_HEADERS) - len(GOOD) + len(MODELS)
                await rig.until_held(waiting.total())
                yield Scene(rig, collected, dict(waiting))
            answers = await asyncio.gather(first, *by_token, *by_header)
            assert Counter(answer.status for answer in answers) == {200: 1 + len(by_token) + len(by_header)}
            unknown = await asyncio.gather(*adapters)  # the engine has none of them, and says so
            assert Counter(answer.status for answer in unknown) == {404: len(MODELS)}
            await rig.books_closed()
            _check_spans(await _spans(collected, 2 * (1 + waiting.total())))


async def _spans(collected: Collected, count: int) -> list[Any]:
    async def found() -> list[Any]:
        return collected.spans

    return await until(found, lambda spans: len(spans) >= count, f"{count} spans")


def _check_spans(spans: Iterable[Any]) -> None:
    tenants, models = set(), set()
    for span in spans:
        told = attributes(span.attributes)
        for event in span.events:
            told |= attributes(event.attributes)
        for text in (span.name, *(value for value in told.values() if isinstance(value, str))):
            assert legible(text), text
            assert len(text) <= LONGEST_TEXT
        tenants.add(told.get("fairlane.tenant"))
        models.add(told.get("gen_ai.request.model"))
    assert tenants >= {*GOOD, "anonymous"}
    assert {"sim-7b", ADAPTER + MARKUP, f"{ADAPTER}nul\\x00"} <= models


def legible(text: str) -> bool:
    return all(char.isprintable() or char in JOINERS for char in text)


def texts(value: Any) -> Iterator[str]:
    """All in something that was JSON, names of members too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


async def get(scene: Scene, path: str, **headers: str) -> Answer:
    async with scene.rig.http.get(f"http://{scene.rig.service_at}{path}", headers=headers) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


async def fairlane(scene: Scene, *arguments: str, columns: str = WIDE) -> str:
    """What the command prints, with nothing in it that drives a terminal."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.cli.main", *arguments),
        *("--address", str(scene.rig.stack.addresses.admin)),
        env={**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": columns},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, error) == (0, b"")
    printed = out.decode()
    for line in printed.split("\n"):
        assert legible(line), line
    return printed


# -- metrics ------------------------------------------------------------------------------------------


def _check_labels(scene: Scene, families: Iterable[Metric]) -> None:
    held: Counter[str] = Counter()
    for family in families:
        for sample in family.samples:
            for value in sample.labels.values():
                assert value.isprintable()
                assert len(value) <= LONGEST_NAME
            if sample.name == "fairlane_tenant_held_requests":
                held[sample.labels["tenant"]] += int(sample.value)
    assert {name: count for name, count in held.items() if count} == scene.waiting


async def test_metrics_in_both_formats(scene: Scene) -> None:
    plain = await get(scene, "/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    _check_labels(scene, read_plain(plain.body.decode()))
    modern = await get(scene, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    _check_labels(scene, read_openmetrics(modern.body.decode()))


async def test_promtool_reads_them(scene: Scene) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is not installed: apt-get install prometheus")
        pytest.skip("promtool is not installed: apt-get install prometheus")
    page = (await get(scene, "/metrics")).body
    # those of the client library itself have a name that the linter does not like
    ours = b"".join(line for line in page.splitlines(keepends=True) if b"fairlane_" in line)
    process = await asyncio.create_subprocess_exec(
        *(promtool, "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await asyncio.wait_for(process.communicate(ours), 60)
    assert (process.returncode, told) == (0, b"")


# -- what the page reads, and the page ----------------------------------------------------------------


async def _events(scene: Scene, snapshots: int) -> list[tuple[str, Json]]:
    """Of one stream, whose every line is one of four kinds."""
    found: list[tuple[str, Json]] = []
    kind = ""
    async with scene.rig.http.get(f"http://{scene.rig.service_at}/events") as answer, asyncio.timeout(30):
        while sum(kind == "snapshot" for kind, _ in found) < snapshots:
            line = (await answer.content.readline()).decode()
            match = re.fullmatch(r"(?:event: (history|snapshot)|data: (\{.*\})|retry: \d+|)\n", line)
            assert match, line
            kind = match[1] or kind
            if match[2]:
                found.append((kind, orjson.loads(match[2])))
    return found


async def test_events_are_json_of_legible_texts(scene: Scene) -> None:
    for kind, event in await _events(scene, snapshots=2):
        for text in texts(event):
            assert legible(text)
            assert len(text) <= LONGEST_TEXT
        if kind == "snapshot":
            (pool,) = event["pools"]
            assert {flow["tenant"]: flow["held"] for flow in pool["flows"]} == scene.waiting
    requests = orjson.loads(await fairlane(scene, "ctl", "requests", "--all", "-o", "json"))["requests"]
    adapters = set()
    for request in requests:
        told = await get(scene, f"/explain?id={request['id']}")
        assert told.status == 200
        assert told.json["tenant"] in {*scene.waiting, "first"}
        assert all(legible(text) and len(text) <= LONGEST_TEXT for text in texts(told.json))
        adapters.add(told.json["adapter"])
    assert {ADAPTER + MARKUP, f"{ADAPTER}\\x9b31mred", f"{ADAPTER}line\\nbreak\\r\\ttab"} <= adapters
    for wrong in ("%3Cscript%3E", "%00", "%1B%5B31m", "%F0%9F%91%8D", "%ED%A0%BD", "x" * 5_000):
        told = await get(scene, f"/explain?id={wrong}")
        assert told.status in (400, 404)
        assert set(told.json) == {"error"}
    pool = (await get(scene, "/status?flows=1000")).json["pools"][0]
    assert {flow["tenant"]: flow["queued"] for flow in pool["flows"] if flow["queued"]} == scene.waiting


async def test_the_page_shows_them_as_texts(scene: Scene) -> None:
    dialogs: list[str] = []

    async def closed(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    async with chromium() as browser, page_of(browser, f"http://{scene.rig.service_at}") as page:
        page.page.on("dialog", closed)
        await page.open()  # again: nothing may have been missed
        names = await page.texts(".waiting tbody th bdi")
        assert set(names) == set(scene.waiting)
        for button in await page.page.get_by_role("button", name="Explain").all():
            await button.click()
        await page.until(f"document.querySelectorAll('.told .sentence').length === {len(scene.waiting)}")
        await page.until_updated()
        assert await page.page.locator("main script, main img, main b b").count() == 0
        await page.fits()
        page.clean()
        assert dialogs == []


# -- terminals ----------------------------------------------------------------------------------------


async def test_terminals_get_legible_texts(scene: Scene) -> None:
    flows = await fairlane(scene, "ctl", "flows", "--top", "100")
    for name, count in scene.waiting.items():
        assert re.search(rf"^sim +{re.escape(name)} +default +{count} ", flows, re.M), name
    for columns in (WIDE, NARROW):
        shown = await fairlane(scene, "top", "--once", columns=columns)
        for name in ("<script>alert(1)", "anonymous", "👍🚀", "xxxxxxxxxxxx"):
            assert f"\n  {name}" in shown
        assert max(map(cell_len, shown.split("\n"))) <= int(columns)
    listed = await fairlane(scene, "ctl", "requests", "--all")
    for adapter in (MARKUP, "line\\nbreak", "\\x1b[31mred", "\\x9b31mred", "\\u202egnirts evil", "nul\\x00"):
        assert f"{ADAPTER}{adapter}" in listed
    (pool,) = (await get(scene, "/status?flows=1000")).json["pools"]
    assert pool["queued"] == sum(scene.waiting.values())  # nobody has lost a place by being looked at


async def test_json_and_yaml_of_them(scene: Scene) -> None:
    flows = orjson.loads(await fairlane(scene, "ctl", "flows", "-o", "json"))["flows"]
    assert {flow["tenant"]: int(flow["queued_count"]) for flow in flows if flow["queued_count"] != "0"} == scene.waiting
    requests = orjson.loads(await fairlane(scene, "ctl", "requests", "--all", "-o", "json"))["requests"]
    assert {ADAPTER + name for name in MODELS} <= {each["adapter"] for each in requests}  # whole, and escaped by JSON
    (one,) = (each for each in requests if each["adapter"] == ADAPTER + MARKUP)
    assert "anonymous" in await fairlane(scene, "ctl", "explain", one["id"])
    await fairlane(scene, "ctl", "requests", "--all", "-o", "yaml")


# -- the log ------------------------------------------------------------------------------------------


async def test_lines_are_json_of_one_line(scene: Scene) -> None:
    """Those of hostile requests that are refused at the door, and of some that wait for long and leave."""
    rig = scene.rig
    refused = await asyncio.gather(*(rig.post(body(name), headers=EVERYWHERE) for name in MODELS))
    assert Counter(answer.status for answer in refused) == {404: len(MODELS)}
    assert all(legible(answer.error["message"]) for answer in refused)
    passing = [rig.start(body(SURROGATE + ADAPTER), headers=named(MARKUP)) for _ in range(2)]
    leaving = [rig.start(body(ADAPTER + name), headers=named(name)) for name in (*GOOD, *BAD)]
    held = sum(scene.waiting.values())
    await rig.until_held(held + len(leaving) + len(passing))
    ticks = "fairlane_loop_lag_seconds_count"
    before = await rig.metric(ticks)
    await until(lambda: rig.metric(ticks), lambda now: now >= before + 2, "two looks at those that wait")
    for task in (*leaving, *passing):
        task.cancel()
    await asyncio.gather(*leaving, *passing, return_exceptions=True)
    await rig.until_held(held)

    service = rig.stack.child(FAIRLANE)

    async def slow() -> int:
        return sum(line["event"] == "request_slow" for line in log_of(service))

    await until(slow, lambda count: count == len(leaving) + len(passing), "a line of each")
    raw = service.log.read_bytes()
    assert raw.isascii()
    for line in raw.decode().removesuffix("\n").split("\n"):
        assert line.isprintable()
        assert len(line) <= LONGEST_LINE
        assert isinstance(orjson.loads(line), dict)
    lines = log_of(service)
    assert "forged" not in {line["event"] for line in lines}
    told = [line for line in lines if line["event"] == "request_slow"]
    tenants = Counter(line["tenant"] for line in told)
    assert tenants == {**dict.fromkeys(GOOD, 1), MARKUP: 3, "anonymous": len(BAD)}
    assert all(line["outcome"] == "left" and line["explanation"] for line in told)
    models = {line["model"] for line in lines if line["event"] == "request_refused"}
    assert models == set(MODELS)
