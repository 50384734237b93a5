"""A description of Envoy's side out of `fairlane.yaml`: what both have to say, said once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.model import Config
from extproc.config.units import split_host_port
from extproc.wiring import engine_set
from extproc.wiring.build import Addresses
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.parts import Address

_CERTIFICATE = {
    "uri_san": "connection.uri_san_peer_certificate",
    "dns_san": "connection.dns_san_peer_certificate",
    "subject": "connection.subject_peer_certificate",
    "sha256": "connection.sha256_peer_certificate_digest",
}


def wiring(config: Config, **chosen: Any) -> Wiring:
    """`chosen`: fields of Wiring that the file does not decide, or that are to be otherwise. Raises WiringError."""
    sources = [*config.identity.tenant, *config.identity.request_class]
    by_header = any(pool.priority_via in ("auto", "header", "both") for pool in config.pools)
    default = config.classes[config.default_class].priority
    picks = {pool.pick.by for pool in config.pools}
    given: dict[str, Any] = {
        "first_byte": any(cls.preemptible for cls in config.classes.values()),
        "queued": tuple(config.requests.queued),
        "max_body": config.requests.max_body,
        "default_priority": default if by_header else None,
        "unscheduled_priority": _in_body(config, default),
        "mode": config.cluster.mode,
        "pick": picks.pop() if len(picks) == 1 else "mixed",
        "attributes": tuple(_CERTIFICATE[each.certificate.which] for each in sources if each.certificate),
        "namespaces": tuple(each.metadata.namespace for each in sources if each.metadata),
    }
    if chosen.get("profile", "standard") in ("standard", "strict"):
        given["append"] = edits_body(config)
    return Wiring(**{**given, **chosen})


def _in_body(config: Config, default: int) -> int | None:
    """What an engine that reads the body is told about requests that pass unscheduled; None: nothing."""
    high_first = {pool.high_first for pool in config.pools if pool.tells_in_body}
    if len(high_first) != 1:
        return None  # no number is right for both orders, see `notes`
    return -default if high_first.pop() else default


def edits_body(config: Config) -> bool:
    """Whether Fairlane wants anything in the JSON body that the client did not write."""
    return config.requests.include_usage == "inject" or any(pool.aliases or pool.tells_in_body for pool in config.pools)


def addresses(config: Config, **chosen: Any) -> Addresses:
    """Fairlane and the engines as the file has them. `chosen`: fields of Addresses to be otherwise. Raises WiringError
    where Envoy cannot find the engines as the file does, or could not speak to Fairlane as the file wants it."""
    _check_tls(config, chosen.get("fairlane_tls"))
    given: dict[str, Any] = {"ext_proc": [_reachable(split_host_port(config.listen.ext_proc))]}
    if "engines" not in chosen:
        found = engine_set.of(config.pools)
        given |= {"engines": found.addresses, "lookup": found.lookup, "file": found.file}
    return Addresses(**{**given, **chosen})


def _check_tls(config: Config, tls: FairlaneTls | None) -> None:
    """Raises WiringError. TLS to a port without is noted only: something else may stand before it."""
    wanted = config.listen.ext_proc_tls
    if wanted is None:
        return
    own = "--fairlane-certificate FILE --fairlane-key FILE"
    if tls is None:
        more = f", and {own} for listen.ext_proc_tls.client_ca" if wanted.client_ca is not None else ""
        raise WiringError(
            "listen.ext_proc_tls: Fairlane speaks TLS there, so Envoy must: give --fairlane-ca FILE, the authority of "
            f"Fairlane's certificate as Envoy sees it{more}"
        )
    if wanted.client_ca is not None and tls.certificate is None:
        raise WiringError(
            f"listen.ext_proc_tls.client_ca: Fairlane lets nobody in who shows no certificate: give {own}, of that "
            "authority and as Envoy sees them"
        )


def tls_notes(config: Config, tls: FairlaneTls | None) -> Iterator[str]:
    """What may be wrong about the way to Fairlane."""
    if tls is not None and config.listen.ext_proc_tls is None:
        yield (
            "Envoy speaks TLS to Fairlane, and fairlane.yaml has no listen.ext_proc_tls: this works only with "
            "something between them that takes the TLS away."
        )


def replica_notes(config: Config, described: Wiring, replicas: int) -> Iterator[str]:
    """What the file and the number of Fairlane's addresses say of each other."""
    if replicas > 1 and described.mode == "single" and described.spread_used == "requests":
        yield (
            f"There are {replicas} replicas of Fairlane and cluster.mode is single: each keeps an order of its own, "
            "and shares are fair in each alone. cluster.mode standby, partition or shared makes one order of them."
        )
    if described.mode != config.cluster.mode:
        yield (
            f"This is for the cluster mode {described.mode}, and cluster.mode of fairlane.yaml is "
            f"{config.cluster.mode}."
        )
    elif described.mode != "single" and replicas > 1 and config.cluster.replicas != replicas:
        yield (
            f"cluster.replicas is {config.cluster.replicas}, and there are {replicas} addresses of Fairlane: while the "
            "store cannot be asked, each replica takes its part of that number."
        )


def notes(config: Config, described: Wiring) -> Iterator[str]:
    """What a configuration made from the file cannot do."""
    if len(config.pools) > 1:
        yield (
            f"There are {len(config.pools)} pools and one cluster of engines: what passes unscheduled, Fairlane being "
            "away, goes to any engine, and so does what Envoy cannot bring to an engine of Fairlane's list, since "
            "they refuse connections or are not in the cluster yet. Give each pool a cluster and a route if their "
            "models differ."
        )
    for pool in config.pools:
        if pool.metrics.scheme == "https":
            yield (
                f"Pool {pool.name!r} reads its engines over https (metrics.scheme), and this file sends them requests "
                "in plain HTTP: give the cluster of engines a transport_socket if they want TLS for these too."
            )
    if len({pool.high_first for pool in config.pools if pool.tells_in_body}) > 1:
        yield (
            "Some pools' engines run the highest number first and some the lowest (priority_order): what passes "
            "unscheduled, Fairlane being away, keeps the priority that its client wrote into the body."
        )
    if described.profile in ("standard", "strict") and not described.append and edits_body(config):
        yield (
            "fairlane.yaml wants the body edited (priority_via, aliases or include_usage), and the Lua filter that "
            "does it was left out: bodies reach the engines as they came."
        )


def engine_notes(config: Config) -> tuple[str, ...]:
    """What has to be so for Envoy to find the engines that Fairlane finds. Raises WiringError."""
    return engine_set.of(config.pools).notes


def _reachable(at: Address) -> Address:
    """A service that listens on every address is reached on the loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at[0], at[0]), at[1]  # noqa: S104 - compared, not bound
