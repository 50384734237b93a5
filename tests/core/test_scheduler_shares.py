"""`min_share`: a class that is behind its share of the dispatched cost goes first.

V is the cost dispatched by the pool; a class's tag advances by cost/min_share; behind: tag < V.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from scheduler_case import FIRST_CHARGE, Case, a_class, a_fixed_pool, drain, fill, released, two_classes

from extproc.core.model import PoolPolicy

EXACT = {"interactive": (256, 256), "batch": (256, 256)}  # prompt and output tokens, as estimated


def churn(case: Case, inside: list[str], steps: int, took: Mapping[str, tuple[int, int]] = EXACT) -> Counter[str]:
    """End the oldest request again and again, with its usage. Returns the settled cost by class."""
    served: Counter[str] = Counter()
    classes = {r.id: r.cls for r in case.scheduler.requests.values()}
    for _ in range(steps):
        name = inside.pop(0)
        for effect in case.usage(name, *took[classes[name]]):
            if hasattr(effect, "cost"):
                served[effect.cls] += effect.cost
            else:
                inside.append(effect.id)
        inside += released(case.end(name))
    return served


def backlog(case: Case, interactive: int, batch: int) -> None:
    for i in range(interactive):
        case.arrive(f"i{i}", f"t{i % 5}")
    for i in range(batch):
        case.arrive(f"b{i}", cls="batch")


def pool(share: float, slots: int = 8, **changes: object) -> PoolPolicy:
    return a_fixed_pool(*two_classes(min_share=share, **changes), slots=slots)


def share_of(served: Counter[str]) -> float:
    return served["batch"] / served.total()


@pytest.mark.parametrize("share", [0.05, 0.10, 0.5])
def test_the_share_is_what_was_configured(share: float) -> None:
    case = Case(pool(share), checked=False)
    inside = fill(case, 8)
    backlog(case, 900, 500)
    assert share_of(churn(case, inside, 800)) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("share", [0.05, 0.10])
@pytest.mark.parametrize("output", [16, 1024])
def test_the_share_is_of_the_true_cost(share: float, output: int) -> None:
    """Batch's answers are a sixteenth, or four times, of what is expected at first. Interactive's are as expected."""
    case = Case(pool(share), checked=False)
    inside = fill(case, 8)
    backlog(case, 990, 900)
    served = churn(case, inside, 800, EXACT | {"batch": (256, output)})
    assert share_of(served) == pytest.approx(share, rel=0.25)


def test_the_furthest_behind_goes_first() -> None:
    """Two classes below with a half and a quarter. Each dispatch is worth 2 and 4 of its own share, and 1 of V."""
    classes = (a_class(), a_class("half", 1, min_share=0.5), a_class("quarter", 2, min_share=0.25))
    case = Case(a_fixed_pool(*classes), checked=False)
    inside = fill(case, 1)
    for i in range(20):
        for cls in ("interactive", "half", "quarter"):
            case.arrive(f"{cls[0]}{i}", cls=cls)
    order = ""
    for _ in range(12):
        (name,) = released(case.end(inside.pop()))
        order += name[0]
        inside.append(name)
    # V, tags of half and quarter, in dispatches, before each: (1, 1, 1) is not behind.
    # i: V 2. h: V 3, h 1 + 2. q: V 4, q 1 + 4. h: V 5, h 5. i: V 6. h: V 7, h 7. q: V 8, q 9. i. h: V 10, h 9. ...
    assert order[:4] == "ihqh"
    assert Counter(order) == {"h": 6, "q": 3, "i": 3}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("b", "c", "expected"), [(0.45, 0.45, "bcbcbcbc"), (0.6, 0.25, "bcbbcbbc"), (0.25, 0.6, "bcccbccb")]
)
def test_of_two_that_are_behind_the_one_that_is_further_behind_goes_first(
    b: float, c: float, expected: str, *, plain: bool
) -> None:
    """One request of a higher class was worth ten others, so both stay behind for all of these turns. A turn adds
    1/0.45 to a tag; 1/0.6 or 1/0.25: b 1.7, c 4, b 3.3, b 5, c 8, b 6.7, b 8.3, c 12."""
    promotion = {} if plain else {"promote_after_s": 1e6}  # never due; with it not only the first turn counts
    classes = (a_class(), a_class("b", 1, min_share=b), a_class("c", 2, min_share=c, **promotion))
    case = Case(a_fixed_pool(*classes), checked=False)  # else each of the two ways to find a turn is held to the other
    assert case.scheduler.plain is plain
    inside = fill(case, 1)
    for i in range(9):
        case.arrive(f"b{i}", cls="b")
        case.arrive(f"c{i}", cls="c")
    case.arrive("i", prompt_tokens=int(10 * FIRST_CHARGE) - 512)
    assert drain(case, inside, 1) == ["i"]
    assert case.scheduler.share_v == 11 * FIRST_CHARGE
    assert "".join(name[0] for name in drain(case, inside, len(expected))) == expected


def test_the_overrun_of_what_runs_counts_at_once() -> None:
    """A pace of 50 ms: an answer of batch that has run for 100 s has made 2,000 tokens, where 256 were expected."""
    case = Case(pool(0.5))
    case.page(itl_sum=0.0, itl_count=0.0)
    case.page(itl_sum=5.0, itl_count=100.0)
    case.arrive("b", cls="batch")
    case.first_token("b")
    batch, v = case.scheduler.by_name["batch"], case.scheduler.share_v
    assert (v, batch.share_tag) == (FIRST_CHARGE, FIRST_CHARGE / 0.5)
    case.tick(100.0)
    assert case.scheduler.share_v == pytest.approx(256 + 2 * 2000)
    assert batch.share_tag == pytest.approx(2 * (256 + 2 * 2000))
    case.usage("b", 256, 1000)
    assert case.scheduler.share_v == pytest.approx(256 + 2 * 1000)
    assert batch.share_tag == pytest.approx(2 * (256 + 2 * 1000))


def test_a_refund_of_what_a_class_has_been_forgiven_is_no_credit() -> None:
    """Alone at night batch had 50 slots. By day its answers turn out to be short: that is worth nothing to it."""
    case = Case(pool(0.05, slots=50), checked=False)
    inside = fill(case, 50, cls="batch")
    backlog(case, 400, 100)
    churn(case, inside, 50, {"batch": (256, 1)})
    # 50 refunds of 510 would be 25,500 of 50 * 768 units for batch alone.
    batch = case.scheduler.by_name["batch"].queue
    assert batch.in_flight <= 50 * 0.05 + 2


@pytest.mark.slow
def test_a_true_up_of_what_a_class_has_been_forgiven_is_no_debt() -> None:
    """As above, and its answers are ten times as long: 50 * 4,608 / 0.05 would be a debt of 6,000 dispatches."""
    case = Case(pool(0.05, slots=50), checked=False)
    inside = fill(case, 50, cls="batch")
    backlog(case, 990, 100)
    churn(case, inside, 50, {"batch": (256, 2560)})
    served = churn(case, inside, 600)
    assert share_of(served) >= 0.04


def test_a_share_that_a_class_is_given_while_it_waits_counts_from_then_on() -> None:
    case = Case(a_fixed_pool(a_class(), a_class("default", 1, min_share=0.01), a_class("batch", 2)), checked=False)
    inside = fill(case, 1)
    backlog(case, 900, 100)
    churn(case, inside, 300)
    with_share = a_fixed_pool(a_class(), a_class("default", 1, min_share=0.01), a_class("batch", 2, min_share=0.05))
    case.reconfigure(with_share)
    served = churn(case, inside, 200)
    assert share_of(served) == pytest.approx(0.05, rel=0.3)


def test_what_a_class_is_behind_stays_the_same_cost_when_its_share_changes() -> None:
    case = Case(pool(0.1))
    case.arrive("i")
    case.arrive("b0", cls="batch")
    for i in range(8):
        case.arrive(f"x{i}")
    case.arrive("b1", cls="batch")
    batch = case.scheduler.by_name["batch"]
    ahead = batch.share_tag - case.scheduler.share_v
    case.reconfigure(pool(0.2))
    assert batch.share_tag - case.scheduler.share_v == pytest.approx(ahead / 2)


def test_a_class_at_its_cap_is_not_waited_for() -> None:
    case = Case(pool(0.5, max_in_flight=1))
    inside = fill(case, 7)
    fill(case, 1, cls="batch")
    case.arrive("b", cls="batch")
    for i in range(4):
        case.arrive(f"i{i}")
    assert [released(case.end(name)) for name in inside[:4]] == [["i0"], ["i1"], ["i2"], ["i3"]]
