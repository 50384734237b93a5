"""The live changes of the configuration in the store, for all replicas. `admin.peers.Peers` is what the admin API needs
of it; `admin.replication` says what follows from it.

How it is wired (`replicas`):

    shared = SharedConfiguration(store, name, replica, wake=exchange.wake)
    await revisions.join(shared)        # after `attach` and `keep`, before the process serves
    info |= shared.info()               # what `Member.tell` says of this replica, in each exchange
    busy = ... or shared.busy           # exchanges each period, while an answer to an operator is waited for
    shared.heard(number, infos, time)   # from `Member.heard`: the number of the configuration in the store, what each
                                        # other live replica said last (id -> its info), the store's clock, ms
    shared.lost(error)                  # from `Member.lost`

`join` and `heard` ask the store by themselves when there is something to read. What a replica has is in its info, under
KEY: {"revision": of the cluster, "id": of that change, "refused": id of one that does not fit here, "error": why,
"file": digest of the file}.

The store's number says whether somebody has written (compare and set). The cluster's revision is told by what is
written: it goes on where a store was emptied and its numbers begin anew.

Expiries are written by the store's clock and read by the own one, so that a replica whose clock is wrong ends a change
when all others do. Differences below CLOCK_S are none: clocks that are kept right differ by less, and one exchange says
no more exactly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from extproc.cluster.errors import StoreError
from extproc.config.faults import ConfigError
from extproc.config.overlay import Overlay
from extproc.config.shared import (
    ConflictError,
    LostError,
    NewerError,
    ReplicaTaken,
    SharedRevision,
    moved,
    with_expiries_of,
)

KEY = "configuration"  # in the info of a replica
CLOCK_S = 2.0
WAIT_S = 2.0  # for the others to say that they have a change
_LONGEST = 500  # characters of what is said in each exchange
_DIGEST = 16  # characters of a file's
UNSEEN = "?"  # in the place of a replica's name
_WHEN_BACK = "one that comes (back) takes it then (fairlane ctl status)"
_NOT_YET = "has not said so yet: it takes it with its next exchange (fairlane ctl status)"


class ConfigurationStore(Protocol):
    """Raises StoreError."""

    async def config_get(self) -> tuple[int, bytes]:
        """Number and document; 0: there is none, or with a document one that another program has written."""

    async def config_put(self, expected: int, document: bytes) -> int | None:
        """The new number; None: it is not `expected` any more, and nothing was written."""


@dataclass(frozen=True, slots=True)
class _Said:
    """By another replica, of itself."""

    revision: int = 0
    id: str = ""
    refused: str = ""
    error: str = ""
    file: str = ""


class SharedConfiguration:
    """For one process. Belongs to its event loop."""

    def __init__(
        self,
        store: ConfigurationStore,
        cluster: str,
        replica: str,
        *,
        expected: int = 1,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        wait_s: float = WAIT_S,
    ) -> None:
        """`expected`: how many replicas there should be. `wake`: asks for an exchange soon. `clock`: seconds since
        1970."""
        self.cluster = cluster
        self.replica = replica
        self._store = store
        self._expected = expected
        self._wake = wake
        self._clock = clock
        self._wait_s = wait_s
        self._ahead_s = 0.0  # of the store's clock before the own one
        self._number: int | None = None  # in the store, of what was read or written last; None: not known
        self._overlay = Overlay()  # likewise, with the store's times
        self._mine = _Said()
        self._agreed = False
        self._ahead: set[tuple[int, str]] = set()
        self._others: dict[str, _Said] = {}
        self._lost = ""
        self._heard = 0  # exchanges
        self._turn = asyncio.Event()  # set and replaced with each
        self._waiting = 0
        self._news: Callable[[], None] = lambda: None

    # -- for the exchange -------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        return {KEY: asdict(self._mine)}

    @property
    def busy(self) -> bool:
        """Whether somebody waits for what the others say."""
        return self._waiting > 0

    def heard(self, number: int, infos: Mapping[str, Mapping[str, Any]], time_ms: float) -> None:
        """`number`: of the configuration in the store, 0: there is none. `infos`: of the other replicas that live.
        `time_ms`: the store's clock, since 1970."""
        ahead_s = time_ms / 1000 - self._clock()
        ahead_s = ahead_s if abs(ahead_s) >= CLOCK_S else 0.0
        set_anew = abs(ahead_s - self._ahead_s) >= CLOCK_S / 2  # what was read has other times now
        if set_anew or not ahead_s:
            self._ahead_s = ahead_s
        self._others = {replica: _said(info.get(KEY)) for replica, info in infos.items()}
        lost, self._lost = bool(self._lost), ""
        agreed, self._agreed = self._agreed, self.agree()
        ahead, self._ahead = self._ahead, self._who_is_ahead()
        self._next_turn()
        if lost or set_anew or number != self._number or self._ahead - ahead or (self._agreed and not agreed):
            self._news()

    def _who_is_ahead(self) -> set[tuple[int, str]]:
        """Revisions of others that this replica should have too, whatever the number: a store that was emptied and
        filled again within one exchange of others may have come to the same."""
        mine = self._mine
        said = ((said.revision, said.id) for said in self._others.values())
        return {each for each in said if each[1] and each[0] >= mine.revision and each[1] != mine.id}

    def lost(self, error: str) -> None:
        """The exchange has failed. `error`: cause and cure."""
        self._lost = error or "the store does not answer"
        self._next_turn()

    def _next_turn(self) -> None:
        self._heard += 1
        self._turn.set()
        self._turn = asyncio.Event()

    # -- for the admin API (`admin.peers`) --------------------------------------------------------

    def follow(self, news: Callable[[], None]) -> None:
        """`news`: called when there may be something to read."""
        self._news = news

    async def read(self) -> SharedRevision | None:
        """What is in the store. Raises LostError; ConfigError where it is nothing that could be read, NewerError where
        it must be left alone."""
        try:
            number, document = await self._store.config_get()
        except StoreError as error:
            self._number = None  # so that it is read again when an exchange goes well
            raise LostError(str(error)) from error
        self._number, self._overlay = number, Overlay()
        if not number:
            if document:
                raise ConfigError(
                    "the configuration in the store has a number that is none, so another program has written it; the "
                    "next change takes its place"
                )
            return None
        try:
            found = await asyncio.to_thread(SharedRevision.from_bytes, document)
        except NewerError as error:
            raise NewerError(f"the configuration in the store {error}") from error
        except ConfigError as error:
            raise ConfigError(f"the configuration in the store {error}; the next change takes its place") from error
        self._overlay = found.overlay
        return replace(found, overlay=moved(found.overlay, -self._ahead_s), at=found.at - self._ahead_s)

    async def write(self, revision: SharedRevision) -> None:
        """In the place of what was read or written last. Raises ConflictError; LostError: it may be there all the same;
        ConfigError where it is too large."""
        if self._number is None:
            raise LostError(self._lost or "the store has not been read yet")
        overlay = with_expiries_of(moved(revision.overlay, self._ahead_s), self._overlay)
        told = replace(revision, overlay=overlay, at=revision.at + self._ahead_s)
        document = await asyncio.to_thread(told.to_bytes)
        try:
            number = await self._store.config_put(self._number, document)
        except StoreError as error:
            self._number = None
            raise LostError(str(error)) from error
        if number is None:
            raise ConflictError("another replica has written meanwhile")
        self._number, self._overlay = number, overlay
        self._wake()

    def tell(self, taken: SharedRevision | None, refused: SharedRevision | None, error: str, file_sha256: str) -> None:
        """What is in force here, and what does not fit here and why. The others hear it soon."""
        mine = _Said(
            0 if taken is None else taken.revision,
            "" if taken is None else taken.id,
            "" if refused is None else refused.id,
            error.strip()[:_LONGEST],
            file_sha256[:_DIGEST],
        )
        if mine != self._mine:
            self._mine = mine
            self._agreed = False
            self._wake()

    def agree(self) -> bool:
        """Whether all replicas that live have the same in force, over the same file."""
        mine = self._mine
        return all((said.id, said.file) == (mine.id, mine.file) for said in self._others.values())

    def highest(self) -> int:
        """Of the revisions that other live replicas have in force; 0: none."""
        return max((said.revision for said in self._others.values()), default=0)

    async def acknowledged(self, revision: SharedRevision) -> tuple[ReplicaTaken, ...]:
        """This replica and all others that live, once all have said whether they have taken it, or after some time; and
        for each that should be there and is not seen one without a name."""
        since = self._heard
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._lost and (self._heard == since or self._open(revision)):
                    turn = self._turn
                    self._wake()
                    await turn.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
        others = [self._taken(replica, said, revision) for replica, said in sorted(self._others.items())]
        absent = self._expected - 1 - len(others)
        error = f"of {self._expected} (cluster.replicas) {absent} cannot be seen now: {_WHEN_BACK}"
        return (ReplicaTaken(self.replica, True), *others, *[ReplicaTaken(UNSEEN, False, error)] * absent)

    def _open(self, revision: SharedRevision) -> list[str]:
        return [
            replica
            for replica, said in self._others.items()
            if said.revision < revision.revision and said.refused != revision.id
        ]

    def _taken(self, replica: str, said: _Said, revision: SharedRevision) -> ReplicaTaken:
        if said.revision >= revision.revision:
            return ReplicaTaken(replica, True)
        if said.refused == revision.id:
            return ReplicaTaken(replica, False, said.error)
        return ReplicaTaken(replica, False, f"the store is lost: {self._lost}" if self._lost else _NOT_YET)


def _said(value: object) -> _Said:
    """Strictly: others may have written anything."""
    if not isinstance(value, Mapping):
        return _Said()
    revision = value.get("revision")
    if isinstance(revision, bool) or not isinstance(revision, int) or not 0 <= revision < 2**53:
        return _Said()
    texts = [value.get(name, "") for name in ("id", "refused", "error", "file")]
    if not all(isinstance(text, str) for text in texts):
        return _Said()
    return _Said(revision, *(str(text)[:_LONGEST] for text in texts))
