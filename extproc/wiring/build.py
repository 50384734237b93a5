"""A complete Envoy configuration out of a description and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extproc.config.cluster import Mode
from extproc.wiring import base_file, engine_set, fairlane_tls, steps
from extproc.wiring.base_file import EnvoyFileError
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.engine_set import EndpointFile, Lookup
from extproc.wiring.parts import EXT_PROC, FAIRLANE, ROUTER, Address, Data, Parts, is_ip, named, unshared

_STEPS = (
    steps.profile,
    steps.facts,
    steps.identity,
    steps.spread,
    steps.append,
    steps.usage,
    steps.first_byte,
    steps.retries,
    steps.pick,
    steps.routes,
    steps.words,
)
_FOUND = "health checks find the one that is stopping or frozen, and what is healthy gets everything, however few"
_SEVERAL: dict[Mode, str] = {
    "single": f"Several replicas of Fairlane: {_FOUND}.",
    "standby": "Several replicas of Fairlane, of which one serves (cluster.mode standby): health checks find that one, "
    "which gets every request; while none says that it serves, all are asked.",
    "partition": f"Several replicas of Fairlane, each for some models (cluster.mode partition): {_FOUND}.",
    "shared": f"Several replicas of Fairlane with one order (cluster.mode shared): {_FOUND}.",
}
# Requests are spread over the replicas by this header: Envoy sets it on every request.
_PIN = "x-request-id"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything is. The defaults are those of the base file and of `fairlane.yaml`."""

    listener: Address = ("127.0.0.1", 10_000)
    admin: Address = ("127.0.0.1", 9_901)
    ext_proc: Sequence[Address] = (("127.0.0.1", 50_051),)  # one for each replica of Fairlane
    engines: Sequence[Address] = (("127.0.0.1", 8_001), ("127.0.0.1", 8_002))  # IPs, and names to be looked up
    lookup: Lookup | None = None  # of names among the engines; None: Envoy's own
    file: EndpointFile | None = None  # where the engines are, in place of `engines`
    fairlane_tls: FairlaneTls | None = None  # how Envoy speaks to Fairlane; None: in plain text

    def __post_init__(self) -> None:
        if not self.engines and self.file is None:
            raise ValueError("at least one engine is needed")
        if not self.ext_proc:
            raise ValueError("at least one address of Fairlane is needed")


@dataclass(frozen=True, slots=True)
class Built:
    """`differs`: from the base file, and why; `degraded`: what is done another way since this Envoy lacks it."""

    config: Data
    differs: tuple[str, ...]
    degraded: tuple[str, ...]


def build(wiring: Wiring, addresses: Addresses, source: Path | None = None) -> Built:
    """`source`: another base file than the shipped one. Raises EnvoyFileError and WiringError."""
    if wiring.profile == "strict" and wiring.envoy <= 36 and len(addresses.ext_proc) > 1:
        raise WiringError(
            f"profile strict with several replicas of Fairlane: Envoy 1.{wiring.envoy} cannot bring both filters to "
            "the same replica (a cluster's hash_policy came with 1.37); take one replica, or a later Envoy"
        )
    if len(addresses.ext_proc) < 2:
        _check_alone(wiring)
    parts, source = _base(addresses, source)
    try:
        differs = [text for step in _STEPS for text in step(parts, wiring)]
        differs += engine_set.apply(parts, addresses.lookup, addresses.file)
        degraded = list(steps.version(parts, wiring))
        parts.set_endpoints(parts.fairlane, addresses.ext_proc)
        differs += fairlane_tls.apply(parts, addresses.fairlane_tls, addresses.ext_proc)
        if len(addresses.ext_proc) > 1:
            differs += _several(parts, wiring)
    except (KeyError, IndexError, TypeError) as error:
        raise _form(source, error) from error
    return Built(parts.config, tuple(differs), tuple(degraded))


def without_fairlane(addresses: Addresses, source: Path | None = None) -> Data:
    """Envoy as it would be without Fairlane, for comparison: no filters, no access log, round robin over the engines.

    Raises EnvoyFileError."""
    parts, source = _base(addresses, source)
    try:
        list(engine_set.apply(parts, addresses.lookup, addresses.file))
        parts.filters[:] = [named(parts.filters, ROUTER)]
        del parts.manager["access_log"]
        for route in parts.routes:
            for ours in ("typed_per_filter_config", "request_headers_to_add", "response_headers_to_add"):
                route.pop(ours, None)
        # Envoy's own default, round robin. The fallback, least request, spreads a burst less evenly: one engine then
        # runs dry before the other, and a comparison would flatter Fairlane.
        del parts.engines["load_balancing_policy"]
        parts.clusters.remove(parts.fairlane)
    except (KeyError, IndexError, TypeError) as error:
        raise _form(source, error) from error
    return parts.config


def _base(addresses: Addresses, source: Path | None) -> tuple[Parts, Path]:
    source = source or base_file.path()
    config = unshared(base_file.load(source))
    try:
        parts = Parts(config)
        parts.set_address(config["admin"], addresses.admin)
        parts.set_address(parts.listener, addresses.listener)
        parts.set_endpoints(parts.engines, addresses.engines)
        if not parts.has(EXT_PROC):
            raise KeyError(f"nothing is named {EXT_PROC!r}")
        named(parts.clusters, FAIRLANE)
    except (KeyError, IndexError, TypeError) as error:
        raise _form(source, error) from error
    return parts, source


def _check_alone(wiring: Wiring) -> None:
    """Raises WiringError for what makes no sense with one address of Fairlane."""
    why = None
    if wiring.mode == "standby":
        why = "cluster mode standby: Envoy asks each replica whether it is the one that serves"
    elif wiring.spread_used == "model":
        why = "spread model: there is nothing to spread over"
    elif wiring.mode == "shared" and wiring.usage == "access_log":
        why = "cluster mode shared: each replica needs an access log of its own"
    elif wiring.mode == "shared" and wiring.profile == "strict":
        why = "cluster mode shared: both filters of the profile strict must reach the same replica"
    if why is not None:
        raise WiringError(
            f"{why}, and there is one address of Fairlane; give each replica's own (--ext-proc host:port, as often as "
            "there are replicas; of a StatefulSet the names of its pods)"
        )


def _several(parts: Parts, wiring: Wiring) -> list[str]:
    """More than one replica of Fairlane."""
    parts.fairlane["health_checks"] = [
        {
            "timeout": "1s",
            "interval": "1s",
            # Without it an idle replica is asked every 60 s only.
            "no_traffic_interval": "1s",
            "unhealthy_threshold": 2,
            "healthy_threshold": 1,
            "grpc_health_check": {},
        }
    ]
    parts.fairlane["common_lb_config"] = {
        # With fewer healthy ones than 50 %, the default, Envoy would ask all of them, standbys too. At 0 it would
        # refuse what is held while all are away (`no_healthy_upstream`); at 1 it asks all of them then.
        "healthy_panic_threshold": {"value": 1},
        # Else Envoy's workers learn of a replica that is down up to a second later than its health checks do.
        "update_merge_window": "0s",
    }
    said = [_SEVERAL[wiring.mode]]
    said += _log_of_each(parts)
    pins: list[tuple[str, str]] = []
    if wiring.spread_used == "model":
        pins.append(("x-fairlane-spread", "%DYNAMIC_METADATA(fairlane.spread:model)%"))
        said.append(
            "Each model's requests go to one replica, by a hash of the name that fairlane.spread.lua has made fit for "
            "a header; when that replica is down, to the next one. What has no model in a JSON body goes to any."
        )
    if wiring.profile == "strict":
        pins.append((_PIN, f"%REQ({_PIN})%"))
        said.append(
            "fairlane.hold and fairlane.track reach the same replica by a hash of "
            + (_PIN if len(pins) == 1 else f"the model, or of {_PIN} where there is none")
            + "."
        )
    if pins:
        _pin(parts, pins)
    return said


def _pin(parts: Parts, pins: Sequence[tuple[str, str]]) -> None:
    """Choose the replica by a hash of the first of these headers of the call to Fairlane that is there."""
    parts.fairlane["lb_policy"] = "RING_HASH"
    replicas = parts.fairlane["load_assignment"]["endpoints"][0]["lb_endpoints"]
    if not any(is_ip(each["endpoint"]["address"]["socket_address"]["address"]) for each in replicas):
        # A pod has the same name after a restart, and another address, which would give its models to others.
        parts.fairlane["common_lb_config"]["consistent_hashing_lb_config"] = {"use_hostname_for_hashing": True}
    for each in parts.ext_procs:
        service = each["typed_config"]["grpc_service"]
        service["initial_metadata"] = [
            *service.get("initial_metadata", []),
            *({"key": name, "value": value} for name, value in pins),
        ]
    # Of the cluster: a route's hash policy says where its own requests go, not those of its filters.
    (options,) = parts.fairlane["typed_extension_protocol_options"].values()
    policies: list[Data] = [{"header": {"header_name": name}} for name, _ in pins]
    for each in policies[:-1]:
        each["terminal"] = True  # else the hashes of all of them are mixed
    options["hash_policy"] = policies


def _log_of_each(parts: Parts) -> list[str]:
    """Envoy's log chooses a replica when it opens its stream, and stays with it: with one log half of the requests
    would be told to a replica that did not release them."""
    logs = parts.manager.get("access_log")
    if not logs:
        return []
    (log,) = logs
    replicas = parts.fairlane["load_assignment"]["endpoints"][0]["lb_endpoints"]
    parts.manager["access_log"] = []
    for number, endpoint in enumerate(replicas, 1):
        name = f"{FAIRLANE}-log-{number}"
        cluster, own = unshared(parts.fairlane), unshared(log)
        cluster["name"] = cluster["load_assignment"]["cluster_name"] = name
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": [unshared(endpoint)]}]
        del cluster["health_checks"], cluster["common_lb_config"]  # no other one could take the entries
        parts.clusters.append(cluster)
        own["name"] = name
        own["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = name
        parts.manager["access_log"].append(own)
    return ["Each replica gets the access log, by a cluster of its own: the one that released a request counts it."]


def _form(source: Path, error: Exception) -> EnvoyFileError:
    return EnvoyFileError(f"{source}: has not the expected form: {type(error).__name__} {error}")
