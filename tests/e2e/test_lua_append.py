"""envoy/lua/append.lua in a real Envoy: it adds our members to the body's object and changes nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pydantic_core
import pytest
import pytest_asyncio
from lua_case import JSON, LUA, Case, filtering, lua
from rig import until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

MEMBERS = '"priority":1000001'
BLANKS = b" \t\r\n"
MARK = b"\xef\xbb\xbf"

# In place of ext_proc: what a request's header says goes into the metadata.
WISH = """
function envoy_on_request(handle)
  local members = handle:headers():get("x-append")
  if members then
    handle:streamInfo():dynamicMetadata():set("fairlane.body", "append", members)
  end
end
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def case(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Case]:
    async with filtering(tmp_path_factory.mktemp("append"), [lua(WISH), lua("append.lua")]) as case:
        yield case
        assert not case.script_errors()


def expected(body: bytes, members: bytes = MEMBERS.encode()) -> bytes | None:
    """The edited body; None: it is no object."""
    end = body.rstrip(BLANKS)
    if not body.removeprefix(MARK).lstrip(BLANKS).startswith(b"{") or not end.endswith(b"}"):
        return None
    before = end[:-1]
    comma = b"" if before.rstrip(BLANKS).endswith(b"{") else b","
    return before + comma + members + body[len(before) :]


async def edited(case: Case, body: bytes, members: str = MEMBERS, *, piece: int = 0, http2: bool = False) -> bytes:
    """What the upstream gets for `body`. `piece`: sent in chunks of that size."""
    data = pieces(body, piece) if piece else body
    name = await case.post(data, {**JSON, "x-append": members}, http2=http2)
    received = case.received(name)
    assert received.values("content-length") == [str(len(received.body))]
    assert received.values("transfer-encoding") == []
    return received.body


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


BODIES = {
    "one member": (b'{"model":"m"}', b'{"model":"m","priority":1000001}'),
    "an end with a newline": (b'{"model":"m"}\n', b'{"model":"m","priority":1000001}\n'),
    "an end with blanks": (b'{"model":"m" \r\n} \t\r\n\n', b'{"model":"m" \r\n,"priority":1000001} \t\r\n\n'),
    "a beginning with blanks": (b'\r\n\t {"model":"m"}', b'\r\n\t {"model":"m","priority":1000001}'),
    "a byte order mark": (MARK + b' {"a":1}', MARK + b' {"a":1,"priority":1000001}'),
    "an empty object": (b"{}", b'{"priority":1000001}'),
    "an empty object with blanks": (b" { \n } ", b' { \n "priority":1000001} '),
    "an object at the end": (b'{"a":{"b":{}}}', b'{"a":{"b":{}},"priority":1000001}'),
    "objects that end with blanks": (b'{"a":{"b":{ } } }', b'{"a":{"b":{ } } ,"priority":1000001}'),
    "a list at the end": (b'{"a":[{}]}', b'{"a":[{}],"priority":1000001}'),
    "braces in the last string": (b'{"a":"}{\\"}"}', b'{"a":"}{\\"}","priority":1000001}'),
    "an open brace in the last string": (b'{"a":"{"}', b'{"a":"{","priority":1000001}'),
    "large and odd numbers": (
        b'{"seed":9007199254740993,"t":1.10,"e":1E+2,"z":-0.0}',
        b'{"seed":9007199254740993,"t":1.10,"e":1E+2,"z":-0.0,"priority":1000001}',
    ),
    "double keys": (b'{"n":1,"n":2,"n":1}', b'{"n":1,"n":2,"n":1,"priority":1000001}'),
    "escapes": (
        b'{"s":"\\u00e9\xc3\xa9\\/\\ud83d\\ude00\\ud800"}',
        b'{"s":"\\u00e9\xc3\xa9\\/\\ud83d\\ude00\\ud800","priority":1000001}',
    ),
    "bytes that are no UTF-8": (b'{"s":"\xff\x00\xfe"}', b'{"s":"\xff\x00\xfe","priority":1000001}'),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", ["with a length", "in chunks", "http/2", "http/2 in chunks"])
async def test_edit(name: str, way: str, case: Case) -> None:
    body, wanted = BODIES[name]
    assert await edited(case, body, piece=3 if "chunks" in way else 0, http2="http/2" in way) == wanted
    assert expected(body) == wanted  # the reference of the tests below


async def test_several_members(case: Case) -> None:
    got = await edited(case, b'{"a":1}', '"priority":3,"stream_options":{"include_usage":true}')
    assert got == b'{"a":1,"priority":3,"stream_options":{"include_usage":true}}'


OWN_PRIORITY = [
    b'{"priority":-9999,"model":"m"}',
    b'{"model":"m","priority":-9999,"priority":-9998}',
    b'{"\\u0070riority":-9999,"model":"m"}',
    b'{"model":"m","priori\\u0074y":-1,"priority":null}',
    b'{"model":"m","priority":{"priority":-1}}',
    b'{"priority":"high","x":{"priority":-5}}\n',
]


@pytest.mark.parametrize("body", OWN_PRIORITY)
async def test_parsers_read_our_priority(body: bytes, case: Case) -> None:
    got = await edited(case, body)
    for parse in (json.loads, orjson.loads, pydantic_core.from_json):
        assert parse(got)["priority"] == 1_000_001


NO_OBJECTS = {
    "nothing": b"",
    "blanks": b" \r\n" * 3_000,
    "a list": b'[{"a":1}]',
    "a list of an object": b'[{"a":1}',
    "a string": b'"{}"',
    "a number": b"12",
    "a closing brace": b"}",
    "an opening brace": b"{",
    "an object without an end": b'{"a":{"b":1},',
    "text behind the object": b'{"a":1};',
    "text before the object": b'x{"a":1}',
    "half a byte order mark": b'\xef\xbb{"a":1}',
    "a form": b"a=1&b={}",
}


@pytest.mark.parametrize("name", NO_OBJECTS)
async def test_what_is_no_object_passes_unchanged(name: str, case: Case) -> None:
    body = NO_OBJECTS[name]
    assert expected(body) is None
    sent = await case.post(body, {**JSON, "x-append": MEMBERS})
    assert case.received(sent).body == body
    assert await case.metadata(sent, "usage") == {"body_edit": "no_object"}


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-32"])
async def test_a_body_in_another_coding_cannot_bring_its_own_priority(coding: str, case: Case) -> None:
    """Python's json reads it, and nothing can be appended to it."""
    body = '{"model":"m","priority":-9}'.encode(coding)
    headers = {**JSON, "x-append": MEMBERS, "x-case": coding}
    async with case.http.post(case.url, data=body, headers=headers) as answer:
        assert answer.status == 400
        assert orjson.loads(await answer.read())["error"]["code"] == "invalid_request_error"
    with pytest.raises(KeyError):
        case.received(coding)


async def test_a_request_without_a_body(case: Case) -> None:
    async with case.http.get(case.url, headers={"x-case": "no body", "x-append": MEMBERS}) as answer:
        assert answer.status == 200
    assert await case.metadata("no body", "usage") == {"body_edit": "no_object"}


@pytest.mark.parametrize("coding", ["gzip", "Identity", "x", "br, gzip"])
async def test_a_header_that_lies_changes_nothing(coding: str, case: Case) -> None:
    """Engines do not look at it: a body that is an object as it stands is read as one, so it is edited as one."""
    name = await case.post(b'{"priority":-9}', {**JSON, "x-append": MEMBERS, "content-encoding": coding})
    assert case.received(name).body == b'{"priority":-9,' + MEMBERS.encode() + b"}"


async def test_what_fairlane_has_said_nothing_of(tmp_path: Path) -> None:
    """It was away, or not asked: the client's own priority does not count then either."""
    source = (LUA / "append.lua").read_text().replace("UNSCHEDULED = ''", "UNSCHEDULED = '\"priority\":7'")
    async with filtering(tmp_path, [lua(WISH), lua(source)]) as case:
        name = await case.post(b'{"priority":-9}')
        assert case.received(name).body == b'{"priority":-9,"priority":7}'
        assert await edited(case, b'{"priority":-9}') == b'{"priority":-9,' + MEMBERS.encode() + b"}"


@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP", "identity, gzip", "something"])
async def test_compressed_bodies_pass_unchanged(coding: str, case: Case) -> None:
    body = gzip.compress(b'{"model":"m"}', mtime=0) if "gzip" in coding.lower() else b"\x0b\x02\x80{}\x03"
    name = await case.post(body, {**JSON, "x-append": MEMBERS, "content-encoding": coding})
    assert case.received(name).body == body
    assert await case.metadata(name, "usage") == {"body_edit": "compressed"}


async def test_nothing_to_append_is_not_even_buffered(case: Case) -> None:
    """The request is at the upstream before its body has ended."""

    async def waits() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await until(case.active_upstream, lambda active: active == 1, "the request is on its way")
        yield b'"m"}'

    for headers in (JSON, {**JSON, "x-append": ""}):
        name = await case.post(waits(), headers)
        assert case.received(name).body == b'{"model":"m"}'
        assert await case.metadata(name, "usage") == {}


@pytest.mark.parametrize("tail", [b"", b"\n" * 10_000])
async def test_20_mb(tail: bytes, case: Case) -> None:
    filler = random.Random(20).randbytes(10_000_000).hex().encode()
    body = b'{"model":"m","filler":"' + filler + b'","big":9007199254740993}'
    assert await edited(case, body + tail) == body[:-1] + b',"priority":1000001}' + tail


# -- thousands of generated bodies --------------------------------------------------------------------

COUNT = 3_200
CONNECTIONS = 8


class OddJson:
    """Writes JSON objects as no tidy serialiser would, all of them valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def body(self) -> bytes:
        return (self.blanks() + self.object(0) + self.blanks()).encode()

    def blanks(self) -> str:
        return "".join(self.random.choices(" \t\r\n", k=self.random.choice((0, 0, 0, 1, 3))))

    def object(self, depth: int) -> str:
        members = (f"{self.key()}{self.blanks()}:{self.value(depth + 1)}" for _ in range(self.random.randrange(5)))
        return "{" + (",".join(self.blanks() + member for member in members) or self.blanks()) + "}"

    def list(self, depth: int) -> str:
        values = (self.value(depth + 1) for _ in range(self.random.randrange(4)))
        return "[" + (",".join(values) or self.blanks()) + "]"

    def key(self) -> str:
        known = ("priority", "model", "model", "n", "stream", "messages", "\\u0070riority", "", "}", "{")
        return f'"{self.random.choice(known)}"' if self.random.random() < 0.7 else self.string()

    def value(self, depth: int) -> str:
        kinds = [self.string, self.number, self.word]
        kinds += [lambda: self.object(depth), lambda: self.list(depth)] if depth < 5 else []
        return self.blanks() + self.random.choice(kinds)() + self.blanks()

    def word(self) -> str:
        return self.random.choice(("null", "true", "false"))

    def number(self) -> str:
        r = self.random
        return r.choice((str(r.randrange(-(10**30), 10**30)), "9007199254740993", "-0", "1.10", "1E+2", "2e-07", "0.0"))

    def string(self) -> str:
        parts = ("a", " ", "é", "好", "😀", "}", "{", "[", ",", ":", '\\"', "\\\\", "\\/", "\\n", "\\u00e9", "\x7f")
        parts += ("\\ud83d\\ude00", "\\ud800", "data:", '\\"}')
        return '"' + "".join(self.random.choices(parts, k=self.random.randrange(9))) + '"'


def ordered(body: bytes) -> Any:
    """Parsed with nothing lost: members as pairs in their order, numbers as they are written."""
    return json.loads(body, object_pairs_hook=tuple, parse_int=str, parse_float=str)


async def test_generated_bodies_keep_every_byte(case: Case) -> None:
    writer = OddJson(4)
    bodies = [writer.body() for _ in range(COUNT)]
    assert len(set(bodies)) > COUNT // 2

    async def some(share: Sequence[bytes], http2: bool) -> list[bytes]:
        return [
            await edited(case, body, piece=7 if number % 5 == 0 else 0, http2=http2)
            for number, body in enumerate(share)
        ]

    shares = [bodies[i::CONNECTIONS] for i in range(CONNECTIONS)]
    results = await asyncio.gather(*(some(share, http2=i % 2 == 1) for i, share in enumerate(shares)))
    for share, got in zip(shares, results, strict=True):
        for body, result in zip(share, got, strict=True):
            assert result == expected(body)
            assert ordered(result) == (*ordered(body), ("priority", "1000001"))
            assert orjson_or_json(result)["priority"] == 1_000_001


def orjson_or_json(body: bytes) -> Any:
    """orjson refuses lone surrogates; the others read them."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)
