"""A request of ours in the engine, as the adaptive window's accounts see it, and the clock by which it makes tokens."""

from __future__ import annotations


class TokenClock:
    """Tokens that a decoding request has made up to a moment: time divided by the pace, piece by piece. Two readings
    tell how many tokens went by between them, also when the pace has changed since."""

    __slots__ = ("_per_s", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._since = 0.0
        self._per_s = 0.0

    def at(self, now: float) -> float:
        return self._tokens + (now - self._since) * self._per_s

    def set_pace(self, seconds_per_token: float, now: float) -> None:
        self._tokens, self._since = self.at(now), now
        self._per_s = 1.0 / max(seconds_per_token, 1e-6)


class Inside:
    """`estimate` and progress are output tokens of one choice; the prompt is held once, the output by each slot."""

    __slots__ = ("answered", "bucket", "estimate", "prompt", "released", "slots", "start")

    def __init__(self, slots: int, prompt: float, estimate: float, released: float) -> None:
        self.slots = slots
        self.prompt = prompt
        self.estimate = estimate
        self.released = released
        self.answered = False  # its first token is out
        self.start = 0.0  # the token clock then
        self.bucket = -1  # of the estimate, see `kv_account`; worked out when it is first wanted
