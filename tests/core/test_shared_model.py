"""Any order of events with words of other replicas among them, against the model of `test_scheduler_model`.

What it proves beyond that: the books hold whatever the others tell, nothing goes without a claim, and nothing is left
of what they told when it is over.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from scheduler_case import E1, E2
from test_scheduler_model import CLASSES, TENANTS, SchedulerMachine, policies

from extproc.core.events import EndpointShare, Event, FlowShare, Release, Synced, Tick
from extproc.core.model import Controller

pytestmark = pytest.mark.slow

ABSURD_COSTS = [-1.0, math.nan, math.inf, 1e300]
_CLAIMS = st.sampled_from([0.0, 1.0, 2.0, 2.0, 5.0, 9.0, math.inf, math.nan, -1.0])
_SHARES = st.builds(
    EndpointShare,
    st.sampled_from([E1, E2, "10.9.9.9:1"]),
    _CLAIMS,
    st.sampled_from([0, 0, 1, 3, 9, -1]),
    st.sampled_from([0, 1, 5, -1]),
)
_FLOWS = st.builds(
    FlowShare,
    st.sampled_from([*CLASSES, "unknown"]),
    st.sampled_from([*TENANTS, "elsewhere/only"]),
    st.sampled_from([0.0, 10.0, 700.0, *ABSURD_COSTS]),
    st.sampled_from([0, 0, 1, 2, 5, -1]),
)


class SharedMachine(SchedulerMachine):
    def __init__(self) -> None:
        super().__init__()
        self.policies = [replace(p, shared=True) for c in self.controllers for p in policies(c)]
        self.scheduler = type(self.scheduler)(self.policies[0])
        for endpoint in self.endpoints:
            self.add_endpoint(endpoint)

    def apply(self, event: Event) -> None:
        """No more goes than the claims allow: an overtaker beyond it, and a wide one that has begun within it."""
        for each in (event, Tick()):
            before = {name: w.in_flight for name, w in self.scheduler.windows.items()}
            effects = self.scheduler.apply(each, self.now)
            went = {e.endpoint for e in effects if isinstance(e, Release)}
            for name in went:
                window, overtake = self.scheduler.windows[name], self.scheduler.policy.window.overtake
                assert self.now <= window.claim_until
                widest = max(self.known[e.id].slots for e in effects if isinstance(e, Release) and e.endpoint == name)
                most = window.claim + max(overtake, widest - 1)
                assert window.in_flight <= max(before.get(name, 0), most)
            for effect in effects:
                self.note(effect)

    @rule(
        shares=st.lists(_SHARES, max_size=3, unique_by=lambda share: share.endpoint),
        flows=st.lists(_FLOWS, max_size=4, unique_by=lambda flow: (flow.cls, flow.tenant)),
        served=st.dictionaries(st.sampled_from(CLASSES), st.sampled_from([0.0, 50.0, math.nan, -3.0]), max_size=2),
        closed_above=st.sampled_from([None, None, -1, 0, 1, 2]),
        lasts=st.sampled_from([0.0, 0.5, 2.0, 900.0, math.inf]),
        lost_for=st.sampled_from([None, None, 0.0, 12.0]),
    )
    def word_comes(
        self,
        shares: list[EndpointShare],
        flows: list[FlowShare],
        served: dict[str, float],
        closed_above: int | None,
        lasts: float,
        lost_for: float | None,
    ) -> None:
        here = {c.policy.name for c in self.scheduler.classes}
        self.served_elsewhere += sum(cost for name, cost in served.items() if name in here and cost > 0.0)
        lost_since = None if lost_for is None else self.now - lost_for
        until = self.now + lasts
        self.apply(Synced(2, until, tuple(shares), tuple(flows), served, closed_above, lost_since))

    @rule()
    def all_is_ours(self) -> None:
        self.apply(Synced(1, math.inf, tuple(EndpointShare(name, math.inf, 0) for name in (E1, E2))))

    def teardown(self) -> None:
        """What the others hold is told to be over, too."""
        self.apply(
            Synced(
                1, math.inf, (), tuple(FlowShare(c, t, 0.0, 0) for c in CLASSES for t in [*TENANTS, "elsewhere/only"])
            )
        )
        assert self.scheduler.elsewhere == {}
        super().teardown()
        assert all(c.queue.wide == c.root.elsewhere == 0 for c in self.scheduler.classes)


class ChangingSharedMachine(SharedMachine):
    """Every policy under every controller."""

    controllers = tuple(Controller)


TestShared = SharedMachine.TestCase
TestShared.settings = settings(derandomize=True, max_examples=25, stateful_step_count=50, deadline=None)
TestChangingShared = ChangingSharedMachine.TestCase
TestChangingShared.settings = settings(derandomize=True, max_examples=16, stateful_step_count=50, deadline=None)
