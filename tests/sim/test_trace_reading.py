"""Traces: what a CSV or a recording says becomes jobs; what cannot be true is named by line, cause and cure."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from extproc.core.events import Arrive, End, EndpointAdded, Event, Reconfigure, Usage
from extproc.core.model import ClassPolicy, PoolPolicy, Source
from extproc.core.recording import Clock, Header, Names, RecordingError, header_to_plain, record_to_plain
from extproc.sim.jobs import Job
from extproc.sim.trace import Table, header_of, load
from extproc.sim.traffic import Choice, TraceError, Traffic, chosen

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def read(path: Path, **choice: Any) -> Traffic:
    return load([path], Choice(**choice))


def jobs_of(path: Path, text: str, **choice: Any) -> list[Job]:
    path.write_text(text, encoding="utf-8")
    return read(path, **choice).jobs


def the_error(path: Path, text: str | bytes, **choice: Any) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TraceError) as caught:
        read(path, **choice)
    return str(caught.value)


# -- CSV ------------------------------------------------------------------------------------------


def test_a_row_becomes_a_job(file: Path) -> None:
    text = (
        "user,arrival_s,output_tokens,prompt_tokens,class,max_output,n,timeout_s,body_bytes,comment\n"
        'acme,10.5,20,300,batch,64,2,2.5,1300,"a, b"\n'
        ",11,1.0,1e3,,,,,,\n"
    )
    assert jobs_of(file, text) == [
        Job(0.0, "acme", 300, 20, "batch", max_output=64, n=2, timeout_s=2.5, body_bytes=1300),
        Job(0.5, "anonymous", 1000, 1, ""),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens\n1,2,3\n4,5,6\n",
        "arrival_s,prompt_tokens,output_tokens\r\n1,2,3\r\n4,5,6",  # CRLF, and no end of the last line
        "\ufeffarrival_s,prompt_tokens,output_tokens\n\n1,2,3\n   \n\n4,5,6\n\n",  # a mark and empty lines
        " Arrival_S , prompt_tokens,OUTPUT_TOKENS\n 1 , 2,3 \n4,5,6\n",
        "arrival_ms,prompt_tokens,output_tokens\n1000,2,3\n4000,5,6\n",
        "arrival_s,prompt_tokens,output_tokens\n1764450001,2,3\n1764450004,5,6\n",  # since 1970
    ],
)
def test_the_same_table_in_other_clothes(file: Path, text: str) -> None:
    assert jobs_of(file, text) == [Job(0.0, "anonymous", 2, 3, ""), Job(3.0, "anonymous", 5, 6, "")]


def test_gzip_is_seen_by_its_content(file: Path) -> None:
    file.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n1,2,3\n"))
    assert read(file).jobs == [Job(0.0, "anonymous", 2, 3, "")]


def test_rows_are_put_in_order_and_equal_times_stay_as_they_are(file: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,user\n5,1,1,a\n2,1,1,b\n5,1,1,c\n2,1,1,d\n"
    assert [(job.tenant, job.at) for job in jobs_of(file, text)] == [("b", 0.0), ("d", 0.0), ("a", 3.0), ("c", 3.0)]


def test_no_tokens_count_as_one(file: Path) -> None:
    (job,) = jobs_of(file, "arrival_s,prompt_tokens,output_tokens\n1,0,0\n")
    assert (job.prompt, job.output) == (1, 1)


def test_hashes_of_prefixes_with_their_size(file: Path) -> None:
    file.write_text("arrival_s,prompt_tokens,output_tokens,prefix_block_hashes_512tok\n1,1500,3,7 8 9\n2,10,3,\n")
    traffic = read(file)
    assert traffic.prefix_tokens == 512
    assert [job.prefix for job in traffic.jobs] == [(7, 8, 9), ()]


TEN = "arrival_s,prompt_tokens,output_tokens,user,tier\n" + "".join(f"{100 + i},1,1,u{i},gold\n" for i in range(10))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, [("u0", 0.0), ("u9", 9.0)]),
        ({"limit": 3}, [("u0", 0.0), ("u2", 2.0)]),
        ({"since": 4.0}, [("u4", 0.0), ("u9", 5.0)]),
        ({"since": 4.0, "until": 7.0}, [("u4", 0.0), ("u6", 2.0)]),  # the end is not in it
        ({"since": 4.0, "limit": 2, "scale": 4.0}, [("u4", 0.0), ("u5", 0.25)]),
    ],
)
def test_a_choice_of_it(file: Path, choice: dict[str, Any], expected: list[tuple[str, float]]) -> None:
    jobs = jobs_of(file, TEN, **choice)
    assert [(job.tenant, job.at) for job in (jobs[0], jobs[-1])] == expected


def test_the_class_from_another_column(file: Path) -> None:
    assert {job.cls for job in jobs_of(file, TEN, class_column="tier")} == {"gold"}
    assert "line 1: there is no column 'level'; there are arrival_s" in the_error(file, TEN, class_column="level")


def test_a_file_is_not_read_beyond_what_is_asked_for(file: Path) -> None:
    assert len(jobs_of(file, TEN + "nonsense\n", limit=10)) == 10


HEAD = "arrival_s,prompt_tokens,output_tokens,user,n,timeout_s\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x,1,1,u,,", "arrival_s is 'x'; write a number, with a point for decimals"),
        ('"1,5",1,1,u,,', "arrival_s is '1,5'; write a number"),
        ("nan,1,1,u,,", "arrival_s is 'nan'"),
        ("inf,1,1,u,,", "arrival_s is 'inf'"),
        ("-1,1,1,u,,", "arrival_s is negative (-1)"),
        ("1764450001000,1,1,u,,", "which no clock shows; for milliseconds use arrival_ms"),
        (",1,1,u,,", "the time is empty; fill it in"),
        ("1,,1,u,,", "prompt_tokens is empty"),
        ("1,1,,u,,", "output_tokens is empty"),
        ("1,1.5,1,u,,", "prompt_tokens is '1.5'; write a whole number"),
        ("1,-5,1,u,,", "prompt_tokens is -5; it must be between 0 and 10000000"),
        ("1,1,1000000000000,u,,", "output_tokens is 1000000000000; it must be between 0 and 10000000"),
        ("1,1,1,u,500,", "n is 500; it must be between 0 and 128"),
        ("1,1,1,u,,-3", "timeout_s is negative"),
        ("1,1,1,u,", "has 5 fields, and the header has 6; add the missing ones"),
        ("1,1,1,u,,,7", "has 7 fields, and the header has 6; put fields with a comma in quotes"),
    ],
)
def test_a_row_that_cannot_be_true_is_named(file: Path, row: str, words: str) -> None:
    error = the_error(file, f"{HEAD}1,1,1,u,,\n{row}\n2,1,1,u,,\n")
    assert error.startswith(f"{file}, line 3: ")
    assert words in error


def test_all_bad_rows_are_named_up_to_ten(file: Path) -> None:
    lines = the_error(file, HEAD + "-1,1,1,u,,\n" * 13).splitlines()
    assert [line.partition(": ")[0].rpartition(" ")[2] for line in lines[:10]] == [str(n) for n in range(2, 12)]
    assert lines[10:] == [f"{file}: 3 more rows like these"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the header must name the column arrival_s; it has nothing"),
        ("1,2,3\n", "write a header line above the first row: arrival_s,prompt_tokens,output_tokens,user"),
        ("arrival_s;prompt_tokens;output_tokens\n", "separate the columns with commas"),
        (
            "arrival_s,promt_tokens,output_tokens\n",
            "column prompt_tokens; it has arrival_s, promt_tokens, output",
        ),
        ("arrival_s,promt_tokens,output_tokens\n", "rename promt_tokens"),
        ("TIMESTAMP,prompt_tokens,output_tokens\n", "must name the column arrival_s"),
        (b"arrival_s,prompt_tokens,output_tokens\n1,1,1\n\xff,1,1\n", "line 3: is not UTF-8; save the file as UTF-8"),
        (b"\x00\x01\x02", "line 1"),
        ('arrival_s,prompt_tokens,output_tokens,user\n1,1,1,"open\n', "are all quotes closed"),
        ("arrival_s,prompt_tokens,output_tokens,user\n1,1,1," + "x" * 140_000 + "\n", "field larger than field limit"),
        (gzip.compress(TEN.encode())[:-8], "line 12: the gzip file is cut off here; copy it again"),
        (gzip.compress(TEN.encode())[:20] + b"x" * 50, "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_named(file: Path, text: str | bytes, words: str) -> None:
    error = the_error(file, text)
    assert error.startswith(str(file))
    assert words in error


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none.csv: cannot be read: No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_large_file_goes_by_row_by_row(tmp_path: Path) -> None:
    """A pipe has no end to be read to: the first 1,000 rows come out while the rest is not there yet."""
    rows = itertools.chain(["arrival_s,prompt_tokens,output_tokens\n"], (f"{i},1,1\n" for i in itertools.count()))
    jobs = chosen(Table(rows, "pipe", Choice()), Choice(limit=1_000))
    assert jobs[-1].at == 999.0


@pytest.mark.skipif(not SHARED.exists(), reason="no traces here")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.csv")), ids=lambda path: path.stem)
def test_public_traces_are_read(path: Path) -> None:
    traffic = read(path)
    assert len(traffic.jobs) == len(path.read_text().splitlines()) - 1
    assert traffic.jobs[0].at == 0.0
    assert bool(traffic.prefix_tokens) is path.stem.startswith("mooncake")


# -- recordings -----------------------------------------------------------------------------------

CLASSES = (ClassPolicy("chat", 0, 0, 60.0, 3, 100), ClassPolicy("batch", 1, 1_000_000, 60.0, 0, 100))
POLICY = PoolPolicy(name="llama", classes=CLASSES)


def a_header(**changes: Any) -> Header:
    values = {"fairlane": "0.1.0", "run": "r1", "part": 1, "pool": "llama", "clock": Clock(50.0, 1_000.0)}
    return Header(**({**values, "endpoints": (), "policy": POLICY} | changes))


def a_recording(path: Path, events: Iterable[tuple[float, Event]], **changes: Any) -> Path:
    lines = [header_to_plain(a_header(**changes)), *(record_to_plain(e, now, [], Names()) for now, e in events)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def arrive(name: str, tenant: str = "a", **fields: Any) -> Arrive:
    return Arrive(name, tenant, fields.pop("cls", "chat"), fields.pop("arrival", 0.0), **({"body_bytes": 400} | fields))


def counted(name: str, prompt: int | None, output: int | None) -> Usage:
    return Usage(name, Source.USAGE, prompt, 0, output)


def test_a_recording_becomes_jobs(tmp_path: Path) -> None:
    """The second came at 61.5, before its event: Envoy replayed it. Two choices of 15 tokens each."""
    events: Sequence[tuple[float, Event]] = [
        (60.0, EndpointAdded("e:1")),
        (60.0, EndpointAdded("e:2")),
        (60.0, arrive("r1", arrival=60.0, max_output=32, timeout_s=2.0, prefix=(1, 2))),
        (62.0, arrive("r2", "b", arrival=61.5, cls="batch", n=2)),
        (63.0, counted("r2", 90, 30)),
        (63.0, End("r2")),
        (64.0, counted("r1", 101, 20)),
    ]
    path = a_recording(tmp_path / "r.jsonl", events)
    traffic = load([path], Choice())
    assert traffic.jobs == [
        Job(0.0, "a", 101, 20, "chat", max_output=32, timeout_s=2.0, prefix=(1, 2), body_bytes=400),
        Job(1.5, "b", 90, 15, "batch", n=2, body_bytes=400),
    ]
    assert (traffic.notes, traffic.endpoints, traffic.header) == ([], 2, a_header())
    assert header_of([path]) == a_header()


def test_requests_without_a_count_are_as_long_as_their_tenants_others(tmp_path: Path) -> None:
    """a: 10 and 30, so 20 in the mean, or the 12 that it asked for; c has none: the mean of 10, 30 and 80 is 40."""
    events: list[tuple[float, Event]] = [
        (60.0, arrive("r1")), (60.0, counted("r1", 5, 10)),
        (60.0, arrive("r2")), (60.0, counted("r2", 5, 30)),
        (60.0, arrive("r3", "b")), (60.0, counted("r3", 5, 80)),
        (60.0, arrive("r4")), (60.0, Usage("r4", Source.TIME, 7)),
        (60.0, arrive("r5", max_output=12)),
        (60.0, arrive("r6", "c", prompt_tokens=77)),
    ]  # fmt: skip
    traffic = load([a_recording(tmp_path / "r.jsonl", events)], Choice())
    assert [(job.prompt, job.output) for job in traffic.jobs[3:]] == [(100, 20), (100, 12), (77, 40)]
    assert traffic.notes == [
        "3 of 6 requests have no count of their tokens; they are taken to be as long as their "
        "tenant's others in the mean"
    ]


def test_parts_are_one_recording_in_the_order_of_time(tmp_path: Path) -> None:
    """The second run's clock is at 3.0 ten seconds after the first one's at 50.0. A count may be in a later part."""
    second = a_recording(
        tmp_path / "a", [(3.0, counted("r1", 9, 9)), (4.0, arrive("r2", arrival=4.0))],
        part=1, run="r2", clock=Clock(3.0, 1_010.0), endpoints=("e:1",),
    )  # fmt: skip
    first = a_recording(tmp_path / "b", [(50.0, arrive("r1", arrival=50.0))])
    traffic = load([second, first], Choice())
    assert [(job.at, job.prompt) for job in traffic.jobs] == [(0.0, 9), (11.0, 100)]
    assert traffic.endpoints == 1


def test_what_is_odd_about_a_recording_is_noted(tmp_path: Path) -> None:
    changed = dataclasses.replace(POLICY, max_queued=5)
    events: list[tuple[float, Event]] = [
        (60.0, arrive("r1")),
        (60.0, counted("r1", 1, 1)),
        (61.0, Reconfigure(changed)),
    ]
    path = a_recording(tmp_path / "r.jsonl", events, salt="00ff")
    with path.open("a") as file:
        file.write('{"now": 70.0, "ev')
    assert load([path], Choice()).notes == [
        "the policy changed 1 times in the recording; its own is the one from the beginning",
        "the last line of the recording is cut off, and was left out",
        "tenants stand as hashes in this recording",
    ]


def test_recordings_that_do_not_go_together_are_refused(tmp_path: Path, file: Path) -> None:
    one = a_recording(tmp_path / "one", [])
    other = a_recording(tmp_path / "other", [], pool="qwen")
    with pytest.raises(TraceError, match="of the pools llama and qwen; give those of one pool at a time"):
        load([one, other], Choice())
    file.write_text(TEN)
    with pytest.raises(TraceError, match=r"trace.csv: is no recording; of CSV files give one at a time"):
        load([one, file], Choice())
    with pytest.raises(TraceError, match="one at a time"):
        load([file, file], Choice())
    assert header_of([file]) is None
    (tmp_path / "bad").write_text('{"some": "json"}\n')
    with pytest.raises(RecordingError, match="bad, line 1: is no header"):
        load([tmp_path / "bad"], Choice())
