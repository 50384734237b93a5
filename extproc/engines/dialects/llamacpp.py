"""llama.cpp's server. Names from its version of October 2026, and what moves when measured on it.

The counters of output move when a request is done, that of prompts when a prompt is done (it leaves out what was in the
cache). `n_decode_total` moves with each batch of the model: 1,663 of them while a request of 5,000 tokens still had 0
in `tokens_predicted_total`.
"""

from extproc.engines.dialects.dialect import Dialect

LLAMACPP = Dialect(
    name="llamacpp",
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),  # older servers only
    itl=(("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total"),),
    generation_tokens=("llamacpp:tokens_predicted_total",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
    prefix=(
        ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_cached_total"),
    ),
    progress=("llamacpp:n_decode_total",),
)
