"""What replicas say as bytes and back; and what is none of it."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cluster import codec
from extproc.cluster.codec import CodecError
from extproc.cluster.outbox import Outbox
from extproc.core.sharing.words import ClassReport, EndpointReport, FlowReport, PoolReport

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
COSTS = st.integers(0, 10**12).map(lambda mills: mills / 1000)
SLOTS = st.integers(0, 10_000)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=30,
)
FLOWS = st.builds(FlowReport, NAMES, NAMES, COSTS, COSTS, SLOTS)
REPORTS = st.lists(
    st.builds(
        PoolReport,
        NAMES,
        st.lists(st.builds(ClassReport, NAMES, st.integers(-9, 9), SLOTS, COSTS, SLOTS, COSTS, COSTS)).map(tuple),
        st.lists(st.builds(EndpointReport, NAMES, SLOTS, SLOTS, COSTS, COSTS)).map(tuple),
    ),
    max_size=3,
    unique_by=lambda report: report.pool,
)


@pytest.mark.slow
@given(REPORTS, st.dictionaries(NAMES, ANY.filter(lambda value: not isinstance(value, int)), max_size=3))
def test_a_document_comes_back_as_it_was(reports: list[PoolReport], info: dict[str, object]) -> None:
    data = codec.document(reports, {"a": 1, "nested": {"b": [1.5, None]}})
    assert codec.read_document(data, "r") == (
        {"a": 1, "nested": {"b": [1.5, None]}},
        {report.pool: report for report in reports},
    )


@pytest.mark.slow
@given(st.lists(st.tuples(NAMES, FLOWS), max_size=20))
def test_flows_come_back_in_order_within_their_class(flows: list[tuple[str, FlowReport]]) -> None:
    data = codec.message(flows)
    assert bool(data) == bool(flows)
    if flows:
        back = codec.read_message(data, "r")
        assert sorted(back, key=repr) == sorted(flows, key=repr)
        for group in {(pool, flow.cls) for pool, flow in flows}:
            assert [each for each in back if (each[0], each[1].cls) == group] == [
                each for each in flows if (each[0], each[1].cls) == group
            ]


def test_costs_are_cut_short_and_what_is_there_stays_so() -> None:
    flow = FlowReport("c", "t", 1234.56789, 1e-9, 2)
    (found,) = codec.read_message(codec.message([("p", flow)]), "r")
    assert found == ("p", FlowReport("c", "t", 1234.568, 0.001, 2))
    assert codec.message([("p", flow)]) == b'[["p","c",["t",1234.568,0.001,2]]]'


@given(st.lists(COSTS, min_size=2))
def test_what_grows_still_grows(costs: list[float]) -> None:
    told = codec.message(("p", FlowReport("c", str(at), cost / 7, 0.0, 0)) for at, cost in enumerate(sorted(costs)))
    usages = [flow.usage for _, flow in codec.read_message(told, "r")]
    assert usages == sorted(usages)


GOOD = orjson.loads(
    codec.document(
        [PoolReport("p", (ClassReport("c", 1, 2, 3.0, 4, 5.0, 0.5),), (EndpointReport("e", 1, 2, 16.0, 3.0),))],
        {"version": "1"},
    )
)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((), [], "the whole must be a list of 2"),
        ((0,), "text", "info must be an object, not str"),
        ((1,), {}, "pools must be a list, not dict"),
        ((1, 0), ["p", []], "a pool must be a list of 4"),
        ((1, 0, 0), 7, "a pool's name must be text, not int"),
        ((1, 0, 0), "x" * 1025, "a pool's name has 1025 characters"),
        ((1, 0, 1, 0, 2), -1, "demand is -1"),
        ((1, 0, 1, 0, 2), 1.5, "demand must be a whole number, not float"),
        ((1, 0, 1, 0, 2), True, "demand must be a whole number, not bool"),
        ((1, 0, 1, 0, 3), "3", "backlog must be a number, not str"),
        ((1, 0, 1, 0, 3), None, "backlog must be a number, not NoneType"),
        ((1, 0, 1, 0, 5), 1e300, "served is 1e+300"),
        ((1, 0, 1, 0, 5), -0.5, "served is -0.5"),
        ((1, 0, 1, 0), [1], "a class must be a list of 8"),
        ((1, 0, 2, 0), "host:1", "an endpoint must be a list of 5"),
        ((1, 0, 2, 0, 1), 2**60, "in flight is"),
        ((1, 0, 2), None, "endpoints must be a list"),
        ((1, 0, 3), -1, "released is -1"),
    ],
)
def test_a_document_that_is_none_says_what_and_whose(path: tuple[int, ...], value: object, said: str) -> None:
    whole = orjson.loads(orjson.dumps(GOOD))
    assert codec.read_document(orjson.dumps(whole), "other")[1]["p"].classes[0].name == "c"
    if path:
        place = whole
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
    else:
        whole = value
    with pytest.raises(CodecError) as caught:
        codec.read_document(orjson.dumps(whole), "other")
    assert str(caught.value).startswith("the document of replica other is not as it should be: ")
    assert said in str(caught.value)


def test_the_same_pool_twice_is_refused() -> None:
    with pytest.raises(CodecError, match="pool 'p' is there twice"):
        codec.read_document(orjson.dumps([{}, [GOOD[1][0], GOOD[1][0]]]), "other")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[", b"NaN", b"[" * 100_000, b"null", b"1e999", b'"text"', b"{}"])
def test_bytes_that_are_neither(data: bytes) -> None:
    for read in (codec.read_document, codec.read_message):
        with pytest.raises(CodecError, match="of replica other is"):
            read(data, "other")


@pytest.mark.slow
@given(ANY)
def test_no_json_does_any_harm(value: object) -> None:
    for read in (codec.read_document, codec.read_message):
        try:
            read(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) if not _huge(value) else b"0", "other")
        except CodecError as error:
            assert "replica other" in str(error) and len(str(error)) < 500


def _huge(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["t", 1, 2], "four values each"),
        (["t", 1, 2, 3, "u"], "four values each"),
        ([1, 1, 2, 3], "a tenant must be text"),
        (["t", "1", 2, 3], "usage must be a number"),
        (["t", -1, 2, 3], "usage is -1"),
        (["t", 1, 2, 0.5], "inside must be a whole number"),
    ],
)
def test_flows_that_are_none(values: list[object], said: str) -> None:
    with pytest.raises(CodecError, match=said):
        codec.read_message(orjson.dumps([["p", "c", values]]), "other")


def test_what_this_replica_says_must_be_json() -> None:
    with pytest.raises(CodecError, match="cannot be written"):
        codec.document([], {"a": object()})
    data = codec.document([PoolReport("p", (ClassReport("c", 0, 0, math.inf, 0, math.nan, 0.0),), ())], {})
    assert codec.read_document(data, "r")[1]["p"].classes[0].backlog == 0.0


def test_a_name_that_cannot_be_written_keeps_the_others_from_nothing() -> None:
    flows = [("p", FlowReport("c", tenant, 1.0, 0.0, 0)) for tenant in ("a", "half \ud83d", "b")]
    assert [flow.tenant for _, flow in codec.read_message(codec.message(flows), "r")] == ["a", "b"]


# -- what waits to be told ------------------------------------------------------------------------


def _flows(*flows: FlowReport, pool: str = "p") -> list[PoolReport]:
    return [PoolReport(pool, (), (), flows)]


def _flow(tenant: str, usage: float = 1.0) -> FlowReport:
    return FlowReport("c", tenant, usage, 0.0, 0)


def _tenants(message: bytes) -> list[str]:
    return [flow.tenant for _, flow in codec.read_message(message, "r")] if message else []


def test_what_has_not_arrived_is_told_again_with_its_latest_values() -> None:
    box = Outbox(10_000)
    assert box.take() == b""
    box.put(_flows(_flow("a", 1.0), _flow("b", 1.0)))
    assert _tenants(box.take()) == ["a", "b"]
    box.put(_flows(_flow("c"), _flow("a", 2.0)))  # the exchange has failed
    told = box.take()
    assert _tenants(told) == ["a", "b", "c"]
    assert codec.read_message(told, "r")[0][1].usage == 2.0
    box.told()
    assert box.take() == b"" and len(box) == 0


def test_what_changes_while_a_message_is_on_its_way_is_told_next() -> None:
    box = Outbox(10_000)
    box.put(_flows(_flow("a", 1.0), _flow("b")))
    box.take()
    box.put(_flows(_flow("a", 2.0)))
    box.told()
    assert codec.read_message(box.take(), "r") == [("p", _flow("a", 2.0))]


@pytest.mark.slow
@given(st.lists(st.tuples(NAMES, FLOWS), max_size=60, unique_by=lambda each: (each[0], each[1].cls, each[1].tenant)))
def test_each_message_is_small_enough_and_all_is_told_in_the_end(flows: list[tuple[str, FlowReport]]) -> None:
    largest = 600
    box = Outbox(largest)
    for pool, flow in flows:
        box.put([PoolReport(pool, (), (), (flow,))])
    told: list[tuple[str, FlowReport]] = []
    while message := box.take():
        assert len(message) <= largest
        told += codec.read_message(message, "r")
        box.told()
    assert sorted(told, key=repr) == sorted(flows, key=repr)
