"""Pictures of `fairlane top`: what is on them at each size, and that nothing is wider than the screen."""

from __future__ import annotations

import pytest
from top_case import (
    HOSTILE,
    NOW,
    TEAM_A,
    TEAM_B,
    TEAM_C,
    a_class,
    a_pool,
    all_lines,
    an_endpoint,
    crowd,
    flow,
    lines,
    part,
    seconds,
    seen,
    usual,
)

from extproc.cli.top.choices import Choices
from extproc.cli.top.figures import FlowKey, Lost, Told
from extproc.cli.top.picture import shares
from extproc.pb.admin.v1 import admin_pb2 as pb

SIZES = ((80, 24), (60, 20), (120, 40), (200, 60), (40, 10))


# ---- sizes


@pytest.mark.parametrize(("columns", "height"), SIZES)
def test_a_screen_is_full_and_no_wider(columns: int, height: int) -> None:
    shown = lines(usual(), columns=columns, height=height)
    assert len(shown) == height
    assert "held 30" in shown[0]
    assert "in flight 6" in shown[0]
    assert shown[-1].startswith("q quit")
    assert [row.split()[0] for row in part(shown, "tenant")][:1] == ["team-a"]


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "height"), SIZES)
@pytest.mark.parametrize("unicode", [True, False])
def test_hostile_names_move_nothing(columns: int, height: int, unicode: bool) -> None:
    """10,000 tenants, of which 200 are here; 120 endpoints, 24 classes."""
    found = crowd(200)
    key = FlowKey("pool-0", HOSTILE[0] + "-0", HOSTILE[0])
    explanation = pb.Explanation(sentence=" ".join(HOSTILE), next=HOSTILE[2], hold="order", name=HOSTILE[1])
    for choices in (Choices(), Choices(chosen=key, explained=True), Choices(help=True), Choices(paused=True)):
        for told in (None, Told(key, explanation), Told(key, words=HOSTILE[3] * 20)):
            picture = seen(found.figures.stats.pools, found.figures.flows, total=2000, told=told)
            shown = lines(picture, choices, columns, height, unicode)
            assert len(shown) == height
    checked_columns = lines(found, Choices(), 120, 60, unicode)
    rows = part(checked_columns, "tenant")
    assert len(rows) > 10
    lost = seen(found.figures.stats.pools, lost=Lost(NOW, "12:00:00", HOSTILE[0] * 9, NOW + 3))
    lines(lost, Choices(), columns, height, unicode)


def test_too_small() -> None:
    assert lines(usual(), columns=39, height=24) == ["too small: 39x24, it needs 40x10"]
    assert lines(usual(), columns=12, height=1) == ["too small: …"]
    assert lines(usual(), columns=80, height=9) == ["too small: 80x9, it needs 40x10"]
    assert lines(usual(), columns=1, height=0) == []


def test_wider_has_more_columns() -> None:
    def head(columns: int) -> list[str]:
        return next(line for line in lines(usual(), columns=columns, height=40) if line.startswith("class")).split()

    assert head(40) == ["class", "held", "oldest/goal", "held", "by"]
    assert {"in", "rel/s", "jain"} <= set(head(80))
    assert head(120)[-1] == "why"


def test_lines_are_shared_out() -> None:
    """All have what they want; then the flows get two for one; then those that are least important go."""
    assert shares({"pools": 1, "endpoints": 2, "classes": 3, "flows": 50}, 21) == {
        "flows": 11, "classes": 3, "endpoints": 2, "pools": 1,
    }  # fmt: skip
    # 4 heads and a row each are 8 lines; 10 more in turns of 5: flows 2, classes 1, endpoints 1, pools 1
    assert shares(dict.fromkeys(("pools", "endpoints", "classes", "flows"), 99), 18) == {
        "flows": 5, "classes": 3, "endpoints": 3, "pools": 3,
    }  # fmt: skip
    assert shares(dict.fromkeys(("pools", "endpoints", "classes", "flows"), 99), 7) == {
        "flows": 2, "classes": 1, "endpoints": 1,
    }  # fmt: skip
    assert shares({"flows": 0, "pools": 0}, 5) == {"flows": 0, "pools": 0}
    assert shares({"flows": 9}, 4) == {"flows": 3}
    assert shares({}, 4) == {}


# ---- what is shown


def test_the_header() -> None:
    shown = lines(usual(), columns=120)
    assert shown[0].split("  ")[:5] == ["fairlane 1.2.3", "127.0.0.1:50052", "rev 7", "serving 3d01h", "held 30"]
    assert shown[0].endswith("22:13:20Z")
    assert shown[1] == "file /etc/fairlane.yaml  overrides 0  watchers 0  you are ann (viewer)"
    drains = usual()
    drains.figures.status.serving = False
    assert "DRAINS" in lines(drains)[0]
    assert lines(usual(), Choices(paused=True))[0].endswith(" PAUSED at 22:13:20Z ")
    assert lines(usual(), Choices(paused=True), columns=59)[0].endswith(" PAUSED ")


def test_a_replica() -> None:
    cluster = pb.ClusterStatus(
        active=True, store_used=True, expected_count=3, replicas=[pb.ReplicaStatus(replica="r1")]
    )
    shown = lines(usual(status=pb.Status(cluster=cluster)), columns=120)
    assert "serving 3d01h" in shown[0]
    assert "1 of 3 replicas" in shown[1]
    cluster.active = False
    assert "STANDS BY 3d01h" in lines(usual(status=pb.Status(cluster=cluster)), columns=120)[0]
    assert "replicas" not in lines(usual(), columns=120)[1]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            pb.Status(cluster=pb.ClusterStatus(store_used=True, store_lost=True, store_error="refused")),
            "the store of the cluster does not answer: refused",
        ),
        (pb.Status(file=pb.FileStatus(error="line 3: no\nsuch key")), "no file"),
        (pb.Status(state=pb.StateStatus(read_only=True, error="disk full")), "nothing can be changed: disk full"),
        (pb.Status(recording=pb.RecordingStatus(stopped_by_error=True)), "the recording was stopped by an error"),
        (pb.Status(expiries=[pb.PendingExpiry(revision=4, error="gone")]), "revision 4 could not be undone: gone"),
    ],
)
def test_faults_of_the_service(status: pb.Status, said: str) -> None:
    found = usual(status=status)
    if status.HasField("file"):
        found.figures.status.file.good = False
        said = "the file cannot be used, the one before it goes on: line 3: no; such key"
    assert said in lines(found, columns=120)[1]


def test_faults_of_a_pool_are_first_and_said() -> None:
    pools = [
        a_pool("a"),
        a_pool("b", leaked_slots=2, endpoint_source_error="no such host"),
        a_pool("c", since_release=seconds(45)),
    ]
    shown = lines(seen(pools), columns=200)
    assert shown[1] == "b: 2 leaked slots; endpoints cannot be read: no such host · c: nothing has gone for 45.0s"
    assert [row.split()[1] for row in part(shown, "#")] == ["b", "c", "a"]
    assert [row.split()[0] for row in part(shown, "#")] == ["2", "3", "1"]  # their keys stay


def test_endpoints() -> None:
    rows = part(lines(usual(), columns=80, unicode=False), "endpoint")
    assert rows[0].split()[:2] == ["10.0.0.2:8000", "down"]  # what is not well is first
    assert "6+2/16" in rows[1]
    assert "0/0" in rows[0]
    bar = rows[1][rows[1].index("[") : rows[1].index("]") + 1]
    length = len(bar) - 2
    assert bar.count("#") == round(8 / 16 * length) - round(2 / 16 * length)
    assert bar.count("o") == round(2 / 16 * length)


def test_endpoints_beyond_and_at_the_floor() -> None:
    found = [
        an_endpoint(in_flight_slots=20, foreign_count=0, limit=10.0, room=0.0, at_floor=True, kv_usage_ratio=0.834),
        an_endpoint("b:1", removed=True, last_error="connection refused"),
    ]
    rows = part(lines(seen([a_pool(endpoints=found)]), columns=200, unicode=False), "endpoint")
    assert "at its floor" in rows[0]
    assert "83%" in rows[0]
    assert rows[0].count("#") == rows[0].count("!")  # twice as many as may be
    assert "removed; connection refused" in rows[1]


def test_classes() -> None:
    rows = part(lines(usual(), columns=200), "class")
    assert [row.split()[0] for row in rows] == ["interactive", "agent", "batch"]
    assert "400ms/2.0s" in rows[0]
    assert "1.25" in rows[1]
    assert "0.99" in rows[1]  # Jain
    assert "1m35s/30.0s" in rows[2]
    assert "higher class" in rows[2]
    assert rows[2].rstrip().endswith("2 requests of class 'interactive' go first")
    gates = a_class(hold="gate", gates=[pb.Gate(name="max_tpot", closed_count=2), pb.Gate(name="max_kv_usage")])
    (row,) = part(lines(seen([a_pool(classes=[gates])]), columns=120), "class")
    assert "gate max_tpot:2" in row
    assert "max_kv_usage" not in row


def test_flows_are_sorted() -> None:
    def tenants(sort: str, down: bool) -> list[str]:
        return [row.split()[0] for row in part(lines(usual(), Choices(sort=sort, down=down)), "tenant")]

    assert tenants("queued", True) == ["team-a", "team-b", "team-c"]
    assert tenants("queued", False) == ["team-c", "team-b", "team-a"]
    assert tenants("tag", False) == ["team-b", "team-a", "team-c"]
    assert tenants("weight", True) == ["team-b", "team-a", "team-c"]  # what is equal goes by name
    assert tenants("oldest", False) == ["team-c", "team-b", "team-a"]
    assert tenants("class", True) == ["team-c", "team-a", "team-b"]
    assert tenants("in-flight", True)[0] == "team-a"
    head = next(line for line in lines(usual(), Choices(sort="tag", down=False)) if line.startswith("  tenant"))
    assert head.split()[-1] == "tag▲"


def test_of_many_flows_those_around_the_chosen_one_are_shown() -> None:
    flows = [flow(f"t{i:03}", queued=1000 - i) for i in range(200)]
    found = seen([a_pool()], flows, total=10_000)
    shown = lines(found, Choices(chosen=FlowKey("llama", "t150", "batch")))
    rows = part(shown, "tenant")
    assert rows[-1].startswith("▶ t150")
    first = 150 - len(rows) + 1
    assert rows[0].split()[0] == f"t{first:03}"
    assert f"tenant {first + 1}-151/10000" in next(line for line in shown if line.startswith("  tenant"))


def test_one_pool() -> None:
    pools = [a_pool(name, classes=[a_class(f"of-{name}")]) for name in ("a", "b")]
    flows = [flow("x", pool="a"), flow("y", pool="b")]
    shown = lines(seen(pools, flows), Choices(pool="b"))
    assert [row.split()[0] for row in part(shown, "tenant")] == ["y"]
    assert [row.split()[0] for row in part(shown, "class")] == ["of-b"]
    assert [row.split()[:2] for row in part(shown, "#")] == [["1", "a"], ["2*", "b"]]


def test_where_not_all_rows_fit_it_is_said_how_many_do() -> None:
    shown = lines(crowd(200), columns=80, height=24)
    assert shown[6].startswith("endpoint 4/120 ")
    assert shown[11].startswith("class 4/24 ")
    assert shown[16].startswith("  tenant 1-6/2000 ")


def test_where_not_all_classes_fit_those_that_hold_are_first() -> None:
    idle = [a_class("interactive", rank=0), a_class("agent", rank=1), a_class("batch", rank=2)]
    works = [a_class("interactive", rank=0), a_class("agent", rank=1, in_flight_slots=2), a_class("batch", rank=2)]
    holds = [
        a_class("interactive", rank=0, queued_count=2),
        a_class("agent", rank=1),
        a_class("batch", rank=2, queued_count=9, oldest_wait_s=95, wait_objective_s=30),
    ]
    pools = [
        a_pool(name, queued_count=11 if name == "c" else 0, classes=classes, endpoints=[an_endpoint(pool=name)] * 4)
        for name, classes in (("a", idle), ("b", works), ("c", holds))
    ]
    flows = [flow(f"t{number}", pool="c") for number in range(20)]
    shown = lines(seen(pools, flows), columns=80, height=24)
    rows = part(shown, "class")
    assert len(rows) < 9
    assert [row.split()[:2] for row in rows][:4] == [
        ["batch", "c"], ["interactive", "c"], ["agent", "b"], ["interactive", "a"]
    ]  # fmt: skip
    assert part(lines(seen(pools, flows), columns=80, height=14), "#")[0].split()[:2] == ["3", "c"]
    # where all fit they stand where they always do
    rows = part(lines(seen(pools, flows), columns=80, height=60), "class")
    assert [row.split()[1] for row in rows] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_a_pool_that_observes() -> None:
    shown = lines(seen([a_pool("a"), a_pool("b", mode=pb.OBSERVE, queued_count=5)]), columns=120)
    assert "held 30  in flight 6  would be held 5" in shown[0]
    assert shown[1].startswith("observing: b (what would be)  file ")


def test_the_help_says_what_figures_mean() -> None:
    shown = lines(usual(), Choices(help=True))
    assert " rel/s: released in a second, an average of 30 s" in [line.rstrip() for line in shown]


def test_sections_are_hidden() -> None:
    shown = lines(usual(), Choices(hidden=frozenset(("endpoints", "classes"))))
    assert not any(line.startswith(("endpoint", "class")) for line in shown)
    assert part(shown, "tenant")


# ---- why


EXPLAINED = pb.Explanation(
    request=pb.Request(id="17", waited=seconds(95), timeout_in=seconds(205)),
    hold="order", sentence="4 flows of class 'batch' go before it", next="they get their turn, or it gets older",
    ahead_in_flow_count=3, flow_position=4, flow_count=9, estimated_wait=seconds(12), priority=-5,
)  # fmt: skip


def test_an_explanation() -> None:
    shown = lines(usual(told=Told(TEAM_A, EXPLAINED)), Choices(chosen=TEAM_A, explained=True), columns=140)
    assert shown[-5].startswith("── team-a / batch request 17 ──")
    assert shown[-4] == "4 flows of class 'batch' go before it"
    assert shown[-3] == "they get their turn, or it gets older"
    assert shown[-2] == (
        "waited 1m35s · estimated wait 12.0s · ahead in flow 3 · flows before 4 of 9 · priority -5 · timeout in 3m25s"
        " · held by order"
    )


def test_a_long_explanation_leaves_half_the_screen() -> None:
    long = pb.Explanation(request=pb.Request(id="17"), sentence="because " * 400)
    shown = lines(usual(told=Told(TEAM_A, long)), Choices(chosen=TEAM_A, explained=True))
    (head,) = (place for place, line in enumerate(shown) if line.startswith("── team-a"))
    assert head >= 13
    assert shown[-3].endswith("…")
    assert shown[-2].startswith("waited")


def test_an_explanation_that_is_not_there() -> None:
    chosen = Choices(chosen=TEAM_C, explained=True)
    assert lines(usual(), chosen)[-2] == "asking why it waits ..."
    assert lines(usual(told=Told(TEAM_B, EXPLAINED)), chosen)[-2] == "asking why it waits ..."  # that of another
    assert lines(usual(told=Told(TEAM_C, words="Nothing of it waits.")), chosen)[-2] == "Nothing of it waits."


# ---- a service that does not answer


def test_a_service_that_has_gone() -> None:
    lost = Lost(NOW - 12, "14:20:03", "cannot reach 127.0.0.1:50052", NOW + 2.6)
    shown = lines(usual(lost=lost), columns=120)
    assert shown[1] == (
        "SERVER GONE since 14:20:03 (12s), next try in 3s; the figures are old. cannot reach 127.0.0.1:50052"
    )
    assert part(shown, "tenant")  # the last figures stay
    assert lines(usual(lost=lost))[1].endswith("…")
    now = Lost(NOW, "14:20:03", "x")
    assert "trying now" in lines(usual(lost=now))[1]


def test_figures_that_do_not_come() -> None:
    assert "NO NEW" not in lines(usual(now=NOW + 3.0))[1]
    assert lines(usual(now=NOW + 75.0))[1] == "NO NEW FIGURES for 1m15s: these are old"
    assert "NO NEW" not in lines(usual(now=NOW + 75.0, interval_s=30.0))[1]


def test_paused_figures_are_no_fault_while_others_come() -> None:
    paused = Choices(paused=True)
    shown = lines(usual(now=NOW + 75.0, newest_at=NOW + 74.0), paused)
    assert not any("NO NEW" in line for line in shown)
    assert shown[0].endswith(" PAUSED at 22:13:20Z ")
    assert lines(usual(now=NOW + 75.0, newest_at=NOW + 60.0), paused)[1] == "NO NEW FIGURES for 15s: these are old"


# ---- all of it at once


def test_all_of_it() -> None:
    shown = all_lines(crowd(200), columns=100)
    assert len(part(shown, "tenant")) == 200
    assert len([line for line in shown if "10.0." in line]) == 120


def test_nothing_at_all() -> None:
    shown = lines(seen())
    assert "held 0" in shown[0]
    assert part(shown, "tenant") == []
