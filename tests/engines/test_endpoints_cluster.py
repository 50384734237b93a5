"""How the Kubernetes API is reached: by a pod's service account, or a kubeconfig."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

from extproc.config.endpoints import Kubernetes
from extproc.engines.endpoints import cluster
from extproc.engines.endpoints.source import SourceError

AUTHORITY = Authority("cluster")
INSIDE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def encoded(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("token", "abc\n"), ("namespace", "llm"), ("ca.crt", AUTHORITY.pem)):
        (tmp_path / name).write_text(text)
    return tmp_path


def by_account(account: Path, environment: dict[str, str] = INSIDE) -> cluster.Cluster:
    return cluster.read(Kubernetes(service="a"), environment, account)


def test_inside(account: Path) -> None:
    found = by_account(account)
    assert (found.url, found.namespace) == ("https://10.96.0.1:6443", "llm")
    assert found.headers == {"Authorization": "Bearer abc"}
    assert found.tls is not None
    assert (found.tls.verify_mode, found.tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert by_account(account, {"KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"


def test_what_is_missing_inside(account: Path) -> None:
    with pytest.raises(SourceError, match="does not run in a cluster: give endpoints"):
        by_account(account, {})
    (account / "ca.crt").write_text("no certificate")
    with pytest.raises(SourceError, match="certificate authority cannot be used"):
        by_account(account)
    for text in ("\n", "a\nb", "\u00e4"):
        (account / "token").write_text(text)
        with pytest.raises(SourceError, match="is empty, or no token; the pod has no token"):
            by_account(account)
    (account / "token").unlink()
    with pytest.raises(SourceError, match="the pod has no token: see its automountServiceAccountToken"):
        by_account(account)


def config(
    tmp_path: Path,
    *,
    cluster_: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    **top: Any,
) -> Path:
    path = tmp_path / "config"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"} | (context or {})}, {"name": "other"}],
        "clusters": [
            {"name": "k", "cluster": {"server": "https://k.example:6443/k8s/1/"} | (cluster_ or {})},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(json.dumps(content | top))
    return path


def read(path: Path, context: str | None = None) -> cluster.Cluster:
    return cluster.read(Kubernetes(service="a", kubeconfig=str(path), context=context), {}, path.parent)


def fault(path: Path, context: str | None = None) -> str:
    with pytest.raises(SourceError) as error:
        read(path, context)
    message = str(error.value)
    assert message.startswith(str(path.parent))
    return message


def test_a_kubeconfig(tmp_path: Path) -> None:
    found = read(
        config(
            tmp_path,
            cluster_={"certificate-authority-data": encoded(AUTHORITY.pem), "tls-server-name": "api.internal"},
            user={"token": "xyz"},
            context={"namespace": "prod"},
        )
    )
    assert (found.url, found.namespace) == ("https://k.example:6443/k8s/1", "prod")
    assert found.server_name == "api.internal"
    assert found.headers == {"Authorization": "Bearer xyz"}
    assert found.tls is not None
    assert [entry["subject"] for entry in found.tls.get_ca_certs()] == [((("commonName", "cluster"),),)]


def test_a_token_in_a_file_and_a_password(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    assert read(config(tmp_path, user={"tokenFile": "token"})).headers == {"Authorization": "Bearer from-file"}
    found = read(config(tmp_path, user={"username": "me", "password": "pw"})).headers
    assert found == {"Authorization": f"Basic {encoded('me:pw')}"}
    assert read(config(tmp_path, context={"user": None})).headers == {}


def test_http_and_no_verification(tmp_path: Path) -> None:
    assert read(config(tmp_path, cluster_={"server": "http://127.0.0.1:8080"})).tls is None
    tls = read(config(tmp_path, cluster_={"insecure-skip-tls-verify": True})).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)


def test_a_context_by_name(tmp_path: Path) -> None:
    contexts = [
        {"name": "c", "context": {"cluster": "gone", "user": "u"}},
        {"name": "d", "context": {"cluster": "k", "user": "u", "namespace": "d"}},
    ]
    path = config(tmp_path, contexts=contexts)
    assert read(path, "d").namespace == "d"
    assert "clusters has no 'gone'; it has: k" in fault(path)


CERTIFICATE, KEY = AUTHORITY.client()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"current-context": None}, "has no current-context: give endpoints.kubernetes.context"),
        ({"current-context": "x"}, "contexts has no 'x'; it has: c, other"),
        ({"current-context": "other"}, "contexts has no 'other'"),
        ({"contexts": 5}, "contexts has no 'c'; it has: none"),
        ({"users": [5]}, "users has no 'u'; it has: none"),
        ({"cluster_": {"server": "k.example"}}, "the server of the cluster 'k' is no http or https URL"),
        ({"cluster_": {"server": 5}}, "is no http or https URL"),
        ({"cluster_": {"proxy-url": "http://p"}}, "proxy-url is not understood"),
        ({"cluster_": {"certificate-authority-data": "%"}}, "certificate-authority-data is not base64"),
        ({"cluster_": {"certificate-authority-data": encoded("x")}}, "certificate authority cannot be used"),
        ({"cluster_": {"certificate-authority": "ca.pem"}}, "the certificate-authority of the kubeconfig"),
        ({"user": {"exec": {"command": "aws"}}}, "exec is not understood; give the user a token, a tokenFile or a"),
        ({"user": {"tokenFile": "gone"}}, "No such file or directory; the tokenFile of the kubeconfig"),
        ({"user": {"client-certificate-data": encoded(CERTIFICATE)}}, "a client-certificate needs its client-key"),
        (
            {"user": {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded("x")}},
            "client certificate and key cannot be used",
        ),
    ],
)
def test_kubeconfigs_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in fault(config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a mapping"),
        ("- 5", "expected a mapping"),
        (
            "token: [secret",
            "is neither YAML nor JSON in line 1: did not find expected ',' or ']' (is it a kubeconfig?)",
        ),
        ("a: 2026-99-99", "is neither YAML nor JSON"),
        ("\x00", "is neither YAML nor JSON"),
    ],
)
def test_what_is_no_kubeconfig(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    message = fault(path)
    assert words in message
    assert "secret" not in message


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file or directory; is it the path of a kubeconfig?" in fault(tmp_path / "config")
