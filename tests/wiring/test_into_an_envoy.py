"""The steps of "Into an Envoy that you have" (envoy/README.md), with the Envoy of a web site and the shipped file."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from doctor_case import ROOT, Envoy, Json, config

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until_answered
from extproc.cli.stack import envoy_binary
from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring
from extproc.wiring.doctor import examine
from extproc.wiring.doctor.finding import Finding, Severity
from extproc.wiring.doctor.source import Source
from extproc.wiring.mesh.pieces import pieces

SECTION = re.split(r"^## ", (ROOT / "envoy" / "README.md").read_text(), flags=re.MULTILINE)
(STEPS,) = [text for text in SECTION if text.startswith("Into an Envoy that you have\n")]
SETTINGS = re.findall(r"^ +\| `(\w+)` \|", STEPS, re.MULTILINE)
(OFF,) = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", STEPS, re.DOTALL)]

COMPANY = """
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 19901 } } }
static_resources:
  listeners:
  - name: site
    address: { socket_address: { address: 127.0.0.1, port_value: 18080 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: site
          stream_idle_timeout: 60s
          common_http_protocol_options: { idle_timeout: 900s, max_stream_duration: 120s }
          access_log:
          - name: envoy.access_loggers.stdout
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
          route_config:
            name: site
            virtual_hosts:
            - name: shop
              domains: [ shop.example.org ]
              routes:
              - match: { prefix: / }
                route: { cluster: web }
            - name: site
              domains: [ "*" ]
              routes:
              - match: { path: /ping }
                direct_response: { status: 200 }
              - match: { prefix: / }
                route: { cluster: web }
          http_filters:
          - name: envoy.filters.http.cors
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors }
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: web
    type: STATIC
    load_assignment:
      cluster_name: web
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18081 } } }
"""
QUEUED = ("queued", "queued-tgi", "queued-uploads")


def joined(leave_out: str = "") -> Json:
    """The company's configuration after the steps, but for one: `clusters`, `filters`, `before`, `off`, `log`,
    `listener`, or the name of a setting."""
    shipped, company = Envoy(), yaml.safe_load(COMPANY)
    listener = company["static_resources"]["listeners"][0]
    manager: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
    shop, site = manager["route_config"]["virtual_hosts"]
    # 1. and 2.
    if leave_out != "clusters":
        company["static_resources"]["clusters"] += [shipped.cluster("fairlane"), shipped.cluster("vllm")]
    if leave_out != "filters":
        manager["http_filters"][-1:-1] = shipped.filters[:-1]
    # 4. before 3.: the company's own are the other routes, and so is what else the engines answer, which is off already
    if leave_out != "off":
        for each in (shop, *site["routes"]):
            each.update(copy.deepcopy(OFF))
    queued = [shipped.route(name) for name in QUEUED]
    direct = {**shipped.route("direct"), "match": {"prefix": "/v1/"}}
    own = site["routes"]
    site["routes"] = [*own, *queued, direct] if leave_out == "before" else [*queued, direct, *own]
    # 5., 6. and 7.
    if leave_out != "log":
        manager["access_log"].append(shipped.log)
    for name in SETTINGS:
        theirs = shipped.manager[name]
        if name != leave_out:
            manager[name] = {**manager.get(name, {}), **theirs} if isinstance(theirs, dict) else theirs
    if leave_out != "common_http_protocol_options":
        del manager["common_http_protocol_options"]["max_stream_duration"]
    if leave_out != "listener":
        listener["tcp_keepalive"] = shipped.listener["tcp_keepalive"]
        company["overload_manager"] = shipped.data["overload_manager"]
    return company


def said(envoy: Json) -> list[Finding]:
    found = examine(Source("envoy.yaml", envoy), config()).findings
    return [each for each in found if each.severity is not Severity.NOTE]


def test_the_steps_name_what_the_shipped_file_has() -> None:
    assert len(SETTINGS) >= 9
    assert set(SETTINGS) <= Envoy().manager.keys()
    assert Envoy().route("direct")["typed_per_filter_config"] == OFF["typed_per_filter_config"]
    assert all(f"`{name}`" in STEPS for name in QUEUED)


@pytest.mark.parametrize(
    "wiring", [Wiring(), Wiring(profile="strict"), Wiring(facts="lua"), Wiring(append=True, unscheduled_priority=1)]
)
def test_the_route_whose_snippet_is_to_be_copied_switches_all_off(wiring: Wiring) -> None:
    parts = pieces(wiring, Addresses())
    direct = next(route for route in parts.routes if route["name"] == "direct")
    assert set(direct["typed_per_filter_config"]) == {each["name"] for each in parts.filters}


def test_the_doctor_finds_nothing_after_the_steps() -> None:
    assert said(joined()) == []
    assert said(yaml.safe_load(COMPANY)), "it needs them"


@pytest.mark.parametrize(
    ("step", "finding"),
    [
        ("clusters", "cluster_unknown"),
        ("filters", "ext_proc_missing"),
        ("before", "path_not_queued"),
        ("off", "body_limit"),
        ("log", "access_log_missing"),
        ("common_http_protocol_options", "max_stream_duration"),
        ("normalize_path", "path_spellings"),
        ("merge_slashes", "path_spellings"),
        ("path_with_escaped_slashes_action", "path_spellings"),
        ("early_header_mutation_extensions", "forged_headers"),
    ],
)
def test_the_doctor_finds_a_step_that_was_left_out(step: str, finding: str) -> None:
    assert finding in {each.id for each in said(joined(step))}


# -- with Envoy --------------------------------------------------------------------------------------


class Web(BaseHTTPRequestHandler):
    """The site's own server: says what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(envoy: Json, place: Path) -> Iterator[int]:
    """Envoy on other ports, before a `Web`, without Fairlane and engines; yields where it listens."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    ports = dict(zip((19901, 18080, 50051, 8001, 8002), free_ports(5), strict=True)) | {18081: web.server_port}
    file = place / "envoy.json"
    file.write_text(re.sub(r'("port_value": )(\d+)', lambda it: f"{it[1]}{ports[int(it[2])]}", json.dumps(envoy)))
    command = [envoy_binary(), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
    child = Child("envoy", list(map(str, command)), log=place / "log", directory=place, env=os.environ)
    child.start()
    try:
        ready = until_answered(HostPort("127.0.0.1", ports[19901]), "/ready")
        asyncio.run(asyncio.wait_for(ready, 30))
        yield ports[18080]
    finally:
        child.kill()
        web.shutdown()
        thread.join()
        web.server_close()


def posted(port: int, path: str, host: str, timeout_s: float) -> tuple[int, bytes]:
    """Raises TimeoutError."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        headers = {"host": host, "content-type": "application/json"}
        connection.request("POST", path, b'{"model": "m"}', headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.e2e
def test_the_site_answers_while_no_fairlane_is_there(tmp_path: Path) -> None:
    with served(joined(), tmp_path) as port:
        for path, host in (("/basket", "shop.example.org"), ("/v1/chat/completions", "shop.example.org"), ("/", "x")):
            assert posted(port, path, host, 30) == (200, b'{"model": "m"}')
        with pytest.raises(TimeoutError):  # held: Envoy asks for Fairlane again and again
            posted(port, "/v1/chat/completions", "x", 1)


@pytest.mark.e2e
def test_envoy_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "envoy.json"  # not YAML written by PyYAML: it leaves the quotes of "n" out, and Envoy reads false
    file.write_text(json.dumps(joined()))
    command = [envoy_binary(), "--mode", "validate", "-c", str(file), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
