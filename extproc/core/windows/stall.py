"""Whether an engine hangs: its pages come, it has work, and nothing is done.

A hung engine looks well. Its HTTP server answers, `/health` says 200, and its gauges keep the values that they had
(vLLM, measured with its engine process stopped; issues 53130 there and vllm-metal 479 show the same with the process
alive). One that was idle shows 0 and 0 for ever, however much it is sent. What cannot be kept up is progress: a counter
that moves with the engine's steps, see `Sample.progress`.

    stalled     it has had work for `after` seconds of pages, by its page or by our own books, and in that time neither
                progress nor KV usage has changed, and nothing that it has counted has come back to us
    over        one of these has changed, or there is no work any more

KV usage, since vLLM's counters do not move on the steps in the middle of a long prompt, while its blocks are taken step
by step. `waiting` may rise while an engine hangs, and `running` may fall by clients that leave: neither is work done.
A counter that went down is another process, and counts as moved. Engines without such a counter are never taken for
hung. Pages that do not come are no proof of anything: time counts from page to page.
"""

from __future__ import annotations

from extproc.core.model import Sample


class Stall:
    """`since`: clock time, seconds, of the last progress; None: it does not hang."""

    __slots__ = ("_answered", "_moved_at", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._moved_at: float | None = None
        self._answered = False  # since the last page

    def lives(self) -> None:
        """It has answered a request, and counted its tokens."""
        self._answered = True

    def judge(self, after_s: float | None, read_at: float | None) -> None:
        """Another `after_s` for what the pages up to `read_at` have shown."""
        from_ = self._moved_at
        hangs = after_s is not None and from_ is not None and read_at is not None and read_at - from_ >= after_s
        self.since = from_ if hangs and not self._answered else None

    def on_page(self, page: Sample, last: Sample | None, own: int, after_s: float | None, now: float) -> bool:
        """Whether a stall is over now. `last`: the page before; `own`: slots of ours that are inside; `after_s`: None:
        nothing is taken for hung."""
        moved = (
            after_s is None
            or self._answered
            or page.progress is None
            or last is None
            or last.progress != page.progress
            or last.kv_usage != page.kv_usage
            or page.running + page.waiting + own == 0
        )
        self._answered = False
        if moved or self._moved_at is None:
            self._moved_at = now
            over, self.since = self.since is not None, None
            return over
        if after_s is not None and now - self._moved_at >= after_s:
            self.since = self._moved_at
        return False
