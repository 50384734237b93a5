"""What a dialect is: the names of an engine's signals, and how a page of its metrics becomes a `Sample`.

Rules, the same for every dialect:

- Counts and cumulative figures are added over an engine's series (one per data-parallel engine, per model); of KV usage
  the fullest counts; sums and counts of a histogram are added each by itself. `series` says which series are copies.
- No series is not zero. Without `running` or `waiting` there is no sample (`MissingSignalError`); any other signal is
  None. The one exception is an engine whose gauges come with its first request, see `served`.
- A value that cannot be (NaN, infinite, negative, a count of 1e9 or more, a KV usage over 1.5) makes its signal missing
  and is counted. Of KV usage only the series in question is dropped.
- Cumulative values are passed on as read; telling a restart from progress is the window's business.
- `itl` is a sum of seconds between tokens over a count of tokens: the window takes the number of requests that decode
  from it (Little's law). A mean per request, of which some engines have a histogram, is no such pair and is not taken
  for one.
- `progress` must move with each step of the engine. A counter that moves when a request is done would make every long
  answer look like an engine that hangs. It is one figure for all engines behind a page: while one of them goes on,
  another that hangs does not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from extproc.core.model import Sample
from extproc.engines.dialects.series import Names, Pairs, Tally, is_there, terms, whole
from extproc.engines.exposition import Samples

_MAX_TOKENS: Final = 1e15  # no cache holds so many

NEEDED: Final = frozenset({"running", "waiting"})
SIGNALS: Final = NEEDED | {
    "kv_usage",
    "kv_capacity",
    "itl",
    "ttft",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
    "prefix",
    "progress",
    "adapters",
    "max_adapters",
}
"""All that a page may tell. `prefix` stands for `Sample.prefix_queries` and `prefix_hits`."""


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
    names: Mapping[str, str]  # signal -> the names that gave it, in the notation of `series`
    ignored: Mapping[str, int]  # signal -> values dropped because they cannot be true
    lacks: frozenset[str]  # signals that this page does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The names of an engine's signals, in the notation of `series`, those of newer versions first."""

    name: str
    path: str = "/metrics"  # where the engine has its page by default
    filters: bool = False  # answers `/metrics/?name[]=...` with the named samples only

    running: Names = ()
    waiting: Names = ()
    total: Names = ()  # both together; gives that one of them which has no name of its own on the page
    served: Names = ()  # answers. Given for an engine that has no gauges before its first request: they are 0 then
    kv_usage: Names = ()  # 0..1
    kv_tokens: Names = ()  # capacity of the KV cache in tokens
    kv_blocks: Pairs = ()  # the same as (blocks, tokens in a block)
    cache_config: str | None = None  # vLLM's series whose labels describe the KV cache
    itl: Pairs = ()  # (seconds, tokens)
    ttft: Pairs = ()  # (seconds, requests)
    preemptions: Names = ()
    generation_tokens: Names = ()
    prompt_tokens: Names = ()
    prefix: Pairs = ()  # (prompt tokens, of these found in the cache)
    progress: Names = ()
    lora_info: str | None = None  # vLLM's series whose labels name the LoRA adapters
    max_adapters: Names = ()

    copies: frozenset[str] = frozenset({"pid"})  # labels of who reports
    breakdown: str | None = None  # a label of running and waiting whose empty value stands for all of them

    lacks: frozenset[str] = field(init=False)  # signals that the engine can never give
    sample_names: frozenset[str] = field(init=False)  # everything that `read` may look at

    def __post_init__(self) -> None:
        sums = [text for signal in SIGNALS for text in self._sums(signal)]
        sums += (*self.total, *self.served)
        object.__setattr__(self, "lacks", frozenset(s for s in SIGNALS - NEEDED if not any(self._sums(s))))
        object.__setattr__(self, "sample_names", frozenset(term.name for text in sums for term in terms(text)))

    def _sums(self, signal: str) -> Iterator[str]:
        """All sums that a signal may be read from."""
        if signal == "kv_capacity":
            yield from self.kv_tokens
            yield from (text for pair in self.kv_blocks for text in pair)
            yield from filter(None, [self.cache_config])
        elif signal == "adapters":
            yield from filter(None, [self.lora_info])
        elif signal in ("itl", "ttft", "prefix"):
            yield from (text for pair in getattr(self, signal) for text in pair)
        else:
            yield from getattr(self, signal)
            if signal == "max_adapters":
                yield from filter(None, [self.lora_info])

    def speaks(self, page: Samples) -> bool:
        """Whether a page is of this dialect: it has one of the engine's counts of requests."""
        return any(is_there(text, page) for text in (*self.running, *self.waiting, *self.total, *self.served))

    def read(self, page: Samples, started: float) -> Reading:
        """The sample on a page that was parsed for `sample_names`. `started`: clock time at which it was asked for,
        seconds.

        Raises MissingSignalError."""
        tally = Tally(page, self.copies, self.breakdown)
        running, waiting = self._counts(tally)
        itl_sum, itl_count = tally.pair("itl", self.itl)
        ttft_sum, ttft_count = tally.pair("ttft", self.ttft)
        prefix_queries, prefix_hits = tally.pair("prefix", self.prefix)
        adapters, max_adapters = self._adapters(tally)
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
            kv_capacity_tokens=self._kv_capacity(tally),
            progress=tally.total("progress", self.progress),
            adapters=adapters,
            max_adapters=max_adapters,
            prefix_queries=prefix_queries,
            prefix_hits=prefix_hits,
        )
        return Reading(
            sample=sample,
            names=MappingProxyType(tally.names),
            ignored=MappingProxyType(tally.ignored),
            lacks=SIGNALS - tally.names.keys(),
        )

    def _counts(self, tally: Tally) -> tuple[int, int]:
        """Running and waiting requests."""
        counts = {"running": tally.count("running", self.running), "waiting": tally.count("waiting", self.waiting)}
        absent = [signal for signal in counts if signal not in tally.names]
        if len(absent) == 1 and self.total:
            [signal], [(other, known)] = absent, [item for item in counts.items() if item[0] != absent[0]]
            both = tally.count(signal, self.total)
            if both is not None and known is not None:
                counts[signal] = max(0, both - known)
                tally.names[signal] += f" - {tally.names[other]}"
        elif absent and self._is_new(tally.page):
            counts.update(dict.fromkeys(absent, 0))
        running, waiting = counts["running"], counts["waiting"]
        if running is None or waiting is None:
            raise self._missing([signal for signal, value in counts.items() if value is None], tally)
        return running, waiting

    def _missing(self, signals: list[str], tally: Tally) -> MissingSignalError:
        """About the one of these counts that has a value that cannot be true, else that has a name of its own."""
        signal = min(signals, key=lambda signal: (signal not in tally.ignored, not getattr(self, signal)))
        why = "cannot be true" if signal in tally.ignored else "is not on the page"
        name = tally.names.get(signal) or min(getattr(self, signal) or self.total, key=len)
        return MissingSignalError(f"{name} {why}", MappingProxyType(tally.ignored))

    def _is_new(self, page: Samples) -> bool:
        """Whether the engine has answered no request yet, so that its gauges may be absent.

        A page with samples of which none is ours is another engine's: it says nothing."""
        if not self.served or not (page or page.blank):
            return False
        return all(value == 0 for text in self.served for term in terms(text) for _, value in term.series(page))

    def _kv_capacity(self, tally: Tally) -> int | None:
        signal = "kv_capacity"
        if self.cache_config is not None and self.cache_config in tally.page:
            tally.names[signal] = self.cache_config
            return _capacity_of_config([labels for labels, _ in tally.page[self.cache_config]])
        tokens = tally.total(signal, self.kv_tokens)
        if signal not in tally.names:
            blocks, each = tally.pair(signal, self.kv_blocks)
            tokens = None if blocks is None or each is None else blocks * each
        return round(tokens) if tokens is not None and 1 <= tokens < _MAX_TOKENS else None

    def _adapters(self, tally: Tally) -> tuple[tuple[str, ...] | None, int | None]:
        """Adapters that run or wait, and how many may be in one batch."""
        if self.lora_info is not None and self.lora_info in tally.page:
            series = [(labels, value) for labels, value in tally.page[self.lora_info] if 0 < value < math.inf]
            if dropped := len(tally.page[self.lora_info]) - len(series):
                tally.ignored["adapters"] = dropped
            tally.names["adapters"] = tally.names["max_adapters"] = self.lora_info
            return _adapters_of_info(series)
        return None, tally.least("max_adapters", self.max_adapters)


def _capacity_of_config(series: list[dict[str, str]]) -> int | None:
    """KV capacity in tokens, from vLLM's `cache_config_info`, over all engines.

    `kv_cache_size_tokens` (newer versions) is one engine's and is added up. `num_gpu_blocks` is not: with data
    parallelism each engine's series carries the sum over all of them (two engines of 8,192 blocks both say 16,384)."""
    sizes = [whole(labels, "kv_cache_size_tokens") for labels in series]
    if sizes and None not in sizes:
        return sum(size for size in sizes if size is not None) or None
    totals = [
        blocks * size
        for labels in series
        if (blocks := whole(labels, "num_gpu_blocks")) is not None and (size := whole(labels, "block_size")) is not None
    ]
    return max(totals, default=0) or None


_ADAPTERS_OF: Final = ("running_lora_adapters", "waiting_lora_adapters")


def _adapters_of_info(series: list[tuple[dict[str, str], float]]) -> tuple[tuple[str, ...] | None, int | None]:
    """Of vLLM's `lora_requests_info`, whose value is the time at which its labels were true.

    Each change of the adapters makes a series of its own, and the old ones stay: the newest of each engine counts."""
    newest: dict[frozenset[tuple[str, str]], tuple[float, dict[str, str]]] = {}
    for labels, at in series:
        engine = frozenset(item for item in labels.items() if item[0] not in (*_ADAPTERS_OF, "max_lora", "pid"))
        if engine not in newest or at >= newest[engine][0]:
            newest[engine] = (at, labels)
    if not newest:
        return None, None
    lists = [labels.get(key, "") for _, labels in newest.values() for key in _ADAPTERS_OF]
    adapters = {name for text in lists for part in text.split(",") if (name := part.strip())}
    most = [most for _, labels in newest.values() if (most := whole(labels, "max_lora"))]
    return tuple(sorted(adapters)), min(most, default=None)
