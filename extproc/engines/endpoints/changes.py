"""What is to be done to get from one set of endpoints to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.engines.endpoints.source import Endpoint


@dataclass(frozen=True, slots=True)
class Changes:
    """To be applied in this order: an address in both is another engine behind the same address, and what was known of
    the old one must be gone before the new one comes."""

    removed: tuple[Endpoint, ...] = ()
    added: tuple[Endpoint, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def changes(old: Iterable[Endpoint], new: Iterable[Endpoint]) -> Changes:
    """Removed ones in the order of `old`, added ones in that of `new`. Of several with one address the first counts."""
    before, after = _by_address(old), _by_address(new)
    return Changes(
        removed=tuple(each for each in before.values() if after.get(each.address) != each),
        added=tuple(each for each in after.values() if before.get(each.address) != each),
    )


def _by_address(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for each in endpoints:
        found.setdefault(each.address, each)
    return found
