"""The page about tuning: its pictures, figures, settings, words and commands."""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from docs_case import ctl_commands, running_service

from extproc.cli.main import main
from extproc.config.load import parse
from extproc.config.model import Config
from extproc.config.scheduling import Class, Pick, Pool, Preemption, Tenant, Window
from extproc.config.schema import step
from extproc.core.explanation import Hold
from extproc.core.reasons import Reason
from extproc.core.windows.view import Stance
from extproc.sim.figures import capacity
from extproc.sim.shapes import E1

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tuning.md"
TEXT = PAGE.read_text()
PLOTS = sorted((ROOT / "docs/plots").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def gen_plots() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("gen_plots")


def sections() -> dict[str, str]:
    """Key of a plot -> the section of the page that shows it."""
    found = {}
    for section in TEXT.split("\n### ")[1:]:
        for key in re.findall(r"\(plots/([a-z-]+)\.svg\)", section):
            found[key] = section
    return found


# -- pictures ----------------------------------------------------------------------------------------


def test_there_is_a_picture_and_a_file_of_figures_for_each_plot(gen_plots: ModuleType) -> None:
    assert {file.stem for file in PLOTS} == set(gen_plots.PLOTS) == set(sections())
    assert {file.stem for file in (ROOT / "docs/plots").glob("*.csv")} == set(gen_plots.PLOTS)
    assert {file.suffix for file in (ROOT / "docs/plots").iterdir()} == {".csv", ".svg"}


@pytest.mark.parametrize("file", PLOTS, ids=lambda file: file.stem)
def test_a_picture_stands_alone(file: Path) -> None:
    """Well-formed, small, for light and dark, with words for the axes; it runs nothing and asks for nothing."""
    content = file.read_text()
    root = ET.fromstring(content)
    assert root.tag == f"{SVG}svg"
    assert len(content) < 60_000
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "g", "path", "circle", "text"}
    for element in root.iter():
        assert not [name for name in element.attrib if name.startswith(("on", "href", "{", "src", "style"))]
    style = root.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme:dark" in style
    assert not re.search(r"url\(|@import|@font-face|expression", content)
    assert "://" not in content.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert root.findtext(f"{SVG}title")
    labels = [element.text or "" for element in root.iter(f"{SVG}text") if element.get("class") == "label"]
    assert len([label for label in labels if re.search(r"\(|second|minute|begun|running", label)]) >= 2, labels


def test_every_class_of_a_picture_has_a_colour() -> None:
    for file in PLOTS:
        root = ET.fromstring(file.read_text())
        style = root.findtext(f"{SVG}style") or ""
        for element in root.iter():
            names = (element.get("class") or "").split()
            assert not names or f".{'.'.join(names)}" in style, (file.name, names)


@pytest.mark.parametrize("file", PLOTS, ids=lambda file: file.stem)
def test_a_picture_is_drawn_from_its_figures(file: Path, gen_plots: ModuleType) -> None:
    rows = gen_plots.from_csv(file.with_suffix(".csv").read_text())
    assert gen_plots.draw(gen_plots.PLOTS[file.stem][1], rows) == file.read_text(), "run: make plots"


def test_each_picture_is_told_in_words() -> None:
    shown = dict(re.findall(r"!\[([^\]]+)\]\(plots/([a-z-]+)\.svg\)", TEXT))
    assert sorted(shown.values()) == [file.stem for file in PLOTS]
    for words in shown:
        assert len(words.split()) >= 15, words


# -- figures -----------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_files(gen_plots: ModuleType) -> None:
    assert gen_plots.with_tables(TEXT) == TEXT, "run: make plots"


@pytest.mark.parametrize("key", sorted(sections()))
def test_figures_in_the_text_are_figures_of_the_file(key: str) -> None:
    text = sections()[key].split("<details>")[0]
    rows = list(csv.reader(io.StringIO((ROOT / f"docs/plots/{key}.csv").read_text())))[1:]
    there = {cell for row in rows for cell in row}
    told = re.findall(r"\*\*([0-9.]+)(?: s)?\*\*", text)
    assert len(told) == text.count("**") // 2
    assert told
    assert set(told) <= there


def test_the_capacity_is_that_of_the_engine() -> None:
    rate, text = capacity(256, 256, E1), " ".join(TEXT.split())
    assert f"256 tokens in and out take {E1.max_num_seqs / rate:.1f} s with the engine full" in text
    assert f"it can serve {rate:.3g} of them a second" in text
    assert (
        f"{E1.max_num_seqs} slots, {1e3 * E1.step_base:g} ms for a step and {1e3 * E1.step_per_seq:g} ms more" in text
    )
    assert f"{1e3 * E1.step_per_prefill_token:g} ms for each token of a prompt" in text


@pytest.mark.slow
@pytest.mark.parametrize("key", ["noisy", "weights", "tenant-cap", "start", "queue-timeout"])
def test_the_runs_give_the_figures_of_the_file(key: str, gen_plots: ModuleType) -> None:
    """Within 5 %: another machine's last bits may turn a tie round."""
    made = gen_plots.from_csv(gen_plots.to_csv(gen_plots.PLOTS[key][0]()))
    kept = gen_plots.from_csv((ROOT / f"docs/plots/{key}.csv").read_text())
    assert len(made) == len(kept)
    for new, old in zip(made, kept, strict=True):
        assert new == pytest.approx(old, rel=0.05, abs=0.02)


# -- settings and words ------------------------------------------------------------------------------

_PLACES: tuple[Any, ...] = (Config, Pool, Class, Tenant)
_SECTIONS: tuple[Any, ...] = (*_PLACES, Window, Pick, Preemption)
_ELSEWHERE = {"fairlane.yaml", "ext_proc.failure_mode_allowed"}  # a file; a counter of Envoy's


def is_setting(path: str, roots: tuple[Any, ...] = _PLACES) -> bool:
    """Whether it is a key below one of these parts of the file."""
    for root in roots:
        at: Any = root
        for part in path.split("."):
            at = step(at, part) if at is not None else None
        if at is not None:
            return True
    return False


def quoted() -> set[str]:
    """What stands in backquotes in a line of text, but for commands."""
    text = re.sub(r"```.*?```|<!-- figures.*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    return {each for each in re.findall(r"`([^`\n]+)`", text) if not each.startswith("fairlane ")}


def test_settings_that_are_named_with_their_place_exist() -> None:
    paths = {each for each in quoted() if re.fullmatch(r"[a-z_*]+(\.[a-z_*]+)+", each)} - _ELSEWHERE
    assert len(paths) > 15
    assert [path for path in sorted(paths) if not is_setting(path)] == []


def test_single_words_are_settings_or_what_fairlane_says() -> None:
    said = {each.value for each in (*Hold, *Stance)} | {each.code for each in Reason}
    others = {
        *("llama", "team-a", "team-b"),
        *("set", "unset", "rollback", "boost", "observe", "enforce"),  # commands, modes
        *("source", "time", "estimate", "why", "kind"),  # of metrics
        *("body", "duplex", "refuse"),  # profiles, a value
        *("max_tokens", "process_resident_memory_bytes", "tpot_s"),  # of clients, of the process, of the log
    }
    words = {each.split(":")[0] for each in quoted() if re.fullmatch(r"[a-z_]+(: [a-z0-9_.]+)?|team-[ab]", each)}
    assert len(words) > 30
    # Metrics are looked at in tests/cli/test_docs.py.
    unknown = [word for word in sorted(words - said - others) if not word.startswith("fairlane_")]
    assert [word for word in unknown if not is_setting(word, _SECTIONS)] == []


def test_each_hold_has_a_row() -> None:
    table = TEXT.split("\n## What holds a request\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(each.value for each in Hold)


def test_the_place_to_start_from_is_a_configuration() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    config = parse('pools: [{name: llama, models: ["*"], endpoints: ["127.0.0.1:8001"]}]\n' + block)
    assert config.classes["batch"].headroom == 0.03
    assert config.tenants["acme"].weight == 4


# -- commands ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of its admin port."""
    with running_service(tmp_path_factory.mktemp("tuning"), "llama") as address:
        yield address


@pytest.mark.e2e
def test_the_commands_do_what_they_say(service: str) -> None:
    """Each of them against a running service: reads as they stand, changes without being made. A request that waits
    would be needed for `explain`."""
    commands = ctl_commands(TEXT)
    assert len(commands) > 30
    for words in commands:
        changes = "--reason" in words
        asked = [*words, *(["--dry-run"] if changes and "--dry-run" not in words else [])]
        done = CliRunner().invoke(main, asked, env={"FAIRLANE_ADDRESS": service})
        if words == ["ctl", "explain", "ID"]:
            assert (done.exit_code, "ID" in done.output) == (1, True), done.output
            continue
        assert done.exit_code == 0, (words, done.output)
        if changes and words[1] not in ("rollback", "unset", "resume", "mode"):
            assert " -> " in done.output, (words, done.output)  # it is not what is so already
            assert "Nothing has been changed: it would be good." in done.output
