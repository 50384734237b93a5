"""The real vLLM behind the same Envoy and service: its pages, its priorities, its counts, its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import make_tiny_llama
import orjson
import pytest
import pytest_asyncio
from rig import CHAT, COMPLETIONS, Answer, Json, Rig, log_of, running, until
from vllm_figures import Figures
from vllm_load import Load, prompt
from vllm_server import MODEL_NAME, VllmServer

from extproc.cli.stack import FAIRLANE
from extproc.core.model import Sample
from extproc.engines.dialects import ALL_SAMPLE_NAMES, VLLM, detect
from extproc.engines.exposition import parse
from extproc.engines.identify import identify, way_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

SLOTS = 2
MOST_INSIDE = 16  # in the engine, running and waiting; it refuses more
RELEASED = 12  # inside at most, as Fairlane lets them: so many are in vLLM's own order
ADAPTER = "sql-lora"
FAR = 4_000  # tokens: an answer that nobody waits for
MESSAGE = {"messages": [{"role": "user", "content": "hello"}]}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(environment: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    directory = tmp_path_factory.mktemp("two-slots")
    adapter = make_tiny_llama.write_adapter(directory / ADAPTER, seed=1)
    arguments = [
        *("--max-num-queued-reqs", str(MOST_INSIDE)),
        *("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(make_tiny_llama.RANK)),
        *("--lora-modules", f"{ADAPTER}={adapter}"),
    ]
    async with VllmServer(environment, model, directory=directory, max_num_seqs=SLOTS, arguments=arguments) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(engine: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    pool = {
        "models": [MODEL_NAME],
        "adapters": ["sql-*"],
        "window": {"controller": "fixed", "fixed": RELEASED},
    }
    directory = tmp_path_factory.mktemp("stack")
    async with running(directory, engines=[engine.at], pool=pool, debug=True, stop_timeout_s=30) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def rig(shared: Rig) -> AsyncIterator[Rig]:
    yield shared
    await shared.books_closed()


async def _page(rig: Rig, path: str) -> bytes:
    """Of the engine's metrics, not through Envoy."""
    async with rig.http.get(f"http://{rig.engines[0]}{path}") as answer:
        assert answer.status == 200
        return await answer.read()


async def _sample(rig: Rig) -> Sample:
    return VLLM.read(parse(await _page(rig, _FILTERED), VLLM.sample_names), 0.0).sample


async def _until_inside_engine(rig: Rig, running: int, waiting: int) -> None:
    async def read() -> tuple[int, int]:
        sample = await _sample(rig)
        return sample.running, sample.waiting

    await until(read, lambda found: found == (running, waiting), f"{running} run, {waiting} wait in the engine")


_FILTERED = "/metrics/?" + "&".join(f"name[]={name}" for name in sorted(VLLM.sample_names))


# -- pages --------------------------------------------------------------------------------------------


async def test_its_pages_are_understood(rig: Rig) -> None:
    """The filtered page says the same as the whole one, of which it is a small part, and the service reads that."""
    await _until_inside_engine(rig, 0, 0)
    whole, filtered = await _page(rig, "/metrics"), await _page(rig, _FILTERED)
    assert len(filtered) < len(whole) / 10
    assert detect(parse(whole, ALL_SAMPLE_NAMES)) is VLLM
    assert parse(filtered, VLLM.sample_names) == parse(whole, VLLM.sample_names)

    async def chosen() -> tuple[str, str]:
        lines = [line for line in log_of(rig.stack.child(FAIRLANE)) if line["event"] == "metrics page chosen"]
        return lines[-1]["dialect"], lines[-1]["form"]

    await until(chosen, lambda found: found == ("vllm", "filtered"), "the small page is read")
    assert await rig.metric("fairlane_dialect_info", endpoint=str(rig.engines[0]), dialect="vllm") == 1
    assert await rig.metric("fairlane_scrape_failures_total") == 0


async def test_its_signals_move(rig: Rig) -> None:
    load = Load(rig)
    try:
        runs = [load.send(f"tenant-{i}", 64, FAR) for i in range(SLOTS + 1)]
        await _until_inside_engine(rig, SLOTS, 1)
        first = await _sample(rig)
        pool = await rig.until(lambda pool: pool["endpoints"][0]["waiting"] == 1)
        assert pool["endpoints"][0]["running"] == SLOTS
        later = await until(lambda: _sample(rig), lambda sample: (sample.progress or 0) >= (first.progress or 0) + 20)
    finally:
        await load.leave()
    assert first.progress is not None
    assert first.kv_usage is not None
    assert 0 < first.kv_usage <= 1
    for name in ("itl_sum", "itl_count", "ttft_sum", "ttft_count", "generation_tokens", "prompt_tokens"):
        before, after = getattr(first, name), getattr(later, name)
        assert before is not None, name
        assert after >= before, name
    assert later.generation_tokens > first.generation_tokens  # type: ignore[operator]  # neither is None, see above
    assert first.preemptions == 0
    assert first.kv_capacity_tokens is not None
    assert first.kv_capacity_tokens > 8_192  # the longest request fits
    assert not any(run.whole for run in runs)


async def test_a_request_names_an_adapter(rig: Rig) -> None:
    """It belongs to the pool of the model, and the page names the adapter while it runs."""
    assert (await _sample(rig)).max_adapters in (1, None)  # no request yet, no series
    body = {"model": ADAPTER, "prompt": prompt(64), "temperature": 0}
    task = rig.start({**body, "max_tokens": FAR, "stream": True}, path=COMPLETIONS, tenant="adapter")
    await rig.until_inside(1)
    sample = await until(lambda: _sample(rig), lambda sample: bool(sample.adapters), "the adapter is on the page")
    task.cancel()
    assert set(sample.adapters or ()) == {ADAPTER}
    assert sample.max_adapters == 1
    answer = await rig.post({**body, "max_tokens": 12}, path=COMPLETIONS)
    plain = await rig.post({**body, "max_tokens": 12, "model": MODEL_NAME}, path=COMPLETIONS)
    assert (answer.status, answer.json["model"]) == (200, ADAPTER)
    assert answer.headers["x-fairlane-class"] == "default"
    assert answer.json["choices"][0]["text"] != plain.json["choices"][0]["text"]


# -- priority -----------------------------------------------------------------------------------------


async def test_it_says_how_it_is_told_a_priority(rig: Rig, engine: VllmServer) -> None:
    facts = await identify(engine.url, rig.http, engine="auto", model=None, timeout_s=10)
    assert (facts.engine, facts.version) == ("vllm", "0.32.0")
    way = way_of("auto", "auto", facts)
    assert (way.header, way.body, way.high_first) == (True, False, False)


async def test_it_runs_them_in_the_order_of_their_priority(rig: Rig) -> None:
    """Both slots are taken; nine wait in the engine. What clients say of priority counts for nothing."""
    load, fillers = Load(rig), [Load(rig) for _ in range(SLOTS)]
    try:
        for number, filler in enumerate(fillers):
            filler.send(f"filler-{number}", 64, FAR, cls="interactive")
        await _until_inside_engine(rig, SLOTS, 0)
        own = "x-vllm-priority"
        sent: list[tuple[str, dict[str, Any]]] = [
            ("batch, a header", {"tenant": "b1", "cls": "batch", "headers": [(own, "-9999")]}),
            ("batch, two headers", {"tenant": "b2", "cls": "batch", "headers": [(own, "-9999"), (own, "-9998")]}),
            ("batch, a member", {"tenant": "b3", "cls": "batch", "body": {"priority": -9999}}),
            ("batch", {"tenant": "b4", "cls": "batch"}),
            ("default", {"tenant": "d1", "cls": "default"}),
            ("default, the second of its tenant", {"tenant": "d1", "cls": "default"}),
            ("default, another's", {"tenant": "d2", "cls": "default"}),
            ("default, a third's", {"tenant": "d3", "cls": "default"}),
            ("interactive, a header", {"tenant": "i", "cls": "interactive", "headers": [("X-VLLM-Priority", "5000")]}),
        ]
        runs = {}
        for number, (name, options) in enumerate(sent, 1):
            runs[name] = load.send(prompt_tokens=64, output=150, **options)
            await _until_inside_engine(rig, SLOTS, number)
        # The slots become free one after the other, so that the starts are half an answer apart.
        await fillers[0].leave()
        urgent = runs["interactive, a header"]

        async def received() -> int:
            return urgent.received

        await until(received, lambda count: count >= 60)
        await fillers[1].leave()
        await load.all_ended()
    finally:
        for each in (load, *fillers):
            await each.leave()
    assert all(run.whole for run in runs.values())
    assert sorted(runs, key=lambda name: runs[name].first) == [
        "interactive, a header",
        "default",
        "default, another's",
        "default, a third's",
        "default, the second of its tenant",
        "batch, a header",
        "batch, two headers",
        "batch, a member",
        "batch",
    ]


# -- usage --------------------------------------------------------------------------------------------


def _counted(answer: Answer) -> tuple[int, int]:
    """Tokens of prompt and answer, as the client reads them: in JSON, or in the events of a stream."""
    if answer.headers["content-type"].startswith("application/json"):
        events = [answer.json]
    else:
        lines = answer.body.split(b"\n")
        events = [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    usage: Json = {}
    for event in events:
        for holder in (event, event.get("response") or {}, event.get("message") or {}):
            usage |= {key: value for key, value in (holder.get("usage") or {}).items() if value is not None}
    first = usage.get("prompt_tokens", usage.get("input_tokens"))
    second = usage.get("completion_tokens", usage.get("output_tokens"))
    assert isinstance(first, int)
    assert isinstance(second, int)
    return first, second


@pytest.mark.parametrize(
    ("path", "body", "output"),
    [
        (COMPLETIONS, {"prompt": 20, "max_tokens": 12}, 12),
        (COMPLETIONS, {"prompt": 20, "max_tokens": 12, "n": 2, "temperature": 1}, 24),
        (COMPLETIONS, {"prompt": [20, 21, 22], "max_tokens": 12}, 36),
        (COMPLETIONS, {"prompt": 20, "max_tokens": 12, **WITH_USAGE}, 12),
        (COMPLETIONS, {"prompt": 20, "max_tokens": 12, "n": 2, "temperature": 1, **WITH_USAGE}, 24),
        (CHAT, {**MESSAGE, "max_tokens": 12}, 12),
        (CHAT, {**MESSAGE, "max_completion_tokens": 12}, 12),
        (CHAT, {**MESSAGE, "max_tokens": 12, **WITH_USAGE}, 12),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 12}, 12),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 12, "stream": True}, 12),
        ("/v1/messages", {**MESSAGE, "max_tokens": 12}, 12),
        ("/v1/messages", {**MESSAGE, "max_tokens": 12, "stream": True}, 12),
    ],
)
async def test_what_the_client_reads_is_what_is_charged(path: str, body: Json, output: int, rig: Rig) -> None:
    match body.get("prompt"):
        case int(length):
            body = {**body, "prompt": prompt(length)}
        case list(lengths):
            body = {**body, "prompt": [prompt(length) for length in lengths]}
    await rig.books_closed()
    cost = await rig.metric("fairlane_settled_cost_total")
    count = await rig.metric("fairlane_settled_requests_total", source="usage")
    answer = await rig.post({"model": MODEL_NAME, "temperature": 0, **body}, path=path)
    assert answer.status == 200, answer.body
    prompt_tokens, completion_tokens = _counted(answer)
    assert completion_tokens == output
    await until(lambda: rig.metric("fairlane_settled_requests_total", source="usage"), lambda now: now == count + 1)
    assert await rig.metric("fairlane_settled_cost_total") == pytest.approx(cost + prompt_tokens + 2 * output)


# -- leaving and refusing -----------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_a_client_that_leaves_frees_its_slot(streamed: bool, rig: Rig) -> None:
    body = {"model": MODEL_NAME, "prompt": prompt(64), "max_tokens": FAR, "stream": streamed}
    task = rig.start(body, path=COMPLETIONS, tenant="leaver")
    await _until_inside_engine(rig, 1, 0)
    await rig.until_inside(1)
    task.cancel()
    await _until_inside_engine(rig, 0, 0)
    await rig.until_inside(0)


async def test_a_client_that_leaves_while_it_waits_in_the_engine(rig: Rig) -> None:
    load = Load(rig)
    try:
        for number in range(SLOTS):
            load.send(f"tenant-{number}", 64, FAR)
        await _until_inside_engine(rig, SLOTS, 0)
        waits = Load(rig)
        waits.send("leaver", 64, 10)
        await _until_inside_engine(rig, SLOTS, 1)
        await waits.leave()
        await _until_inside_engine(rig, SLOTS, 0)
        await rig.until_inside(SLOTS)
    finally:
        await load.leave()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "a", "max_tokens": 100_000}, 400),
        ({"prompt": "a", "max_tokens": 100_000, "stream": True}, 400),
        ({"prompt": "a", "max_tokens": 2, "model": "sql-nobody"}, 404),
    ],
)
async def test_what_it_refuses_costs_nothing(body: Json, status: int, rig: Rig) -> None:
    await rig.books_closed()
    cost = await rig.metric("fairlane_settled_cost_total")
    count = await rig.metric("fairlane_settled_requests_total", source="error")
    answer = await rig.post({"model": MODEL_NAME, **body}, path=COMPLETIONS)
    assert (answer.status, answer.error["code"]) == (status, status)
    await until(lambda: rig.metric("fairlane_settled_requests_total", source="error"), lambda now: now == count + 1)
    assert await rig.metric("fairlane_settled_cost_total") == cost


async def test_it_sheds_a_burst(engine: VllmServer, figures: Figures, tmp_path: Path) -> None:
    """More streams at once than it takes. Some get 503, some get 200 and then an error: both mean that it is full."""
    pool = {"window": {"controller": "fixed", "fixed": 64}}
    async with running(tmp_path, engines=[engine.at], pool=pool, debug=True, stop_timeout_s=30) as rig:
        load = Load(rig)
        runs = [load.send(f"tenant-{i % 4}", 64, 40) for i in range(60)]
        await load.all_ended()
        served = [run for run in runs if run.whole]
        errors = [run for run in runs if run.status == 200 and run.error is not None]
        refused = [run for run in runs if run.status == 503]
        figures.add(
            "d: burst of 60, limit 16: served, 200 + error, 503", _counts(served, errors, refused), "8, 14, 2 of 24"
        )
        assert len(served) + len(errors) + len(refused) == len(runs)
        assert errors
        assert {run.error["code"] for run in errors if run.error} == {503}
        await rig.books_closed()
        shed = len(errors) + len(refused)
        assert await rig.metric("fairlane_settled_requests_total", source="error") == shed
        assert await rig.metric("fairlane_endpoint_turned_away_requests_total") == shed
        assert await rig.metric("fairlane_settled_requests_total", source="usage") == len(served)
        assert await rig.metric("fairlane_settled_cost_total") == pytest.approx(len(served) * (64 + 2 * 40))
        # it takes others again
        later = load.send("tenant-0", 64, 5)
        await load.all_ended()
        assert later.whole
        await rig.books_closed()


def _counts(*groups: list[Any]) -> str:
    return ", ".join(str(len(group)) for group in groups)


# -- another client -----------------------------------------------------------------------------------


async def test_vllms_own_benchmark(environment: Path, model: Path, rig: Rig, figures: Figures, tmp_path: Path) -> None:
    """A client that is not ours, with more connections than there is room."""
    count = 60
    command = [
        str(environment / "bin" / "vllm"),
        *("bench", "serve", "--backend", "openai", "--base-url", rig.stack.url, "--endpoint", COMPLETIONS),
        *("--model", MODEL_NAME, "--tokenizer", str(model), "--dataset-name", "random", "--header", "x-tenant=bench"),
        *("--random-input-len", "64", "--random-output-len", "16", "--ignore-eos", "--disable-tqdm"),
        *("--num-prompts", str(count), "--max-concurrency", "20"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json"),
    ]
    settled = await rig.metric("fairlane_settled_requests_total", source="usage")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode(errors="replace")[-4_000:]
    result = orjson.loads((tmp_path / "bench.json").read_bytes())
    figures.add(
        "f: vllm bench serve: completed, failed", f"{result['completed']}, {result['failed']}", "120, 0", f"{count}, 0"
    )
    figures.add(
        "f: vllm bench serve: TTFT p50 ms, TPOT p50 ms",
        f"{result['median_ttft_ms']:.0f}, {result['median_tpot_ms']:.1f}",
        "-",
    )
    assert (result["completed"], result["failed"]) == (count, 0)
    assert result["total_output_tokens"] == count * 16
    await rig.books_closed()
    assert await rig.metric("fairlane_settled_requests_total", source="usage") >= settled + count
