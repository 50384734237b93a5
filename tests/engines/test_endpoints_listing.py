"""What may stand in a file of endpoints, and what is said of what may not."""

from __future__ import annotations

import itertools
import json
import random
import time
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.engines.endpoints import listing
from extproc.engines.endpoints.source import MOST, SourceError

TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
ABC = "abcdefghij"


def addresses(content: str | bytes | Any, cluster: str | None = None) -> list[str]:
    if isinstance(content, str):
        content = content.encode()
    return listing.addresses(content if isinstance(content, bytes) else json.dumps(content).encode(), cluster)


def fault(content: str | bytes | Any, cluster: str | None = None) -> str:
    with pytest.raises(SourceError) as error:
        addresses(content, cluster)
    return str(error.value)


def endpoint(ip: object, port: object, health: object = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"endpoint": {"address": {"socket_address": {"address": ip, "port_value": port}}}}
    return entry if health is None else {**entry, "health_status": health}


def assignment(*endpoints: Any, cluster: str = "llama") -> dict[str, Any]:
    return {"@type": TYPE, "cluster_name": cluster, "endpoints": [{"lb_endpoints": list(endpoints)}]}


# -- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "endpoints: [10.0.0.2:8000, '[FD00:0::1]:8000']\n",
        "endpoints:\n- 10.0.0.2:8000\n- '[fd00::1]:8000'\n- 10.0.0.2:8000\n",
        "- 10.0.0.2:8000\n- '[fd00::1]:8000'\n",
        '["10.0.0.2:8000", "[fd00::1]:8000"]',
        '[10.0.0.2:8000, "[fd00::1]:8000"]',  # YAML, though it begins like JSON
        '{"endpoints": ["10.0.0.2:8000", "[fd00::1]:8000"], "comment": "by the deployment"}',
        '\ufeff{"endpoints": ["10.0.0.2:8000", "[fd00::1]:8000"]}',
    ],
)
def test_lists(text: str) -> None:
    assert addresses(text) == ["10.0.0.2:8000", "[fd00::1]:8000"]


@pytest.mark.parametrize("text", ["endpoints: []", "[]", '{"endpoints": []}'])
def test_an_empty_list_is_the_empty_set(text: str) -> None:
    assert addresses(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found nothing (a set without endpoints is `endpoints: []`)"),
        ("# nothing here\n", "found nothing"),
        ("endpoints:\n", "endpoints: expected a list of ip:port, found nothing"),
        ("endpoints: 10.0.0.1:80\n", "endpoints: expected a list of ip:port, found text"),
        ("hello", "expected `endpoints:` with a list of ip:port, or Envoy's `resources:` with endpoints, found text"),
        ("backends: []", "found a mapping"),
        ("5", "found a number"),
        ("endpoints: [10.0.0.1:80, vllm-0:80]", "endpoints 2: 'vllm-0:80' is not ip:port"),
        ("- 10.0.0.1\n", "entry 1: '10.0.0.1' is not ip:port"),
        ("endpoints: [[10.0.0.1:80]]", "is not ip:port"),
        ("endpoints: [10.0.0.1:80", "is neither YAML nor JSON in line 1: did not find expected ',' or ']'"),
        ('{"endpoints": ["10.0.0.1:80", "10.0', "is neither YAML nor JSON in line 1"),
        ("a: !!int ''", "is neither YAML nor JSON"),
        ("a: 2026-99-99", "is neither YAML nor JSON"),
        ("a: !!python/object:os.system x", "is neither YAML nor JSON"),
        (b"\xff\xfe\x00e", "is not UTF-8"),
        (b"\x00\x01\x02", "is neither YAML nor JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("9" * 5000, "is neither YAML nor JSON"),
        ("1" + ":59" * 5000, "has a text with too many colons in line 1: write it as text, in quotes"),
        ("!!int '" + "1" + ":59" * 5000 + "'", "has a text with too many colons in line 1: write it as text"),
        (
            "- &a 10.0.0.1:80\n- *a\n",
            "has an alias (*) in line 2, which is not taken here: write out what it stands for",
        ),
        ("- [a]\n" * 20_000, "has more than 50000 values in YAML: write so many as JSON"),
        ('["a",' + '"b",' * 300_000 + '"c"]', "has more than 300000 values: is it the right file?"),
        ("<html><body>404</body></html>", "found text"),
    ],
)
def test_what_is_no_list(text: str | bytes, words: str) -> None:
    assert words in fault(text)


def test_a_long_entry_is_not_said_whole() -> None:
    assert len(fault(["x" * 10_000])) < 400


def yaml_of_envoy(count: int) -> str:
    lines = [
        f"    - endpoint: {{address: {{socket_address: {{address: 10.0.{i // 250}.{i % 250}, port_value: 80}}}}}}"
        for i in range(count)
    ]
    head = f'resources:\n- "@type": {TYPE}\n  cluster_name: llama\n  endpoints:\n  - lb_endpoints:\n'
    return head + "\n".join(lines)


def bomb() -> str:
    """A list of 9^10 texts in some 300 bytes."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for before, name in itertools.pairwise(ABC):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    return "\n".join([*lines, "endpoints: *j\n"])


@pytest.mark.parametrize(
    "text",
    [
        bomb(),
        # the same by merges, which PyYAML walks itself
        "a: &a {x: 1}\n"
        + "".join(f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}\n" for a, b in itertools.pairwise(ABC)),
        "[" + "1" + ":59" * 300_000 + "]",  # a number in base 60
        "[[],".ljust(4_000_000, "[") + "]",
        "[" + "[]," * 1_390_000 + "[]]",
        "[" + "a," * 500_000 + "]",
        "- " * 400_000,
        "? " * 400_000,
        "# \n" * 340_000,
        "'" + "''" * 500_000 + "'",
    ],
    ids=["aliases", "merges", "base 60", "deep JSON", "JSON", "flow", "deep", "keys", "comments", "quotes"],
)
def test_what_asks_for_much_work_gets_little(text: str) -> None:
    tracemalloc.start()
    try:
        began = time.process_time()
        assert len(fault(text)) < 400
        assert time.process_time() - began < 5.0  # some 0.1 s; unbounded ones take minutes
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_large_ones() -> None:
    many = [f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}:80" for number in range(MOST)]
    assert addresses(many) == many
    assert addresses("".join(f"- {each}\n" for each in many)) == many
    assert "has more than 10000 endpoints" in fault([*many, "11.0.0.1:80"])
    assert "is no JSON, and larger than 1 MiB: write so many endpoints as JSON" in fault("- 10.0.0.1:80\n" * 100_000)
    # Envoy's form in YAML, of as many as it takes
    assert len(addresses(yaml_of_envoy(3000))) == 3000
    assert "has more than 50000 values in YAML: write so many as JSON" in fault(yaml_of_envoy(4000))
    assert "is larger than 4 MiB" in fault('["' + "x" * listing.MAX_JSON_BYTES + '"]')


# -- Envoy's file ---------------------------------------------------------------------------------


def test_envoys_file_in_yaml() -> None:
    text = """
version_info: "7"
resources:
- "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: llama
  endpoints:
  - locality: {zone: a}
    lb_endpoints:
    - endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 8000}}}
      load_balancing_weight: 3
    - endpoint: {address: {socket_address: {address: "FD00:0::1", port_value: 8000}}, hostname: vllm-0}
  - priority: 1
    lb_endpoints:
    - endpoint: {address: {socket_address: {address: 10.0.0.2, port_value: 8000}}}
"""
    assert addresses(text) == ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.2:8000"]


def test_camel_case_and_the_wrapper_of_resources() -> None:
    inner = {
        "@type": TYPE,
        "clusterName": "llama",
        "endpoints": [
            {
                "lbEndpoints": [
                    {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 80}}}},
                    {
                        "endpoint": {"address": {"socketAddress": {"address": "10.0.0.2", "portValue": 80}}},
                        "healthStatus": "DRAINING",
                    },
                ]
            }
        ],
    }
    wrapped = {"@type": "type.googleapis.com/envoy.service.discovery.v3.Resource", "name": "llama", "resource": inner}
    assert addresses({"resources": [inner]}) == ["10.0.0.1:80"]
    assert addresses({"resources": [wrapped]}) == ["10.0.0.1:80"]


@pytest.mark.parametrize(
    ("health", "counts"),
    [
        ("UNKNOWN", True),
        ("HEALTHY", True),
        ("DEGRADED", True),
        (0, True),
        (1, True),
        (5, True),
        ("UNHEALTHY", False),
        ("DRAINING", False),
        ("TIMEOUT", False),
        (2, False),
        (3, False),
        (4, False),
    ],
)
def test_health(health: object, counts: bool) -> None:
    found = addresses({"resources": [assignment(endpoint("10.0.0.1", 80, health))]})
    assert found == (["10.0.0.1:80"] if counts else [])


@pytest.mark.parametrize("endpoints", [None, [], [{}], [{"lb_endpoints": []}]])
def test_an_assignment_without_endpoints_is_the_empty_set(endpoints: Any) -> None:
    assert addresses({"resources": [{"@type": TYPE, "cluster_name": "llama", "endpoints": endpoints}]}) == []
    assert addresses({"resources": [{"@type": TYPE, "cluster_name": "llama"}]}) == []


def test_the_cluster_may_have_to_be_a_certain_one() -> None:
    file = {"resources": [assignment(endpoint("10.0.0.1", 80))]}
    assert addresses(file, "llama") == ["10.0.0.1:80"]
    assert fault(file, "qwen") == "is an assignment of the cluster llama, and endpoints.file.cluster is qwen"


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ([], "resources: expected one assignment, since Envoy takes no other file, found 0"),
        (None, "resources: expected one assignment, since Envoy takes no other file, found 0"),
        ([assignment(), assignment(cluster="qwen")], "Envoy takes no other file, found 2"),
        ({}, "resources: expected a list, found a mapping"),
        (["x"], "resource 1: expected a mapping, found text"),
        ([{"cluster_name": "a"}], f"resource 1: expected @type {TYPE}, found none"),
        ([{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"}], "found envoy.config.cluster.v3.Cluster"),
        ([{"@type": TYPE}], "resource 1: cluster_name is missing"),
        ([{"@type": TYPE, "cluster_name": "a", "endpoints": [5]}], "locality 1: expected a mapping, found a number"),
        ([assignment(endpoint("vllm-0", 80))], "locality 1, endpoint 1: 'vllm-0:80' is not ip:port"),
        ([assignment(endpoint("10.0.0.1", 0))], "'10.0.0.1:0' is not ip:port"),
        ([assignment(endpoint("10.0.0.1", None))], "socket_address: port_value: expected a number, found nothing"),
        ([assignment(endpoint("10.0.0.1", True))], "port_value: expected a number, found true or false"),
        ([assignment(endpoint("10.0.0.1", [80]))], "port_value: expected a number, found a list"),
        ([assignment(endpoint("10.0.0.1", 10**400))], "'10.0.0.1:a number' is not ip:port"),
        ([assignment(endpoint(5, 80))], "endpoint 1: socket_address: address: expected text, found a number"),
        ([{"@type": [TYPE]}], f"resource 1: expected @type {TYPE}, found none"),
        ([assignment({"endpoint": {"address": {"pipe": {"path": "/x"}}}})], "socket_address: expected a mapping"),
        ([assignment({"endpoint_name": "x"})], "locality 1, endpoint 1: endpoint: expected a mapping, found nothing"),
    ],
)
def test_what_is_no_file_of_envoys(resources: Any, words: str) -> None:
    assert words in fault({"resources": resources})


# -- anything -------------------------------------------------------------------------------------

_MEMBERS = ["resources", "endpoints", "@type", "cluster_name", "lb_endpoints", "endpoint", "address", "socket_address"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_MEMBERS), inner, max_size=4),
    max_leaves=20,
)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(derandomize=True, deadline=None)
@example(b"endpoints: &a [*a]")
def test_any_bytes_are_a_set_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(listing.addresses(data, None), list)
    except SourceError as error:
        assert str(error)


@given(_JSON)
@settings(derandomize=True, deadline=None)
def test_any_content_is_a_set_or_an_error(content: Any) -> None:
    try:
        assert isinstance(listing.addresses(json.dumps(content).encode(), None), list)
    except SourceError as error:
        assert str(error)


def test_a_file_that_is_cut_anywhere_is_a_shorter_list_or_an_error() -> None:
    whole = [f"10.0.0.{number}:8000" for number in range(1, 9)]
    content = {"resources": [assignment(*(endpoint(f"10.0.0.{number}", 8000) for number in range(1, 9)))]}
    for text in (json.dumps(content), yaml.safe_dump(content), yaml.safe_dump({"endpoints": whole})):
        for end in sorted(random.Random(5).sample(range(len(text)), 60)):
            try:
                found = addresses(text[:end])
            except SourceError:
                continue
            assert found[:-1] == whole[: max(len(found) - 1, 0)]  # a cut port may be a port
