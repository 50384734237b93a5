"""The shipped Envoy configuration to be spoilt, what the doctor says of it, and its cures applied."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from extproc.config.load import from_data
from extproc.config.model import Config
from extproc.wiring.doctor import examine
from extproc.wiring.doctor.finding import Finding
from extproc.wiring.doctor.setup import Answer
from extproc.wiring.doctor.source import Source

ROOT = Path(__file__).resolve().parents[2]
ENVOY = ROOT / "envoy" / "envoy.yaml"
FAIRLANE = ROOT / "fairlane.yaml"
Json = dict[str, Any]

_SHIPPED = yaml.safe_load(ENVOY.read_text(encoding="utf-8"))
_FAIRLANE = yaml.safe_load(FAIRLANE.read_text(encoding="utf-8"))
# Of the shipped pair: headers are trusted by default, nobody asked the engines, and Fairlane is one process.
USUAL = {"trusted_header", "engines_not_asked", "health_check_single"}
_STEP = re.compile(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)')


class Envoy:
    """Envoy's configuration as plain data, with short ways to its parts."""

    def __init__(self, file: Path = ENVOY) -> None:
        data = _SHIPPED if file == ENVOY else yaml.safe_load(file.read_text(encoding="utf-8"))
        self.data: Json = json.loads(json.dumps(data))  # nothing is shared by two places, as YAML's aliases are

    @property
    def listener(self) -> Json:
        found: Json = self.data["static_resources"]["listeners"][0]
        return found

    @property
    def manager(self) -> Json:
        found: Json = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        return found

    @property
    def filters(self) -> list[Json]:
        found: list[Json] = self.manager["http_filters"]
        return found

    def filter(self, name: str) -> Json:
        return next(each for each in self.filters if each["name"] == name)

    @property
    def ext_proc(self) -> Json:
        found: Json = self.filter("envoy.filters.http.ext_proc")["typed_config"]
        return found

    @property
    def facts(self) -> list[Json]:
        found: list[Json] = self.filter("fairlane.facts")["typed_config"]["request_rules"]["rules"]
        return found

    @property
    def sse(self) -> list[Json]:
        parser = self.filter("fairlane.usage.sse")["typed_config"]["response_rules"]["content_parser"]
        found: list[Json] = parser["typed_config"]["rules"]
        return found

    @property
    def json(self) -> list[Json]:
        found: list[Json] = self.filter("fairlane.usage.json")["typed_config"]["response_rules"]["rules"]
        return found

    @property
    def host(self) -> Json:
        found: Json = self.manager["route_config"]["virtual_hosts"][0]
        return found

    def route(self, name: str = "queued") -> Json:
        return next(each for each in self.host["routes"] if each["name"] == name)

    @property
    def log(self) -> Json:
        found: Json = self.manager["access_log"][0]
        return found

    def cluster(self, name: str) -> Json:
        return next(each for each in self.data["static_resources"]["clusters"] if each["name"] == name)

    def options(self, cluster: str) -> Json:
        found: Json = next(iter(self.cluster(cluster)["typed_extension_protocol_options"].values()))
        return found

    def endpoints(self, cluster: str) -> list[Json]:
        found: list[Json] = self.cluster(cluster)["load_assignment"]["endpoints"][0]["lb_endpoints"]
        return found


def config(**changes: Any) -> Config:
    """The shipped fairlane.yaml with keys replaced."""
    return from_data({**json.loads(json.dumps(_FAIRLANE)), **changes})


def pool(**changes: Any) -> list[Json]:
    """Its pool, with keys replaced."""
    return [{**_FAIRLANE["pools"][0], **changes}]


def classes(**changes: Any) -> Json:
    """Its classes, each with keys replaced."""
    return {name: {**each, **changes} for name, each in _FAIRLANE["classes"].items()}


def findings(
    envoy: Envoy,
    fairlane: Config | None = None,
    *,
    version: str | None = None,
    answers: Mapping[str, Answer] | None = None,
) -> list[Finding]:
    """Without those that the shipped pair has."""
    report = examine(Source("envoy.yaml", envoy.data, version), fairlane or config(), answers=answers)
    return [each for each in report.findings if each.id not in USUAL]


def spoilt(spoil: Callable[[Envoy], None]) -> Envoy:
    envoy = Envoy()
    spoil(envoy)
    return envoy


def at(data: Any, where: str) -> Any:
    """What stands at a finding's place."""
    for match in _STEP.finditer(where):
        name, number, plain = match.groups()
        data = data[int(number)] if number else data[name or plain]
    return data


def apply(envoy: Envoy, finding: Finding) -> None:
    """Do what the finding says: merge its fix into the object at its place."""
    place, fix = at(envoy.data, finding.where), yaml.safe_load(finding.fix)
    assert fix is not None, f"{finding.id} has no fix that could be merged"
    if isinstance(place, list):
        assert isinstance(fix, list)
        place += fix
    else:
        _merge(place, fix)


def _merge(into: Json, more: Json) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
