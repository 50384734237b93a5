"""The engines, mixes and limits of `window.md` 2 and 7."""

from __future__ import annotations

from dataclasses import dataclass, replace

from extproc.sim.engine import EngineOptions
from extproc.sim.workloads.lengths import means
from extproc.sim.workloads.workload import E1

_BLOCK = 16
_PLENTY = 1_000_000  # blocks


def _options(base_ms: float, seq_ms: float, prefill_ms: float, context_us: float, kv_tokens: float) -> EngineOptions:
    return EngineOptions(
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        kv_blocks=int(kv_tokens) // _BLOCK,
        step_base=base_ms / 1e3,
        step_per_seq=seq_ms / 1e3,
        step_per_prefill_token=prefill_ms / 1e3,
        step_per_context_token=context_us / 1e6,
    )


def engine(name: str, mix: str) -> EngineOptions:
    """E1 small; E2 bound by KV: 300 sequences of the mix; E3 bound by time per token; E8 and E70: plausible shapes of a
    model of 8 and of 70 billion weights. Constants from `window.md` 2."""
    prompt, output, _ = means(mix)
    match name:
        case "E1":
            return replace(E1, kv_blocks=_PLENTY)
        case "E2":
            return _options(17.0, 0.06, 0.08, 0.033, 300 * (prompt + output / 2))
        case "E3":
            return _options(20.0, 0.225, 0.03, 0.0, _PLENTY * _BLOCK)
        case "E8":
            return _options(6.5, 0.045, 0.03, 0.056, 430_000)
        case "E70":
            return _options(17.0, 0.06, 0.08, 0.033, 420_000)
    raise ValueError(f"no engine {name}")


def sustainable(options: EngineOptions, mix: str, limit_s: float) -> tuple[float, float]:
    """(sequences, requests a second) that the engine can hold: within its slots, 95 % of its KV memory, and a step of
    `limit_s`. A step with n sequences takes a + (b + c * prompt / output + d * held) * n: each one brings its share of
    prefill along."""
    prompt, output, held = means(mix)
    each = (
        options.step_per_seq + options.step_per_prefill_token * prompt / output + options.step_per_context_token * held
    )
    n = min(
        float(options.max_num_seqs),
        0.95 * options.kv_tokens / held,
        max(1.0, (limit_s - options.step_base) / each),
    )
    return n, n / (output * (options.step_base + each * n))


@dataclass(frozen=True, slots=True)
class Cell:
    """An engine under a mix with a limit in seconds per token."""

    engine: str
    mix: str
    limit_s: float

    @property
    def name(self) -> str:
        return f"{self.engine} {self.mix} {self.limit_s * 1e3:.0f} ms"

    @property
    def options(self) -> EngineOptions:
        return engine(self.engine, self.mix)

    @property
    def sustainable(self) -> tuple[float, float]:
        return sustainable(self.options, self.mix, self.limit_s)


CELLS = tuple(
    Cell(name, mix, limit)
    for name, mix, limit in (
        ("E1", "256", 0.15), ("E1", "conv", 0.15),
        ("E2", "256x", 0.15), ("E2", "256", 0.15), ("E2", "conv", 0.15),
        ("E3", "256x", 0.15), ("E3", "256x", 0.05),
        ("E8", "256x", 0.15), ("E8", "conv", 0.05),
        ("E70", "code", 0.15), ("E70", "sgl", 0.05), ("E70", "conv", 0.15), ("E70", "long", 0.15),
    )
)  # fmt: skip
