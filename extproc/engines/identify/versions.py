"""Version numbers as engines write them: releases, candidates, development builds, forks.

    0.32.0    0.28.1rc2.dev12+g1a2b3c4    0.11.0+cpu    v0.9.2.dev+Gaudi    0.10

Only the first three numbers are compared; a candidate counts as its release, whose branch it was cut from. What a build
between two releases has is not known: `dev` says so. A build from sources without tags calls itself `dev` or
`0.1.dev1+g...`, which says nothing at all (setuptools_scm's fallback).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Release = tuple[int, int, int]

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![0-9])([^+]*)", re.ASCII)
_UNTAGGED: Final = (0, 1, 0)


@dataclass(frozen=True, slots=True)
class Version:
    release: Release
    dev: bool  # a build between releases


def parse(text: str) -> Version | None:
    """None: no version, or one that says nothing."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    release = (int(match[1]), int(match[2]), int(match[3] or 0))
    dev = "dev" in match[4]
    return None if dev and release <= _UNTAGGED else Version(release, dev)
