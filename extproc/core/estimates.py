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

_ALPHA = 0.2
_ALIKE = 1 / _ALPHA
_TRUST = 4  # observations at which a level counts as much as the one above it
_PRIOR_OUTPUT = 256.0  # tokens, before anything was seen
_PRIOR_SECONDS = 10.0
_BYTES_PER_TOKEN = 4.0
_MOST_OUTPUT = 131_072  # tokens of one choice: no lie beyond it spoils what others are thought to take
_MAX_TENANTS = 20_000  # remembered; the least recently used go first
_MAX_BUCKETS = 40_000  # of all tenants together
_MAX_CLASSES = 20_000
_RATIO = (0.1, 4.0)  # plausible tokens per (bytes / 4)


class _Mean:
    __slots__ = ("n", "value")

    def __init__(self) -> None:
        self.n = 0  # readings
        self.value = 0.0


class _Habit:
    """A mean of one tenant, and the same by power of two of the prompt."""

    __slots__ = ("by_bucket", "mean")

    def __init__(self) -> None:
        self.mean = _Mean()
        self.by_bucket: dict[int, _Mean] = {}


class _Tenant:
    """All that is known of one: looked up once for each question, whatever is asked."""

    __slots__ = ("output", "ratio", "seconds")

    def __init__(self) -> None:
        self.ratio = _Mean()
        self.output = _Habit()
        self.seconds: _Habit | None = None  # where its pool shares time

    @property
    def buckets(self) -> int:
        return len(self.output.by_bucket) + (0 if self.seconds is None else len(self.seconds.by_bucket))

    def __len__(self) -> int:
        """Means with something in them."""
        own = [self.ratio, self.output.mean, *([] if self.seconds is None else [self.seconds.mean])]
        return self.buckets + sum(mean.n > 0 for mean in own)


class _Wide:
    """What a tenant's habit falls back on: its class's mean, and the pool's."""

    __slots__ = ("by_class", "pool", "prior")

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.pool = _Mean()
        self.by_class: OrderedDict[str, _Mean] = OrderedDict()

    def add_class(self, cls: str) -> _Mean:
        mean = self.by_class[cls] = _Mean()
        if len(self.by_class) > _MAX_CLASSES:
            self.by_class.popitem(last=False)
        return mean

    def expected(self, habit: _Habit | None, cls: str, bucket: int) -> float:
        """From the pool down to the tenant's own bucket, as far as each is known."""
        value = self.prior
        means: tuple[_Mean | None, ...] = (self.pool, self.by_class.get(cls))
        if habit is not None:
            means = (*means, habit.mean, habit.by_bucket.get(bucket))
        for mean in means:
            if mean is not None:
                n = mean.n
                value = (n * mean.value + _TRUST * value) / (n + _TRUST)
        return value


class Estimator:
    """Learns from settled requests. Memory is bounded whatever names clients invent."""

    def __init__(self) -> None:
        self._output = _Wide(_PRIOR_OUTPUT)
        self._seconds = _Wide(_PRIOR_SECONDS)
        self._pool_ratio = _Mean()
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # the most recently used come last
        self._buckets = 0

    def __len__(self) -> int:
        """Means remembered."""
        wide = len(self._output.by_class) + len(self._seconds.by_class)
        return wide + sum(map(len, self._tenants.values()))

    def prompt_tokens(self, tenant: str, body_bytes: int) -> float:
        """Tokens of a prompt of which only the size is known."""
        pool = self._pool_ratio
        ratio = (pool.n * pool.value + _TRUST * 1.0) / (pool.n + _TRUST)
        known = self._tenants.get(tenant)
        if known is not None:
            mine = known.ratio
            ratio = (mine.n * mine.value + _TRUST * ratio) / (mine.n + _TRUST)
        tokens = body_bytes / _BYTES_PER_TOKEN * ratio
        return tokens if tokens > 1.0 else 1.0

    def output_tokens(self, tenant: str, cls: str, prompt: float, max_output: int | None, n: int) -> float:
        """Tokens of all `n` choices together."""
        known = self._tenants.get(tenant)
        habit = None if known is None else known.output
        estimate = self._output.expected(habit, cls, int(prompt).bit_length())
        if max_output is not None and estimate > max_output:
            estimate = float(max_output)
        return (estimate if estimate > 1.0 else 1.0) * n

    def seconds(self, tenant: str, cls: str, prompt: float) -> float:
        """Time in the engine."""
        known = self._tenants.get(tenant)
        habit = None if known is None else known.seconds
        return self._seconds.expected(habit, cls, int(prompt).bit_length())

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
        known = self._tenant(tenant)
        if output is not None:
            value = output / n
            most = _MOST_OUTPUT if max_output is None or max_output > _MOST_OUTPUT else max_output
            self._learn(self._output, known.output, cls, guess, value if value < most else most)
        if prompt is not None and body_bytes > 0:
            low, high = _RATIO
            ratio = prompt / (body_bytes / _BYTES_PER_TOKEN)
            if not low <= ratio <= high:
                ratio = low if ratio < low else high
            _add((self._pool_ratio, known.ratio), ratio)

    def observe_seconds(self, tenant: str, cls: str, guess: float, seconds: float) -> None:
        """A request was in the engine for `seconds`; `guess` as in `observe`."""
        if seconds >= 0.0 and math.isfinite(seconds):
            known = self._tenant(tenant)
            if known.seconds is None:
                known.seconds = _Habit()
            self._learn(self._seconds, known.seconds, cls, guess, seconds)

    def _tenant(self, name: str) -> _Tenant:
        """It is one that was used just now."""
        tenants = self._tenants
        known = tenants.get(name)
        if known is not None:
            tenants.move_to_end(name)
            return known
        known = tenants[name] = _Tenant()
        if len(tenants) > _MAX_TENANTS:
            self._forget()
        return known

    def _forget(self) -> None:
        _, gone = self._tenants.popitem(last=False)
        self._buckets -= gone.buckets

    def _learn(self, wide: _Wide, habit: _Habit, cls: str, guess: float, value: float) -> None:
        bucket = int(guess).bit_length()
        narrow = habit.by_bucket.get(bucket)
        if narrow is None:
            narrow = habit.by_bucket[bucket] = _Mean()
            self._buckets += 1
            if self._buckets > _MAX_BUCKETS:
                self._forget()
        _add((wide.pool, wide.by_class.get(cls) or wide.add_class(cls), habit.mean, narrow), value)


def _add(means: tuple[_Mean, ...], reading: float) -> None:
    for mean in means:
        n = mean.n = mean.n + 1
        # The first readings weigh alike; then the mean forgets.
        mean.value += (1.0 / n if n < _ALIKE else _ALPHA) * (reading - mean.value)
