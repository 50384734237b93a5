"""What the doctor says: findings, and the error for what it cannot read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # requests fail, are cut, pass by the queue or are charged wrongly
    WARNING = "warning"  # they do so at times, or something that was asked for has no effect
    NOTE = "note"  # worth knowing, or could not be looked at


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a check applies.

    `where`: the path of the object in Envoy's configuration (or a place in fairlane.yaml) that has to be changed;
    `fix`: what to merge into that object, as YAML, where it differs from what the check says in general."""

    where: str
    what: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    severity: Severity
    where: str
    what: str
    why: str
    fix: str


class NotReadableError(Exception):
    """There is nothing to examine. The message names cause and cure."""
