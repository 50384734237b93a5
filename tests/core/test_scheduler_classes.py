"""The order between classes: rank, caps, standing queues, `min_share`."""

from __future__ import annotations

from collections import Counter

from scheduler_case import FIRST_CHARGE, Case, a_class, a_pool, fill, released, two_classes

from extproc.core.events import Release
from extproc.core.model import TenantPolicy

BATCH = a_class("batch", 2, max_waiting=0)


def test_order_between_classes_is_strict() -> None:
    case = Case(a_pool(a_class(), a_class("default", 1), BATCH, start=1))
    fill(case, 4)
    case.arrive("batch", "a", "batch")
    case.arrive("default", "b", "default")
    case.arrive("interactive", "c")
    assert released(case.end("fill-interactive-0")) == ["interactive"]
    assert released(case.end("fill-interactive-1")) == ["default"]
    assert released(case.end("fill-interactive-2")) == []  # batch has no standing queue: 3 inside, R = 1
    for name in ("fill-interactive-3", "interactive"):
        assert released(case.end(name)) == []
    assert released(case.end("default")) == ["batch"]


def test_the_window_of_batch_is_r_and_not_r_and_q() -> None:
    case = Case(a_pool(*two_classes(), start=4))
    fill(case, 4, cls="batch")
    assert case.arrive("b", "t", "batch") == []
    assert released(case.arrive("i0") + case.arrive("i1") + case.arrive("i2")) == ["i0", "i1", "i2"]
    assert case.arrive("i3") == []


def test_a_lower_class_never_passes_a_blocked_higher_one() -> None:
    case = Case(a_pool(*two_classes(max_waiting=3), start=4))
    fill(case, 5)
    assert case.arrive("wide", "a", n=4) == []  # 5 + 4 > 7
    assert case.arrive("batch", "b", "batch") == []  # 5 + 1 <= 7, and it waits all the same


def test_a_class_at_its_cap_lets_the_lower_class_go() -> None:
    case = Case(a_pool(a_class(max_in_flight=2), BATCH, start=4))
    fill(case, 2)
    assert case.arrive("i") == []
    assert released(case.arrive("b", cls="batch")) == ["b"]
    assert released(case.end("fill-interactive-0")) == ["i"]


def test_a_tenant_at_its_cap_lets_others_and_lower_classes_go() -> None:
    case = Case(a_pool(*two_classes(), start=4, tenants={"a": TenantPolicy(max_in_flight=1)}))
    assert released(case.arrive("a0", "a")) == ["a0"]
    assert case.arrive("a1", "a") == []
    assert released(case.arrive("b0", "b")) == ["b0"]
    assert released(case.arrive("c0", "c", "batch")) == ["c0"]
    assert released(case.end("a0")) == ["a1"]


def churn(case: Case, inside: list[str], steps: int) -> Counter[str]:
    """End the oldest request again and again, with its exact usage. Returns the dispatched cost by class."""
    dispatched: Counter[str] = Counter()
    for _ in range(steps):
        case.usage(inside[0], 256, 256)
        for effect in case.end(inside.pop(0)):
            if isinstance(effect, Release):
                inside.append(effect.id)
                dispatched[effect.cls] += FIRST_CHARGE
    return dispatched


def test_min_share_is_served_under_a_full_backlog_of_the_higher_class() -> None:
    case = Case(a_pool(*two_classes(min_share=0.05), start=4, max_queued=10_000), checked=False)
    inside = fill(case, 7)
    for i in range(800):
        case.arrive(f"i{i}")
    for i in range(100):
        case.arrive(f"b{i}", cls="batch")
    dispatched = churn(case, inside, 600)
    assert 0.04 <= dispatched["batch"] / dispatched.total() <= 0.06


def test_what_a_class_got_while_alone_is_not_held_against_its_min_share() -> None:
    case = Case(a_pool(*two_classes(min_share=0.05), start=4, max_queued=10_000), checked=False)
    inside = fill(case, 4, cls="batch")
    for i in range(500):
        case.arrive(f"b{i}", cls="batch")
    churn(case, inside, 300)
    for i in range(500):
        for effect in case.arrive(f"i{i}"):
            inside.append(effect.id)
    dispatched = churn(case, inside, 200)  # 300 alone at 5 % would be a debt of 6,000 dispatches
    assert 0.04 <= dispatched["batch"] / dispatched.total() <= 0.06


def test_a_class_does_not_save_up_the_share_that_it_did_not_use() -> None:
    case = Case(a_pool(*two_classes(min_share=0.05), start=4, max_queued=10_000), checked=False)
    inside = fill(case, 7)
    for i in range(500):
        case.arrive(f"i{i}")
    churn(case, inside, 200)
    for i in range(100):
        case.arrive(f"b{i}", cls="batch")
    assert churn(case, inside, 40)["batch"] <= 3 * FIRST_CHARGE  # 5 % of 40 is 2; 200 saved up would be 10 more


def test_a_class_behind_its_share_is_not_passed_when_its_next_request_is_wide() -> None:
    case = Case(a_pool(*two_classes(min_share=0.5), start=4))
    inside = fill(case, 7)
    case.arrive("b0", cls="batch", n=4)
    case.arrive("i0", "x")
    case.arrive("i1", "y")
    assert released(case.end(inside[0])) == ["i0"]  # V moves on: batch is behind now
    assert [released(case.end(name)) for name in inside[1:4]] == [[], [], []]  # 6, 5, 4 inside, 4 wanted of 7
    assert released(case.end(inside[4])) == ["b0"]


def test_without_min_share_the_lower_class_waits_as_long_as_it_takes() -> None:
    case = Case(a_pool(*two_classes(), start=4, max_queued=10_000), checked=False)
    inside = fill(case, 7)
    case.arrive("b", cls="batch")
    for i in range(200):
        case.arrive(f"i{i}")
    assert churn(case, inside, 200)["batch"] == 0


def test_a_large_prompt_that_a_window_owes_its_turn_is_asked_for_before_a_higher_class() -> None:
    """10,000 tokens go alone, and small ones of the higher class come all the time. After 2 s of that nothing else
    goes until the large one has: it is not to wait for a higher class that waits for it."""
    case = Case(a_pool(a_class(), a_class("batch", 2), start=50))
    case.arrive("first", prompt_tokens=1_000)
    case.first_token("first")  # so they can be seen here
    case.arrive("i0", prompt_tokens=1_000)
    assert case.arrive("large", "b", "batch", prompt_tokens=10_000) == []
    for k in range(1, 8):
        case.now += 0.25
        case.page(running=k)
        assert released(case.arrive(f"i{k}", prompt_tokens=1_000)) == [f"i{k}"]
        assert released(case.first_token(f"i{k - 1}")) == []
    case.now += 0.25
    assert case.arrive("i8", prompt_tokens=1_000) == []
    assert released(case.first_token("i7")) == ["large"]
    assert released(case.first_token("large")) == ["i8"]
