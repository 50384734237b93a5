"""Who answers and how it is told a priority, asked of small servers that answer as the engines do.

`Fake` is no engine: it has the routes that a test gives it, with answers made after the engines' sources, and 404 with
FastAPI's body elsewhere. The real llama.cpp is asked in tests/e2e, the real vLLM in tests/vllm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.core.priority import PriorityWay
from extproc.engines.identify import EngineFacts, identify, mismatch, way_of

NONE = PriorityWay()
HEADER = PriorityWay(header=True)
BODY = PriorityWay(body=True)

# as vLLM 0.10 with VLLM_USE_V1=0, vLLM 0.8.5 and vLLM 0.6.2 refuse a priority
V0_FCFS = "Got priority 1 but Priority scheduling is not enabled."
V1_EARLY = "V1 does not support priority yet."
BEFORE_0_6_3 = (
    "[{'type': 'extra_forbidden', 'loc': ('body', 'priority'), 'msg': 'Extra inputs are not permitted', 'input': 1}]"
)

Json = dict[str, Any]
Asks = Callable[..., Any]


class Fake:
    """Path -> JSON, or (status, JSON). `asked`: what came, as (method, path and query, body)."""

    def __init__(self) -> None:
        self.routes: dict[str, Any] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.key: str | None = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else None
        self.asked.append((request.method, request.path_qs, body))
        unknown = self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}"
        if unknown and request.path.startswith("/v1"):  # what vLLM guards
            return web.json_response({"error": "Unauthorized"}, status=401)
        route = self.routes.get(request.path, (404, {"detail": "Not Found"}))
        status, value = route if isinstance(route, tuple) else (200, route)
        return web.json_response(value, status=status)

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[Fake]:
    fake = Fake()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as server:
        fake.url = str(server.make_url("")).rstrip("/")
        yield fake


async def ask(fake: Fake, engine: str = "auto", model: str | None = None, key: str | None = None) -> EngineFacts:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        return await identify(fake.url, session, engine=engine, model=model, timeout_s=10.0)


def vllm(version: str, policy: str | None = None) -> Json:
    routes: Json = {
        "/version": {"version": version},
        "/v1/models": {"object": "list", "data": [{"id": "llama", "object": "model", "owned_by": "vllm"}]},
    }
    if policy is not None:  # development mode
        config = {"scheduler_config": {"policy": policy, "max_num_seqs": 4}}
        routes["/server_info"] = {"vllm_config": config, "vllm_env": {}, "system_env": {}}
    return routes


# vLLM


@pytest.mark.parametrize(
    "version", ["0.28.0", "0.32.0", "0.28.0rc1", "0.32.1rc2.dev12+g1a2b3c4", "0.29.0+cpu", "1.0.0"]
)
async def test_a_new_vllm_is_told_by_header(fake: Fake, version: str) -> None:
    fake.routes = vllm(version)
    facts = await ask(fake, "vllm")
    assert (facts.engine, facts.version, facts.way) == ("vllm", version, HEADER)
    assert way_of("auto", "auto", facts) == HEADER
    assert mismatch("auto", "auto", facts) is None
    assert version in facts.told
    # no request was sent that costs the engine a token
    assert [method for method, _, _ in fake.asked] == ["GET", "GET"]


async def test_what_fcfs_does_is_said_where_the_policy_does_not_show(fake: Fake) -> None:
    fake.routes = vllm("0.32.0")
    warning = (await ask(fake, "vllm")).warning
    assert warning is not None
    assert "without a word" in warning
    assert "`--scheduling-policy priority`" in warning


async def test_the_policy_shows_in_development_mode(fake: Fake) -> None:
    fake.routes = vllm("0.32.0", policy="priority")
    facts = await ask(fake, "vllm")
    assert facts.warning is None
    assert "`--scheduling-policy priority`" in facts.told
    assert fake.paths == ["/version", "/server_info?config_format=json"]

    fake.routes = vllm("0.32.0", policy="fcfs")
    facts = await ask(fake, "vllm")
    assert facts.way == HEADER  # harmless, and right when it is started again
    assert facts.warning is not None
    assert "ignores them under `--scheduling-policy fcfs`" in facts.warning


async def test_a_configuration_as_text_tells_no_policy(fake: Fake) -> None:
    fake.routes = vllm("0.32.0") | {"/server_info": {"vllm_config": "VllmConfig(model='llama', policy='priority')"}}
    warning = (await ask(fake, "vllm")).warning
    assert warning is not None
    assert "does not show" in warning


@pytest.mark.parametrize("version", ["0.11.0", "0.12.0", "0.27.1", "0.19.0+rocm"])
async def test_an_older_vllm_reads_the_body_and_auto_tells_it_nothing(fake: Fake, version: str) -> None:
    fake.routes = vllm(version)
    facts = await ask(fake, "vllm")
    assert facts.way == BODY
    assert way_of("auto", "auto", facts) == NONE
    advice = mismatch("auto", "auto", facts)
    assert advice is not None
    assert "`priority_via: body`" in advice
    assert "fairlane envoy-config" in advice
    assert way_of("body", "auto", facts) == BODY
    assert mismatch("body", "auto", facts) is None


async def test_a_build_just_before_the_header_came_may_have_it(fake: Fake) -> None:
    fake.routes = vllm("0.27.1rc1.dev310+gdeadbeef")
    facts = await ask(fake, "vllm")
    assert facts.way == PriorityWay(header=True, body=True)
    assert way_of("auto", "auto", facts) == HEADER


@pytest.mark.parametrize("version", ["dev", "0.1.dev1+gabcdef0", "unknown", "nightly-2026"])
async def test_a_version_that_says_nothing_means_the_header(fake: Fake, version: str) -> None:
    fake.routes = vllm(version)
    facts = await ask(fake, "vllm")
    assert (facts.version, facts.way) == (version, HEADER)
    assert facts.warning is not None
    assert repr(version) in facts.warning


@pytest.mark.parametrize(
    ("version", "crashes"),
    [("0.9.1", 0), ("0.9.2", 2), ("0.10.1.1", 2), ("0.10.2", 1), ("0.11.2", 1), ("0.12.0", 0), ("0.32.0", 0)],
)
async def test_versions_that_n_above_1_ends_are_named(fake: Fake, version: str, crashes: int) -> None:
    fake.routes = vllm(version) | {"/v1/completions": {"choices": []}}
    facts = await ask(fake, "vllm")
    assert (facts.warning or "").count("vLLM issue") == crashes
    assert ("n > 1" in (facts.warning or "")) == (crashes > 0)
    if crashes:
        assert "update to 0.12.0 or later" in str(facts.warning)


async def test_no_crash_is_warned_of_where_the_policy_is_another(fake: Fake) -> None:
    fake.routes = vllm("0.11.2", policy="fcfs")
    assert "n > 1" not in str((await ask(fake, "vllm")).warning)
    fake.routes = vllm("0.11.2", policy="priority")
    assert "n > 1" in str((await ask(fake, "vllm")).warning)


# the probe


async def test_an_old_vllm_that_takes_a_priority(fake: Fake) -> None:
    fake.routes = vllm("0.8.5") | {"/v1/completions": {"choices": [{"text": "x"}]}}
    facts = await ask(fake, "vllm")
    assert facts.way == BODY
    assert facts.warning is None  # this version refuses where it would not heed
    assert fake.asked[1:] == [
        ("GET", "/v1/models", None),
        ("POST", "/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 1, "priority": 1}),
    ]


async def test_one_that_may_ignore_it_is_doubted(fake: Fake) -> None:
    fake.routes = vllm("0.10.2") | {"/v1/completions": {"choices": []}}
    facts = await ask(fake, "vllm")
    assert facts.way == BODY
    assert "without a word" in str(facts.warning)


@pytest.mark.parametrize(
    ("version", "status", "words", "cure"),
    [
        ("0.10.2", 400, V0_FCFS, "`--scheduling-policy priority`"),
        ("0.8.5", 400, V1_EARLY, "update it to 0.9.2"),
        ("0.6.2", 400, BEFORE_0_6_3, "update it"),
        ("0.6.2", 422, BEFORE_0_6_3, "update it"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
async def test_an_old_vllm_that_refuses(
    fake: Fake, version: str, status: int, words: str, cure: str, nested: bool
) -> None:
    error = {"object": "error", "message": words, "type": "BadRequestError", "code": status}
    fake.routes = vllm(version) | {"/v1/completions": (status, {"error": error} if nested else error)}
    facts = await ask(fake, "vllm")
    assert facts.way == NONE
    assert cure in str(facts.warning)
    assert words[:20] in str(facts.warning)
    assert facts.refuses == f"answers {status} to a request with a priority in its body"
    assert way_of("auto", "auto", facts) == NONE
    assert "every body" in str(mismatch("body", "auto", facts))


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_another_error_tells_nothing(fake: Fake, status: int) -> None:
    fake.routes = vllm("0.10.2") | {"/v1/completions": (status, {"message": "something else"})}
    facts = await ask(fake, "vllm")
    assert facts.way == NONE
    assert facts.refuses is None
    assert f"HTTP status {status} ('something else')" in str(facts.warning)
    assert "`priority_via`" in str(facts.warning)


async def test_the_probe_asks_for_the_callers_model(fake: Fake) -> None:
    fake.routes = vllm("0.9.0") | {"/v1/completions": {"choices": []}}
    await ask(fake, "vllm", model="mine")
    assert fake.paths == ["/version", "/v1/completions"]
    assert fake.asked[-1][2]["model"] == "mine"


@pytest.mark.parametrize("models", [None, {"data": []}, {"data": [{}]}, {"data": [7]}, {"data": {}}, [], "x"])
async def test_no_model_no_probe(fake: Fake, models: Any) -> None:
    fake.routes = {"/version": {"version": "0.9.0"}} | ({} if models is None else {"/v1/models": models})
    facts = await ask(fake, "vllm")
    assert facts.way == NONE
    assert "/v1/models" in str(facts.warning)
    assert "/v1/completions" not in fake.paths


async def test_a_key_is_used_and_asked_for(fake: Fake) -> None:
    fake.key = "s3cret"
    fake.routes = vllm("0.8.5") | {"/v1/completions": {"choices": []}}
    assert (await ask(fake, "vllm", key="s3cret")).way == BODY
    facts = await ask(fake, "vllm", model="llama", key="wr0ng")
    assert facts.way == NONE
    assert "API key" in str(facts.warning)
    assert "wr0ng" not in repr(facts)


# SGLang


def sglang(**changed: Any) -> Json:
    return {
        "model_path": "llama",
        "schedule_policy": "fcfs",
        "enable_priority_scheduling": True,
        "disable_priority_preemption": False,
        "abort_on_priority_when_disabled": False,
        "schedule_low_priority_values_first": False,
        "internal_states": [{"memory_usage": {"weight": 1.5}}],
        "version": "0.5.23",
        **changed,
    }


@pytest.mark.parametrize("low_first", [False, True])
async def test_sglang_reads_the_body_in_its_order(fake: Fake, low_first: bool) -> None:
    fake.routes = {"/server_info": sglang(schedule_low_priority_values_first=low_first)}
    facts = await ask(fake, "sglang")
    assert (facts.version, facts.way) == ("0.5.23", PriorityWay(body=True, high_first=not low_first))
    assert facts.warning is None
    assert "running requests are stopped" in facts.told
    assert way_of("auto", "auto", facts) == NONE
    assert "`priority_via: body`" in str(mismatch("auto", "auto", facts))
    assert way_of("body", "auto", facts) == PriorityWay(body=True, high_first=not low_first)
    assert fake.paths == ["/server_info"]


async def test_sglang_without_priorities(fake: Fake) -> None:
    fake.routes = {"/server_info": sglang(enable_priority_scheduling=False)}
    facts = await ask(fake, "sglang")
    assert way_of("auto", "auto", facts) == NONE
    assert "--enable-priority-scheduling" in str(facts.warning)
    assert facts.refuses is None
    # who tells it one all the same tells it in the order that it would have
    assert way_of("body", "auto", facts) == PriorityWay(body=True, high_first=True)


async def test_sglang_that_would_abort(fake: Fake) -> None:
    fake.routes = {"/server_info": sglang(enable_priority_scheduling=False, abort_on_priority_when_disabled=True)}
    facts = await ask(fake, "sglang")
    assert "503" in str(facts.refuses)
    assert "`priority_via: auto` or `off`" in str(mismatch("both", "auto", facts))
    assert mismatch("auto", "auto", facts) is None


async def test_an_older_sglang_has_another_page_and_no_priorities(fake: Fake) -> None:
    fake.routes = {"/get_server_info": {"model_path": "llama", "version": "0.4.6"}}
    facts = await ask(fake, "sglang")
    assert (facts.version, way_of("auto", "auto", facts)) == ("0.4.6", NONE)
    assert fake.paths == ["/server_info", "/get_server_info"]


async def test_sglang_that_wants_a_key(fake: Fake) -> None:
    fake.routes = {"/server_info": (401, {"error": "Unauthorized"})}
    facts = await ask(fake, "sglang")
    assert facts.way == PriorityWay(high_first=True)
    assert "API key" in str(facts.warning)
    assert fake.paths == ["/server_info"]


# the others, and who it is


@pytest.mark.parametrize(
    ("engine", "routes", "version"),
    [
        ("tgi", {"/info": {"model_id": "llama", "version": "3.3.5", "sha": None}}, "3.3.5"),
        ("llamacpp", {"/props": {"default_generation_settings": {}, "build_info": "b7000-abc"}}, "b7000-abc"),
        ("tensorrt_llm", {"/version": {"version": "1.2.0"}}, "1.2.0"),
        ("triton", {"/v2": {"name": "triton", "version": "2.60.0", "extensions": ["statistics"]}}, "2.60.0"),
        ("dynamo", {}, None),
    ],
)
async def test_the_others_are_told_nothing(fake: Fake, engine: str, routes: Json, version: str | None) -> None:
    fake.routes = routes
    facts = await ask(fake, engine)
    assert (facts.engine, facts.version, facts.way, facts.warning) == (engine, version, NONE, None)
    assert way_of("auto", "auto", facts) == NONE
    assert mismatch("auto", "auto", facts) is None
    assert "no effect" in str(mismatch("header", "auto", facts))


async def test_tensorrt_llm_would_refuse_our_numbers(fake: Fake) -> None:
    facts = await ask(fake, "tensorrt_llm")
    assert "every body" in str(mismatch("body", "auto", facts))


@pytest.mark.parametrize(
    ("owner", "engine"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("tensorrt_llm", "tensorrt_llm"),
        ("llamacpp", "llamacpp"),
        ("nvidia", "dynamo"),
    ],
)
async def test_found_by_the_owner_of_its_models(fake: Fake, owner: str, engine: str) -> None:
    fake.routes = {"/v1/models": {"data": [{"id": "llama", "owned_by": owner}]}}
    assert (await ask(fake)).engine == engine


@pytest.mark.parametrize(
    ("routes", "engine"),
    [
        ({"/version": {"version": "0.32.0"}}, "vllm"),  # its /v1 wants a key
        (
            {
                "/v1/models": {"data": [{"id": "llama", "owned_by": "llama"}]},
                "/info": {"model_id": "x", "version": "3"},
            },
            "tgi",
        ),
        ({"/v2": {"name": "triton", "version": "2.60.0", "extensions": ["a"]}}, "triton"),
        ({"/props": {"default_generation_settings": {"n_ctx": 1}}}, "llamacpp"),
        ({"/version": {"version": "1", "commit": "abc"}}, None),
        ({}, None),
    ],
)
async def test_found_by_what_answers(fake: Fake, routes: Json, engine: str | None) -> None:
    fake.routes = routes
    facts = await ask(fake)
    assert facts.engine == engine
    if engine is None:
        assert way_of("auto", "auto", facts) == NONE
        assert "`engine`" in str(facts.warning)


async def test_an_old_vllm_found_by_itself_is_probed_with_the_model_it_named(fake: Fake) -> None:
    fake.routes = vllm("0.9.0") | {"/v1/completions": {"choices": []}}
    facts = await ask(fake)
    assert (facts.engine, facts.way) == ("vllm", BODY)
    assert fake.paths == ["/v1/models", "/version", "/v1/completions"]


async def test_a_base_url_may_end_with_a_slash(fake: Fake) -> None:
    fake.routes = vllm("0.32.0")
    fake.url += "/"
    assert (await ask(fake)).version == "0.32.0"
    assert fake.paths[:2] == ["/v1/models", "/version"]


async def test_a_word_that_is_no_engine_is_told_nothing(fake: Fake) -> None:
    facts = await ask(fake, "ollama")
    assert (facts.engine, facts.way) == ("ollama", NONE)
    assert fake.asked == []
