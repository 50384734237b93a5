"""What stands in a file of endpoints. Two forms, told apart by their content; each in YAML or JSON.

A list:

    endpoints: [10.0.0.1:8000, "[fd00::2]:8000"]

Envoy's own file of endpoints (EDS by `path_config_source`), so that one file feeds both and they never differ:

    resources:
    - "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
      cluster_name: llama
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 8000}}}

Of Envoy's form all localities and priorities count. An endpoint whose `health_status` is UNHEALTHY, DRAINING or TIMEOUT
does not: Envoy sends it nothing. Names of members may be in snake case or camel case, as in all of protobuf's JSON.

Envoy 1.40 takes a file with one assignment, of the cluster that reads it; it refuses one with more, and passes over one
without any. Both are errors here, so a file for each cluster. An assignment without endpoints is the empty set.
(Tried on the real one: tests/e2e/test_one_file.py.)

JSON is ten times faster to read than YAML, so more of it is taken. `plain_yaml` has what YAML is not taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from extproc.config.units import ip_port, kind, shown
from extproc.engines.endpoints.plain_yaml import PlainYamlError, load
from extproc.engines.endpoints.source import MOST, SourceError

MAX_YAML_BYTES: Final = 1024**2
MAX_JSON_BYTES: Final = 4 * 1024**2
MOST_JSON_VALUES: Final = 300_000  # whose reading stops everything else: Python's parser never lets go in between
_EXCERPT: Final = 200  # characters
_ASSIGNMENT: Final = "envoy.config.endpoint.v3.ClusterLoadAssignment"
_WRAPPED: Final = "envoy.service.discovery.v3.Resource"
_TAKES_NOTHING: Final = {"UNHEALTHY", "DRAINING", "TIMEOUT", 2, 3, 4}  # by name or number of core.v3.HealthStatus


def addresses(data: bytes, cluster: str | None) -> list[str]:
    """The endpoints in a file's bytes, each once, in its order. `cluster`: whose it must be, if not anyone's.
    Raises SourceError, whose message does not name the file."""
    content = _parsed(data)
    if isinstance(content, dict) and "resources" in content:
        found = _of_envoy(content["resources"], cluster)
    elif isinstance(content, dict) and "endpoints" in content:
        found = _of_list(content["endpoints"], "endpoints")
    elif isinstance(content, list):
        found = _of_list(content, "entry")
    else:
        was = "nothing (a set without endpoints is `endpoints: []`)" if content is None else kind(content)
        raise SourceError(
            f"expected `endpoints:` with a list of ip:port, or Envoy's `resources:` with endpoints, found {was}"
        )
    unique: dict[str, None] = {}
    for number, address in enumerate(found):
        if number >= MOST:
            raise SourceError(f"has more than {MOST} endpoints; divide them among pools")
        unique[address] = None
    return list(unique)


def _parsed(data: bytes) -> object:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError("is not UTF-8: is it the right file?") from None
    if text.lstrip()[:1] in ("{", "["):
        if len(data) > MAX_JSON_BYTES:
            raise SourceError(f"is larger than {MAX_JSON_BYTES // 1024**2} MiB: is it the right file?")
        if sum(text.count(mark) for mark in "[{,") > MOST_JSON_VALUES:
            raise SourceError(f"has more than {MOST_JSON_VALUES} values: is it the right file?")
        try:
            return json.loads(text)
        except RecursionError:
            raise SourceError("is nested too deeply: is it the right file?") from None
        except ValueError:
            pass  # YAML may begin like that too
    if len(data) > MAX_YAML_BYTES:
        raise SourceError(
            f"is no JSON, and larger than {MAX_YAML_BYTES // 1024**2} MiB: write so many endpoints as JSON, which is "
            "read ten times faster"
        )
    try:
        return load(text)
    except PlainYamlError as error:
        raise SourceError(str(error)) from None


def _of_list(value: object, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        raise SourceError(f"{where}: expected a list of ip:port, found {kind(value)}")
    for number, each in enumerate(value):
        yield _address(each, f"{where} {number + 1}")


def _of_envoy(value: object, cluster: str | None) -> Iterator[str]:
    resources = _list(value, "resources")
    if len(resources) != 1:
        raise SourceError(
            f"resources: expected one assignment, since Envoy takes no other file, found {len(resources)}"
        )
    resource = _mapping(resources[0], "resource 1")
    type_ = _type(resource)
    if type_ == _WRAPPED:
        resource = _mapping(resource.get("resource"), "resource 1: resource")
        type_ = _type(resource)
    if type_ != _ASSIGNMENT:
        raise SourceError(
            f"resource 1: expected @type type.googleapis.com/{_ASSIGNMENT}, found {type_[:_EXCERPT] or 'none'}"
        )
    name = _member(resource, "cluster_name")
    if not isinstance(name, str) or not name:
        raise SourceError("resource 1: cluster_name is missing")
    if cluster is not None and name != cluster:
        raise SourceError(f"is an assignment of the cluster {name[:_EXCERPT]}, and endpoints.file.cluster is {cluster}")
    yield from _of_assignment(resource)


def _of_assignment(assignment: dict[str, Any]) -> Iterator[str]:
    for at, locality in enumerate(_list(assignment.get("endpoints"), "endpoints")):
        place = f"locality {at + 1}"
        members = _list(_member(_mapping(locality, place), "lb_endpoints"), f"{place}: lb_endpoints")
        for number, each in enumerate(members):
            where = f"{place}, endpoint {number + 1}"
            entry = _mapping(each, where)
            address = _mapping(
                _mapping(entry.get("endpoint"), f"{where}: endpoint").get("address"), f"{where}: address"
            )
            socket = _mapping(_member(address, "socket_address"), f"{where}: socket_address")
            checked = _address(_of_socket(socket, f"{where}: socket_address"), where)
            health = _member(entry, "health_status")
            if not (isinstance(health, str | int) and health in _TAKES_NOTHING):
                yield checked


def _of_socket(socket: dict[str, Any], where: str) -> str:
    ip, port = socket.get("address"), _member(socket, "port_value")
    if not isinstance(ip, str):
        raise SourceError(f"{where}: address: expected text, found {kind(ip)}")
    if not isinstance(port, str | int) or isinstance(port, bool):  # protobuf's JSON has numbers as texts too
        raise SourceError(f"{where}: port_value: expected a number, found {kind(port)}")
    number = port if isinstance(port, str) else shown(port)
    return f"[{ip}]:{number}" if ":" in ip else f"{ip}:{number}"


def _type(resource: dict[str, Any]) -> str:
    type_ = resource.get("@type")
    return type_.rpartition("/")[2] if isinstance(type_, str) else ""


def _member(message: dict[str, Any], name: str) -> Any:
    """By its name in the .proto, or the camel case of protobuf's JSON."""
    first, *rest = name.split("_")
    return message.get(name, message.get(first + "".join(word.capitalize() for word in rest)))


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected a mapping, found {kind(value)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []  # as protobuf has it
    if not isinstance(value, list):
        raise SourceError(f"{where}: expected a list, found {kind(value)}")
    return value


def _address(value: object, where: str) -> str:
    try:
        return ip_port(value)
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from None
