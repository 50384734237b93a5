"""vLLM. Names from its sources 0.5 to 0.32.

What changed, and what stands for what:

- Waiting: V0 (to 0.8) kept requests whose KV blocks it had moved to CPU memory in a queue of their own, `swapped`. They
  stand before all others for room in the batch, so they count as waiting; V1 has none. Those that V1 cannot schedule
  yet (an adapter, a grammar) are in `num_requests_waiting` since 0.20.
- Inter-token latency is observed per output event, which is several tokens with speculative decoding.
- Of several engines behind a page (data parallelism) each has a label `engine`, since 0.8. With several API servers all
  processes answer the same merged page, but 0.11.0 to 0.11.2 gave the KV gauge once per process, with a label `pid`, of
  which only one was right (vLLM issue 28792).
- Progress: the histogram of tokens per iteration has an observation for each step that made a token or finished a
  prompt. Steps in the middle of a long prompt make none. Older versions count only the tokens.
- `lora_requests_info` is there with --enable-lora, from the first step on.
"""

from extproc.engines.dialects.dialect import Dialect

VLLM = Dialect(
    name="vllm",
    filters=True,
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting + vllm:num_requests_swapped", "vllm:num_requests_waiting"),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0..1, despite the name; since 0.9.2
    cache_config="vllm:cache_config_info",
    itl=(
        ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),  # since 0.11
        ("vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"),
    ),
    ttft=(("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),),
    preemptions=("vllm:num_preemptions_total",),  # late: a victim is counted when it runs again
    generation_tokens=("vllm:generation_tokens_total",),
    prompt_tokens=("vllm:prompt_tokens_total",),
    prefix=(
        ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),  # since 0.9.2
        ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
    ),
    progress=("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total + vllm:prompt_tokens_total"),
    lora_info="vllm:lora_requests_info",
)
