"""What a request will cost, before it has run.

Prompt: bytes of the body / 4, times a ratio learnt from settled usage of the tenant.
Output: exponential mean (alpha 0.2) per tenant and power of two of the prompt, falling back to the
tenant, the class and the pool with weight n/(n + 4) each; times the number of choices; never more
than the client's own limit. The mean, not a quantile: only the mean is unbiased in sums.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")

_ALPHA = 0.2
_TRUST = 4  # observations at which a level counts as much as the one above it
_PRIOR_OUTPUT = 256.0  # tokens, before anything was seen
_BYTES_PER_TOKEN = 4.0
_MAX_KEYS = 20_000  # tenants x buckets remembered; the least recently used go first
_RATIO = (0.1, 4.0)  # plausible tokens per (bytes / 4)


class _Mean:
    __slots__ = ("n", "value")

    def __init__(self) -> None:
        self.n = 0
        self.value = 0.0

    def add(self, x: float) -> None:
        self.n += 1
        # The first readings weigh alike; then the mean forgets.
        self.value += max(_ALPHA, 1.0 / self.n) * (x - self.value)

    def over(self, fallback: float) -> float:
        return (self.n * self.value + _TRUST * fallback) / (self.n + _TRUST)


class Estimator:
    """Learns from settled requests. Memory is bounded whatever names clients invent."""

    def __init__(self) -> None:
        self._output: OrderedDict[tuple[str, ...], _Mean] = OrderedDict()
        self._ratio: OrderedDict[str, _Mean] = OrderedDict()
        self._pool_output = _Mean()
        self._pool_ratio = _Mean()

    def prompt_tokens(self, tenant: str, body_bytes: int) -> float:
        ratio = self._pool_ratio.over(1.0)
        mine = self._ratio.get(tenant)
        if mine is not None:
            ratio = mine.over(ratio)
        return max(1.0, body_bytes / _BYTES_PER_TOKEN * ratio)

    def output_tokens(self, tenant: str, cls: str, prompt: float, max_output: int | None, n: int) -> float:
        estimate = self._pool_output.over(_PRIOR_OUTPUT)
        for key in (("class", cls), ("tenant", tenant), ("bucket", tenant, _bucket(prompt))):
            mean = self._output.get(key)
            if mean is not None:
                estimate = mean.over(estimate)
        if max_output is not None:
            estimate = min(estimate, float(max_output))
        return max(1.0, estimate) * n

    def observe(
        self, tenant: str, cls: str, body_bytes: int, guess: float, prompt: int | None, output: int | None, n: int
    ) -> None:
        """`guess` is the prompt estimate at arrival, in tokens: it names the bucket."""
        if output is not None:
            each = output / n
            self._pool_output.add(each)
            for key in (("class", cls), ("tenant", tenant), ("bucket", tenant, _bucket(guess))):
                _recent(self._output, key).add(each)
        if prompt is not None and body_bytes > 0:
            low, high = _RATIO
            ratio = min(max(prompt / (body_bytes / _BYTES_PER_TOKEN), low), high)
            self._pool_ratio.add(ratio)
            _recent(self._ratio, tenant).add(ratio)


def _bucket(prompt: float) -> str:
    return str(int(prompt).bit_length())


def _recent(table: OrderedDict[K, _Mean], key: K) -> _Mean:
    mean = table.get(key)
    if mean is None:
        mean = table[key] = _Mean()
        if len(table) > _MAX_KEYS:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return mean
