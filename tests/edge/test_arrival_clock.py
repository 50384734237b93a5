"""Arrival times across two clocks. Envoy's is the one that `claimed` comes from."""

from __future__ import annotations

import pytest

from extproc.edge.arrival import ArrivalClock, ArrivalClocks

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
def test_fresh_requests_of_a_clock_that_is_ahead_come_now(ahead: float) -> None:
    host = Host(ahead)
    assert [host.age(20.0 * n, 0.0) for n in range(6)] == [0.0] * 6


def test_a_replay_by_a_clock_that_is_ahead_is_younger_by_that_much() -> None:
    host = Host(30.0)
    for now in (0.0, 20.0, 40.0):
        host.age(now, 0.0)
    assert host.age(41.0, 42.0) == pytest.approx(12.0)
    assert host.age(42.0, 10.0) == 0.0


@pytest.mark.parametrize("behind", [0.5, 60.0, 600.0])
def test_a_clock_that_is_behind_is_taken_off_after_a_period(behind: float) -> None:
    host = Host(-behind)
    assert host.age(0.0, 0.0) == pytest.approx(behind)  # might be a replay
    assert host.age(29.0, 0.0) == pytest.approx(behind)
    assert host.age(31.0, 0.0) == pytest.approx(0.0)
    assert host.age(31.5, 42.0) == pytest.approx(42.0)
    assert host.age(100.0, 0.0) == pytest.approx(0.0)


def test_a_clock_that_steps_back_with_a_request_under_way_makes_no_other_old() -> None:
    """Both sides have this clock. The one under way was stamped 120 s after the time that it is now."""
    host = Host()
    for now in (0.0, 31.0, 62.0):
        assert host.age(now, 0.0) == 0.0
    assert host.age(63.0, 5.0 - 120.0) == 0.0
    assert host.age(63.1, 0.0) == 0.0
    assert host.age(63.2, 7.0) == pytest.approx(7.0)
    assert host.age(95.0, 5.0 - 120.0) == 0.0  # it would be the first of its period
    assert host.age(95.1, 0.0) == 0.0


def test_an_age_below_zero_does_not_undo_what_a_slow_clock_has_shown() -> None:
    host = Host(-90.0)
    for now in (0.0, 31.0):
        host.age(now, 0.0)
    assert host.age(32.0, -95.0) == 0.0
    assert host.age(32.1, 0.0) == pytest.approx(0.0)


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


# -- several Envoys -------------------------------------------------------------------------------

A, B = "ipv4:10.0.0.1:5555", "ipv4:10.0.0.2:5555"


class Hosts:
    """What a service finds behind several Envoys."""

    def __init__(self) -> None:
        self.clocks = ArrivalClocks()

    def age(self, peer: str, now: float, age: float, ahead: float = 0.0) -> float:
        return now - self.clocks.of(peer).arrival(EPOCH + now - age + ahead, EPOCH + now, now)


def test_of_two_envoys_one_may_be_ahead() -> None:
    hosts = Hosts()
    for now in (0.0, 10.0, 31.0, 45.0, 62.0, 93.0):
        assert hosts.age(A, now, 0.0) == 0.0
        assert hosts.age(B, now + 0.1, 0.0, ahead=90.0) == 0.0
        assert hosts.age(A, now + 0.2, 42.0) == pytest.approx(42.0)


def test_of_two_envoys_one_may_be_behind() -> None:
    hosts = Hosts()
    assert [hosts.age(A, 0.0, 0.0), hosts.age(B, 0.0, 0.0, ahead=-90.0)] == pytest.approx([0.0, 90.0])
    for now in (31.0, 62.0, 93.0):
        assert hosts.age(A, now, 0.0) == 0.0
        assert hosts.age(A, now, 42.0) == pytest.approx(42.0)
        assert hosts.age(B, now, 0.0, ahead=-90.0) == pytest.approx(0.0)
        assert hosts.age(B, now, 42.0, ahead=-90.0) == pytest.approx(42.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ipv4:10.0.0.1:5555", "ipv4:10.0.0.1:6666", True),
        ("ipv4:10.0.0.1:5555", "ipv4:10.0.0.2:5555", False),
        ("ipv6:%5B::1%5D:5555", "ipv6:%5B::1%5D:6666", True),
        ("ipv6:[::1]:5555", "ipv6:[::1]:6666", True),
        ("ipv6:%5B::1%5D:5555", "ipv6:%5B::2%5D:5555", False),
        ("unix:/run/fairlane.sock", "unix:/run/fairlane.sock", True),
        ("unix:/run/a:1", "unix:/run/a:2", False),
        ("unix:", "unix:", True),
        ("unknown", "", False),
    ],
)
def test_an_envoy_is_a_host_whatever_the_port(one: str, other: str, same: bool) -> None:
    clocks = ArrivalClocks()
    assert (clocks.of(one) is clocks.of(other)) == same


def test_the_thousand_that_were_used_last_are_known() -> None:
    clocks = ArrivalClocks()
    first, second = clocks.of("ipv4:10.0.0.0:1"), clocks.of("ipv4:10.0.0.1:1")
    for n in range(2, 1_000):
        clocks.of(f"ipv4:10.0.{n // 256}.{n % 256}:1")
    assert clocks.of("ipv4:10.0.0.0:2") is first
    clocks.of("ipv4:10.9.9.9:1")  # one too many
    assert clocks.of("ipv4:10.0.0.0:3") is first
    assert clocks.of("ipv4:10.0.0.1:3") is not second
