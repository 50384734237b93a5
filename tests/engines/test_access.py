"""Settings and files for reaching engines: what is refused at the start, and what happens when files change later."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError
from structlog.testing import capture_logs

from extproc.config.metrics import Metrics, Tls
from extproc.engines import access as access_module
from extproc.engines.access import Access, AccessError

SECRET = "s3cret-T0ken"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("engines")


# settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "metrics"}, "must begin with a slash"),
        ({"path": "/metrics?name=a"}, "must be a path alone"),
        ({"path": "/me trics"}, "without white space"),
        ({"path": "/métriques"}, "ASCII"),
        ({"port": 0}, "greater than or equal to 1"),
        ({"port": 65536}, "less than or equal to 65535"),
        ({"port": True}, "no switch"),
        ({"scheme": "ftp"}, "'http' or 'https'"),
        ({"tls": {}}, "write scheme: https"),
        ({"scheme": "https", "tls": {"certificate": "a.pem"}}, "certificate is given without key"),
        ({"scheme": "https", "tls": {"key": "a.pem"}}, "key is given without certificate"),
        ({"scheme": "https", "tls": {"ca": "a.pem", "insecure_skip_verify": True}}, "give only one"),
        ({"scheme": "https", "tls": {"server_name": "https://engines"}}, "must be a host's name"),
        ({"scheme": "https", "tls": {"verify": False}}, "Extra inputs"),  # there is one word for it, and no other
        ({"token_file": ""}, "at least 1 character"),
        ({"interval": "5s"}, "no longer than idle_interval"),
        ({"timeout": "31s"}, "at most 30s"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Metrics.model_validate(settings)


def test_by_default_a_page_is_read_over_http_where_the_engine_has_it() -> None:
    access = Access.of(Metrics(), "m")
    assert access.base_url("10.0.0.1:8000") == "http://10.0.0.1:8000"
    assert access.page_url("http://10.0.0.1:8000", "/prometheus/metrics") == "http://10.0.0.1:8000/prometheus/metrics"
    assert access.request()["headers"] == {}


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://10.0.0.1:8000", "https://10.0.0.1:9400/own"),
        ("https://[fd00::1]:8000", "https://[fd00::1]:9400/own"),
        ("https://10.0.0.1:8000/", "https://10.0.0.1:9400/own"),
    ],
)
def test_port_and_path_of_the_page_may_be_others(base: str, url: str) -> None:
    access = Access.of(Metrics.model_validate({"scheme": "https", "port": 9400, "path": "/own"}), "m")
    assert access.page_url(base, "/metrics") == url
    assert access.base_url("[fd00::1]:8000") == "https://[fd00::1]:8000"  # the engine itself stays where it is


def test_an_address_of_the_other_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="is not https"):
        Access(scheme="https").page_url("http://10.0.0.1:8000", "/metrics")


# files at the start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty; write the bearer token there"),
        (b" \n\n", "is empty"),
        (b"Bearer " + SECRET.encode(), "the token alone"),
        (SECRET.encode() + b"\nX-Other: 1", "one word"),
        (SECRET.encode() + "ü".encode(), "printable ASCII"),
        (b"x" * 20_000, "at most 16384 bytes"),
    ],
    ids=["absent", "empty", "blank", "with the scheme", "two lines", "not ASCII", "too long"],
)
def test_a_token_file_that_cannot_be_used(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AccessError) as caught:
        Access.of(Metrics(token_file=str(file)), "m")
    assert said in str(caught.value)
    assert "metrics.token_file" in str(caught.value) and str(file) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="is no regular file"):
        Access(token_file=str(tmp_path))


def test_the_token_is_taken_without_the_line_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    access = Access.of(Metrics(token_file=str(file)), "m")
    assert access.request()["headers"] == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(access) and SECRET not in str(vars(access).get("token_file"))


def other_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encrypted_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"ca": None}, "metrics.tls.ca: .*ca cannot be read"),
        ({"ca": b"no PEM"}, "metrics.tls.ca: .*ca holds no certificates in PEM form"),
        ({"ca": b""}, "metrics.tls.ca: .*ca holds no certificates"),
        ({"certificate": None}, "metrics.tls.certificate: .*certificate cannot be read"),
        ({"key": None}, "metrics.tls.key: .*key cannot be read"),
        ({"certificate": b"no PEM"}, "metrics.tls.certificate: .*certificate holds no certificate in PEM form"),
        ({"key": b"no PEM"}, "metrics.tls.key: .*key holds no key in PEM form"),
        ({"key": other_key()}, "metrics.tls.key: .*key is not the key of the certificate"),
        ({"key": encrypted_key()}, "metrics.tls.key: .*key is encrypted"),
    ],
)
def test_tls_files_that_cannot_be_used(
    tmp_path: Path, authority: Authority, what: dict[str, bytes | None], said: str
) -> None:
    certificate, key = authority.client()
    contents = {"ca": authority.pem.encode(), "certificate": certificate, "key": key, **what}
    files = {name: str(tmp_path / name) for name in contents}
    for name, content in contents.items():
        if content is not None:
            Path(files[name]).write_bytes(content)
    with pytest.raises(AccessError, match=said):
        Access(scheme="https", tls=Tls(**files))


def test_the_check_of_certificates_is_on_unless_the_word_is_given() -> None:
    checked = Access(scheme="https").request()["ssl"]
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    unchecked = Access(scheme="https", tls=Tls(insecure_skip_verify=True)).request()["ssl"]
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)


# what is said -----------------------------------------------------------------------------------------------------


def risks(access: Access, *endpoints: str) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        for endpoint in endpoints:
            access.tell_risks(endpoint)
    assert all(log["log_level"] == "warning" for log in logs)
    return [(log["event"], log["endpoint"]) for log in logs]


def test_a_token_in_plain_text_is_said_once_and_not_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    here = ("127.0.0.1:1", "[::1]:1", "localhost:1", "127.0.0.9:1")
    there = ("10.0.0.1:8000", "[fd00::1]:8000")
    said = [("the token for engines goes over the network in plain text", "10.0.0.1:8000")]
    assert risks(Access(token_file=str(file)), *here, *there) == said
    assert risks(Access(scheme="https", token_file=str(file)), *there) == []
    assert risks(Access(), *there) == []


def test_certificates_that_are_not_checked_are_said_once() -> None:
    access = Access(scheme="https", tls=Tls(insecure_skip_verify=True))
    assert risks(access, "127.0.0.1:1", "10.0.0.1:1") == [("certificates of engines are not checked", "127.0.0.1:1")]


# files that change ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_poll_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "POLL_S", 0.0)


def authorization(access: Access) -> str:
    return str(access.request()["headers"]["Authorization"])


def replace(file: Path, content: str | bytes) -> None:
    """As mounted secrets change: another file under the same name."""
    new = file.with_suffix(".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.rename(file)


async def test_a_token_that_changes_is_read_again_and_a_broken_one_is_not_taken(
    tmp_path: Path, no_poll_pause: None
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    access = Access(token_file=str(file))
    with capture_logs() as logs:
        await access.refresh()
        assert (authorization(access), logs) == ("Bearer one", [])
        replace(file, SECRET)
        await access.refresh()
        assert authorization(access) == f"Bearer {SECRET}"
        assert access.session()["headers"]["Authorization"] == f"Bearer {SECRET}"
        replace(file, "")
        await access.refresh()
        await access.refresh()
        assert authorization(access) == f"Bearer {SECRET}"
        file.unlink()
        await access.refresh()
        await access.refresh()
        assert authorization(access) == f"Bearer {SECRET}"
        replace(file, "three")
        await access.refresh()
        assert authorization(access) == "Bearer three"
    told = [(log["event"], log.get("error", "")[-32:]) for log in logs]
    assert [event for event, _ in told] == [
        "files for reaching engines read again",
        "files for reaching engines not read",  # empty: once, not each time
        "files for reaching engines not read",  # gone
        "files for reaching engines read again",
    ]
    assert SECRET not in str(logs)


async def test_files_are_looked_at_once_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    access = Access(token_file=str(file))
    now = 1000.0
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now)
    await access.refresh()
    replace(file, "two")
    now += 0.9
    await access.refresh()
    assert authorization(access) == "Bearer one"
    now += 0.2
    await access.refresh()
    assert authorization(access) == "Bearer two"


async def test_a_pair_that_does_not_fit_together_leaves_the_last_one_in_use(
    tmp_path: Path, authority: Authority, no_poll_pause: None
) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    for file, content in zip((certificate, key), authority.client(), strict=True):
        file.write_bytes(content)
    access = Access(scheme="https", tls=Tls(certificate=str(certificate), key=str(key)))
    first = access.request()["ssl"]
    new_certificate, new_key = authority.client()
    with capture_logs() as logs:
        replace(certificate, new_certificate)  # seen between the two renames
        await access.refresh()
        assert access.request()["ssl"] is first
        replace(key, new_key)
        await access.refresh()
        assert access.request()["ssl"] is not first
    assert [log["log_level"] for log in logs] == ["warning", "info"]
    assert "is not the key of the certificate" in logs[0]["error"]
