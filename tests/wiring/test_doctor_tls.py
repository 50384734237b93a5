"""The doctor on TLS between Envoy and Fairlane: each fault alone, its fix, and what is no fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from doctor_case import Envoy, Json, apply, config, findings

from extproc.config.model import Config
from extproc.wiring.description import FairlaneTls
from extproc.wiring.fairlane_tls import transport_socket

PAIR = {"certificate": "c", "key": "k"}
OURS = FairlaneTls("/ca.pem", "/c.pem", "/k.pem", "fairlane.example")
AT = "static_resources.clusters[0]"
CONTEXT = f"{AT}.transport_socket.typed_config"


def fairlane(tls: dict[str, str] | None) -> Config:
    return config() if tls is None else config(listen={"ext_proc_tls": tls})


def envoy(tls: FairlaneTls | None) -> Envoy:
    made = Envoy()
    if tls is not None:
        made.cluster("fairlane")["transport_socket"] = transport_socket(tls, [("127.0.0.1", 50051)])
    return made


def common(of: Envoy) -> Json:
    found: Json = of.cluster("fairlane")["transport_socket"]["typed_config"]["common_tls_context"]
    return found


def test_both_in_plain_text() -> None:
    assert findings(envoy(None), fairlane(None)) == []


@pytest.mark.parametrize("client_ca", [{}, {"client_ca": "a"}])
@pytest.mark.parametrize("name", [None, "fairlane.example", "spiffe://cluster/f"])
def test_what_envoy_config_writes_is_clean(name: str | None, client_ca: dict[str, str]) -> None:
    tls = FairlaneTls(OURS.ca, OURS.certificate, OURS.key, name)
    assert findings(envoy(tls), fairlane({**PAIR, **client_ca})) == []


@pytest.mark.parametrize(
    ("spoil", "listen", "expected", "where", "mends"),
    [
        (lambda e: e.cluster("fairlane").pop("transport_socket"), PAIR, "tls_missing", AT, True),
        (
            lambda e: e.cluster("fairlane").update(
                transport_socket={
                    "name": "raw",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
                    },
                }
            ),
            PAIR,
            "tls_missing",
            AT,
            False,  # the two kinds of socket do not merge
        ),
        (lambda _: None, None, "tls_unexpected", AT, False),
        (lambda e: common(e).pop("tls_certificates"), {**PAIR, "client_ca": "a"}, "tls_no_certificate", CONTEXT, True),
        (lambda e: common(e).pop("validation_context"), PAIR, "tls_unverified", CONTEXT, True),
        (
            lambda e: common(e)["validation_context"].pop("match_typed_subject_alt_names"),
            PAIR,
            "tls_any_name",
            CONTEXT,
            True,
        ),
    ],
)
def test_each_fault_is_found_alone_and_its_fix_mends_it(
    spoil: Callable[[Envoy], Any], listen: dict[str, str] | None, expected: str, where: str, mends: bool
) -> None:
    made, file = envoy(OURS), fairlane(listen)
    spoil(made)
    (found,) = findings(made, file)
    assert (found.id, found.where) == (expected, where)
    if mends:
        apply(made, found)
        assert findings(made, file) == []


@pytest.mark.parametrize(
    "known",
    [
        {"validation_context": {"verify_certificate_hash": ["00" * 32]}},
        {"validation_context": {"system_root_certs": {}, "match_subject_alt_names": [{"exact": "f"}]}},
        {"validation_context_sds_secret_config": {"name": "ca"}},
        {
            "combined_validation_context": {
                "default_validation_context": {},
                "validation_context_sds_secret_config": {"name": "ca"},
            }
        },
    ],
    ids=["digest", "the system's", "a secret", "in part a secret"],
)
def test_other_ways_to_know_fairlane(known: Json) -> None:
    made = envoy(OURS)
    del common(made)["validation_context"]
    common(made).update(known)
    assert findings(made, fairlane(PAIR)) == []


def test_the_host_as_name() -> None:
    made = envoy(OURS)
    del common(made)["validation_context"]["match_typed_subject_alt_names"]
    made.options("fairlane")["upstream_http_protocol_options"] = {"auto_sni": True, "auto_san_validation": True}
    assert findings(made, fairlane(PAIR)) == []


def test_a_certificate_from_elsewhere_is_one() -> None:
    made = envoy(OURS)
    del common(made)["tls_certificates"]
    common(made)["tls_certificate_sds_secret_configs"] = [{"name": "mine"}]
    assert findings(made, fairlane({**PAIR, "client_ca": "a"})) == []


@pytest.mark.slow
def test_nothing_is_said_where_a_mesh_decides_for_each_endpoint() -> None:
    made = envoy(None)
    made.cluster("fairlane")["transport_socket_matches"] = [
        {"name": "tls", "match": {"tlsMode": "istio"}, "transport_socket": transport_socket(OURS, [])}
    ]
    for listen in (PAIR, None):
        assert findings(made, fairlane(listen)) == []


def test_a_cluster_of_its_log_is_looked_at_too() -> None:
    made = envoy(OURS)
    log = {**made.cluster("fairlane"), "name": "fairlane-log"}
    del log["transport_socket"]
    made.data["static_resources"]["clusters"].append(log)
    made.log["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "fairlane-log"
    (found,) = findings(made, fairlane(PAIR))
    assert (found.id, found.where) == ("tls_missing", "static_resources.clusters[2]")
