"""Stacks whose only slot is taken, so that whoever comes is held and /status says whose request it is; and what is
added to Envoy's configuration for the sources of identity."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from rig import FAST_ENGINE, Rig, chat, running, until

JWT_FILTER = "envoy.filters.http.jwt_authn"
ISSUER, AUDIENCE = "https://idp.example", "llm"
ONE_SLOT = {
    "window": {"controller": "fixed", "fixed": 1, "overtake": 0},
    "metrics": {"interval": "50ms", "idle_interval": "100ms"},
}


@contextlib.asynccontextmanager
async def one_slot(directory: Path, envoy: Callable[[dict[str, Any]], None], **more: Any) -> AsyncIterator[Rig]:
    options = (*FAST_ENGINE, "--scheduling-policy", "priority")
    async with running(directory, engine_args=options, pool=ONE_SLOT, envoy_patch=envoy, **more) as rig:
        yield rig


@contextlib.asynccontextmanager
async def full(rig: Rig, faults: int = 0) -> AsyncIterator[None]:
    """Meanwhile the slot is taken. `faults`: that Fairlane must have counted by the end."""
    async with rig.hung_engines():
        blocker = rig.start(chat())
        await rig.until_inside(1)
        yield
    assert (await blocker).status == 200
    await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == pool["known"] == 0, "all books closed")
    assert await rig.metric("fairlane_faults_total") == faults
    rig.assert_clean_logs()


class Held(NamedTuple):
    tenant: str
    cls: str


async def held_as(rig: Rig, request: asyncio.Task[Any]) -> Held:
    """Whose request this is, by what the service shows while it holds it. The client then leaves.
    AssertionError if it is answered instead."""
    pool = await until(rig.pool, lambda pool: pool["queued"] == 1 or request.done(), "one request is held")
    assert not request.done(), request.result()
    (flow,) = [flow for flow in pool["flows"] if flow["queued"]]
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await rig.until_held(0)
    return Held(flow["tenant"], flow["cls"])


# -- Envoy ----------------------------------------------------------------------------------------


def manager(config: dict[str, Any]) -> dict[str, Any]:
    """The connection manager of the first listener."""
    found: dict[str, Any] = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(config: dict[str, Any]) -> dict[str, Any]:
    filters = manager(config)["http_filters"]
    found: dict[str, Any] = next(f for f in filters if f["name"] == "envoy.filters.http.ext_proc")["typed_config"]
    return found


def set_early(config: dict[str, Any], name: str, value: str, action: str) -> None:
    """Envoy sets a request header before any filter sees the request."""
    mutation = {"append": {"header": {"key": name, "value": value}, "append_action": action}}
    manager(config)["early_header_mutation_extensions"][0]["typed_config"]["mutations"].append(mutation)


def few_retries(config: dict[str, Any]) -> None:
    """Fairlane away for good: two minutes of retries are too long for a test."""
    ext_proc(config)["grpc_service"]["retry_policy"]["num_retries"] = 2


# -- tokens ---------------------------------------------------------------------------------------

EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def jwt_authn(config: dict[str, Any], *more_keys: Mapping[str, Any], optional: str = "allow_missing") -> None:
    """The filter goes first. A token is optional; one that is there must be good, with `allow_missing`."""
    es256 = {**jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "es", "alg": "ES256"}
    provider = {
        "issuer": ISSUER,
        "audiences": [AUDIENCE],
        "local_jwks": {"inline_string": json.dumps({"keys": [es256, *more_keys]})},
        "payload_in_metadata": "payload",
        "claim_to_headers": [{"header_name": "x-user", "claim_name": "sub"}],
    }
    needed = {"requires_any": {"requirements": [{"provider_name": "idp"}, {optional: {}}]}}
    typed = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"idp": provider},
        "rules": [{"match": {"prefix": "/"}, "requires": needed}],
    }
    manager(config)["http_filters"].insert(0, {"name": JWT_FILTER, "typed_config": typed})


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600, "sub": "alice", **more}


def token(payload: Mapping[str, Any], key: Any = EC_KEY, algorithm: str = "ES256", kid: str = "es") -> str:
    return jwt.encode(dict(payload), key, algorithm=algorithm, headers={"kid": kid})


def bearer(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


# -- certificates ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A certificate and its key, as files in PEM."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates that are good for a day."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        self._cert = self._signed(self._subject, self._key, (basic, True))
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *names: x509.GeneralName, days: int = 1) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extensions = [(x509.SubjectAlternativeName(names), False)] if names else []
        cert = self._signed(subject, key, *extensions, days=days)
        pair = Pair(self._directory / f"{self._name}-{name}.pem", self._directory / f"{self._name}-{name}.key")
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *extensions: tuple[x509.ExtensionType, bool],
        days: int = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def digest(pair: Pair) -> str:
    return x509.load_pem_x509_certificate(pair.cert.read_bytes()).fingerprint(hashes.SHA256()).hex()


def tls_listener(config: dict[str, Any], port: int, server: Pair, authority: Authority, **validation: Any) -> None:
    """A second listener, with all that the first one has, that asks for a client certificate but needs none."""
    listener = copy.deepcopy(config["static_resources"]["listeners"][0])
    listener["name"] = "llm-tls"
    listener["address"]["socket_address"]["port_value"] = port
    listener["filter_chains"][0]["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "tls_certificates": [
                    {"certificate_chain": {"filename": str(server.cert)}, "private_key": {"filename": str(server.key)}}
                ],
                "validation_context": {"trusted_ca": {"filename": str(authority.file)}, **validation},
            },
        },
    }
    config["static_resources"]["listeners"].append(listener)


def ask_for_certificates(config: dict[str, Any]) -> None:
    """The attributes that a source `certificate` reads."""
    names = ("uri_san", "dns_san", "subject")
    attributes = [f"connection.{name}_peer_certificate" for name in names]
    ext_proc(config)["request_attributes"] += [*attributes, "connection.sha256_peer_certificate_digest"]
