"""Which pool a model's name belongs to, and which names cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from config_case import POOL, errors

from extproc.config.load import from_data
from extproc.config.served import LONGEST_NAME, Served


def pool(name: str, *models: str, **changes: Any) -> dict[str, Any]:
    return {**POOL, "name": name, "models": list(models), **changes}


def served(*pools: dict[str, Any]) -> Served:
    return Served(from_data({"pools": list(pools)}).pools)


A = pool(
    "a", "llama", aliases={"gpt-4o": "llama", "sql": "sql-lora", "mine": "team-x"}, adapters=["sql-lora", "team-*"]
)
B = pool("b", "mixtral", adapters=["team-blue-*", "team-green"])
REST = pool("rest", "*")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama", ("a", None, None)),
        ("mixtral", ("b", None, None)),
        ("gpt-4o", ("a", None, "llama")),
        ("sql-lora", ("a", "sql-lora", None)),
        ("team-red", ("a", "team-red", None)),
        ("team-", ("a", "team-", None)),
        ("team-blue-1", ("b", "team-blue-1", None)),  # the longer beginning
        ("team-blue", ("a", "team-blue", None)),
        ("team-green", ("b", "team-green", None)),  # a whole name before any beginning
        ("team-green-1", ("a", "team-green-1", None)),
        ("sql", ("a", "sql-lora", "sql-lora")),  # an alias of an adapter
        ("mine", ("a", "team-x", "team-x")),
        ("Llama", None),
        ("tea", None),
        ("*", None),
        ("team-*", ("a", "team-*", None)),
        ("", None),
        ("team-" + "x" * LONGEST_NAME, None),
        (None, None),
    ],
)
def test_where_a_name_belongs(model: str | None, expected: tuple[str, str | None, str | None] | None) -> None:
    match = served(A, B).of(model)
    assert (match and (match.pool.name, match.adapter, match.rewritten)) == expected


@pytest.mark.parametrize("model", ["Llama", "", "*", "team-" + "x" * LONGEST_NAME, None])
def test_what_is_nobody_s_goes_to_the_pool_that_takes_all(model: str | None) -> None:
    match = served(A, B, REST).of(model)
    assert match is not None
    assert (match.pool.name, match.adapter, match.rewritten) == ("rest", None, None)
    assert served(A, B, REST).of("team-red").pool.name == "a"  # type: ignore[union-attr]


def test_what_names_no_model_belongs_to_the_only_pool() -> None:
    match = served(A).of(None)
    assert match is not None
    assert (match.pool.name, match.rewritten) == ("a", None)


def test_an_engine_behind_an_alias_may_have_any_name() -> None:
    """Also one that clients may not use."""
    match = served(pool("a", "m", aliases={"n": "hidden"})).of("n")
    assert match is not None
    assert (match.rewritten, served(pool("a", "m", aliases={"n": "hidden"})).of("hidden")) == ("hidden", None)


@pytest.mark.parametrize(
    ("pools", "line"),
    [
        ([A, pool("b", "llama")], "pools: model 'llama' is served by both a and b"),
        (
            [A, pool("b", "gpt-4o")],
            "pools: 'gpt-4o' is an alias of a and a model of b; a name can stand for one thing",
        ),
        (
            [A, pool("b", "m", adapters=["sql-lora"])],
            "pools: 'sql-lora' is an adapter of a and an adapter of b; a name can stand for one thing",
        ),
        (
            [A, pool("b", "m", adapters=["team-*"])],
            "pools: 'team-*' is an adapter of a and an adapter of b; a name can stand for one thing",
        ),
        (
            [pool("a", "m", aliases={"m": "n"})],
            "pools: 'm' is a model of a and an alias of a; a name can stand for one thing",
        ),
        (
            [pool("a", "m", "l", adapters=["l"])],
            "pools: 'l' is a model of a and an adapter of a; a name can stand for one thing",
        ),
        (
            [pool("a", "m", aliases={"gpt-*": "m"})],
            "pools: a: the alias 'gpt-*' must be one name, without *; models: ['*'] takes whatever is asked for",
        ),
        *(
            (
                [pool("a", "m", adapters=[adapter])],
                f"pools: a: the adapter {adapter!r} must be a name, or the beginning of names and one * behind it, "
                "like team-*",
            )
            for adapter in ("*", "te*am", "*-lora", "team-**")
        ),
        *(
            (
                [pool("a", "m", aliases={"n": "m"}, engine=engine)],
                f"pools: a: aliases cannot be had with engine {engine}: the name is appended to the body, and that "
                "engine refuses a body with two members `model`; give the model that name in the engine",
            )
            for engine in ("tgi", "dynamo")
        ),
    ],
)
def test_names_that_cannot_be(pools: list[dict[str, Any]], line: str) -> None:
    assert errors({"pools": pools}) == [line]


def test_a_name_that_is_given_twice_in_one_list_is_one_name() -> None:
    assert served(pool("a", "m", "m", adapters=["x", "x"])).of("x") is not None


@pytest.mark.parametrize("changes", [{"aliases": {"": "m"}}, {"aliases": {"n": ""}}, {"adapters": [""]}])
def test_a_name_is_not_empty(changes: dict[str, Any]) -> None:
    (line,) = errors({"pools": [{**POOL, **changes}]})
    assert line.endswith("should have at least 1 character")


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("x session", "'x session' is no name of a header"),
        (":path", "':path' is no name of a header"),
        ("é", "'é' is no name of a header"),
        ("X-Fairlane-Session", "'X-Fairlane-Session' does not reach Fairlane: Envoy takes it out"),
        ("Cookie", "'Cookie' does not reach Fairlane: Envoy takes it out"),
    ],
)
def test_a_header_that_can_tell_no_session(header: str, fault: str) -> None:
    assert errors({"pools": [{**POOL, "session_header": header}]}) == [f"pools.0.session_header: {fault}"]


def test_a_session_s_header_is_read_in_any_case() -> None:
    assert from_data({"pools": [{**POOL, "session_header": "X-Session-ID"}]}).pools[0].session_header == "x-session-id"


def test_an_alias_of_an_alias_is_refused() -> None:
    pool = {"name": "a", "models": ["m"], "endpoints": ["127.0.0.1:1"], "aliases": {"x": "y", "y": "m"}}
    (line,) = errors({"pools": [pool]})
    assert "the alias 'x' stands for 'y', which is an alias itself" in line
