"""The files of a recording: what is in them, how they follow one another, and that no disk reaches a request."""

from __future__ import annotations

import errno
import gzip
import json
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from extproc.config.recording import Recording
from extproc.core.events import Arrive, End, EndpointAdded, EndpointRemoved, Event, Reconfigure, Scraped, Tick, Usage
from extproc.core.model import ClassPolicy, PoolPolicy, Sample, Source, TenantPolicy
from extproc.core.player import Player
from extproc.core.recording import Reader
from extproc.core.scheduler import Scheduler
from extproc.telemetry.recording import Parts, Recorder

POLICY = PoolPolicy(
    name="llama",
    classes=(ClassPolicy("interactive", 0, 0, queue_timeout_s=60.0, max_waiting=3, max_queued=100),),
    tenants={"acme/ml": TenantPolicy(weight=2.0)},
    separator="/",
)
ENDPOINT = "10.0.0.1:8000"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer gathers lines for this long; only then does it see that a disk is full."""
    monkeypatch.setattr("extproc.telemetry.recording._FLUSH_S", 0.01)


def a_recorder(parts: Parts, **changes: Any) -> Recorder:
    values: dict[str, Any] = {"version": "0.1.0", "hashed": False, "epoch": lambda: 1.8e9}
    return Recorder(parts, POLICY, **(values | changes))


def some_parts(path: Path, **changes: Any) -> Parts:
    values: dict[str, Any] = {"max_bytes": 1_000_000, "keep": 3}
    return Parts(path, **(values | changes))


class Driven:
    """A scheduler whose recorder is called as a pool's driver calls it."""

    def __init__(self, recorder: Recorder) -> None:
        self.scheduler = Scheduler(POLICY)
        self.recorder = recorder
        self.now = 50.0

    def apply(self, event: Event) -> None:
        self.now += 0.125
        try:
            effects = self.scheduler.apply(event, self.now)
        except Exception as error:
            self.recorder.write(event, self.now, (), raised=type(error).__name__)
        else:
            self.recorder.write(event, self.now, effects)

    def some_traffic(self, count: int = 20, tenant: str = "acme/ml") -> None:
        self.apply(EndpointAdded(ENDPOINT))
        self.apply(Scraped(ENDPOINT, Sample(0, 0, None, None, None, None, None, None, started=self.now)))
        for number in range(count):
            self.apply(Arrive(f"r{number}", tenant, "interactive", self.now, 400))
            self.apply(Usage(f"r{number}", Source.USAGE, 100, 0, 50))
            self.apply(End(f"r{number}"))


def text_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode().splitlines(keepends=True)


@pytest.mark.parametrize("name", ["traffic.jsonl", "traffic.jsonl.gz"])
def test_what_is_recorded_plays_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / "directories" / name
    driven = Driven(a_recorder(some_parts(path)))
    driven.some_traffic()
    driven.apply(Arrive("twice", "acme/ml", "interactive", 0.0, 1))
    driven.apply(Arrive("twice", "acme/ml", "interactive", 0.0, 1))  # the scheduler raises
    driven.recorder.close()
    reader = Reader(text_of(path))
    assert (reader.header.part, reader.header.endpoints, reader.header.policy) == (1, (), POLICY)
    assert (reader.header.clock.now, reader.header.clock.epoch) == (50.125, 1.8e9)
    play = Player(reader.header).play_all(reader)
    assert play.same, play.first and play.first.text()
    assert play.events == 2 + 3 * 20 + 2
    assert play.recorded == {"Release": 21, "Settled": 20}


def test_a_file_that_is_written_can_be_read_to_its_end(tmp_path: Path) -> None:
    """After each buffer, as a kill at that moment leaves it: gzip has no end yet, and loses nothing."""
    path = tmp_path / "traffic.jsonl.gz"
    parts = some_parts(path)
    parts.begin(b"one\n")
    parts.write(b"two\n")
    with gzip.open(path) as file, pytest.raises(EOFError):
        assert file.readline() + file.readline() == b"one\ntwo\n"
        file.readline()
    parts.close()
    assert text_of(path) == ["one\n", "two\n"]


def test_parts_are_put_aside_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    parts = some_parts(path, max_bytes=10, keep=3)
    for number in range(5):
        parts.begin(b"h%d\n" % number)
        assert not parts.full
        parts.write(b"1234567\n")
        assert parts.full
    parts.close()
    contents = {file.name: file.read_text()[:2] for file in tmp_path.iterdir()}
    assert contents == {"t.jsonl": "h4", "t.jsonl.1": "h3", "t.jsonl.2": "h2"}


def test_one_file_to_keep_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    parts = some_parts(path, keep=1)
    parts.begin(b"a\n")
    parts.begin(b"b\n")
    parts.close()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("t.jsonl", "b\n")]


def test_every_part_says_what_it_begins_with(tmp_path: Path) -> None:
    """The part that a change of policy and of endpoints has come before has both in its header."""
    path = tmp_path / "t.jsonl"
    recorder = a_recorder(some_parts(path, max_bytes=1))
    driven = Driven(recorder)
    changed = PoolPolicy(name="llama", classes=POLICY.classes, max_queued=7, separator="/")
    driven.apply(EndpointAdded("gone:1"))
    driven.apply(EndpointAdded(ENDPOINT))
    driven.apply(EndpointRemoved("gone:1"))
    recorder.write(Reconfigure(changed), driven.now, [])
    wait_until(lambda: recorder._turn)
    driven.apply(Tick())
    recorder.close()
    first, second = (Reader(text_of(file)) for file in (tmp_path / "t.jsonl.1", path))
    assert (first.header.part, first.header.endpoints, first.header.policy) == (1, (), POLICY)
    assert (second.header.part, second.header.endpoints, second.header.policy) == (2, (ENDPOINT,), changed)
    assert first.header.run == second.header.run
    assert [record.event for record in second] == [Tick()]


def test_files_of_an_earlier_process_are_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    runs = []
    for _ in range(2):
        driven = Driven(a_recorder(some_parts(path)))
        driven.some_traffic(2)
        driven.recorder.close()
        runs.append(Reader(text_of(path)).header.run)
    assert Reader(text_of(tmp_path / "t.jsonl.1")).header.run == runs[0] != runs[1]


def test_hashed_tenants_appear_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    driven = Driven(a_recorder(some_parts(path), hashed=True))
    driven.some_traffic()
    for number in range(200):
        driven.apply(Arrive(f"more-{number}", "acme/secret", "interactive", driven.now, 400))
    driven.recorder.close()
    lines = text_of(path)
    assert any('"refuse"' in line for line in lines)  # its message has a name, where it is not hashed
    assert not any("acme" in line or "secret" in line for line in lines)
    reader = Reader(lines)
    assert Player(reader.header).play_all(reader).same


def test_names_that_are_no_text_and_numbers_that_are_too_large_are_written(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    recorder = a_recorder(some_parts(path))
    events = [Arrive("r\ud800", "a", "interactive", 0.0, 1), Arrive("s", "a", "interactive", 0.0, 2**70)]
    for event in events:
        recorder.write(event, 1.0, [])
    recorder.close()
    assert [record.event for record in Reader(text_of(path))] == events


# -- a disk that fails ----------------------------------------------------------------------------


class FullDisk(BytesIO):
    """Takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if true():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to pass")


def test_a_full_disk_ends_the_recording_once_and_nothing_else(tmp_path: Path) -> None:
    stops: list[str] = []
    disk = FullDisk(3_000)
    parts = some_parts(tmp_path / "t.jsonl", opener=lambda _: disk)
    with capture_logs() as logs:
        recorder = a_recorder(parts, on_stop=lambda: stops.append("stop"))
        driven = Driven(recorder)
        driven.some_traffic(100)
        wait_until(lambda: recorder.stopped)
        driven.some_traffic(100)
        recorder.close()
    assert stops == ["stop"]
    (line,) = logs
    assert (line["event"], line["log_level"], line["pool"]) == ("recording_stopped", "error", "llama")
    assert "No space left" in line["error"]
    assert not recorder._thread.is_alive()
    assert not driven.scheduler.requests  # all were served as if nothing had been


def test_a_place_that_cannot_be_written_ends_the_recording(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        recorder = a_recorder(some_parts(tmp_path / "file" / "t.jsonl"))
        Driven(recorder).some_traffic()
        wait_until(lambda: recorder.stopped)
        recorder.close()
    assert [line["event"] for line in logs] == ["recording_stopped"]


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer hangs in its first write; the caller goes on until too much is behind, and then without."""
    monkeypatch.setattr("extproc.telemetry.recording._MOST_BEHIND", 20_000)
    hang = threading.Event()

    class Hanging(BytesIO):
        def write(self, data: Any) -> int:
            hang.wait(30)
            return super().write(data)

    disk: BinaryIO = Hanging()
    with capture_logs() as logs:
        recorder = a_recorder(some_parts(tmp_path / "t.jsonl", opener=lambda _: disk))
        Driven(recorder).some_traffic(200)
        assert recorder.stopped
        assert [line["event"] for line in logs] == ["recording_stopped"]
        assert "behind" in logs[0]["error"]
        hang.set()
        recorder.close()
    assert not recorder._thread.is_alive()


def test_an_event_that_cannot_be_written_reaches_nobody(tmp_path: Path) -> None:
    with capture_logs() as logs:
        recorder = a_recorder(some_parts(tmp_path / "t.jsonl"))
        recorder.write(object(), 1.0, [])  # type: ignore[arg-type]
        recorder.close()
    assert [line["event"] for line in logs] == ["recording_stopped"]


# -- the section of the configuration -------------------------------------------------------------


def test_recording_is_off_by_default() -> None:
    assert Recording().file_of("llama") is None


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("traffic.jsonl.gz", "traffic.llama.jsonl.gz"),
        ("/var/log/fairlane/traffic.jsonl", "/var/log/fairlane/traffic.llama.jsonl"),
        ("traffic", "traffic.llama"),
        (".traffic", ".traffic.llama"),
    ],
)
def test_each_pool_has_a_file_of_its_own(file: str, expected: str) -> None:
    assert Recording(file=file).file_of("llama") == Path(expected)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"file": ""}, "at least 1 character"),
        ({"file": True}, "this key is no switch"),
        ({"max_size": "1KiB"}, "at least 64KiB"),
        ({"max_size": 5}, "its unit"),
        ({"keep": 0}, "greater than or equal to 1"),
        ({"tenants": "secret"}, "'plain' or 'hashed'"),
        ({"path": "x"}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused(data: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Recording.model_validate(data)


def test_a_line_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    driven = Driven(a_recorder(some_parts(path)))
    driven.some_traffic(1)
    driven.recorder.close()
    records = [json.loads(line) for line in text_of(path)[1:]]
    assert [record["event"]["type"] for record in records] == [
        "endpoint_added", "scraped", "arrive", "usage", "end",
    ]  # fmt: skip
    assert [effect["type"] for record in records for effect in record.get("effects", [])] == ["release", "settled"]
