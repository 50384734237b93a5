"""What the admin API needs of the other replicas of its cluster. `cluster.configuration` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from extproc.config.shared import ReplicaTaken, SharedRevision


class Peers(Protocol):
    """To be called from the event loop."""

    cluster: str  # name
    replica: str  # of this process

    def follow(self, news: Callable[[], None]) -> None:
        """`news`: called when there may be something to read."""

    async def read(self) -> SharedRevision | None:
        """What is in the store. Raises LostError; ConfigError where it is nothing that could be read, NewerError where
        it must be left alone."""

    async def write(self, revision: SharedRevision) -> None:
        """In the place of what was read or written last. Raises ConflictError; LostError: it may be there all the same;
        ConfigError where it is too large."""

    def tell(self, taken: SharedRevision | None, refused: SharedRevision | None, error: str, file_sha256: str) -> None:
        """What is in force here, and what does not fit here and why; and over which file."""

    def agree(self) -> bool:
        """Whether all replicas that live have the same in force, over the same file."""

    def highest(self) -> int:
        """Of the revisions that other live replicas have in force; 0: none."""

    async def acknowledged(self, revision: SharedRevision) -> tuple[ReplicaTaken, ...]:
        """Of all replicas that live, this one first, once all have said whether they have taken it, or after some
        time."""
