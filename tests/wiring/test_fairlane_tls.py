"""TLS from Envoy to Fairlane: what is written, what is refused, and that Envoy takes it."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from wiring_case import FAIRLANE, REPLICAS, addresses, cluster

from extproc.cli.envoy_config import envoy_config
from extproc.cli.stack import envoy_binary
from extproc.config.load import from_data
from extproc.config.model import Config
from extproc.wiring import derive
from extproc.wiring.build import build
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.mesh.pieces import pieces

CA, CERTIFICATE, KEY = "/etc/envoy/ca.pem", "/etc/envoy/envoy.pem", "/etc/envoy/envoy.key"
POOL = {"name": "a", "models": ["*"], "endpoints": ["127.0.0.1:8001"]}


def made(tls: FairlaneTls | None, ext_proc: list[tuple[str, int]], **choices: Any) -> dict[str, Any]:
    return build(Wiring(**choices), addresses(ext_proc=ext_proc, fairlane_tls=tls)).config


def context(of: dict[str, Any]) -> dict[str, Any]:
    socket = of["transport_socket"]
    assert socket["name"] == "envoy.transport_sockets.tls"
    found: dict[str, Any] = socket["typed_config"]
    assert found["@type"].endswith(".tls.v3.UpstreamTlsContext")
    return found


def names(of: dict[str, Any]) -> list[tuple[str, str]]:
    known = context(of)["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    return [(each["san_type"], each["matcher"]["exact"]) for each in known]


def test_in_plain_text_as_before() -> None:
    assert "transport_socket" not in cluster(made(None, [FAIRLANE]), "fairlane")


@pytest.mark.parametrize(
    ("name", "at", "expected", "sni"),
    [
        (None, ("127.0.0.1", 1), [("IP_ADDRESS", "127.0.0.1")], None),
        (None, ("::1", 1), [("IP_ADDRESS", "::1")], None),
        (None, ("fairlane.llm.svc", 1), [("DNS", "fairlane.llm.svc")], "fairlane.llm.svc"),
        ("fairlane.example", ("127.0.0.1", 1), [("DNS", "fairlane.example")], "fairlane.example"),
        ("10.0.0.7", ("fairlane", 1), [("IP_ADDRESS", "10.0.0.7")], None),
        ("spiffe://cluster/ns/llm/sa/f", ("fairlane", 1), [("URI", "spiffe://cluster/ns/llm/sa/f")], None),
    ],
)
def test_whose_certificate_is_taken(
    name: str | None, at: tuple[str, int], expected: list[tuple[str, str]], sni: str | None
) -> None:
    found = cluster(made(FairlaneTls(CA, name=name), [at]), "fairlane")
    assert names(found) == expected
    assert context(found).get("sni") == sni
    common = context(found)["common_tls_context"]
    assert common["validation_context"]["trusted_ca"] == {"filename": CA}
    assert common["alpn_protocols"] == ["h2"]
    assert "tls_certificates" not in common


def test_envoys_own_certificate() -> None:
    found = cluster(made(FairlaneTls(CA, CERTIFICATE, KEY), [FAIRLANE]), "fairlane")
    assert context(found)["common_tls_context"]["tls_certificates"] == [
        {"certificate_chain": {"filename": CERTIFICATE}, "private_key": {"filename": KEY}}
    ]


def test_several_replicas_each_with_its_log() -> None:
    """Any of them may answer with the certificate of any; health checks go by the cluster."""
    config = made(FairlaneTls(CA, CERTIFICATE, KEY), REPLICAS)
    found = [each for each in config["static_resources"]["clusters"] if each["name"].startswith("fairlane")]
    assert [each["name"] for each in found] == ["fairlane", "fairlane-log-1", "fairlane-log-2"]
    assert len({json.dumps(context(each)) for each in found}) == 1
    assert names(found[0]) == [("IP_ADDRESS", "127.0.0.9")]
    assert found[0]["health_checks"]


def test_the_pieces_for_meshes_have_it() -> None:
    parts = pieces(Wiring(), addresses(fairlane_tls=FairlaneTls(CA, name="fairlane.svc")))
    assert names(parts.fairlane) == [("DNS", "fairlane.svc")]


@pytest.mark.parametrize(
    "given",
    [{"certificate": CERTIFICATE}, {"key": KEY}, {"name": ""}, {"certificate": "", "key": KEY}],
)
def test_what_makes_no_sense(given: dict[str, str]) -> None:
    with pytest.raises(WiringError):
        FairlaneTls(CA, **given)


# -- from fairlane.yaml ---------------------------------------------------------------------------


def config(tls: dict[str, str] | None) -> Config:
    return from_data({"pools": [POOL], "listen": {} if tls is None else {"ext_proc_tls": tls}})


PAIR = {"certificate": "c", "key": "k"}


def test_a_file_with_tls_needs_the_authority() -> None:
    with pytest.raises(WiringError, match=r"listen\.ext_proc_tls: .* give --fairlane-ca FILE") as error:
        derive.addresses(config(PAIR))
    assert "--fairlane-certificate" not in str(error.value)
    with pytest.raises(WiringError, match="--fairlane-certificate FILE --fairlane-key FILE"):
        derive.addresses(config({**PAIR, "client_ca": "a"}))
    with pytest.raises(WiringError, match=r"client_ca: .* give --fairlane-certificate FILE --fairlane-key FILE"):
        derive.addresses(config({**PAIR, "client_ca": "a"}), fairlane_tls=FairlaneTls(CA))
    assert derive.addresses(config(PAIR), fairlane_tls=FairlaneTls(CA)).fairlane_tls == FairlaneTls(CA)


def test_tls_to_a_port_without_is_noted() -> None:
    assert list(derive.tls_notes(config(None), None)) == []
    assert list(derive.tls_notes(config(PAIR), FairlaneTls(CA))) == []
    (note,) = derive.tls_notes(config(None), FairlaneTls(CA))
    assert "no listen.ext_proc_tls" in note


# -- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(envoy_config, list(arguments))


def a_file(folder: Path, tls: dict[str, str] | None) -> str:
    file = folder / "fairlane.yaml"
    listen = {"ext_proc": "0.0.0.0:50051"} | ({} if tls is None else {"ext_proc_tls": tls})
    file.write_text(yaml.safe_dump({"pools": [POOL], "listen": listen}))
    return str(file)


def test_the_command_writes_it(tmp_path: Path) -> None:
    file = a_file(tmp_path, {**PAIR, "client_ca": "a"})
    own = ("--fairlane-certificate", CERTIFICATE, "--fairlane-key", KEY)
    result = run("--config", file, "--fairlane-ca", CA, *own, "--fairlane-name", "fairlane.example")
    assert result.exit_code == 0, result.output
    assert names(cluster(json.loads(result.stdout), "fairlane")) == [("DNS", "fairlane.example")]
    assert "Fairlane's certificate must be for fairlane.example (SAN)" in result.stderr


@pytest.mark.parametrize(
    ("tls", "options", "words"),
    [
        (PAIR, (), "give --fairlane-ca FILE"),
        ({**PAIR, "client_ca": "a"}, ("--fairlane-ca", CA), "give --fairlane-certificate FILE --fairlane-key FILE"),
        (None, ("--fairlane-name", "x"), "give --fairlane-ca, too"),
        (None, ("--fairlane-ca", CA, "--fairlane-key", KEY), "given together"),
    ],
)
def test_the_command_says_what_is_missing(
    tls: dict[str, str] | None, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    result = run("--config", a_file(tmp_path, tls), *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("envoy", [36, 40])
@pytest.mark.parametrize("at", ["127.0.0.1", "fairlane.example"])
def test_envoy_takes_it(envoy: int, at: str, tmp_path: Path) -> None:
    """Envoy reads the files, so they are real ones."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    (tmp_path / "c.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "k.pem").write_bytes(key.private_bytes(*private))
    tls = FairlaneTls(str(tmp_path / "c.pem"), str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(made(tls, [(at, 50051)], envoy=envoy)))
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(file), "--disable-hot-restart", "-l", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
