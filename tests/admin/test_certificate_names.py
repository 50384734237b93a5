"""Names in certificates, against the library `cryptography`, which writes them."""

from __future__ import annotations

import base64
import ipaddress

import pytest
from access_case import Authority
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.admin.certificate_names import names_in

AUTHORITY = Authority("ours")
TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=300)
NAMES = st.one_of(
    TEXT.map(x509.DNSName),
    TEXT.map(x509.UniformResourceIdentifier),
    st.ip_addresses().map(x509.IPAddress),
    st.just(x509.RFC822Name("ops@example.org")),
)
OTHER_KINDS = (
    x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
    x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "admin")])),
    x509.OtherName(x509.ObjectIdentifier("1.2.3"), b"\x0c\x05admin"),
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(NAMES, min_size=1, max_size=20))
def test_all_kinds_of_names(names: list[x509.GeneralName]) -> None:
    assert names_in(AUTHORITY.client(*names).certificate) == [str(name.value) for name in names]


def test_names_of_other_kinds_are_none() -> None:
    names = (*OTHER_KINDS, x509.DNSName("a.example"), x509.IPAddress(ipaddress.ip_address("2001:db8::1")))
    assert names_in(AUTHORITY.client(*names).certificate) == ["a.example", "2001:db8::1"]


def test_names_that_read_as_others_are_left_out() -> None:
    names = [x509.DNSName(name) for name in ("a.example\0.org", "b.example", "\0", "c.example\n", "d\x7f")]
    assert names_in(AUTHORITY.client(*names).certificate) == ["b.example"]


def test_no_names() -> None:
    assert names_in(AUTHORITY.client(common_name="admin").certificate) == []
    assert names_in(AUTHORITY.pem) == []


def test_a_name_elsewhere_in_the_certificate_is_none() -> None:
    """DER of a SAN in the subject."""
    hidden = "\x06\x03U\x1d\x11\x04\x0b0\t" + "\x02\x07a.examp"
    assert names_in(AUTHORITY.client(common_name=hidden).certificate) == []


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=60))
def test_what_is_no_certificate(data: bytes) -> None:
    assert names_in(data) == []
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"
    assert names_in(pem) == []


def test_a_certificate_that_is_cut() -> None:
    whole = AUTHORITY.client(x509.DNSName("a.example"))
    der = base64.b64decode(b"".join(whole.certificate.splitlines()[1:-1]))
    for length in range(len(der)):
        cut = base64.encodebytes(der[:length])
        assert names_in(b"-----BEGIN CERTIFICATE-----\n" + cut + b"-----END CERTIFICATE-----\n") == []
