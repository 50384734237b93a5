"""From pages to what changed between two of them; and which figures of a page can be meant.

Gauges that no engine can mean (negative, or a million requests) make the whole page worthless: it is as good as not
read. A cumulative figure that is no finite number, or a difference that would need more than the engine holds,
counts as unknown. A cumulative figure that went down is a restart: its page has no differences. All of these are
counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from extproc.core.model import Sample

_MOST_REQUESTS = 1_000_000
_MOST_TOKENS_PER_S = 1e9
_LONGEST_GAP_S = 600.0  # between two tokens of one request: a preempted one waits for its turn
_CUMULATIVE = (
    "itl_sum",
    "itl_count",
    "ttft_sum",
    "ttft_count",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
)


@dataclass(frozen=True, slots=True)
class Change:
    """Differences between two pages. None: unknown."""

    seconds: float  # between the two scrapes; 0: the same moment
    restarted: bool = False
    itl_s: float | None = None  # seconds between tokens, summed over `itl_tokens`
    itl_tokens: float | None = None
    ttft_s: float | None = None  # seconds to first tokens, summed over `first_tokens`
    first_tokens: float | None = None
    prompt_tokens: float | None = None  # whose prefill is done
    output_tokens: float | None = None
    preemptions: float | None = None


def cleaned(sample: Sample) -> tuple[Sample | None, int]:
    """The page without what cannot be meant, and how many figures that were. None: nothing of it can be used."""
    if not (0 <= sample.running <= _MOST_REQUESTS and 0 <= sample.waiting <= _MOST_REQUESTS):
        return None, 1
    if not math.isfinite(sample.started):
        return None, 1
    bad = [
        name
        for name in _CUMULATIVE
        if (value := getattr(sample, name)) is not None and not (math.isfinite(value) and value >= 0)
    ]
    usage = sample.kv_usage
    if usage is not None and not 0.0 <= usage <= 1.5:
        bad.append("kv_usage")
    if sample.kv_capacity_tokens is not None and sample.kv_capacity_tokens <= 0:
        bad.append("kv_capacity_tokens")
    nothing: dict[str, Any] = dict.fromkeys(bad)
    return (replace(sample, **nothing) if bad else sample), len(bad)


def change(last: Sample | None, sample: Sample, most_inside: int) -> tuple[Change, int]:
    """What happened from `last` to `sample`, both cleaned, and how many differences could not be meant.

    `most_inside`: requests that can have been in the engine between the two."""
    if last is None:
        return Change(0.0), 0
    seconds = sample.started - last.started
    deltas: dict[str, float | None] = {}
    for name in _CUMULATIVE:
        before, after = getattr(last, name), getattr(sample, name)
        if before is not None and after is not None:
            if after < before:
                return Change(seconds, restarted=True), 0
            deltas[name] = after - before
    spent = (most_inside + 8) * (seconds + _LONGEST_GAP_S)
    tokens = _MOST_TOKENS_PER_S * (seconds + 1.0)
    absurd = [
        name for name, delta in deltas.items() if delta is not None and delta > (spent if name == "itl_sum" else tokens)
    ]
    deltas.update(dict.fromkeys(absurd))
    found = Change(
        seconds,
        itl_s=deltas.get("itl_sum"),
        itl_tokens=deltas.get("itl_count"),
        ttft_s=deltas.get("ttft_sum"),
        first_tokens=deltas.get("ttft_count"),
        prompt_tokens=deltas.get("prompt_tokens"),
        output_tokens=deltas.get("generation_tokens"),
        preemptions=deltas.get("preemptions"),
    )
    return found, len(absurd)
