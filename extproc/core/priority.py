"""The number that the engine is given: lower runs first.

base of the class + the tenant's requests that are inside the engines already, so that of two tenants
with requests in the engine's own queue the one with fewer goes first. Example: B and C send one
request each: 0 and 0; A sends four: 0, 1, 2, 3.
"""

from __future__ import annotations

from extproc.core.model import ClassPolicy


def engine_priority(cls: ClassPolicy, inside: int, gap: int) -> int:
    """`inside` is capped at `gap` - 1: a flood never spills over into the next class's numbers."""
    return cls.priority_base + min(inside, gap - 1)
