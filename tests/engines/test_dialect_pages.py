"""Each engine's page, against values that were read off it with grep and added by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from extproc.core.model import Sample
from extproc.engines.dialects import (
    ALL_SAMPLE_NAMES,
    DIALECTS,
    DYNAMO,
    LLAMACPP,
    PATHS,
    SGLANG,
    TENSORRT_LLM,
    TGI,
    TRITON,
    VLLM,
    Dialect,
    MissingSignalError,
    Reading,
    detect,
)
from extproc.engines.exposition import parse

Page = Callable[[str], bytes]
EMPTY = Sample(0, 0, None, None, None, None, None, None, 12.5)


def read(dialect: Dialect, text: bytes) -> Reading:
    return dialect.read(parse(text, dialect.sample_names), 12.5)


def of(name: str) -> Dialect:
    """The engine that a page is of, by its file's name."""
    words = {
        "trtllm_serve": TENSORRT_LLM,
        "triton": TRITON,
        "tensorrt_llm": TENSORRT_LLM,
        "dynamo": DYNAMO,
        "sglang": SGLANG,
        "tgi": TGI,
        "llamacpp": LLAMACPP,
        "vllm": VLLM,
    }
    return next(dialect for word, dialect in words.items() if word in name)


SAMPLES: dict[str, Sample] = {
    "metrics_vllm_idle.txt": replace(
        EMPTY,
        kv_usage=0.0,
        itl_sum=0.0,
        itl_count=0.0,
        ttft_sum=0.0,
        ttft_count=0.0,
        preemptions=0.0,
        generation_tokens=0.0,
        prompt_tokens=0.0,
        kv_capacity_tokens=1_048_576,
        progress=0.0,
        prefix_queries=0.0,
        prefix_hits=0.0,
    ),
    "metrics_vllm_0.32_idle_after_2req.txt": replace(
        EMPTY,
        kv_usage=0.0,
        itl_sum=0.23080084200000783,
        itl_count=30.0,
        ttft_sum=0.08161759376525879,
        ttft_count=2.0,
        preemptions=0.0,
        generation_tokens=32.0,
        prompt_tokens=11.0,
        kv_capacity_tokens=1_048_576,
        progress=32.0,
        prefix_queries=11.0,
        prefix_hits=0.0,
    ),
    "metrics_vllm_0.32_load.txt": replace(
        EMPTY,
        running=8,
        waiting=22,
        kv_usage=0.0019533634476864847,
        itl_sum=163.8979584160047,
        itl_count=17569.0,
        ttft_sum=206.49948644638062,
        ttft_count=383.0,
        preemptions=0.0,
        generation_tokens=17952.0,
        prompt_tokens=140684.0,
        kv_capacity_tokens=1_048_576,
        progress=3330.0,
        prefix_queries=140684.0,
        prefix_hits=0.0,
    ),
    "metrics_vllm_0.32_api2.txt": replace(
        EMPTY,
        running=2,
        waiting=7,
        kv_usage=0.0002441704309608106,
        itl_sum=2.840585623999914,
        itl_count=233.0,
        ttft_sum=0.19147801399230957,
        ttft_count=3.0,
        preemptions=0.0,
        generation_tokens=237.0,
        prompt_tokens=7.0,
        kv_capacity_tokens=1_048_576,
        progress=236.0,
        prefix_queries=7.0,
        prefix_hits=0.0,
    ),
    # two engines: 2 + 2 running, 2 + 3 waiting, the fuller of two caches, the rest added. Each has 1,048,576 tokens in
    # 8,192 blocks of 128, though both series say num_gpu_blocks="16384"
    "metrics_vllm_0.32_dp2.txt": replace(
        EMPTY,
        running=4,
        waiting=5,
        kv_usage=0.0009766817238432424,
        itl_sum=9.427292319000117 + 9.483095700999911,
        itl_count=1553.0,
        ttft_sum=0.19788527488708496 + 0.16915583610534668,
        ttft_count=5.0,
        preemptions=0.0,
        generation_tokens=1559.0,
        prompt_tokens=11.0,
        kv_capacity_tokens=2_097_152,
        progress=882.0 + 340.0,
        prefix_queries=11.0,
        prefix_hits=0.0,
    ),
    "vllm_two_engines.txt": replace(
        EMPTY,
        running=8,
        waiting=2,
        kv_usage=0.75,
        itl_sum=6.75,
        itl_count=770.0,
        preemptions=5.0,
        generation_tokens=800.0,
        prompt_tokens=3000.0,
        kv_capacity_tokens=128_000,
        progress=3800.0,
    ),
    "vllm_old.txt": replace(
        EMPTY,
        running=12,
        waiting=1,
        kv_usage=0.5,
        itl_sum=16.0,
        itl_count=800.0,
        preemptions=7.0,
        generation_tokens=900.0,
        kv_capacity_tokens=16_000,
    ),
    # swapped ones wait; of two processes that tell of one cache the larger figure counts
    "vllm_swapped_pid.txt": replace(
        EMPTY,
        running=6,
        waiting=7,
        kv_usage=0.875,
        generation_tokens=450.0,
        prompt_tokens=300.0,
        progress=750.0,
        prefix_queries=300.0,
        prefix_hits=100.0,
    ),
    # the second line is the newest
    "vllm_lora.txt": replace(
        EMPTY, running=3, waiting=1, progress=77.0, adapters=("chat", "legal", "sql"), max_adapters=2
    ),
    "vllm.openmetrics": replace(EMPTY, running=3, waiting=1, generation_tokens=450.0, ttft_sum=2.5, ttft_count=4.0),
    "metrics_sglang_0.5.23.txt": replace(
        EMPTY,
        running=4,
        waiting=7,
        kv_usage=0.62,
        itl_sum=0.07100000000000001,
        itl_count=3.0,
        ttft_sum=2.64,
        ttft_count=6.0,
        preemptions=3.0,
        generation_tokens=9600.0,
        prompt_tokens=2400.0,
        prefix_queries=0.0,
        prefix_hits=0.0,
    ),
    # 4 running and 7 waiting, broken down by priority as well; a sum would say 8 and 14
    "metrics_sglang_0.5.23_priority.txt": replace(
        EMPTY,
        running=4,
        waiting=7,
        kv_usage=0.62,
        itl_sum=0.07100000000000001,
        itl_count=3.0,
        ttft_sum=2.64,
        ttft_count=6.0,
        preemptions=3.0,
        generation_tokens=9600.0,
        prompt_tokens=2400.0,
        prefix_queries=0.0,
        prefix_hits=0.0,
    ),
    # engine 0: 4 running, told by two ranks; engine 1: 3 by the rank that is ahead. Waiting 7 + 1
    "sglang.txt": replace(
        EMPTY,
        running=7,
        waiting=8,
        kv_usage=0.5,
        itl_sum=48.5,
        itl_count=4800.0,
        ttft_sum=1.75,
        ttft_count=7.0,
        preemptions=4.0,
        generation_tokens=4830.0,
        prompt_tokens=1200.0,
        kv_capacity_tokens=200_000,
        progress=6030.0,
        max_adapters=8,
        prefix_queries=1200.0,
        prefix_hits=200.0,
    ),
    "metrics_tgi_3.x_documented.txt": replace(
        EMPTY,
        running=20,
        waiting=22,
        itl_sum=2680.3,
        itl_count=198233.0,
        generation_tokens=198233.0,
        prompt_tokens=902113.0,
        progress=1490.0 + 88120.0,
    ),
    "tgi.txt": replace(
        EMPTY,
        running=5,
        waiting=3,
        itl_sum=62.5,
        itl_count=2500.0,
        generation_tokens=2500.0,
        prompt_tokens=9000.0,
        progress=912.0,
    ),
    "metrics_llamacpp_idle.txt": replace(
        EMPTY,
        itl_sum=0.001577,
        itl_count=8.0,
        generation_tokens=8.0,
        prompt_tokens=2.0,
        progress=8.0,
        prefix_queries=2.0,
        prefix_hits=0.0,
    ),
    "metrics_llamacpp_load.txt": replace(
        EMPTY,
        running=2,
        waiting=4,
        itl_sum=39.7251,
        itl_count=60855.0,
        generation_tokens=60855.0,
        prompt_tokens=2450.0,
        progress=31918.0,
        prefix_queries=2945.0,
        prefix_hits=495.0,
    ),
    "llamacpp.txt": replace(
        EMPTY, running=4, waiting=9, itl_sum=3.25, itl_count=640.0, generation_tokens=640.0, prompt_tokens=120.0
    ),
    # no seconds of decoding and no tokens on it; 11,147 blocks of 32
    "metrics_trtllm_serve_documented.txt": replace(
        EMPTY, running=12, waiting=3, kv_usage=0.62, ttft_sum=14.1, ttft_count=120.0, kv_capacity_tokens=356_704
    ),
    "tensorrt_llm.txt": replace(
        EMPTY,
        running=12,
        waiting=3,
        kv_usage=0.625,
        itl_sum=120.0,
        itl_count=6000.0,
        ttft_sum=7.5,
        ttft_count=60.0,
        generation_tokens=6000.0,
        prompt_tokens=5000.0,
        kv_capacity_tokens=32_000,
        prefix_queries=5000.0,
        prefix_hits=1250.0,
    ),
    # 11,147 blocks of 64
    "metrics_triton_trtllm_documented.txt": replace(
        EMPTY, running=12, waiting=3, kv_usage=0.62, kv_capacity_tokens=713_408
    ),
    "triton.txt": replace(EMPTY, running=14, waiting=4, kv_usage=0.5, kv_capacity_tokens=128_000),
    "triton_old.txt": replace(EMPTY, running=12, waiting=4),  # of 16 active ones 12 are scheduled
    # 14 inside, 1 + 0 + 4 of them before their first token; those after it are in no such stage
    "dynamo.txt": replace(
        EMPTY,
        running=9,
        waiting=5,
        itl_sum=60.0,
        itl_count=3000.0,
        ttft_sum=4.5,
        ttft_count=30.0,
        generation_tokens=3100.0,
        prompt_tokens=8000.0,
        progress=3100.0,
        prefix_queries=8000.0,
        prefix_hits=2000.0,
    ),
    "dynamo_old.txt": replace(EMPTY, running=7, waiting=5, kv_usage=0.75),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_on_each_page(name: str, page: Page) -> None:
    reading = read(of(name), page(name))
    assert reading.sample == SAMPLES[name]
    assert reading.ignored == {}


def test_an_engine_is_known_by_its_page(any_page: str, page: Page) -> None:
    expected = of(any_page)
    samples = parse(page(any_page), ALL_SAMPLE_NAMES)
    assert detect(samples) is expected
    for dialect in DIALECTS.values():
        if dialect is not expected:
            with pytest.raises(MissingSignalError, match="is not on the page"):
                read(dialect, page(any_page))


def test_no_two_engines_have_a_name_in_common() -> None:
    names = [name for dialect in DIALECTS.values() for name in dialect.sample_names]
    assert len(names) == len(set(names)) == len(ALL_SAMPLE_NAMES)


def test_a_dynamo_worker_speaks_as_the_engine_inside_it(page: Page) -> None:
    worker = b'dynamo_component_gpu_cache_usage_percent{dynamo_component="backend"} 0.5\n' + page("vllm_old.txt")
    assert detect(parse(worker, ALL_SAMPLE_NAMES)) is VLLM


def test_where_the_pages_are() -> None:
    assert PATHS == ("/metrics", "/prometheus/metrics")
    assert [dialect.name for dialect in DIALECTS.values() if dialect.path != "/metrics"] == ["tensorrt_llm"]


def test_the_words_are_those_of_the_configuration() -> None:
    assert set(DIALECTS) == {"vllm", "sglang", "tgi", "llamacpp", "tensorrt_llm", "triton", "dynamo"}


@pytest.mark.parametrize(
    ("dialect", "never"),
    [
        (VLLM, set()),
        (SGLANG, {"adapters"}),
        (TGI, {"kv_usage", "kv_capacity", "ttft", "preemptions", "prefix", "adapters", "max_adapters"}),
        (LLAMACPP, {"kv_capacity", "ttft", "preemptions", "adapters", "max_adapters"}),
        (TENSORRT_LLM, {"preemptions", "progress", "adapters", "max_adapters"}),
        (DYNAMO, {"kv_capacity", "preemptions", "adapters", "max_adapters"}),
        (
            TRITON,
            {"itl", "ttft", "preemptions", "generation_tokens", "prompt_tokens", "prefix", "progress", "adapters"}
            | {"max_adapters"},
        ),
    ],
)
def test_what_an_engine_can_never_tell(dialect: Dialect, never: set[str]) -> None:
    assert dialect.lacks == never


# SGLang -----------------------------------------------------------------------------------------------------------


def test_sglang_with_an_underscore(page: Page) -> None:
    reading = read(SGLANG, page("sglang.txt").replace(b"sglang:", b"sglang_"))
    assert reading.sample == SAMPLES["sglang.txt"]
    assert reading.names["waiting"] == "sglang_num_queue_reqs"


def test_sglang_without_a_total_over_priorities_is_added_up() -> None:
    page = (
        b'sglang:num_running_reqs{priority="0"} 2\nsglang:num_running_reqs{priority="5"} 1\nsglang:num_queue_reqs 4\n'
    )
    sample = read(SGLANG, page).sample
    assert (sample.running, sample.waiting) == (3, 4)


def test_sglang_before_its_first_step_has_no_progress(page: Page) -> None:
    lines = page("sglang.txt").splitlines(keepends=True)
    reading = read(SGLANG, b"".join(line for line in lines if not line.startswith(b"sglang:realtime_tokens_total")))
    assert reading.sample.progress is None
    assert reading.lacks == {"progress", "adapters"}
    # counters that move when a request is done are good enough for these two
    assert (reading.sample.generation_tokens, reading.sample.prompt_tokens) == (4000.0, 800.0)


# TGI: its gauges come with the first request ----------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"\n", b"# TYPE tgi_request_count counter\n", b"tgi_request_success 0\n"])
def test_a_new_tgi_is_idle(text: bytes) -> None:
    assert read(TGI, text).sample == EMPTY


def test_the_first_request_of_a_tgi_waits_before_there_is_a_batch() -> None:
    sample = read(TGI, b"tgi_queue_size 1\n").sample
    assert (sample.running, sample.waiting) == (0, 1)


@pytest.mark.parametrize("name", ["tgi_queue_size", "tgi_batch_current_size"])
def test_a_tgi_that_has_answered_must_have_its_gauges(name: str, page: Page) -> None:
    lines = page("tgi.txt").splitlines(keepends=True)
    with pytest.raises(MissingSignalError, match=f"{name} is not on the page"):
        read(TGI, b"".join(line for line in lines if not line.startswith(name.encode())))


def test_a_tgi_gauge_that_cannot_be_true_is_not_zero() -> None:
    with pytest.raises(MissingSignalError, match="tgi_queue_size cannot be true"):
        read(TGI, b"tgi_queue_size NaN\n")


@pytest.mark.parametrize("dialect", [d for d in DIALECTS.values() if d is not TGI], ids=lambda d: d.name)
def test_an_empty_page_is_an_idle_engine_of_no_other_dialect(dialect: Dialect) -> None:
    with pytest.raises(MissingSignalError, match="is not on the page"):
        read(dialect, b"")


def test_any_other_page_is_no_idle_tgi() -> None:
    with pytest.raises(MissingSignalError, match="tgi_batch_current_size is not on the page"):
        read(TGI, b"# TYPE up gauge\nup 1\n")


# Triton and Dynamo: one count is what the others leave ------------------------------------------------------------


def test_triton_tells_what_it_reckoned_from(page: Page) -> None:
    assert read(TRITON, page("triton_old.txt")).names["waiting"] == (
        'nv_trt_llm_request_metrics{request_type="active"} - nv_trt_llm_request_metrics{request_type="scheduled"}'
    )


def test_a_difference_is_not_negative() -> None:
    page = b'dynamo_frontend_queued_requests{model="m"} 5\ndynamo_frontend_inflight_requests{model="m"} 4\n'
    assert read(DYNAMO, page).sample.running == 0


def test_a_difference_from_nothing_is_none() -> None:
    with pytest.raises(MissingSignalError, match="dynamo_frontend_queued_requests is not on the page"):
        read(DYNAMO, b'dynamo_frontend_inflight_requests{model="m"} 4\n')


def test_a_difference_from_what_cannot_be_true_is_none() -> None:
    page = b'dynamo_frontend_queued_requests{model="m"} 1\ndynamo_frontend_inflight_requests{model="m"} -4\n'
    with pytest.raises(MissingSignalError, match="dynamo_frontend_inflight_requests cannot be true") as error:
        read(DYNAMO, page)
    assert error.value.ignored == {"running": 1}


# LoRA adapters of vLLM --------------------------------------------------------------------------------------------


def lora(*series: tuple[str, str, str], max_lora: str = "4") -> tuple[tuple[str, ...] | None, int | None]:
    """Adapters read from a page with these (running, waiting, value)."""
    page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    for running, waiting, value in series:
        labels = f'max_lora="{max_lora}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
        page += f"vllm:lora_requests_info{{{labels}}} {value}\n"
    sample = read(VLLM, page.encode()).sample
    return sample.adapters, sample.max_adapters


def test_no_adapter_is_not_no_information() -> None:
    assert lora(("", "", "1.7e9")) == ((), 4)
    assert lora() == (None, None)


def test_the_newest_value_counts_whatever_the_order() -> None:
    assert lora(("a", "", "3"), ("b", "", "2"), ("c", "", "1")) == (("a",), 4)
    assert lora(("a", "", "1"), ("b", "", "2")) == (("b",), 4)


def test_adapters_are_split_at_commas_and_named_once() -> None:
    assert lora(("b, a", "c,a", "1")) == (("a", "b", "c"), 4)


def test_a_time_that_cannot_be_true_is_no_newest() -> None:
    assert lora(("a", "", "1"), ("b", "", "+Inf"), ("c", "", "NaN"), ("d", "", "-1")) == (("a",), 4)
    assert lora(("a", "", "NaN")) == (None, None)


def test_a_bound_that_is_no_number_is_unknown() -> None:
    assert lora(("a", "", "1"), max_lora="None") == (("a",), None)


def test_each_engine_has_a_newest_of_its_own() -> None:
    line = 'vllm:lora_requests_info{engine="%s",max_lora="%s",running_lora_adapters="%s",waiting_lora_adapters=""} %s\n'
    page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    page += line % ("0", "4", "a", "9") + line % ("1", "2", "old", "1") + line % ("1", "2", "b", "2")
    sample = read(VLLM, page.encode()).sample
    assert (sample.adapters, sample.max_adapters) == (("a", "b"), 2)
