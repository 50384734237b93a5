"""The engines, mixes and limits of `window.md` 2 and 7."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.sim import shapes
from extproc.sim.engine import EngineOptions
from extproc.sim.workloads.lengths import means

_ENGINES = {"E1": shapes.E1, "E3": shapes.E3, "E8": shapes.E8, "E70": shapes.E70}


def engine(name: str, mix: str) -> EngineOptions:
    """By its name in `extproc.sim.shapes`. E2 has room for 300 sequences of the mix."""
    if name == "E2":
        prompt, output, _ = means(mix)
        return shapes.e2(prompt, output)
    return _ENGINES[name]


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
