"""SGLang. Names from its source 0.5.23.

- With priority scheduling the counts of running and waiting requests are there for each priority, with a label
  `priority`, and once more for all of them, with the empty one: the sum would be twice as many. The counters of its
  tokenizer have no such total.
- Each rank may report (--enable-metrics-for-all-schedulers): those of one data-parallel engine are copies, the engines
  (`dp_rank`) are added. Without that option data-parallel attention shows its first engine only.
- The gauges move with each prefill batch, and else every 40 decode steps (--decode-log-interval).
- `realtime_tokens_total` moves with each step; `generation_tokens_total` and `prompt_tokens_total` when a request is
  done, and `num_retracted_reqs` is a gauge and no count of preemptions.
- Some setups write `sglang_` where the engine writes `sglang:`.
"""

from extproc.engines.dialects.dialect import Dialect
from extproc.engines.dialects.series import Names, Pairs


def _names(*names: str) -> Names:
    return tuple(each for name in names for each in (name, name.replace("sglang:", "sglang_")))


def _pairs(*pairs: tuple[str, str]) -> Pairs:
    return tuple(pair for names in pairs for pair in zip(*map(_names, names), strict=True))


SGLANG = Dialect(
    name="sglang",
    running=_names("sglang:num_running_reqs"),
    waiting=_names("sglang:num_queue_reqs"),
    kv_usage=_names("sglang:token_usage"),  # of the fullest of its pools
    kv_tokens=_names("sglang:max_total_num_tokens"),
    kv_blocks=_pairs(("sglang:num_pages", "sglang:page_size")),
    itl=_pairs(("sglang:inter_token_latency_seconds_sum", "sglang:inter_token_latency_seconds_count")),
    ttft=_pairs(("sglang:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_count")),
    preemptions=_names("sglang:num_retracted_requests_total"),
    generation_tokens=_names('sglang:realtime_tokens_total{mode="decode"}', "sglang:generation_tokens_total"),
    prompt_tokens=_names(
        'sglang:realtime_tokens_total{mode="prefill_compute|prefill_cache"}', "sglang:prompt_tokens_total"
    ),
    prefix=_pairs(
        (
            'sglang:prefill_effective_tokens_total{mode="input|device_hit|host_hit|storage_hit"}',
            'sglang:prefill_effective_tokens_total{mode="device_hit|host_hit|storage_hit"}',
        ),
        ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
    ),
    progress=_names("sglang:realtime_tokens_total"),
    max_adapters=_names("sglang:lora_pool_slots_total"),
    copies=frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank"}),
    breakdown="priority",
)
