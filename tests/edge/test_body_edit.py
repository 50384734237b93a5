"""Our members in a client's JSON body: nothing else changes, and every reader that engines use finds our value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pydantic_core
import pytest

from extproc.edge.body_edit import append_members, members

Pairs = list[tuple[str, Any]]
OURS = members(3, include_usage=True)
OUR_PAIRS: Pairs = [("priority", "3"), ("stream_options", [("include_usage", True)])]


def pairs(text: bytes) -> Pairs:
    """An independent reader that keeps order, duplicates, and numbers as they are written."""
    parsed: Pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    return parsed


@pytest.mark.parametrize(
    ("body", "edited"),
    [
        (b"{}", b'{"priority":3}'),
        (b"{ }", b'{ "priority":3}'),
        (b" \r\n{\t\n} \n", b' \r\n{\t\n"priority":3} \n'),
        (b'{"a":1}', b'{"a":1,"priority":3}'),
        (b'{"a":1}\n', b'{"a":1,"priority":3}\n'),
        (b'{"a": 1 }', b'{"a": 1 ,"priority":3}'),
        (b'{"a":{}}', b'{"a":{},"priority":3}'),
        (b'{"a":{"b":[{}]}}', b'{"a":{"b":[{}]},"priority":3}'),
        (b'{"a":"}"}', b'{"a":"}","priority":3}'),
        (b'{"a":"{"}', b'{"a":"{","priority":3}'),
        (b'{"a":"\\"}"}', b'{"a":"\\"}","priority":3}'),
        (b'{"a":12345678901234567890123, "a" : 1e2}', b'{"a":12345678901234567890123, "a" : 1e2,"priority":3}'),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"a":1,"priority":3}'),
    ],
)
def test_the_edit_by_hand(body: bytes, edited: bytes) -> None:
    assert append_members(body, b'"priority":3') == edited


def test_what_is_appended() -> None:
    assert members() == b""
    assert members(-3) == b'"priority":-3'
    assert members(include_usage=True) == b'"stream_options":{"include_usage":true}'
    assert members(3, True, 'a"\\ö') == (
        '"model":"a\\"\\\\ö","priority":3,"stream_options":{"include_usage":true}'.encode()
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"}",
        b"{",
        b"}{",
        b"[]",
        b'["{}"]',
        b'"{}"',
        b"3",
        b"null",
        b'{"a":1',
        b'{"a":1} x',
        b'{"a":1}\0',
        b'{"a":1}\x0c',  # a form feed is no white space in JSON
        b'\x0c{"a":1}',
        b"\x1f\x8b\x08\x00{}",  # gzip
        '{"priority":-9}'.encode("utf-16"),
        '{"priority":-9}'.encode("utf-16-be"),
        '{"priority":-9}'.encode("utf-32"),
    ],
)
def test_what_is_no_object_is_left_alone(body: bytes) -> None:
    assert append_members(body, b'"priority":3') is None


def test_the_members() -> None:
    assert members(3) == b'"priority":3'
    assert members(-1_000_000_007) == b'"priority":-1000000007'
    assert members(None, True) == b'"stream_options":{"include_usage":true}'
    assert members(0, True) == b'"priority":0,"stream_options":{"include_usage":true}'
    assert members() == b""


def test_no_members_no_edit() -> None:
    body = b'{"a":1}'
    assert append_members(body, members()) is body


# --- generated bodies, written in as many ways as JSON allows

WORDS = ["priority", "stream_options", "model", "", "{", "}", "a}", '"', "\\", "\x7f", "é", "你", "😀", "\n"]
NUMBERS = ["0", "-0", "1.0", "1e5", "1E+400", "12345678901234567890123", "0.1000000000000000055511151231257827"]
OTHERS = ["true", "null", "[]", "[{}]", '"}"', '"\\"}"']


def blank(rng: Random) -> str:
    return "".join(rng.choices(" \t\r\n", k=rng.choice([0, 0, 1, 3])))


def string(rng: Random) -> str:
    written = []
    for char in rng.choice(WORDS):
        if rng.random() < 0.3:
            units = char.encode("utf-16-be")
            written += [f"\\u{units[i]:02X}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
        else:
            written.append(json.dumps(char, ensure_ascii=rng.random() < 0.5)[1:-1])
    return '"' + "".join(written) + '"'


def value(rng: Random, depth: int) -> str:
    if depth and rng.random() < 0.4:
        return an_object(rng, depth - 1)
    return rng.choice([string(rng), rng.choice(NUMBERS), rng.choice(OTHERS)])


def an_object(rng: Random, depth: int = 3) -> str:
    written = [
        f"{blank(rng)}{string(rng)}{blank(rng)}:{blank(rng)}{value(rng, depth)}{blank(rng)}"
        for _ in range(rng.randrange(4))
    ]
    return "{" + (",".join(written) or blank(rng)) + "}"


def generated(count: int) -> Iterator[tuple[Random, bytes]]:
    rng = Random(4)
    for _ in range(count):
        yield rng, (blank(rng) + an_object(rng) + blank(rng)).encode()


@pytest.mark.slow
def test_nothing_else_changes() -> None:
    for _, body in generated(5000):
        edited = append_members(body, OURS)
        assert edited is not None
        before = pairs(body)
        assert pairs(edited) == before + OUR_PAIRS
        close = body.rindex(b"}")
        comma = b"," if before else b""
        assert (edited[:close], edited[close:]) == (body[:close], comma + OURS + body[close:])
        assert json.loads(edited)["priority"] == 3


@pytest.mark.slow
def test_a_broken_body_stays_broken() -> None:
    """Otherwise the edit would make an engine accept what its client never wrote."""
    broken = edits = 0
    for rng, whole in generated(5000):
        at = rng.randrange(len(whole))
        body = whole[:at] + rng.choice([b"", b"}", b"{", b'"', b",", b":", b"\\"]) + whole[at + rng.randrange(3) :]
        try:
            json.loads(body)
        except ValueError:
            broken += 1
            edited = append_members(body, OURS)
            if edited is not None:
                edits += 1
                with pytest.raises(ValueError):
                    json.loads(edited)
    assert (broken > 2000, edits > 1000) == (True, True)


@pytest.mark.parametrize(
    "body",
    [
        b'{"priority":-9}',
        b'{"priority":-9,"priority":-8, "priority" : -7}',
        b'{"\\u0070riority":-9,"model":"m"}',
        b'{"model":"m","stream_options":{"include_usage":false},"priorit\\u0079":"high"}',
        b'{"priority":null,"p":{"priority":-9}}',
    ],
)
def test_engines_read_our_value(body: bytes) -> None:
    edited = append_members(body, OURS)
    assert edited is not None
    for read in (json.loads, orjson.loads, pydantic_core.from_json):
        parsed = read(edited)
        assert (parsed["priority"], parsed["stream_options"]) == (3, {"include_usage": True})
    validated = pydantic_core.SchemaValidator(
        pydantic_core.core_schema.typed_dict_schema(
            {"priority": pydantic_core.core_schema.typed_dict_field(pydantic_core.core_schema.int_schema())}
        )
    ).validate_json(edited)
    assert validated == {"priority": 3}


def test_twenty_megabytes() -> None:
    body = b'{"messages":"' + b"x}" * 10_000_000 + b'"}' + b"\n"
    edited = append_members(body, b'"priority":3')
    assert edited is not None
    assert len(edited) == len(body) + len(b',"priority":3')
    assert edited.endswith(b'x}","priority":3}\n')
