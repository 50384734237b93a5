"""Until when a certificate is good, against what another library says of the same one."""

from __future__ import annotations

import datetime
import ssl

import pytest
from cryptography import x509
from pki import Authority

from extproc.transport.validity import expiry


@pytest.mark.parametrize("year", [2027, 2049, 2050, 2068, 2069, 2127, 9999])
def test_as_another_library_reads_it(year: int) -> None:
    """From 2050 on the time is written in another form."""
    until = datetime.datetime(year, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
    pem = Authority().issue(lasts=until).certificate
    assert x509.load_pem_x509_certificate(pem).not_valid_after_utc == until
    assert expiry(pem) == until.timestamp()


def test_a_time_of_the_century_before() -> None:
    until = datetime.datetime(1951, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    assert expiry(Authority().issue(lasts=until).certificate) == until.timestamp()


def test_of_a_chain_the_first_one_counts_whatever_stands_around_it() -> None:
    authority = Authority()
    leaf = authority.issue(lasts=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
    words = "subject=/CN=Müller\n".encode() + leaf.key
    assert expiry(words + leaf.certificate + b"\n# the authority\n" + authority.pem) == 1893456000


@pytest.mark.parametrize("pem", [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_cannot_be_read_is_not_known(pem: bytes) -> None:
    assert expiry(pem) is None


def test_no_cut_of_a_certificate_raises() -> None:
    der = Authority().issue().der
    read = {expiry(ssl.DER_cert_to_PEM_cert(der[:length]).encode()) for length in range(1, len(der))}
    assert read == {None}
