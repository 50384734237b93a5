"""Each command that a page shows in a block is run: here, or by a test that is named, or it is said why not.

`commands_table.py` has the tables. A new command that is in none of them fails here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from commands_case import Operators, Place, Up, beside_llama, beside_up
from commands_table import (
    BEFORE,
    CODES,
    ELSEWHERE,
    HERE,
    NOT_HERE,
    NOT_HERE_ALONE,
    OF_LLAMA,
    OTHER_WORDS,
    PAGES_ELSEWHERE,
)
from google.protobuf.json_format import Parse
from google.protobuf.message_factory import GetMessageClass
from shell_blocks import KINDS, ROOT, Command, all_commands, blocks, goes_on, pages, without_comment

from extproc.pb.admin.v1 import admin_pb2

COMMANDS = all_commands()
ALL = {command.one_line for command in COMMANDS}
BASH = shutil.which("bash") or "bash"


def way_of(command: Command) -> str:
    """'here', 'elsewhere', 'not here', or '' when nobody has decided."""
    if command.page in PAGES_ELSEWHERE or command.one_line in ELSEWHERE:
        return "elsewhere"
    if command.one_line in NOT_HERE_ALONE or command.program in NOT_HERE:
        return "not here"
    return "here" if command.program in HERE else ""


def run_here(*pages_of: str) -> list[Command]:
    return [command for command in COMMANDS if way_of(command) == "here" and command.page in pages_of]


# -- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("fairlane top", False),
        ("curl -N \\", True),
        ("curl -d '{", True),
        ("cat > file <<'EOF'", True),
        ("cat > file <<'EOF'\nx\nEOF", False),
        ("make up   # it's here", False),
    ],
)
def test_a_line_goes_on_as_in_a_shell(text: str, more: bool) -> None:
    assert goes_on(text) is more


def test_comments_are_left_out_and_signs_in_quotations_are_not() -> None:
    assert without_comment("make up  # the stack") == "make up"
    assert without_comment("curl 'http://x/#y' # z") == "curl 'http://x/#y'"
    assert without_comment('echo "a # b"') == 'echo "a # b"'


def test_no_command_hides_in_a_block_of_another_kind() -> None:
    programs = "|".join(sorted(map(re.escape, {*HERE, *NOT_HERE, "make", "cd", "sudo", "git"})))
    for page in pages():
        for block in blocks(page):
            if block.kind not in (*KINDS, "python", "yaml", "json"):
                found = re.search(rf"^(\$ )?(\.venv/bin/)?({programs}) .*", block.text, re.MULTILINE)
                assert not found, f"{block.page}:{block.line}: mark the block as sh or console: {found and found[0]}"


# -- tables ------------------------------------------------------------------------------------------


def test_it_is_decided_how_each_command_is_tested() -> None:
    undecided = [command.at for command in COMMANDS if not way_of(command)]
    assert undecided == [], "run it, or name the test that does, or say why not: tests/docs/commands_table.py"


def test_tables_name_only_what_pages_show() -> None:
    for table in (ELSEWHERE, NOT_HERE_ALONE, CODES, BEFORE, OTHER_WORDS):
        for named in table:
            assert named in ALL, named
    assert set(PAGES_ELSEWHERE) <= {command.page for command in COMMANDS}


@pytest.mark.parametrize("command", ELSEWHERE)
def test_the_test_that_is_named_runs_it(command: str) -> None:
    where, _, name = ELSEWHERE[command].where.partition("::")
    text = (ROOT / where).read_text()
    assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{where} has no {name}"
    assert ELSEWHERE[command].words
    for word in ELSEWHERE[command].words:
        assert word in command, word
        assert word in text, f"{where} says nothing of {word}"


def test_pages_with_a_test_of_their_own_are_read_by_it() -> None:
    for page, test in PAGES_ELSEWHERE.items():
        text = (ROOT / test).read_text()
        assert Path(page).name in text
        assert Path(page).parent.name in text.split('"""')[1]


@pytest.mark.parametrize("page", sorted({command.page for command in COMMANDS}))
def test_a_shell_can_read_every_command(page: str, tmp_path: Path) -> None:
    script = tmp_path / "commands.sh"
    script.write_text("".join(f"{command.text}\n" for command in COMMANDS if command.page == page))
    done = subprocess.run([BASH, "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_make_does_what_the_table_of_other_tests_takes_it_for() -> None:
    lines = {line for line in ALL if line.startswith("make ")}
    assert len(lines) >= 5
    recipes = {
        "make up": "fairlane up",
        "make demo": "fairlane demo",
        "make test": "-m pytest",
        "make test-fast": '-m pytest -m "not e2e and not slow"',
        "make test-envoys": "tools/test_envoys.py",
        "make test-vllm": "-m pytest tests/vllm",
        "make lint types contracts": "lint-imports",
        "make plots": "tools/gen_plots.py",
    }
    for line in sorted(lines):
        # -o: what is installed is not installed anew
        done = subprocess.run(
            ["make", "-n", "-o", ".venv/.installed", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert recipes[line] in done.stdout, line


def test_a_command_that_nobody_has_decided_on_is_found() -> None:
    assert way_of(Command("README.md", 1, "frobnicate --all", None)) == ""
    assert way_of(Command("README.md", 1, "make frobnicate", None)) == ""


# -- running -----------------------------------------------------------------------------------------


def words(output: str) -> set[str]:
    """What is the same in another run: no paths, numbers, times, tickets and marks of revisions."""
    rest = re.sub(r"\S*/\S*|\b[0-9a-f]{8}-\S+|\b\d+-[0-9a-f]{8}\b|\b\d[\w.:-]*", " ", output)
    return set(re.findall(r"[A-Za-z][A-Za-z_]{2,}", rest))


def check(command: Command, place: Place, text: str | None = None) -> None:
    """Run it; it ends as the page shows, and says what the page shows."""
    done = place.run(command if text is None else command._replace(text=text))
    shows_error = bool(re.match(r"Error:|ERROR:", command.printed or ""))
    expected = CODES.get(command.one_line, 1 if shows_error else 0)
    assert done.code == expected, f"{command.at}\nends with {done.code}:\n{done.output}"
    missing = words(command.printed or "") - words(done.output) - OTHER_WORDS.get(command.one_line, set())
    assert not missing, f"{command.at}\ndoes not say {sorted(missing)}:\n{done.output}"


def test_another_code_and_another_output_are_found(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(AssertionError, match="ends with 2"):
        check(Command("README.md", 1, "fairlane --frobnicate", None), place)
    with pytest.raises(AssertionError, match="ends with 0"):
        check(Command("README.md", 1, "fairlane --version", "Error: no"), place)
    with pytest.raises(AssertionError, match="does not say"):
        check(Command("README.md", 1, "fairlane --version | cat", "another thing"), place)
    check(Command("README.md", 1, "fairlane --version   # which?", "fairlane, version 0.0.9"), place)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    with beside_llama(tmp_path_factory.mktemp("llama")) as up:
        yield up


@pytest.mark.e2e
def test_commands_of_the_readme_and_other_pages(tmp_path: Path) -> None:
    """In order, beside `fairlane up`; what replays its recordings, when it has ended."""
    rest = [c for c in run_here(*(c.page for c in COMMANDS)) if c.page not in OF_LLAMA]
    rest.sort(key=lambda command: command.page != "README.md")
    assert len(rest) > 10
    later = [command for command in rest if "traffic.sim.jsonl.gz" in command.one_line]
    assert later
    with beside_up(tmp_path) as up:
        for command in rest:
            if command not in later:
                check(command, up.place)
        run_python(up)
    for command in later:
        check(command, up.place)


def run_python(up: Up) -> None:
    """The blocks of Python in the README."""
    found = [block for block in blocks(ROOT / "README.md") if block.kind == "python"]
    assert found
    for block in found:
        script = up.place.write("client.py", up.place.translated(block.text))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.split()) == 32  # as many tokens as it asks for


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", OF_LLAMA)
def test_commands_of_the_pages_for_operators(page: str, llama: Operators) -> None:
    """In order, beside a service where requests wait."""
    for command in run_here(page):
        before = BEFORE.get(command.one_line)
        if before:
            getattr(llama, before)()
        check(command, llama.place, llama.with_tickets(command.text))


@pytest.mark.e2e
def test_what_grpcurl_would_send(llama: Operators) -> None:
    """The messages of the page, by the same calls; the program itself is not to be had here."""
    sent = [command for command in COMMANDS if command.program == "grpcurl" and " -d " in command.one_line]
    assert len(sent) >= 2
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    for command in sent:
        ((body, name, called),) = re.findall(r" -d '(.*)' 127\.0\.0\.1:50052 ([\w.]+)/(\w+)$", command.one_line)
        assert name == service.full_name
        method = service.methods_by_name[called]
        with grpc.insecure_channel(llama.admin) as channel:
            call = channel.unary_unary(
                f"/{name}/{called}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            if "Code: InvalidArgument" not in (command.printed or ""):
                call(Parse(body, GetMessageClass(method.input_type)()), timeout=30)
                continue
            with pytest.raises(grpc.RpcError) as refused:
                call(Parse(body, GetMessageClass(method.input_type)()), timeout=30)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details() in (command.printed or "")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "line",
    [
        "fairlane demo --json figures.json",
        "fairlane bench core --quick --json figures.json",
        "fairlane bench affinity --seeds 1 --seconds 30 --json figures.json",
        "fairlane bench cluster --virtual --quick --json figures.json",
    ],
)
def test_the_long_ones_shortened(line: str, tmp_path: Path) -> None:
    """Whether the figures are good is for a machine that does nothing else: code 1 says that they are not."""
    fairlane = str(Path(sys.executable).with_name("fairlane"))
    done = subprocess.run([fairlane, *line.split()[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "figures.json").stat().st_size > 100
    assert len(done.stdout.splitlines()) > 5
