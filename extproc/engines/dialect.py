"""What an engine calls its signals, and how a page of its metrics becomes a `Sample`.

An engine's names change from version to version, so a dialect lists for each signal the names it has gone by, newest
first, and takes the first that is on the page. Which one it was is part of the reading.

Rules, the same for every dialect:

- Several series of a count are added (one per data-parallel engine); of KV usage the fullest counts: one full rank
  stalls its share of the requests. Labels are never used by position: their order has changed before.
- No series is not zero. Without `running` or `waiting` there is no sample (`MissingSignalError`); any other signal is
  None.
- A value that cannot be (NaN, infinite, negative, a count of 1e9 or more, a KV usage over 1.5) makes its signal missing
  and is counted. Of KV usage only the series in question is dropped, and up to 1.5 it is clamped to 1: engines have
  reported both (vLLM issues 20302 and 28792).
- Cumulative values are passed on as read; telling a restart from progress is the window's business.

Names: vLLM's from its sources 0.5 to 0.32, llama.cpp's from its server in 2026.10. vLLM's inter-token latency is
observed per output event, which is several tokens with speculative decoding. llama.cpp moves its token counters only
when a request finishes, and its prompt counter leaves out cached tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from extproc.core.model import Sample
from extproc.engines.exposition import Samples

_MAX_REQUESTS = 1e9  # no engine holds so many; garbage such as -1 read as unsigned does
_MAX_KV_USAGE = 1.5  # rounding and known faults stay below; a percentage does not, and is of no known unit


class MissingSignalError(Exception):
    """The page came, but a signal without which there is no sample is not on it or cannot be true.

    `ignored`: as in `Reading`."""

    def __init__(self, message: str, ignored: Mapping[str, int]) -> None:
        super().__init__(message)
        self.ignored = ignored


@dataclass(frozen=True, slots=True)
class Reading:
    """One page, read."""

    sample: Sample
    names: Mapping[str, str]  # signal -> the sample name that gave it
    ignored: Mapping[str, int]  # signal -> values dropped because they cannot be true


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names per signal, newest first. `itl` and `ttft` have pairs (sum in seconds, count of tokens or requests)."""

    name: str
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: tuple[str, ...] = ()
    itl: tuple[tuple[str, str], ...] = ()
    ttft: tuple[tuple[str, str], ...] = ()
    preemptions: tuple[str, ...] = ()
    generation_tokens: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    cache_config: str | None = None  # a series whose labels describe the KV cache
    filters: bool = False  # answers `/metrics/?name[]=...` with the named samples only
    sample_names: frozenset[str] = field(init=False)  # everything that `read` may look at

    def __post_init__(self) -> None:
        plain = (self.running, self.waiting, self.kv_usage, *self.itl, *self.ttft)
        cumulative = (self.preemptions, self.generation_tokens, self.prompt_tokens)
        names = {name for group in (*plain, *cumulative) for name in group}
        if self.cache_config is not None:
            names.add(self.cache_config)
        object.__setattr__(self, "sample_names", frozenset(names))

    def speaks(self, page: Samples) -> bool:
        """Whether a page is of this dialect: it has the engine's count of running or of waiting requests."""
        return any(name in page for name in (*self.running, *self.waiting))

    def read(self, page: Samples, started: float) -> Reading:
        """The sample on a page. `started`: clock time at which it was asked for, seconds.

        Raises MissingSignalError."""
        tally = _Tally(page)
        running = tally.count("running", self.running)
        waiting = tally.count("waiting", self.waiting)
        if running is None or waiting is None:
            absent, names = ("running", self.running) if running is None else ("waiting", self.waiting)
            why = "cannot be true" if absent in tally.ignored else "is not on the page"
            raise MissingSignalError(f"{tally.names.get(absent, names[0])} {why}", MappingProxyType(tally.ignored))
        itl_sum, itl_count = tally.pair("itl", self.itl)
        ttft_sum, ttft_count = tally.pair("ttft", self.ttft)
        sample = Sample(
            running=running,
            waiting=waiting,
            kv_usage=tally.share("kv_usage", self.kv_usage),
            itl_sum=itl_sum,
            itl_count=itl_count,
            preemptions=tally.total("preemptions", self.preemptions),
            generation_tokens=tally.total("generation_tokens", self.generation_tokens),
            prompt_tokens=tally.total("prompt_tokens", self.prompt_tokens),
            started=started,
            ttft_sum=ttft_sum,
            ttft_count=ttft_count,
            kv_capacity_tokens=None if self.cache_config is None else _kv_capacity(page, self.cache_config),
        )
        return Reading(
            sample=sample,
            names=MappingProxyType(tally.names),
            ignored=MappingProxyType(tally.ignored),
        )


class _Tally:
    """Picks and adds up one page's series, and keeps account of names and of values that cannot be true."""

    def __init__(self, page: Samples) -> None:
        self._page = page
        self.names: dict[str, str] = {}
        self.ignored: dict[str, int] = {}

    def _values(self, signal: str, names: tuple[str, ...], below: float = math.inf) -> list[float] | None:
        """Values of the first name that is there, without those that cannot be true; None: no such name."""
        for name in names:
            if name in self._page:
                self.names[signal] = name
                values = [value for _, value in self._page[name]]
                good = [value for value in values if 0 <= value < below]  # not true of NaN
                if len(good) < len(values):
                    self.ignored[signal] = self.ignored.get(signal, 0) + len(values) - len(good)
                return good
        return None

    def total(self, signal: str, names: tuple[str, ...], below: float = math.inf) -> float | None:
        values = self._values(signal, names, below)
        # a sum over only some of the engines is not what the signal means
        return None if not values or signal in self.ignored else sum(values)

    def count(self, signal: str, names: tuple[str, ...]) -> int | None:
        value = self.total(signal, names, _MAX_REQUESTS)
        return None if value is None else round(value)

    def share(self, signal: str, names: tuple[str, ...]) -> float | None:
        values = self._values(signal, names, math.nextafter(_MAX_KV_USAGE, math.inf))
        return min(1.0, max(values)) if values else None

    def pair(self, signal: str, names: tuple[tuple[str, str], ...]) -> tuple[float | None, float | None]:
        """Sum and count of the first histogram that has both; both None unless both can be true."""
        for sum_name, count_name in names:
            if sum_name in self._page and count_name in self._page:
                count = self.total(signal, (count_name,))
                total = self.total(signal, (sum_name,))  # last: the sum's name stands for the pair
                return (None, None) if total is None or count is None else (total, count)
        return None, None


def _kv_capacity(page: Samples, name: str) -> int | None:
    """KV capacity in tokens, from vLLM's `cache_config_info`, over all engines.

    `kv_cache_size_tokens` (newer versions) is one engine's and is added up. `num_gpu_blocks` is not: with data
    parallelism each engine's series carries the sum over all of them (two engines of 8,192 blocks both say 16,384)."""
    series = [labels for labels, _ in page.get(name, ())]
    sizes = [_integer(labels, "kv_cache_size_tokens") for labels in series]
    if sizes and None not in sizes:
        return sum(size for size in sizes if size is not None) or None
    totals = [
        blocks * size
        for labels in series
        if (blocks := _integer(labels, "num_gpu_blocks")) is not None
        and (size := _integer(labels, "block_size")) is not None
    ]
    return max(totals, default=0) or None


def _integer(labels: Mapping[str, str], key: str) -> int | None:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


VLLM = Dialect(
    name="vllm",
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0..1, despite the name; since 0.9.2
    itl=(
        ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),  # since 0.11
        ("vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"),
    ),
    ttft=(("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),),
    preemptions=("vllm:num_preemptions_total",),
    generation_tokens=("vllm:generation_tokens_total",),
    prompt_tokens=("vllm:prompt_tokens_total",),
    cache_config="vllm:cache_config_info",
    filters=True,
)

LLAMACPP = Dialect(
    name="llamacpp",
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),  # older servers only
    itl=(("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total"),),
    generation_tokens=("llamacpp:tokens_predicted_total",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
)

DIALECTS: Mapping[str, Dialect] = MappingProxyType({dialect.name: dialect for dialect in (VLLM, LLAMACPP)})
ALL_SAMPLE_NAMES = frozenset().union(*(dialect.sample_names for dialect in DIALECTS.values()))


def detect(page: Samples) -> Dialect | None:
    """The dialect of a page that was parsed for `ALL_SAMPLE_NAMES`; None when it is of no known engine."""
    return next((dialect for dialect in DIALECTS.values() if dialect.speaks(page)), None)
