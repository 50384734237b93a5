"""The only service starts late, is told to end, is killed: what its clients, Envoy's health checks and the next process
see. A kill and an orderly end with the next process on the same port: `test_restart`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replicas import Scene, assert_in_order
from rig import Rig, chat, log_of, running, until

from extproc.cli.stack import ENVOY, FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SLOTS = 4  # of the engine
LATE_S = 3.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    args = ("--max-num-seqs", str(SLOTS), "--step-base-ms", "20", "--step-per-seq-ms", "0")
    config = {"classes": {"default": {"max_in_flight": SLOTS, "max_waiting": 0}}}
    # Nothing goes while all slots are taken, however slow the engine is on this machine.
    window = {"start": SLOTS, "max_num_seqs": SLOTS, "overtake": 0, "max_tpot": "60s"}
    async with running(
        tmp_path_factory.mktemp("stack"),
        engine_args=args,
        config=config,
        pool={"window": window, "metrics": {"idle_interval": "250ms"}},
        debug=True,
        stop_timeout_s=60,
    ) as rig:
        yield rig


async def test_slow_to_start(rig: Rig) -> None:
    """Envoy is there first; what it gets meanwhile waits, and has its place from when it came."""
    await rig.stack.stop_child(ENVOY)
    await rig.stack.stop_child(FAIRLANE)
    await rig.stack.start_child(ENVOY)
    early = [rig.start(chat(), tenant="early") for _ in range(20)]
    await asyncio.sleep(LATE_S)  # the scenario's pause, no synchronisation
    assert not any(task.done() for task in early)
    await rig.stack.start_child(FAIRLANE)
    answers = await asyncio.gather(*early)
    assert Counter(answer.status for answer in answers) == {200: 20}
    assert min(int(answer.headers["x-fairlane-queue-ms"]) for answer in answers) > LATE_S * 900
    await rig.books_closed()


async def test_told_to_end_twice(rig: Rig) -> None:
    """It says that it does not serve any more, and waits for its answers; told again, it does not. They go on."""
    scene = Scene([rig], "told twice", inside=SLOTS, held=10)
    await scene.set_up()
    child = rig.stack.child(FAIRLANE)
    async with rig.hung_engines(), grpc.aio.insecure_channel(str(rig.stack.addresses.ext_proc)) as channel:
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(child.stop(60))
        assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert child.pid is not None  # it waits for answers that do not come
        os.kill(child.pid, signal.SIGTERM)
        assert await stopping  # long before the grace of 30 s, and nobody killed it
        assert child.exit_code == 0
        await rig.stack.start_child(FAIRLANE)
    await scene.move_on()
    await scene.assert_all_succeed()
    await rig.books_closed()


async def test_what_the_engine_still_runs_counts_after_a_restart(rig: Rig) -> None:
    """The new process did not release them, but it sees them on the engine's page, and leaves them their room."""
    scene = Scene([rig], "after a restart", inside=SLOTS, held=20)
    await scene.set_up()
    lines = len(log_of(rig.stack.child(FAIRLANE)))
    await rig.stack.kill(FAIRLANE)
    async with rig.hung_engines():
        await rig.stack.start_child(FAIRLANE)
        pool = await rig.until(
            lambda pool: pool["endpoints"][0]["foreign"] == SLOTS and pool["queued"] + pool["in_flight"] == 20
        )
        early = pool["in_flight"]  # what came before the first page; as a rule none
        assert early < 20
        scrapes = await rig.metric("fairlane_scrapes_total")
        await until(lambda: rig.metric("fairlane_scrapes_total"), lambda count: count >= scrapes + 2, "two more pages")
        assert (await rig.pool())["in_flight"] == early
    await scene.move_on()
    await scene.assert_all_succeed()
    await rig.until(lambda pool: pool["endpoints"][0]["foreign"] == 0, "they have ended")
    assert_in_order(log_of(rig.stack.child(FAIRLANE))[lines:])
    await rig.books_closed()
