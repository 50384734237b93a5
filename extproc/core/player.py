"""Plays a recording on a fresh scheduler, and says where its effects are others than the recorded ones.

With the recorded policy and from the beginning of a run, the effects must be the same to the last digit: the scheduler
is a function of its events. A difference is a change of the code, or a recording that begins in the middle. With
another policy the first difference is where the two part. What comes after it is to be read with care: the recorded
ends and usages are those of requests that went at other times then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from extproc.core.events import Effect, EndpointAdded, Event, Reconfigure
from extproc.core.model import PoolPolicy
from extproc.core.plain import Plain
from extproc.core.recording import Header, Record, effect_to_plain
from extproc.core.scheduler import Scheduler

_SHOWN = 5  # effects of one side in a text


@dataclass(frozen=True, slots=True)
class Difference:
    """An event whose effects are not the recorded ones."""

    number: int  # of the event in the run, from 1
    line: int  # in its file
    now: float
    event: Event
    recorded: tuple[Effect, ...]
    played: tuple[Effect, ...]
    recorded_raised: str | None = None
    played_raised: str | None = None

    def text(self) -> str:
        """For people: the event and both sides."""
        return (
            f"event {self.number} (line {self.line}, now {self.now:.6f}): {self.event}\n"
            f"  recorded: {_side(self.recorded, self.recorded_raised)}\n"
            f"  played:   {_side(self.played, self.played_raised)}"
        )


@dataclass(slots=True)
class Play:
    """What a run of records gave."""

    events: int = 0
    differing: int = 0  # events
    first: Difference | None = None
    recorded: Counter[str] = field(default_factory=Counter)  # effects by kind
    played: Counter[str] = field(default_factory=Counter)

    @property
    def same(self) -> bool:
        return self.differing == 0


class Player:
    """One scheduler from its beginning. `policy`: in place of the recorded one, with tenants by their plain names;
    recorded changes of the policy are then left out."""

    def __init__(self, header: Header, policy: PoolPolicy | None = None) -> None:
        names = header.names
        self.scheduler = Scheduler(header.policy if policy is None else names.policy(policy))
        self.result = Play()
        self._own_policy = policy is not None
        self._hashed = names.hashed  # then the recording has no messages to compare
        for endpoint in header.endpoints:  # of a part that begins in the middle
            self.scheduler.apply(EndpointAdded(endpoint), header.clock.now)

    def play(self, record: Record) -> Difference | None:
        """Apply one event. None: its effects are the recorded ones."""
        if self._own_policy and isinstance(record.event, Reconfigure):
            return None
        effects: Sequence[Effect] = ()
        raised = None
        try:
            effects = self.scheduler.apply(record.event, record.now)
        except Exception as error:  # whatever it is, the question is whether it is the recorded one
            raised = type(error).__name__
        result = self.result
        result.events += 1
        result.recorded.update(type(effect).__name__ for effect in record.effects)
        result.played.update(type(effect).__name__ for effect in effects)
        if raised == record.raised and self._plain(effects) == self._plain(record.effects):
            return None
        difference = Difference(
            result.events, record.line, record.now, record.event, record.effects, tuple(effects), record.raised, raised
        )
        result.differing += 1
        result.first = result.first or difference
        return difference

    def play_all(self, records: Iterable[Record]) -> Play:
        for record in records:
            self.play(record)
        return self.result

    def _plain(self, effects: Sequence[Effect]) -> list[dict[str, Plain]]:
        """To compare: as written, so that what is no number equals itself."""
        plain = [effect_to_plain(effect) for effect in effects]
        if self._hashed:
            for effect in plain:
                effect.pop("message", None)
        return plain


def _side(effects: Sequence[Effect], raised: str | None) -> str:
    if raised is not None:
        return f"the scheduler raised {raised}"
    if not effects:
        return "nothing"
    more = f" and {len(effects) - _SHOWN} more" if len(effects) > _SHOWN else ""
    return "; ".join(str(effect) for effect in effects[:_SHOWN]) + more
