"""A model by another name, through the real Envoy: the engine reads its own, and the rest of the body is as sent."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from rig import CHAT, COMPLETIONS, MODEL, Rig, running

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

POOL = {"models": [MODEL], "aliases": {"gpt-4o": MODEL}}
CONFIG = {"requests": {"unknown_model": "reject"}}
# An integer that no double holds, blanks, and a key that comes twice: a body that was parsed and written would show it.
BODY = (
    b'{"model" : "gpt-4o", "max_tokens": 2, "seed": 9007199254740993, "user": "a", "user": "b",\n "prompt": "hello" }\n'
)


async def body_of(rig: Rig, tenant: str) -> bytes:
    (entry,) = await rig.seen(tenant)
    async with rig.http.get(f"http://{rig.engines[0]}/sim/requests/{entry['seq']}/body") as found:
        return await found.read()


@pytest.mark.parametrize("profile", ["standard", "strict", "body", "duplex"])
async def test_the_engine_reads_its_own_name(tmp_path: Path, profile: str) -> None:
    wiring = Wiring(profile=profile, append=True) if profile in ("standard", "strict") else Wiring(profile=profile)
    args = ("--record-bodies",)
    async with running(tmp_path, pool=POOL, config=CONFIG, engine_args=args, wiring=wiring) as rig:
        answer = await rig.post(BODY, path=COMPLETIONS, tenant="by-alias")
        assert (answer.status, answer.json["model"]) == (200, MODEL)
        sent = await body_of(rig, "by-alias")
        assert sent == BODY.replace(b" }\n", b' ,"model":"' + MODEL.encode() + b'"}\n')
        own = BODY.replace(b"gpt-4o", MODEL.encode())
        assert (await rig.post(own, path=COMPLETIONS, tenant="by-name")).status == 200
        assert await body_of(rig, "by-name") == own
        unknown = await rig.post(BODY.replace(b"gpt-4o", b"gpt-5"), path=COMPLETIONS)
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        await rig.books_closed()


async def test_a_stream_and_a_form(tmp_path: Path) -> None:
    async with running(tmp_path, pool=POOL, config=CONFIG, wiring=Wiring(append=True)) as rig:
        body = {"model": "gpt-4o", "stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
        answer = await rig.post(body, path=CHAT)
        assert answer.status == 200
        first = orjson.loads(answer.body.split(b"\n", 1)[0].removeprefix(b"data: "))
        assert first["model"] == MODEL
        form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt-4o\r\n--b--\r\n'
        headers = {"content-type": "multipart/form-data; boundary=b"}
        refused = await rig.post(form, path="/v1/audio/transcriptions", headers=headers)
        assert (refused.status, refused.error["param"]) == (400, "model")
        assert "send the model's own name" in refused.error["message"]
        await rig.books_closed()
