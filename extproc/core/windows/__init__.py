"""The release window of one endpoint: how many requests it may hold.

    base         the books that all controllers keep, and the order in which a window decides
    adaptive     the recommended controller, with latency, kv_account, prefill, and due: large ones that get their turn
    first, threshold, fixed     baselines behind the same interface
    gates        a class's own thresholds
    change       what a page can be believed
    view         what a window says about itself

A window is told of releases, first tokens, ends and pages, and asked whether a request may go. It keeps no clock:
`now` is in seconds. Its decisions follow from what it was told alone; views and explanations leave no trace.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.core.model import Controller, Request, WindowPolicy
from extproc.core.windows.adaptive import Adaptive
from extproc.core.windows.base import Window
from extproc.core.windows.first import First
from extproc.core.windows.fixed import Fixed
from extproc.core.windows.prefill import Answers
from extproc.core.windows.threshold import Threshold
from extproc.core.windows.view import Hold, Stance, WindowView

__all__ = [
    "Adaptive",
    "Answers",
    "First",
    "Fixed",
    "Hold",
    "Stance",
    "Threshold",
    "Window",
    "WindowView",
    "make_window",
    "renewed",
]

_CONTROLLERS: dict[Controller, type[Window]] = {
    Controller.ADAPTIVE: Adaptive,
    Controller.FIRST: First,
    Controller.THRESHOLD: Threshold,
    Controller.FIXED: Fixed,
}


def make_window(endpoint: str, policy: WindowPolicy, now: float) -> Window:
    """A window on `endpoint` ("host:port") by the policy's controller, which has not been read yet."""
    return _CONTROLLERS[policy.controller](endpoint, policy, now)


def renewed(window: Window, policy: WindowPolicy, inside: Iterable[Request], now: float) -> Window:
    """`window` under another policy: itself, or one of the policy's controller that takes over its books. `inside`: the
    requests that it holds."""
    if type(window) is _CONTROLLERS[policy.controller]:
        window.reconfigure(policy, now)
        return window
    other = make_window(window.endpoint, policy, now)
    other.adopt(window, sorted(inside, key=lambda r: (r.released_at, r.seq)), now)
    return other
