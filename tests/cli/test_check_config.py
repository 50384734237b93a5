"""`fairlane check-config`: its exit codes and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.cli.main import main

SHIPPED = Path(__file__).resolve().parents[2] / "fairlane.yaml"
GOOD = "pools: [{name: a, models: [m], endpoints: ['127.0.0.1:1', '127.0.0.1:2']}]\n"


def check(*args: str) -> Result:
    return CliRunner().invoke(main, ["check-config", *args])


def test_a_good_file_is_told_with_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD)
    result = check(str(file))
    assert result.exit_code == 0
    assert result.stdout == f"{file}: good. Pools: a (2 endpoints). Classes: interactive, default, batch.\n"
    assert result.stderr == ""


def test_the_file_of_the_project_is_good() -> None:
    assert check(str(SHIPPED)).exit_code == 0


def test_without_a_name_it_is_fairlane_yaml_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = check()
    assert result.exit_code == 2
    assert result.stderr.startswith("fairlane.yaml: cannot be read: ")
    (tmp_path / "fairlane.yaml").write_text(GOOD)
    assert check().exit_code == 0


def test_every_fault_is_a_line_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD + "shutdown: {grace: 30}\non_fault: panic\ntenant: {}\n")
    result = check(str(file))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{file}: on_fault: Input should be 'pass' or 'reject'",
        f"{file}: shutdown.grace: expected a duration with its unit, like 250ms, 30s, 5m or 1h, not 30",
        f"{file}: tenant: unknown key; did you mean tenants?",
    ]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"- a", b"pools: ["])
def test_what_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    result = check(str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}: ")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_token_that_cannot_be_read_is_told_with_pool_and_setting(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: [{name: a, models: [m], endpoints: ['127.0.0.1:1'], metrics: {token_file: /no/such}}]\n")
    result = check(str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("pools: a: ")
    assert "token_file" in result.stderr
    assert "/no/such" in result.stderr


def test_endpoints_that_are_found_are_told_by_where_from(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: [{name: a, models: [m], endpoints: {dns: {name: engines, port: 8000}}}]\n")
    assert check(str(file)).stdout.startswith(f"{file}: good. Pools: a (endpoints by dns). ")


def test_what_it_hardly_means_is_told_and_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD + "classes: {default: {rank: 0, priority: 0}, low: {rank: 1, priority: 9, max_waiting: 5}}\n")
    result = check(str(file))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{file}: good. ")
    assert result.stderr == (
        f"{file}: warning: classes.low.max_waiting: lets class low pass class default, which goes first: 5 against 3\n"
    )
