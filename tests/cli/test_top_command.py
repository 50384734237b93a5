"""`fairlane top` where there is no terminal, how it ends, and how it follows a service, against a real gRPC server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from ctl_case import DEADLINE_S, Service
from top_case import TEAM_A, crowd, flow, seconds, usual

from extproc.admin.errors import AdminError
from extproc.cli.ctl.connection import Connection, Target
from extproc.cli.ctl.failure import Failure
from extproc.cli.main import main
from extproc.cli.top.choices import Choices
from extproc.cli.top.feed import Feed, Wanted, first
from extproc.cli.top.figures import Figures, Seen
from extproc.cli.top.live import wanted
from extproc.cli.top.terminal import knows_unicode
from extproc.pb.admin.v1 import admin_pb2 as pb


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as started:
        answers(started, usual())
        yield started


def answers(service: Service, found: Seen) -> None:
    figures = found.figures
    service.answers["WatchStats"] = [figures.stats]
    service.answers["GetStatus"] = figures.status
    service.answers["ListFlows"] = pb.ListFlowsResponse(flows=figures.flows, total_count=figures.flow_count)


def top(address: str, *options: str, **env: str) -> Result:
    clean = {name: None for name in os.environ if name.startswith("FAIRLANE_")}
    return CliRunner().invoke(main, ["top", *options], env={**clean, "FAIRLANE_ADDRESS": address, **env})


# ---- one picture


def test_piped_it_is_one_picture_as_plain_text(service: Service) -> None:
    done = top(service.address, COLUMNS="100")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fairlane 1.2.3  ")
    assert "held 30" in lines[0]
    assert [line.split()[0] for line in lines[-3:]] == ["team-a", "team-b", "team-c"]
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 100
    assert [name for name, _ in service.asked] == ["GetStatus", "WatchStats", "GetStatus", "ListFlows"]


def test_options_are_those_of_ctl_and_its_own(service: Service) -> None:
    done = top("", "--once", "--address", service.address, "--pool", "llama", "--sort", "tag", "--interval", "250ms")
    assert done.exit_code == 0, done.output
    asked = dict(service.asked)
    assert asked["WatchStats"] == pb.WatchStatsRequest(pool="llama", interval=seconds(0.25))
    assert asked["ListFlows"] == pb.ListFlowsRequest(pool="llama", top_k=20, order_by="tag")
    assert top(service.address, "--sort", "colour").exit_code == 2
    assert top(service.address, "--output", "json").exit_code == 2
    told = top(service.address, "--help").stdout
    assert "--token-file" in told
    assert "FAIRLANE_ADDRESS" in told


@pytest.mark.slow
def test_hostile_names_and_many_of_them(service: Service) -> None:
    answers(service, crowd(200))
    done = top(service.address, "--once", COLUMNS="80")
    assert done.exit_code == 0, done.output
    assert all(line.isprintable() for line in done.stdout.splitlines())
    done = top(service.address, "--once", "--ascii", COLUMNS="80")
    assert done.stdout.isascii()
    done = top(service.address, "--once", COLUMNS="80", LC_ALL="C")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("environ", "encoding", "known"),
    [
        ({"TERM": "xterm"}, "utf-8", True),
        ({"TERM": "xterm", "LC_ALL": "C.UTF-8"}, "UTF-8", True),
        ({"TERM": "xterm", "LC_ALL": "C"}, "utf-8", False),
        ({"TERM": "linux"}, "utf-8", False),
        ({"TERM": "dumb"}, "utf-8", False),
        ({"TERM": "xterm"}, "iso8859-1", False),
        ({}, None, False),
    ],
)
def test_whether_the_terminal_has_more_than_ascii(environ: dict[str, str], encoding: str | None, known: bool) -> None:
    assert knows_unicode(environ, encoding) is known


def test_a_shell_completes_it(service: Service) -> None:
    def complete(words: str) -> list[str]:
        asked = {"_FAIRLANE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = CliRunner().invoke(main, [], prog_name="fairlane", env={**asked, "FAIRLANE_ADDRESS": service.address})
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    service.answers["ListPools"] = pb.ListPoolsResponse(pools=[pb.Pool(name="llama"), pb.Pool(name="qwen")])
    assert complete("fairlane to") == ["top"]
    assert complete("fairlane top --sort t") == ["tenant", "tag"]
    assert complete("fairlane top --pool l") == ["llama"]


# ---- how it ends


def test_nobody_is_there() -> None:
    done = top("127.0.0.1:1")
    assert done.exit_code == 3
    assert "cannot reach 127.0.0.1:1" in done.stderr
    assert "--address or FAIRLANE_ADDRESS" in done.stderr


@pytest.mark.parametrize(
    ("method", "code", "exit_code"),
    [
        ("GetStatus", grpc.StatusCode.UNAUTHENTICATED, 4),
        ("ListFlows", grpc.StatusCode.PERMISSION_DENIED, 4),
        ("WatchStats", grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
        ("WatchStats", grpc.StatusCode.NOT_FOUND, 1),
    ],
)
def test_what_the_service_refuses(service: Service, method: str, code: grpc.StatusCode, exit_code: int) -> None:
    service.answers[method] = AdminError(code, "no \x1b[2Jway")
    done = top(service.address)
    assert done.exit_code == exit_code
    assert done.stderr == "Error: no \\x1b[2Jway\n"
    assert done.stdout == ""


def test_wrong_options_of_the_connection(service: Service, tmp_path: Path) -> None:
    done = top(service.address, "--token-file", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr
    assert top("no address").exit_code == 2


# ---- following a service


class Follower:
    """A feed, and what it has found."""

    def __init__(self, connect: Callable[[], Connection], asked: Wanted, interval_s: float = 0.1) -> None:
        watched = pb.WatchStatsRequest(interval=seconds(interval_s))
        with closing(connect()) as connection:
            figures = first(connection, watched, asked)
        self.woken = threading.Event()
        self.feed = Feed(connect, watched, asked, figures, self.woken.set)
        self.feed.start()

    def until(self, condition: Callable[[Figures, Any, Any], object], what: str) -> tuple[Figures, Any, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.woken.clear()
            found = self.feed.seen()
            if condition(*found):
                return found
            if not self.woken.wait(deadline - time.monotonic()):
                raise AssertionError(f"no {what}: {found}")


@pytest.fixture
def follow(service: Service) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []
    service.holds = True

    def begin(asked: Wanted, timeout_s: float = 10.0) -> Follower:
        made.append(Follower(lambda: Connection(Target(service.address, timeout_s=timeout_s)), asked))
        return made[-1]

    yield begin
    for each in made:
        each.feed.close()


def test_what_is_wanted_is_asked_at_once(service: Service, follow: Callable[..., Follower]) -> None:
    service.answers["ExplainRequest"] = lambda request: pb.Explanation(sentence=f"because of {request.id}")
    follower = follow(Wanted())
    service.answers["ListFlows"] = pb.ListFlowsResponse(flows=[flow("other")], total_count=1)
    follower.feed.want(Wanted(order_by="tag", top=100))
    asked = ("ListFlows", pb.ListFlowsRequest(top_k=100, order_by="tag"))  # a question of before may be on its way
    figures, _, _ = follower.until(lambda f, *_: f.flow_count == 1 and asked in service.asked, "other flows")
    assert figures.flows[0].tenant == "other"

    answers(service, usual())
    follower.feed.want(Wanted(explained=TEAM_A))
    _, _, told = follower.until(lambda _, __, told: told is not None, "explanation")
    assert (told.key, told.explanation.sentence) == (TEAM_A, "because of 17")


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        ([], "It is not among the flows that are shown"),
        ([flow("team-a", queued=0)], "Nothing of it waits."),
        ([flow("team-a", next_request_id="17")], "Its next request has just gone."),
    ],
)
def test_what_cannot_be_explained(
    service: Service, follow: Callable[..., Follower], flows: list[pb.Flow], words: str
) -> None:
    service.answers["ListFlows"] = pb.ListFlowsResponse(flows=flows)
    service.answers["ExplainRequest"] = AdminError(grpc.StatusCode.NOT_FOUND, "request '17' is not here")
    _, _, told = follow(Wanted(explained=TEAM_A)).until(lambda _, __, told: told is not None, "answer")
    assert told.words.startswith(words)
    assert told.explanation is None


def test_a_pool_that_has_gone_has_no_flows(service: Service, follow: Callable[..., Follower]) -> None:
    follower = follow(Wanted())
    service.answers["ListFlows"] = AdminError(grpc.StatusCode.NOT_FOUND, "there is no pool 'gone'")
    follower.feed.want(Wanted(pool="gone"))
    follower.until(lambda figures, *_: not figures.flows, "figures without flows")


@pytest.mark.slow
def test_streams_that_end_are_opened_again(service: Service, follow: Callable[..., Follower]) -> None:
    service.holds = False
    follower = follow(Wanted())

    def opened(*_: object) -> bool:
        return [name for name, _ in service.asked].count("WatchStats") > 3

    follower.until(opened, "new streams")
    _, lost, _ = follower.until(lambda _, lost, __: lost is not None, "word of it")
    assert lost.words == "the service ended the stream"
    service.holds = True
    follower.until(lambda _, lost, __: lost is None, "stream that stays")


@pytest.mark.slow
def test_a_service_that_refuses_more_watchers_is_tried_again(service: Service, follow: Callable[..., Follower]) -> None:
    service.holds = False
    follower = follow(Wanted())
    service.answers["WatchStats"] = AdminError(grpc.StatusCode.RESOURCE_EXHAUSTED, "200 watchers are the most")
    said = "200 watchers are the most"
    _, lost, _ = follower.until(lambda _, lost, __: lost is not None and lost.words == said, "word of it")
    assert lost.again_at is not None
    service.holds = True
    answers(service, usual())
    follower.until(lambda _, lost, __: lost is None, "service that is there")


def test_a_token_that_is_taken_away_ends_it(service: Service, follow: Callable[..., Follower]) -> None:
    follower = follow(Wanted())
    service.answers["ListFlows"] = AdminError(grpc.StatusCode.UNAUTHENTICATED, "no such token")
    follower.feed.want(Wanted(order_by="tag"))
    with pytest.raises(Failure, match="no such token") as raised:
        follower.until(lambda *_: False, "failure")
    assert raised.value.exit_code == 4


def test_only_what_is_shown_is_asked_for() -> None:
    assert wanted(Choices(rows=10)).top == 100
    assert wanted(Choices(rows=40, first=60)).top == 200
    assert wanted(Choices(rows=40, first=9_990)).top == 10_000  # the service gives no more
    assert wanted(Choices(), "llama").pool == "llama"
    assert wanted(Choices(pool="qwen"), "").pool == "qwen"
    assert wanted(Choices(chosen=TEAM_A)).explained is None
    assert wanted(Choices(chosen=TEAM_A, explained=True)).explained == TEAM_A
    assert wanted(Choices(sort="tag", down=False)).order_by == "tag"
    assert wanted(Choices()).order_by == "queued_count desc"
