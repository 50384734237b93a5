"""What the documents say is so: tables, commands, files, links."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from extproc.cli.main import main
from extproc.cli.stack import envoy_binary
from extproc.cli.top.choices import HELP
from extproc.config.load import parse
from extproc.core.reasons import Reason
from extproc.engines.dialects import DIALECTS
from extproc.sim.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    page
    for pattern in ("README.md", "CHANGELOG.md", "SECURITY.md", "docs/**/*.md", "envoy/**/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pattern)
)


def test_the_table_of_refusals_is_the_table_in_the_code() -> None:
    for reason in Reason:
        code = f"`{reason.code}`" + (", with Retry-After" if reason.retry else "")
        assert f"| {reason.meaning} | {reason.status} | {code} |" in README


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for line in re.findall(r"^make ([a-z -]+)|`make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert set((line[0] or line[1]).split()) <= targets, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_fairlane_command_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"\.venv/bin/fairlane ([a-z-]+)", page.read_text()):
        assert main.get_command(click.Context(main), name) is not None


def commands(page: Path) -> Iterator[list[str]]:
    """Command lines that are written out, as `fairlane bench core`, on a line of a shell block, or behind a prompt."""
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"(?:^ *|`)(?:\.venv/bin/)?fairlane ([a-z][^`#\n]*)", text, re.MULTILINE):
        yield [word for word in of_the_command(line) if word != "--help"]
    for line in re.findall(r"^\$ fairlane (.*)$", text, re.MULTILINE):
        yield of_the_command(line)


def of_the_command(line: str) -> list[str]:
    """Its words, without what a shell does with its output."""
    words = shlex.split(line)
    return words[: next((i for i, word in enumerate(words) if word in (">", "|", "&&", "&")), None)]


def test_the_pages_about_benchmarks_name_the_commands() -> None:
    named = [" ".join(words) for page in (ROOT / "README.md", ROOT / "docs/benchmarks.md") for words in commands(page)]
    assert {"bench fairness", "bench core"} <= set(named)
    assert any(line.startswith("replay ") for line in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_and_value_of_a_command_line_exists(page: Path) -> None:
    for words in commands(page):
        command: click.Command = main
        while isinstance(command, click.Group) and words:
            parser = command.make_parser(click.Context(command))
            parser.allow_interspersed_args = False
            _, words, _ = parser.parse_args(words)  # options of the group itself
            if not words:
                break
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, f"fairlane {words}"
            command, words = found, words[1:]
        if words and not isinstance(command, click.Group):
            command.make_context(command.name, words)  # reads the words and runs nothing; raises UsageError


def test_the_page_of_benchmarks_has_every_workload_and_as_many_bounds_as_the_code() -> None:
    rows = re.findall(r"^\| (\w+) \| .* \| (\d+) of (\d+) \|$", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    assert [(key, int(bounds)) for key, _, bounds in rows] == [(w.key, len(w.musts)) for w in WORKLOADS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        file = page.parent / target if target else page
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}, (
            target,
            anchor,
        )


def test_files_that_the_way_of_a_request_names_exist() -> None:
    text = (ROOT / "docs/how-it-works.md").read_text()
    for name in re.findall(
        r"`((?:extproc|core|edge|engines|config|admin|cli|sim|telemetry|transport|wiring|envoy|proto|tests|docs|deploy|tools)"
        r"/[a-z0-9_./-]+)`",
        text,
    ):
        assert (ROOT / name).exists() or (ROOT / "extproc" / name).exists(), name


def test_the_page_for_operators_has_every_command_of_ctl_under_a_role() -> None:
    ctl = main.get_command(click.Context(main), "ctl")
    assert isinstance(ctl, click.Group)
    text = (ROOT / "docs/admin.md").read_text()
    rows = dict(re.findall(r"^\| (viewer|operator|admin) \| .* \| (`.*`) \|$", text, re.MULTILINE))
    named = {command: role for role, cells in rows.items() for command in re.findall(r"`([a-z ]+)`", cells)}
    there = set()
    for name in ctl.list_commands(click.Context(ctl)):
        command = ctl.get_command(click.Context(ctl), name)
        inner = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else [""]
        there |= {f"{name} {each}".strip() for each in inner}
    assert set(named) == there - {"completion"}
    assert "fairlane ctl completion" in text


def test_the_settings_of_the_page_for_operators_are_settings() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/admin.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse('pools: [{name: llama, models: ["*"], endpoints: ["127.0.0.1:8001"]}]\n' + block).admin.state


def test_tests_that_the_page_about_faults_names_exist() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    for file, name in re.findall(r"`(tests/[a-z_/]+\.py|[a-z_]+\.py)(?:::([a-z_0-9]+))?[^`]*`", text):
        path = ROOT / file if "/" in file else ROOT / "tests/e2e" / file
        if file.startswith(("tests/", "test_")):
            assert path.exists(), file
            assert not name or f"def {name}(" in path.read_text(), (file, name)


def test_the_least_configuration_is_one() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        config = parse(block)
        assert config.pools[0].name == yaml.safe_load(block)["pools"][0]["name"]


def test_the_pools_of_the_page_of_engines_can_be_had() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/engines.md").read_text(), re.DOTALL)
    pools = [block for block in blocks if "pools:" in block]
    assert pools
    for block in pools:
        assert parse(block).pools


def test_the_page_of_engines_names_what_is_read() -> None:
    """Names are written there without what all of one engine begin with, and long ones in pieces."""
    text = (ROOT / "docs/engines.md").read_text()
    for dialect in DIALECTS.values():
        for name in (*dialect.running, *dialect.waiting):
            for part in re.findall(r"(?:^|[ +-])([a-z_]+:)?([a-z_]{6,})", name):
                short = part[1].removeprefix("tgi_").removeprefix("trtllm_").removeprefix("nv_trt_llm_")
                short = short.removeprefix("sglang_").removeprefix("dynamo_frontend_")
                assert short in text, (dialect.name, name, short)


OBSERVABILITY = (ROOT / "docs/observability.md").read_text()


def section(head: str) -> str:
    """From the heading of level 2 to the next one."""
    return OBSERVABILITY.split(f"\n## {head}\n", 1)[1].split("\n## ", 1)[0]


def test_the_table_of_metrics_is_what_is_exposed() -> None:
    """Names as on the page, types and labels, in both directions; the golden file is what Fairlane exposes."""
    golden = re.findall(r"^(fairlane_\w+) (\w+) (\S+)$", (ROOT / "tests/telemetry/metrics.golden").read_text(), re.M)
    exposed = {
        (f"{name}_total" if kind == "counter" else name, kind, labels.replace(",", ", "))
        for name, kind, labels in golden
    }
    rows = re.findall(r"^\| `(fairlane_\w+)` \| (\w+) \| ([a-z, -]+) \| [^|]+ \| [^|]*\|$", section("Metrics"), re.M)
    assert golden
    assert len(rows) == len(set(rows))
    assert set(rows) == exposed


def test_pages_name_only_metrics_that_there_are() -> None:
    golden = re.findall(r"^(fairlane_\w+) (\w+) ", (ROOT / "tests/telemetry/metrics.golden").read_text(), re.M)
    exposed = {f"{name}_total" if kind == "counter" else name for name, kind in golden}
    for page in PAGES:
        for name in re.findall(r"`(fairlane_\w+)[`{]", page.read_text()):
            assert name in exposed or name == "fairlane_unavailable", (page.name, name)  # a code of Envoy's


def events(*files: str) -> dict[str, set[str]]:
    """Lines of the log whose event is written out in the code -> their levels."""
    found: dict[str, set[str]] = {}
    for file in sorted(file for pattern in files for file in ROOT.glob(pattern)):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Constant):
                continue
            ways = [call.func.body, call.func.orelse] if isinstance(call.func, ast.IfExp) else [call.func]
            for way in ways:
                if isinstance(way, ast.Attribute) and isinstance(way.value, ast.Name) and way.value.id == "log":
                    level = "error" if way.attr == "exception" else way.attr
                    found.setdefault(str(call.args[0].value), set()).add(level)
    return found


def test_the_tables_of_log_lines_are_what_is_written_of_requests_and_replicas() -> None:
    rows = re.findall(r"^\| `([a-z_ ]+)` \| ([a-z, ]+) \| .* \|$", section("Logs"), re.M)
    assert {event: set(levels.split(", ")) for event, levels in rows} == events(
        "extproc/telemetry/**/*.py", "extproc/cluster/*.py", "extproc/replicas.py"
    )


def test_the_keys_of_top_are_those_of_its_help() -> None:
    assert tuple(re.findall(r"^\| (\S.*?) \| (.*?) \|$", section("`fairlane top`"), re.M)[1:]) == HELP


def test_attributes_and_events_of_spans_are_those_in_the_code() -> None:
    written = r"(?:gen_ai|fairlane|server|error)\.[a-z_.]+[a-z]"
    code = (ROOT / "extproc/telemetry/traces_spans.py").read_text()
    table = "\n".join(re.findall(r"^\| .* \|$", section("Traces"), re.M))
    assert set(re.findall(f"`({written})`", table)) == set(re.findall(f'"({written})"', code))
    spans = code + (ROOT / "extproc/telemetry/traces.py").read_text()
    for row in re.findall(r"^\| \*fairlane \w+\*.* \| .* \| (.*) \|$", table, re.M):
        for event in re.findall(r"`(\w+)`", row):
            assert f'"{event}"' in spans, event


def test_reasons_of_lost_spans_are_those_in_the_code() -> None:
    code = "".join(file.read_text() for file in (ROOT / "extproc/telemetry").glob("traces*.py"))
    told = set(re.findall(r"^\| `(\w+)` \|", section("Traces").split("### A collector that hangs")[1], re.M)[1:])
    assert told == set(re.findall(r'dropped\("(\w+)"', code))


def test_the_settings_of_the_page_of_observability_are_settings() -> None:
    blocks = re.findall(r"```yaml\n(telemetry:.*?)```", OBSERVABILITY, re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse('pools: [{name: llama, models: ["*"], endpoints: ["127.0.0.1:8001"]}]\n' + block).telemetry.enabled


@pytest.mark.e2e
def test_envoy_takes_what_the_page_of_observability_gives_it(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "envoy/envoy.yaml").read_text())
    tracing, cluster = (
        yaml.safe_load(block) for block in re.findall(r"```yaml\n((?:tracing|name):.*?)```", OBSERVABILITY, re.DOTALL)
    )
    resources = config["static_resources"]
    resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"] |= tracing
    resources["clusters"].append(cluster)
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(config))
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(file), "--disable-hot-restart", "-l", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_list_of_decisions_has_each_of_them() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[.+\]\((.+)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(file.name for file in folder.glob("2*.md"))


@pytest.mark.slow
def test_the_first_make_says_that_it_installs_before_it_is_silent(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    said = subprocess.run(["make", "-n", "up"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert 0 < said.index("Installing into .venv (about a minute) ...") < said.index("pip install")
