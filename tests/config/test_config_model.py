"""What may stand in the file, key by key, and how it is looked up."""

from __future__ import annotations

from typing import Any

import pytest
from config_case import POOL, error, errors, good
from pydantic import ValidationError

from extproc.config.load import from_data
from extproc.config.model import Tenant
from extproc.config.requests import LARGEST_BODY
from extproc.config.units import split_host_port
from extproc.core.model import ClassPolicy, CostWeights, Gates, Order, Overflow, TenantPolicy, WindowPolicy

NAN, INF = float("nan"), float("inf")
CLASS = {"rank": 0, "priority": 0}


def class_error(**changes: Any) -> str:
    return error(classes={"default": {**CLASS, **changes}})


# -- units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("1.5s", 1.5), (" 2 s ", 2.0), ("0s", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert good(shutdown={"grace": text}).shutdown.grace == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["30", 30, 1.5, "-1s", "1 day", "1d", "s", "", "1s2", "1e3s", ".5s", "\u0663s", None, [], NAN]
)
def test_durations_without_a_unit_and_others(text: Any) -> None:
    line = error(shutdown={"grace": text})
    said = "a list" if text == [] else repr(text)
    assert line == f"shutdown.grace: expected a duration with its unit, like 250ms, 30s, 5m or 1h, not {said}"


def test_a_duration_beyond_all_bounds() -> None:
    assert error(shutdown={"grace": "9999h"}) == "shutdown.grace: '9999h' is longer than anything here can last"
    assert "longer than anything" in error(shutdown={"grace": "9" * 400 + "h"})


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("2KiB", 2048), ("32MiB", 33_554_432), ("2GiB", 2_147_483_648), (" 1 KiB ", 1024)]
)
def test_sizes(text: str, size: int) -> None:
    assert good(requests={"max_buffered": text}).requests.max_buffered == size


@pytest.mark.parametrize("text", ["99999999999999999999GiB", "1048577GiB", "1125899906842625B", "9" * 5000 + "B"])
def test_sizes_beyond_all_bounds(text: str) -> None:
    line = error(requests={"max_buffered": text})
    assert line.endswith("is more than any memory or disk here: at most 1048576GiB")
    assert len(line) < 400


def test_the_largest_sizes() -> None:
    assert good(requests={"max_buffered": "0001048576GiB"}).requests.max_buffered == 2**50
    assert good(requests={"max_body": "2043MiB"}).requests.max_body == LARGEST_BODY
    assert error(requests={"max_body": "2GiB"}) == (
        "requests.max_body: must be at most 2043MiB: gRPC has no longer messages"
    )


@pytest.mark.parametrize("text", ["32", 32, "1MB", "1.5MiB", "-1B", "MiB", "1mib", None])
def test_sizes_without_a_unit_and_others(text: Any) -> None:
    line = error(requests={"max_body": text})
    assert line == f"requests.max_body: expected a size with its unit, like 32MiB or 2GiB, not {text!r}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:8001", ("127.0.0.1", 8001)),
        ("[::1]:8001", ("::1", 8001)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("vllm-0.vllm.ns.svc:8000", ("vllm-0.vllm.ns.svc", 8000)),
        ("my_engine:1", ("my_engine", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert good(listen={"http": text}).listen.http == text
    assert split_host_port(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "8001",
        8001,
        "host",
        "host:",
        ":8001",
        "host:0",
        "host:65536",
        "host:-1",
        "host:http",
        "host:²",
        "http://127.0.0.1:8001",
        "127.0.0.1:8001/v1",
        "::1:8001",
        "[::1]8001",
        "[]:80",
        "a b:80",
        "user@host:80",
        "host:80\n",
        None,
    ],
)
def test_what_is_no_address(text: Any) -> None:
    line = error(listen={"http": text})
    assert line == f"listen.http: expected host:port, like 127.0.0.1:8001 or [::1]:8001, not {text!r}"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:8001", "127.0.0.1:8001"),
        ("[::1]:8001", "[::1]:8001"),
        # as Envoy writes them, for it compares text
        ("[0:0::1]:8001", "[::1]:8001"),
        ("[2001:DB8::A]:80", "[2001:db8::a]:80"),
        ("[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:80"),
        ("10.0.0.1:080", "10.0.0.1:80"),
    ],
)
def test_endpoints(text: str, endpoint: str) -> None:
    assert good({"endpoints": [text]}).pools[0].endpoints.known == [endpoint]


@pytest.mark.parametrize(
    "text",
    [
        "localhost:1",
        "vllm-0.vllm.ns.svc:8000",
        "my_engine:1",
        "10.0.0:80",
        "10.0.0.256:80",
        "010.0.0.1:80",
        "[10.0.0.1]:80",
        "[fe80::1%eth0]:80",
        "[::g]:80",
        "::1:80",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:80\n",
        8001,
        None,
    ],
)
def test_an_endpoint_is_an_address_since_envoy_ignores_names(text: Any) -> None:
    assert error({"endpoints": [text]}) == (
        f"pools.0.endpoints.0: {text!r} is not ip:port: Envoy matches Fairlane's choice by address, "
        "and would ignore a name"
    )


# -- single keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"rank": -1}, "rank", "greater than or equal to 0"),
        ({"rank": 1001}, "rank", "less than or equal to 1000"),
        ({"rank": 1.5}, "rank", "valid integer"),
        ({"rank": True}, "rank", "this key is no switch"),
        ({"priority": 2**53 + 1}, "priority", "less than or equal to"),
        ({"priority": "high"}, "priority", "valid integer"),
        ({"queue_timeout": "0s"}, "queue_timeout", "must be above 0 and at most 3500s: Envoy holds no request"),
        ({"queue_timeout": "1h"}, "queue_timeout", "at most 3500s"),
        ({"queue_timeout": 60}, "queue_timeout", "a duration with its unit"),
        ({"max_waiting": -1}, "max_waiting", "greater than or equal to 0"),
        ({"max_waiting": 1001}, "max_waiting", "less than or equal to 1000"),
        ({"max_queued": 0}, "max_queued", "greater than or equal to 1"),
        ({"max_in_flight": 0}, "max_in_flight", "greater than or equal to 1"),
        ({"min_share": 1.0}, "min_share", "less than 1"),
        ({"min_share": -0.1}, "min_share", "greater than or equal to 0"),
        ({"min_share": NAN}, "min_share", "finite number"),
    ],
)
def test_keys_of_a_class(changes: dict[str, Any], place: str, words: str) -> None:
    line = class_error(**changes)
    assert line.startswith(f"classes.default.{place}: ")
    assert words in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": 0}, "greater than 0"),
        ({"weight": -1}, "greater than 0"),
        ({"weight": NAN}, "finite number"),
        ({"weight": INF}, "finite number"),
        ({"weight": 1e-7}, "between 0.000001 and 1000000"),
        ({"weight": 1e7}, "between 0.000001 and 1000000"),
        ({"weight": "heavy"}, "valid number"),
        ({"weight": True}, "this key is no switch"),
        ({"max_queued": 0}, "greater than or equal to 1"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"default_class": 7}, "valid string"),
        ({"classes": "default"}, "valid list"),
    ],
)
def test_keys_of_a_tenant(changes: dict[str, Any], words: str) -> None:
    (key,) = changes
    line = error(tenants={"a": changes})
    assert line.startswith(f"tenants.a.{key}: ")
    assert words in line


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"name": ""}, "name", "must be letters, digits"),
        ({"name": "a b"}, "name", "must be letters, digits"),
        ({"name": "-a"}, "name", "must be letters, digits"),
        ({"name": "a" * 64}, "name", "at most 63"),
        ({"name": "a\n"}, "name", "must be letters, digits"),
        ({"models": []}, "models", "at least 1 item"),
        ({"models": [""]}, "models.0", "at least 1 character"),
        ({"models": "m"}, "models", "valid list"),
        ({"endpoints": []}, "endpoints", "at least 1 item"),
        ({"endpoints": ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1"]}, "endpoints", "named twice: 10.0.0.1:1"),
        ({"endpoints": ["[::1]:1", "[0::1]:1"]}, "endpoints", "named twice: [::1]:1"),
        ({"engine": "ollama"}, "engine", "'vllm', 'sglang', 'tgi', 'llamacpp', 'tensorrt_llm', 'triton' or 'dynamo'"),
        ({"metrics": {"interval": "10ms"}}, "metrics", "at least 20ms"),
        ({"metrics": {"interval": "5s"}}, "metrics", "no longer than idle_interval"),
        ({"metrics": {"timeout": "0s"}}, "metrics", "timeout must be above 0"),
        ({"window": {"start": 0}}, "window.start", "greater than or equal to 1"),
        ({"window": {"start": NAN}}, "window.start", ""),
        ({"window": {"max_tpot": 150}}, "window.max_tpot", "a duration with its unit"),
        ({"window": {"max_kv_usage": 0}}, "window.max_kv_usage", "greater than 0"),
        ({"window": {"max_kv_usage": 1.1}}, "window.max_kv_usage", "less than or equal to 1"),
        ({"window": {"max_kv_usage": NAN}}, "window.max_kv_usage", ""),
        ({"window": {"overtake": 5}}, "window.overtake", "less than or equal to 4"),
        ({"window": {"max_tpot": "0s"}}, "window.max_tpot", "must be at least 1ms"),
        ({"cost": {"prompt": -1}}, "cost.prompt", "greater than or equal to 0"),
        ({"cost": {"output": INF}}, "cost.output", "finite number"),
        ({"cost": {"prompt": 0, "output": 0}}, "cost", "nothing would cost anything"),
        ({"max_queued": 0}, "max_queued", "greater than or equal to 1"),
        ({"max_queued_bytes": 5}, "max_queued_bytes", "a size with its unit"),
    ],
)
def test_keys_of_a_pool(changes: dict[str, Any], place: str, words: str) -> None:
    line = error(changes)
    assert line.startswith(f"pools.0.{place}: ")
    assert words in line


@pytest.mark.parametrize(
    ("rest", "place", "words"),
    [
        ({"requests": {"malformed": "drop"}}, "requests.malformed", "'pass' or 'reject'"),
        ({"requests": {"unknown_model": "404"}}, "requests.unknown_model", "'pass' or 'reject'"),
        ({"on_fault": "open"}, "on_fault", "'pass' or 'reject'"),
        ({"on_fault": False}, "on_fault", "this key is no switch"),
        ({"listen": {"admin": "50052"}}, "listen.admin", "expected host:port"),
        (
            {"listen": {"http": "127.0.0.1:50051"}},
            "listen",
            "ext_proc and http are both 127.0.0.1:50051; each needs a port of its own",
        ),
    ],
)
def test_other_keys(rest: dict[str, Any], place: str, words: str) -> None:
    line = error(**rest)
    assert line.startswith(f"{place}: ")
    assert words in line


# -- what must fit together -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "line"),
    [
        ({"classes": {}}, "classes: at least one is needed"),
        (
            {"classes": {"default": CLASS, "a b": {"rank": 1, "priority": 0}}},
            "classes: the name 'a b' must be letters, digits, '.', '_' or '-', and at most 63 of them",
        ),
        (
            {"classes": {"default": CLASS, "other": CLASS}},
            "classes: default and other both have rank 0; each needs its own",
        ),
        (
            {"classes": {"default": {**CLASS, "min_share": 0.6}, "b": {"rank": 1, "priority": 0, "min_share": 0.5}}},
            "classes: the min_share of all classes together must not exceed 1",
        ),
        ({"default_class": "x"}, "default_class: there is no class 'x'; there are interactive, default, batch"),
        (
            {"tenants": {"a": {"classes": ["batch", "x"]}}},
            "tenants: a: there is no class 'x'; there are interactive, default, batch",
        ),
        (
            {"tenants": {"a": {"default_class": "x"}}},
            "tenants: a: there is no class 'x'; there are interactive, default, batch",
        ),
        ({"tenants": {"a": {"classes": []}}}, "tenants: a: classes must name at least one, or be left out for all"),
        (
            {"tenants": {"a": {"classes": ["batch"], "default_class": "default"}}},
            "tenants: a: its default_class 'default' is not among its classes",
        ),
    ],
)
def test_classes_and_tenants(rest: dict[str, Any], line: str) -> None:
    assert error(**rest) == line


def test_pools_together() -> None:
    other = {**POOL, "models": ["n"]}
    assert errors({"pools": [POOL, other]}) == ["pools: two are named 'sim'"]
    other = {**POOL, "name": "other", "models": ["n", "m"]}
    assert errors({"pools": [POOL, other]}) == ["pools: model 'm' is served by both sim and other"]
    assert errors({"pools": []}) == ["pools: List should have at least 1 item after validation, not 0"]
    everything = [{**POOL, "models": ["*"]}, {**POOL, "name": "b", "models": ["*"]}]
    assert errors({"pools": everything}) == ["pools: model '*' is served by both sim and b"]


# -- looking up -----------------------------------------------------------------------------------


def test_the_pool_of_a_model() -> None:
    pools = [{**POOL, "name": name, "models": models} for name, models in (("all", ["*"]), ("a", ["a", "a2"]))]
    config = from_data({"pools": pools})
    named = {model: config.pool_of(model) for model in ("a", "a2", "x", "", None)}
    assert {model: pool.name for model, pool in named.items() if pool} == {
        "a": "a", "a2": "a", "x": "all", "": "all", None: "all",
    }  # fmt: skip
    config = from_data({"pools": [{**POOL, "name": n, "models": [n]} for n in ("a", "b")]})
    assert config.pool_of("x") is None
    assert config.pool_of(None) is None
    assert good().pool_of("x") is None
    assert good().pool_of(None) == good().pools[0]


def test_the_settings_of_a_tenant() -> None:
    config = good(tenants={"a": {"weight": 2}, "*": {"weight": 3, "max_queued": 7}})
    assert config.tenant("a") == Tenant(weight=2)  # its own alone: nothing is inherited
    assert config.tenant("b") == Tenant(weight=3, max_queued=7)
    assert good(tenants={"a": {"weight": 2}}).tenant("b") == Tenant()


def test_a_snapshot_cannot_be_changed() -> None:
    config = good()
    with pytest.raises(ValidationError):
        config.default_class = "batch"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.pools[0].window.start = 1  # type: ignore[misc]


def test_what_the_core_is_told() -> None:
    config = good(
        {
            "cost": {"prompt": 2, "cached": 0.5, "output": 3},
            "window": {"start": 5, "max_tpot": "80ms", "max_kv_usage": 0.9, "overtake": 2},
            "metrics": {"interval": "500ms", "idle_interval": "4s", "timeout": "3s"},
            "max_queued": 11,
            "max_queued_bytes": "1KiB",
        },
        classes={
            "default": {
                "rank": 4, "priority": 44, "queue_timeout": "9s", "max_waiting": 5, "max_queued": 6,
                "max_in_flight": 7, "min_share": 0.25, "max_queued_bytes": "2KiB", "max_queued_tokens": 300,
                "overflow": "reject_newest", "order": "deadline", "promote_after": "20s", "headroom": 0.02,
                "when": "idle", "hopeless": "refuse",
                "gates": {"max_waiting": 4, "max_tpot": "70ms", "max_kv_usage": 0.8, "max_ttft": "3s"},
            }
        },
        tenants={
            "a": {"weight": 2, "max_queued": 8, "max_queued_bytes": "1MiB", "max_in_flight": 9,
                  "max_queued_tokens": 400, "rate": 50, "rate_burst": 60, "burst": 70, "parent": "b"},
            "*": {"weight": 0.5},
        },
    )  # fmt: skip
    policy = config.pool_policy(config.pools[0])
    assert policy.name == "sim"
    assert policy.classes == (
        ClassPolicy(
            "default", 4, 44, 9.0, 5, 6, 7, 0.25, 2048, 300, Overflow.REJECT_NEWEST, Order.DEADLINE, 20.0, 0.02, True,
            Gates(4, 0.07, 0.8, 3.0), True,
        ),
    )  # fmt: skip
    assert policy.tenants == {"a": TenantPolicy(2.0, 8, 1024**2, 9, 400, 70.0, 50.0, 60.0, "b")}
    assert policy.default_tenant == TenantPolicy(0.5, 1000, 512 * 1024**2, None)
    assert policy.weights == CostWeights(2.0, 0.5, 3.0)
    assert policy.window == WindowPolicy(
        start=5.0,
        max_tpot_s=0.08,
        max_kv_usage=0.9,
        overtake=2,
        scrape_interval_s=0.5,
        idle_scrape_interval_s=4.0,
        first_scrape_grace_s=4.0,
    )
    assert (policy.max_queued, policy.max_queued_bytes) == (11, 1024)


def test_progress_shows_from_page_to_page() -> None:
    slow = {"metrics": {"interval": "20s", "idle_interval": "20s"}}
    assert good(slow).pool_policy(good(slow).pools[0]).window.stalled_after_s == 80.0
    never = {"window": {"stalled_after": None}}
    assert good(never).pool_policy(good(never).pools[0]).window.stalled_after_s is None
    at_once = {"window": {"stalled_after": "0s"}}
    assert errors({"pools": [{**POOL, **at_once}]}) == [
        "pools.0.window.stalled_after: must be at least 100ms, or null for never"
    ]


# -- names of tenants ---------------------------------------------------------------------------------


UNPRINTABLE = "has what cannot be printed: control characters, or such as turn the direction of writing"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "the name '' must not be empty or blank"),
        (" \t", "the name ' \\t' must not be empty or blank"),
        ("a\nb", f"the name 'a\\nb' {UNPRINTABLE}"),
        ("a\x00", f"the name 'a\\x00' {UNPRINTABLE}"),
        ("a\x85b", f"the name 'a\\x85b' {UNPRINTABLE}"),
        ("a\u202eb", f"the name 'a\\u202eb' {UNPRINTABLE}"),
        ("a\u2066b", f"the name 'a\\u2066b' {UNPRINTABLE}"),
        ("a\u2028b", f"the name 'a\\u2028b' {UNPRINTABLE}"),
        ("x" * 257, f"the name '{'x' * 200}'... has 257 characters, and may have 256"),
        ("x" * 1_000_000, f"the name '{'x' * 200}'... has 1000000 characters, and may have 256"),
    ],
)
def test_names_of_tenants_that_cannot_be(name: str, fault: str) -> None:
    assert error(tenants={name: {"weight": 2}}) == f"tenants: {fault}"
    assert error(tenants={"acme": {"parent": name}}) == f"tenants.acme.parent: {fault}"


@pytest.mark.parametrize("name", ["x" * 256, "Åsa / *", "acme.com", "a b", "日本", "`", "*", "acme/*"])
def test_names_of_tenants(name: str) -> None:
    assert list(good(tenants={name: {"weight": 2}}).tenants) == [name]
