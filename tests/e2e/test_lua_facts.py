"""envoy/lua/facts.lua in a real Envoy: what it says of a body, against what the test has put into it."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from lua_case import JSON, Case, Json, filtering, lua, shipped

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SIZES = [512 << i for i in range(8)]  # to 64 KiB

# In place of ext_proc, so that the test sees the facts and the body's edit work in one chain.
WISH = """
function envoy_on_request(handle)
  handle:streamInfo():dynamicMetadata():set("fairlane.body", "append", '"priority":1')
end
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def case(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Case]:
    filters = [shipped("fairlane.facts"), lua("facts.lua"), lua(WISH), lua("append.lua")]
    async with filtering(tmp_path_factory.mktemp("facts"), filters) as case:
        yield case
        assert not case.script_errors()


async def facts(case: Case, body: Any, headers: Json = JSON) -> Json:
    """The metadata fairlane.request."""
    name = await case.post(body if isinstance(body, bytes) else json.dumps(body).encode(), headers)
    return await case.metadata(name, "request")


def hashes(found: Json) -> list[str]:
    return found["prefix"].split(",") if "prefix" in found else []


def user(content: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


# -- the members that count ---------------------------------------------------------------------------

PNG = "data:image/png;base64," + "iVBORw0KGgo+/" * 50 + "=="
BASE64 = "/9j/4AAQSkZJRg+" * 30 + "="


async def test_the_facts_of_the_first_filter_stay(case: Case) -> None:
    body = {"model": "m", "stream": True, "max_tokens": 7, "messages": [], "n": 2}
    found = await facts(case, body)
    assert found.items() >= {"model": "m", "stream": True, "max_tokens": 7, "n": 2}.items()
    assert found.items() >= {"text_bytes": len(json.dumps(body)), "images": 0, "prompts": 1}.items()
    assert "prefix" not in found


async def test_the_body_is_edited_behind_it(case: Case) -> None:
    name = await case.post(b'{"model":"m"}')
    assert case.received(name).body == b'{"model":"m","priority":1}'


MEDIA = {
    "chat, a data URI": (user([{"type": "image_url", "image_url": {"url": PNG}}]), 1, len(PNG)),
    "chat, the url without an object": (user([{"image_url": PNG}, {"image_url": PNG}]), 2, 2 * len(PNG)),
    "chat, an address": (user([{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]), 1, 0),
    "responses": ({"model": "m", "input": [{"content": [{"type": "input_image", "image_url": PNG}]}]}, 1, len(PNG)),
    "messages": (
        user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}]),
        1,
        len(BASE64),
    ),
    "messages, an address": (user([{"type": "image", "source": {"type": "url", "url": "http://a/b"}}]), 1, 0),
    "audio": (user([{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}]), 0, len(BASE64)),
    "a file": (user([{"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}}]), 0, 36),
    "URIs in a list": ({"model": "m", "input": [PNG, "text"]}, 0, len(PNG)),
    "responses, an uploaded file": (user([{"type": "input_image", "file_id": "f"}]), 1, 0),
    "a URI of parameters": (user([{"video_url": {"url": "data:video/mp4;codecs=avc1;base64,AAAA"}}]), 0, 38),
    "a URI of text": (user([{"file": {"file_data": "data:text/plain;charset=utf-8,hello"}}]), 0, 0),
    "an empty URI": (user([{"image_url": {"url": "data:;base64,"}}]), 1, 13),
    "text that begins like one": (user("data: [DONE];base64,and so on"), 0, 0),
    "text behind an image's header": (user(PNG + " and now tell me a long story. " * 50), 0, 0),
    "text inside an image": (user(PNG + "a long story " * 60 + PNG), 0, 0),
    "a short value of data": (user([{"data": BASE64[:200]}]), 0, 0),
    "a long text as data": (user([{"data": "not base64 " * 100}]), 0, 0),
    "a list as data": (user([{"data": [BASE64]}]), 0, 0),
}


@pytest.mark.parametrize("name", MEDIA)
async def test_media(name: str, case: Case) -> None:
    body, images, media = MEDIA[name]
    found = await facts(case, body)
    assert (found["images"], len(json.dumps(body)) - found["text_bytes"]) == (images, media)


async def test_slashes_may_be_escaped(case: Case) -> None:
    escaped = json.dumps(user([{"image_url": {"url": PNG}}])).replace("/", "\\/").encode()
    found = await facts(case, escaped)
    assert found["text_bytes"] == len(escaped) - len(PNG.replace("/", "\\/"))


PROMPTS = {
    "no prompt": ({}, 1),
    "a string": ({"prompt": "a, b"}, 1),
    "strings": ({"prompt": ["a", "b, c", '"d", ["e"]']}, 3),
    "an empty list": ({"prompt": []}, 1),
    "token ids": ({"prompt": [1, 2, 3]}, 1),
    "lists of token ids": ({"prompt": [[1, 2, 3], [4], []]}, 3),
    "embeddings": ({"input": ["a", "b"]}, 2),
    "TGI's and other names": ({"texts": ["a"] * 5, "inputs": "x"}, 5),
    "rerank": ({"query": "q", "documents": ["a", "b", "c", "d"]}, 4),
    "rerank of objects": ({"query": "q", "documents": [{"text": "a"}, {"text": "b", "x": ["c"]}]}, 2),
    "documents of a chat": ({"documents": [{"text": "a"}, {"text": "b"}], "messages": []}, 1),
    "a list hidden by another": ({"prompt": ["a", "b", "c"], "input": ["d"], "messages": [], "documents": []}, 3),
    "messages": ({"messages": [{"content": ["a", "b"]}, {"content": ["c"]}]}, 1),
    "items of /v1/responses": ({"input": [{"content": [{"text": "a"}]}, {"content": [{"text": "b"}]}]}, 1),
    "an object": ({"input": {"a": "b", "c": ["d", "e"]}}, 1),
    "the name further in": ({"x": {"prompt": ["a", "b"]}, "y": [["prompt", "input"]]}, 1),
    "strings that look like it": ({"a": '"prompt":["x","y"]', "b": ["prompt", "x"]}, 1),
    "a list of its own behind it": ({"prompt": ["a", "b"], "stop": ["x", "y", "z"]}, 2),
    "10,000": ({"input": ["text"] * 10_000}, 10_000),
}


@pytest.mark.parametrize("name", PROMPTS)
async def test_prompts(name: str, case: Case) -> None:
    members, count = PROMPTS[name]
    assert (await facts(case, {"model": "m", **members}))["prompts"] == count


@pytest.mark.parametrize(
    "body",
    [
        b'{"\\u0070rompt":["a","b"]}',
        b'{"\\u0070\\u0072\\u006f\\u006D\\u0070\\u0074" :\n[ "a" ,"b"]}',
        b'\xef\xbb\xbf{"prompt":["a","b"]}',
        b'{"prompt":["a","b"],"prompt":"a"}',
    ],
)
async def test_prompts_cannot_be_hidden(body: bytes, case: Case) -> None:
    assert (await facts(case, body))["prompts"] == 2


# -- prefixes ---------------------------------------------------------------------------------------------


def completion(prompt: str, **more: Any) -> bytes:
    return json.dumps({"model": "m", **more, "prompt": prompt}).encode()


@pytest.mark.parametrize(
    ("length", "count"), [(509, 0), (510, 1), (1021, 1), (1022, 2), (65_533, 7), (65_534, 8), (200_000, 8)]
)
async def test_only_full_lengths_are_hashed(length: int, count: int, case: Case) -> None:
    """The two quotes are part of the prompt as it stands in the body."""
    found = hashes(await facts(case, completion("x" * length)))
    assert len(found) == len(set(found)) == count
    assert all(len(text) == 8 and int(text, 16) >= 0 and text == text.lower() for text in found)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 510, 511, 512, 700, 1_022, 1_023, 4_095, 4_096, 40_000, 65_533, 65_534])
async def test_a_change_shows_in_the_hashes_from_there_on(at: int, case: Case) -> None:
    text = "".join(random.Random(1).choices("abcdef", k=70_000))
    one = hashes(await facts(case, completion(text)))
    other = hashes(await facts(case, completion(text[:at] + "x" + text[at + 1 :], temperature=1)))
    same = [size <= at + 1 for size in SIZES]  # a quote comes first
    assert [a == b for a, b in zip(one, other, strict=True)] == same


@pytest.mark.parametrize("name", ["messages", "prompt", "input", "inputs"])
async def test_the_value_of_each_name_is_the_prompt(name: str, case: Case) -> None:
    value = [{"role": "user", "content": "y" * 2_000}]
    bodies = (f'{{"a":{{"{name}":"{"z" * k}"}},\n"{name}" :\t{json.dumps(value)} ,"b":{k}}}'.encode() for k in (1, 900))
    one, other = [hashes(await facts(case, body)) for body in bodies]
    assert one == other
    assert len(one) == 2


async def test_a_growing_conversation_keeps_its_hashes(case: Case) -> None:
    turns: list[Json] = []
    seen: list[str] = []
    for number in range(12):
        turns.append({"role": "user", "content": f"turn {number} " + "w" * 700})
        found = hashes(await facts(case, {"model": "m", "messages": turns}))
        assert found[: len(seen)] == seen
        seen = found
    assert len(seen) == 5  # 8 KiB of about 8.9


# -- what is not looked at, and what is no good -------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json", "application/json ;x=y"],
)
async def test_json_content_types(content_type: str, case: Case) -> None:
    assert (await facts(case, b"{}", {"content-type": content_type}))["text_bytes"] == 2


@pytest.mark.parametrize("content_type", ["text/plain", "application/jsonl", "multipart/form-data; boundary=json", ""])
async def test_other_content_types(content_type: str, case: Case) -> None:
    assert "text_bytes" not in await facts(case, b"{}", {"content-type": content_type})


async def test_compressed(case: Case) -> None:
    found = await facts(case, gzip.compress(b"{}"), {**JSON, "content-encoding": "gzip"})
    assert "text_bytes" not in found


@pytest.mark.parametrize("body", [b"", b"   ", b"[]", b'["{"]', b'"{"', b"12", b"\xef\xbb\xbf", b"}"])
async def test_no_object(body: bytes, case: Case) -> None:
    assert "text_bytes" not in await facts(case, body)


BAD = {
    "a string without an end": b'{"prompt":"abc',
    "an escape at the end": b'{"prompt":"abc\\',
    "an escaped quote at the end": b'{"prompt":"abc\\"',
    "more closed than opened": b'{"prompt":["a"]]]}}},"input":["b"]}',
    "100,000 deep": b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "only brackets": b"{" + b"[" * 300_000,
    "only colons": b"{" + b":" * 300_000,
    "only quotes": b"{" + b'"' * 300_001,
    "only escapes": b'{"' + b"\\" * 300_001,
    "colons before strings": b'{::"prompt"::["a",:"b"]}',
    "bytes": b"{" + random.Random(3).randbytes(100_000),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_bodies_raise_nothing(name: str, case: Case) -> None:
    """A number or none, and the body goes on (our edit needs only a brace at each end)."""
    body = BAD[name]
    sent = await case.post(body)
    assert case.received(sent).body in (body, body.rstrip()[:-1] + b',"priority":1}')
    assert (await case.metadata(sent, "request"))["text_bytes"] <= len(body)
    assert not case.script_errors()


async def test_20_mb_of_images(case: Case) -> None:
    uris = ["data:image/jpeg;base64," + random.Random(i).randbytes(2_500_000).hex() for i in range(4)]
    body = user([{"type": "text", "text": "what?"}, *({"type": "image_url", "image_url": {"url": u}} for u in uris)])
    found = await facts(case, body)
    assert found["images"] == 4
    assert found["text_bytes"] == len(json.dumps(body)) - sum(map(len, uris))
    assert len(hashes(found)) == 8


# -- generated bodies -----------------------------------------------------------------------------------

COUNT = 400
TRAPS = [
    'say "prompt": ["a", "b"]',
    '{"type":"image"}',
    '","image_url":{"url":"data:image/png;base64,AAAA"}}',
    "data: image/png, no URI",
    "back\\slash \\\\",
    '\\"',
    "]}]}",
    "[[[{{{",
    "grüße 你好 😀",
    ":,",
]


@dataclass
class Made:
    """A body and what is in it."""

    members: Json
    images: int = 0
    media: tuple[str, ...] = ()
    prompts: int = 1
    prompt: Any = None

    def written(self, **style: Any) -> tuple[bytes, Json]:
        body = json.dumps(self.members, **style).encode()
        media = sum(len(json.dumps(uri, **style).encode()) - 2 for uri in self.media)
        prompt = len(json.dumps(self.prompt, **style).encode())
        full = sum(size <= prompt for size in SIZES)
        return body, {"text_bytes": len(body) - media, "images": self.images, "prompts": self.prompts, "full": full}


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def body(self) -> Made:
        make = self.random.choice((self.chat, self.completion, self.embeddings, self.multimodal))
        made = make()
        made.members |= {
            "stop": [self.text()],
            "tools": [{"function": {"description": self.text()}}],
            "user": self.text(),
        }
        names = list(made.members)
        self.random.shuffle(names)
        made.members = {name: made.members[name] for name in names}
        return made

    def text(self) -> str:
        parts = self.random.choices([*TRAPS, "some words and more of them " * 20], k=self.random.randrange(6))
        return "".join(parts)

    def chat(self) -> Made:
        turns = [{"role": "user", "content": self.text()} for _ in range(self.random.randrange(1, 9))]
        return Made({"model": "m", "messages": turns}, prompt=turns)

    def completion(self) -> Made:
        count = self.random.randrange(1, 9)
        prompt: Any = self.random.choice(
            (self.text(), [self.text() for _ in range(count)], [[1, 22, 333]] * count, [1, 22, 333] * 50 * count)
        )
        many = isinstance(prompt, list) and not isinstance(prompt[0], int)
        return Made({"model": "m", "prompt": prompt}, prompt=prompt, prompts=count if many else 1)

    def embeddings(self) -> Made:
        texts = [self.text() for _ in range(self.random.randrange(1, 200))]
        return Made({"model": "m", "input": texts}, prompt=texts, prompts=len(texts))

    def multimodal(self) -> Made:
        parts: list[Json] = []
        uris: list[str] = []
        for _ in range(self.random.randrange(1, 6)):
            parts.append({"type": "text", "text": self.text()})
            uri = "data:image/webp;base64," + self.random.randbytes(self.random.randrange(2_000)).hex()
            parts.append({"type": "image_url", "image_url": {"url": uri, "detail": self.text()}})
            uris.append(uri)
        self.random.shuffle(parts)
        turns = [{"role": "user", "content": parts}]
        return Made({"model": "m", "messages": turns}, prompt=turns, images=len(uris), media=tuple(uris))


async def test_generated_bodies(case: Case) -> None:
    maker = Maker(7)
    styles: Sequence[Json] = ({}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"separators": (" , ", " :\n")})
    made = [maker.body().written(**styles[i % len(styles)]) for i in range(COUNT)]

    async def some(share: Sequence[tuple[bytes, Json]]) -> list[str]:
        return [await case.post(body) for body, _ in share]

    shares = [made[i::4] for i in range(4)]
    names = await asyncio.gather(*map(some, shares))
    for share, sent in zip(shares, names, strict=True):
        for (body, wanted), entry in zip(share, await case.logged(*sent), strict=True):
            found = entry["request"]
            got = {key: found[key] for key in ("text_bytes", "images", "prompts")} | {"full": len(hashes(found))}
            assert got == wanted, body
