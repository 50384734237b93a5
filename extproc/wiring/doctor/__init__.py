"""Finds in a real Envoy configuration what breaks holding.

    source -> document -> setup -> checks -> findings

`source` gets the text, from a file or a running Envoy; `document` finds listeners, clusters and route tables in it;
`typed` makes messages of them; `setup` is the view that the checks have. A check is one function with one fact, in the
module of its subject, and `table` has them all.

Left out: what `envoy --mode validate` finds by itself; filters of the engines' side of Envoy; matchers that go by what
only a request can tell (query, cookies, metadata): a route with one is taken for possible, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from extproc.config.model import Config
from extproc.wiring.doctor.document import Resource, document
from extproc.wiring.doctor.finding import Finding, Severity
from extproc.wiring.doctor.read_setup import read
from extproc.wiring.doctor.setup import Answer
from extproc.wiring.doctor.source import Source
from extproc.wiring.doctor.table import CHECKS


@dataclass(frozen=True, slots=True)
class Report:
    """`version`: of Envoy, as 1.40.0; None where the configuration does not tell."""

    source: str
    version: str | None
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        return all(each.severity == Severity.NOTE for each in self.findings)


def examine(
    source: Source, config: Config, *, cluster: str | None = None, answers: Mapping[str, Answer] | None = None
) -> Report:
    """Everything that was found, in the order of the table.

    `cluster`: Fairlane's, where its name does not tell. `answers`: of the engines, where they were asked.
    Raises NotReadableError where `source` is no configuration of Envoy."""
    setup = replace(read(document(source), config, Resource("", source.data), cluster), answers=answers)
    findings = tuple(finding for check in CHECKS for finding in check.findings(setup))
    version = ".".join(map(str, setup.version)) if setup.version is not None else None
    return Report(source.name, version, findings)
