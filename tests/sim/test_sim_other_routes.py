"""Embeddings, rerank, audio and TGI's API: shapes, counts by hand, and that all of it runs on the one engine."""

from __future__ import annotations

import aiohttp
import orjson
import pytest
from sim_client import Sim


async def test_embeddings_and_rerank_are_counted(sim: Sim) -> None:
    """Four bytes are a token: 8 and 5 bytes are 2 + 2; the query goes with each document: 1 + 7 and 1 + 2 bytes."""
    status, answer = await sim.post("/v1/embeddings", {"model": "sim-7b", "input": ["abcdefgh", "abcde"]})
    assert status == 200
    assert [each["index"] for each in answer["data"]] == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}
    status, answer = await sim.post("/v1/rerank", {"query": "q", "documents": ["abcdefg", "ab"]})
    assert status == 200
    assert sorted(each["index"] for each in answer["results"]) == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_a_form_with_sound(sim: Sim) -> None:
    """Two seconds of sound; as the four-byte rule has it, the answer's length is fixed."""
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        form = aiohttp.FormData()
        form.add_field("model", "sim-7b")
        form.add_field("file", bytes(64_000), filename="a.wav", content_type="audio/wav")
        async with sim.http.post(sim.url + path, data=form) as answer:
            body = orjson.loads(await answer.read())
        assert answer.status == 200
        assert body["usage"] == {"type": "duration", "seconds": 2}
        assert len(body["text"].split()) == 16
    entries = await sim.get("/sim/requests")
    assert [(e["state"], e["tokens"]) for e in entries] == [("finished", 16)] * 2


async def test_speech(sim: Sim) -> None:
    async with sim.http.post(sim.url + "/v1/audio/speech", json={"model": "sim-7b", "input": "abcdefgh"}) as answer:
        assert answer.status == 200
        assert answer.content_type == "audio/pcm"
        assert len(await answer.read()) == 2 * 960


async def test_tgi(sim: Sim) -> None:
    body = {"inputs": "abcdefgh", "parameters": {"max_new_tokens": 3, "details": True}}
    status, answer = await sim.post("/generate", body)
    assert status == 200
    assert len(answer["generated_text"].split()) == 3
    counted = {"finish_reason": "length", "generated_tokens": 3, "input_length": 2}
    assert counted.items() <= answer["details"].items()
    events = [orjson.loads(event) for event in await sim.stream("/generate_stream", body)]
    assert [event["index"] for event in events] == [1, 2, 3]
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"]
    assert counted.items() <= events[-1]["details"].items()
    assert [event["details"] for event in events[:-1]] == [None, None]
    events = await sim.stream("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 1}})
    assert orjson.loads(events[-1])["details"] is None


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", b"not json", 400),
        ("/v1/embeddings", b"[1]", 400),
        ("/v1/embeddings", b'{"input": []}', 400),
        ("/v1/embeddings", b'{"input": [1]}', 400),
        ("/v1/embeddings", b'{"input": "a", "model": "other"}', 404),
        ("/v1/rerank", b'{"query": "q"}', 400),
        ("/generate", b'{"inputs": "a", "parameters": 1}', 400),
        ("/generate", b'{"inputs": "a", "parameters": {"max_new_tokens": 0}}', 400),
        ("/v1/audio/transcriptions", b'{"model": "sim-7b"}', 400),
        ("/v1/audio/speech", b"{}", 400),
    ],
)
async def test_what_cannot_be_read(sim: Sim, path: str, body: bytes, status: int) -> None:
    found, answer = await sim.post(path, body)
    assert found == status
    assert answer["error"]["message"]
    (entry,) = await sim.get("/sim/requests")
    assert (entry["state"], entry["status"]) == ("refused", status)
