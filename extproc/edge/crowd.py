"""How many streams there are, and how many there may be (`requests.max_streams`).

A stream is a request, from its headers to the end of its answer, and takes memory as long as it is open. What is held
is bounded by the queues' limits and what is inside by the windows, but any client can send as many as it likes of
requests that are not queued. So there are two steps:

    crowded    more than half: streams of requests that only pass are not waited out. Envoy goes on without them
    full       more than all: what would be held is refused. To drop its stream would let it pass by the queue, where
               Envoy fails open

Streams that have said nothing yet are counted apart (`silence`): Envoy's first message comes with the stream.
"""

from __future__ import annotations

from collections.abc import Callable


class Crowd:
    """`most`: streams, by the configuration in force."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.most = most
        self.open = 0

    @property
    def crowded(self) -> bool:
        return self.open > self.most() // 2

    @property
    def full(self) -> bool:
        return self.open > self.most()
