"""What can be chosen together, and what is said of the rest; and what follows from fairlane.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.config.load import ConfigError, from_data
from extproc.config.requests import QUEUED_PATHS
from extproc.wiring import derive
from extproc.wiring.description import Wiring, WiringError, minor_version


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"profile": "open"}, "profile: there is no 'open'; there are standard, strict, body, duplex"),
        ({"usage": "log"}, "usage: there is no 'log'; there are access_log, stream, estimate"),
        ({"facts": "yaml"}, "facts: there is no 'yaml'; there are json, lua, none"),
        ({"facts": "none"}, "facts none: in the profile standard the body stays in Envoy.*take facts json"),
        ({"facts": "none", "profile": "strict"}, "facts none: in the profile strict"),
        ({"facts": "json", "profile": "duplex"}, "facts json: it would hold the whole body.*take the profile body"),
        ({"append": True, "profile": "body"}, "append: in the profile body Fairlane itself edits the body"),
        ({"append": True, "profile": "duplex"}, "append: in the profile duplex Fairlane itself edits the body"),
        ({"envoy": 35}, r"Envoy 1\.35: configurations are made and tested for 1\.36 to 1\.40"),
        ({"envoy": 41}, r"Envoy 1\.41: .*for a later Envoy take the last of these"),
        ({"queued": ()}, "queued: name at least one path"),
        ({"queued": ("/" + "x" * 80,)}, r"queued: '/x+'\.\.\. is longer than 80 bytes.*write its end as \*/"),
    ],
)
def test_what_cannot_be_names_cause_and_cure(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        Wiring(**choices)


@pytest.mark.parametrize(("text", "minor"), [("1.40", 40), ("1.40.0", 40), ("v1.36.4", 36), (" 1.38 ", 38)])
def test_versions(text: str, minor: int) -> None:
    assert minor_version(text) == minor


@pytest.mark.parametrize("text", ["", "1", "40", "2.40", "1.40.0.1", "1.x", "1.40-dev", "1.4000"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(WiringError, match="is no version of Envoy: expected one like"):
        minor_version(text)


@pytest.mark.parametrize(
    ("choices", "oldest"),
    [
        ({}, 38),
        ({"envoy": 37}, 37),
        ({"envoy": 36}, 36),
        ({"usage": "stream"}, 37),
        ({"usage": "estimate"}, 37),
        ({"envoy": 36, "usage": "stream"}, 36),
    ],
)
def test_the_first_envoy_that_takes_it(choices: dict[str, Any], oldest: int) -> None:
    assert Wiring(**choices).oldest_envoy == oldest


# -- from fairlane.yaml ---------------------------------------------------------------------------

POOL = {"name": "a", "models": ["m"], "endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"]}
OTHER = {"name": "b", "models": ["k"], "endpoints": ["10.0.0.3:8000", "10.0.0.1:8000"]}


def config(pools: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    return from_data({"pools": pools or [POOL], **more})


def test_defaults_of_both_agree() -> None:
    assert derive.wiring(config()) == Wiring(namespaces=())
    assert Wiring().queued == QUEUED_PATHS
    assert list(derive.notes(config(), derive.wiring(config()))) == []


def test_engines_and_the_address_of_fairlane() -> None:
    at = derive.addresses(config([POOL, OTHER], listen={"ext_proc": "0.0.0.0:6000"}))
    assert list(at.engines) == [("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.3", 8000)]
    assert list(at.ext_proc) == [("127.0.0.1", 6000)]
    assert list(derive.addresses(config(), ext_proc=[("f", 1)]).ext_proc) == [("f", 1)]


@pytest.mark.parametrize(
    ("via", "append", "header"),
    [("header", False, True), ("body", True, False), ("both", True, True), ("off", False, False)],
)
def test_the_way_of_the_priority(via: str, append: bool, header: bool) -> None:
    found = derive.wiring(config([{**POOL, "priority_via": via}]))
    assert found.append == append
    assert found.default_priority == (1_000_000 if header else None)
    assert not derive.wiring(config([{**POOL, "priority_via": via}]), profile="body").append


def test_one_pool_in_many_is_enough_for_the_body_edit() -> None:
    pools = [POOL, {**OTHER, "priority_via": "body"}]
    found = derive.wiring(config(pools))
    assert (found.append, found.default_priority) == (True, 1_000_000)
    (note,) = derive.notes(config(pools), found)
    assert note.startswith("There are 2 pools and one cluster of engines")
    assert "of Fairlane's list" in note  # also while it is there


def test_aliases_and_engines_that_read_the_body_need_the_body_edit() -> None:
    assert derive.wiring(config([{**POOL, "aliases": {"x": "m"}}])).append
    assert derive.wiring(config([{**POOL, "engine": "sglang"}])).append
    assert not derive.wiring(config([{**POOL, "engine": "vllm"}])).append


def test_envoy_chooses_only_where_every_pool_lets_it() -> None:
    by_envoy = {"pick": {"by": "envoy"}}
    same = {**OTHER, "endpoints": POOL["endpoints"][::-1]}
    assert derive.wiring(config([{**POOL, **by_envoy}, {**same, **by_envoy}])).pick == "envoy"
    assert derive.wiring(config([{**POOL, **by_envoy}, same])).pick == "mixed"
    assert derive.wiring(config([POOL, OTHER])).pick == "fairlane"


@pytest.mark.parametrize(
    "endpoints", [OTHER["endpoints"], {"dns": {"name": "k.example", "port": 8000}}, {"file": "/k.yaml"}], ids=str
)
@pytest.mark.parametrize("by", [("envoy", "fairlane"), ("fairlane", "envoy"), ("envoy", "envoy")], ids="-".join)
def test_envoys_balancing_would_mix_the_engines_of_pools(endpoints: Any, by: tuple[str, str]) -> None:
    """There is one cluster: what waits for one model would reach engines of the other."""
    first, second = by
    pools = [{**POOL, "pick": {"by": first}}, {**OTHER, "endpoints": endpoints, "pick": {"by": second}}]
    with pytest.raises(ConfigError, match=r"pick\.by is envoy, and .* has other endpoints.*Take pick\.by fairlane"):
        config(pools)


def test_usage_that_is_asked_for_in_the_clients_place_needs_the_body_edit() -> None:
    wants = config(requests={"include_usage": "inject"})
    assert derive.wiring(wants).append
    without = derive.wiring(wants, append=False)
    assert not without.append
    (note,) = derive.notes(wants, without)
    assert "the Lua filter that does it was left out" in note


def test_sizes_paths_identity_and_preemption() -> None:
    found = derive.wiring(
        config(
            requests={"queued": ["/x", "*/y"], "max_body": "1MiB"},
            classes={"a": {"rank": 0, "priority": 3, "preemptible": True}},
            default_class="a",
            identity={
                "tenant": [
                    {"certificate": {"which": "dns_san"}},
                    {"metadata": {"namespace": "my.auth", "path": ["sub"]}},
                    {"header": "x-tenant"},
                ],
                "class": [{"certificate": {"which": "sha256"}}],
            },
        ),
        usage="estimate",
    )
    assert found == Wiring(
        usage="estimate",
        first_byte=True,
        queued=("/x", "*/y"),
        max_body=1024**2,
        default_priority=3,
        attributes=("connection.dns_san_peer_certificate", "connection.sha256_peer_certificate_digest"),
        namespaces=("my.auth",),
    )
