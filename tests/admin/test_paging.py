"""Pages: sizes, tokens that are not what they should be, and lists that change between two pages."""

from __future__ import annotations

import base64
import random
import re

import pytest
from reads_case import FakeControl, FakeRevisions, PoolCase, a_config, refused

from extproc.admin.paging import from_token, page_size, to_token
from extproc.admin.reads import Reads
from extproc.pb.admin.v1 import admin_pb2 as pb


@pytest.mark.parametrize(
    ("asked", "size"), [(0, 100), (1, 1), (100, 100), (1000, 1000), (1001, 1000), (2**31 - 1, 1000)]
)
def test_page_sizes(asked: int, size: int) -> None:
    assert page_size(asked, default=100, most=1000) == size


def test_negative_page_size() -> None:
    with refused("INVALID_ARGUMENT", "page_size: must be 0 for 100, or from 1 to 1000, not -1"):
        page_size(-1, default=100, most=1000)
    with refused("INVALID_ARGUMENT", "top_k: "):
        page_size(-1, default=100, most=1000, field="top_k")


def test_a_token_gives_back_its_place() -> None:
    place = ('größe/"x"', True, 2**60)
    token = to_token("requests", *place)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert from_token("requests", token, str, bool, int) == place
    assert from_token("requests", "", str, bool, int) is None


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "!!!!",
        "bm90IGpzb24",
        "é",
        "\x00",
        base64.urlsafe_b64encode(b"[" * 1500).decode(),
        base64.urlsafe_b64encode(b"{}").decode(),
        base64.urlsafe_b64encode(b'["00", "a", 1]').decode(),
        "A" * 5000,
        to_token("requests", "m", True, 1)[:-3],
        to_token("requests", "m", 1, 1),  # another type
        to_token("requests", "m", True),
        to_token("requests", "m", True, 1, 1),
        to_token("pools", "m", True, 1),
    ],
)
def test_tokens_that_were_not_given(token: str) -> None:
    with refused("INVALID_ARGUMENT", "page_token: ", "leave it out for the first page"):
        from_token("requests", token, str, bool, int)


# -- requests ---------------------------------------------------------------------------------------


def a_reads(*cases: PoolCase) -> Reads:
    return Reads(FakeControl(list(cases)), FakeRevisions(a_config()))  # type: ignore[arg-type]


async def pages(reads: Reads, between: object = None, **asked: object) -> list[list[str]]:
    """Ids, page by page. `between` is called after each of them."""
    found, token = [], ""
    while True:
        response = await reads.ListRequests(pb.ListRequestsRequest(page_token=token, **asked), None)  # type: ignore[arg-type]
        found.append([each.id for each in response.requests])
        token = response.next_page_token
        if not token:
            return found
        if callable(between):
            between()


async def test_pools_by_name_then_what_they_observe_in_order_of_arrival() -> None:
    config = a_config("b", "a")
    b, a = PoolCase(config, "b"), PoolCase(config, "a", observed=True)
    for case, name in ((b, "b"), (a, "a")):
        for i in range(3):
            case.arrive(f"{name}{i}")
    a.arrive("o1", observed=True)
    found = await pages(a_reads(b, a), page_size=2)
    assert found == [["a0", "a1"], ["a2", "o1"], ["b0", "b1"], ["b2"]]


async def test_exactly_full_pages() -> None:
    case = PoolCase(a_config(), "m")
    for i in range(4):
        case.arrive(f"r{i}")
    # Whether there is more after a full page is not known without looking for it.
    assert await pages(a_reads(case), page_size=2) == [["r0", "r1"], ["r2", "r3"], []]
    assert await pages(a_reads(case), page_size=5) == [["r0", "r1", "r2", "r3"]]
    assert await pages(a_reads(), page_size=5) == [[]]


async def test_a_token_holds_for_its_filter_and_its_process() -> None:
    case = PoolCase(a_config(), "m")
    for i in range(4):
        case.arrive(f"r{i}")
    reads = a_reads(case)
    first = await reads.ListRequests(pb.ListRequestsRequest(page_size=1, filter="slots = 1"), None)
    token = first.next_page_token
    with refused("INVALID_ARGUMENT", "page_token", "another list or filter, or before a restart"):
        await reads.ListRequests(pb.ListRequestsRequest(page_token=token, filter="slots = 2"), None)
    with refused("INVALID_ARGUMENT", "page_token", "before a restart"):
        await a_reads(case).ListRequests(pb.ListRequestsRequest(page_token=token, filter="slots = 1"), None)
    second = await reads.ListRequests(pb.ListRequestsRequest(page_token=token, filter="slots = 1", page_size=9), None)
    assert [each.id for each in second.requests] == ["r1", "r2", "r3"]


@pytest.mark.parametrize("seed", range(12))
async def test_what_stays_is_given_once_while_others_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    config = a_config("a", "b", "c")
    cases = {name: PoolCase(config, name, observed=name == "b") for name in "abc"}
    control = FakeControl(list(cases.values()))
    there: dict[str, tuple[PoolCase, bool]] = {}
    came = 0

    def arrive() -> None:
        nonlocal came
        came += 1
        case = rng.choice(list(cases.values()))
        observed = case.observed is not None and rng.random() < 0.5
        case.arrive(f"r{came}", tenant=f"t{rng.randrange(5)}", observed=observed)
        there[f"r{came}"] = (case, observed)

    for _ in range(150):
        arrive()
    stays = set(rng.sample(sorted(there), 60))

    def something_happens() -> None:
        for _ in range(rng.randrange(8)):
            arrive()
        for request in rng.sample(sorted(set(there) - stays), rng.randrange(12)):
            case, observed = there.pop(request)
            case.end(request, observed=observed)
        rng.shuffle(control.cases)  # as with pools that are configured in another order

    reads = Reads(control, FakeRevisions(config))  # type: ignore[arg-type]
    found = [each for page in await pages(reads, something_happens, page_size=7) for each in page]
    assert len(found) == len(set(found))
    assert stays <= set(found)


async def test_a_pool_that_goes_between_two_pages() -> None:
    config = a_config("a", "b", "c")
    cases = [PoolCase(config, name) for name in "abc"]
    for case in cases:
        for i in range(2):
            case.arrive(f"{case.pool.name}{i}")
    control = FakeControl(list(cases))
    reads = Reads(control, FakeRevisions(config))  # type: ignore[arg-type]

    def b_goes() -> None:
        control.cases = [case for case in control.cases if case.pool.name != "b"]

    assert await pages(reads, b_goes, page_size=3) == [["a0", "a1", "b0"], ["c0", "c1"]]


# -- pools and endpoints ------------------------------------------------------------------------------


async def test_pages_of_pools_and_endpoints() -> None:
    config = a_config("c", "a", "b")
    control = FakeControl([PoolCase(config, name) for name in "cab"])
    reads = Reads(control, FakeRevisions(config))  # type: ignore[arg-type]
    first = await reads.ListPools(pb.ListPoolsRequest(page_size=2), None)
    assert [each.name for each in first.pools] == ["a", "b"]
    second = await reads.ListPools(pb.ListPoolsRequest(page_size=2, page_token=first.next_page_token), None)
    assert ([each.name for each in second.pools], second.next_page_token) == (["c"], "")
    assert (await reads.ListPools(pb.ListPoolsRequest(page_size=3), None)).next_page_token == ""

    page = await reads.ListEndpoints(pb.ListEndpointsRequest(page_size=1), None)
    rest = await reads.ListEndpoints(pb.ListEndpointsRequest(page_token=page.next_page_token), None)
    assert [each.pool for each in page.endpoints] + [each.pool for each in rest.endpoints] == ["a", "b", "c"]
    with refused("INVALID_ARGUMENT", "page_token"):  # given for all pools
        await reads.ListEndpoints(pb.ListEndpointsRequest(pool="b", page_token=page.next_page_token), None)
    for method, request in (
        (reads.ListPools, pb.ListPoolsRequest(page_size=-1)),
        (reads.ListEndpoints, pb.ListEndpointsRequest(page_size=-1)),
        (reads.ListRequests, pb.ListRequestsRequest(page_size=-1)),
    ):
        with refused("INVALID_ARGUMENT", "page_size"):
            await method(request, None)  # type: ignore[operator]
