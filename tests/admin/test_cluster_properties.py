"""Whatever happens to the store and the replicas: in the end all have what the store has, and nothing that was told as
taken by all is lost."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peers_case import Cluster
from revisions_case import patch

from extproc.admin.errors import AdminError
from extproc.config.shared import shared_part

NAMES = ("a", "b", "c")
ONE = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("change"), ONE, st.integers(1, 5)),
    st.tuples(st.just("change"), ONE, st.integers(1, 5)),
    st.tuples(st.just("for_a_while"), ONE, st.integers(1, 5)),
    st.tuples(st.just("both"), ONE, st.integers(1, 5)),
    st.tuples(st.just("restart"), ONE, st.just(0)),
    st.tuples(st.just("lose"), ONE, st.just(0)),
    st.tuples(st.just("swallow"), ONE, st.just(0)),
    st.tuples(st.just("find"), ONE, st.just(0)),
    st.tuples(st.just("empty"), ONE, st.just(0)),
    st.tuples(st.just("exchange"), ONE, st.just(0)),
    st.tuples(st.just("hour"), ONE, st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=14))
def test_all_come_to_the_same(steps: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), steps))


async def _run(folder: Path, steps: list[tuple[str, str, int]]) -> None:
    cluster = Cluster(folder)
    expected: float | None = None  # weight, where the last change is known to be everybody's
    for name in NAMES:
        await cluster.start(name)
    cluster.exchange()
    for what, name, value in steps:
        replica = cluster.replicas[name]
        store = cluster.store
        change = {"tenants": {"acme": {"weight": value}}}
        match what:
            case "change" | "for_a_while":
                ttl_s = 600.0 if what == "for_a_while" else None
                expected = None
                with contextlib.suppress(AdminError):  # another one offers what it has at the same time
                    result = await patch(replica.revisions, change, ttl_s=ttl_s)
                    done = result.shared is not None and all(each.taken for each in result.replicas) and not store.lost
                    expected = value if done and ttl_s is None else None
            case "both":
                attempts = [patch(each.revisions, change) for each in cluster.replicas.values()]
                for error in await asyncio.gather(*attempts, return_exceptions=True):
                    if isinstance(error, BaseException):
                        assert isinstance(error, AdminError)
                        assert error.code is grpc.StatusCode.ABORTED
                expected = None
            case "restart":
                await cluster.stop(name)
                await cluster.start(name)
            case "lose":
                store.lost = True
                cluster.exchange()
            case "swallow":
                store.swallows = True
            case "find":
                store.lost = False
                cluster.exchange()
            case "empty":
                store.empty()
            case "exchange":
                cluster.exchange()
                await asyncio.sleep(0)
            case "hour":
                cluster.clock.now += 3600
                for each in cluster.replicas.values():
                    await each.revisions.expire()
    cluster.store.lost = cluster.store.swallows = False

    def same() -> bool:
        replicas = cluster.replicas.values()
        told = {(each.told["revision"], each.told["id"]) for each in replicas}
        there = (cluster.store.revision.revision, cluster.store.revision.id) if cluster.store.number else (0, "")
        return told == {there} and len({each.weight() for each in replicas}) == 1

    with contextlib.suppress(TimeoutError):
        await cluster.quiet()  # what is pending has been offered
        await cluster.settled(same)
        await cluster.quiet()
    assert same(), [(each.name, each.told, each.weight()) for each in cluster.replicas.values()]
    now = cluster.clock()
    for each in cluster.replicas.values():
        if cluster.store.number:
            there = cluster.store.revision.overlay.expired(now)[0].folded(each.revisions.file.data)
            here = shared_part(each.revisions.overlay)
            assert [(s.path, s.value) for s in there.settings] == [(s.path, s.value) for s in here.settings]
        if expected is not None:
            assert each.weight() == expected
    await cluster.close()
