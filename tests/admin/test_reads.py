"""The reading methods: what they show, what they refuse, and that they hold the loop in portions only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from reads_case import E1, IDLE, VIEWER, FakeControl, FakeRevisions, PoolCase, a_config, called_by, refused

from extproc import __version__
from extproc.admin import flows, portions, reads
from extproc.admin.control import EngineState, SourceState
from extproc.admin.portions import Portions, Work
from extproc.admin.reads import Reads
from extproc.config.overlay import Overlay, Setting
from extproc.core.events import Scraped
from extproc.pb.admin.v1 import admin_pb2 as pb


def a_reads(*cases: PoolCase, control: FakeControl | None = None, revisions: FakeRevisions | None = None) -> Reads:
    control = control or FakeControl(list(cases))
    return Reads(control, revisions or FakeRevisions(a_config()))  # type: ignore[arg-type]


# -- status and pools ---------------------------------------------------------------------------------


async def test_status() -> None:
    config = a_config("a", "b", slots=2)
    a, b = PoolCase(config, "a"), PoolCase(config, "b", observed=True)
    for i in range(5):
        a.arrive(f"a{i}")
    b.arrive("b0", observed=True)
    overlay = Overlay((Setting(("on_fault",), "reject", revision=7, expires_at=1_800_000_000.0),))
    revisions = FakeRevisions(config, overlay)
    revisions.file_error = "fairlane.yaml: pools: is missing"
    revisions.state = SimpleNamespace(path="/var/lib/fairlane.db", read_only=True, error="is torn")
    path = ("tenants", "acme.com", "weight")
    revisions.pending = [SimpleNamespace(revision=7, expires_at=1_800_000_000.0, paths=(path,), error="")]
    control = FakeControl([a, b], serving=False)
    with called_by(VIEWER):
        found = await a_reads(control=control, revisions=revisions).GetStatus(pb.GetStatusRequest(), None)
    assert (found.version, found.start_time.seconds, found.serving) == (__version__, 1_700_000_000, False)
    assert (found.revision, found.etag, found.override_count) == (7, "7-abababab", 1)
    assert (found.file.path, found.file.sha256, found.file.good) == ("/etc/fairlane.yaml", "ab" * 32, False)
    assert found.file.load_time.ToJsonString() == "2023-11-14T22:13:21.500Z"
    assert found.file.error == "fairlane.yaml: pools: is missing"
    assert (found.state.path, found.state.read_only, found.state.error) == ("/var/lib/fairlane.db", True, "is torn")
    (expiry,) = found.expiries
    assert (expiry.revision, expiry.expire_time.seconds, expiry.error) == (7, 1_800_000_000, "")
    assert list(expiry.paths) == ["tenants.`acme.com`.weight"]
    assert (found.recording.active, list(found.recording.files)) == (True, ["/var/lib/fairlane/a.jsonl.gz"])
    assert (found.pool_count, found.queued_count, found.in_flight_slots, found.observed_count) == (2, 3, 2, 1)
    assert (found.caller, found.caller_role, found.watcher_count) == ("ann", pb.VIEWER, 0)


async def test_pools_with_the_oldest_waits_of_their_classes() -> None:
    config = a_config("a", "b")
    case = PoolCase(config, "a")
    case.arrive("inside")
    case.now += 1.0
    case.arrive("old", tenant="x", arrival=90.0)  # it came first elsewhere
    case.arrive("new", tenant="y")
    case.arrive("low", tenant="y", cls="batch")
    case.now += 4.0
    control = FakeControl([PoolCase(config, "b"), case])
    control.engine_states = [EngineState("a", E1, "vllm", "body", None)]
    control.source_states = [SourceState("a", "1 address", None)]
    read = a_reads(control=control)
    found = await read.GetPool(pb.GetPoolRequest(pool="a"), None)
    assert [(each.name, each.oldest_wait.ToJsonString()) for each in found.classes] == [
        ("interactive", "15s"),
        ("batch", "4s"),
    ]
    assert (found.endpoints[0].dialect, found.endpoint_source) == ("vllm", "1 address")
    listed = await read.ListPools(pb.ListPoolsRequest(), None)
    assert [each.name for each in listed.pools] == ["a", "b"]
    assert listed.pools[0] == found


async def test_oldest_wait_in_order_of_deadlines() -> None:
    classes = {"interactive": {"rank": 0, "priority": 0, "order": "deadline"}}
    case = PoolCase(a_config(classes=classes), "m")
    case.arrive("inside")
    case.arrive("patient", timeout_s=50.0)
    case.now += 1.0
    case.arrive("hurried", timeout_s=5.0)
    case.now += 1.0
    read = a_reads(case)
    (cls,) = (await read.GetPool(pb.GetPoolRequest(pool="m"), None)).classes
    assert cls.oldest_wait.seconds == 2
    (flow,) = (await read.ListFlows(pb.ListFlowsRequest(), None)).flows
    assert flow.oldest_wait.seconds == 2


async def test_pools_that_are_not_there() -> None:
    config = a_config("llama", "qwen")
    read = a_reads(PoolCase(config, "llama"), PoolCase(config, "qwen"))
    with refused("NOT_FOUND", "there is no pool 'lama'; did you mean llama?"):
        await read.GetPool(pb.GetPoolRequest(pool="lama"), None)
    with refused("INVALID_ARGUMENT", "pool: is missing; there is llama, qwen"):
        await read.GetPool(pb.GetPoolRequest(), None)
    with refused("NOT_FOUND", "'zzz'; there is llama, qwen"):
        await read.ListEndpoints(pb.ListEndpointsRequest(pool="zzz"), None)
    with refused("NOT_FOUND", "'zzz'"):
        await read.ListFlows(pb.ListFlowsRequest(pool="zzz"), None)
    with refused("NOT_FOUND", "'zzz'"):
        await anext(aiter(read.WatchStats(pb.WatchStatsRequest(pool="zzz"), None)))


# -- flows --------------------------------------------------------------------------------------------


def three_flows() -> PoolCase:
    """Held: 2 of a, 3 of b (interactive), 1 of a (batch). Inside: 1 of c."""
    case = PoolCase(a_config(slots=1), "m")
    case.arrive("c1", tenant="c")
    for request, tenant, cls in (
        ("a1", "a", "interactive"),
        ("a2", "a", "interactive"),
        ("b1", "b", "interactive"),
        ("b2", "b", "interactive"),
        ("b3", "b", "interactive"),
        ("a3", "a", "batch"),
    ):
        case.now += 1.0
        case.arrive(request, tenant, cls)
    return case


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        ("", ["b/interactive", "a/interactive", "a/batch", "c/interactive"]),
        ("queued_count", ["c/interactive", "a/batch", "a/interactive", "b/interactive"]),
        ("in_flight_slots desc, queued_count", ["c/interactive", "a/batch", "a/interactive", "b/interactive"]),
        ("tenant desc,class desc", ["c/interactive", "b/interactive", "a/interactive", "a/batch"]),
        ("tenant, class asc", ["a/batch", "a/interactive", "b/interactive", "c/interactive"]),
        ("class,tenant desc", ["a/batch", "c/interactive", "b/interactive", "a/interactive"]),
        ("oldest_wait desc", ["a/interactive", "b/interactive", "a/batch", "c/interactive"]),
        (" weight  desc ", ["a/batch", "a/interactive", "b/interactive", "c/interactive"]),
    ],
)
async def test_flows_by_order(order_by: str, expected: list[str]) -> None:
    found = await a_reads(three_flows()).ListFlows(pb.ListFlowsRequest(order_by=order_by), None)
    assert [f"{each.tenant}/{getattr(each, 'class')}" for each in found.flows] == expected
    assert found.total_count == 4
    first = await a_reads(three_flows()).ListFlows(pb.ListFlowsRequest(order_by=order_by, top_k=2), None)
    assert list(first.flows) == list(found.flows)[:2]
    assert first.total_count == 4


async def test_a_flow() -> None:
    case = three_flows()
    case.now += 2.0
    (flow,) = (await a_reads(case).ListFlows(pb.ListFlowsRequest(top_k=1, pool="m"), None)).flows
    assert (flow.pool, flow.tenant, flow.queued_count, flow.in_flight_slots, flow.weight) == ("m", "b", 3, 0, 1.0)
    assert flow.oldest_wait.seconds == 5  # it came at 103, now it is 108
    leaf = case.scheduler.by_name["interactive"].queue.leaf("b")
    assert leaf is not None
    assert flow.tag == leaf.tag


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        ("queued", "'queued' is no field of a flow; did you mean queued_count?"),
        ("tenant down", "after tenant may stand desc, or nothing, not 'down'"),
        ("tenant,", "'' is no field of a flow"),
        (",".join(["tag"] * 8), "names more fields than there are"),
    ],
)
async def test_orders_that_are_none(order_by: str, message: str) -> None:
    with refused("INVALID_ARGUMENT", "order_by: ", message):
        await a_reads(three_flows()).ListFlows(pb.ListFlowsRequest(order_by=order_by), None)


async def test_top_k_bounds() -> None:
    with refused("INVALID_ARGUMENT", "top_k: must be 0 for 20, or from 1 to 10000, not -3"):
        await a_reads().ListFlows(pb.ListFlowsRequest(top_k=-3), None)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 1200, 10_000])
async def test_the_first_of_many_flows(most: int) -> None:
    case = PoolCase(a_config(), "m")
    for i in range(2300):
        for _ in range(1 + i * 7919 % 13 % 4):
            case.arrive(f"r{len(case.scheduler.requests)}", tenant=f"t{i:04d}")
    found, total = await flows.first([case.running], most, flows.order_of("queued_count desc"), Portions())
    leaves = case.scheduler.by_name["interactive"].queue.leaves()
    expected = sorted((-leaf.queued, leaf.tenant) for leaf in leaves)[:most]
    assert [(-flow.queued, flow.tenant) for flow in found] == expected
    assert total == 2300


# -- explanations -------------------------------------------------------------------------------------


async def test_explained_by_either_id() -> None:
    case = three_flows()
    control = FakeControl([case], tickets={"envoy-1": "b2", "shared": ""})
    read = a_reads(control=control)
    found = await read.ExplainRequest(pb.ExplainRequestRequest(id="b2"), None)
    assert (found.request.id, found.hold, found.name, found.ahead_in_flow_count) == ("b2", "flow", "b", 1)
    assert found.sentence == "1 earlier requests of tenant 'b' go first"
    assert found.next == "they are released"
    assert found.HasField("priority")
    assert await read.ExplainRequest(pb.ExplainRequestRequest(x_request_id="envoy-1"), None) == found
    with refused("FAILED_PRECONDITION", "several requests share the x-request-id 'shared'", "ListRequests"):
        await read.ExplainRequest(pb.ExplainRequestRequest(x_request_id="shared"), None)
    for request in (pb.ExplainRequestRequest(id="zz"), pb.ExplainRequestRequest(x_request_id="zz")):
        with refused("NOT_FOUND", "request 'zz' is not here: it never came, it is over, or another replica has it"):
            await read.ExplainRequest(request, None)
    for request in (pb.ExplainRequestRequest(), pb.ExplainRequestRequest(id="b2", x_request_id="envoy-1")):
        with refused("INVALID_ARGUMENT", "give one of id and x_request_id"):
            await read.ExplainRequest(request, None)


async def test_explained_where_it_is_only_observed() -> None:
    case = PoolCase(a_config(slots=1), "m", observed=True)
    case.arrive("o1", observed=True)
    case.arrive("o2", tenant="b", observed=True)
    read = a_reads(case)
    first = await read.ExplainRequest(pb.ExplainRequestRequest(id="o1"), None)
    second = await read.ExplainRequest(pb.ExplainRequestRequest(id="o2"), None)
    assert first.request.observed and second.request.observed
    assert (first.hold, first.sentence) == ("", f"would have been released: it is with {E1} since 0.0 s")
    assert second.hold == "window"
    assert second.sentence.startswith("would be held: ")


# -- the loop -----------------------------------------------------------------------------------------


async def test_one_portion_between_two_turns_of_the_loop() -> None:
    """Whoever works: five readers with ten portions each take fifty turns, and another's callback has one in each."""
    shared = Portions(hold_s=0.0)
    worked: list[str] = []
    turns = 0
    over = False

    def other() -> None:
        nonlocal turns
        turns += 1
        if not over:
            loop.call_soon(other)

    async def reader(name: str) -> None:
        work = Work(shared)
        for _ in range(10):
            await work.next()
            worked.append(name)
            at.append(turns)
            assert work.over

    loop, at = asyncio.get_running_loop(), []  # type: ignore[var-annotated]
    loop.call_soon(other)
    await asyncio.gather(*(reader(name) for name in "abcde"))
    over = True
    assert worked == list("abcde") * 10
    assert len(set(at)) == 50


async def test_a_reader_that_goes_away_while_it_waits() -> None:
    shared = Portions()
    first, second = asyncio.create_task(shared.turn()), asyncio.create_task(shared.turn())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    await asyncio.wait_for(shared.turn(), 5)  # and it goes on


async def test_a_page_takes_a_bounded_time_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all each page is one portion: most are empty, and together they find everything."""
    case = PoolCase(a_config(), "m")
    for i in range(500):
        case.arrive(f"r{i}", tenant="rare" if i % 100 == 7 else "a")
    monkeypatch.setattr(reads, "_PAGE_S", 0.0)
    read = Reads(FakeControl([case]), FakeRevisions(a_config()), Portions(hold_s=0.0))  # type: ignore[arg-type]
    found, pages, token = [], 0, ""
    while True:
        response = await read.ListRequests(pb.ListRequestsRequest(filter="tenant = rare", page_token=token), None)
        found += [each.id for each in response.requests]
        pages += 1
        token = response.next_page_token
        if not token:
            break
        assert pages < 1000
    assert found == ["r7", "r107", "r207", "r307", "r407"]
    assert pages > 500 // portions.LOOK_EVERY


async def test_a_bad_filter() -> None:
    with refused("INVALID_ARGUMENT", "filter: at 1: 'tennant' is no field of a request; did you mean tenant?"):
        await a_reads().ListRequests(pb.ListRequestsRequest(filter="tennant = a"), None)


# -- a pool that only observes --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "enforce"])
async def test_what_would_be_stands_beside_what_is(mode: str) -> None:
    config = a_config("a", slots=1)
    case = PoolCase(config, "a", observed=True)
    case.pool = case.pool.model_copy(update={"mode": mode})
    for number, tenant in enumerate("xyy"):
        case.arrive(f"r{number}", tenant, observed=True)
    case.apply(Scraped(E1, replace(IDLE, running=3, waiting=2, started=case.now)))
    case.apply(Scraped(E1, replace(IDLE, running=1, started=case.now)), observed=True)  # without those that would wait
    case.now += 4.0
    read = a_reads(case)
    pool = await read.GetPool(pb.GetPoolRequest(pool="a"), None)
    assert (pool.queued_count, pool.in_flight_slots, pool.observed_count) == (0, 0, 3)
    listed = await read.ListFlows(pb.ListFlowsRequest(pool="a"), None)
    if mode == "enforce":  # for a percentage: most of its requests do wait
        assert not pool.HasField("observed")
        assert listed.total_count == 0
        return
    shown = pool.observed
    assert (shown.name, shown.mode, shown.queued_count, shown.in_flight_slots) == ("a", pb.OBSERVE, 2, 1)
    assert (shown.classes[0].hold, shown.classes[0].oldest_wait.seconds) == ("window", 4)
    assert (shown.endpoints[0].in_flight_slots, pool.endpoints[0].in_flight_slots) == (1, 0)
    assert (shown.endpoints[0].running_count, shown.endpoints[0].waiting_count) == (3, 2)  # as its page says
    assert not shown.HasField("observed")
    assert [(flow.tenant, flow.queued_count, flow.observed) for flow in listed.flows] == [
        ("y", 2, True),
        ("x", 0, True),
    ]
    why = await read.ExplainRequest(pb.ExplainRequestRequest(id=listed.flows[0].next_request_id), None)
    assert why.sentence.startswith("would be held: it is next")
