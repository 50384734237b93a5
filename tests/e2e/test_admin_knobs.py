"""Every setting that can be changed live, changed while 200 requests wait: they obey it at once, and none is lost.

A row says what holds before anything waits, what is changed, and what becomes of those that wait (or of a newcomer,
for settings of the door). By default one engine has room for four, hangs, and the rest waits. What a row opens
afterwards shows the order: the room grows by so many, and the engine's journal tells who came.

Settings without a row: `ELSEWHERE`. A setting that is new must stand in one of the two."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from admin_case import FIXED, HELD, POOL, SLOTS, WHY, Admin, Scene, connected, held, tenants
from click.testing import CliRunner
from google.protobuf import duration_pb2
from rig import FAST_ENGINE, Answer, Json, Rig, chat, running, until

from extproc.cli.main import main
from extproc.config.scheduling import Class, ClassGates, Pick, Pool, Preemption, Tenant, Window
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DEFAULT = 1_000_000  # its priority in the shipped file
ENGINE_SLOTS = 128
LONG = 30_000  # tokens: two minutes at least


class World:
    """What a row works on."""

    def __init__(self, rig: Rig, admin: Admin, scene: Scene) -> None:
        self.rig = rig
        self.admin = admin
        self.scene = scene

    async def opened(self, count: int) -> list[Json]:
        """Room for so many more; those that came into it."""
        before = len(await self.scene.sent())
        await self.admin.set(window(fixed=SLOTS + count))
        return (await self.scene.until_sent(before + count))[before:]

    def newcomer(self, tenant: str = "new") -> asyncio.Task[Answer]:
        before = len(self.scene.tasks)
        self.scene.ask(1, tenant)
        return list(self.scene.tasks.values())[before]

    async def holds(self) -> pb.Explanation:
        """Why the first one of the only flow that waits does. The list is in the order in which they reached Fairlane,
        which need not be that of their flow: that goes by when they reached Envoy."""
        listed = await self.admin.stub.ListRequests(pb.ListRequestsRequest(filter="state = queued", page_size=1000))
        for each in listed.requests:
            found: pb.Explanation = await self.admin.stub.ExplainRequest(pb.ExplainRequestRequest(id=each.id))
            if not found.ahead_in_flow_count:
                return found
        raise AssertionError(f"none of {len(listed.requests)} is the first of its flow")


Do = Callable[[World], Awaitable[Any]]
Group = tuple[int, str] | tuple[int, str, str]


@dataclass(frozen=True)
class Row:
    knob: str  # path of the setting, without the name of its class, tenant or pool
    change: Json | Do
    effect: Do
    before: Json = field(default_factory=dict)
    groups: tuple[Group, ...] = ((HELD, "a"),)
    inside: int = SLOTS
    inside_cls: str | None = None
    engines: tuple[int, ...] = (1,)  # numbers
    content: str = "hello"
    busy: bool = False  # in the engine others run, and wait, that have not come through here
    note: str = ""  # where a setting has several rows

    @property
    def name(self) -> str:
        return f"{self.knob} {self.note}".strip()


# -- settings -----------------------------------------------------------------------------------------


def cls(name: str, **settings: Any) -> Json:
    return {"classes": {name: settings}}


def tenant(name: str, **settings: Any) -> Json:
    return {"tenants": {name: settings}}


def pool(**settings: Any) -> Json:
    return {"pools": {POOL: settings}}


def window(**settings: Any) -> Json:
    return pool(window=settings)


def both(*parts: Json) -> Json:
    merged: Json = {}
    for part in parts:
        _merge(merged, part)
    return merged


def _merge(into: Json, part: Json) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = deepcopy(value)


# -- effects ------------------------------------------------------------------------------------------


def sent(count: int) -> Do:
    """So many have come to the engines, and no more."""
    return lambda world: world.scene.until_sent(count)


def sent_at_least(count: int) -> Do:
    async def effect(world: World) -> None:
        await until(world.scene.sent, lambda entries: len(entries) >= count, f"{count} sent or more")

    return effect


def refused(count: int, code: str) -> Do:
    """So many of those that wait, and no more."""

    async def effect(world: World) -> None:
        await world.scene.until_answered(count)
        assert Counter(answer.error["code"] for answer in world.scene.answers) == {code: count}

    return effect


def next_are(wanted: dict[str, int]) -> Do:
    """Whose are those that go next."""

    async def effect(world: World) -> None:
        assert tenants(await world.opened(sum(wanted.values()))) == wanted

    return effect


def next_has_at_least(name: str, count: int, of: int) -> Do:
    async def effect(world: World) -> None:
        assert tenants(await world.opened(of))[name] >= count

    return effect


def told(*priorities: int) -> Do:
    """What the engine is told with those that go next."""

    async def effect(world: World) -> None:
        entries = await world.opened(len(priorities))
        assert sorted(int(each["headers"]["x-vllm-priority"]) for each in entries) == sorted(priorities)

    return effect


def newcomer_gets(status: int, code: str, who: str = "new") -> Do:
    """What comes now is refused; those that wait stay."""

    async def effect(world: World) -> None:
        before = (await world.rig.pool())["queued"]
        answer = await asyncio.wait_for(world.newcomer(who), 30)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert (await world.rig.pool())["queued"] == before

    return effect


async def newcomer_sheds_one(world: World) -> None:
    """What comes now waits in place of one of the tenant that has the most."""
    task = world.newcomer()
    await world.scene.until_answered(1)
    assert [answer.error["code"] for answer in world.scene.answers] == ["shed"]
    assert not task.done()


async def unknown_model(world: World) -> None:
    """What comes now is refused here; before, the engine would have done it."""
    answer = await world.rig.post({**chat(), "model": "another"})
    assert (answer.status, answer.headers["x-fairlane-reason"]) == (404, "model_not_found")


def newcomer_is_in(name: str, who: str) -> Do:
    """Class of what comes now."""

    async def effect(world: World) -> None:
        world.newcomer(who)

        def there(found: Json) -> bool:
            return any((flow["tenant"], flow["cls"]) == (who, name) for flow in found["flows"])

        await world.rig.until(there, f"{who} in {name}")

    return effect


def held_by(word: str) -> Do:
    """Nothing goes, whatever the room."""

    async def effect(world: World) -> None:
        await world.admin.set(window(fixed=4 * SLOTS))
        assert (await world.holds()).hold == word
        assert len(await world.scene.sent()) == SLOTS

    return effect


async def some_go(world: World) -> None:
    """Those that the percentage leaves out; the others wait on."""
    await until(world.scene.sent, lambda entries: len(entries) > SLOTS + 20, "some are let go")
    found = await world.rig.pool()
    assert 20 < found["queued"] < HELD


async def more_by_engine(world: World) -> list[int]:
    """Two engines hold eight by the class's cap. It lets eight more go; how many of them went to each."""
    before = await _by_engine(world.rig)
    await world.admin.set(cls("default", max_in_flight=16))
    await world.scene.until_sent(16)
    after = await _by_engine(world.rig)
    return [after[at] - count for at, count in before.items()]


async def all_to_one(world: World) -> None:
    assert sorted(await more_by_engine(world)) == [0, 8]


async def evened_out(world: World) -> None:
    """All eight were inside one engine."""
    await more_by_engine(world)
    assert set((await _by_engine(world.rig)).values()) == {8}


async def _by_engine(rig: Rig) -> dict[str, int]:
    """Requests inside."""
    return {each["endpoint"]: each["in_flight"] for each in (await rig.pool())["endpoints"]}


async def stalls(world: World) -> None:
    """An engine that makes no progress gets nothing more."""

    def stalled(found: Json) -> bool:
        return any(each["stance"] == "stalled" for each in found["endpoints"])

    await world.rig.until(stalled, "stalled")
    await held_by("no_endpoint")(world)


async def no_priority(world: World) -> None:
    (entry,) = await world.opened(1)
    assert "x-vllm-priority" not in entry["headers"]


def with_endpoints(*numbers: int) -> Do:
    async def change(world: World) -> None:
        await world.admin.set(pool(endpoints=[str(world.rig.engines[number - 1]) for number in numbers]))

    return change


async def boost(world: World) -> None:
    request = pb.BoostTenantRequest(tenant="b", factor=5, reason=WHY, ttl=duration_pb2.Duration(seconds=3600))
    await world.admin.stub.BoostTenant(request)


def by_ctl(*arguments: str) -> Do:
    """The same by the command line."""

    async def change(world: World) -> None:
        at = str(world.rig.stack.addresses.admin)
        done = await asyncio.to_thread(
            CliRunner().invoke, main, ["ctl", "--address", at, *arguments, "--reason", WHY], env={"NO_COLOR": "1"}
        )
        assert done.exit_code == 0, done.output

    return change


def cancel(filter_: str) -> Do:
    return lambda world: world.admin.cancel(filter_)


HALVES: tuple[Group, ...] = ((HELD // 2, "a"), (HELD // 2, "b"))
CLASSES: tuple[Group, ...] = ((HELD // 2, "a", "default"), (HELD // 2, "b", "batch"))
NO_SHARE = cls("batch", min_share=0)
ROOM = window(fixed=ENGINE_SLOTS)
TO_PREEMPT = both(NO_SHARE, cls("batch", preemptible=True), cls("interactive", preempt_after="1ms"))
TWO_ENGINES = both(ROOM, cls("default", max_in_flight=8), pool(session_header="x-tenant"))
URGENT: tuple[Group, ...] = ((HELD, "a", "interactive"),)

ROWS = (
    # classes
    Row("classes.queue_timeout", cls("default", queue_timeout="1ms"), refused(HELD, "queue_timeout")),
    Row("classes.queue_timeout", by_ctl("class", "default", "--queue-timeout", "1ms"), refused(HELD, "queue_timeout"),
        note="by ctl"),
    Row("classes.max_in_flight", cls("default", max_in_flight=10), sent(10),
        both(ROOM, cls("default", max_in_flight=SLOTS))),
    Row("classes.max_queued", cls("default", max_queued=100), newcomer_gets(429, "queue_full")),
    Row("classes.max_queued_bytes", cls("default", max_queued_bytes="1KiB"), newcomer_gets(429, "queue_full")),
    Row("classes.max_queued_tokens", cls("default", max_queued_tokens=100), newcomer_gets(429, "queue_full")),
    Row("classes.overflow", cls("default", overflow="reject_newest"), newcomer_gets(429, "queue_full"),
        cls("default", max_queued=HELD)),
    Row("classes.overflow", cls("default", overflow="shed_heaviest"), newcomer_sheds_one,
        cls("default", max_queued=HELD, overflow="reject_newest"), note="back"),
    Row("classes.rank", cls("batch", rank=0), next_are({"b": 8}), both(NO_SHARE, cls("interactive", rank=9)), CLASSES),
    Row("classes.priority", cls("default", priority=500), told(500)),
    Row("classes.min_share", cls("batch", min_share=0.9), next_has_at_least("b", 16, 20), NO_SHARE, CLASSES),
    Row("classes.promote_after", cls("batch", promote_after="1ms"), next_has_at_least("b", 1, 16), NO_SHARE, CLASSES),
    Row("classes.preemptible", cls("batch", preemptible=True), refused(SLOTS, "preempted"),
        both(TO_PREEMPT, cls("batch", preemptible=False), pool(preemption={"per_second": 1000})), URGENT,
        inside_cls="batch"),
    Row("classes.preempt_after", cls("interactive", preempt_after="1ms"), refused(SLOTS, "preempted"),
        both(TO_PREEMPT, cls("interactive", preempt_after="1h"), pool(preemption={"per_second": 1000})), URGENT,
        inside_cls="batch"),
    # tenants
    Row("tenants.weight", tenant("b", weight=5), next_are({"a": 2, "b": 10}), groups=HALVES),
    Row("tenants.weight", by_ctl("tenant", "b", "--weight", "5"), next_are({"a": 2, "b": 10}), groups=HALVES,
        note="by ctl"),
    Row("tenants.boost", boost, next_are({"a": 2, "b": 10}), groups=HALVES),
    Row("tenants.max_in_flight", tenant("first", max_in_flight=10), sent(10),
        both(ROOM, tenant("first", max_in_flight=SLOTS)), ((HELD, "first"),)),
    Row("tenants.rate", tenant("a", rate=1e9), sent(16), both(window(fixed=16), tenant("a", rate=0.5)),
        inside=0),
    Row("tenants.max_queued", tenant("a", max_queued=100), newcomer_gets(429, "tenant_limit", "a")),
    Row("tenants.max_queued_bytes", tenant("a", max_queued_bytes="1KiB"), newcomer_gets(429, "tenant_limit", "a")),
    Row("tenants.max_queued_tokens", tenant("a", max_queued_tokens=100), newcomer_gets(429, "tenant_limit", "a")),
    Row("tenants.parent", tenant("b", parent="a"), next_are({"a": 3, "b": 3, "c": 6}),
        groups=((60, "a"), (60, "b"), (80, "c"))),
    Row("tenants.default_class", tenant("new", default_class="batch"), newcomer_is_in("batch", "new")),
    Row("tenants.classes", tenant("new", classes=["batch"], default_class="batch"), newcomer_is_in("batch", "new")),
    # windows
    Row("pools.window.fixed", window(fixed=12), sent(12)),
    Row("pools.window.fixed", by_ctl("set", f"pools.{POOL}.window.fixed=12"), sent(12), note="by ctl"),
    Row("pools.window.controller", window(controller="threshold", threshold=1000), sent(SLOTS + HELD)),
    Row("pools.window.stalled_after", window(stalled_after="1s"), stalls),
    Row("pools.window.max_num_seqs", window(max_num_seqs=12), sent_at_least(10),
        window(controller="adaptive", start=16, max_num_seqs=SLOTS)),
    Row("pools.window.overtake", window(overtake=1), sent(SLOTS + 1)),
    # picking an engine
    Row("pools.pick.session", pool(pick={"load": 0, "session": 1000}), all_to_one,
        both(TWO_ENGINES, pool(pick={"load": 1, "session": 0})), inside=8, engines=(1, 2)),
    Row("pools.pick.load", pool(pick={"load": 1000, "session": 0}), evened_out,
        both(TWO_ENGINES, pool(pick={"load": 0, "session": 1000})), inside=8, engines=(1, 2)),
    # pools
    Row("pools.traffic", lambda world: world.admin.pool(traffic=pb.OPEN), sent(SLOTS), pool(traffic="paused"),
        inside=0, note="resumed"),
    Row("pools.traffic", by_ctl("pause", POOL), held_by("paused"), note="paused by ctl"),
    Row("pools.traffic", lambda world: world.admin.pool(traffic=pb.DRAINING), newcomer_gets(503, "draining"),
        note="draining"),
    Row("pools.mode", lambda world: world.admin.pool(mode=pb.OBSERVE), sent(SLOTS + HELD), note="observe"),
    Row("pools.mode", by_ctl("mode", POOL, "off"), sent(SLOTS + HELD), note="off by ctl"),
    Row("pools.percentage", lambda world: world.admin.pool(percentage=0), sent(SLOTS + HELD)),
    Row("pools.percentage", lambda world: world.admin.pool(percentage=50, percentage_of=pb.REQUESTS), some_go,
        note="of requests"),
    Row("pools.max_queued", pool(max_queued=100), newcomer_gets(429, "queue_full")),
    Row("pools.max_queued_bytes", pool(max_queued_bytes="1KiB"), newcomer_gets(429, "queue_full")),
    Row("pools.endpoints", with_endpoints(1, 2), sent(2 * SLOTS), note="one more"),
    Row("pools.endpoints", pool(endpoints=["127.0.0.1:1"]), held_by("no_endpoint"), note="none that answers"),
    Row("pools.no_endpoint_timeout", pool(no_endpoint_timeout="1ms"), refused(HELD, "no_capacity"),
        pool(endpoints=["127.0.0.1:1"]), inside=0),
    Row("pools.priority_steps", pool(priority_steps=1), told(DEFAULT, DEFAULT, DEFAULT)),
    Row("pools.priority_via", pool(priority_via="off"), no_priority),
    Row("pools.priority_order", pool(priority_order="high_first"), told(-DEFAULT)),
    Row("pools.promote_every", pool(promote_every=2), next_has_at_least("b", 4, 16),
        both(NO_SHARE, cls("batch", promote_after="1ms"), pool(promote_every=1000)), CLASSES),
    Row("pools.models", pool(models=["sim-7b"]), unknown_model, {"requests": {"unknown_model": "reject"}}),
    # requests
    Row("cancel", cancel("tenant = a"), refused(HELD, "cancelled")),
    Row("cancel", by_ctl("cancel", "--filter", "tenant = a", "--yes"), refused(HELD, "cancelled"), note="by ctl"),
)  # fmt: skip

# With engines that run: what their pages show holds requests.
MOVING = (
    Row("pools.window.max_tpot", window(max_tpot="10s"), sent_at_least(4),
        window(controller="adaptive", start=1, max_tpot="1ms", max_num_seqs=ENGINE_SLOTS)),
    Row("pools.window.max_kv_usage", window(max_kv_usage=0.95), sent_at_least(12),
        window(controller="adaptive", start=16, max_kv_usage=0.001, max_tpot="10s"), content="word " * 400),
    Row("classes.when", cls("default", when="always"), sent(16), both(window(fixed=16), cls("default", when="idle")),
        busy=True),
    Row("classes.gates.max_waiting", cls("default", gates={"max_waiting": 1000}), sent(16),
        both(window(fixed=16), cls("default", gates={"max_waiting": 1})), busy=True),
    Row("classes.gates.max_tpot", cls("default", gates={"max_tpot": "10s"}), sent(16),
        both(window(fixed=16), cls("default", gates={"max_tpot": "1ms"}))),
    Row("classes.gates.max_kv_usage", cls("default", gates={"max_kv_usage": 1}), sent(16),
        both(window(fixed=16), cls("default", gates={"max_kv_usage": 1e-6}))),
)  # fmt: skip

# Why a setting has no row.
ELSEWHERE = {
    "classes.max_waiting": "takes what an engine's page shows of its queue: tests/core/test_window_adaptive.py",
    "classes.order": "test_shortest_first",
    "classes.wait_objective": "for metrics and alerts alone: tests/cli/test_service_telemetry.py",
    "classes.headroom": "goes by the arrivals of minutes: tests/core/test_scheduler_headroom.py",
    "classes.hopeless": "goes by a rate of releases: tests/core/test_scheduler_reconfigure.py",
    "classes.gates.max_ttft": "closes for the time of one page: tests/core/test_scheduler_gates.py",
    "tenants.rate_burst": "with tenants.rate: tests/core/test_scheduler_rates.py",
    "tenants.burst": "what is saved up while nothing waits: tests/core/test_fair_queue_reconfigure.py",
    "pools.window.start": "of windows that begin",
    "pools.window.threshold": "with pools.window.controller",
    "pools.window.outage": "needs half a minute without pages: tests/core/test_window.py",
    "pools.pick.by": "needs a restart",
    "pools.pick.prefix": "needs facts that this wiring does not tell: tests/core/test_choice_affinity.py",
    "pools.pick.adapter": "the same",
    "pools.pick.kv_usage": "the same",
    "pools.name": "another pool: test_admin_reload.py",
    "pools.aliases": "needs a wiring that edits bodies",
    "pools.adapters": "as pools.models",
    "pools.engine": "tests/fleet",
    "pools.session_header": "with pools.pick.session",
    "pools.metrics": "tests/fleet",
    "pools.cost": "of newcomers: tests/core/test_scheduler_reconfigure.py",
    "pools.prefix_slack": "as pools.pick.prefix",
    "pools.percentage_of": "with pools.percentage",
    "pools.preemption.per_second": "with classes.preemptible",
    "pools.preemption.after_first_byte": "of streams: test_evictions.py",
}

_SECTIONS = {
    "classes": (Class, {"gates": ClassGates}),
    "tenants": (Tenant, {}),
    "pools": (Pool, {"window": Window, "pick": Pick, "preemption": Preemption}),
}


def test_each_setting_has_a_row_or_a_reason() -> None:
    known = set()
    for section, (model, parts) in _SECTIONS.items():
        for key in model.model_fields:
            inner = parts[key].model_fields if key in parts else ()
            known |= {f"{section}.{key}.{each}" for each in inner} or {f"{section}.{key}"}
    rows = {row.knob for row in (*ROWS, *MOVING)} - {"cancel"}
    assert rows | set(ELSEWHERE) == known
    assert not rows & set(ELSEWHERE)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    args = (*FAST_ENGINE, "--max-num-seqs", str(ENGINE_SLOTS))
    # 250 ms while idle as well: what a page must show is not to take longer than it must.
    settings = {"window": FIXED, "metrics": {"idle_interval": "250ms"}}
    config = {"tenants": {"*": {"max_queued": 10_000}}}
    folder = tmp_path_factory.mktemp("stack")
    async with running(
        folder, engines=2, engine_args=args, config=config, pool=settings, wiring=Wiring(first_byte=True)
    ) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    """Whatever a test has changed is taken back after it."""
    async with connected(rig) as made:
        before = (await made.status()).revision
        yield made
        await made.back_to(before)


async def _prepare(row: Row, rig: Rig, admin: Admin) -> None:
    endpoints = [str(rig.engines[number - 1]) for number in row.engines]
    await admin.set(both(pool(endpoints=endpoints), row.before))


async def _change(row: Row, world: World) -> None:
    if callable(row.change):
        await row.change(world)
    else:
        await world.admin.set(row.change)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_it_holds_for_what_waits(row: Row, rig: Rig, admin: Admin) -> None:
    await _prepare(row, rig, admin)
    async with held(rig, *row.groups, inside=row.inside, inside_cls=row.inside_cls) as scene:
        world = World(rig, admin, scene)
        await _change(row, world)
        await row.effect(world)
        await admin.set({"pools": {POOL: {"traffic": "open", "endpoints": [str(at) for at in rig.engines]}}})
        await admin.set(ROOM)
    assert set(scene.answered()) <= {200, 429, 503}
    assert scene.answered()[200] == len(scene.tasks) - len([each for each in scene.answers if "error" in each.json])


def _shows_waiting(found: Json) -> bool:
    """More than one, as the strictest gate of `MOVING` asks for."""
    return any((each["waiting"] or 0) > 1 for each in found["endpoints"])


@pytest.mark.parametrize("row", MOVING, ids=lambda row: row.name)
async def test_it_holds_by_what_pages_show(row: Row, rig: Rig, admin: Admin) -> None:
    await _prepare(row, rig, admin)
    scene = Scene(rig)
    others: list[asyncio.Task[Answer]] = []
    try:
        scene.ask(1, tokens=LONG, content=row.content)
        await rig.until_inside(1)  # before a page shows the others, which would hold it
        if row.busy:
            others = [rig.start(chat(LONG, n=n), straight_to=rig.engines[0]) for n in (ENGINE_SLOTS - 1, 1, 1)]
            await rig.until(_shows_waiting, "a page shows what waits in the engine")
        pages = await rig.metric("fairlane_scrapes_total")
        await until(lambda: rig.metric("fairlane_scrapes_total"), lambda count: count >= pages + 8, "it shows")
        scene.ask(HELD, tokens=LONG, content=row.content)
        await scene.until_all_there()
        assert len(await scene.sent()) < 10  # the knob holds the rest
        await _change(row, World(rig, admin, scene))
        await row.effect(World(rig, admin, scene))
        await admin.cancel("state = queued OR state = released OR state = running")
        await scene.finish()
    finally:
        scene.drop()
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    scene.assert_answers({503: HELD + 1})


async def test_shortest_first(rig: Rig, admin: Admin) -> None:
    """A tenant's requests are looked at anew, eight at a time: seven long ones came first, and the short ones go."""
    await admin.set(pool(endpoints=[str(rig.engines[0])]))
    async with held(rig) as scene:
        scene.ask(7, "a", content="word " * 400)
        await rig.until_held(7)
        scene.ask(HELD - 7, "a")
        await rig.until_held(HELD)
        long = set(list(scene.tasks)[SLOTS : SLOTS + 7])
        await admin.set(cls("default", order="shortest_first"))
        entries = await World(rig, admin, scene).opened(20)
        assert not {each["headers"]["x-key"] for each in entries} & long
    scene.assert_answers({200: SLOTS + HELD})
