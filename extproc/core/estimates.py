"""What a request will cost, before it has run.

Prompt: bytes of the body / 4, times a ratio learnt from settled usage of the tenant; or as the edge counted.
Output: exponential mean (alpha 0.2) per tenant and power of two of the prompt, falling back to the
tenant, the class and the pool with weight n/(n + 4) each; times the number of choices; never more
than the client's own limit. The mean, not a quantile: only the mean is unbiased in sums. Time in the
engine is estimated alike, where a pool shares time.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")

_ALPHA = 0.2
_ALIKE = 1 / _ALPHA
_TRUST = 4  # observations at which a level counts as much as the one above it
_PRIOR_OUTPUT = 256.0  # tokens, before anything was seen
_PRIOR_SECONDS = 10.0
_BYTES_PER_TOKEN = 4.0
_MOST_OUTPUT = 131_072  # tokens of one choice: no lie beyond it spoils what others are thought to take
_MAX_KEYS = 20_000  # tenants x buckets remembered; the least recently used go first
_RATIO = (0.1, 4.0)  # plausible tokens per (bytes / 4)


class _Mean:
    __slots__ = ("n", "value")

    def __init__(self) -> None:
        self.n = 0
        self.value = 0.0

    def add(self, x: float) -> None:
        n = self.n = self.n + 1
        # The first readings weigh alike; then the mean forgets.
        self.value += (1.0 / n if n < _ALIKE else _ALPHA) * (x - self.value)

    def over(self, fallback: float) -> float:
        return (self.n * self.value + _TRUST * fallback) / (self.n + _TRUST)


class _Means:
    """Means per (tenant, bucket) that fall back on the tenant's, its class's and the pool's."""

    __slots__ = ("_by_bucket", "_by_class", "_by_tenant", "_pool", "_prior")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._pool = _Mean()
        self._by_class: OrderedDict[str, _Mean] = OrderedDict()
        self._by_tenant: OrderedDict[str, _Mean] = OrderedDict()
        self._by_bucket: OrderedDict[tuple[str, int], _Mean] = OrderedDict()

    def of(self, tenant: str, cls: str, bucket: int) -> float:
        # `_Mean.over` written out: each arrival asks.
        pool = self._pool
        value = (pool.n * pool.value + _TRUST * self._prior) / (pool.n + _TRUST)
        mean = self._by_class.get(cls)
        if mean is not None:
            value = (mean.n * mean.value + _TRUST * value) / (mean.n + _TRUST)
        mean = self._by_tenant.get(tenant)
        if mean is not None:
            value = (mean.n * mean.value + _TRUST * value) / (mean.n + _TRUST)
            mean = self._by_bucket.get((tenant, bucket))
            if mean is not None:
                value = (mean.n * mean.value + _TRUST * value) / (mean.n + _TRUST)
        return value

    def __len__(self) -> int:
        return len(self._by_class) + len(self._by_tenant) + len(self._by_bucket)

    def observe(self, tenant: str, cls: str, bucket: int, value: float) -> None:
        self._pool.add(value)
        _learn(self._by_class, cls, value)
        _learn(self._by_tenant, tenant, value)
        _learn(self._by_bucket, (tenant, bucket), value)


class Estimator:
    """Learns from settled requests. Memory is bounded whatever names clients invent."""

    def __init__(self) -> None:
        self._output = _Means(_PRIOR_OUTPUT)
        self._seconds = _Means(_PRIOR_SECONDS)
        self._ratio: OrderedDict[str, _Mean] = OrderedDict()
        self._pool_ratio = _Mean()

    def __len__(self) -> int:
        """Means remembered."""
        return len(self._output) + len(self._seconds) + len(self._ratio)

    def prompt_tokens(self, tenant: str, body_bytes: int) -> float:
        """Tokens of a prompt of which only the size is known."""
        ratio = self._pool_ratio.over(1.0)
        mine = self._ratio.get(tenant)
        if mine is not None:
            ratio = mine.over(ratio)
        tokens = body_bytes / _BYTES_PER_TOKEN * ratio
        return tokens if tokens > 1.0 else 1.0

    def output_tokens(self, tenant: str, cls: str, prompt: float, max_output: int | None, n: int) -> float:
        """Tokens of all `n` choices together."""
        estimate = self._output.of(tenant, cls, int(prompt).bit_length())
        if max_output is not None and estimate > max_output:
            estimate = float(max_output)
        return (estimate if estimate > 1.0 else 1.0) * n

    def seconds(self, tenant: str, cls: str, prompt: float) -> float:
        """Time in the engine."""
        return self._seconds.of(tenant, cls, _bucket(prompt))

    def observe(
        self,
        tenant: str,
        cls: str,
        body_bytes: int,
        guess: float,
        prompt: int | None,
        output: int | None,
        n: int,
        max_output: int | None = None,
    ) -> None:
        """`guess` is the prompt estimate at arrival, in tokens: it names the bucket. `max_output`: of each choice, as
        the client asked: an engine that claims more counts several prompts, or lies, and teaches nothing beyond it."""
        if output is not None:
            most = _MOST_OUTPUT if max_output is None else min(max_output, _MOST_OUTPUT)
            self._output.observe(tenant, cls, _bucket(guess), min(output / n, most))
        if prompt is not None and body_bytes > 0:
            low, high = _RATIO
            ratio = min(max(prompt / (body_bytes / _BYTES_PER_TOKEN), low), high)
            self._pool_ratio.add(ratio)
            _learn(self._ratio, tenant, ratio)

    def observe_seconds(self, tenant: str, cls: str, guess: float, seconds: float) -> None:
        """A request was in the engine for `seconds`; `guess` as in `observe`."""
        if seconds >= 0.0 and math.isfinite(seconds):
            self._seconds.observe(tenant, cls, _bucket(guess), seconds)


def _bucket(prompt: float) -> int:
    return int(prompt).bit_length()


def _learn(table: OrderedDict[K, _Mean], key: K, value: float) -> None:
    """The most recently used come last."""
    mean = table.get(key)
    if mean is None:
        mean = table[key] = _Mean()
        if len(table) > _MAX_KEYS:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    n = mean.n = mean.n + 1  # as `_Mean.add`
    mean.value += (1.0 / n if n < _ALIKE else _ALPHA) * (value - mean.value)
