"""The benchmark of a pool measures what it says: so many inside, so many held, and each request once round."""

from __future__ import annotations

import pytest

from extproc.core.view import view
from extproc.sim import pool_bench

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("held", [0, 40])
def test_the_load_keeps_its_size(held: int) -> None:
    """Which of those that wait may use the windows' standing queues of 3 changes by the class."""
    load = pool_bench._Load(held)
    began = view(load.scheduler, load.now)
    for _ in range(3):
        before = load.scheduler.releases
        load.run(400)
        seen = view(load.scheduler, load.now)
        assert seen.queued + seen.in_flight == began.queued + began.in_flight
        assert abs(seen.queued - held) <= 6
        assert abs(seen.in_flight - 300) <= 6
        assert abs(load.scheduler.releases - before - 400) <= 6
        assert sum(endpoint.in_flight for endpoint in seen.endpoints) == seen.in_flight


def test_a_cost_is_above_nothing_and_the_least_is_no_more_than_the_median() -> None:
    cost = pool_bench.cost(0, 1)
    assert 0.0 < cost.least_us <= cost.median_us
