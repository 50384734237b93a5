"""Arrival times across two clocks. Envoy's is the one that `claimed` comes from."""

from __future__ import annotations

import pytest

from extproc.edge.arrival import ArrivalClock

EPOCH = 1_800_000_000.0  # this host's wall clock when its monotonic clock says 0


class Host:
    """`ahead`: seconds by which Envoy's clock is before this host's."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.clock = ArrivalClock()
        self.ahead = ahead

    def age(self, now: float, age: float) -> float:
        """The age that is found for a request that has that age."""
        return now - self.clock.arrival(EPOCH + now - age + self.ahead, EPOCH + now, now)


def test_without_a_claim_it_comes_now() -> None:
    assert ArrivalClock().arrival(None, EPOCH, 5.0) == 5.0


def test_a_fresh_request_comes_now_and_a_replay_keeps_its_place() -> None:
    host = Host()
    assert host.age(10.0, 0.0) == pytest.approx(0.0)
    assert host.age(10.1, 42.0) == pytest.approx(42.0)


def test_a_replay_that_comes_first_keeps_its_place() -> None:
    """After a restart the held requests come back before any fresh one."""
    host = Host()
    assert [host.age(0.1 * n, 20.0 + n) for n in range(5)] == pytest.approx([20.0, 21.0, 22.0, 23.0, 24.0])


def test_a_replay_that_opens_a_period_keeps_its_place() -> None:
    """What the period before has seen still counts."""
    host = Host()
    host.age(0.0, 0.0)
    assert host.age(31.0, 42.0) == pytest.approx(42.0)
    assert host.age(31.1, 0.0) == pytest.approx(0.0)


@pytest.mark.parametrize("ahead", [0.5, 60.0, 600.0, 86_400.0])
def test_a_clock_that_is_ahead_shows_at_once(ahead: float) -> None:
    host = Host(ahead)
    assert host.age(0.0, 0.0) == pytest.approx(0.0)
    assert host.age(1.0, 42.0) == pytest.approx(42.0, abs=1e-6)


def test_a_replay_first_on_a_clock_that_is_ahead_is_put_right_by_the_next() -> None:
    host = Host(300.0)
    assert host.age(0.0, 10.0) == pytest.approx(0.0)  # nothing tells it from a fresh one
    assert host.age(0.1, 0.0) == pytest.approx(0.0)
    assert host.age(0.2, 10.0) == pytest.approx(10.0)


@pytest.mark.parametrize("behind", [0.5, 60.0, 600.0])
def test_a_clock_that_is_behind_is_taken_off_after_a_period(behind: float) -> None:
    host = Host(-behind)
    assert host.age(0.0, 0.0) == pytest.approx(behind)  # might be a replay
    assert host.age(29.0, 0.0) == pytest.approx(behind)
    assert host.age(31.0, 0.0) == pytest.approx(0.0)
    assert host.age(31.5, 42.0) == pytest.approx(42.0)
    assert host.age(100.0, 0.0) == pytest.approx(0.0)


def test_a_clock_that_is_set_back_is_followed() -> None:
    host = Host()
    for now in (0.0, 20.0, 40.0):
        assert host.age(now, 0.0) == pytest.approx(0.0)
    host.ahead = -120.0  # Envoy's clock was put right
    assert host.age(41.0, 0.0) == pytest.approx(120.0)
    for now in (80.0, 120.0):
        host.age(now, 0.0)
    assert host.age(121.0, 0.0) == pytest.approx(0.0)
    host.ahead = 120.0
    assert host.age(122.0, 0.0) == pytest.approx(0.0)


def test_no_arrival_is_in_the_future_or_absurdly_old() -> None:
    host = Host()
    assert host.age(0.0, -5.0) == pytest.approx(0.0)
    assert host.age(0.1, 1e9) == 3600.0
