"""Metrics page, recordings and faults of the simulated engine."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString
from sim_client import Sim, Start

from extproc.sim.engine import EngineOptions
from extproc.sim.pages import MetricsPage, number
from extproc.sim.stats import Stats

COMPLETIONS = "/v1/completions"


class TestMetrics:
    async def test_counters_after_some_requests(self, sim: Sim) -> None:
        await sim.complete({"prompt": "12345678", "max_tokens": 5})
        await sim.complete({"prompt": "1234", "max_tokens": 1})
        page = await sim.metrics()
        assert page["vllm:prompt_tokens_total", ""] == 3
        assert page["vllm:generation_tokens_total", ""] == 6
        assert page["vllm:request_success_total", "length"] == 2
        assert page["vllm:request_success_total", "stop"] == 0
        assert page["vllm:time_to_first_token_seconds_count", ""] == 2
        assert page["vllm:inter_token_latency_seconds_count", ""] == 4
        assert 0.0039 <= page["vllm:inter_token_latency_seconds_sum", ""] < 2
        assert page["vllm:request_time_per_output_token_seconds_count", ""] == 2
        assert page["vllm:e2e_request_latency_seconds_bucket", "+Inf"] == 2
        assert page["vllm:prefix_cache_queries_total", ""] == 3
        assert page["vllm:prefix_cache_hits_total", ""] == 0
        assert page["vllm:num_preemptions_total", ""] == 0
        assert page["vllm:num_requests_running", ""] == 0
        assert page["vllm:kv_cache_usage_perc", ""] == 0

    async def test_gauges_under_load(self, start: Start) -> None:
        engine = await start(max_num_seqs=2, kv_blocks=100, max_model_len=1600)
        tasks = [asyncio.ensure_future(engine.complete({"prompt": "a", "max_tokens": 1500})) for _ in range(5)]
        await engine.until(lambda: engine.shows("vllm:num_requests_waiting", 3))
        page = await engine.metrics()
        assert page["vllm:num_requests_running", ""] == 2
        assert page["vllm:num_requests_waiting_by_reason", "capacity"] == 3
        assert 0.02 <= page["vllm:kv_cache_usage_perc", ""] <= 1
        for task in tasks:
            task.cancel()

    async def test_types_and_labels(self, sim: Sim) -> None:
        async with sim.http.get(sim.url + "/metrics") as answer:
            families = {f.name: f for f in text_string_to_metric_families(await answer.text())}
        kinds = {
            "vllm:num_requests_running": "gauge",
            "vllm:num_preemptions": "counter",
            "vllm:request_success": "counter",
            "vllm:inter_token_latency_seconds": "histogram",
            "vllm:cache_config_info": "gauge",
        }
        assert {name: families[name].type for name in kinds} == kinds
        running = families["vllm:num_requests_running"]
        assert running.documentation == "Number of requests in model execution batches."
        assert running.samples[0].labels == {"engine": "0", "model_name": "sim-7b"}
        config = families["vllm:cache_config_info"].samples[0].labels
        assert (config["num_gpu_blocks"], config["block_size"], config["kv_cache_size_tokens"]) == (
            "65536",
            "16",
            "1048576",
        )

    async def test_filtered_by_sample(self, sim: Sim) -> None:
        await sim.complete({"prompt": "a", "max_tokens": 3})
        wanted = "name[]=vllm:num_requests_waiting&name[]=vllm:inter_token_latency_seconds_count&name[]=nothing"
        assert await sim.metrics(f"/metrics/?{wanted}") == {
            ("vllm:num_requests_waiting", ""): 0,
            ("vllm:inter_token_latency_seconds_count", ""): 2,
        }

    async def test_without_the_slash_the_filter_is_ignored(self, sim: Sim) -> None:
        full = await sim.metrics()
        assert set(await sim.metrics("/metrics?name[]=vllm:num_requests_waiting")) == set(full)
        assert set(await sim.metrics("/metrics/")) == set(full)
        assert len(full) > 150

    def test_buckets_are_cumulative(self) -> None:
        stats = Stats()
        for value in (0.0, 0.01, 0.02, 99.0):  # bounds are inclusive: 0.01 is in the first bucket
            stats.inter_token_latency.observe(value)
        page = MetricsPage(stats, EngineOptions(), model='a"b\\c\nd', max_model_len=100, created=1.0)
        families = {f.name: f for f in text_string_to_metric_families(page.render().decode())}
        samples = families["vllm:inter_token_latency_seconds"].samples
        buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
        assert [buckets[le] for le in ("0.01", "0.025", "80.0", "+Inf")] == [2, 3, 3, 4]
        assert samples[0].labels["model_name"] == 'a"b\\c\nd'
        assert page.render({"vllm:inter_token_latency_seconds_sum"}).decode().splitlines()[-1].endswith(" 99.03")

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0.0"),
            (1e-05, "1e-05"),
            (999_999, "999999.0"),
            (1_000_000, "1e+06"),
            (1_406_840, "1.40684e+06"),
            (1795987083.978, "1.795987083978e+09"),
            (float("inf"), "+Inf"),
        ],
    )
    def test_numbers(self, value: float, text: str) -> None:
        assert number(value) == text == floatToGoString(value)


class TestOtherPages:
    async def test_what_vllm_has(self, sim: Sim) -> None:
        for path in ("/health", "/ping"):
            async with sim.http.get(sim.url + path) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        assert await sim.get("/version") == {"version": "0.32.0+sim"}
        models = await sim.get("/v1/models")
        assert [(m["id"], m["max_model_len"]) for m in models["data"]] == [("sim-7b", 32_768)]


class TestRecording:
    async def test_requests_in_order(self, sim: Sim) -> None:
        body = b'{"prompt": "a",  "max_tokens": 2}'
        headers = [("X-Vllm-Priority", "-4"), ("X-Tag", "one"), ("X-Tag", "two")]
        kind = ("Content-Type", "application/json")
        async with sim.http.post(sim.url + COMPLETIONS, data=body, headers=[kind, *headers]) as answer:
            assert answer.status == 200
        await sim.complete(b"{")
        first, second = await sim.requests()
        assert (first["seq"], first["path"], first["state"]) == (1, COMPLETIONS, "finished")
        assert (first["priority"], first["tokens"], first["status"]) == (-4, 2, 200)
        assert (first["body_bytes"], first["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert first["headers"]["x-vllm-priority"] == "-4"
        assert first["headers"]["x-tag"] == "one, two"
        assert first["arrived_at"] <= first["first_token_at"] <= first["ended_at"] <= second["arrived_at"]
        assert (second["seq"], second["state"], second["status"], second["priority"]) == (2, "refused", 400, None)
        async with sim.http.get(sim.url + "/sim/requests/1/body") as answer:
            assert await answer.read() == body

    async def test_forgetting(self, sim: Sim) -> None:
        await sim.complete({"prompt": "a"})
        async with sim.http.delete(sim.url + "/sim/requests") as answer:
            assert answer.status == 204
        assert await sim.requests() == []
        async with sim.http.get(sim.url + "/sim/requests/1/body") as answer:
            assert answer.status == 404
        await sim.complete({"prompt": "a"})
        assert [r["seq"] for r in await sim.requests()] == [2]

    async def test_bounds(self, start: Start) -> None:
        engine = await start(record_requests=3, record_body_bytes=200)
        body = b'{"prompt":"%s"}' % (b"a" * 70)  # 84 bytes: two fit into 200
        for _ in range(4):
            await engine.complete(body)
        await engine.complete(b'{"prompt":"%s"}' % (b"a" * 300))
        assert [r["seq"] for r in await engine.requests()] == [3, 4, 5]
        found = []
        for seq in range(1, 6):
            async with engine.http.get(f"{engine.url}/sim/requests/{seq}/body") as answer:
                found.append(answer.status)
        assert found == [404, 404, 200, 200, 404]

    async def test_bytes_that_are_no_text(self, sim: Sim) -> None:
        host, port = sim.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(head + b'X-Request-Id: \xff"\r\nContent-Length: 14\r\n\r\n{"prompt":"a"}')
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(await sim.requests()) == 1


class TestFaults:
    async def test_each_and_back(self, sim: Sim) -> None:
        async def page() -> tuple[int, str, bytes]:
            async with sim.http.get(sim.url + "/metrics") as answer:
                return answer.status, answer.content_type, await answer.read()

        whole = (await page())[2]
        assert await sim.faults(metrics="down") == 200
        assert (await page())[0] == 500
        await sim.faults(metrics="html")
        assert (await page())[:2] == (200, "text/html")
        await sim.faults(metrics="empty")
        assert await page() == (200, "text/plain", b"")
        await sim.faults(metrics="half")
        assert (await page())[2] == whole[: len(whole) // 2]
        await sim.faults(metrics="slow", seconds=0.05)
        began = asyncio.get_running_loop().time()
        assert (await page())[2] == whole
        assert asyncio.get_running_loop().time() - began >= 0.05
        await sim.faults()
        assert (await page())[2] == whole
        assert await sim.get("/sim/faults") == {"metrics": "ok", "seconds": 1.0, "hang": False, "shed": "status"}

    async def test_a_hung_engine_looks_healthy(self, sim: Sim) -> None:
        task = asyncio.ensure_future(sim.complete({"prompt": "a", "max_tokens": 20}))
        await sim.until(lambda: sim.shows("vllm:num_requests_running", 1))
        await sim.faults(hang=True)
        frozen = await sim.metrics()
        async with sim.http.get(sim.url + "/health") as answer:
            assert answer.status == 200
        assert await sim.metrics() == frozen
        assert frozen["vllm:num_requests_running", ""] == 1
        await sim.faults(hang=False)
        assert (await task)[0] == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'{"metrics":"gone"}',
            b'{"metric":"ok"}',
            b'{"seconds":-1}',
            b'{"seconds":"1"}',
            b'{"hang":1}',
            b'{"shed":[]}',
        ],
    )
    async def test_nonsense_is_refused(self, sim: Sim, body: bytes) -> None:
        async with sim.http.put(sim.url + "/sim/faults", data=body) as answer:
            assert answer.status == 400
            assert "faults" in (await answer.json())["error"]["message"]
