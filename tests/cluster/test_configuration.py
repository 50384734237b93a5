"""The configuration in the store as documents: read strictly, by the store's clock, and who has said what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cluster.configuration import KEY, UNSEEN, SharedConfiguration
from extproc.cluster.errors import StoreError
from extproc.config.faults import ConfigError
from extproc.config.overlay import Overlay, Setting
from extproc.config.shared import (
    LARGEST,
    ConflictError,
    LostError,
    NewerError,
    ReplicaTaken,
    SharedRevision,
    adopted,
    folded_away,
    published,
    same_settings,
)

T0 = 1_800_000_000.0
WEIGHT = Setting(("tenants", "acme", "weight"), 3, False, 2)
BOOST = Setting(("tenants", "acme", "boost"), 2, False, 4, T0 + 600)
FIRST = SharedRevision(
    revision=1,
    id="id-1",
    overlay=Overlay((WEIGHT, BOOST)),
    who="alice",
    role="admin",
    method="SetTenant",
    reason="why\nnot",
    kind="CHANGE",
    replica="a",
    at=T0,
    schema=1,
    version="0.1.0",
)
FILE = "0123456789abcdef0123"


class OneStore:
    """Of several replicas. `fails`: what the next calls raise."""

    def __init__(self) -> None:
        self.number, self.document = 0, b""
        self.fails: StoreError | None = None

    async def config_get(self) -> tuple[int, bytes]:
        if self.fails is not None:
            raise self.fails
        return self.number, self.document

    async def config_put(self, expected: int, document: bytes) -> int | None:
        if self.fails is not None:
            raise self.fails
        if expected != self.number:
            return None
        self.number, self.document = self.number + 1, document
        return self.number


class Clock:
    def __init__(self, ahead_s: float = 0.0) -> None:
        self.now = T0 + ahead_s

    def __call__(self) -> float:
        return self.now


def shared(store: OneStore, replica: str = "a", ahead_s: float = 0.0, **more: Any) -> SharedConfiguration:
    return SharedConfiguration(store, "fairlane", replica, clock=Clock(ahead_s), **more)


def said(revision: int, id_: str = "id-1", refused: str = "", error: str = "", file: str = FILE[:16]) -> dict[str, Any]:
    return {KEY: {"revision": revision, "id": id_, "refused": refused, "error": error, "file": file}}


# -- documents -----------------------------------------------------------------------------------


def test_what_is_written_reads_back_as_the_same() -> None:
    assert SharedRevision.from_bytes(FIRST.to_bytes()) == FIRST


BAD: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("a list", lambda _: []),
    ("no format", lambda d: d.pop("format") and d),
    ("format of no number", lambda d: d | {"format": "1"}),
    ("revision 0", lambda d: d | {"revision": 0}),
    ("true as a revision", lambda d: d | {"revision": True}),
    ("no schema", lambda d: d.pop("schema") and d),
    ("another kind", lambda d: d | {"kind": "START"}),
    ("another role", lambda d: d | {"role": "root"}),
    ("a method with a line", lambda d: d | {"method": "a\nb"}),
    ("an id with a blank", lambda d: d | {"id": "a b"}),
    ("a long reason", lambda d: d | {"reason": "x" * 5000}),
    ("a reason of no text", lambda d: d | {"reason": 7}),
    ("no time", lambda d: d | {"at": "now"}),
    ("an endless time", lambda d: d | {"at": float("inf")}),
    ("no overlay", lambda d: d.pop("overlay") and d),
    ("an overlay of no settings", lambda d: d | {"overlay": [1]}),
    ("a setting without a path", lambda d: d | {"overlay": [{"path": [], "value": 1, "revision": 1}]}),
]


@pytest.mark.parametrize(("what", "spoil"), BAD, ids=[what for what, _ in BAD])
def test_what_was_not_written_so_is_refused(what: str, spoil: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(ConfigError) as error:
        SharedRevision.from_plain(spoil(FIRST.to_plain()))
    assert not isinstance(error.value, NewerError)


@given(st.binary(max_size=200))
def test_bytes_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(ConfigError):
        SharedRevision.from_bytes(content)


def test_one_of_a_newer_version_is_told_apart() -> None:
    with pytest.raises(NewerError, match="update this replica"):
        SharedRevision.from_plain(FIRST.to_plain() | {"format": 2, "revision": "what it may mean then"})


@pytest.mark.slow
def test_sizes_are_bounded_both_ways() -> None:
    many = Overlay(tuple(Setting(("tenants", f"t{n}", "weight"), 1, False, 1) for n in range(90_000)))
    with pytest.raises(ConfigError, match="write them into the file"):
        replace(FIRST, overlay=many).to_bytes()
    with pytest.raises(ConfigError, match="is the most"):
        SharedRevision.from_bytes(b" " * (LARGEST + 1))


# -- overlays ------------------------------------------------------------------------------------


def test_what_is_in_both_stays_as_it_was_here() -> None:
    mine = Overlay((replace(WEIGHT, revision=9), Setting(("recording", "keep"), 3, False, 8)))
    new = Setting(("tenants", "other", "weight"), 7, False, 77)
    found = adopted(Overlay((WEIGHT, new)), mine, {}, revision=10, now=T0)
    assert [(each.path, each.revision) for each in found.settings] == [
        (WEIGHT.path, 9),
        (new.path, 10),
        (("recording", "keep"), 8),
    ]


def test_what_is_over_does_not_come_and_is_not_taken_away() -> None:
    late = T0 + 601
    assert adopted(Overlay((BOOST,)), Overlay(), {}, revision=1, now=late) == Overlay()
    assert adopted(Overlay((BOOST,)), Overlay((BOOST,)), {}, revision=1, now=late) == Overlay((BOOST,))


def test_what_the_file_says_here_is_kept_for_the_others_until_it_is_set_again() -> None:
    data = {"tenants": {"acme": {"weight": 3}}}
    mine = adopted(Overlay((WEIGHT,)), Overlay(), data, revision=2, now=T0)
    assert (mine, folded_away(Overlay((WEIGHT,)), mine)) == (Overlay(), [WEIGHT])
    other = Setting(("tenants", "other", "weight"), 7, False, 3)
    assert published(Overlay((other,)), mine, Overlay((WEIGHT,))) == Overlay((WEIGHT, other))
    for path in (WEIGHT.path, ("tenants", "acme")):
        again = Setting(path, {"weight": 5}, False, 3)
        assert published(Overlay((again,)), mine, Overlay((WEIGHT,))) == Overlay((again,))
    assert published(Overlay((BOOST,)), mine, Overlay((WEIGHT,))) == Overlay((WEIGHT, BOOST))


def test_when_settings_are_the_same() -> None:
    one = Overlay((WEIGHT, BOOST))
    assert same_settings(one, Overlay((replace(BOOST, expires_at=T0 + 600.5), replace(WEIGHT, revision=5))))
    for other in (
        (WEIGHT,),
        (WEIGHT, WEIGHT),
        (replace(WEIGHT, value=True), BOOST),
        (replace(WEIGHT, value=None, removed=True), BOOST),
        (WEIGHT, replace(BOOST, expires_at=None)),
        (WEIGHT, replace(BOOST, expires_at=T0 + 605)),
    ):
        assert not same_settings(one, Overlay(other))


# -- reading and writing -------------------------------------------------------------------------


async def test_one_of_two_writers_is_told_of_the_other() -> None:
    store = OneStore()
    a, b = shared(store), shared(store, "b")
    assert (await a.read(), await b.read()) == (None, None)
    await a.write(FIRST)
    with pytest.raises(ConflictError):
        await b.write(replace(FIRST, id="id-2"))
    assert await b.read() == FIRST
    await b.write(replace(FIRST, revision=2, id="id-2"))
    assert json.loads(store.document)["id"] == "id-2"


async def test_a_store_that_fails_is_lost_with_its_cause() -> None:
    store = OneStore()
    one = shared(store)
    with pytest.raises(LostError, match="not been read"):
        await one.write(FIRST)
    await one.read()
    store.fails = StoreError("read_only", "is a read-only replica: name the primary")
    news: list[int] = []
    one.follow(lambda: news.append(1))
    for attempt in (lambda: one.write(FIRST), one.read):
        with pytest.raises(LostError, match="name the primary"):
            await attempt()
        one.heard(0, {"b": said(1)}, T0 * 1000)
        assert news == [1]  # nobody knows what is there, whatever the number
        news.clear()
        store.fails, fails = None, store.fails
        await one.read()
        store.fails = fails


async def test_garbage_is_read_as_an_error_and_can_be_written_over() -> None:
    store = OneStore()
    store.number, store.document = 4, b"garbage"
    one = shared(store)
    with pytest.raises(ConfigError, match="the next change takes its place"):
        await one.read()
    await one.write(FIRST)
    assert (store.number, await one.read()) == (5, FIRST)


@pytest.mark.parametrize("ahead_s", [-300.0, 0.0, 1.5, 300.0])
async def test_expiries_are_written_by_the_stores_clock(ahead_s: float) -> None:
    store = OneStore()
    wrong, right = shared(store, "wrong", ahead_s), shared(store, "right")
    for each in (wrong, right):
        each.heard(0, {}, T0 * 1000)
        await each.read()
    off = ahead_s if abs(ahead_s) >= 2 else 0.0  # of clocks that are kept right
    await wrong.write(replace(FIRST, overlay=Overlay((replace(BOOST, expires_at=T0 + 600 + off),)), at=T0 + off))
    found = await right.read()
    assert found is not None
    assert (found.overlay.settings[0].expires_at, found.at) == (T0 + 600, T0)
    back = await wrong.read()
    assert back is not None
    assert back.overlay.settings[0].expires_at == T0 + 600 + off


async def test_expiries_do_not_creep() -> None:
    store = OneStore()
    one = shared(store, ahead_s=300.0)
    one.heard(0, {}, T0 * 1000)
    await one.read()
    await one.write(replace(FIRST, overlay=Overlay((replace(BOOST, expires_at=T0 + 900),))))
    for number in range(2, 10):
        one.heard(store.number, {}, (T0 + 0.4) * 1000)  # an answer that was slow
        found = await one.read()
        assert found is not None
        await one.write(replace(found, revision=number, id=f"id-{number}"))
    assert json.loads(store.document)["overlay"][0]["expires_at"] == T0 + 600


# -- what is heard -------------------------------------------------------------------------------


async def test_news_are_told_when_there_may_be_something_to_read() -> None:
    store, news = OneStore(), []
    one = shared(store)
    one.follow(lambda: news.append(store.number))
    await one.read()
    one.tell(FIRST, None, "", FILE)
    others = {"b": said(0, "")}
    one.heard(0, others, T0 * 1000)
    assert news == []
    one.heard(1, others, T0 * 1000)
    assert len(news) == 1
    store.number, store.document = 1, FIRST.to_bytes()
    await one.read()
    one.heard(1, others, T0 * 1000)
    assert len(news) == 1
    one.lost("gone")
    one.heard(1, others, T0 * 1000)  # nobody knows what happened meanwhile
    assert len(news) == 2
    one.heard(1, others, (T0 + 60) * 1000)  # the clock was set: expiries are others
    assert len(news) == 3
    one.heard(1, {"b": said(1)}, (T0 + 60) * 1000)  # all have the same: what all files say may be dropped
    assert len(news) == 4
    one.heard(1, {"b": said(1)}, (T0 + 60) * 1000)
    assert len(news) == 4
    for id_ in ("id-2", "id-2", "id-3"):  # by a store that was emptied and came to the same number
        one.heard(1, {"b": said(2, id_)}, (T0 + 60) * 1000)
    assert len(news) == 6


async def test_what_a_replica_has_is_in_its_info() -> None:
    woken: list[int] = []
    one = shared(OneStore(), wake=lambda: woken.append(1))
    assert one.info() == {KEY: {"revision": 0, "id": "", "refused": "", "error": "", "file": ""}}
    one.tell(FIRST, replace(FIRST, revision=2, id="id-2"), "x" * 9999, FILE)
    assert one.info() == said(1, refused="id-2", error="x" * 500)
    one.tell(FIRST, replace(FIRST, revision=2, id="id-2"), "x" * 9999, FILE)
    assert len(woken) == 1
    json.dumps(one.info())


async def test_who_has_taken_it_is_waited_for() -> None:
    store = OneStore()
    one = shared(store, wait_s=60)
    one.heard(0, {}, T0 * 1000)
    waiting = asyncio.create_task(one.acknowledged(FIRST))
    await asyncio.sleep(0)
    assert one.busy
    infos = {"b": said(0), "c": said(0)}
    one.heard(1, infos, T0 * 1000)
    await asyncio.sleep(0)
    one.heard(1, infos | {"b": said(0, "", "id-1", "does not fit")}, T0 * 1000)
    await asyncio.sleep(0)
    assert not waiting.done()
    one.heard(1, {"b": said(0, "", "id-1", "does not fit"), "c": said(7)}, T0 * 1000)
    assert await asyncio.wait_for(waiting, 30) == (
        ReplicaTaken("a", True),
        ReplicaTaken("b", False, "does not fit"),
        ReplicaTaken("c", True),
    )
    assert not one.busy


async def test_who_says_nothing_is_not_waited_for_without_end() -> None:
    one = shared(OneStore(), wait_s=0.05)
    one.heard(1, {"b": {}, "c": {KEY: "?"}, "d": {KEY: {"revision": True}}, "e": {KEY: {"revision": 1, "error": 3}}}, 0)
    replicas = await one.acknowledged(FIRST)
    assert [(each.replica, each.taken) for each in replicas] == [("a", True), *((name, False) for name in "bcde")]
    assert "takes it with its next exchange" in replicas[1].error
    assert not one.busy


@pytest.mark.parametrize(("expected", "unseen"), [(1, 0), (2, 0), (3, 1), (5, 3)])
async def test_those_that_should_be_there_and_are_not_are_told_too(expected: int, unseen: int) -> None:
    one = shared(OneStore(), expected=expected, wait_s=60)
    waiting = asyncio.create_task(one.acknowledged(FIRST))
    await asyncio.sleep(0)
    one.heard(1, {"b": said(7)}, T0 * 1000)
    first, second, *others = await asyncio.wait_for(waiting, 30)
    assert (first, second) == (ReplicaTaken("a", True), ReplicaTaken("b", True))
    assert [(each.replica, each.taken) for each in others] == [(UNSEEN, False)] * unseen
    assert all(f"of {expected} (cluster.replicas) {unseen} cannot be seen" in each.error for each in others)


async def test_a_lost_store_ends_the_wait() -> None:
    one = shared(OneStore(), wait_s=60)
    one.heard(1, {"b": said(0)}, T0 * 1000)
    waiting = asyncio.create_task(one.acknowledged(FIRST))
    await asyncio.sleep(0)
    one.lost("127.0.0.1:6379 does not answer")
    replicas = await asyncio.wait_for(waiting, 30)
    assert replicas[1] == ReplicaTaken("b", False, "the store is lost: 127.0.0.1:6379 does not answer")


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    one = shared(OneStore(), wait_s=60)
    waiting = asyncio.create_task(one.acknowledged(FIRST))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not one.busy
