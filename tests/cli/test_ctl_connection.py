"""How `fairlane ctl` reaches a service: TCP, Unix socket, TLS, certificate, token; and what it refuses to do."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import Result
from ctl_case import Authority, Service, run

from extproc.cli.ctl.connection import Target
from extproc.cli.ports import free_ports

TOKEN = "s3cret-t0ken"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as started:
        yield started


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "operators")


def tls_service(authority: Authority, *names: str, client: bool = False) -> Service:
    certificate, key = authority.issue(*names)
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=authority.file.read_bytes() if client else None,
        require_client_auth=client,
    )
    return Service(credentials=credentials)


def good(result: Result) -> bool:
    assert result.exit_code == 0, result.output
    return result.stdout.startswith("version")


def test_by_option_by_environment_and_after_the_command(service: Service) -> None:
    assert good(run("--address", service.address, "status"))
    assert good(run("status", "--address", service.address))
    assert good(run("status", env={"FAIRLANE_ADDRESS": service.address}))
    assert good(run("--address", "127.0.0.1:1", "status", "--address", service.address))  # the last one wins
    assert len(service.asked) == 4


def test_an_option_wins_over_the_environment(service: Service) -> None:
    assert good(run("--address", service.address, "status", env={"FAIRLANE_ADDRESS": "127.0.0.1:1"}))


@pytest.mark.parametrize("name", ["admin.sock", "a b%41.sock"])
def test_over_a_unix_socket(tmp_path: Path, name: str) -> None:
    with Service(at=f"unix:{urllib.parse.quote(str(tmp_path / name))}") as service:
        assert good(run("--address", f"unix:{tmp_path / name}", "status"))
        assert service.asked[0][0] == "GetStatus"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(service: Service) -> None:
    assert good(service.run("status", env={"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}))


# ---- tokens


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"  {TOKEN}\r\n"])
def test_a_token_of_a_file_is_sent_without_the_blanks_around_it(service: Service, tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    assert good(service.run("--token-file", str(file), "status"))
    assert good(service.run("status", "--token-file", str(file)))
    assert good(service.run("status", env={"FAIRLANE_TOKEN_FILE": str(file)}))
    assert [each["authorization"] for each in service.metadata] == [f"Bearer {TOKEN}"] * 3


def test_which_token_counts(service: Service, tmp_path: Path) -> None:
    """The option's, then that of the environment, then that of the file that the environment names."""
    file, other = tmp_path / "one", tmp_path / "other"
    file.write_text("one")
    other.write_text("other")
    env = {"FAIRLANE_TOKEN": "three", "FAIRLANE_TOKEN_FILE": str(other)}
    assert good(service.run("--token-file", str(file), "status", env=env))
    assert good(service.run("status", env=env))
    assert good(service.run("status", env={"FAIRLANE_TOKEN": "", "FAIRLANE_TOKEN_FILE": str(other)}))
    assert good(service.run("status"))
    assert [each.get("authorization") for each in service.metadata] == [
        "Bearer one",
        "Bearer three",
        "Bearer other",
        None,
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"two words", "without blanks"),
        (b"line\nline", "without blanks"),
        (b"a" * 5000, "up to 4096"),
        ("schlüssel".encode(), "without blanks"),
        (b"a\0b", "without blanks"),
    ],
)
def test_what_is_no_token_is_not_sent_and_not_shown(
    service: Service, tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    result = service.run("--token-file", str(file), "status")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "line" not in result.stderr
    assert "words" not in result.stderr
    assert service.asked == []


def test_files_that_are_not_there_are_named(service: Service, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for options in (("--token-file", missing), ("--ca", missing), ("--certificate", missing, "--key", missing)):
        result = service.run(*options, "status")
        assert result.exit_code == 2
        assert f"{missing} cannot be read: No such file or directory" in result.stderr.replace("\n", " ")
    assert service.asked == []


@pytest.mark.parametrize("address", ["10.0.0.7:50052", "fairlane.example:50052", "0.0.0.0:50052", "[2001:db8::1]:1"])
def test_a_token_is_not_sent_in_plain_text_to_another_machine(address: str) -> None:
    result = run("--address", address, "status", env={"FAIRLANE_TOKEN": TOKEN})
    assert result.exit_code == 2
    assert f"the token would go to {address} in plain text" in result.stderr
    assert "--insecure-token" in result.stderr
    assert TOKEN not in result.output


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("unix:/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("[::ffff:10.0.0.1]:1", False),
    ],
)
def test_which_addresses_are_this_machine(address: str, local: bool) -> None:
    assert Target(address).local is local


def test_a_token_goes_in_plain_text_if_that_is_asked_for() -> None:
    Target("10.0.0.7:1", token=TOKEN, insecure_token=True).check()
    Target("10.0.0.7:1", token=TOKEN, tls=True).check()


# ---- TLS


def test_by_an_authority_of_its_own(authority: Authority) -> None:
    with tls_service(authority, "127.0.0.1") as service:
        assert good(service.run("--ca", str(authority.file), "status"))
        assert good(service.run("status", env={"FAIRLANE_CA": str(authority.file), "FAIRLANE_TOKEN": TOKEN}))
        assert service.metadata[-1]["authorization"] == f"Bearer {TOKEN}"


def test_by_another_name(authority: Authority) -> None:
    with tls_service(authority, "fairlane.example") as service:
        result = service.run("--ca", str(authority.file), "status")
        assert (result.exit_code, service.asked) == (3, [])
        assert "--server-name" in result.stderr
        assert good(service.run("--ca", str(authority.file), "--server-name", "fairlane.example", "status"))


def test_with_a_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("sre.example")
    shown = ("--ca", str(authority.file), "--certificate", str(certificate), "--key", str(key))
    with tls_service(authority, "127.0.0.1", client=True) as service:
        assert good(service.run(*shown, "status"))
        assert service.run("--ca", str(authority.file), "status").exit_code == 3
        assert len(service.asked) == 1


def test_authorities_that_do_not_know_the_service(authority: Authority, tmp_path: Path) -> None:
    with tls_service(authority, "127.0.0.1") as service:
        for options in (("--ca", str(Authority(tmp_path, "others").file)), ("--tls",)):
            result = service.run(*options, "status")
            assert (result.exit_code, service.asked) == (3, [])
            assert "TLS" in result.stderr


def test_what_is_no_certificate(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("hello")
    with tls_service(authority, "127.0.0.1") as service:
        result = service.run("--ca", str(file), "status")
        assert (result.exit_code, service.asked) == (3, [])


def test_plain_text_where_tls_is_spoken_and_the_other_way_round(authority: Authority, service: Service) -> None:
    with tls_service(authority, "127.0.0.1") as other:
        result = other.run("status")
        assert result.exit_code == 3
        assert "If it wants TLS: --ca or --tls." in result.stderr
    assert service.run("--ca", str(authority.file), "status").exit_code == 3


# ---- what does not go together


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--address", "50052"), "expected host:port"),
        (("--address", "127.0.0.1"), "or unix:PATH"),
        (("--address", "127.0.0.1:99999"), "expected host:port"),
        (("--address", "unix:"), "needs the path of a socket"),
        (("--certificate", "a.pem"), "--certificate and --key go together"),
        (("--key", "a.pem"), "--certificate and --key go together"),
        (("--server-name", "x"), "give --ca or --tls"),
        (("--timeout", "10"), "no duration with its unit"),
        (("--timeout", "-1s"), "no duration with its unit"),
        (("--timeout", "1000000000s"), "longer than anything here can last"),
        (("--output", "xml"), "'xml' is not one of 'table', 'json', 'yaml'"),
        (("--token", "x"), "No such option"),  # a command line is no place for it
    ],
)
def test_options_that_cannot_be(options: tuple[str, ...], message: str) -> None:
    for arguments in ((*options, "status"), ("status", *options)):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())


def test_nobody_is_there(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    result = run("--address", f"127.0.0.1:{port}", "pools")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"Error: cannot reach 127.0.0.1:{port}: ")
    assert "FAIRLANE_ADDRESS" in result.stderr
    assert run("--address", f"unix:{tmp_path}/none.sock", "pools").exit_code == 3
    assert run("--address", f"127.0.0.1:{port}", "watch").exit_code == 3
