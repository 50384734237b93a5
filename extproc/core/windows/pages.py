"""How often a replica reads the pages of an engine that several replicas share.

Each replica reads its own: that needs no store and nobody's word. To make one costs the engine time, so more than two
replicas read together as many as two, each of them more seldom: at most a second apart, and never more seldom than
where nothing is to be done. An interval that is configured to be longer stays.

The number of those that live changes it; while the store does not answer, the last one holds.
"""

from __future__ import annotations

from typing import Final

from extproc.core.model import WindowPolicy

AT_FULL_PACE: Final = 2  # replicas
MOST_S: Final = 1.0


def stretch(replicas: int, policy: WindowPolicy) -> float:
    """How many times `policy.scrape_interval_s` is between two pages of one of so many; 1 or more."""
    if replicas <= AT_FULL_PACE:
        return 1.0
    longest = min(MOST_S, policy.idle_scrape_interval_s)
    each = policy.scrape_interval_s
    return 1.0 if each >= longest else min(replicas / AT_FULL_PACE, longest / each)
