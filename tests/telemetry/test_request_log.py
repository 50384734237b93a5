"""Lines of single requests: which there are, what they say, and that neither they nor what is kept for them grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.telemetry import RequestLog as Settings
from extproc.core.events import Arrive, Cancel, Effect, End, EndpointAdded, Event, Refuse, Release, Tick
from extproc.core.explanation import class_cause
from extproc.core.model import ClassPolicy, Controller, PoolPolicy, State, TenantPolicy, WindowPolicy
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.telemetry import request_log
from extproc.telemetry.request_log import RequestLog

AT = "10.0.0.1:8000"
DEFAULTS: dict[str, Any] = {"slow_after": "10s", "refused": True, "lines_per_second": 1000.0}


def a_class(name: str = "default", rank: int = 0, **changes: Any) -> ClassPolicy:
    values: dict[str, Any] = {"priority_base": 0, "queue_timeout_s": 3600.0, "max_waiting": 0, "max_queued": 1_000_000}
    return ClassPolicy(name=name, rank=rank, **(values | changes))


class Scene:
    """One engine with `slots` places, on a clock that the test moves; the log sees each event."""

    def __init__(self, *classes: ClassPolicy, slots: int = 1, policy: dict[str, Any] | None = None, **log: Any) -> None:
        window = WindowPolicy(controller=Controller.FIXED, fixed=slots, overtake=0)
        most = TenantPolicy(max_queued=1_000_000, max_queued_bytes=10**15)
        more: dict[str, Any] = {"default_tenant": most, "max_queued": 1_000_000, "max_queued_bytes": 10**15}
        self.scheduler = Scheduler(PoolPolicy("sim", classes or (a_class(),), window=window, **(more | (policy or {}))))
        self.now = 1000.0
        self.left_out: list[tuple[str, int]] = []
        self.log = RequestLog(
            Settings(**(DEFAULTS | log)), lambda: self.now, lambda kind, count: self.left_out.append((kind, count))
        )
        self.apply(EndpointAdded(AT))
        self.now += 3.0  # the grace for the first page is over

    def apply(self, event: Event) -> list[Effect]:
        effects = self.scheduler.apply(event, self.now)
        self.log.seen(self.scheduler, event, self.now, effects)
        return effects

    def arrive(self, name: str, tenant: str = "a", cls: str = "default", age: float = 0.0, **more: Any) -> list[Effect]:
        return self.apply(Arrive(name, tenant, cls, self.now - age, 100, **more))

    def end(self, name: str) -> list[Effect]:
        return self.apply(End(name))

    def passes(self, seconds: int) -> None:
        """Time, with a tick each second."""
        for _ in range(seconds):
            self.now += 1.0
            self.log.tick(self.now)

    def configure(self, **log: Any) -> None:
        self.log.configure(Settings(**(DEFAULTS | log)))

    @property
    def kept(self) -> tuple[int, int, int]:
        """Held, to be looked at, with words."""
        return len(self.log.waiting), sum(map(len, self.log._arrivals)), len(self.words)

    @property
    def words(self) -> dict[str, Any]:
        return {name: held.why for name, held in self.log.waiting.items() if held.why is not None}


class Lines(list[dict[str, Any]]):
    """What was logged."""

    def info(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})

    def events(self) -> list[str]:
        return [line["event"] for line in self]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    found = Lines()
    monkeypatch.setattr(request_log, "log", found)
    return found


# -- what a line says ------------------------------------------------------------------------------


def test_a_slow_one_is_told_when_it_goes_with_why_it_waited(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("r1")
    scene.arrive("r2")
    scene.passes(12)
    assert not lines  # how long it waits is not known yet
    scene.end("r0")
    (line,) = lines
    assert line == {
        "event": "request_slow",
        "ticket": "r1",
        "pool": "sim",
        "tenant": "a",
        "class": "default",
        "waited_s": 12.0,
        "outcome": "released",
        "endpoint": AT,
        "hold": "window",
        "explanation": line["explanation"],
        "next": "a request inside ends, or a page shows more room",
        "explained": "request",
        "explained_at_s": 9.0,  # the last tick before it crossed
    }
    assert f"it is next; {AT}" in line["explanation"]
    scene.passes(1)
    scene.end("r1")
    assert len(lines) == 2
    assert (lines[1]["ticket"], lines[1]["waited_s"], lines[1]["hold"]) == ("r2", 13.0, "flow")
    assert lines[1]["explanation"] == "1 earlier requests of tenant 'a' go first"
    assert lines[1]["next"] == "they are released"
    assert scene.kept == (0, 0, 0)


@pytest.mark.parametrize(("seconds", "told"), [(9, 0), (10, 0), (11, 1)])
def test_slow_is_longer_than_the_threshold(lines: Lines, seconds: int, told: int) -> None:
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("r1")
    scene.passes(seconds)
    scene.end("r0")
    assert len(lines) == told
    assert scene.kept[::2] == (0, 0)


def test_one_that_leaves(lines: Lines) -> None:
    scene = Scene()
    for name in ("r0", "quick", "slow"):
        scene.arrive(name)
    scene.passes(5)
    scene.end("quick")
    scene.passes(7)
    scene.end("slow")
    (line,) = lines
    assert (line["event"], line["ticket"], line["waited_s"], line["outcome"]) == ("request_slow", "slow", 12.0, "left")
    assert line["hold"] == "window"  # "quick" had left when it was looked at
    scene.end("r0")
    scene.end("r0")
    scene.end("never known")
    assert len(lines) == 1


def test_one_that_is_refused_at_the_door(lines: Lines) -> None:
    scene = Scene(a_class(max_queued=1))
    for name in ("r0", "r1", "r2"):
        scene.arrive(name, tenant=f"tenant of {name}")
    (line,) = lines
    message = "class 'default' has 1 requests waiting, and may have 1 (max_queued of the class)"
    assert line == {
        "event": "request_refused",
        "ticket": "r2",
        "pool": "sim",
        "tenant": "tenant of r2",
        "class": "default",
        "waited_s": 0.0,
        "outcome": "refused",
        "reason": "queue_full",
        "message": message,
    }


def test_one_that_is_slow_and_refused_is_one_line(lines: Lines) -> None:
    scene = Scene(a_class(queue_timeout_s=20.0))
    scene.arrive("r0")
    scene.arrive("r1")
    scene.passes(20)
    scene.apply(Tick())
    (line,) = lines
    assert (line["event"], line["outcome"], line["reason"]) == ("request_refused", "refused", "queue_timeout")
    assert (line["waited_s"], line["hold"], line["explained_at_s"]) == (20.0, "window", 9.0)
    assert line["message"] == "waited 20.0 s, and class 'default' allows 20 s (queue_timeout of the class)"
    assert scene.kept == (0, 0, 0)


@pytest.mark.parametrize(("seconds", "events"), [(5, []), (20, ["request_slow"])])
def test_refusals_may_be_off(lines: Lines, seconds: int, events: list[str]) -> None:
    scene = Scene(a_class(queue_timeout_s=float(seconds)), refused=False)
    scene.arrive("r0")
    scene.arrive("r1")
    scene.passes(seconds)
    scene.apply(Tick())
    scene.log.denied(Reason.MODEL_NOT_FOUND, "no such model", "m")
    assert lines.events() == events
    assert all((line["outcome"], line["reason"]) == ("refused", "queue_timeout") for line in lines)


def test_what_never_came_to_a_scheduler(lines: Lines) -> None:
    scene = Scene()
    scene.log.denied(Reason.MODEL_NOT_FOUND, "the model 'm' is not served here", "m")
    scene.log.denied(Reason.INVALID_REQUEST, "no model is named", None)
    told = {"event": "request_refused", "outcome": "refused"}
    assert lines == [
        told | {"reason": "model_not_found", "message": "the model 'm' is not served here", "model": "m"},
        told | {"reason": "invalid_request_error", "message": "no model is named"},
    ]


def test_one_that_is_taken_back_from_its_engine(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("r0", age=2.0)
    scene.now += 4.0
    scene.apply(Cancel("r0", "wrong model"))
    (line,) = lines
    assert (line["event"], line["ticket"], line["outcome"]) == ("request_refused", "r0", "evicted")
    assert (line["reason"], line["waited_s"], line["inside_s"]) == ("cancelled", 2.0, 4.0)


@pytest.mark.parametrize("name", ["n" * 10_000, "'\"\n\x1b[31m" * 2_000, "\ud800" * 500, "\U0001f600" * 4_000])
def test_names_are_cut(lines: Lines, name: str) -> None:
    """Escaping is for who renders them."""
    scene = Scene(a_class(queue_timeout_s=20.0))
    scene.arrive("r0", tenant=name)
    scene.arrive("r1", tenant=name)
    scene.arrive("r2", tenant=name)
    scene.passes(15)
    scene.end("r0")
    scene.passes(5)
    scene.apply(Tick())
    scene.log.denied(Reason.MODEL_NOT_FOUND, f"no {name}", name)
    assert lines.events() == ["request_slow", "request_refused", "request_refused"]
    for line in lines:
        assert line.get("tenant", line.get("model")) == name[:128] + "..."
        assert all(len(value) <= 1_003 for value in line.values() if isinstance(value, str))


# -- who is looked at ------------------------------------------------------------------------------


def test_one_that_is_sent_again_crosses_by_its_first_arrival(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("new")
    scene.arrive("old", tenant="b", age=30.0)
    assert scene.kept == (2, 2, 0)
    scene.passes(1)
    assert list(scene.words) == ["old"]
    scene.end("r0")
    scene.end("new")
    slow = [line for line in lines if line["ticket"] == "old"]
    assert [line["explained_at_s"] for line in slow] == [31.0]
    assert len(lines) == 1


def test_one_that_is_sent_again_and_goes_at_once(lines: Lines) -> None:
    """It has waited in another process."""
    scene = Scene()
    scene.arrive("r0", age=30.0)
    (line,) = lines
    assert (line["event"], line["waited_s"], line["explanation"]) == ("request_slow", 30.0, None)
    assert scene.kept == (0, 0, 0)


def test_what_goes_in_time_after_a_look_leaves_nothing(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("r1")
    scene.passes(9)
    assert scene.kept == (1, 0, 1)
    scene.end("r0")
    assert scene.kept == (0, 0, 0)
    assert not lines


def test_one_that_nobody_looked_at(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("r1")
    scene.now += 11.0  # and no tick
    scene.end("r0")
    (line,) = lines
    assert line["explanation"] is None
    assert "hold" not in line


def test_settings_that_change_are_for_what_waits(lines: Lines) -> None:
    scene = Scene(slow_after=None)
    for number in range(5):
        scene.arrive(f"r{number}")
    scene.passes(20)
    scene.end("r0")  # r1 goes
    assert not lines
    scene.configure(slow_after="30s")
    scene.passes(5)
    scene.end("r1")  # r2 goes, after 25 s
    assert not lines
    scene.configure(slow_after="5s")
    scene.passes(1)
    scene.end("r2")
    assert [(line["ticket"], line["waited_s"], line["explained_at_s"]) for line in lines] == [("r3", 26.0, 26.0)]
    scene.configure(slow_after=None)
    scene.end("r3")
    assert len(lines) == 1
    assert scene.kept[::2] == (0, 0)


def test_time_for_explanations_is_bounded(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question takes 1.1 ms here: three are asked for requests by themselves, then one for the class."""
    scene = Scene(slots=1)
    scene.arrive("inside")
    for number in range(50):
        scene.arrive(f"r{number}", tenant=f"t{number}")
    asked: list[str] = []

    def slowly(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def told(*arguments: Any) -> Any:
            asked.append(what)
            scene.now += 0.0011
            return call(*arguments)

        return told

    monkeypatch.setattr(request_log, "explain", slowly(request_log.explain, "request"))
    monkeypatch.setattr(request_log, "class_cause", slowly(class_cause, "class"))
    scene.passes(9)
    assert asked == ["request"] * 3 + ["class"]
    assert [why.of for why in scene.words.values()] == ["request"] * 3 + ["class"] * 47
    words = list(scene.words.values())[3:]
    assert all(why is words[0] for why in words)
    scene.passes(3)
    assert len(asked) == 4  # they have been looked at
    scene.end("inside")
    assert lines[0]["ticket"] == "r0"


def test_classes_of_many_flows_are_not_asked_about_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_FLOWS", 2)
    scene = Scene(a_class("few"), a_class("many", 1))
    scene.arrive("inside", "t0", "few")
    for cls, flows in (("few", 2), ("many", 3)):
        for number in range(flows):
            scene.arrive(f"{cls}{number}", f"t{number}", cls)
    scene.passes(9)
    found = {name: why.of for name, why in scene.words.items()}
    of = {"few0": "request", "few1": "request", "many0": "class", "many1": "class", "many2": "class"}
    assert found == of


def test_a_tick_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even the look at one takes long, the rest is left to the next tick."""
    scene = Scene()
    for number in range(100):
        scene.arrive(f"r{number}")
    scene.passes(8)
    reads = scene.log._clock

    def clock() -> float:
        scene.now += 0.001
        return reads()

    monkeypatch.setattr(scene.log, "_clock", clock)
    scene.now += 1.0
    scene.log.tick(scene.now)
    looked = len(scene.words)
    assert 0 < looked < 7
    scene.log.tick(scene.now)
    assert len(scene.words) == 2 * looked


# -- how many lines --------------------------------------------------------------------------------


def test_beyond_the_limit_one_line_says_how_many(lines: Lines) -> None:
    scene = Scene(a_class(max_queued=1), lines_per_second=4)
    for name in ("r0", "r1"):
        scene.arrive(name)
    for number in range(10):
        scene.arrive(f"over{number}")
    for _ in range(5):
        scene.log.denied(Reason.MODEL_NOT_FOUND, "no", "m")
    assert lines.events() == ["request_refused"] * 4
    scene.passes(1)
    assert lines[4:] == [
        {
            "event": "request_lines_left_out",
            "slow": 0,
            "refused": 11,
            "reasons": {"queue_full": 6, "model_not_found": 5},
            "limit": "4 (telemetry.log.lines_per_second)",
        }
    ]
    assert scene.left_out == [("refused", 11)]
    scene.passes(1)
    assert len(lines) == 5
    for number in range(10):
        scene.arrive(f"again{number}")
    assert lines.events()[5:] == ["request_refused"] * 4  # a second's worth, however long it was quiet


def test_less_than_one_a_second(lines: Lines) -> None:
    """One every four seconds."""
    scene = Scene(lines_per_second=0.25)
    for _ in range(12):
        scene.log.denied(Reason.FAULT, "no", None)
        scene.passes(1)
    assert lines.events().count("request_refused") == 3
    assert sum(count for _, count in scene.left_out) == 9


def test_slow_ones_left_out_are_counted_apart(lines: Lines) -> None:
    scene = Scene(slots=1, lines_per_second=1)
    for number in range(4):
        scene.arrive(f"r{number}")
    scene.passes(20)
    for number in range(3):
        scene.end(f"r{number}")
    scene.log.denied(Reason.FAULT, "no", None)
    scene.log.denied(Reason.FAULT, "no", None)
    scene.passes(1)
    assert scene.left_out == [("slow", 2), ("refused", 1)]
    assert lines.events() == ["request_slow", "request_refused", "request_lines_left_out"]  # each kind has its own


# -- what is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_many_held_and_endless_arrivals(lines: Lines, held: int) -> None:
    """What is kept follows what is held, with a lasting stream of others that come and go in time."""
    scene = Scene(slow_after="1h", lines_per_second=1)
    scene.arrive("inside")
    for number in range(held):
        scene.arrive(f"r{number}", tenant=f"t{number % 50}")
    scene.passes(1)
    assert scene.kept[0] == held
    for number in range(2 * held):  # the last to come is the last of its tenant, and leaves
        scene.arrive(f"more{number}", tenant="more")
        scene.end(f"more{number}")
        assert len(scene.log.waiting) <= held + 1
    assert scene.kept == (held, held, 0)
    for number in range(held):
        scene.end(f"r{number}")
    assert scene.kept == (0, 0, 0)
    assert not lines


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_all_cross_at_once(lines: Lines, count: int) -> None:
    scene = Scene(lines_per_second=5)
    scene.arrive("inside")
    for number in range(count):
        scene.arrive(f"r{number}", tenant=f"t{number % 50}")
    scene.passes(12)
    assert scene.kept[2] <= count
    for number in range(count):
        scene.end(f"r{number}")
    scene.passes(1)
    assert scene.kept == (0, 0, 0)
    assert lines.events() == ["request_slow"] * 5 + ["request_lines_left_out"]
    assert scene.left_out == [("slow", count - 5)]


def test_a_verdict_that_a_fault_has_lost(lines: Lines) -> None:
    """The scheduler let it go, and nobody was told."""
    scene = Scene()
    scene.arrive("r0")
    scene.arrive("r1")
    scene.passes(12)
    scene.scheduler.apply(End("r0"), scene.now)
    assert scene.scheduler.requests["r1"].state is State.RELEASED
    scene.end("r1")
    assert not lines
    assert scene.kept == (0, 0, 0)


def test_ends_that_a_fault_has_lost_do_not_add_up(lines: Lines) -> None:
    scene = Scene()
    scene.arrive("inside")
    for number in range(3_000):
        scene.arrive(f"r{number}")
        scene.scheduler.apply(End(f"r{number}"), scene.now)  # the log does not see it
        if number % 100 == 0:
            scene.passes(1)
        assert scene.kept[0] == scene.kept[1] <= 1_000


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "replayed", "end", "cancel", "second"]), st.integers(0, 9)), max_size=80
)


@given(steps=STEPS)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_what_is_kept_is_what_waits_and_each_slow_one_has_one_line(steps: Sequence[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines = Lines()
        patch.setattr(request_log, "log", lines)
        scene = Scene(a_class(queue_timeout_s=15.0, max_queued=5), slots=2, slow_after="4s")
        came: list[str] = []
        arrived: dict[str, float] = {}
        verdicts: dict[str, float] = {}  # -> how long it had waited by then
        refused: set[str] = set()
        for what, which in steps:
            waited = {r.id for r in scene.scheduler.requests.values() if r.state is State.QUEUED}
            effects: list[Effect] = []
            name = came[which % len(came)] if came else "nobody"
            if what in ("arrive", "replayed"):
                name = f"r{len(came)}"
                came.append(name)
                age = which if what == "replayed" else 0
                arrived[name] = scene.now - age
                effects = scene.arrive(name, tenant=f"t{which % 3}", age=age)
            elif what == "end":
                effects = scene.end(name)
                if name in waited and name not in verdicts:
                    verdicts[name] = scene.now - arrived[name]
            elif what == "cancel":
                effects = scene.apply(Cancel(name, "enough"))
            else:
                scene.passes(1)
                effects = scene.apply(Tick())
            for effect in effects:
                if isinstance(effect, Release | Refuse):
                    verdicts[effect.id] = effect.waited_s
                    if isinstance(effect, Refuse):
                        refused.add(effect.id)
            waits = {r.id for r in scene.scheduler.requests.values() if r.state is State.QUEUED}
            assert set(scene.log.waiting) == waits
            assert sum(map(len, scene.log._arrivals)) == sum(not held.looked_at for held in scene.log.waiting.values())
        told = [line["ticket"] for line in lines if line["outcome"] != "evicted"]
        wanted = {name for name, waited_s in verdicts.items() if waited_s > 4.0} | refused
        assert all(line["event"] in ("request_slow", "request_refused") for line in lines)
        assert sorted(told) == sorted(wanted)


# -- names and ways out ----------------------------------------------------------------------------


def test_lines_say_what_envoy_calls_the_request(lines: Lines) -> None:
    scene = Scene(a_class(max_queued=1), slots=1)
    for number in range(3):
        scene.log.coming(f"r{number}", f"x{number}")
        scene.arrive(f"r{number}")
    scene.passes(12)
    scene.end("r0")
    scene.log.denied(Reason.MODEL_NOT_FOUND, "no such model", "m", "x9")
    told = [(line["event"], line.get("ticket"), line["x_request_id"]) for line in lines]
    assert told == [
        ("request_refused", "r2", "x2"),
        ("request_slow", "r1", "x1"),
        ("request_refused", None, "x9"),
    ]


def test_one_that_envoy_gave_no_id_has_none(lines: Lines) -> None:
    scene = Scene(a_class(max_queued=1))
    scene.log.coming("r0", "")
    scene.arrive("r0")
    scene.arrive("r1")
    scene.log.coming("other", "x")  # not the one that comes
    scene.arrive("r2")
    (line,) = lines
    assert "x_request_id" not in line


def test_who_is_handed_over_has_not_left(lines: Lines) -> None:
    scene = Scene()
    for number in range(3):
        scene.arrive(f"r{number}")
    scene.passes(12)
    scene.log.interrupted("r1", "handed_over")
    scene.end("r1")
    scene.end("r2")
    assert [(line["ticket"], line["outcome"]) for line in lines] == [("r1", "handed_over"), ("r2", "left")]
