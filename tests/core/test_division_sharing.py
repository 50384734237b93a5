"""One replica among others: what it tells, what it makes of what it hears, and what it does without a store."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import a_class as class_policy
from scheduler_case import a_fixed_pool, a_sample, two_classes

from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    EndpointShare,
    Event,
    Release,
    Scraped,
    Synced,
    Usage,
)
from extproc.core.model import Controller, Source, TenantPolicy
from extproc.core.scheduler import Scheduler
from extproc.core.sharing import flows as told_flows
from extproc.core.sharing.flows import OtherReplica
from extproc.core.sharing.sharing import SHRINK_S, Sharing
from extproc.core.sharing.words import (
    ClassReport,
    EndpointReport,
    FlowReport,
    Heard,
    Other,
    PoolReport,
)

E = "engine:8000"
LEASE_S = 3.0


class Member:
    """A replica with one endpoint of `slots`, and a store that grants what is asked for unless told otherwise."""

    def __init__(
        self,
        slots: int = 20,
        expected: int = 2,
        timeout_s: float = 0.5,
        controller: Controller = Controller.FIXED,
        **pool: Any,
    ) -> None:
        policy = replace(a_fixed_pool(*pool.pop("classes", two_classes()), slots=slots, **pool), shared=True)
        window = replace(policy.window, controller=controller, start=float(slots))
        self.scheduler = Scheduler(replace(policy, window=window))
        self.sharing = Sharing("m", expected, 0.1, LEASE_S, timeout_s)
        self.now = 100.0
        self.released: list[str] = []
        self.number = 0
        self.apply(EndpointAdded(E))
        self.apply(Scraped(E, a_sample(0, 0, self.now)))

    def apply(self, event: Event) -> list[Effect]:
        effects = self.scheduler.apply(event, self.now)
        self.released += [effect.id for effect in effects if isinstance(effect, Release)]
        return effects

    def arrive(self, tenant: str = "a", count: int = 1, cls: str = "interactive") -> None:
        for _ in range(count):
            self.number += 1
            self.apply(Arrive(f"r{self.number}", tenant, cls, self.now, 400))

    def over(self, name: str, output: int = 10) -> None:
        self.apply(Usage(name, Source.USAGE, 100, 0, output))
        self.apply(End(name))

    def tell(self) -> PoolReport:
        return self.sharing.tell(self.scheduler, self.now)

    def meet(
        self, *others: Other, granted: float | None = None, fresh: bool = False, later: float = 0.1
    ) -> tuple[PoolReport, Synced]:
        """One exchange, which takes a millisecond. Then it is `later`."""
        report = self.tell()
        claims = {e.endpoint: e.want if granted is None else granted for e in report.endpoints}
        heard = Heard(self.now, fresh, others, claims)
        self.now += 0.001
        synced = self.sharing.heard(self.scheduler, heard, self.now)
        self.apply(synced)
        self.now += later
        return report, synced

    def lose(self, later: float = 0.0) -> Synced:
        """An exchange that fails."""
        self.tell()
        synced = self.sharing.lost(self.scheduler, self.now)
        self.apply(synced)
        self.now += later
        return synced


def other(
    name: str = "b",
    *,
    life: str = "1",
    inside: int = 0,
    limit: float = 20.0,
    classes: Sequence[ClassReport] = (),
    flows: Sequence[FlowReport] = (),
    missed: bool = False,
) -> Other:
    endpoint = EndpointReport(E, inside, 0, limit, 0.0)
    return Other(name, life, PoolReport("m", tuple(classes), (endpoint,), tuple(flows)), missed)


def a_class(
    demand: int = 0,
    *,
    active: int = 0,
    served: float = 0.0,
    weight: float = 0.0,
    name: str = "interactive",
    rank: int = 0,
) -> ClassReport:
    return ClassReport(name, rank, demand, 100.0 * demand, active, served, weight)


def claim(synced: Synced) -> float:
    (share,) = synced.endpoints
    return share.claim


# -- claims ----------------------------------------------------------------------------------------


def test_nothing_is_released_before_the_store_has_answered() -> None:
    member = Member()
    member.arrive(count=5)
    assert member.released == []
    member.meet()
    assert len(member.released) == 5


def test_a_newcomer_asks_for_an_even_part_until_the_others_have_told() -> None:
    """20 slots, two replicas: 10, for a third of a lease after the store has called it new. Alone it then has all."""
    member = Member(slots=20, expected=2)
    member.arrive(count=50)
    report, synced = member.meet(fresh=True)
    assert [e.want for e in report.endpoints] == [10.0]
    assert claim(synced) == 10.0
    assert len(member.released) == 10
    report, _ = member.meet(later=LEASE_S / 3)
    assert [e.want for e in report.endpoints] == [10.0]
    member.meet()
    assert len(member.released) == 20


def test_the_claim_is_what_was_granted_and_what_was_wanted_if_that_is_less() -> None:
    member = Member()
    member.arrive(count=50)
    assert claim(member.meet(granted=3.0)[1]) == 3.0
    assert len(member.released) == 3
    member.meet(granted=500.0)
    assert len(member.released) == 20


def test_a_claim_is_over_after_two_thirds_of_a_lease() -> None:
    member = Member()
    member.arrive(count=15)
    asked_at = member.now
    _, synced = member.meet(granted=10.0)
    assert synced.until == pytest.approx(asked_at + 2.0)
    member.now = asked_at + 2.01
    member.over(member.released[0])
    assert len(member.released) == 10
    member.meet(granted=10.0)
    assert len(member.released) == 11


def test_an_idle_replica_wants_nothing() -> None:
    member = Member()
    report, synced = member.meet()
    assert ([e.want for e in report.endpoints], claim(synced)) == ([0.0], 0.0)


def test_one_that_sees_less_room_bounds_all() -> None:
    """It has something there. One that has nothing there has seen nothing."""
    member = Member(slots=20)
    member.meet()
    member.arrive(count=50)
    member.meet(other(limit=6.0, inside=0))
    report, _ = member.meet(other(limit=6.0, inside=1))
    assert [e.want for e in report.endpoints] == [20.0]
    report, _ = member.meet(other(limit=6.0, inside=1))
    assert [e.want for e in report.endpoints] == [pytest.approx(5.0)]


def test_what_waits_elsewhere_in_a_higher_class_closes_the_lower_one() -> None:
    member = Member(slots=20)
    many = other(inside=20, classes=[a_class(100, active=20, weight=1.0)])
    member.meet(many)
    member.arrive(count=5)
    member.meet(many)
    assert member.meet(many)[1].closed_above == 0
    few = other(inside=2, classes=[a_class(1, active=2, weight=1.0)])
    member.meet(few)
    assert member.meet(few)[1].closed_above is None


def test_the_highest_class_that_waits_elsewhere_closes_all_below_it() -> None:
    member = Member(slots=20)
    classes = [a_class(100, active=10, weight=1.0), a_class(100, active=10, weight=1.0, name="batch", rank=2)]
    member.meet(other(inside=20, classes=classes))
    member.arrive(count=5)
    member.meet(other(inside=20, classes=classes))
    assert member.meet(other(inside=20, classes=classes))[1].closed_above == 0


def test_what_waits_at_one_that_is_silent_takes_nothing_and_closes_nothing() -> None:
    """It may be dead. What it has inside still counts, until the store knows it no more."""
    member = Member(slots=20)
    member.arrive(count=50, cls="batch")
    speaks = other(inside=10, classes=[a_class(100, active=10, weight=1.0)])
    member.meet(speaks)
    report, synced = member.meet(speaks)
    assert ([e.want for e in report.endpoints], synced.closed_above) == ([0.0], 0)
    silent = replace(speaks, age_s=0.61)  # a period and a timeout
    member.meet(silent)
    report, synced = member.meet(silent)
    assert ([e.want for e in report.endpoints], synced.closed_above) == ([10.0], None)


def test_one_is_not_silent_within_an_exchange_that_may_take_long() -> None:
    member = Member(slots=20, timeout_s=1.0)
    member.arrive(count=50, cls="batch")
    speaks = other(inside=10, classes=[a_class(100, active=10, weight=1.0)])
    for age, closed in ((1.1, 0), (1.11, None)):
        member.meet(replace(speaks, age_s=age))
        assert member.meet(replace(speaks, age_s=age))[1].closed_above == closed


def test_a_class_is_unmet_by_a_whole_slot_or_nearly() -> None:
    """What is not worth a slot closes nothing."""
    member = Member(slots=20)
    for demand, closed in ((10, None), (11, 0)):
        waits = other(inside=10, classes=[a_class(demand, active=10, weight=1.0)])
        member.meet(waits)
        assert member.meet(waits)[1].closed_above == closed


def test_what_a_dead_one_held_counts_as_foreign() -> None:
    """The engine runs it on. 20 slots; 12 were its own, and 8 are left until a page tells."""
    member = Member(slots=20, controller=Controller.ADAPTIVE)
    inside = other(inside=12)
    for _ in range(2):
        member.meet(inside)
    member.arrive(count=50)
    for dead in ([], [replace(other(), life="2")]):
        again = copy.deepcopy(member)
        _, synced = again.meet(*dead)
        assert [e.gone for e in synced.endpoints] == [12]
        assert again.meet(*dead)[1].endpoints[0].gone == 0
        assert again.scheduler.windows[E].unknown == 12
        for _ in range(3):
            again.meet(*dead)
        assert len(again.released) == 11  # R + q is 23


def test_what_the_others_have_found_of_an_engine_is_passed_on() -> None:
    """The least of those that have something there, less the standing queue, of 3 in all classes."""
    member = Member()
    seen = other("b", inside=4, limit=67.0), other("c", inside=1, limit=61.0), other("d", inside=0, limit=9.0)
    assert [e.known for e in member.meet(*seen)[1].endpoints] == [58.0]
    assert [e.known for e in member.meet(other(inside=0, limit=9.0))[1].endpoints] == [0.0]


# -- promotion -------------------------------------------------------------------------------------


def aged(*others: Other, **changes: object) -> Member:
    """Batch that has waited for its `promote_after`, while interactive wants all at another replica. One in four."""
    classes = two_classes(promote_after_s=5.0)
    member = Member(classes=classes, promote_every=4, **changes)
    member.arrive(count=50, cls="batch")
    member.now += 5.0
    return member


def interactive(released: int = 0, *more: ClassReport, inside: int = 20) -> Other:
    told = other(inside=inside, classes=[a_class(100, active=inside, weight=1.0), *more])
    return replace(told, report=replace(told.report, released=released))


def test_one_dispatch_in_promote_every_of_all_replicas_is_a_promotion() -> None:
    """The other dispatches one each period, and makes room for what is told to count one class up."""
    member, room, over = aged(), 0, 0
    member.arrive(count=200, cls="batch")
    member.now += 5.0
    for period in range(400):
        there = list(member.released)
        report, _ = member.meet(interactive(period, inside=20 - room))
        room = int(report.endpoints[0].want)
        for name in there[over:]:
            member.over(name)
        over = len(there)
    assert len(member.released) == pytest.approx((400 + len(member.released)) / 4, rel=0.05)


def test_one_that_counts_one_class_up_is_told_and_wanted_beyond_what_is_held() -> None:
    member = aged()
    member.meet(interactive())
    report, synced = member.meet(interactive(inside=18))
    assert {c.name: c.promoted for c in report.classes} == {"interactive": 0, "batch": 1}
    assert ([e.want for e in report.endpoints], synced.closed_above) == ([1.0], 0)
    assert len(member.released) == 1


def test_each_has_its_part_of_the_promotions() -> None:
    """Batch waits at three, half of it here by weight."""
    member = aged()
    waits = [a_class(10, weight=w, name="batch", rank=1) for w in (0.3, 0.2)]
    first = interactive(0, waits[0])
    second = other("c", classes=[waits[1]])
    member.meet(first, second)
    member.arrive("b", cls="batch")
    _, synced = member.meet(first, second)
    assert synced.ageing == pytest.approx(1.0 / 1.5)  # its own tenants know of no other
    assert member.meet(interactive())[1].ageing == 1.0
    assert member.lose().ageing == 1.0


def test_of_several_classes_the_first_that_may_be_promoted_counts() -> None:
    """Batch waits elsewhere as well, bulk here alone; nothing passes interactive itself."""
    classes = (
        class_policy("interactive", 0, promote_after_s=1.0),
        class_policy("batch", 1, promote_after_s=1.0),
        class_policy("bulk", 2, promote_after_s=1.0),
    )
    member = Member(classes=classes, promote_every=4)
    told = interactive(0, a_class(10, weight=1.0, name="batch", rank=1))
    for cls in ("interactive", "batch", "bulk"):
        member.arrive(cls, count=5, cls=cls)
    member.now += 1.0
    for _ in range(2):
        _, synced = member.meet(told, granted=0.0)
    assert synced.ageing == pytest.approx(0.5)


def test_no_more_is_promoted_elsewhere_than_would_go_there() -> None:
    member = Member()
    absurd = other(classes=[replace(a_class(1, weight=1.0, name="batch", rank=1), promoted=2**50)])
    member.arrive(count=50)
    for _ in range(3):
        report, _ = member.meet(absurd)
    assert [e.want for e in report.endpoints] == [19.0]


def test_the_rank_that_counts_is_our_own() -> None:
    """Another one may have another configuration for a while."""
    member = Member()
    many = other(inside=20, classes=[a_class(100, active=20, weight=1.0, rank=-5)])
    for _ in range(3):
        _, synced = member.meet(many)
    assert synced.closed_above == 0


def test_what_has_not_waited_for_long_enough_is_not_promoted() -> None:
    member = aged()
    member.now -= 0.5
    for period in range(3):
        report, _ = member.meet(interactive(10 * period))
        assert [c.promoted for c in report.classes] == [0, 0]


def test_a_claim_is_never_more_than_what_the_others_leave() -> None:
    """Whatever was wanted and granted before they told."""
    member = Member(slots=20)
    member.arrive(count=50)
    assert claim(member.meet(other(inside=15), granted=20.0)[1]) == 5.0


# -- without a store -------------------------------------------------------------------------------


def held(slots: int, wanted: int, expected: int = 2) -> Member:
    """One that had `wanted` of `slots`, for long."""
    member = Member(slots=slots, expected=expected)
    member.meet(other())
    member.arrive(count=100)
    member.meet(other(inside=slots - wanted), granted=float(wanted))
    member.meet(other(inside=slots - wanted), granted=float(wanted))
    return member


def test_without_the_store_a_large_claim_shrinks_to_an_even_part() -> None:
    """16 of 20, two replicas: in ten seconds to 10."""
    member = held(20, 16)
    assert [claim(member.lose(later=SHRINK_S / 4)) for _ in range(6)] == [16.0, 14.0, 13.0, 11.0, 10.0, 10.0]


def test_no_more_is_kept_than_was_asked_for_when_no_answer_came() -> None:
    """The store may have written it down, and given the rest away."""
    member = Member()
    member.meet(other())
    member.arrive(count=16)
    member.meet(other())
    member.meet(other(), granted=16.0)
    assert len(member.released) == 16
    for name in member.released:
        member.over(name)
    assert claim(member.lose()) == 1.0  # it is idle, and has asked for nothing


def test_a_small_one_grows_to_it_a_lease_later() -> None:
    member = held(20, 4)
    assert claim(member.lose(later=LEASE_S)) == 4.0
    assert [claim(member.lose(later=SHRINK_S / 4)) for _ in range(6)] == [4.0, 5.0, 7.0, 8.0, 10.0, 10.0]


def test_the_even_part_is_of_as_many_as_were_seen_of_late() -> None:
    """Two are expected, and there were four: 5 of 20 for each."""
    member = Member(slots=20, expected=2)
    member.meet(*(other(name) for name in "bcd"))
    member.arrive(count=100)
    for _ in range(2):
        member.meet(other())
    assert [claim(member.lose(later=SHRINK_S / 2)) for _ in range(4)][-1] == 5.0


def test_it_is_one_slot_at_least() -> None:
    member = held(20, 0, expected=40)
    assert [claim(member.lose(later=5.0)) for _ in range(4)] == [1.0] * 4


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6))
def test_all_claims_together_are_no_more_than_the_limit_and_one_for_each(wanted: list[int], late: list[float]) -> None:
    """Whatever each had, as far as the store had granted it, and whoever notices the loss up to a second later."""
    slots = max(sum(wanted), 1)
    members = [held(slots, each, expected=len(wanted)) for each in wanted]
    for step in range(30):
        total = 0.0
        for member, delay in zip(members, late, strict=False):
            now = member.now
            if not step:
                member.now += delay
            total += claim(member.lose())
            member.now = (now if step else member.now) + 1.0
        # Up to a second: those that have noticed shrink, and who is late has what it had.
        assert total <= slots + len(members)


def test_one_that_was_frozen_and_finds_no_store_has_no_more_than_the_even_part() -> None:
    member = held(20, 16)
    member.now += LEASE_S
    assert claim(member.lose()) == 10.0


def test_what_others_hold_counts_for_no_cap_a_lease_after_the_last_word() -> None:
    """a may hold two slots, and holds them elsewhere."""
    member = Member(tenants={"a": TenantPolicy(max_in_flight=2)})
    inside = other(inside=2, flows=[FlowReport("interactive", "a", 5.0, 0.0, 2)])
    member.meet(inside)
    member.meet(inside)
    member.arrive("a")
    member.meet(inside)
    member.lose(later=LEASE_S + 0.1)
    assert member.released == []
    member.lose()
    assert member.released == ["r1"]


# -- flows -----------------------------------------------------------------------------------------


def test_a_flow_is_told_when_something_has_happened_to_it() -> None:
    member = Member(slots=1)
    member.meet()
    member.arrive("a", count=2)
    (waits,) = member.meet()[0].flows
    assert (waits.cls, waits.tenant, waits.inside, waits.usage) == ("interactive", "a", 0, 0.0)
    assert waits.backlog > 0
    (one_inside,) = member.meet()[0].flows
    assert (one_inside.inside, one_inside.backlog) == (1, waits.backlog / 2)
    assert one_inside.usage > 0


def test_usage_never_shrinks_though_a_request_cost_less_than_was_charged() -> None:
    member = Member(slots=1)
    member.arrive("a", count=3)
    member.meet()
    (before,) = member.meet()[0].flows
    member.over("r1", output=1)
    (after,) = member.meet()[0].flows
    assert after.usage >= before.usage


def test_one_that_is_idle_is_told_once_more_and_forgotten() -> None:
    member = Member()
    member.arrive("a")
    member.meet()
    member.meet()
    member.over("r1")
    (last,) = member.meet()[0].flows
    assert (last.backlog, last.inside) == (0.0, 0)
    assert member.meet()[0].flows == ()


def test_what_may_not_have_arrived_is_told_again() -> None:
    member = Member()
    member.meet()
    member.arrive("a", count=40)
    member.tell()
    member.apply(member.sharing.lost(member.scheduler, member.now))
    (again,) = member.tell().flows
    assert again.tenant == "a"


def test_a_report_is_bounded_and_the_rest_follows() -> None:
    member = Member()
    member.meet()
    for number in range(2_500):
        member.arrive(f"t{number}")
    reports = [member.meet(granted=0.0)[0] for _ in range(4)]
    counts = [len(report.flows) for report in reports]
    assert max(counts) <= told_flows.CHANGED + told_flows.IN_TURN
    assert len({flow.tenant for report in reports for flow in report.flows}) == 2_500
    assert counts[3] == told_flows.IN_TURN


def charged(known: OtherReplica, *flows: FlowReport, served: float = 0.0, missed: bool = False) -> float:
    """What of these a reader takes as new."""
    report = PoolReport("m", (a_class(served=served),), (), flows)
    return sum(known.update(report, missed, 100.0).flows.values())


def usage(of: float, *, backlog: float = 1.0) -> FlowReport:
    return FlowReport("interactive", "a", of, backlog, 0)


def test_a_report_that_is_read_twice_or_not_at_all_does_no_harm() -> None:
    known = OtherReplica("1", PoolReport("m", (a_class(),), ()))
    assert charged(known, usage(10.0), served=10.0) == 10.0
    assert charged(known, usage(10.0), served=10.0) == 0.0
    assert charged(known, usage(70.0), served=70.0, missed=True) == 60.0  # 30 and 50 were missed


def test_of_a_flow_that_is_not_known_no_more_is_new_than_its_class_was_charged() -> None:
    known = OtherReplica("1", PoolReport("m", (a_class(served=1_000.0),), ()))
    assert charged(known, usage(500.0), served=1_000.0) == 0.0
    known = OtherReplica("1", PoolReport("m", (a_class(served=1_000.0),), ()))
    assert charged(known, usage(500.0), served=1_020.0) == 20.0


def test_one_that_begins_anew_is_taken_from_0() -> None:
    known = OtherReplica("1", PoolReport("m", (a_class(),), ()))
    assert charged(known, usage(500.0), served=500.0) == 500.0
    assert charged(known, usage(500.0, backlog=0.0), served=500.0) == 0.0
    assert known.flows == {}
    assert charged(known, usage(30.0), served=530.0) == 30.0


def test_another_life_and_a_death_leave_nothing() -> None:
    member = Member()
    flow = FlowReport("interactive", "a", 50.0, 5.0, 3)
    member.meet(other(inside=3, flows=[flow]))
    _, synced = member.meet(other(life="2", inside=1))
    assert [(f.tenant, f.usage, f.inside) for f in synced.flows] == [("a", 0.0, 0)]
    assert [e.others for e in synced.endpoints] == [1]
    member.meet(other(life="2", inside=1, flows=[flow]))
    _, synced = member.meet()
    assert [(f.tenant, f.usage, f.inside) for f in synced.flows] == [("a", 0.0, 0)]
    assert synced.endpoints == (EndpointShare(E, 0.0, 0, 0, gone=1),)
    assert synced.replicas == 1
