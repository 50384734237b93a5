"""What the live page is told, of real schedulers."""

from __future__ import annotations

import itertools
import math

import orjson
import pytest
from live_case import Place, Scene, a_config, worked

from extproc import live
from extproc.admin.control import ClusterState, ReplicaState
from extproc.core.fairness import Fairness
from extproc.live import legible


async def test_at_rest() -> None:
    place = Place(Scene(a_config(), engines=2))
    snapshot = await place.live.snapshot()
    assert (snapshot["revision"], snapshot["serving"], snapshot["held"], snapshot["in_flight"]) == (7, True, 0, 0)
    (pool,) = snapshot["pools"]
    assert (pool["name"], pool["mode"], pool["traffic"], pool["models"]) == (
        "llama-70b",
        "enforce",
        "open",
        ["llama-70b"],
    )
    assert (pool["flow_count"], pool["flows"], pool["since_release_s"]) == (0, [], None)
    assert pool["stances"] == {"fresh": 2}
    assert pool["limit"] == 16.0  # two windows of 8 (`start`)
    for cls in pool["classes"]:
        assert (cls["held"], cls["hold"], cls["sentence"], cls["oldest_wait_s"], cls["jain"]) == (0, "", "", None, None)
    assert [cls["objective_s"] for cls in pool["classes"]] == [5.0, None, 300.0]


async def test_replicas() -> None:
    place = Place(Scene(a_config()))
    assert (await place.live.snapshot())["cluster"] is None
    mine = ReplicaState("r1", 0.0)
    place.control.cluster_state = ClusterState(
        "standby", "fairlane", "r1", 3, False, "r2", True, 2.5, "refused", replicas=(mine, ReplicaState("r2", 3.0))
    )
    assert (await place.live.snapshot())["cluster"] == {
        "mode": "standby",
        "name": "fairlane",
        "replica": "r1",
        "active": False,
        "active_replica": "r2",
        "replicas": 2,
        "expected": 3,
        "store_used": True,
        "store_lost_s": 2.5,
        "error": "refused",
    }


async def test_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EXPLAIN_S", 60.0)  # however slow the machine is
    scene = Scene(a_config(controller="fixed", fixed=2, overtake=0), engines=2)
    for number in range(10):
        scene.now += 1.0
        scene.arrive("b" if number % 2 else "a", "batch")
    scene.now += 5.0
    scene.read()
    scene.fairness = {"batch": Fairness(2, 0.9, 12.5)}
    scene.leaked = 3
    place = Place(scene)
    place.refresh()
    (pool,) = (await place.live.snapshot())["pools"]
    # 2 endpoints of 2 slots: r1 to r4 went, r5 (of a, at 5 s) and r6 (of b, at 6 s) are the oldest that wait
    assert (pool["held"], pool["in_flight"], pool["limit"], pool["leaked"]) == (6, 4, 4.0, 3)
    assert pool["since_release_s"] == 10.0  # since r5 came and could not go
    batch = pool["classes"][2]
    assert (batch["held"], batch["oldest_wait_s"], batch["hold"]) == (6, 10.0, "window")
    assert (batch["jain"], batch["spread"], batch["competing"]) == (0.9, 12.5, 2)
    assert pool["classes"][0]["jain"] is None
    assert [(each["tenant"], each["held"], each["in_flight"], each["oldest_wait_s"]) for each in pool["flows"]] == [
        ("a", 3, 2, 10.0),
        ("b", 3, 2, 9.0),
    ]
    assert [(each["id"], each["own"]) for each in pool["flows"]] == [("r5", True), ("r6", True)]
    # one of them is next
    words = {each["hold"]: each["sentence"] for each in pool["flows"]}
    assert words.keys() == {"window", "order"}
    assert words["window"].startswith("it is next; ")
    assert pool["flow_count"] == 2
    for endpoint in pool["endpoints"]:
        assert (endpoint["ours"], endpoint["foreign"], endpoint["limit"], endpoint["room"]) == (2, 0, 2.0, 0.0)
        assert (endpoint["stance"], endpoint["dialect"], endpoint["last_error"]) == ("fresh", "vllm", "")


async def test_what_is_amiss_comes_first() -> None:
    scene = Scene(a_config(), engines=4)
    scene.down[scene.engines[2]] = "refused: nothing listens"
    scene.step({}, 0)
    place = Place(scene)
    place.refresh()
    (pool,) = (await place.live.snapshot())["pools"]
    assert [each["address"] for each in pool["endpoints"]] == [scene.engines[at] for at in (2, 0, 1, 3)]
    assert (pool["endpoints"][0]["stance"], pool["endpoints"][0]["last_error"]) == ("down", "refused: nothing listens")
    assert pool["stances"] == {"down": 1, "fresh": 3}


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_ENDPOINTS", 10)
    monkeypatch.setattr(live, "MOST_POOLS", 2)
    config = a_config("a", "b", "c")
    scenes = [Scene(config, name, engines=30 if name == "c" else 1) for name in ("a", "b", "c")]
    for number in range(1500):
        scenes[2].arrive(f"tenant-{number}", "batch")
    scenes[1].arrive()
    for _ in range(20):
        scenes[0].arrive()
    snapshot = await Place(*scenes).live.snapshot()
    assert [pool["name"] for pool in snapshot["pools"]] == ["a", "c"]  # those with most waiting
    assert snapshot["pools_left_out"] == 1
    assert snapshot["held"] == sum(scene.scheduler.queued for scene in scenes)  # of all
    pool = snapshot["pools"][1]
    assert (len(pool["endpoints"]), pool["endpoint_count"], pool["stances"]) == (10, 30, {"fresh": 30})
    assert (len(pool["flows"]), pool["flow_count"]) == (20, scenes[2].scheduler.queued)
    assert len(orjson.dumps(snapshot)) < 40_000


async def test_without_time_to_explain_it_tells_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EXPLAIN_S", 0.0)
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    for tenant in ("a", "b", "c"):
        scene.arrive(tenant)
    (pool,) = (await Place(scene).live.snapshot())["pools"]
    interactive = pool["classes"][0]
    assert [(each["own"], each["sentence"]) for each in pool["flows"]] == [(False, interactive["sentence"])] * 2


@pytest.mark.parametrize(
    ("waiting", "explained"),
    [((0, 6, 0), (0, 4, 0)), ((1, 0, 6), (1, 0, 3)), ((6, 6, 6), (2, 2, 2)), ((0, 0, 0), (0, 0, 0))],
)
async def test_the_time_to_explain_is_for_pools_in_which_something_waits(
    monkeypatch: pytest.MonkeyPatch, waiting: tuple[int, ...], explained: tuple[int, ...]
) -> None:
    """4 s, of which each explanation takes one. Of three pools that wait each has 4/3 s, and begins a second one."""
    clock = itertools.count()
    monkeypatch.setattr(live, "EXPLAIN_S", 4.0)
    monkeypatch.setattr(live, "perf_counter", lambda: float(next(clock)))
    config = a_config("a", "b", "c", controller="fixed", fixed=1, overtake=0)
    scenes = [Scene(config, name, engines=1) for name in ("a", "b", "c")]
    for scene, count in zip(scenes, waiting, strict=True):
        for number in range(count + 1 if count else 0):  # the first one goes
            scene.arrive(f"tenant-{number}")
    pools = (await Place(*scenes).live.snapshot())["pools"]
    assert tuple(len(pool["flows"]) for pool in pools) == waiting
    assert tuple(sum(each["own"] for each in pool["flows"]) for pool in pools) == explained


async def test_of_a_pool_that_observes_it_tells_what_would_be() -> None:
    scene = Scene(a_config(mode="observe", controller="fixed", fixed=1, overtake=0), engines=1)
    for tenant in ("a", "b", "c"):
        scene.arrive(tenant)
    place = Place(scene)
    worked(scene, place, 10)
    snapshot = await place.live.snapshot()
    (pool,) = snapshot["pools"]
    assert snapshot["held"] == 0
    assert (pool["mode"], pool["would_be"], pool["held"]) == ("observe", True, scene.scheduler.queued)
    assert pool["flows"][0]["own"]
    # the windows are those that what would be inside is in
    assert (pool["in_flight"], pool["limit"]) == (1, 1.0)
    assert [each["ours"] for each in pool["endpoints"]] == [1]
    assert max(place.live.history()["pools"]["llama-70b"]["held"]["batch"]) > 0


async def test_an_explanation() -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    ids = [scene.arrive("a", "batch") for _ in range(3)]
    scene.now += 2.5
    place = Place(scene)
    told = await place.live.explain(ids[2])
    assert told is not None
    assert (told["tenant"], told["cls"], told["state"], told["hold"]) == ("a", "batch", "queued", "flow")
    assert (told["ahead_in_flow"], told["waited_s"], told["timeout_in_s"]) == (1, 2.5, 1797.5)
    assert told["sentence"] == "1 earlier requests of tenant 'a' go first"
    inside = await place.live.explain(ids[0])
    assert inside is not None
    assert (inside["state"], inside["hold"], inside["endpoint"]) == ("running", "", scene.engines[0])
    assert await place.live.explain("nobody") is None
    orjson.dumps([told, inside])


HOSTILE = [
    "<script>alert(1)</script>",
    "\"'&",
    "a\nb\tc\x00",
    "x" * 10_000,
    "👩‍💻🚀",
    "\u202eevil",
    "\x1b[31m",
    "half \ud800 of it",
]


async def test_whatever_a_tenant_is_called() -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    scene.arrive()
    ids = [scene.arrive(tenant, "batch") for tenant in HOSTILE]
    place = Place(scene)
    snapshot = await place.live.snapshot()
    flows = snapshot["pools"][0]["flows"]
    names = {each["tenant"] for each in flows}
    assert names == {
        "<script>alert(1)</script>",
        "\"'&",
        "a\\nb\\tc\\x00",
        "x" * 127 + "…",
        "👩‍💻🚀",
        "\\u202eevil",
        "\\x1b[31m",
        "half \\ud800 of it",
    }
    assert len({each["key"] for each in flows}) == len(HOSTILE)
    orjson.dumps(snapshot)
    for request in ids:
        told = await place.live.explain(request)
        orjson.dumps(told)
        assert told is not None
        assert len(told["sentence"]) <= live.LONGEST_TEXT


async def test_names_that_are_cut_to_the_same_are_two() -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    for tenant in ("a", "x" * 200 + "1", "x" * 200 + "2"):
        scene.arrive(tenant)
    flows = (await Place(scene).live.snapshot())["pools"][0]["flows"]
    assert [each["tenant"] for each in flows] == ["x" * 127 + "…"] * 2
    assert flows[0]["key"] != flows[1]["key"]


@pytest.mark.parametrize(
    ("text", "most", "told"),
    [("", 5, ""), ("abcde", 5, "abcde"), ("abcdef", 5, "abcd…"), ("ä\u2028b", 9, "ä\\u2028b"), ("a\\b", 9, "a\\b")],
)
def test_legible(text: str, most: int, told: str) -> None:
    assert legible(text, most) == told


def test_figures_that_are_none() -> None:
    assert (
        orjson.loads(orjson.dumps([live._figure(math.nan), live._figure(math.inf), live._figure(None)])) == [None] * 3
    )


async def test_a_quarter_of_an_hour_is_told() -> None:
    scene = Scene(a_config())
    place = Place(scene, began=1_000_000.0)
    worked(scene, place, 150)
    history = place.live.history()
    series = history["pools"]["llama-70b"]
    assert history["step_s"] == 5.0
    assert len(series["t"]) == len(series["in_flight"]) == len(series["held"]["batch"])
    assert series["t"][-1] == pytest.approx(1_000_150.0, abs=5.0)
    assert max(series["held"]["batch"]) > 0
