"""What counts as this machine, what a port needs to be opened, and how failures are counted. Without a port."""

from __future__ import annotations

import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from access_case import write_tokens

from extproc.admin.access import MOST_FAILURES, Access, AdminStartError, Caller, DeniedError, Failures, is_local
from extproc.admin.tokens import BearerError, Holder, TokenFile, digest_of
from extproc.config.administration import Administration
from extproc.config.digest_file import DigestFileError

Logs = list[MutableMapping[str, Any]]
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", FIPS 180-2 B.1


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
        yield entries


# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listen",
    [
        "127.0.0.1:50052",
        "127.8.9.10:50052",
        "[::1]:50052",
        "[::ffff:127.0.0.1]:50052",
        "localhost:50052",
        "LocalHost:50052",
        "unix:/run/fairlane/admin.sock",
        "unix:admin.sock",
    ],
)
def test_this_machine_alone(listen: str) -> None:
    assert is_local(listen)
    Access(listen, Administration()).check_start()


@pytest.mark.parametrize(
    "listen",
    [
        "0.0.0.0:50052",
        "[::]:50052",
        "[::ffff:0.0.0.0]:50052",
        "[::ffff:10.0.0.1]:50052",
        "10.0.0.1:50052",
        "128.0.0.1:50052",
        "[fe80::1%eth0]:50052",
        "[2001:db8::1]:50052",
        "127.1:50052",  # an address to some, a name to us
        "0127.0.0.1:50052",
        "localhost.example:50052",
        "ip6-localhost:50052",
        "fairlane:50052",
    ],
)
def test_open_to_the_network(listen: str) -> None:
    assert not is_local(listen)
    with pytest.raises(AdminStartError) as error:
        Access(listen, Administration()).check_start()
    for words in (listen, "listen.admin", "admin.tls.client_ca", "admin.tokens_file", "127.0.0.1", "unix:PATH"):
        assert words in str(error.value)


@pytest.mark.parametrize("found", [["127.0.0.1", "10.0.0.1"], ["192.0.2.1"], []])
def test_a_localhost_that_is_elsewhere(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_args, **_kwargs: [(2, 1, 6, "", (address, 50052)) for address in found]
    )
    assert not is_local("localhost:50052")


def test_tokens_open_the_network_with_a_warning_without_tls(tmp_path: Path, logs: Logs) -> None:
    write_tokens(tmp_path / "tokens.json", alice="admin")
    administration = Administration(tokens_file=str(tmp_path / "tokens.json"))
    Access("127.0.0.1:50052", administration).check_start()
    assert not logs
    Access("0.0.0.0:50052", administration).check_start()
    ((event, level),) = [(entry["event"], entry["log_level"]) for entry in logs]
    assert (event, level) == ("admin_tokens_in_plain_text", "warning")


def test_a_peer_that_is_not_of_this_machine_is_nobody() -> None:
    """Should `localhost` have become another address since the start."""
    access = Access("localhost:50052", Administration())
    for peer in ("ipv4:10.0.0.1:4711", "ipv6:%5B2001:db8::1%5D:4711", "ipv6:%5B::ffff:10.0.0.1%5D:4711", "vsock:1:2"):
        with pytest.raises(DeniedError, match="not of this machine"):
            access.caller(SimpleNamespace(peer=lambda peer=peer: peer))
    for peer in ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711", "ipv6:%5B::ffff:127.0.0.1%5D:4711", "unix:"):
        assert access.caller(SimpleNamespace(peer=lambda peer=peer: peer)).role == "admin"


def test_a_role_may_what_those_below_it_may() -> None:
    for role, may in (("viewer", [True, False, False]), ("operator", [True, True, False]), ("admin", [True] * 3)):
        caller = Caller("x", role, "unix:")  # type: ignore[arg-type]
        assert [caller.may(needed) for needed in ("viewer", "operator", "admin")] == may  # type: ignore[arg-type]


def test_no_digest_is_in_a_repr() -> None:
    assert ABC not in repr(Caller("x", "viewer", "unix:", ABC))


# -- how a token is shown -------------------------------------------------------------------------


def test_a_token() -> None:
    assert digest_of([]) is None
    for value in ("Bearer abc", "bearer abc", "BEARER abc", "Bearer  abc "):
        assert digest_of([value]) == ABC
    assert digest_of(["Bearer " + "x" * 4096])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["Bearer abc", "Bearer abc"], "more than one authorization"),
        (["Bearer " + "x" * 4097], "a token of more than 4096 characters"),
        (["abc"], "of the form: Bearer TOKEN"),
        (["Bearer"], "of the form"),
        (["Bearer "], "of the form"),
        ([""], "of the form"),
        (["Basic abc"], "of the form"),
        (["Bearerabc"], "of the form"),
        (["Bearer\tabc"], "of the form"),
        (["Bearer abc, Bearer def"], "of the form"),
        ([b"Bearer abc"], "of the form"),
    ],
)
def test_what_is_no_token(values: list[str | bytes], words: str) -> None:
    with pytest.raises(BearerError, match=words) as error:
        digest_of(values)
    assert "abc" not in str(error.value)


# -- the file of tokens ---------------------------------------------------------------------------


def test_a_file_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"{ABC}: {{name: alice, role: operator}}\n")
    tokens = TokenFile(file)
    tokens.load()
    assert tokens.lookup(ABC) == Holder("alice", "operator")
    assert tokens.lookup(ABC[::-1]) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a mapping of SHA-256 to {name, role}, found nothing ({} is a file without tokens)"),
        ("s3cret: {name: a, role: viewer}", "entry 1 is no SHA-256 in lower-case hex; make it with: printf %s TOKEN"),
        (f"{ABC}: s3cret", f"entry 1 ({ABC[:8]}...): expected {{name, role}}"),
        (f"{ABC}: {{name: a}}", "expected {name, role}"),
        (f"{ABC}: {{name: a, role: viewer, s3cret: 1}}", "expected {name, role}"),
        (f"{ABC}: {{name: '', role: viewer}}", "its name must be printable text of at most 128 characters"),
        (f'{ABC}: {{name: "a\\nb", role: viewer}}', "its name must be printable text"),
        (f"{ABC}: {{name: 7, role: viewer}}", "its name must be printable text"),
        (f"{ABC}: {{name: local, role: viewer}}", "its name may not be local or fairlane"),
        (f"{ABC}: {{name: fairlane, role: viewer}}", "its name may not be local or fairlane"),
        (f"{ABC}: {{name: a, role: s3cret}}", "its role must be one of viewer, operator, admin"),
        (f"{ABC}: {{name: a, role: [s3cret]}}", "its role must be one of viewer, operator, admin"),
    ],
)
def test_what_may_not_stand_in_one(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    with pytest.raises(DigestFileError) as error:
        TokenFile(file).load()
    assert words in str(error.value)
    assert "s3cret" not in str(error.value)
    with pytest.raises(AdminStartError, match=r"admin\.tokens_file: "):
        Access("127.0.0.1:50052", Administration(tokens_file=str(file)))


def test_a_file_that_is_missing_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AdminStartError, match=r"admin\.tokens_file: .*none\.yaml: cannot be read: No such file"):
        Access("127.0.0.1:50052", Administration(tokens_file=str(tmp_path / "none.yaml")))


# -- failures -------------------------------------------------------------------------------------


def test_a_hundred_failures_a_minute() -> None:
    now = 0.0
    failures = Failures(lambda: now)
    assert not any(failures.too_many("a") for _ in range(MOST_FAILURES))
    assert failures.too_many("a")
    assert not failures.too_many("b")
    now = 59.9
    assert failures.too_many("a")
    now = 60.0
    assert not failures.too_many("a")


def test_the_addresses_are_bounded() -> None:
    failures = Failures(lambda: 0.0)
    for _ in range(MOST_FAILURES):
        failures.too_many("first")
    for number in range(5000):
        failures.too_many(str(number))
    assert len(failures) == 1024
    assert not failures.too_many("first")  # forgotten long since
