"""HuggingFace's Text Generation Inference, version 3. Names from its documentation and the source of its router.

- Its page has a series only once something was recorded, so a fresh server's is empty, and there is nothing to detect
  it by. Its two gauges come with the first request: until it has answered one, an absent gauge is 0.
- `tgi_queue_size` keeps closed requests until the next batch is formed.
- Seconds per token: its histogram is of the mean of each request, inference time by tokens. The sums that these means
  are made of are taken, so that a token counts as a token; the time of the prompt is in it.
- It tells no KV usage: `tgi_batch_current_max_tokens` is of no use without the configured bound.
- Counters have no `_total` at their end. Each inference call that is done moves `tgi_batch_inference_success`.
"""

from extproc.engines.dialects.dialect import Dialect

TGI = Dialect(
    name="tgi",
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    served=("tgi_request_success",),
    itl=(("tgi_request_inference_duration_sum", "tgi_request_generated_tokens_sum"),),
    generation_tokens=("tgi_request_generated_tokens_sum",),
    prompt_tokens=("tgi_request_input_length_sum",),
    progress=("tgi_batch_inference_success",),
)
