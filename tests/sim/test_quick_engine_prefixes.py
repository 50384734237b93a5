"""The prefix cache alone: 4 beginnings of 100 tokens fit. Names of beginnings are letters."""

from __future__ import annotations

from extproc.sim.prefix_cache import Beginning, PrefixCache


def prompt(text: str) -> tuple[Beginning, ...]:
    """A beginning of 100 tokens for each letter; each name stands for all letters up to it."""
    return tuple(Beginning(hash(text[: i + 1]), 100 * (i + 1)) for i in range(len(text)))


def test_a_prompt_seen_before_is_found_up_to_where_it_differs() -> None:
    cache = PrefixCache(400)
    assert cache.take(prompt("ab")) == 0
    assert cache.take(prompt("ab")) == 200
    assert cache.take(prompt("acb")) == 100
    assert cache.take(prompt("b")) == 0, "the same text at another place is another one"


def test_the_least_recently_used_leaves_first_and_the_longest_of_a_prompt() -> None:
    cache = PrefixCache(400)
    cache.take(prompt("ab"))
    cache.take(prompt("cd"))
    cache.take(prompt("e"))  # 500 tokens: "ab" leaves, "a" stays
    assert cache.used == 400
    assert cache.take(prompt("ab")) == 100  # and comes back; now "cd" leaves
    assert cache.take(prompt("cd")) == 100
    assert cache.used == 400


def test_use_keeps_a_prompt() -> None:
    cache = PrefixCache(300)
    for other in "xyz":
        cache.take(prompt("ab"))
        cache.take(prompt(other))
    assert cache.take(prompt("ab")) == 200


def test_a_prompt_larger_than_the_cache_is_kept_as_far_as_it_fits() -> None:
    cache = PrefixCache(250)
    assert cache.take(prompt("abc")) == 0
    assert cache.used == 200
    assert cache.take(prompt("abc")) == 200


def test_a_round_over_more_than_fits_never_finds_anything() -> None:
    cache = PrefixCache(300)
    assert [cache.take(prompt(name)) for name in "abcdabcdabcd"] == [0] * 12
    cache.clear()
    assert cache.used == 0
