"""The simulated engine's metrics page: names, labels, types and help texts of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from extproc.sim.engine import EngineOptions
from extproc.sim.sequence import FinishReason
from extproc.sim.stats import Histogram, Stats

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"

_HISTOGRAMS: Final = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", "request_prompt_tokens"),
    ("request_generation_tokens", "Number of generation tokens processed.", "request_generation_tokens"),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", "iteration_tokens"),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "time_to_first_token"),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "inter_token_latency"),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        "time_per_output_token",
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "e2e_latency"),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", "queue_time"),
    ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", "inference_time"),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", "prefill_time"),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", "decode_time"),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        "request_preemptions",
    ),
)
"""Name without the prefix, help, attribute of Stats."""


class Sample(NamedTuple):
    name: str
    labels: str
    value: float


class Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[Sample]


class MetricsPage:
    """Renders the page of one engine. ``created`` is the start of the process in Unix seconds."""

    def __init__(
        self, stats: Stats, options: EngineOptions, *, model: str, max_model_len: int, created: float, engine: str = "0"
    ) -> None:
        self._stats = stats
        self._options = options
        self._model = model
        self._max_model_len = max_model_len
        self._created = created
        self._engine = engine
        self._plain = self._labels()
        self.rejections = 0
        """Requests refused by --max-num-queued-reqs; the server counts them here."""

    def render(self, names: Collection[str] | None = None) -> bytes:
        """The page, or only the samples with the given names, as ``/metrics/?name[]=`` gives them."""
        lines: list[str] = []
        for family in self._families():
            samples = family.samples if names is None else [s for s in family.samples if s.name in names]
            if not samples:
                continue
            lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
            lines.extend(f"{s.name}{{{s.labels}}} {number(s.value)}\n" for s in samples)
        return "".join(lines).encode()

    def _labels(self, **extra: str) -> str:
        """Label pairs in alphabetical order, as vLLM 0.32 writes them."""
        pairs = {"engine": self._engine, "model_name": self._model, **extra}
        return ",".join(f'{name}="{_escape(pairs[name])}"' for name in sorted(pairs))

    def _gauge(self, name: str, text: str, value: float) -> Family:
        return Family(name, "gauge", text, [Sample(name, self._plain, value)])

    def _counter(self, name: str, text: str, values: dict[str, float]) -> Iterator[Family]:
        """A counter by label string, with the ``_created`` family that vLLM's pages are full of."""
        total, created = f"{name}_total", f"{name}_created"
        yield Family(total, "counter", text, [Sample(total, labels, value) for labels, value in values.items()])
        yield Family(created, "gauge", text, [Sample(created, labels, self._created) for labels in values])

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Iterator[Family]:
        samples, below = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            below += count
            samples.append(Sample(f"{name}_bucket", self._labels(le=number(bound)), below))
        samples.append(Sample(f"{name}_count", self._plain, below))
        samples.append(Sample(f"{name}_sum", self._plain, histogram.total))
        yield Family(name, "histogram", text, samples)
        created = f"{name}_created"
        yield Family(created, "gauge", text, [Sample(created, self._plain, self._created)])

    def _families(self) -> Iterator[Family]:
        stats, plain = self._stats, self._plain
        yield self._gauge("vllm:num_requests_running", "Number of requests in model execution batches.", stats.running)
        yield self._gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting)
        by_reason = "vllm:num_requests_waiting_by_reason"
        reasons = (("capacity", stats.waiting), ("deferred", 0))
        yield Family(
            by_reason,
            "gauge",
            "Number of waiting requests by reason.",
            [Sample(by_reason, self._labels(reason=reason), value) for reason, value in reasons],
        )
        yield self._gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)
        for name, text, value in (
            (
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                stats.prefix_cache_queries,
            ),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", 0),
            ("num_preemptions", "Cumulative number of preemption from the engine.", stats.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens),
        ):
            yield from self._counter(f"vllm:{name}", text, {plain: value})
        success: dict[str, float] = {self._labels(finished_reason=r.value): stats.success[r] for r in FinishReason}
        # vLLM has these too and never moves them for a client that leaves.
        success |= {self._labels(finished_reason=r): 0 for r in ("abort", "error", "repetition")}
        yield from self._counter("vllm:request_success", "Count of successfully processed requests.", success)
        yield from self._counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            {f'model_name="{_escape(self._model)}",reason="max_num_queued_reqs"': self.rejections},
        )
        for name, text, attribute in _HISTOGRAMS:
            yield from self._histogram(f"vllm:{name}", text, getattr(stats, attribute))
        yield self._cache_config()

    def _cache_config(self) -> Family:
        options = self._options
        labels = self._labels(
            block_size=str(options.block_size),
            cache_dtype="auto",
            enable_prefix_caching="False",
            kv_cache_max_concurrency=str(options.kv_tokens / self._max_model_len),
            kv_cache_size_tokens=str(options.kv_tokens),
            num_gpu_blocks=str(options.kv_blocks),
        )
        name = "vllm:cache_config_info"
        return Family(name, "gauge", "Information of the LLMEngine CacheConfig", [Sample(name, labels, 1)])


def number(value: float) -> str:
    """A value as Prometheus' Python client writes it: 1.0, 0.3, +Inf, and 1.40684e+06 from a million on."""
    value = float(value)
    if value == float("inf"):
        return "+Inf"
    text = repr(value)
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        return f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.") + f"e+{dot - 1:02d}"
    return text


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
