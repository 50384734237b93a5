"""A configuration that has every key, with another value than the default; and what tests do with variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from extproc.config.environment import Environment
from extproc.config.load import FileData
from extproc.config.model import Config
from extproc.config.schema import is_list, is_mapping_by_name, section_of, step

DIGEST = "0123456789abcdef" * 4

# All but what excludes each other: of sources and endpoints each kind stands in an entry of its own.
FULL: dict[str, Any] = yaml.safe_load(
    f"""
listen:
  ext_proc: 0.0.0.0:6001
  admin: unix:/run/fairlane/admin.sock
  http: "[::1]:6003"
  ext_proc_tls: {{certificate: a.pem, key: a.key, client_ca: ca.pem}}
  http_tls: {{certificate: b.pem, key: b.key, client_ca: ca.pem}}
admin:
  state: /s/state.db
  tls: {{certificate: c.pem, key: c.key, client_ca: ca.pem}}
  tokens_file: /s/tokens
  certificates: [{{san: "spiffe://a/*", role: viewer}}]
  keep_revisions: 11
  keep_audit: 101
identity:
  tenant:
    - metadata: {{namespace: n, path: [a, b]}}
    - metadata: {{namespace: n, paths: [[a], [b]]}}
    - certificate: {{which: dns_san, pattern: "(a+)"}}
    - api_key: {{header: x-key, sha256: {{{DIGEST}: a}}}}
    - api_key: {{header: x-key, file: /s/keys}}
    - header: x-a
  class:
    - metadata: {{namespace: n, path: [c]}}
    - certificate: {{which: subject, pattern: "(b)"}}
    - api_key: {{header: x-key, file: /s/keys}}
    - path: {{/v1/embeddings: b}}
    - model: {{"big-*": b}}
    - header: x-b
  anonymous: nobody
  separator: "/"
classes:
  a: {{rank: 0, priority: 1}}
  b:
    rank: 1
    priority: 1000
    queue_timeout: 61s
    max_waiting: 4
    max_queued: 9
    max_queued_bytes: 1KiB
    max_queued_tokens: 8
    max_in_flight: 7
    min_share: 0.25
    overflow: reject_newest
    order: deadline
    promote_after: 2m
    headroom: 0.5
    when: idle
    hopeless: refuse
    gates: {{max_waiting: 2, max_tpot: 1s, max_kv_usage: 0.5, max_ttft: 2s}}
    preemptible: true
    preempt_after: 3s
    wait_objective: 4s
default_class: a
tenants:
  t:
    weight: 2
    boost: 3
    max_queued: 5
    max_queued_bytes: 2KiB
    max_queued_tokens: 6
    max_in_flight: 7
    rate: 8
    rate_burst: 9
    burst: 10
    parent: u
    default_class: b
    classes: [a, b]
pools:
  - name: one
    models: [m, n]
    aliases: {{gpt: m}}
    adapters: [x]
    endpoints: [10.0.0.1:80, 10.0.0.2:80]
    engine: vllm
    priority_via: body
    priority_order: high_first
    pick: {{by: envoy, load: 2, prefix: 3, adapter: 4, session: 5, kv_usage: 6}}
    session_header: x-s
    no_endpoint_timeout: 1m
    metrics:
      interval: 300ms
      idle_interval: 5s
      timeout: 2s
      scheme: https
      path: /m
      port: 81
      token_file: /s/token
      tls: {{ca: ca.pem, certificate: d.pem, key: d.key, server_name: e.internal}}
    window:
      controller: fixed
      start: 9
      max_tpot: 1s
      max_kv_usage: 0.5
      overtake: 2
      outage: hold
      max_num_seqs: 10
      threshold: 11
      fixed: 12
      stalled_after: 1m
    cost: {{unit: time, prompt: 2, cached: 3, output: 4}}
    max_queued: 13
    max_queued_bytes: 3KiB
    promote_every: 14
    priority_steps: 15
    prefix_slack: 16
    preemption: {{per_second: 17, after_first_byte: true}}
    mode: observe
    percentage: 18
    percentage_of: requests
    traffic: paused
requests:
  queued: [/a]
  malformed: reject
  unknown_model: reject
  max_body: 1MiB
  max_buffered: 4MiB
  include_usage: inject
on_fault: reject
shutdown: {{grace: 31s, held: finish}}
recording: {{file: /r/f.gz, directory: /r, max_size: 1MiB, keep: 5, tenants: hashed}}
telemetry:
  enabled: false
  tenants: {{top: 11, names: [t]}}
  log: {{slow_after: 11s, refused: false, lines_per_second: 21}}
  traces: {{otlp: "http://c:4317", protocol: http, sample: 0.5}}
  page: false
cluster:
  mode: standby
  name: c
  replica: r
  replicas: 3
  period: 200ms
  timeout: 600ms
  lease: 4s
  store:
    addresses: [10.0.0.3:26379]
    kind: sentinel
    sentinel_name: s
    database: 1
    username: u
    password_file: /s/store
    sentinel_password_file: /s/sentinel
    tls: {{ca: ca.pem, certificate: f.pem, key: f.key, name: store.internal}}
"""
)
# What cannot be together with the above: (place of a section, what stands there).
OTHERS: list[tuple[tuple[str | int, ...], Any]] = [
    (("pools", 0, "endpoints"), {"dns": {"name": "e.svc", "port": 80, "record": "aaaa", "interval": "6s"}}),
    (("pools", 0, "endpoints", "dns", "max_interval"), "61s"),
    (("pools", 0, "endpoints", "dns", "timeout"), "6s"),
    (("pools", 0, "endpoints", "dns", "resolver"), "10.0.0.53:53"),
    (("pools", 0, "endpoints"), {"file": {"path": "/f", "cluster": "c"}}),
    (("pools", 0, "endpoints"), {"static": ["10.0.0.1:80", "10.0.0.3:80"]}),
    (("pools", 0, "endpoints"), {"kubernetes": {"service": "s", "namespace": "n", "port": "http"}}),
    (("pools", 0, "endpoints", "kubernetes", "kubeconfig"), "/k"),
    (("pools", 0, "endpoints", "kubernetes", "context"), "x"),
    (("pools", 0, "endpoints"), {"kubernetes": {"selector": "app=a"}}),
    (("pools", 0, "metrics", "tls"), {"insecure_skip_verify": True}),
    (("requests", "max_streams"), 1000),
]


def put(data: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy of `data` with the value at a place."""
    if not place:
        return value
    if isinstance(data, list):
        index = int(place[0])
        return [*data[:index], put(data[index], place[1:], value), *data[index + 1 :]]
    return {**data, place[0]: put(data.get(place[0]), place[1:], value)}


def taken_out(data: Any, place: tuple[str | int, ...]) -> Any:
    """A copy of `data` without what stands at a place."""
    key, rest = place[0], place[1:]
    if isinstance(data, list):
        index = int(key)
        return [*data[:index], *([taken_out(data[index], rest)] if rest else []), *data[index + 1 :]]
    inside = {key: taken_out(data[key], rest)} if rest else {}
    return {**{name: each for name, each in data.items() if name != key}, **inside}


def full_ones() -> list[dict[str, Any]]:
    """Together they have every key of the model."""
    found = [FULL]
    for place, value in OTHERS:
        found.append(put(found[-1], place, value))
    return found


def places(data: Any, annotation: Any = Config, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of all that a variable can say: keys, and what is in lists; where names of people have other characters than a
    variable's name has, the mapping is one value."""
    section = section_of(annotation)
    if isinstance(data, dict) and section is not None:
        for key, value in data.items():
            yield (*before, key)
            yield from places(value, step(annotation, key), (*before, key))
    elif isinstance(data, dict) and is_mapping_by_name(annotation):
        for name, value in data.items():
            if name.isidentifier():
                yield (*before, name)
                yield from places(value, step(annotation, name), (*before, name))
    elif isinstance(data, list) and is_list(annotation):
        for number, value in enumerate(data):
            if number == len(data) - 1:
                yield (*before, number)  # it is appended; one in the middle would take another's place
            yield from places(value, step(annotation, number), (*before, number))


def value_at(data: Any, place: tuple[str | int, ...]) -> Any:
    for part in place:
        data = data[part]
    return data


def variable(place: tuple[str | int, ...]) -> str:
    return "FAIRLANE__" + "__".join(str(part).upper() for part in place)


def as_value(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n...\n").strip()


def laid(data: Any, **variables: str) -> FileData:
    """`variables`: without the prefix."""
    return FileData.of(data, Environment.of({f"FAIRLANE__{name}": value for name, value in variables.items()}))
