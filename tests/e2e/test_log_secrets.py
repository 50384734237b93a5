"""What clients send in confidence is in nothing that Fairlane writes or shows, whatever becomes of their requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import orjson
import pytest
import yaml
from rig import CHAT, FAST_ENGINE, Rig, chat, until

from extproc.cli.stack import FAIRLANE, Addresses, Stack, StackOptions
from extproc.pb.wire.v1 import ext_proc_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
KEY = "sk-live-key-7a61"  # known to Fairlane by its digest
SECRETS = {
    "known key": KEY,
    "unknown key": "sk-live-unknown-7a62",
    "api-key": "api-key-7a63",
    "cookie": "cookie-7a64",
    "unknown header": "header-7a65",
    "query": "query-7a66",
    "prompt": "prompt-7a67",
    "system prompt": "system-7a68",
    "metadata": "metadata-7a69",
    "user": "user-7a70",
    "tool": "tool-7a71",
    "malformed body": "malformed-7a72",
    "upload": "upload-7a73",
    "file name": "file-name-7a74",
    "message that is cut off": "cut-off-7a75",
    "body that is no object": "no-object-7a76",
    "proxy": "proxy-7a77",
}
SLOTS = 1


@contextlib.asynccontextmanager
async def a_stack(directory: Path, log_format: str, on_fault: str) -> AsyncIterator[Rig]:
    """The most that Fairlane tells: level debug, a line for each slow or refused request, a recording, kept changes."""
    addresses = Addresses.free(1)
    identity = {"tenant": [{"api_key": {"header": "authorization", "sha256": {_digest(KEY): "team-a"}}},
                           {"header": "x-tenant"}]}  # fmt: skip
    window = {"start": SLOTS, "max_num_seqs": SLOTS, "overtake": 0, "max_tpot": "60s"}
    config: dict[str, Any] = {
        "identity": identity,
        "admin": {"state": str(directory / "state.db")},
        "classes": {"default": {"queue_timeout": "2s", "max_in_flight": SLOTS, "max_waiting": 0}},
        "tenants": {"*": {"max_queued": 2}},
        "pools": [{"name": "sim", "models": ["sim-7b"], "endpoints": [str(e) for e in addresses.engines],
                   "window": window}],
        "requests": {"malformed": "reject", "unknown_model": "reject"},
        "recording": {"file": str(directory / "traffic.jsonl")},
        "telemetry": {"log": {"slow_after": "100ms", "lines_per_second": 1000}},
        "on_fault": on_fault,
    }  # fmt: skip
    options = StackOptions(
        addresses=addresses,
        engine_args=(*FAST_ENGINE, "--max-num-seqs", str(SLOTS)),
        serve_args=("--log-level", "debug", "--log-format", log_format),
        config=config,
        directory=directory,
    )
    async with Stack(options) as stack, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        yield Rig(stack, http)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def confidential(key: str = "unknown key") -> dict[str, str]:
    return {
        "authorization": f"Bearer {SECRETS[key]}",
        "api-key": SECRETS["api-key"],
        "x-api-key": SECRETS["api-key"],
        "cookie": f"session={SECRETS['cookie']}",
        "x-unknown": SECRETS["unknown header"],
        "proxy-authorization": f"Basic {SECRETS['proxy']}",
    }


def body(**more: Any) -> dict[str, Any]:
    told = {
        "messages": [
            {"role": "system", "content": SECRETS["system prompt"]},
            {"role": "user", "content": SECRETS["prompt"]},
        ],
        "metadata": {"note": SECRETS["metadata"]},
        "user": SECRETS["user"],
        "tools": [{"type": "function", "function": {"name": SECRETS["tool"], "parameters": {}}}],
    }
    return chat(2, **(told | more))


PATH = f"{CHAT}?token={SECRETS['query']}"


async def slow_ones(rig: Rig) -> None:
    """While the engine hangs: one inside, two of each tenant held, of which one leaves; more are refused at once, and
    the held ones of one tenant when their time is up."""
    async with rig.hung_engines():
        inside = rig.start(body(), path=PATH, headers=confidential("known key"))
        await rig.until_inside(1)
        expiring = [rig.start(body(), path=PATH, headers=confidential("known key")) for _ in range(2)]
        await rig.until_held(2)
        refused = await rig.post(body(), path=PATH, headers=confidential("known key"))
        assert (refused.status, refused.error["code"]) == (429, "tenant_limit")
        assert [answer.status for answer in await asyncio.gather(*expiring)] == [503, 503]
        leaving, waiting = [
            rig.start(body(), path=PATH, tenant=tenant, headers=confidential()) for tenant in ("leaves", "waits")
        ]
        await rig.until_held(2)
        await asyncio.sleep(0.3)  # the scenario's pause, no synchronisation: they are slow by now
        leaving.cancel()
        await rig.until_held(1)
    assert {(await inside).status, (await waiting).status} == {200}


async def wrong_ones(rig: Rig) -> None:
    """Refused for what they are."""
    for raw in (
        b'{"model": "sim-7b", "messages": "' + SECRETS["malformed body"].encode(),
        b'["' + SECRETS["body that is no object"].encode() + b'"]',
        SECRETS["malformed body"].encode(),
        b'{"model": ["' + SECRETS["malformed body"].encode() + b'"]}',
    ):
        refused = await rig.post(raw, path=PATH, headers=confidential())
        assert refused.status == 400, refused.body
    for model in ("other", 'a\n{"event": "forged"}\x1b[31m\u202e', "m" * 10_000):
        unknown = await rig.post(body(model=model), path=PATH, headers=confidential())
        assert unknown.status in (400, 404)  # a name may be too long to be one


async def uploads(rig: Rig) -> None:
    form = aiohttp.FormData()
    form.add_field("file", SECRETS["upload"].encode() * 10, filename=SECRETS["file name"], content_type="audio/wav")
    form.add_field("prompt", SECRETS["prompt"])
    form.add_field("model", "sim-7b")
    at = f"{rig.stack.url}/v1/audio/transcriptions?token={SECRETS['query']}"
    async with rig.http.post(at, data=form, headers=confidential("known key")) as answer:
        await answer.read()


async def a_fault(rig: Rig, cuts: int) -> None:
    """Messages that end in the middle of a header's value, as no Envoy sends them."""
    message = ext_proc_pb2.ProcessingRequest()
    for _ in range(cuts):
        message.request_headers.headers.headers.add(
            key="authorization", raw_value=SECRETS["message that is cut off"].encode()
        )
    raw = message.SerializeToString()[:-2]
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.ext_proc)) as channel:
        call = channel.stream_stream(PROCESS)()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(raw)
            await call.read()
        call.cancel()


def files_of(directory: Path) -> dict[str, bytes]:
    """All that Fairlane has written."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    ours = [path for path in files if not path.name.startswith(("engine", "envoy"))]
    return {str(path.relative_to(directory)): path.read_bytes() for path in ours}


async def shown(rig: Rig) -> dict[str, bytes]:
    """All that its HTTP port shows."""
    found = {}
    for path in ("/metrics", "/status?flows=100", "/"):
        async with rig.http.get(f"http://{rig.service_at}{path}") as answer:
            found[path] = await answer.read()
    return found


@pytest.mark.parametrize(("log_format", "on_fault"), [("json", "pass"), ("console", "reject")])
async def test_no_secret_is_told(tmp_path: Path, log_format: str, on_fault: str) -> None:
    async with a_stack(tmp_path, log_format, on_fault) as rig:
        assert (await rig.post(body(), path=PATH, headers=confidential("known key"))).status == 200
        (entry,) = await rig.seen()
        for name in ("known key", "api-key", "cookie", "unknown header"):
            assert SECRETS[name] in str(entry["headers"])  # they are on the wire
        await slow_ones(rig)
        await wrong_ones(rig)
        await uploads(rig)
        await a_fault(rig, cuts=1)
        await a_fault(rig, cuts=50)
        log = rig.stack.child(FAIRLANE).log

        async def faults() -> int:
            return log.read_bytes().count(b"stream_malformed")

        await until(faults, lambda count: count == 2, "faults are logged")
        await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == pool["known"] == 0, "all books closed")
        found = await shown(rig)
    found |= files_of(tmp_path)
    logged = found[log.name].decode()
    for event in ("released", "held", "request_slow", "request_refused", "stream_malformed"):
        assert event in logged, event
    for word in ("left", "queue_timeout", "tenant_limit", "invalid_request_error", "model_not_found", "team-a"):
        assert word in logged, word
    if log_format == "json":
        events = [orjson.loads(line)["event"] for line in logged.splitlines()]
        assert "forged" not in events
    else:
        assert all(line.isprintable() for line in logged.split("\n"))
        assert not any(line.startswith("{") for line in logged.split("\n"))
    assert len(found["traffic.sim.jsonl"]) > 1_000
    digest = _digest(KEY).encode()
    for where, text in found.items():
        for what, secret in SECRETS.items():
            assert secret.encode() not in text, (what, where)
        if not where.endswith((".yaml", ".db", ".db-wal")):  # what operators wrote themselves
            assert digest not in text, where


async def test_each_secret_is_one_of_its_own() -> None:
    """None is part of another, or of what is told anyway."""
    told = yaml.safe_dump({"path": CHAT, "body": chat()})
    for what, secret in SECRETS.items():
        assert not any(secret in other for name, other in SECRETS.items() if name != what)
        assert secret not in told
