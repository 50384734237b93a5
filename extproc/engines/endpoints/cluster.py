"""How the API of a Kubernetes cluster is reached: from inside by the pod's service account, else by a kubeconfig.

All is read anew for each connection, since tokens of service accounts last about an hour and certificates change too.

Of kubeconfigs these are understood: server, certificate-authority, insecure-skip-tls-verify, tls-server-name; token,
tokenFile, client certificates and keys, user name and password; each as file or data where there are both. Commands
that make tokens (`exec`) and proxies are not: they are for people at their desks. `kubectl create token` makes a token
for a tokenFile.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from extproc.config.endpoints import Kubernetes
from extproc.config.units import shown
from extproc.engines.endpoints.plain_yaml import PlainYamlError, load
from extproc.engines.endpoints.source import SourceError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_OUTSIDE: Final = "Fairlane does not run in a cluster: give endpoints.kubernetes.kubeconfig"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One way to one API."""

    url: str  # without a slash at its end
    namespace: str  # where none is asked for
    tls: ssl.SSLContext | None = None  # None: http
    server_name: str | None = None  # in the certificate, where it is not the host of the URL
    headers: Mapping[str, str] = field(default_factory=dict)


def read(config: Kubernetes, environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Reads files. Raises SourceError."""
    if config.kubeconfig is not None:
        return _of_kubeconfig(Path(config.kubeconfig), config.context)
    return _inside(environment, account)


def _inside(environment: Mapping[str, str], account: Path) -> Cluster:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SourceError(f"KUBERNETES_SERVICE_HOST is not set. {_OUTSIDE}")
    token = _token(account / "token", "the pod has no token: see its automountServiceAccountToken")
    namespace = account / "namespace"
    return Cluster(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=_text(namespace, "give endpoints.kubernetes.namespace").strip() if namespace.exists() else "default",
        tls=_trust(_text(account / "ca.crt", "the pod has no certificate of the API"), account / "ca.crt"),
        headers={"Authorization": f"Bearer {token}"},
    )


def _of_kubeconfig(path: Path, wanted: str | None) -> Cluster:
    try:
        content = load(_text(path, "is it the path of a kubeconfig?"))
    except PlainYamlError as error:
        raise SourceError(f"{path}: {error} (is it a kubeconfig?)") from None
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected a mapping with clusters, users and contexts: is it a kubeconfig?")
    name = wanted or content.get("current-context")
    if not isinstance(name, str) or not name:
        raise SourceError(f"{path}: has no current-context: give endpoints.kubernetes.context")
    context = _named(content, "contexts", "context", name, path)
    cluster = _named(content, "clusters", "cluster", context.get("cluster"), path)
    user = _named(content, "users", "user", context.get("user"), path) if context.get("user") else {}
    server = cluster.get("server")
    parts = urlsplit(server if isinstance(server, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError(f"{path}: the server of the cluster {shown(context.get('cluster'))} is no http or https URL")
    for key, holder in (("proxy-url", cluster), ("exec", user), ("auth-provider", user)):
        if holder.get(key):
            raise SourceError(f"{path}: {key} is not understood; give the user a token, a tokenFile or a certificate")
    return Cluster(
        url=str(server).rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        tls=_tls(cluster, user, path) if parts.scheme == "https" else None,
        server_name=cluster.get("tls-server-name"),
        headers=_authorization(user, path),
    )


def _named(content: dict[str, Any], listing: str, member: str, name: object, path: Path) -> dict[str, Any]:
    entries = content.get(listing)
    known = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    for each in known:
        if each.get("name") == name and isinstance(each.get(member), dict):
            return dict(each[member])
    named = (each.get("name") for each in known[:20])
    names = ", ".join(each[:100] if isinstance(each, str) else shown(each) for each in named) or "none"
    raise SourceError(f"{path}: {listing} has no {shown(name)}; it has: {names}")


def _authorization(user: dict[str, Any], path: Path) -> dict[str, str]:
    token = user.get("token")
    if user.get("tokenFile"):
        token = _token(path.parent / str(user["tokenFile"]), "the tokenFile of the kubeconfig")
    if token:
        return {"Authorization": f"Bearer {str(token).strip()}"}
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password') or ''}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _tls(cluster: dict[str, Any], user: dict[str, Any], path: Path) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority", path)
    context = _trust(authority.decode("utf-8", "replace") if authority is not None else None, path)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _data(user, "client-certificate", path), _data(user, "client-key", path)
    if certificate is not None and key is not None:
        # OpenSSL's interface in Python takes files only
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except (ssl.SSLError, OSError) as error:
                raise SourceError(f"{path}: client certificate and key cannot be used: {error}") from error
    elif certificate is not None or key is not None:
        raise SourceError(f"{path}: a client-certificate needs its client-key, and a key its certificate")
    return context


def _data(holder: dict[str, Any], key: str, path: Path) -> bytes | None:
    """What stands under `key`-data, or in the file that `key` names."""
    inline, file = holder.get(f"{key}-data"), holder.get(key)
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except ValueError:
            raise SourceError(f"{path}: {key}-data is not base64") from None
    return _text(path.parent / str(file), f"the {key} of the kubeconfig").encode() if file else None


def _trust(authority: str | None, path: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise SourceError(f"{path}: the API's certificate authority cannot be used: {error}") from error


def _token(path: Path, hint: str) -> str:
    token = _text(path, hint).strip()
    if not token or not token.isascii() or not token.isprintable():
        raise SourceError(f"{path}: is empty, or no token; {hint}")
    return token


def _text(path: Path, hint: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "is no text"
        raise SourceError(f"{path}: cannot be read: {cause}; {hint}") from None
