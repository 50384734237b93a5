"""`fairlane check-config`: its exit codes and what it says."""

from __future__ import annotations

import hashlib
import os
import socket
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


# -- the admin port -------------------------------------------------------------------------------

DIGEST = hashlib.sha256(b"a token").hexdigest()


def a_file(tmp_path: Path, more: str) -> Path:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD + more)
    return file


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            "listen: {admin: '0.0.0.0:50052'}",
            ["listen.admin 0.0.0.0:50052 is open to the network", "admin.tokens_file"],
        ),
        ("admin: {tokens_file: /no/such}", ["admin.tokens_file: ", "/no/such"]),
        ("admin: {tls: {certificate: /no/cert, key: /no/key}}", ["admin.tls.certificate: /no/cert: cannot be read"]),
    ],
    ids=["open to anybody", "no tokens", "no certificate"],
)
def test_what_the_service_would_not_start_with_is_no_good_file(tmp_path: Path, more: str, words: list[str]) -> None:
    result = check(str(a_file(tmp_path, more)))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words), result.stderr


def test_files_of_tokens_and_certificates_are_read(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("not-a-digest: {name: ann, role: viewer}\n")
    file = a_file(tmp_path, f"admin: {{tokens_file: {tokens}}}")
    result = check(str(file))
    assert (result.exit_code, result.stderr.startswith(f"admin.tokens_file: {tokens}")) == (2, True)
    tokens.write_text(f"{DIGEST}: {{name: ann, role: viewer}}\n")
    assert check(str(file)).exit_code == 0

    certificate = tmp_path / "cert.pem"
    certificate.write_text("no certificate")
    result = check(str(a_file(tmp_path, f"admin: {{tls: {{certificate: {certificate}, key: {certificate}}}}}")))
    assert result.exit_code == 2
    assert "are not a certificate and its key" in result.stderr


def test_tokens_in_plain_text_are_warned_of(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"{DIGEST}: {{name: ann, role: viewer}}\n")
    file = a_file(tmp_path, f"listen: {{admin: '0.0.0.0:50052'}}\nadmin: {{tokens_file: {tokens}}}")
    result = check(str(file))
    assert (result.exit_code, result.stdout.startswith(f"{file}: good. ")) == (0, True)
    assert result.stderr == (
        f"{file}: warning: listen.admin: everyone on the way to 0.0.0.0:50052 can read the tokens of the admin port; "
        "give admin.tls\n"
    )


def test_nothing_is_bound_or_made(tmp_path: Path) -> None:
    """Another process listens on the socket, and the state has never been there: that is as `serve` may find it."""
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "s"))
        file = a_file(tmp_path, f"listen: {{admin: 'unix:{tmp_path}/s'}}\nadmin: {{state: {tmp_path}/state.db}}")
        result = check(str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.yaml", "s"]


def state_warning(tmp_path: Path, state: Path) -> str:
    """That `state` is given, where the rest is good."""
    file = a_file(tmp_path, f"admin: {{state: {state}}}")
    result = check(str(file))
    assert (result.exit_code, result.stdout.startswith(f"{file}: good. ")) == (0, True)
    assert result.stderr.startswith(f"{file}: warning: admin.state: {state}: ")
    assert result.stderr.endswith("; as it is, the admin API would start read-only\n")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_a_state_that_cannot_be_kept_is_warned_of(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path}/none" in state_warning(tmp_path, tmp_path / "none" / "state.db")
    (tmp_path / "folder").mkdir()
    assert "is no regular file" in state_warning(tmp_path, tmp_path / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_that_may_not_be_written_is_warned_of(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    folder.mkdir()
    (folder / "state.db").touch()
    (folder / "state.db").chmod(0o400)
    assert "cannot be read and written" in state_warning(tmp_path, folder / "state.db")
    folder.chmod(0o500)
    try:
        assert f"the folder {folder} cannot be written to" in state_warning(tmp_path, folder / "state.db")
    finally:
        folder.chmod(0o700)


def test_a_page_that_others_can_see(tmp_path: Path) -> None:
    file = a_file(tmp_path, "listen: {http: '0.0.0.0:9090'}")
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert result.exit_code == 0
    assert "warning: telemetry.page: everyone who reaches 0.0.0.0:9090 sees the names of tenants" in result.output
    hidden = a_file(tmp_path, "listen: {http: '0.0.0.0:9090'}\ntelemetry: {page: false}")
    assert "warning" not in CliRunner().invoke(main, ["check-config", str(hidden)]).output
