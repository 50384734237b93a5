"""What affinity gives in the simulator, at a small scale: `fairlane bench affinity` has the figures."""

from __future__ import annotations

from extproc.sim.affinity import WAYS, Case, measure

_WAY = {way.name: way for way in WAYS}


def test_sessions_find_more_in_the_cache_than_load_alone_and_endpoints_stay_balanced() -> None:
    case = Case("busy", 60, (256, 4096), 4.0)
    alone, drawn = (measure(case, _WAY[name], 1, 50.0) for name in ("load alone", "default, sessions"))
    assert drawn["tokens found in the cache"] > alone["tokens found in the cache"] + 0.03
    assert drawn["TTFT p50, s"] < alone["TTFT p50, s"]
    assert drawn["busiest engine / mean"] < 1.2


def test_the_same_seed_gives_the_same_run() -> None:
    case = Case("few", 6, (1024,), 1.0)
    way = _WAY["default, sessions"]
    assert measure(case, way, 3, 30.0) == measure(case, way, 3, 30.0)
