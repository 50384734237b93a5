"""What is kept of changes: revisions and audit records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from extproc.config.overlay import FieldChange
from extproc.config.shared import SharedRevision
from extproc.core.plain import Plain

# Control characters, ends of lines, halves of surrogate pairs, and what turns the direction of text round: they break
# a database, a log or a terminal, or make a line say something else than it does.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Of the configuration file that settings of a revision are paths of. Only this one exists, so nobody looks at it yet. A
# later one needs it to translate what was kept under this one, and cannot tell where it was not written from the start.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Author:
    """Who does it, from where, by which method."""

    name: str
    role: str  # "viewer", "operator", "admin"; empty: none
    peer: str  # as gRPC has it, "ipv4:192.0.2.1:4711"; empty: the service itself
    method: str  # "SetTenant"


def service(method: str) -> Author:
    """For what the service does by itself."""
    return Author("fairlane", "", "", method)


class Kind(StrEnum):
    """How a revision came to be; by the names of the proto's RevisionKind."""

    START = "START"
    CHANGE = "CHANGE"
    ROLLBACK = "ROLLBACK"
    EXPIRY = "EXPIRY"
    FILE_RELOAD = "FILE_RELOAD"
    SET_ASIDE = "SET_ASIDE"
    DAMAGED = "REVISION_KIND_UNSPECIFIED"  # nobody can tell any more


@dataclass(frozen=True, slots=True)
class Revision:
    """The overlay after a change, and the file that it lies over."""

    number: int  # from 1 on, without gaps
    created_at: float  # seconds since 1970
    kind: Kind
    who: str
    reason: str
    overlay: list[Plain]  # Overlay.to_plain()
    file_sha256: str
    changes: tuple[FieldChange, ...] = ()  # of the effective data, to the revision before
    expires_at: float | None = None  # of what this revision set
    rolled_back_to: int = 0  # 0: it is no rollback
    version: str = ""  # of Fairlane
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change or attempt; where `count` is above 1, as many that were alike."""

    at: float  # seconds since 1970
    author: Author
    reason: str
    outcome: str  # "ok", or the name of the gRPC status
    changes: tuple[FieldChange, ...] = ()
    message: str = ""  # why it failed, or what it did beside `changes`
    validate_only: bool = False
    revision: int = 0  # that it made
    count: int = 1
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True)
class Note:
    """That a revision has what all replicas of a cluster have."""

    cluster: str  # name
    revision: int  # here
    shared: dict[str, Any]  # SharedRevision.to_plain()

    @classmethod
    def of(cls, cluster: str, revision: int, shared: SharedRevision) -> Note:
        return cls(cluster, revision, shared.to_plain())


def changes_to_plain(changes: tuple[FieldChange, ...]) -> list[Plain]:
    """`before` and `after` stand there only where there was one and is one."""
    return [
        {
            "path": list(each.path),
            **({"before": each.before} if each.had else {}),
            **({"after": each.after} if each.has else {}),
        }
        for each in changes
    ]


def changes_from_plain(value: list[dict[str, Any]]) -> tuple[FieldChange, ...]:
    """What `changes_to_plain` made. Raises LookupError, TypeError for what it did not."""
    return tuple(
        FieldChange(tuple(each["path"]), each.get("before"), each.get("after"), "before" in each, "after" in each)
        for each in value
    )
