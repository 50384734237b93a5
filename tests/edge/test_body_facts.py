"""What is read out of a request's body. Sizes and counts are worked out by hand."""

from __future__ import annotations

import base64
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.edge.body_facts import MAX_PARTS, PREFIX_BYTES, BodyFacts, read

JSON = "application/json"


def facts(body: bytes | dict[str, Any]) -> BodyFacts:
    return read(JSON, "", body if isinstance(body, bytes) else orjson.dumps(body))


def test_a_chat() -> None:
    body = (
        b'{"model":"m","stream":true,"max_tokens":16,"n":2,"stream_options":{"include_usage":true},'
        b'"messages":[{"role":"user","content":"hi"}]}'
    )
    assert facts(body) == BodyFacts(
        model="m",
        stream=True,
        max_output=16,
        n=2,
        include_usage=True,
        stream_options_given=True,
        is_object=True,
        text_bytes=len(body),
    )


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"max_completion_tokens": 1, "max_tokens": 2}, 1),
        ({"max_completion_tokens": None, "max_tokens": "12"}, "12"),
        ({"max_tokens": [5], "max_output_tokens": 7.5}, 7.5),
        ({"parameters": {"max_new_tokens": 9}, "inputs": "x"}, 9),
        ({"parameters": [9]}, None),
        ({"max_tokens": 0, "max_output_tokens": 3}, 0),
    ],
)
def test_the_limit_is_the_first_that_is_given_as_sent(body: dict[str, Any], limit: Any) -> None:
    assert facts(body).max_output == limit


@pytest.mark.parametrize(
    ("model", "read_as"),
    [("m", "m"), ("", ""), (7, 7), (True, True), (None, None), (["m"], None), ({"a": 1}, None)],
)
def test_the_model_as_sent(model: Any, read_as: Any) -> None:
    assert facts({"model": model}).model is read_as or facts({"model": model}).model == read_as


@pytest.mark.parametrize(
    ("options", "given", "usage"),
    [
        (None, False, False),
        ({}, True, False),
        ({"include_usage": False}, True, False),
        ({"include_usage": True}, True, True),
        ({"include_usage": "true"}, True, False),
        ("x", True, False),
    ],
)
def test_stream_options(options: Any, given: bool, usage: bool) -> None:
    found = facts({"stream_options": options})
    assert (found.stream_options_given, found.include_usage) == (given, usage)


def test_only_true_is_a_stream() -> None:
    """Injecting stream_options where the engine sees no stream is refused by it."""
    assert [facts({"stream": value}).stream for value in (True, False, None, "yes", 1)] == [True] + [False] * 4


@pytest.mark.parametrize(
    ("body", "prompts"),
    [
        ({"prompt": "one"}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
        ({"prompt": None, "input": ["a", "b"]}, 2),
        ({"inputs": "x"}, 1),
        ({"texts": ["a", "b"], "query": "q"}, 2),
        ({"query": "q", "documents": ["a", "b", "c", "d"]}, 4),
        ({"query": "q", "documents": [{"text": "a"}, {"text": "b"}]}, 2),
        ({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, 1),
        ({"messages": [], "documents": ["a", "b"]}, 1),
        ({"messages": [], "input": "x", "prompt": ["a", "b"]}, 2),  # nothing to hide a list behind
        ({"prompt": {"a": 1}}, 1),
    ],
)
def test_prompts_of_a_list(body: dict[str, Any], prompts: int) -> None:
    assert facts(body).prompts == prompts


IMAGE = base64.b64encode(bytes(range(256)) * 40)  # 13,656 characters


def test_inline_images_are_counted_and_are_no_text() -> None:
    uri = b"data:image/png;base64," + IMAGE
    body = (
        b'{"messages":[{"role":"user","content":["look",{"type":"text","text":"what is this?"},'
        b'{"type":"image_url","image_url":{"url":"' + uri + b'"}},'
        b'{"type":"image_url","image_url":{"url":"https://example.com/a.png"}},'
        b'{"type":"input_audio","input_audio":{"data":"' + IMAGE + b'","format":"wav"}}]}]}'
    )
    found = facts(body)
    assert found.images == 2
    assert found.text_bytes == len(body) - len(uri) - len(IMAGE)


def test_anthropic_images() -> None:
    body = (
        b'{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":'
        b'{"type":"base64","media_type":"image/png","data":"' + IMAGE + b'"}}]},'
        b'{"type":"document","source":{"type":"text","data":"words"}}]}]}'
    )
    found = facts(body)
    assert (found.images, found.text_bytes) == (1, len(body) - len(IMAGE))


def test_an_image_inside_text_ends_where_base64_ends() -> None:
    body = rb'{"inputs":"![](data:image\/jpeg;base64,AAA\/BBB=) what is this?"}'
    found = facts(body)
    assert (found.images, found.text_bytes) == (1, len(body) - len(rb"data:image\/jpeg;base64,AAA\/BBB="))


@pytest.mark.parametrize(
    "text",
    [
        b"data: 1, 2, 3",
        b"data:image",
        b";base64,",
        b"the scheme data:text/plain,hello and what it does",
    ],
)
def test_words_are_no_media(text: bytes) -> None:
    body = b'{"prompt":"' + text + b'"}'
    assert (facts(body).text_bytes, facts(body).images) == (len(body), 0)


def test_a_prompt_does_not_hide_behind_an_image() -> None:
    hidden = "你好".encode() * 1000
    body = b'{"prompt":"data:image/png;base64,AAAA' + hidden + b'"}'
    assert facts(body).text_bytes == len(body) - len(b"data:image/png;base64,AAAA")
    escaped = rb"\u4f60" * 1000
    body = b'{"prompt":"data:image/png;base64,AAAA' + escaped + b'"}'
    assert facts(body).text_bytes == len(body) - len(b"data:image/png;base64,AAAA")


# --- prefixes


def hashes(text: bytes, count: int) -> tuple[int, ...]:
    return tuple(int.from_bytes(blake2b(text[:size], digest_size=8).digest(), "big") for size in PREFIX_BYTES[:count])


def test_the_prefix_begins_at_the_value() -> None:
    value = b'"' + b"p" * 3000 + b'"'
    body = b'{"model":"m", "prompt" : ' + value + b"}"
    assert facts(body).prefix == hashes(value, 3)  # 512, 1024, 2048; 4096 is not full


def test_a_conversation_that_goes_on_keeps_its_prefix() -> None:
    def chat(model: str, *turns: str) -> tuple[int, ...]:
        return facts({"model": model, "messages": [{"role": "user", "content": turn} for turn in turns]}).prefix

    first, second = chat("m", "a" * 5000), chat("other", "a" * 5000, "b" * 5000)
    assert (len(first), len(second)) == (4, 5)
    assert second[:4] == first
    assert not set(chat("m", "b" * 5000)) & set(first)


def test_eight_hashes_at_most_and_none_of_a_short_prompt() -> None:
    assert len(facts({"prompt": "x" * 500_000}).prefix) == len(PREFIX_BYTES) == 8
    assert facts({"prompt": "x"}).prefix == ()
    assert facts({"model": "m" * 5000}).prefix == ()


def test_a_nested_or_quoted_name_is_not_the_prompt() -> None:
    value = b'"' + b"p" * 600 + b'"'
    body = b'{"metadata":{"prompt":1,"x":[{"prompt":2}]},"x\\"prompt":"\\"prompt\\":","prompt":' + value + b"}"
    assert facts(body).prefix == hashes(value, 1)


# --- what cannot be read


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"\xef\xbb\xbf", "the body is empty"),
        (b"{", "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":"\\ud800"}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "not JSON"),
        (b'{"a":1}{"a":1}', "not JSON"),
        ('{"model":"m"}'.encode("utf-16"), "not JSON"),
        (b"[1]", "no object"),
        (b'"x"', "no object"),
        (b"null", "no object"),
    ],
)
def test_json_that_cannot_be_read(body: bytes, words: str) -> None:
    found = facts(body)
    assert found.malformed is not None
    assert words in found.malformed
    assert (found.is_object, found.model, found.prompts, found.text_bytes) == (False, None, 1, len(body))


def test_a_thousand_levels_are_read() -> None:
    found = facts(b'{"model":"m","messages":' + b"[" * 1000 + b"]" * 1000 + b"}")
    assert (found.model, found.malformed) == ("m", None)
    deep = b'{"content":[' * 500 + b'{"type":"image"}' + b"]}" * 500
    assert facts(b'{"messages":[' + deep + b"]}").images == 1


def test_a_byte_order_mark_is_no_fault() -> None:
    """Python's json, by which vLLM reads, takes it."""
    assert facts(b'\xef\xbb\xbf{"model":"m"}').model == "m"


@pytest.mark.parametrize("coding", ["gzip", "Identity", "x"])
def test_a_coding_that_lies_hides_nothing(coding: str) -> None:
    """An engine that does not look at the header reads the body all the same, and so it must not pass by the queue."""
    assert read(JSON, coding, b' {"model": "m"}').model == "m"


@pytest.mark.parametrize("coding", ["gzip", "GZIP ", "br", "identity, gzip", "x\r\ny\x00é"])
def test_compressed(coding: str) -> None:
    found = read(JSON, coding, b"\x1f\x8b")
    assert found.malformed is not None
    assert found.malformed.startswith("the body is compressed (content-encoding: ")
    assert found.malformed.isprintable()


def test_the_reason_names_the_coding() -> None:
    assert read(JSON, "gzip", b"x").malformed == "the body is compressed (content-encoding: gzip)"


@pytest.mark.parametrize(
    ("kind", "readable"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/vnd.api+json", True),
        ("", False),
        ("text/plain", False),
        ("application/jsonp", False),
        ("application/x-www-form-urlencoded", False),
        ("x" * 100_000, False),
    ],
)
def test_content_types(kind: str, readable: bool) -> None:
    found = read(kind, "identity", b'{"model":"m"}')
    assert (found.malformed is None) is readable
    assert len(found.malformed or "") < 200


# --- forms


def form(*parts: tuple[str, bytes], boundary: str = "xyz") -> bytes:
    text = b"".join(b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary.encode(), head.encode(), value) for head, value in parts)
    return text + b"--%s--\r\n" % boundary.encode()


def named(name: str, more: str = "") -> str:
    return f'Content-Disposition: form-data; name="{name}"{more}'


AUDIO = (named("file", '; filename="a.wav"') + "\r\nContent-Type: audio/wav", b"RIFF\r\n--xy\r\n\x00\xff" * 1000)


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=xyz",
        'Multipart/Form-Data; charset=utf-8; boundary="xyz"',
    ],
)
def test_an_audio_form(kind: str) -> None:
    body = form(
        AUDIO,
        (named("model"), b"whisper"),
        (named("stream"), b"True"),
        (named("stream_include_usage"), b"1"),
        (named("max_completion_tokens"), b"99"),
        (named("prompt"), b"Hello"),
    )
    assert read(kind, "", body) == BodyFacts(
        model="whisper",
        stream=True,
        max_output="99",
        include_usage=True,
        text_bytes=len(b"whisperTrue199Hello"),
        file_bytes=len(AUDIO[1]),
    )


def test_the_last_of_two_fields_counts_and_a_file_is_no_field() -> None:
    kind = "multipart/form-data; boundary=xyz"
    assert read(kind, "", form((named("model"), b"a"), (named("model"), b"b"))).model == "b"
    assert read(kind, "", form((named("model", "; filename=x"), b"a"))).model is None
    assert read(kind, "", form(("content-type: text/plain", b"a"), (named("model"), b"m"))).model == "m"
    assert read(kind, "", form((named("model") + "\r\nX: y", b"m"))).model == "m"
    assert read(kind, "", form((named("model"), b"m" * 5000))).model == "m" * 1024


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("multipart/form-data", form(AUDIO), "no boundary"),
        ("multipart/form-data; boundary=", form(AUDIO), "no boundary"),
        ('multipart/form-data; boundary=""', form(AUDIO), "no boundary"),
        ("multipart/form-data; boundary=" + "b" * 10_240, form(AUDIO), "cannot be read"),
        ("multipart/form-data; boundary=other", form(AUDIO), "cannot be read"),
        ("multipart/form-data; boundary=xyz", b"", "ends before"),
        ("multipart/form-data; boundary=xyz", form(AUDIO)[:-20], "ends before"),
        ("multipart/form-data; boundary=xyz", form(("no colon", b"x")), "cannot be read"),
        ("multipart/form-data; boundary=xyz", form(("a: " + "x" * 100_000, b"x")), "cannot be read"),
        ("multipart/form-data; boundary=xyz", form(("\r\n".join(f"h{i}: x" for i in range(1000)), b"")), "cannot"),
        ("multipart/form-data; boundary=xyz", form(*[AUDIO] * (MAX_PARTS + 1)), "more than 100 parts"),
        ("multipart/form-data; boundary=\ufffd\u4f60", form(AUDIO), "cannot be read"),
    ],
)
def test_forms_that_cannot_be_read(kind: str, body: bytes, words: str) -> None:
    found = read(kind, "", body)
    assert found.malformed is not None
    assert words in found.malformed
    assert (found.model, found.text_bytes) == (None, len(body))


def test_a_client_cannot_fill_the_log_with_faulty_forms(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        assert read("multipart/form-data; boundary=other", "", form(AUDIO)).malformed
    assert not caplog.records


# --- nothing raises

NAMES = st.sampled_from(
    [
        "model",
        "stream",
        "n",
        "max_tokens",
        "parameters",
        "max_new_tokens",
        "stream_options",
        "include_usage",
        "messages",
        "input",
        "prompt",
        "content",
        "type",
        "source",
        "data",
        "input_audio",
        "image_url",
        "documents",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=6,
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.dictionaries(NAMES, json_values, max_size=6))
def test_any_types_under_the_names_that_are_read(value: dict[str, Any]) -> None:
    body = orjson.dumps(value)
    found = facts(body)
    assert found.malformed is None
    assert 0 <= found.text_bytes <= len(body)
    assert found.prompts >= 1


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.sampled_from([JSON, "multipart/form-data; boundary=b", "multipart/form-data; boundary=\x00"]) | st.text(),
    st.sampled_from(["", "identity"]) | st.text(max_size=5),
    st.lists(
        st.sampled_from([b"--b", b"\r\n", b"--", b"\r", b"content-disposition: form-data; name=model", b":", b"{"])
        | st.binary(max_size=6)
    ).map(b"".join),
)
def test_any_bytes(kind: str, coding: str, body: bytes) -> None:
    found = read(kind, coding, body)
    assert found.malformed is not None or found.text_bytes <= len(body)


# --- large bodies, which are searched


def padded(body: bytes) -> tuple[BodyFacts, BodyFacts]:
    """Facts of the body without PAD, which is built, and with 300,000 bytes in its place, which is searched."""
    return facts(body.replace(b"PAD", b"")), facts(body.replace(b"PAD", b"w " * 150_000))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","stream":true,"max_tokens":16,"n":2,"stream_options":{"include_usage":true},'
        b'"messages":[{"role":"user","content":"PAD"}]}',
        b'{"messages": [{"role": "user", "content": "\\"model\\": \\"x\\", PAD"}], "model": "m", "stream": true, '
        b'"max_completion_tokens": 7, "stream_options": null, "tools": [{"type": "function", "function": {"name": "f", '
        b'"parameters": {"properties": {"model": "x", "n": 3, "stream": {"type": "boolean"}}}}}]}',
        b'{"tools":[{"n":5,"model":"x"}],"prompt":["PAD","a, \\"b\\", [c","d\\\\"],"n":null,"model":"m\\u00e9"}',
        b'{"prompt":[[1,2],[3]],"user":"PAD","n":null,"model":7,"stream":1}',
        b'{"prompt":[1,2,3],"user":"PAD","model":["m"],"stream_options":{"include_usage":false}}',
        b'{"inputs":"PAD","parameters":{"max_new_tokens":9,"stop":["}"]},"stream":false,"stream_options":"x"}',
        b'{"model":"r","query":"q","documents":[{"text":"PAD"},{"text":"},{"},{"text":"b","x":{"y":[1,2]}}]}',
        b'{"model":"m","documents":["a","b"],"messages":[{"content":"PAD"}],"max_tokens":-1.5e3}',
        b'{"model":"m","input":[{"role":"user","content":"PAD"},{"role":"user","content":"a"}],"max_output_tokens":3}',
        b' {"model":"first","prompt":"PAD","model":"last"}\n',
    ],
)
def test_a_large_body_gives_the_same_facts(body: bytes) -> None:
    small, large = padded(body)
    assert small.malformed is None
    assert large.text_bytes == small.text_bytes + 300_000
    assert replace(large, text_bytes=0, prefix=()) == replace(small, text_bytes=0, prefix=())


def test_media_of_a_large_body() -> None:
    big = base64.b64encode(bytes(300_000))
    uri = b"data:image/png;base64," + big
    text = (
        b'{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"%s"}},{"type":"image","source":'
    )
    text += b'{"type":"base64","data":"%s"}},{"type":"input_audio","input_audio":{"data": "%s","format":"wav"}}]}]}'
    found = facts(text % (uri, big, big))
    assert (found.images, found.text_bytes) == (2, len(text % (b"", b"", b"")))
    hidden = facts(b'{"model":"m","prompt":"' + uri + b"my words " * 40_000 + b'"}')
    assert hidden.text_bytes > 9 * 40_000 - len(b"my") - 1


def test_the_prefix_of_a_large_body() -> None:
    value = b'[{"role":"user","content":"' + b"p" * 300_000 + b'"}]'
    assert facts(b'{"model":"m","tools":[{"messages":"x"}], "messages" : ' + value + b"}").prefix == hashes(value, 8)


def test_parameters_between_a_long_conversation_and_many_tools() -> None:
    tool = b'{"type":"function","function":{"name":"f","parameters":{"properties":{"n":{"type":"integer"}}}}},'
    body = b'{"messages":[{"content":"%s"}],"model":"m","n":2,"stream":true,"tools":[%snull]}'
    found = facts(body % (b"w " * 200_000, tool * 2000))  # 200 KB of tools: more tokens than are looked at
    assert (found.model, found.n, found.stream) == ("m", 2, True)


@pytest.mark.parametrize("body", [b"[%s]" % (b"1," * 200_000), b'{"a":"' + b"x" * 300_000, b"x" * 300_000])
def test_a_large_body_that_is_no_object(body: bytes) -> None:
    assert facts(body).malformed == "the body is not JSON, or no object"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","a":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"a":[' + b"{}," * 50_000 + b'{}],"model":"m"}',  # small, but with many braces
        b'{"model":"m","prompt":"' + b"data:a/" * 400_000 + b';base64,"}',
        b'{"model":"m","prompt":[' + b'"\\"",' * 300_000 + b'""]}',
        b'{"model":"m","a":[' + b'{"model":[]},' * 50_000 + b'{}],"prompt":["' + b'\\"' * 200_000 + b'"]}',
    ],
)
def test_little_of_a_hostile_body_is_built(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    loads = orjson.loads

    def counting(text: bytes) -> Any:
        built.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", counting)
    found = facts(body)
    assert (found.malformed, found.model) == (None, "m")
    assert found.prompts <= 128
    assert sum(built) < 10_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"--xyz\r\n\r\nA\r\n--xyz" + b" " * 100_000 + b"\r\n\r\n\r\n--xyz--\r\n", "blanks behind a boundary"),
        (form(*[(named("a", ";" * 900), b"x")] * 90), "headers are too long"),
        (form((named("a", ";" * 2000), b"x")), "a header is too long"),
        (form((named("model"), b"m\r\n--xyz" + b" " * 100)), "blanks"),
    ],
)
def test_forms_on_which_the_parser_would_be_slow(body: bytes, words: str) -> None:
    found = read("multipart/form-data; boundary=xyz", "", body)
    assert words in (found.malformed or "")
    assert (found.model, found.text_bytes) == (None, len(body))
