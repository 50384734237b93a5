"""A recording that begins and ends while the pool is at work: `fairlane replay` reads it, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import json
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli.main import main
from extproc.config.load import load
from extproc.config.recording import Recording
from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Reconfigure,
    Release,
    Scraped,
    Usage,
)
from extproc.core.model import PoolPolicy, Sample, Source, Traffic
from extproc.core.recording import Reader
from extproc.core.scheduler import Scheduler
from extproc.telemetry.recording import Parts, Recorder

CONFIG = """
pools:
  - name: llama
    models: ["*"]
    endpoints: [10.0.0.1:8000]
"""
ENDPOINT = "10.0.0.1:8000"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("extproc.telemetry.recording._FLUSH_S", 0.01)
    Path("fairlane.yaml").write_text(CONFIG)


class Pool:
    """A scheduler at work, whose recorder comes and goes as a driver's does."""

    def __init__(self) -> None:
        config = load(Path("fairlane.yaml"))
        self.policy: PoolPolicy = config.pool_policy(config.pools[0])
        self.scheduler = Scheduler(self.policy)
        self.recorder: Recorder | None = None
        self.now = 50.0
        self.inside: list[str] = []
        self.count = 0
        self.apply(EndpointAdded("gone:1"))
        self.apply(EndpointAdded(ENDPOINT))
        self.apply(EndpointRemoved("gone:1"))

    def apply(self, event: Event) -> list[Effect]:
        self.now += 0.01
        effects = self.scheduler.apply(event, self.now)
        self.inside += [effect.id for effect in effects if isinstance(effect, Release)]
        if self.recorder is not None:
            self.recorder.write(event, self.now, effects)
        return effects

    def serve(self, requests: int) -> None:
        """So many arrive, one each quarter of a second; with eight inside, the oldest is answered before."""
        for _ in range(requests):
            self.now += 0.25
            self.apply(Scraped(ENDPOINT, Sample(len(self.inside), 0, 0.1, None, None, None, None, None, self.now)))
            if len(self.inside) >= 8:
                done = self.inside.pop(0)
                self.apply(Usage(done, Source.USAGE, 90, 0, 60))
                self.apply(End(done))
            self.apply(Arrive(f"r{self.count}", "ab"[self.count % 2], "interactive", self.now, 400))
            self.count += 1

    def start(self, name: str = "live.jsonl.gz", **options: Any) -> Recorder:
        parts = Parts(Path(name), **({"max_bytes": 10_000_000, "keep": 4} | options))
        there = [window.endpoint for window in self.scheduler.windows.values() if not window.removed]
        self.recorder = Recorder(parts, self.scheduler.policy, version="0.1.0", hashed=False, endpoints=there)
        return self.recorder

    def stop(self) -> None:
        recorder, self.recorder = self.recorder, None
        assert recorder is not None
        recorder.close()


def reader_of(name: str) -> Reader:
    import gzip

    data = Path(name).read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    return Reader(text.splitlines(keepends=True))


def fairlane(*args: object) -> tuple[int, str]:
    outcome = CliRunner().invoke(main, ["replay", *map(str, args)])
    assert "Traceback" not in outcome.output
    return outcome.exit_code, outcome.output


# -- what is in it -----------------------------------------------------------------------------------


def test_it_begins_with_what_is_in_force_as_part_two_of_a_run_of_its_own() -> None:
    pool = Pool()
    pool.serve(20)
    changed = Reconfigure(load_with("    max_queued: 77\n"))
    pool.apply(changed)
    pool.start("a.jsonl")
    pool.serve(5)
    pool.stop()
    pool.start("b.jsonl")
    pool.serve(1)
    pool.stop()
    first, second = reader_of("a.jsonl"), reader_of("b.jsonl")
    for reader in (first, second):
        assert (reader.header.part, reader.header.endpoints, reader.header.policy) == (2, (ENDPOINT,), changed.policy)
    assert first.header.run != second.header.run
    assert [record.event.id for record in first if isinstance(record.event, Arrive)] == [f"r{n}" for n in range(20, 25)]
    assert [record.event.id for record in second if isinstance(record.event, Arrive)] == ["r25"]


def load_with(more: str) -> PoolPolicy:
    Path("other.yaml").write_text(CONFIG + more)
    config = load(Path("other.yaml"))
    return config.pool_policy(config.pools[0])


def test_its_parts_follow_one_another() -> None:
    pool = Pool()
    recorder = pool.start("p.jsonl", max_bytes=1)
    pool.serve(1)
    wait_until(lambda: recorder._turn)
    pool.serve(1)
    pool.stop()
    assert [reader_of(name).header.part for name in ("p.jsonl.1", "p.jsonl")] == [2, 3]


# -- replayed ----------------------------------------------------------------------------------------


def a_live_recording() -> str:
    """Requests that began before it are answered in it, some begin in it and are answered after it; among them the
    pool is paused and goes on, and one is taken back."""
    pool = Pool()
    pool.serve(30)
    pool.start()
    pool.serve(20)
    pool.apply(Reconfigure(load_with("    traffic: paused\n")))
    pool.serve(6)
    pool.apply(Reconfigure(load_with("")))
    pool.apply(Cancel(pool.inside[-1], "by hand"))
    pool.serve(10)
    pool.stop()
    pool.serve(10)
    return "live.jsonl.gz"


def test_replay_puts_it_before_another_configuration() -> None:
    path = a_live_recording()
    Path("small.yaml").write_text(CONFIG + "    max_queued: 50\ntenants: {a: {weight: 4}}\n")
    code, output = fairlane(path, "--config", "small.yaml", "--compare", "fairlane.yaml", "--json", "out.json")
    assert code == 0, output
    found = json.loads(Path("out.json").read_text())
    assert [result["label"] for result in found["results"]] == ["small.yaml", "fairlane.yaml"]
    for result in found["results"]:
        assert result["total"]["requests"] == 36  # those that came while it was recorded
        assert {tenant: line["requests"] for tenant, line in result["tenants"].items()} == {"a": 18, "b": 18}


def test_replay_without_a_configuration_plays_it_with_what_was_in_force() -> None:
    code, output = fairlane(a_live_recording(), "--json", "out.json")
    assert code == 0, output
    (result,) = json.loads(Path("out.json").read_text())["results"]
    assert (result["label"], result["total"]["requests"]) == ("as recorded", 36)


def test_a_recording_that_began_in_a_pause_is_played_as_if_it_had_not() -> None:
    pool = Pool()
    pool.serve(10)
    pool.apply(Reconfigure(load_with("    traffic: paused\n")))
    pool.start()
    pool.serve(10)
    pool.stop()
    assert reader_of("live.jsonl.gz").header.policy.traffic is Traffic.PAUSED
    code, output = fairlane("live.jsonl.gz", "--compare", "fairlane.yaml", "--json", "out.json")
    assert code == 0, output
    for result in json.loads(Path("out.json").read_text())["results"]:
        assert (result["total"]["requests"], result["total"]["served"]) == (10, 10)


def test_an_exact_replay_says_that_it_begins_in_the_middle() -> None:
    code, output = fairlane(a_live_recording(), "--exact")
    assert code in (0, 1)
    assert "the recording starts in mid-life, with part 2 of its run" in output


# -- its end -------------------------------------------------------------------------------------------


def wait_until(true: Any) -> None:
    for _ in range(2_000):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to pass")


def test_its_end_does_not_hold_up_the_event_loop() -> None:
    """The disk hangs; meanwhile the loop goes on, and the end gives up when its time is over."""
    hang, writing = threading.Event(), threading.Event()

    class Hanging(BytesIO):
        def write(self, data: Any) -> int:
            writing.set()
            hang.wait(30)
            return super().write(data)

    async def ends() -> None:
        pool = Pool()
        recorder = pool.start("h.jsonl", opener=lambda _: Hanging())
        pool.serve(3)
        await asyncio.to_thread(writing.wait, 10)
        turns = 0
        closing = asyncio.ensure_future(recorder.closed(0.2))
        while not closing.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 1
        assert closing.result() is False
        hang.set()
        assert await recorder.closed() is True
        assert not recorder.stopped

    asyncio.run(ends())


def test_all_that_came_before_its_end_is_written_and_nothing_after_it() -> None:
    async def ends() -> None:
        pool = Pool()
        recorder = pool.start("e.jsonl")
        pool.serve(50)
        recorder.end()
        pool.serve(5)
        assert await recorder.closed() is True

    asyncio.run(ends())
    assert len([record for record in reader_of("e.jsonl") if isinstance(record.event, Arrive)]) == 50


def test_the_same_name_again_puts_the_earlier_one_aside() -> None:
    pool = Pool()
    runs = []
    for _ in range(3):
        pool.start("same.jsonl", keep=2)
        pool.serve(1)
        pool.stop()
        runs.append(reader_of("same.jsonl").header.run)
    assert [reader_of(name).header.run for name in ("same.jsonl.1", "same.jsonl")] == runs[1:]


def test_whether_a_name_is_taken_can_be_asked_before() -> None:
    """Of any pool, and also where only a part that was put aside is left."""
    recording = Recording(file="rec/night.jsonl.gz", keep=1)
    assert recording.present(["llama", "qwen"]) == []
    Path("rec").mkdir()
    Path("rec/night.qwen.jsonl.gz.1").touch()
    assert recording.present(["llama", "qwen"]) == [Path("rec/night.qwen.jsonl.gz")]
    Path("rec/night.llama.jsonl.gz").touch()
    assert len(recording.present(["llama", "qwen"])) == 2
    assert Recording().present(["llama"]) == []
