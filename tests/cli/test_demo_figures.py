"""The figures of the demo, on outcomes made by hand. All numbers were worked out on paper."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import demo
from extproc.sim.load import Outcome, Shot

EARLY, LATE = 1.0, 40.0  # inside the seconds that the index is over, and long after them


def an_outcome(tenant: str, wanted: int, tokens: dict[float, int], **more: Any) -> Outcome:
    """`tokens`: time of arrival -> how many came."""
    times = [at for at, count in sorted(tokens.items()) for _ in range(count)]
    sent = more.pop("sent_s", 0.0)
    ended = more.pop("ended_s", times[-1] if times else 0.0)
    return Outcome(Shot(tenant, sent, 8, wanted), sent_s=sent, token_s=times, ended_s=ended, **more)


def test_jains_index_is_over_served_to_max_min_share() -> None:
    """30 tokens are served early. team-b wants 5 and could have them all, team-a wants 10 and could too, which leaves
    15 of the 40 that noisy wants. Served over share: a 10/10, b 0/5, noisy 20/15.
    (1 + 0 + 4/3)^2 / (3 * (1 + 0 + 16/9)) = (49/9) / (75/9) = 49/75."""
    outcomes = [
        an_outcome("noisy", 10, {EARLY: 10}),
        an_outcome("noisy", 10, {EARLY: 10}),
        an_outcome("noisy", 10, {LATE: 10}),
        an_outcome("noisy", 10, {LATE: 10}),
        an_outcome("team-a", 10, {EARLY: 10}),
        an_outcome("team-b", 5, {LATE: 5}),
        an_outcome("team-b", 999, {LATE: 5}, sent_s=30.0),  # was not asked for in time: no demand
    ]
    assert demo.measure(outcomes).jain == pytest.approx(49 / 75)


def test_everybody_got_what_was_fair() -> None:
    """15 tokens: b gets the 3 it wants, and the two others 6 each, though noisy wants ten times as much."""
    outcomes = [
        an_outcome("noisy", 60, {EARLY: 6, LATE: 54}),
        an_outcome("team-a", 8, {EARLY: 6, LATE: 2}),
        an_outcome("team-b", 3, {EARLY: 3}),
    ]
    assert demo.measure(outcomes).jain == pytest.approx(1.0)


def test_one_has_everything() -> None:
    """12 tokens, and each of three wanted more than 4: only noisy got any, which is an index of 1/3."""
    outcomes = [
        an_outcome("noisy", 12, {EARLY: 12}),
        an_outcome("team-a", 9, {LATE: 9}),
        an_outcome("team-b", 9, {LATE: 9}),
    ]
    assert demo.measure(outcomes).jain == pytest.approx(1 / 3)


def test_a_tenant_that_sent_nothing_is_not_treated_unfairly() -> None:
    outcomes = [an_outcome("noisy", 5, {EARLY: 5}), an_outcome("team-a", 5, {EARLY: 5})]
    way = demo.measure(outcomes)
    assert way.jain == pytest.approx(1.0)
    assert way.tenants["team-b"] == {
        "requests": 0,
        "errors": 0,
        **{f"{name}_p{p}_ms": None for name in ("ttft", "queue") for p in (50, 95, 99)},
        "first_errors": [],
    }


def test_throughput_is_over_the_whole_run() -> None:
    outcomes = [
        an_outcome("noisy", 30, {EARLY: 10, LATE: 20}, ended_s=50.0),
        an_outcome("team-a", 10, {EARLY: 10}),
        an_outcome("team-b", 10, {}, ended_s=2.0, error="HTTP 503: full"),
    ]
    assert demo.measure(outcomes).throughput == pytest.approx(40 / 50)


def test_percentiles_are_by_nearest_rank_from_sending() -> None:
    """Times to the first token of 0.1 ... 2.0 s: of twenty values the 10th, the 19th and the 20th."""
    outcomes = [
        an_outcome("team-a", 1, {3.0 + n / 10: 1, 9.0: 1}, sent_s=3.0, queue_s=n / 100) for n in range(20, 0, -1)
    ]
    row = demo.measure(outcomes).tenants["team-a"]
    assert (row["requests"], row["errors"]) == (20, 0)
    assert [row[f"ttft_p{p}_ms"] for p in (50, 95, 99)] == [1000.0, 1900.0, 2000.0]
    assert [row[f"queue_p{p}_ms"] for p in (50, 95, 99)] == [100.0, 190.0, 200.0]


def test_errors_are_counted_and_the_first_three_kept() -> None:
    outcomes = [an_outcome("team-b", 1, {}, ended_s=1.0, error=f"HTTP {500 + n}") for n in range(5)]
    outcomes += [
        an_outcome("team-b", 2, {EARLY: 1}, error="the answer was cut off"),
        an_outcome("noisy", 1, {EARLY: 1}),
    ]
    way = demo.measure(outcomes)
    row = way.tenants["team-b"]
    assert (way.errors, row["errors"], row["requests"]) == (6, 6, 6)
    assert row["first_errors"] == ["HTTP 500", "HTTP 501", "HTTP 502"]
    assert row["ttft_p50_ms"] == 1000.0  # of the one that had a token
    assert way.tenants["noisy"]["errors"] == 0


def test_the_figures_as_json() -> None:
    data = demo.measure([an_outcome("noisy", 4, {EARLY: 4}, ended_s=2.0)]).as_json()
    assert set(data) == {"tenants", "jain", "throughput_tokens_per_s", "errors"}
    assert (data["throughput_tokens_per_s"], data["errors"], data["jain"]) == (2.0, 0, 1.0)
    assert list(data["tenants"]) == ["team-a", "team-b", "noisy"]


def test_the_load_is_the_same_each_time() -> None:
    shots = demo._shots()
    assert shots == demo._shots()
    noisy = [shot for shot in shots if shot.tenant == "noisy"]
    assert (len(noisy), {shot.at_s for shot in noisy}) == (200, {0.0})
    polite = {name: [s.at_s for s in shots if s.tenant == name] for name in ("team-a", "team-b")}
    assert polite["team-a"][:3] == [0.25, 1.25, 2.25]
    assert polite["team-b"][:3] == [0.75, 1.75, 2.75]


# -- the promise ----------------------------------------------------------------------------------


def a_way(a: float | None = 0.5, b: float | None = 0.5, throughput: float = 500.0, errors: int = 0) -> demo.Way:
    """`a`, `b`: p99 of the polite tenants' time to the first token, in seconds."""
    tenants = {
        name: {"ttft_p99_ms": None if value is None else value * 1000} for name, value in (("team-a", a), ("team-b", b))
    }
    outcomes = [an_outcome("noisy", 1, {EARLY: 1})] * 232
    return demo.Way(outcomes, tenants, jain=1.0, throughput=throughput, errors=errors)


DIRECT = a_way(10.0, 20.0)


@pytest.mark.parametrize(
    "fair",
    [a_way(2.0, 4.0, 475.0), a_way(0.1, 0.1, 600.0), a_way(0.0, 0.0)],
    ids=["just", "easily", "without waiting"],
)
def test_a_promise_that_is_kept(fair: demo.Way) -> None:
    assert demo.shortfalls(DIRECT, fair) == []


@pytest.mark.parametrize(
    ("direct", "fair", "said"),
    [
        (
            DIRECT,
            a_way(2.5, 4.0),
            "team-a waits 4.0 times less for its first token (p99 10.00 s -> 2.50 s), and should wait 5 times less",
        ),
        (
            DIRECT,
            a_way(2.0, 40.0),
            "team-b waits 0.5 times less for its first token (p99 20.00 s -> 40.00 s), and should wait 5 times less",
        ),
        (
            DIRECT,
            a_way(throughput=470.0),
            "output tokens per second 500 -> 470 are 94.0%, and should be 95%; is the machine busy otherwise?",
        ),
        (DIRECT, a_way(errors=3), "3 of 232 requests through Fairlane failed, and none should"),
        (a_way(10.0, 20.0, errors=1), a_way(), "1 of 232 requests straight to the engines failed, and none should"),
        (a_way(None, 20.0), a_way(), "team-a got no token straight from the engines"),
        (DIRECT, a_way(0.5, None), "team-b got no token through Fairlane"),
    ],
)
def test_a_promise_that_is_not_kept_is_told_with_its_figures(direct: demo.Way, fair: demo.Way, said: str) -> None:
    assert demo.shortfalls(direct, fair) == [said]


def test_everything_that_falls_short_is_told() -> None:
    assert len(demo.shortfalls(DIRECT, a_way(9.0, 19.0, 100.0, 2))) == 4


@pytest.mark.parametrize(
    ("after", "code", "said"), [(2.0, 0, ""), (2.5, 1, "Falls short: team-a waits 4.0 times less")]
)
def test_the_exit_code_says_whether_it_was_kept(
    monkeypatch: pytest.MonkeyPatch, after: float, code: int, said: str
) -> None:
    async def both() -> tuple[demo.Way, demo.Way]:
        return DIRECT, a_way(after)

    monkeypatch.setattr(demo, "_both", both)
    monkeypatch.setattr(demo, "_print", lambda *_: None)
    result = CliRunner().invoke(demo.demo, [])
    assert result.exit_code == code
    assert result.stderr.startswith(said)
    assert bool(result.stderr) == bool(code)


def test_the_help_tells_what_is_promised() -> None:
    said = " ".join(CliRunner().invoke(demo.demo, ["--help"]).stdout.split())
    assert "at least 5 times less for their first token (p99), at 95 % or more of the direct throughput" in said
    assert "busy with other work may fall short in throughput" in said
