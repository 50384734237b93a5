"""Shapes of engines for runs in virtual time, and how late their pages are.

| shape | slots, tokens per step | base, per sequence, per prompt token (ms) | per context token (us) | KV tokens |
|-------|------------------------|-------------------------------------------|------------------------|-----------|
| E1    | 20, 2,048              | 22, 0.6, 0.12                             | 0                      | plenty    |
| E2    | 1,024, 8,192           | 17, 0.06, 0.08                            | 0.033                  | 300 seqs  |
| E3    | 1,024, 8,192           | 20, 0.225, 0.03                           | 0                      | plenty    |
| E8    | 1,024, 8,192           | 6.5, 0.045, 0.03                          | 0.056                  | 430,000   |
| E70   | 1,024, 8,192           | 17, 0.06, 0.08                            | 0.033                  | 420,000   |
| real  | 4, 2,048               | by tokens/s, 0.3, 0.048                   | 0                      | plenty    |

E1 is a small engine, the one of `scheduling.md`; the others are those of `window.md` 2. E2 is bound by KV memory: E70's
steps, and room for 300 sequences half-way through their answers. E3 is bound by inter-token latency: 250 ms with all
slots in use. E8 and E70 stand for 8B (bf16, one H100) and 70B (bf16, four H100). They are reckoned from the data sheet
(3.35 TB/s, 990 TFLOP/s), not fitted to a run:

    base          bytes of the weights / bandwidth / 0.7, and overhead
    per token     2 FLOP x parameters / 0.45 to 0.5 of the peak
    per context   bytes of keys and values per token / bandwidth / 0.7
    per sequence  computing of a token, and 10 to 20 us of sampling and host work (assumed)
    KV tokens     (0.9 x memory - weights - activations) / bytes per token

``real`` is vLLM 0.32 on a CPU with a tiny model, ``--max-num-seqs 4``, measured through Envoy. A request showed on its
page 43 to 78 ms after it was sent, with four running 64 to 111 ms. It is 10 to 30 ms on its way, since a first token
came within 30 to 60 ms where slots were free; 15 to 40 ms are the gauge's own, and the first step is the rest. One that
had ended was gone from the page after 2 to 6 ms; the model has one lag for both. Of 100 sent at once the page showed
all after 397 to 910 ms: the front end takes in one after the other, 6 ms each. A model without the way in said 20 to
35 % too little for short waits (a few completions).
"""

from __future__ import annotations

from typing import Final

from extproc.sim.engine import EngineOptions, Policy
from extproc.sim.scene import Lag, WayIn

_PLENTY: Final = 1 << 20
"""Blocks: 16 million tokens."""
_BLOCK: Final = 16
_REAL_SLOTS: Final = 4


def _large(
    base: float, per_seq: float, per_prefill_token: float, per_context_token: float, blocks: int
) -> EngineOptions:
    return EngineOptions(
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        block_size=_BLOCK,
        kv_blocks=blocks,
        step_base=base,
        step_per_seq=per_seq,
        step_per_prefill_token=per_prefill_token,
        step_per_context_token=per_context_token,
    )


E1: Final = EngineOptions(
    max_num_seqs=20,
    max_num_batched_tokens=2048,
    block_size=_BLOCK,
    kv_blocks=_PLENTY,
    step_base=0.022,
    step_per_seq=0.0006,
    step_per_prefill_token=0.00012,
)
E3: Final = _large(0.020, 0.000225, 0.00003, 0.0, _PLENTY)
E8: Final = _large(0.0065, 0.000045, 0.00003, 0.056e-6, 430_000 // _BLOCK)
E70: Final = _large(0.017, 0.00006, 0.00008, 0.033e-6, 420_000 // _BLOCK)


def e2(mean_prompt: float, mean_output: float) -> EngineOptions:
    """E70's steps, and KV memory for 300 sequences of these mean lengths in tokens."""
    return _large(0.017, 0.00006, 0.00008, 0.033e-6, round(300 * (mean_prompt + mean_output / 2)) // _BLOCK)


def real(tokens_per_s: float = 400.0, running: float = _REAL_SLOTS, prompt_per_token: float = 0.0) -> EngineOptions:
    """The CPU vLLM, with a step that gives so many output tokens a second while so many decode, each of whose tokens
    brings so many prompt tokens along. Its box gave 257 to 425 tokens/s with four decoding, as it was busy or not."""
    per_seq, per_prefill_token = 0.0003, 0.000048
    return EngineOptions(
        max_num_seqs=_REAL_SLOTS,
        max_num_batched_tokens=2048,
        policy=Policy.PRIORITY,
        block_size=_BLOCK,
        kv_blocks=_PLENTY,
        step_base=running / tokens_per_s - running * per_seq - _REAL_SLOTS * prompt_per_token * per_prefill_token,
        step_per_seq=per_seq,
        step_per_prefill_token=per_prefill_token,
    )


REAL: Final = real()
REAL_WAY_IN: Final = WayIn(0.010, 0.030, each=0.006)
REAL_LAG: Final = Lag(0.015, 0.040)
REAL_EXIT_S: Final = 0.004

ONE_SECOND: Final = Lag(1.0, 1.0, preemptions_s=2.0)
UNEVEN: Final = Lag(0.0, 4.0, preemptions_s=2.0)
"""Lag is the strongest enemy of a release window, and the worst one is that which changes with every scrape."""
