"""What a window learns from an engine that refuses requests for want of room.

Engines have limits of their own (vLLM `--max-num-queued-reqs`, SGLang `--max-queued-requests`, TGI
`--max-concurrent-requests`), which no page shows. One that answers 429 or 503 has told where its limit is: at what was
inside, without the one that it refused.

    most        requests that may be inside: what was inside when it refused, at least one. The requests of one burst
                are refused one by one, so it comes down step by step. After 10 s without a refusal it grows by a
                tenth, at least one, each second

That it is left alone for a moment is `backoff`'s. The tenant is charged nothing for a refused request, see
`settlement`.
"""

from __future__ import annotations

import math

_QUIET_S = 10.0
_GROWS_EACH_S = 1.0
_NO_LIMIT = 65_536.0  # no engine holds so many


class TurnedAway:
    """Of one endpoint. `now` in seconds."""

    __slots__ = ("_grown_at", "most")

    def __init__(self) -> None:
        self.most = math.inf
        self._grown_at = -math.inf

    def note(self, inside: int, now: float) -> None:
        """One was refused while `inside` others were there."""
        self.most = float(max(1, min(self.most, inside)))
        self._grown_at = now + _QUIET_S

    def on_page(self, now: float) -> bool:
        """Whether `most` is another now."""
        if self.most == math.inf or now - self._grown_at < _GROWS_EACH_S:
            return False
        self._grown_at = now
        self.most += max(1.0, self.most / 10)
        if self.most > _NO_LIMIT:
            self.most = math.inf
        return True
