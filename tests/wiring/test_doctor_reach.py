"""Routes of a site behind the same listener: one that no queued path reaches is no engine's, and one that asks Fairlane
all the same has one finding, with the cure for it."""

from __future__ import annotations

from typing import Any

import pytest
from doctor_case import Envoy, Json, apply, config, findings, pool
from envoy_data_plane.envoy.config.route.v3 import RouteMatch

from extproc.wiring.doctor.reach import reached

CHAT = "/v1/chat/completions"
ONE = config(requests={"queued": [CHAT]})
FILTERS = ["fairlane.facts", "envoy.filters.http.ext_proc", "fairlane.usage.sse", "fairlane.usage.json"]


def with_site(**route: Any) -> Envoy:
    """The queued route alone, and behind it one to a cluster that is as clusters are by default."""
    envoy = Envoy()
    where = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 8080}}}
    site: Json = {"name": "web", "type": "STATIC", "connect_timeout": "1s"}
    site["load_assignment"] = {"cluster_name": "web", "endpoints": [{"lb_endpoints": [{"endpoint": where}]}]}
    envoy.data["static_resources"]["clusters"].append(site)
    queued = {**envoy.route(), "match": {"path": CHAT}}
    envoy.host["routes"] = [queued, {"match": {"prefix": "/"}, "route": {"cluster": "web"}, **route}]
    return envoy


@pytest.mark.slow
def test_a_site_has_one_finding_and_its_time_outs_stay() -> None:
    envoy = with_site()
    (found,) = findings(envoy, ONE)
    assert (found.id, found.severity.value) == ("ext_proc_not_needed", "warning")
    assert found.where.endswith(".routes[1]")
    apply(envoy, found)
    assert findings(envoy, ONE) == []
    site = envoy.host["routes"][1]
    assert site["route"] == {"cluster": "web"}
    assert list(site["typed_per_filter_config"]) == FILTERS


def test_filters_of_others_stay_on() -> None:
    """What is off already is not named either."""
    envoy = with_site()
    kind = "type.googleapis.com/envoy.extensions.filters.http"
    envoy.filters.insert(0, {"name": "cors", "typed_config": {"@type": f"{kind}.cors.v3.Cors"}})
    off = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
    envoy.host["routes"][1]["typed_per_filter_config"] = {"fairlane.facts": off}
    (found,) = findings(envoy, ONE)
    apply(envoy, found)
    assert list(envoy.host["routes"][1]["typed_per_filter_config"]) == FILTERS
    assert "cors" not in found.fix
    assert "fairlane.facts" not in found.fix


def test_an_entry_that_is_there_is_to_be_replaced() -> None:
    processor = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    more = {"envoy.filters.http.ext_proc": {"@type": processor, "overrides": {}}}
    (found,) = findings(with_site(typed_per_filter_config=more), ONE)
    assert [line.split(":")[0].strip() for line in found.fix.splitlines() if "in place of" in line] == list(more)


def test_a_route_that_a_queued_path_reaches_is_an_engine_s() -> None:
    """The same site, with a second queued path that falls to it."""
    two = config(requests={"queued": [CHAT, "/v1/completions"]})
    found = {each.id for each in findings(with_site(), two)}
    assert {"route_timeout", "body_limit", "endpoints_differ", "engine_circuit_breaker"} <= found
    assert "ext_proc_not_needed" not in found


def test_nothing_at_all_is_reached() -> None:
    """fairlane.yaml has nothing that the routes take."""
    other = config(requests={"queued": ["/v2/mine"]})
    envoy = Envoy()
    envoy.host["routes"].remove(envoy.route("direct"))
    found = findings(envoy, other)
    assert [each.id for each in found] == ["nothing_queued", *["ext_proc_not_needed"] * 3]
    assert found[0].what == "no path of requests.queued reaches a route with envoy.filters.http.ext_proc on"


WILD = f"*{CHAT}"
CHAT_ROUTE = {"path": CHAT}


@pytest.mark.parametrize(
    ("queued", "matches", "expected"),
    [
        (CHAT, [CHAT_ROUTE, {"prefix": "/"}], [True, False]),
        (CHAT, [{"prefix": "/"}, CHAT_ROUTE], [True, False]),
        (CHAT, [{"prefix": "/v1/chat"}, {"prefix": "/v2"}], [True, False]),
        (CHAT, [{"pathSeparatedPrefix": "/v1/chat"}, {"pathSeparatedPrefix": "/v1/ch"}], [True, False]),
        (CHAT, [{"safeRegex": {"regex": "/v1/(chat/)?completions"}}, {"safeRegex": {"regex": "/w.*"}}], [True, False]),
        # what only a request can tell neither takes a path away nor keeps a route from it
        (CHAT, [{**CHAT_ROUTE, "headers": [{"name": "x-a", "presentMatch": True}]}, {"prefix": "/"}], [True, True]),
        (
            CHAT,
            [{**CHAT_ROUTE, "headers": [{"name": ":method", "stringMatch": {"exact": "GET"}}]}, {"prefix": "/"}],
            [False, True],
        ),
        (CHAT, [{"pathMatchPolicy": {"name": "template"}}], [True]),
        (CHAT, [{"connectMatcher": {}}], [False]),
        # any prefix
        (WILD, [CHAT_ROUTE, {"prefix": "/"}], [True, True]),
        (WILD, [{"safeRegex": {"regex": f".*{CHAT}"}}, {"prefix": "/"}], [True, False]),
        (WILD, [{"safeRegex": {"regex": f".*{CHAT}"}}, {"safeRegex": {"regex": "/cart/[0-9]+"}}], [True, False]),
        (WILD, [{"safeRegex": {"regex": f"/[a-z]+{CHAT}"}}, {"prefix": "/"}], [True, True]),
        (WILD, [{"prefix": "/team-a/"}, {"path": "/team-b"}], [True, False]),
        (WILD, [{"path": f"/team-a{CHAT}"}, {"pathSeparatedPrefix": "/team-b"}], [True, True]),
        (WILD, [{"prefix": "/team-a/v1/chat"}], [True]),
        (WILD, [{"safeRegex": {"regex": "/team-[ab]/.*"}}], [True]),
        (WILD, [{"prefix": "/a"}, {"path": f"/a{CHAT}"}], [True, False]),
    ],
)
def test_reached(queued: str, matches: list[Json], expected: list[bool]) -> None:
    assert reached([RouteMatch.from_dict(each) for each in matches], [queued]) == expected


def test_what_would_be_held_once_a_pool_enforces() -> None:
    def said(mode: str) -> str:
        envoy = Envoy()
        envoy.ext_proc["message_timeout"] = "1s"
        envoy.cluster("vllm")["circuit_breakers"]["thresholds"][0]["max_requests"] = 5
        found = findings(envoy, config(pools=pool(mode=mode)))
        assert {each.id for each in found} == {"message_timeout", "engine_circuit_breaker"}
        return " ".join(each.what for each in found)

    assert said("observe").count("once a pool is in mode enforce") == 2
    assert "once" not in said("enforce")
