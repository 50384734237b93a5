from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.model import Sample
from extproc.engines.dialects import VLLM, Dialect, MissingSignalError, Reading
from extproc.engines.dialects.series import terms
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


# KV capacity ------------------------------------------------------------------------------------------------------


def test_kv_capacity_of_two_engines_from_blocks_is_not_added_twice() -> None:
    config = 'vllm:cache_config_info{block_size="128",engine="%d",num_gpu_blocks="16384"} 1\n'
    assert read(VLLM, vllm() + (config % 0 + config % 1).encode()).sample.kv_capacity_tokens == 2_097_152


@pytest.mark.parametrize("blocks", ["None", "", "-1", "1.5", "9" * 30])
def test_a_kv_capacity_that_is_no_number_is_unknown(blocks: str) -> None:
    config = f'vllm:cache_config_info{{block_size="128",num_gpu_blocks="{blocks}"}} 1\n'
    assert read(VLLM, vllm() + config.encode()).sample.kv_capacity_tokens is None


# names ------------------------------------------------------------------------------------------------------------


def test_the_names_in_use_are_reported(page: Page) -> None:
    reading = read(VLLM, page("vllm_old.txt"))
    assert reading.names == {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting + vllm:num_requests_swapped",
        "kv_usage": "vllm:gpu_cache_usage_perc",
        "kv_capacity": "vllm:cache_config_info",
        "itl": "vllm:time_per_output_token_seconds_sum",
        "preemptions": "vllm:num_preemptions_total",
        "generation_tokens": "vllm:generation_tokens_total",
    }
    assert reading.lacks == {"ttft", "prompt_tokens", "prefix", "progress", "adapters", "max_adapters"}


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


# several series ---------------------------------------------------------------------------------------------------


def test_a_series_that_is_there_twice_counts_once() -> None:
    page = vllm() + b'vllm:num_requests_running{engine="0"} 1\n' + b'vllm:num_requests_running{engine="0"} 3\n'
    assert read(VLLM, page).sample.running == 3


def test_processes_that_tell_of_the_same_engine_are_copies() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d",pid="%d"} %d\n' % (engine, pid, value)
        for engine, pid, value in [(0, 7, 2), (0, 8, 0), (1, 7, 0), (1, 8, 5)]
    )
    assert read(VLLM, page + b"vllm:num_requests_waiting 0\n").sample.running == 7


def test_no_good_copy_hides_one_that_is_not_a_number() -> None:
    page = (
        b'vllm:num_requests_running{pid="7"} NaN\nvllm:num_requests_running{pid="8"} 2\nvllm:num_requests_waiting 0\n'
    )
    with pytest.raises(MissingSignalError, match="cannot be true"):
        read(VLLM, page + b"vllm:num_requests_waiting 0\n")


@pytest.mark.parametrize("text", ["", "a +b", "a{b=c}", 'a{b="c"', "1a", "a - b"])
def test_a_mistake_in_a_table_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is no sample name"):
        terms(text)


def test_a_table_is_read_as_it_is_written() -> None:
    first, second = terms('a:b + c_total{mode="x|y"}')
    assert (first.name, first.label) == ("a:b", None)
    assert (second.name, second.label, sorted(second.values)) == ("c_total", "mode", ["x", "y"])
