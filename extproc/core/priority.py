"""The number that the engine is given: lower runs first.

    base of the class + min(the tenant's requests that are inside the engines already, steps - 1)

so that of two tenants with requests in the engine's own queue the one with fewer goes first. Example: B and C send
one request each: 0 and 0; A sends four: 0, 1, 2, 3.

Why few steps: a number once given stays. Under lasting load a tenant's count goes up and down, so of two of its
requests the later one may get the better number, and an engine that always has something better in its queue leaves
the worse one there for ever (171 s in a queue of three, `docs/decisions`). With few steps all tenants with much inside
have the same number, the engine takes them first come first served, and shares stay the business of the fair queue.
Light tenants are told apart as before.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.model import ClassPolicy


def engine_priority(cls: ClassPolicy, inside: int, steps: int) -> int:
    """`steps` also keep a flood from spilling over into the next class's numbers."""
    return cls.priority_base + (inside if inside < steps else steps - 1)


@dataclass(frozen=True, slots=True)
class PriorityWay:
    """How one engine is told a priority. With neither, it is told none."""

    header: bool = False  # X-Vllm-Priority
    body: bool = False  # the member `priority` of the JSON body
    high_first: bool = False  # it runs the highest number first: the number is told with its sign turned round

    @property
    def via(self) -> str:
        """In a word: header, body, both, or none."""
        if self.header:
            return "both" if self.body else "header"
        return "body" if self.body else "none"
