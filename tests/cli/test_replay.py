"""`fairlane replay`: figures that can be reckoned by hand, configurations side by side, exact replays, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc.cli.main import main
from extproc.cli.replay_setting import SettingError, baselines, engine_kind
from extproc.config.load import load
from extproc.core.events import Arrive, End, EndpointAdded, Event, Scraped, Tick, Usage
from extproc.core.model import Controller, PoolPolicy, Sample, Source
from extproc.core.scheduler import Scheduler
from extproc.sim.shapes import E1, E8
from extproc.telemetry.recording import Parts, Recorder

pytestmark = pytest.mark.slow

HEAD = "arrival_s,prompt_tokens,output_tokens,user,class\n"
CONFIG = """
pools:
  - name: llama
    models: ["*"]
    endpoints: [10.0.0.1:8000]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fairlane.yaml").write_text(CONFIG)


def fairlane(*args: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, args)])


def good(*args: object) -> str:
    outcome = fairlane(*args)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def refused(*args: object) -> str:
    outcome = fairlane(*args)
    assert outcome.exit_code == 2, outcome.output
    assert "Traceback" not in outcome.output
    return outcome.output


def figures(*args: object) -> dict[str, Any]:
    good(*args, "--json", "out.json")
    found: dict[str, Any] = json.loads(Path("out.json").read_text())
    return found


def a_trace(rows: str) -> Path:
    Path("trace.csv").write_text(HEAD + rows)
    return Path("trace.csv")


# -- traffic --------------------------------------------------------------------------------------


def test_a_request_alone_takes_what_the_engine_takes() -> None:
    """100 prompt tokens at 0.12 ms in a step of 22 ms: 34 ms. Nine more tokens, each in a step of 22 + 0.6 ms."""
    found = figures(a_trace("5,100,10,a,\n"), "--baseline", "direct")
    direct = found["results"][1]
    assert direct["label"] == "direct FIFO"
    assert direct["total"]["ttft_s"] == pytest.approx({"p50": 0.034, "p95": 0.034, "p99": 0.034})
    assert direct["total"]["wait_s"]["p99"] == 0.0
    assert direct["seconds"] == pytest.approx(0.034 + 9 * 0.0226, abs=0.001)
    # Held until the first reading of the metrics page, which takes some milliseconds.
    fair = found["results"][0]["total"]
    assert 0.034 <= fair["ttft_s"]["p50"] <= 0.034 + 0.3


def test_who_asked_for_how_much_and_got_it() -> None:
    """By cost, prompt + 2 * output: a 2 * 120 = 240, b 760 of 1,000."""
    found = figures(a_trace("0,100,10,a,\n1,100,10,a,\n2,740,10,b,\n900,1,1,c,\n"))
    (mine,) = found["results"]
    assert mine["tenants"]["a"]["asked_share"] == pytest.approx(240 / 1003, abs=1e-6)
    assert mine["tenants"]["b"]["asked_share"] == pytest.approx(760 / 1003, abs=1e-6)
    assert mine["tenants"]["a"]["got_share"] == pytest.approx(0.24)
    assert mine["total"]["served"] == 4
    assert found["facts"]["Requests"] == "4 of 3 tenants in 900 s"


# 60 requests of each of two tenants at once, and a last one after 25 s: an engine of 4 slots is not done by then.
CROWD = "".join(f"0,100,100,{'ab'[n % 2]},\n" for n in range(120)) + "25,1,1,c,\n"


def test_another_configuration_beside_the_first() -> None:
    """With three times the weight a gets three times as much while both wait."""
    Path("other.yaml").write_text(CONFIG + "tenants: {a: {weight: 3}}\n")
    output = good(a_trace(CROWD), "--compare", "other.yaml", "--engine", "small,max_num_seqs=4", "--json", "out.json")
    first, other = json.loads(Path("out.json").read_text())["results"]
    assert (first["label"], other["label"]) == ("fairlane.yaml", "other.yaml")
    assert first["tenants"]["a"]["got_share"] == pytest.approx(first["tenants"]["b"]["got_share"], rel=0.1)
    ratio = other["tenants"]["a"]["got_share"] / other["tenants"]["b"]["got_share"]
    assert 2.4 < ratio < 3.6
    assert output.count("other.yaml") == 1 + 1 + 3 + 1  # in all, class, each tenant, and while it played
    assert "p95/first" in output


def test_the_classes_of_a_tenant_are_those_of_the_configuration() -> None:
    Path("fairlane.yaml").write_text(CONFIG + "tenants: {a: {classes: [batch], default_class: batch}}\n")
    output = good(a_trace("0,9,9,a,interactive\n0,9,9,b,interactive\n0,9,9,b,\n0,9,9,b,vip\n"), "--json", "out.json")
    (found,) = json.loads(Path("out.json").read_text())["results"]
    assert {name: line["requests"] for name, line in found["classes"].items()} == {
        "batch": 1, "default": 2, "interactive": 1,
    }  # fmt: skip
    assert "1 requests asked for the class 'vip', which their tenants may not use there" in output


def test_what_the_engine_could_never_hold_is_left_out_and_said() -> None:
    trace = a_trace("0,500,10,a,\n1,9,9,b,\n")
    output = good(trace, "--engine", "small,kv_tokens=256")
    assert "1 requests are larger than the engine's KV cache of 256 tokens and were left out" in output
    assert "there is no request to play" in refused(trace, "--engine", "small,kv_tokens=16")


def test_only_the_largest_tenants_are_in_the_table() -> None:
    output = good(a_trace("0,9,9,large,\n0,9,9,large,\n0,9,9,small,\n"), "--top", 1)
    assert "large" in output
    assert " small " not in output
    assert "The 1 tenants with the most requests of 2" in output


def test_as_many_engines_as_the_pool_has() -> None:
    Path("fairlane.yaml").write_text(CONFIG.replace("[10.0.0.1:8000]", "[10.0.0.1:8000, 10.0.0.2:8000]"))
    trace = a_trace("0,9,9,a,\n")
    assert figures(trace)["facts"]["Engines"] == "2 x small, simulated"
    assert figures(trace, "--engines", 5)["facts"]["Engines"] == "5 x small, simulated"


def test_the_report_is_written_and_is_whole() -> None:
    good(a_trace("0,9,9,<script>,\n5,9,9,b,\n"), "--html", "out.html", "--baseline", "direct")
    html = Path("out.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert html.endswith("</html>\n")
    assert "<script" not in html
    for title in ("Waits over time", "Time to the first token", "Service per tenant", "direct FIFO", "&lt;script&gt;"):
        assert title in html


def test_the_same_twice() -> None:
    trace = a_trace(CROWD)
    assert figures(trace, "--baseline", "threshold") == figures(trace, "--baseline", "threshold")


# -- what cannot be used --------------------------------------------------------------------------


def test_what_cannot_be_used_is_named_with_exit_code_2() -> None:
    trace = a_trace("0,9,9,a,\n")
    Path("bad.yaml").write_text("pools: []\n")
    bad = Path("bad.csv")
    bad.write_text(HEAD + "0,9,-9,a,\n")
    assert "bad.csv, line 2: output_tokens is -9" in refused(bad)
    assert "bad.yaml: pools" in refused(trace, "--config", "bad.yaml")
    assert "bad.yaml: pools" in refused(trace, "--compare", "bad.yaml")
    assert "none.csv: cannot be read" in refused("none.csv")
    assert "there is no such engine; there are small, e3" in refused(trace, "--engine", "h100")
    assert "there is none; there are direct" in refused(trace, "--baseline", "magic")
    assert "no such pool; it has llama" in refused(trace, "--pool", "qwen")
    assert "--exact needs a recording" in refused(trace, "--exact")
    assert "no request to play" in refused(trace, "--from", 100)
    assert "there is no folder 'nowhere'" in refused(trace, "--json", "nowhere/out.json")
    assert "not a number" in refused(trace, "--scale", "nan")
    Path("fairlane.yaml").unlink()
    assert "Name the configuration with --config" in refused(trace)


def test_engines_by_word_and_figure() -> None:
    assert engine_kind("small").options == E1
    assert engine_kind("max_num_seqs=4").options.max_num_seqs == 4
    changed = engine_kind("E8, max_num_seqs=256,kv_tokens=200000,step_base=0.01,prefix_cache_tokens=64000")
    assert changed.options.max_num_seqs == 256
    assert changed.options.kv_tokens == 200_000
    assert changed.options.step_base == 0.01
    assert changed.options.step_per_seq == E8.step_per_seq
    assert changed.prefix_cache_tokens == 64_000
    assert engine_kind("real").way_in.each > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("small,slots=4", "there is no 'slots'; there are max_num_seqs"),
        ("small,max_num_seqs", "max_num_seqs is ''; it must be a whole number"),
        ("small,max_num_seqs=4.5", "it must be a whole number"),
        ("small,step_base=22ms", "it must be seconds, as in 0.022"),
        ("small,step_base=nan", "step times must be finite"),
        ("small,kv_tokens=0", "must be at least 1"),
        ("small,block_size=0,kv_tokens=100", "must be at least 1"),
    ],
)
def test_engines_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(SettingError, match="--engine") as caught:
        engine_kind(text)
    assert words in str(caught.value)


def test_baselines_by_word() -> None:
    assert [way.name for way in baselines("direct, fixed-32,direct")] == ["direct FIFO", "fixed 32"]
    assert len(baselines("all")) >= 7
    assert baselines("") == []


# -- recordings -----------------------------------------------------------------------------------


class Life:
    """A scheduler with its recorder, as a pool's driver has them. `a` sends much, `b` little."""

    def __init__(self, policy: PoolPolicy, path: Path, *, hashed: bool = False) -> None:
        self.scheduler = Scheduler(policy)
        self.recorder = Recorder(Parts(path, max_bytes=10**8, keep=9), policy, version="0.1.0", hashed=hashed)
        self.now = 50.0

    def apply(self, event: Event) -> None:
        self.recorder.write(event, self.now, self.scheduler.apply(event, self.now))

    def run(self, requests: int = 30) -> None:
        self.apply(EndpointAdded("e:1"))
        self.apply(Scraped("e:1", Sample(0, 0, None, None, None, None, None, None, started=self.now)))
        for number in range(requests):
            self.now += 0.25
            self.apply(Arrive(f"r{number}", "b" if number % 3 == 0 else "a", "interactive", self.now, 400))
            if number >= 10:
                self.apply(Usage(f"r{number - 10}", Source.USAGE, 90, 0, 60))
                self.apply(End(f"r{number - 10}"))
        self.recorder.close()


def a_policy() -> PoolPolicy:
    config = load(Path("fairlane.yaml"))
    return config.pool_policy(config.pools[0])


def a_recording(name: str = "r.jsonl", **options: Any) -> Path:
    Life(a_policy(), Path(name), **options).run()
    return Path(name)


def test_a_recording_gives_the_same_effects() -> None:
    output = good(a_recording("r.jsonl.gz"), "--exact", "--json", "out.json")
    assert "72 events, of which 0 have other effects than recorded." in output  # 2, 30 arrivals, 20 usages, 20 ends
    assert "The same effects came out." in output
    found = json.loads(Path("out.json").read_text())
    assert (found["same"], found["events"], found["first_difference"]) == (True, 72, None)
    assert found["recorded"] == found["played"]


def test_a_difference_is_told_with_both_sides_and_exit_code_1() -> None:
    path = a_recording()
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"release"' in line)
    lines[place] = lines[place].replace('"priority":0', '"priority":7')
    path.write_text("\n".join(lines))
    outcome = fairlane(path, "--exact")
    assert outcome.exit_code == 1
    assert f"r.jsonl: event {place} (line {place + 1}" in outcome.output
    assert "recorded: Release(" in outcome.output
    assert "priority=7" in outcome.output.partition("recorded:")[2].partition("played:")[0]
    assert "priority=0" in outcome.output.partition("played:")[2]


def test_another_configuration_event_by_event() -> None:
    path = a_recording()
    Path("small.yaml").write_text(CONFIG + "    max_queued: 1\n")
    outcome = fairlane(path, "--exact", "--config", "small.yaml")
    assert outcome.exit_code == 1
    assert "another configuration is played than was recorded" in outcome.output
    assert "Refuse: 0 recorded" in outcome.output
    assert "The same effects" in good(path, "--exact", "--config", "fairlane.yaml")


def parts_of_a_run() -> list[Path]:
    """Three parts of 42, 40 and 40 events."""
    life = Life(a_policy(), Path("p.jsonl"))
    life.apply(EndpointAdded("e:1"))
    life.apply(Scraped("e:1", Sample(0, 0, None, None, None, None, None, None, started=life.now)))
    for part in range(3):
        for number in range(20):
            life.now += 0.1
            life.apply(Arrive(f"{part}-{number}", "a", "interactive", life.now, 400))
            life.apply(Tick())
        life.recorder._turn = True  # as when the file has grown to its size
    life.recorder.close()
    return [Path("p.jsonl.2"), Path("p.jsonl.1"), Path("p.jsonl")]


def test_parts_of_a_run_are_played_as_one() -> None:
    first, second, third = parts_of_a_run()
    assert "122 events, of which 0" in good(third, first, second, "--exact")
    assert "82 events, of which 0" in good(first, second, "--exact")
    assert "these are the parts 1, 3 of a run" in refused(first, third, "--exact")
    assert "these are the parts 1, 1 of a run" in refused(first, first, "--exact")
    assert "2 runs of Fairlane" in refused(first, a_recording(), "--exact")


def test_a_recording_that_begins_in_mid_life_says_so() -> None:
    """What was inside before is not known, so more is released than was."""
    _, second, third = parts_of_a_run()
    outcome = fairlane(second, third, "--exact")
    assert outcome.exit_code == 1
    assert "starts in mid-life, with part 2 of its run" in outcome.output
    found = figures(second, third)
    assert found["results"][0]["total"]["requests"] == 40
    begins = (
        "the recording starts in mid-life, with part 2 of its run: what waited, ran and was learnt before is not in it"
    )
    assert begins in found["notes"]  # of those before, which it has nothing of, none is counted
    assert not any("mid-life" in note for note in figures(*parts_of_a_run())["notes"])


def test_what_was_under_way_when_a_recording_began_is_counted() -> None:
    """It begins when r0 to r6 are inside and r7 to r11 held. r0 and r1 end, for which r7 and r8 go; r7 ends, and r9
    goes: those five show. One that was over by then, and whose usage comes, is none of them; nor is one that comes."""
    policy = a_policy()
    policy = replace(policy, window=replace(policy.window, controller=Controller.FIXED, fixed=7, overtake=0))
    life = Life(policy, Path("whole.jsonl"))
    life.apply(EndpointAdded("e:1"))
    life.apply(Scraped("e:1", Sample(0, 0, None, None, None, None, None, None, started=life.now)))

    def arrive(name: str) -> None:
        life.now += 0.1
        life.apply(Arrive(name, "a", "interactive", life.now, 400))

    arrive("over")
    life.apply(End("over"))
    for number in range(12):
        arrive(f"r{number}")
    life.recorder.close()
    life.recorder = Recorder(
        Parts(Path("later.jsonl"), max_bytes=10**8, keep=9), policy, version="0.1.0", hashed=False, endpoints=["e:1"]
    )
    life.apply(Usage("over", Source.USAGE, 90, 0, 60))
    life.apply(End("r0"))
    life.apply(End("r1"))
    life.apply(End("r7"))
    arrive("late")
    life.apply(End("late"))
    life.recorder.close()
    (note,) = [note for note in figures("later.jsonl")["notes"] if "starts in mid-life" in note]
    assert note.endswith("; 5 requests that end or go in it were held or inside at its start, and are not played")
    assert not [note for note in figures("whole.jsonl")["notes"] if "mid-life" in note]


def test_a_recording_is_traffic_too() -> None:
    """Without a configuration it is played with its own; with one, beside it or in its place."""
    path = a_recording()
    found = figures(path)
    (mine,) = found["results"]
    assert mine["label"] == "as recorded"
    assert {name: line["requests"] for name, line in mine["tenants"].items()} == {"a": 20, "b": 10}
    assert any("10 of 30 requests have no count" in note for note in found["notes"])
    assert [each["label"] for each in figures(path, "--compare", "fairlane.yaml")["results"]] == [
        "as recorded", "fairlane.yaml",
    ]  # fmt: skip
    assert [each["label"] for each in figures(path, "--config", "fairlane.yaml")["results"]] == ["fairlane.yaml"]


def test_tenants_of_the_configuration_are_found_in_a_recording_with_hashes() -> None:
    """b may use batch alone: a third of the requests, whatever b is called in the file."""
    path = a_recording(hashed=True)
    assert '"tenant":"b"' not in path.read_text()
    Path("other.yaml").write_text(CONFIG + "tenants: {b: {classes: [batch], default_class: batch}}\n")
    found = figures(path, "--config", "other.yaml")["results"][0]
    assert {name: line["requests"] for name, line in found["classes"].items()} == {"batch": 10, "interactive": 20}
    assert "a" not in found["tenants"]
    assert "The same effects" in good(path, "--exact", "--config", "fairlane.yaml")
