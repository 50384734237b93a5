"""TLS between Envoy and Fairlane: whether both speak it, and whether each makes sure of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import CertificateValidationContext, UpstreamTlsContext

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at, inside
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import ClusterView, Setup
from extproc.wiring.doctor.typed import Part, Reader, type_name

_CONTEXT = UpstreamTlsContext.__name__
_RAW_BUFFER = "RawBuffer"


def _clusters(setup: Setup) -> Iterator[ClusterView]:
    """Fairlane's, those that only its access log goes to among them. Where a control plane gives endpoints sockets of
    their own (a mesh), what is spoken is not said here."""
    names = dict.fromkeys(log.cluster for gateway in setup.gateways for log in gateway.logs)
    found = {each.name: each for each in setup.fairlane}
    found |= {name: setup.clusters[name] for name in names if name in setup.clusters}
    for cluster in found.values():
        if not cluster.part.raw.get("transport_socket_matches"):
            yield cluster


def _socket(cluster: ClusterView) -> str:
    """The kind of its transport socket; empty: none, which is plain text."""
    socket = inside(cluster.part.raw, "transport_socket")
    kind = type_name(socket.get("typed_config")).rpartition(".")[2]
    return "" if kind == _RAW_BUFFER or not socket else kind or "unknown"


def _contexts(setup: Setup) -> Iterator[tuple[ClusterView, Part[UpstreamTlsContext]]]:
    """How it speaks TLS to Fairlane, where this is readable."""
    for cluster in _clusters(setup):
        raw = inside(cluster.part.raw, "transport_socket").get("typed_config")
        if _socket(cluster) == _CONTEXT:
            part = Reader().read_as(UpstreamTlsContext, raw, at(cluster.where, "transport_socket", "typed_config"))
            if part is not None:
                yield cluster, part


def _missing(setup: Setup) -> Iterator[Hit]:
    if setup.config.listen.ext_proc_tls is None:
        return
    for cluster in _clusters(setup):
        if not _socket(cluster):
            yield Hit(cluster.where, f"cluster {cluster.name} speaks plain text, and listen.ext_proc_tls is set")


def _unexpected(setup: Setup) -> Iterator[Hit]:
    if setup.config.listen.ext_proc_tls is None:
        for cluster, _ in _contexts(setup):
            yield Hit(cluster.where, f"cluster {cluster.name} speaks TLS, and fairlane.yaml has no listen.ext_proc_tls")


def _unverified(setup: Setup) -> Iterator[Hit]:
    yield from _without(setup, "any authority", _knows_authority)


def _any_name(setup: Setup) -> Iterator[Hit]:
    yield from _without(setup, "any name", _knows_name, only_if=_knows_authority)


def _no_certificate(setup: Setup) -> Iterator[Hit]:
    wanted = setup.config.listen.ext_proc_tls
    if wanted is None or wanted.client_ca is None:
        return
    for cluster, part in _contexts(setup):
        common = part.message.common_tls_context
        shown = common is not None and (
            common.tls_certificates
            or common.tls_certificate_sds_secret_configs
            or common.tls_certificate_provider_instance is not None
            or common.custom_tls_certificate_selector is not None
        )
        if not shown:
            yield Hit(
                part.where, f"cluster {cluster.name} shows no certificate, and listen.ext_proc_tls has a client_ca"
            )


def _without(
    setup: Setup,
    what: str,
    knows: Callable[[CertificateValidationContext], bool],
    only_if: Callable[[CertificateValidationContext], bool] | None = None,
) -> Iterator[Hit]:
    for cluster, part in _contexts(setup):
        context, elsewhere = _validation(part.message)
        if elsewhere or knows(context) or (only_if is not None and not only_if(context)):
            continue
        if knows is _knows_name and (part.message.auto_sni_san_validation or _checks_host(cluster)):
            continue
        yield Hit(part.where, f"cluster {cluster.name} takes a certificate of {what} for Fairlane's")


def _validation(tls: UpstreamTlsContext) -> tuple[CertificateValidationContext, bool]:
    """What a certificate must be like, and whether more of that is elsewhere: in a secret, or a plugin."""
    common = tls.common_tls_context
    if common is None:
        return CertificateValidationContext(), False
    combined = common.combined_validation_context
    if combined is not None:
        return combined.default_validation_context or CertificateValidationContext(), True
    elsewhere = common.validation_context_sds_secret_config is not None
    return common.validation_context or CertificateValidationContext(), elsewhere


def _knows_authority(context: CertificateValidationContext) -> bool:
    return bool(
        context.trusted_ca is not None
        or context.system_root_certs is not None
        or context.ca_certificate_provider_instance is not None
        or context.custom_validator_config is not None
        or context.verify_certificate_hash
        or context.verify_certificate_spki
    )


def _knows_name(context: CertificateValidationContext) -> bool:
    """A certificate that is known by its digest is known by more than a name."""
    return bool(
        context.match_typed_subject_alt_names
        or context.match_subject_alt_names
        or context.custom_validator_config is not None
        or context.verify_certificate_hash
        or context.verify_certificate_spki
    )


def _checks_host(cluster: ClusterView) -> bool:
    options = cluster.options.message.upstream_http_protocol_options if cluster.options is not None else None
    return options is not None and options.auto_san_validation


_SOCKET = (
    "transport_socket:\n"
    "  name: envoy.transport_sockets.tls\n"
    "  typed_config:\n"
    '    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n'
    "    common_tls_context:\n"
    "      alpn_protocols: [h2]\n"
    "      validation_context:\n"
    "        trusted_ca: { filename: /etc/envoy/fairlane-ca.pem }\n"
    "        match_typed_subject_alt_names: [ { san_type: DNS, matcher: { exact: fairlane.example } } ]"
)

CHECKS = (
    Check(
        "tls_missing",
        Severity.ERROR,
        "Fairlane speaks TLS on its ext_proc port, so a connection in plain text is closed: every request waits for "
        "two minutes of attempts, and then passes unscheduled or is refused.",
        _SOCKET,
        _missing,
    ),
    Check(
        "tls_unexpected",
        Severity.ERROR,
        "Fairlane speaks plain text on its ext_proc port, so Envoy's handshake fails: every request waits for two "
        "minutes of attempts, and then passes unscheduled or is refused; unless something between them takes the "
        "TLS away.",
        "# listen: {ext_proc_tls: {certificate: FILE, key: FILE}} in fairlane.yaml, or no transport_socket here",
        _unexpected,
    ),
    Check(
        "tls_no_certificate",
        Severity.ERROR,
        "With a client_ca Fairlane lets nobody in who shows no certificate: every request waits for two minutes of "
        "attempts, and then passes unscheduled or is refused.",
        "common_tls_context:\n"
        "  tls_certificates:\n"
        "  - certificate_chain: { filename: /etc/envoy/envoy.pem }\n"
        "    private_key: { filename: /etc/envoy/envoy.key }",
        _no_certificate,
    ),
    Check(
        "tls_unverified",
        Severity.WARNING,
        "Without an authority Envoy takes any certificate, so whoever gets between it and Fairlane reads the headers "
        "and the facts of all requests, and decides where they go.",
        "common_tls_context:\n"
        "  validation_context:\n"
        "    trusted_ca: { filename: /etc/envoy/fairlane-ca.pem }\n"
        "    match_typed_subject_alt_names: [ { san_type: DNS, matcher: { exact: fairlane.example } } ]",
        _unverified,
    ),
    Check(
        "tls_any_name",
        Severity.WARNING,
        "Without a name every certificate of the authority will do, so whoever has one of another service can stand in "
        "for Fairlane.",
        "common_tls_context:\n"
        "  validation_context:\n"
        "    match_typed_subject_alt_names: [ { san_type: DNS, matcher: { exact: fairlane.example } } ]",
        _any_name,
    ),
)
