"""Recordings: what is written is read back equal, what is wrong is named, and a planted difference is found."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import E1, E2, Case, a_pool, a_sample, two_classes

from extproc.core import events
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    Event,
    Evict,
    FirstByte,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Settled,
    Tick,
    Unreachable,
    Usage,
)
from extproc.core.model import PoolPolicy, Sample, Source, TenantPolicy, WindowPolicy
from extproc.core.player import Player
from extproc.core.reasons import Reason
from extproc.core.recording import (
    EFFECTS,
    EVENTS,
    Clock,
    Header,
    Names,
    Reader,
    RecordingError,
    effect_from_plain,
    effect_to_plain,
    event_from_plain,
    event_to_plain,
    header_to_plain,
    record_to_plain,
)

EXAMPLES = settings(derandomize=True, deadline=None, max_examples=100)
PLAIN = Names()

texts = st.text(max_size=12)
counts = st.integers(-10, 2**62)
numbers = st.floats(allow_nan=False)
maybe = st.none() | counts
all_events = st.one_of(
    st.builds(
        Arrive, texts, texts, texts, numbers, counts, maybe, st.integers(0, 9), st.none() | numbers, maybe,
        st.lists(counts, max_size=3).map(tuple), st.booleans(),
    ),
    st.builds(End, texts),
    st.builds(events.Cancel, texts, texts),
    st.builds(FirstByte, texts),
    st.builds(FirstToken, texts),
    st.builds(Usage, texts, st.sampled_from(Source), maybe, counts, maybe),
    st.builds(Unreachable, texts, st.booleans()),
    st.builds(events.Scraped, texts, st.builds(
        Sample, counts, counts, *[st.none() | numbers] * 6, numbers, ttft_sum=st.none() | numbers,
        kv_capacity_tokens=maybe,
    )),
    st.builds(events.ScrapeFailed, texts, st.booleans()),
    st.builds(events.EndpointAdded, texts),
    st.builds(events.EndpointRemoved, texts),
    st.builds(lambda n: Reconfigure(a_pool(*two_classes(min_share=0.1), max_queued=n)), st.integers(1, 99)),
    st.builds(
        events.Synced, counts, numbers,
        st.lists(st.builds(events.EndpointShare, texts, numbers, counts, counts)).map(tuple),
        st.lists(st.builds(events.FlowShare, texts, texts, numbers, counts)).map(tuple),
        st.dictionaries(texts, numbers, max_size=3), maybe, st.none() | numbers,
    ),
    st.just(Tick()),
)  # fmt: skip
all_effects = st.one_of(
    st.builds(Release, texts, texts, counts, texts, texts, numbers),
    st.builds(Refuse, texts, st.sampled_from(Reason), texts, counts, texts, texts, numbers),
    st.builds(Evict, texts, st.sampled_from(Reason), texts, counts, texts, texts, numbers),
    st.builds(Settled, texts, texts, texts, st.sampled_from(Source), numbers, numbers),
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@EXAMPLES
@given(all_events)
def test_every_event_is_read_back_as_it_was(event: Event) -> None:
    assert event_from_plain(through_json(event_to_plain(event))) == event


@pytest.mark.slow
@EXAMPLES
@given(all_effects)
def test_every_effect_is_read_back_as_it_was(effect: Effect) -> None:
    assert effect_from_plain(through_json(effect_to_plain(effect))) == effect


def test_no_event_and_no_effect_has_been_forgotten() -> None:
    assert set(EVENTS.values()) == set(get_args(events.Event))
    assert set(EFFECTS.values()) == set(get_args(events.Effect))


def test_fields_that_say_nothing_are_left_out() -> None:
    plain = event_to_plain(Arrive("r1", "a", "batch", 5.0, 100))
    assert plain == {"type": "arrive", "id": "r1", "tenant": "a", "cls": "batch", "arrival": 5.0, "body_bytes": 100}


def test_an_arrival_time_that_is_no_number_is_kept() -> None:
    plain = through_json(event_to_plain(Arrive("r1", "a", "batch", float("nan"), 100)))
    assert plain["arrival"] == "nan"
    again = event_from_plain(plain)
    assert isinstance(again, Arrive)
    assert again.arrival != again.arrival


# -- a whole recording ----------------------------------------------------------------------------


def a_header(policy: PoolPolicy, **changes: Any) -> Header:
    values = {"fairlane": "0.1.0", "run": "5f", "part": 1, "pool": policy.name, "clock": Clock(100.0, 1.8e9)}
    return Header(**({**values, "endpoints": (), "policy": policy} | changes))


Applied = tuple[Event, float, Sequence[Effect]]


def lines_of(header: Header, records: Sequence[Applied], names: Names = PLAIN) -> list[str]:
    plain = [header_to_plain(header), *(record_to_plain(*record, names) for record in records)]
    return [json.dumps(value) + "\n" for value in plain]


def a_life(policy: PoolPolicy, steps: int = 400) -> list[Applied]:
    """Everything that can happen to a pool of two endpoints, at random from a seed."""
    case, rng, ids = Case(policy, endpoints=(), checked=False), random.Random(3), ["none"]
    done: list[Applied] = []

    def apply(event: Event) -> None:
        done.append((event, case.now, case.apply(event)))

    for endpoint in (E1, E2):
        apply(events.EndpointAdded(endpoint))
        apply(events.Scraped(endpoint, a_sample(0, 0, case.now)))
    for step in range(steps):
        case.now += rng.choice([0.0, 0.01, 0.3])
        kind = rng.randrange(8)
        if kind < 4:
            ids.append(f"r{step}")
            cls = rng.choice(["interactive", "batch"])
            apply(Arrive(ids[-1], rng.choice("abc"), cls, case.now, rng.randrange(9000), first_byte_seen=True))
        elif kind < 6:
            apply(End(rng.choice(ids)))
        elif kind == 6:
            apply(Usage(rng.choice(ids), Source.USAGE, rng.randrange(900), 0, rng.randrange(900)))
        else:
            apply(events.Scraped(rng.choice([E1, E2]), a_sample(rng.randrange(9), rng.choice([0, 0, 4]), case.now)))
    return done


INTERACTIVE, BATCH = two_classes(min_share=0.1, preemptible=True)
INTERACTIVE = dataclasses.replace(INTERACTIVE, preempt_after_s=1.0)
POLICY = a_pool(INTERACTIVE, BATCH, max_queued=30, window=WindowPolicy(start=4.0))
LIFE = a_life(POLICY)


def test_the_life_has_every_kind_of_effect() -> None:
    assert {type(effect) for _, _, effects in LIFE for effect in effects} == {Release, Refuse, Evict, Settled}


def test_a_recording_played_gives_the_recorded_effects() -> None:
    reader = Reader(lines_of(a_header(POLICY), LIFE))
    assert reader.header == a_header(POLICY)
    play = Player(reader.header).play_all(reader)
    assert play.same
    assert play.events == len(LIFE)
    assert play.played == play.recorded
    assert play.recorded["Release"] == sum(isinstance(e, Release) for _, _, effects in LIFE for e in effects)


@pytest.mark.parametrize("change", ["priority", "lost", "invented"])
def test_a_planted_difference_is_found_with_both_sides(change: str) -> None:
    """In the 20th event that released something: line 1 is the header, so event k is in line k + 1."""
    place = [n for n, (_, _, effects) in enumerate(LIFE) if any(isinstance(e, Release) for e in effects)][19]
    event, now, effects = LIFE[place]
    release = next(effect for effect in effects if isinstance(effect, Release))
    planted: list[Effect] = {
        "priority": [dataclasses.replace(release, priority=release.priority + 1)],
        "lost": [],
        "invented": [*effects, release],
    }[change]
    life = [*LIFE[:place], (event, now, planted), *LIFE[place + 1 :]]
    play = Player(a_header(POLICY)).play_all(Reader(lines_of(a_header(POLICY), life)))
    assert play.differing == 1
    first = play.first
    assert first is not None
    assert (first.number, first.line) == (place + 1, place + 2)
    assert (first.event, list(first.recorded), list(first.played)) == (event, planted, effects)
    text = first.text()
    assert f"line {place + 2}" in text
    assert str(release) in text.partition("played:")[2]


def test_a_recorded_failure_must_come_again() -> None:
    """The same request twice: the scheduler refuses the second by an exception."""
    arrival = Arrive("r1", "a", "batch", 1.0, 100)
    good = [{**record_to_plain(arrival, 1.0, [], PLAIN)}, record_to_plain(arrival, 2.0, [], PLAIN, "ValueError")]
    lines = [json.dumps(header_to_plain(a_header(POLICY))), *map(json.dumps, good)]
    assert Player(a_header(POLICY)).play_all(Reader(lines)).same
    del good[1]["raised"]
    lines = [lines[0], *map(json.dumps, good)]
    first = Player(a_header(POLICY)).play_all(Reader(lines)).first
    assert first is not None
    assert (first.recorded_raised, first.played_raised) == (None, "ValueError")
    assert "the scheduler raised ValueError" in first.text()


def test_another_policy_is_played_in_place_of_the_recorded_one() -> None:
    """Its queue takes one request. Recorded changes of the policy are left out, or the small queue would grow again."""
    small = dataclasses.replace(POLICY, max_queued=1)
    life = [*LIFE, (Reconfigure(POLICY), LIFE[-1][1], [])]
    play = Player(a_header(POLICY), small).play_all(Reader(lines_of(a_header(POLICY), life)))
    assert not play.same
    assert play.events == len(LIFE)
    assert play.played["Refuse"] > play.recorded["Refuse"]


# -- hashed names ---------------------------------------------------------------------------------


def test_hashed_names_are_no_names_and_keep_the_tree() -> None:
    names = Names("00ff", "/")
    alice, bob, lone = (names.tenant(name) for name in ("acme/ml/alice", "acme/ml/bob", "acme"))
    assert alice.rpartition("/")[0] == bob.rpartition("/")[0]
    assert alice.split("/")[0] == lone
    assert alice != bob
    assert not {"acme", "ml", "alice"} & set(alice.split("/"))
    assert names.tenant("acme/*") == f"{lone}/*"
    assert Names("00fe", "/").tenant("acme") != lone
    assert Names("00ff").tenant("acme/ml/alice") != alice


def hashed_life(policy: PoolPolicy, names: Names) -> Iterator[str]:
    header = a_header(names.policy(policy), salt=names.salt, separator=names.separator)
    return iter(lines_of(header, a_life(policy), names))


def test_a_recording_with_hashed_names_plays_the_same_and_has_no_name() -> None:
    policy = dataclasses.replace(
        POLICY, tenants={"a": TenantPolicy(weight=4.0), "b": TenantPolicy(max_queued=2, parent="a")}
    )
    names = Names("00ff")
    lines = list(hashed_life(policy, names))
    for line in lines[1:]:
        record = json.loads(line)
        for part in [record["event"], *record.get("effects", [])]:
            assert part.get("tenant", "") not in ("a", "b", "c")
            assert not part.get("message")
    reader = Reader(lines)
    assert set(reader.header.policy.tenants) == {names.tenant("a"), names.tenant("b")}
    assert reader.header.policy.tenants[names.tenant("b")].parent == names.tenant("a")
    play = Player(reader.header).play_all(reader)
    assert play.same, play.first and play.first.text()
    # The plain policy, as a configuration file gives it, finds its tenants again.
    assert Player(reader.header, policy).play_all(Reader(lines)).same


# -- what is wrong is named -----------------------------------------------------------------------

GOOD = lines_of(a_header(POLICY), LIFE[:3])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["line 1", "no header", "from its first line"]),
        ("arrival_s,prompt_tokens\n", ["line 1", "no header"]),
        ("[]\n", ["line 1", "no header"]),
        ('{"fairlane_recording": 2, "fairlane": "9.0"}\n', ["format 2", "reads 1", "9.0"]),
        (GOOD[0].replace('"part": 1', '"part": "one"'), ["line 1", "part: expected a whole number, found 'one'"]),
        (GOOD[0].replace('"max_queued": 30', '"max_queue": 30'), ["policy.max_queue: is not known"]),
        (GOOD[0].replace('"overflow": "shed_heaviest"', '"overflow": "drop"'), ["policy.classes.0.overflow", "drop"]),
        (GOOD[0].replace('"salt": null', '"salt": "xyz"'), ["line 1"]),
    ],
)  # fmt: skip
def test_a_header_that_is_wrong_is_named(line: str, words: list[str]) -> None:
    with pytest.raises(RecordingError) as caught:
        Reader([line, *GOOD[1:]], "traffic.jsonl")
    assert str(caught.value).startswith("traffic.jsonl, line 1: ")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{\n", ["is no JSON", "cut it before this line"]),
        ("[" * 100_000 + "\n", ["is no JSON"]),
        ("7\n", ["is no object"]),
        ('{"event": {"type": "tick"}}\n', ["now: is missing"]),
        ('{"now": 1}\n', ["event: is missing"]),
        ('{"now": NaN, "event": {"type": "tick"}}\n', ["now: expected seconds"]),
        ('{"now": true, "event": {"type": "tick"}}\n', ["now: expected seconds"]),
        ('{"now": 1, "event": {"type": "tock"}}\n', ["event.type", "tock", "expected one of arrive, end"]),
        ('{"now": 1, "event": {"type": "end"}}\n', ["event.id: is missing"]),
        ('{"now": 1, "event": {"type": "end", "id": 7}}\n', ["event.id: expected a text, found 7"]),
        ('{"now": 1, "event": {"type": "end", "id": "r", "x": 1}}\n', ["event.x: is not known", "known here: id"]),
        ('{"now": 1, "event": {"type": "tick"}, "note": 1}\n', ["note: is not known"]),
        ('{"now": 1, "event": {"type": "tick"}, "effects": {}}\n', ["effects: expected a list"]),
        ('{"now": 1, "event": {"type": "tick"}, "effects": [{"type": "x"}]}\n', ["effect.type", "release, refuse"]),
        ('{"now": 1, "event": {"type": "tick"}, "raised": 1}\n', ["raised: expected the name"]),
        (
            '{"now": 1, "event": {"type": "scraped", "endpoint": "e", "sample": {"running": 1.5}}}\n',
            ["event.sample.running: expected a whole number, found 1.5"],
        ),
    ],
)
def test_a_record_that_is_wrong_is_named(line: str, words: list[str]) -> None:
    with pytest.raises(RecordingError) as caught:
        list(Reader([*GOOD[:2], line, *GOOD[2:]], "traffic.jsonl"))
    assert str(caught.value).startswith("traffic.jsonl, line 3: ")
    for word in words:
        assert word in str(caught.value)


def test_a_last_line_that_a_kill_has_cut_ends_the_reading() -> None:
    whole = Reader(GOOD)
    assert (len(list(whole)), whole.cut) == (3, False)
    cut = Reader([*GOOD[:-1], GOOD[-1][:20]])
    assert (len(list(cut)), cut.cut) == (2, True)


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    old = json.loads(GOOD[0])
    del old["policy"]["prefix_slack"]
    assert Reader([json.dumps(old)]).header == a_header(POLICY)
