"""NVIDIA's three: TensorRT-LLM's own server, Triton with its TensorRT-LLM backend, and Dynamo. From their documentation
and sources; none of them was at hand to be measured.

TensorRT-LLM (`trtllm-serve`) has its page at /prometheus/metrics with `return_perf_metrics`, and the gauges on it with
`enable_iter_perf_stats` as well; /metrics is JSON. Its counters of tokens and its latencies move when a request is
done, and its time per output token is the mean of a request: seconds of decoding by tokens is taken, where it has both.

Triton serves its page on a port of its own, 8002. One gauge has the counts of requests, told apart by the label
`request_type`. Versions without `waiting` have the active ones, of which those that are not scheduled wait.

Dynamo: its frontend counts from entry to the end of an answer, and the stages before the first token. The difference
runs. Older ones have `queued` and `inflight` for the same. A worker's page carries the names of the engine inside it,
and is of that engine's dialect.
"""

from extproc.engines.dialects.dialect import Dialect

TENSORRT_LLM = Dialect(
    name="tensorrt_llm",
    path="/prometheus/metrics",
    running=("trtllm_num_requests_running",),
    waiting=("trtllm_num_requests_waiting",),
    kv_usage=("trtllm_kv_cache_utilization",),
    kv_blocks=(("trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"),),
    itl=(("trtllm_request_decode_time_seconds_sum", "trtllm_generation_tokens_total"),),
    ttft=(("trtllm_time_to_first_token_seconds_sum", "trtllm_time_to_first_token_seconds_count"),),
    generation_tokens=("trtllm_generation_tokens_total",),
    prompt_tokens=("trtllm_prompt_tokens_total",),
    prefix=(("trtllm_prompt_tokens_total", "trtllm_prompt_cached_tokens_total"),),
)

TRITON = Dialect(
    name="triton",
    running=('nv_trt_llm_request_metrics{request_type="scheduled"}',),
    waiting=('nv_trt_llm_request_metrics{request_type="waiting"}',),
    total=('nv_trt_llm_request_metrics{request_type="active"}',),
    kv_usage=('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
    kv_blocks=(
        (
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
        ),
    ),
)

DYNAMO = Dialect(
    name="dynamo",
    waiting=(
        'dynamo_frontend_stage_requests{stage="preprocess|route|dispatch"}',
        "dynamo_frontend_queued_requests",
    ),
    total=("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
    kv_usage=("dynamo_component_gpu_cache_usage_percent", "dynamo_component_kvstats_gpu_cache_usage_percent"),
    itl=(("dynamo_frontend_inter_token_latency_seconds_sum", "dynamo_frontend_inter_token_latency_seconds_count"),),
    ttft=(("dynamo_frontend_time_to_first_token_seconds_sum", "dynamo_frontend_time_to_first_token_seconds_count"),),
    generation_tokens=("dynamo_frontend_output_tokens_total",),
    prompt_tokens=("dynamo_frontend_input_sequence_tokens_sum",),
    prefix=(("dynamo_frontend_input_sequence_tokens_sum", "dynamo_frontend_cached_tokens_sum"),),
    progress=("dynamo_frontend_output_tokens_total",),
)
