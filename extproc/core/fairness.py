"""How fairly the tenants of a class have been served, from the tags of its fair queue.

A tag is service / weight (`fair_queue`). So of siblings that have something waiting all the time, how far their tags
have moved says what each has got, and no account of single requests is needed. Looked at is the order of the root, in
which its eligible children are: tenants, or the nodes at the top of a tree of tenants; only there is everybody
everybody's sibling.

    competing   it was eligible at every look of the last `SPAN_S`, or since it began to be, two looks at least.
                `Node.seq` is renewed when a node becomes backlogged, so a pause between two looks is seen
    rate        what its tag has moved / the time between its first and its last look, cost units / weight / second.
                A tag that went back (a true-up) counts as 0
    jain        (sum of rates)^2 / (n * sum of rates^2), after Jain, Chiu and Hawe, "A Quantitative Measure of Fairness"
                (DEC TR-301, 1984): 1 for equal service, 1/n where one has it all. 1 as well where nobody was served
    spread      largest tag - smallest tag of those that compete, at the last look

Eligible, not only backlogged: what a cap or a rate of its own holds is not owed more, and when it lets go the tag is
lifted, which is no service. One that is held and let go between two looks is counted with its lift.

A class with fewer services in a minute than tenants has a low index in any order, since most have had none: then the
spread, which is a few requests' cost while the order is kept, tells more.

Left out: service within a node of the tree, whose siblings are fewer; what a tenant got before it competed. Another
policy may restate all tags, so it begins the minute anew.

Memory: a tag and a number of each eligible child, for each look of the last minute; of more than `MOST` children every
second one is looked at, or every fourth, and so on, by the number of their backlog, so that it is the same ones; how
many compete is reckoned up from these.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from extproc.core.class_queue import ClassQueue
from extproc.core.fair_queue import FairQueue, Flows

SPAN_S = 60.0
OLD_S = 15.0  # a look that is older tells nothing of now
MOST = 5_000  # children looked at
_LOOKS = 16  # kept, however often somebody looks


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of one class, over the last minute."""

    tenants: int  # that compete, 2 at least
    jain: float  # 0..1
    spread: float  # cost units / weight


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    tags: dict[int, float]  # `Node.seq` of an eligible child -> its tag; by tag


class FairnessMeter:
    """Of one class; reads its queue and changes nothing. Times in seconds, by the scheduler's clock."""

    __slots__ = ("_every", "_found", "_looks", "_number", "_of", "_reckoned_at", "_since")

    def __init__(self) -> None:
        self._of: tuple[FairQueue, Flows] | None = None  # what the looks are of
        self._every = 1
        self._forget()

    def _forget(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=_LOOKS)
        self._number = 0  # of the last look
        self._since: dict[int, int] = {}  # `Node.seq` of those eligible at the last look -> number of their first one
        self._found: Fairness | None = None
        self._reckoned_at = -1  # number of the look that `_found` is of

    def look(self, cls: ClassQueue, now: float) -> int:
        """Returns how many children there are to look at. O(that). A second look at the same time is none."""
        queue = cls.queue
        if self._of is None or self._of[0] is not queue or self._of[1] is not queue.flows:
            self._of = (queue, queue.flows)
            self._forget()
        order = cls.root.order
        count = sum(map(len, order))
        looks = self._looks
        if looks and now <= looks[-1].at:
            return count
        every = 1
        while count > MOST * every:
            every *= 2
        if every < self._every and 4 * count > MOST * self._every:
            every = self._every  # not to and fro: to look at more begins the minute anew
        if every == 1:
            tags = {key[2]: key[0] for block in order for key in block}
        else:
            tags = {key[2]: key[0] for block in order for key in block if key[2] % every == 0}
        if every < self._every:  # those that come in now were there all the time, and nobody looked at them
            self._forget()
            looks = self._looks
        self._every = every
        number = self._number = self._number + 1
        before = self._since
        self._since = {seq: before.get(seq, number) for seq in tags}
        looks.append(_Look(now, tags))
        while looks[0].at < now - SPAN_S:
            looks.popleft()
        return count

    def fairness(self, now: float) -> Fairness | None:
        """None: fewer than two compete, or nobody has looked for `OLD_S`. O(children), once for each look."""
        looks = self._looks
        if len(looks) < 2 or now - looks[-1].at > OLD_S:
            return None
        if self._reckoned_at != self._number:
            self._found, self._reckoned_at = self._reckoned(), self._number
        return self._found

    def _reckoned(self) -> Fairness | None:
        looks, last = self._looks, self._looks[-1]
        oldest = self._number - len(looks) + 1  # number of looks[0]
        since = self._since
        tags = [look.tags for look in looks]
        seconds = [last.at - look.at for look in looks]
        newest = len(looks) - 1
        rates: list[float] = []
        for seq, tag in last.tags.items():
            first = since[seq] - oldest
            if first < newest:  # else its first look is the last one
                if first < 0:
                    first = 0
                moved = tag - tags[first][seq]
                rates.append(moved / seconds[first] if moved > 0.0 else 0.0)
        if len(rates) < 2:
            return None
        competes = self._number  # later than the first look of those that do
        lowest = next(tag for seq, tag in last.tags.items() if since[seq] < competes)
        highest = next(tag for seq, tag in reversed(last.tags.items()) if since[seq] < competes)
        return Fairness(len(rates) * self._every, jain(rates), highest - lowest)


def jain(rates: list[float]) -> float:
    """Of two rates at least, none negative. In parts of the largest: a square of it may be no float any more."""
    most = max(rates)
    if most <= 0.0:
        return 1.0
    parts = [rate / most for rate in rates]
    return float(sum(parts) ** 2 / (len(parts) * sum([part * part for part in parts])))
