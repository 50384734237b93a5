"""Files of a port: which can be used, and new ones while the old ones are."""

from __future__ import annotations

import datetime
import os
import ssl
import threading
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pki import Authority, Pair, replace, written

from extproc.transport import tls_files
from extproc.transport.tls_files import TlsError, TlsFiles

Logs = list[MutableMapping[str, Any]]
SETTING = "listen.http_tls"
OURS = Authority()


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    monkeypatch.setattr(tls_files, "log", structlog.get_logger())  # one that has been used keeps its sink
    with structlog.testing.capture_logs() as entries:
        yield entries


def opened(folder: Path, pair: Pair | None = None, client_ca: bytes | None = None) -> TlsFiles:
    return TlsFiles(written(folder, pair or OURS.issue(), client_ca), SETTING)


def shown(context: ssl.SSLContext, trust: bytes, client: Pair | None = None, folder: Path | None = None) -> bytes:
    """The certificate (DER) that a client gets to see. Raises ssl.SSLError where the two do not come together."""
    client_context = ssl.create_default_context(cadata=trust.decode())
    if client is not None and folder is not None:
        (folder / "c.pem").write_bytes(client.certificate + client.key)
        client_context.load_cert_chain(folder / "c.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    asks = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [asks, server]
    for _ in range(10):
        for each in list(waiting):
            try:
                each.do_handshake()
                waiting.remove(each)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    found = asks.getpeercert(binary_form=True)
    assert found is not None
    return found


def break_it(how: str, folder: Path, pair: Pair) -> None:
    certificate, key, client_ca = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
    match how:
        case "no certificate":
            certificate.unlink()
        case "no key":
            key.unlink()
        case "no authority":
            client_ca.unlink()
        case "directory":
            key.unlink()
            key.mkdir()
        case "pipe":
            key.unlink()
            os.mkfifo(key)
        case "empty":
            replace(certificate, b"")
        case "DER":
            replace(certificate, pair.der)
        case "text":
            replace(certificate, b"s3cret")
        case "key of another":
            replace(key, OURS.issue().key)
        case "passphrase":
            replace(key, pair.with_passphrase())
        case "cut":
            replace(certificate, pair.certificate[: len(pair.certificate) // 2])
        case "large":
            replace(certificate, pair.certificate + b"\n" * 1024**2)
        case "authority of text":
            replace(client_ca, b"s3cret")
        case "authority that is none":
            replace(client_ca, pair.certificate)
        case "empty authority":
            replace(client_ca, b"")
        case "authority in DER":
            replace(client_ca, x509.load_pem_x509_certificate(OURS.pem).public_bytes(Encoding.DER))
        case "loop":
            key.unlink()
            key.symlink_to(key)
        case _:
            raise AssertionError(how)


BROKEN = {
    "no certificate": "listen.http_tls.certificate: {0}/tls.crt: cannot be read: No such file",
    "no key": "listen.http_tls.key: {0}/tls.key: cannot be read: No such file",
    "no authority": "listen.http_tls.client_ca: {0}/ca.crt: cannot be read: No such file",
    "directory": "listen.http_tls.key: {0}/tls.key: is no regular file",
    "pipe": "listen.http_tls.key: {0}/tls.key: is no regular file",
    "loop": "listen.http_tls.key: {0}/tls.key: cannot be read: ",
    "empty": "{0}/tls.crt and {0}/tls.key are not a certificate and its key, PEM, without a passphrase",
    "DER": "{0}/tls.crt and {0}/tls.key are not a certificate and its key, PEM, without a passphrase",
    "text": "{0}/tls.crt and {0}/tls.key are not a certificate and its key, PEM, without a passphrase",
    "cut": "{0}/tls.crt and {0}/tls.key are not a certificate and its key, PEM, without a passphrase",
    "key of another": "without a passphrase: KEY_VALUES_MISMATCH",
    "passphrase": "are not a certificate and its key, PEM, without a passphrase",
    "large": "listen.http_tls.certificate: {0}/tls.crt: is larger than 1 MiB",
    "authority of text": "listen.http_tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM",
    "authority that is none": "listen.http_tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM",
    "empty authority": "listen.http_tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM",
    "authority in DER": "listen.http_tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM",
}


@pytest.mark.parametrize("how", BROKEN)
def test_at_the_start_the_cause_is_told(how: str, tmp_path: Path) -> None:
    pair = OURS.issue()
    section = written(tmp_path, pair, OURS.pem)
    break_it(how, tmp_path, pair)
    with pytest.raises(TlsError) as error:
        TlsFiles(section, SETTING)
    assert BROKEN[how].format(tmp_path) in str(error.value)
    assert "s3cret" not in str(error.value)
    assert "BEGIN" not in str(error.value)


@pytest.mark.parametrize("how", BROKEN)
def test_later_the_last_good_ones_stay_and_it_is_told_once(how: str, tmp_path: Path, logs: Logs) -> None:
    pair, client = OURS.issue(), OURS.issue()
    tls = opened(tmp_path, pair, OURS.pem)
    before = tls.context()
    break_it(how, tmp_path, OURS.issue())
    for _ in range(3):
        assert tls.context() is before
        assert tls._newer() is None
    assert shown(tls.context(), OURS.pem, client, tmp_path) == pair.der
    (entry,) = logs
    assert (entry["event"], entry["log_level"], entry["setting"]) == ("tls_refused", "warning", SETTING)
    assert entry["error"]
    # and good ones are taken again
    for name in ("tls.key", "tls.crt"):
        path = tmp_path / name
        if path.is_dir():
            path.rmdir()
    after = OURS.issue()
    written(tmp_path, after, OURS.pem)
    assert shown(tls.context(), OURS.pem, client, tmp_path) == after.der
    assert [entry["event"] for entry in logs][-1] == "tls_read"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    section = written(tmp_path, OURS.issue())
    (tmp_path / "tls.key").chmod(0)
    with pytest.raises(TlsError, match=r"tls\.key: cannot be read: Permission denied"):
        TlsFiles(section, SETTING)


def test_no_permission_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = written(tmp_path, OURS.issue())
    real: Callable[..., Any] = Path.open

    def refuse(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == "tls.key":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TlsError, match=r"tls\.key: cannot be read: Permission denied"):
        TlsFiles(section, SETTING)


# -- one after the other --------------------------------------------------------------------------


def test_a_pair_that_comes_in_halves_is_taken_when_it_is_whole(tmp_path: Path, logs: Logs) -> None:
    before, after = OURS.issue(), OURS.issue()
    tls = opened(tmp_path, before)
    replace(tmp_path / "tls.crt", after.certificate)
    assert shown(tls.context(), OURS.pem) == before.der
    replace(tmp_path / "tls.key", after.key)
    assert shown(tls.context(), OURS.pem) == after.der
    assert [entry["event"] for entry in logs] == ["tls_refused", "tls_read"]


def test_files_that_change_while_they_are_read_are_read_again(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = OURS.issue(), OURS.issue()
    tls = opened(tmp_path, before)
    replace(tmp_path / "tls.crt", after.certificate)
    real, hurried = tls_files._content, []

    def content(file: Any) -> bytes:
        found = real(file)
        if file.path.name == "tls.crt" and not hurried:
            hurried.append(True)
            replace(tmp_path / "tls.key", after.key)  # the other half comes now
        return found

    monkeypatch.setattr(tls_files, "_content", content)
    assert shown(tls.context(), OURS.pem) == after.der
    assert [entry["event"] for entry in logs] == ["tls_read"]


def test_files_that_never_stop_changing_are_left_alone(
    tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = OURS.issue()
    tls = opened(tmp_path, before)
    written(tmp_path, OURS.issue())
    real = tls_files._content

    def content(file: Any) -> bytes:
        found = real(file)
        written(tmp_path, OURS.issue())
        return found

    monkeypatch.setattr(tls_files, "_content", content)
    assert shown(tls.context(), OURS.pem) == before.der
    assert [entry["event"] for entry in logs] == ["tls_refused"]
    assert "were written to while they were read" in logs[0]["error"]
    monkeypatch.undo()
    monkeypatch.setattr(tls_files, "log", structlog.get_logger())
    after = OURS.issue()
    written(tmp_path, after)
    assert shown(tls.context(), OURS.pem) == after.der


def test_a_link_that_leads_elsewhere_is_seen(tmp_path: Path) -> None:
    """As Kubernetes changes the files of a secret: all at once."""
    before, after = OURS.issue(), OURS.issue()
    for name, pair in (("one", before), ("two", after)):
        (tmp_path / name).mkdir()
        written(tmp_path / name, pair)
    data = tmp_path / "data"
    data.symlink_to(tmp_path / "one")
    tls = TlsFiles(written(tmp_path / "one", before).model_copy(
        update={"certificate": str(data / "tls.crt"), "key": str(data / "tls.key")}
    ), SETTING)  # fmt: skip
    assert shown(tls.context(), OURS.pem) == before.der
    new = tmp_path / "data.new"
    new.symlink_to(tmp_path / "two")
    new.replace(data)
    assert shown(tls.context(), OURS.pem) == after.der


def test_an_authority_that_was_taken_away_is_gone(tmp_path: Path) -> None:
    other = Authority("other")
    tls = opened(tmp_path, OURS.issue(), OURS.pem)
    old, new = OURS.issue(), other.issue()
    shown(tls.context(), OURS.pem, old, tmp_path)
    with pytest.raises(ssl.SSLError):
        shown(tls.context(), OURS.pem, new, tmp_path)
    replace(tmp_path / "ca.crt", OURS.pem + other.pem)
    for pair in (old, new):
        shown(tls.context(), OURS.pem, pair, tmp_path)
    replace(tmp_path / "ca.crt", other.pem)
    shown(tls.context(), OURS.pem, new, tmp_path)
    with pytest.raises(ssl.SSLError):
        shown(tls.context(), OURS.pem, old, tmp_path)
    with pytest.raises(ssl.SSLError):
        shown(tls.context(), OURS.pem)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_not_spoken(version: ssl.TLSVersion, tmp_path: Path) -> None:
    tls = opened(tmp_path)
    assert tls.context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert tls.context().minimum_version > version


# -- time -----------------------------------------------------------------------------------------

PAST, SOON = datetime.timedelta(minutes=-5), datetime.timedelta(minutes=5)


def test_when_it_expires_is_that_of_the_newest_files(tmp_path: Path) -> None:
    """Though nobody connects."""
    tls = opened(tmp_path, OURS.issue(lasts=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)))
    assert tls.expires() == 1893456000
    written(tmp_path, OURS.issue(lasts=datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)))
    assert tls.expires() == 1924992000


def test_grpc_is_told_what_a_look_at_the_metrics_has_found(tmp_path: Path) -> None:
    tls = opened(tmp_path)
    assert tls._newer() is None
    written(tmp_path, OURS.issue())
    tls.expires()
    assert tls._newer() is not None
    assert tls._newer() is None


def test_one_that_has_run_out_is_used_at_the_start_and_told(tmp_path: Path, logs: Logs) -> None:
    tls = opened(tmp_path, OURS.issue(lasts=PAST))
    assert tls.expired
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("tls_expired", "warning")]
    written(tmp_path, OURS.issue(lasts=SOON))
    assert not tls.expired


def test_one_that_has_run_out_does_not_take_the_place_of_a_good_one(tmp_path: Path, logs: Logs) -> None:
    before = OURS.issue()
    tls = opened(tmp_path, before)
    written(tmp_path, OURS.issue(lasts=PAST))
    assert shown(tls.context(), OURS.pem) == before.der
    assert not tls.expired
    assert [entry["event"] for entry in logs] == ["tls_refused"]
    assert "has expired" in logs[0]["error"]


def test_many_threads_see_one_new_set(tmp_path: Path, logs: Logs) -> None:
    """gRPC asks from a thread for each handshake."""
    tls = opened(tmp_path)
    written(tmp_path, OURS.issue())
    told: list[object] = []
    start = threading.Barrier(16)

    def ask() -> None:
        start.wait()
        told.append(tls._newer())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each is not None for each in told) == 1
    assert [entry["event"] for entry in logs] == ["tls_read"]
