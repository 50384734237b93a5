from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from extproc.core.model import Sample
from extproc.engines.dialect import (
    ALL_SAMPLE_NAMES,
    DIALECTS,
    LLAMACPP,
    VLLM,
    Dialect,
    MissingSignalError,
    Reading,
    detect,
)
from extproc.engines.exposition import parse

Page = Callable[[str], bytes]


def read(dialect: Dialect, text: bytes) -> Reading:
    return dialect.read(parse(text, dialect.sample_names), 12.5)


def vllm(**values: str | list[str]) -> bytes:
    """A small page: sample name without prefix -> value, or one per engine."""
    lines = []
    for name, value in ({"num_requests_running": "1", "num_requests_waiting": "0"} | values).items():
        series = [value] if isinstance(value, str) else value
        lines += [f'vllm:{name}{{engine="{i}"}} {v}\n' for i, v in enumerate(series)]
    return "".join(lines).encode()


# expected values: read off the pages with grep, added by hand
SAMPLES: dict[str, tuple[Dialect, Sample]] = {
    "metrics_vllm_idle.txt": (VLLM, Sample(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12.5, 0.0, 0.0)),
    "metrics_vllm_0.32_idle_after_2req.txt": (
        VLLM,
        Sample(0, 0, 0.0, 0.23080084200000783, 30.0, 0.0, 32.0, 11.0, 12.5, 0.08161759376525879, 2.0),
    ),
    "metrics_vllm_0.32_load.txt": (
        VLLM,
        Sample(
            8,
            22,
            0.0019533634476864847,
            163.8979584160047,
            17569.0,
            0.0,
            17952.0,
            140684.0,
            12.5,
            206.49948644638062,
            383.0,
        ),
    ),
    "metrics_vllm_0.32_api2.txt": (
        VLLM,
        Sample(2, 7, 0.0002441704309608106, 2.840585623999914, 233.0, 0.0, 237.0, 7.0, 12.5, 0.19147801399230957, 3.0),
    ),
    # two engines: 2 + 2 running, 2 + 3 waiting, the fuller of two caches, the rest added
    "metrics_vllm_0.32_dp2.txt": (
        VLLM,
        Sample(
            4,
            5,
            0.0009766817238432424,
            9.427292319000117 + 9.483095700999911,
            1553.0,
            0.0,
            1559.0,
            11.0,
            12.5,
            0.19788527488708496 + 0.16915583610534668,
            5.0,
        ),
    ),
    "vllm_two_engines.txt": (VLLM, Sample(8, 2, 0.75, 6.75, 770.0, 5.0, 800.0, 3000.0, 12.5)),
    "vllm_old.txt": (VLLM, Sample(12, 1, 0.5, 16.0, 800.0, 7.0, 900.0, None, 12.5)),
    "metrics_llamacpp_idle.txt": (LLAMACPP, Sample(0, 0, None, 0.001577, 8.0, None, 8.0, 2.0, 12.5)),
    "metrics_llamacpp_load.txt": (LLAMACPP, Sample(2, 4, None, 39.7251, 60855.0, None, 60855.0, 2450.0, 12.5)),
    "llamacpp.txt": (LLAMACPP, Sample(4, 9, None, 3.25, 640.0, None, 640.0, 120.0, 12.5)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_on_each_page(name: str, page: Page) -> None:
    dialect, sample = SAMPLES[name]
    reading = read(dialect, page(name))
    assert replace(reading.sample, kv_capacity_tokens=None) == sample  # that has a test of its own
    assert reading.ignored == {}


def test_detection_by_presence(any_page: str, page: Page) -> None:
    expected = SAMPLES[any_page][0] if any_page in SAMPLES else None
    samples = parse(page(any_page), ALL_SAMPLE_NAMES)
    assert detect(samples) is expected
    for dialect in DIALECTS.values():
        if dialect is not expected:
            with pytest.raises(MissingSignalError, match="is not on the page"):
                dialect.read(samples, 0.0)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("metrics_vllm_0.32_load.txt", 1_048_576),
        # each engine has 1,048,576 tokens in 8,192 blocks of 128; both series say num_gpu_blocks="16384"
        ("metrics_vllm_0.32_dp2.txt", 2_097_152),
        ("vllm_two_engines.txt", 128_000),
        ("vllm_old.txt", 16_000),
        ("llamacpp.txt", None),
    ],
)
def test_kv_capacity(name: str, tokens: int | None, page: Page) -> None:
    assert read(SAMPLES[name][0], page(name)).sample.kv_capacity_tokens == tokens


def test_kv_capacity_of_two_engines_from_blocks_is_not_added_twice() -> None:
    config = 'vllm:cache_config_info{block_size="128",engine="%d",num_gpu_blocks="16384"} 1\n'
    assert read(VLLM, vllm() + (config % 0 + config % 1).encode()).sample.kv_capacity_tokens == 2_097_152


@pytest.mark.parametrize("blocks", ["None", "", "-1", "1.5", "9" * 30])
def test_a_kv_capacity_that_is_no_number_is_unknown(blocks: str) -> None:
    config = f'vllm:cache_config_info{{block_size="128",num_gpu_blocks="{blocks}"}} 1\n'
    assert read(VLLM, vllm() + config.encode()).sample.kv_capacity_tokens is None


# names ------------------------------------------------------------------------------------------------------------


def test_the_names_in_use_are_reported(page: Page) -> None:
    assert read(VLLM, page("vllm_old.txt")).names == {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_usage": "vllm:gpu_cache_usage_perc",
        "itl": "vllm:time_per_output_token_seconds_sum",
        "preemptions": "vllm:num_preemptions_total",
        "generation_tokens": "vllm:generation_tokens_total",
    }


def test_the_newer_of_two_names_wins() -> None:
    # 0.9.2 to 0.10 had both names of the KV gauge, 0.11 and 0.12 both of the latency
    reading = read(
        VLLM,
        vllm(
            gpu_cache_usage_perc="0.9",
            kv_cache_usage_perc="0.4",
            time_per_output_token_seconds_sum="9",
            time_per_output_token_seconds_count="9",
            inter_token_latency_seconds_sum="2",
            inter_token_latency_seconds_count="4",
        ),
    )
    assert (reading.sample.kv_usage, reading.sample.itl_sum, reading.sample.itl_count) == (0.4, 2.0, 4.0)
    assert reading.names["kv_usage"] == "vllm:kv_cache_usage_perc"


def test_sum_and_count_come_from_the_same_histogram() -> None:
    reading = read(
        VLLM,
        vllm(
            inter_token_latency_seconds_sum="2",  # without its count
            time_per_output_token_seconds_sum="9",
            time_per_output_token_seconds_count="3",
        ),
    )
    assert (reading.sample.itl_sum, reading.sample.itl_count) == (9.0, 3.0)


def test_the_order_of_labels_does_not_matter() -> None:
    page = (
        b'vllm:num_requests_running{model_name="m",engine="0"} 2\n'
        b'vllm:num_requests_running{engine="1",model_name="m"} 3\n'
        b'vllm:num_requests_waiting{engine="0"} 1\n'
    )
    assert read(VLLM, page).sample.running == 5


# missing is not zero ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_page_without_the_series_gives_no_sample(dialect: Dialect) -> None:
    with pytest.raises(MissingSignalError, match=f"{dialect.running[0]} is not on the page"):
        dialect.read({}, 0.0)


def test_running_alone_is_not_enough() -> None:
    with pytest.raises(MissingSignalError, match="vllm:num_requests_waiting is not on the page"):
        read(VLLM, b"vllm:num_requests_running 3\n")


def test_signals_that_are_not_there_are_none() -> None:
    assert read(VLLM, vllm()).sample == Sample(1, 0, None, None, None, None, None, None, 12.5)


# values that cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["-1", "NaN", "1e9", "4294967295", "+Inf", "-Inf"])
@pytest.mark.parametrize("signal", ["running", "waiting"])
def test_an_absurd_count_is_missing_and_counted(signal: str, value: str) -> None:
    with pytest.raises(MissingSignalError, match=f"vllm:num_requests_{signal} cannot be true") as error:
        read(VLLM, vllm(**{f"num_requests_{signal}": value}))
    assert error.value.ignored == {signal: 1}


def test_one_absurd_engine_spoils_the_sum() -> None:
    with pytest.raises(MissingSignalError):
        read(VLLM, vllm(num_requests_waiting=["3", "-1"]))


@pytest.mark.parametrize(
    ("values", "usage", "ignored"),
    [
        (["0.2", "0.7"], 0.7, 0),
        (["-0.3"], None, 1),
        (["NaN", "0.4"], 0.4, 1),
        (["1.02"], 1.0, 0),
        (["1.5"], 1.0, 0),
        (["55"], None, 1),  # a percentage, or anything else: of no known unit
        (["+Inf", "0.1"], 0.1, 1),
        (["0"], 0.0, 0),
    ],
)
def test_kv_usage_is_the_largest_that_can_be_true(values: list[str], usage: float | None, ignored: int) -> None:
    reading = read(VLLM, vllm(kv_cache_usage_perc=values))
    assert reading.sample.kv_usage == usage
    assert reading.ignored.get("kv_usage", 0) == ignored


@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf"])
def test_an_absurd_counter_is_none_and_counted(value: str) -> None:
    reading = read(VLLM, vllm(num_preemptions_total=value, generation_tokens_total=["5", value]))
    assert reading.sample.preemptions is None
    assert reading.sample.generation_tokens is None
    assert reading.ignored == {"preemptions": 1, "generation_tokens": 1}


def test_half_a_latency_pair_is_no_pair() -> None:
    reading = read(VLLM, vllm(inter_token_latency_seconds_sum="NaN", inter_token_latency_seconds_count="4"))
    assert (reading.sample.itl_sum, reading.sample.itl_count) == (None, None)
    assert reading.ignored == {"itl": 1}


def test_counters_may_be_large() -> None:
    # tokens of months: far beyond what a count of requests may be
    assert read(VLLM, vllm(generation_tokens_total="3.2e12")).sample.generation_tokens == 3.2e12
