"""The knobs that `fairlane bench admin` turns while requests wait, and what each sets off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

POOL: Final = "sim"
HELD: Final = 200
SLOTS: Final = 4  # inside, until a knob gives more

Change = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Knob:
    """One that is changed while `HELD` wait."""

    name: str
    change: Change | str  # of the configuration; or the filter of a cancellation
    effects: int  # requests that an engine gets, or clients whose answer comes
    refuses: bool = False
    before: Change = field(default_factory=dict)  # what makes the knob matter
    inside: int = SLOTS
    tenants: int = 1


def of_pool(**settings: Any) -> Change:
    return {"pools": {POOL: settings}}


def window(**settings: Any) -> Change:
    return of_pool(window=settings)


ROOM: Final = window(fixed=64)

KNOBS: Final = (
    Knob("window.fixed", window(fixed=12), 8),
    Knob("window.controller", window(controller="threshold", threshold=1000), HELD),
    Knob("window.overtake", window(overtake=1), 1, tenants=HELD + SLOTS),
    Knob("endpoints, one more", {}, SLOTS),
    Knob("traffic, resumed", of_pool(traffic="open"), SLOTS, before=of_pool(traffic="paused"), inside=0),
    Knob("mode, observe", of_pool(mode="observe"), HELD),
    Knob("percentage, 0", of_pool(percentage=0), HELD),
    Knob(
        "class max_in_flight",
        {"classes": {"default": {"max_in_flight": 12}}},
        8,
        before={**ROOM, "classes": {"default": {"max_in_flight": SLOTS}}},
    ),
    Knob(
        "gate, weight, rank and room",
        {
            "classes": {"default": {"gates": {"max_waiting": 1000}}, "batch": {"rank": 9}},
            "tenants": {"team-0": {"weight": 5}},
            **window(fixed=12),
        },
        8,
    ),
    Knob(
        "tenant max_in_flight",
        {"tenants": {"team-0": {"max_in_flight": 12}}},
        8,
        before={**ROOM, "tenants": {"team-0": {"max_in_flight": SLOTS}}},
    ),
    Knob("queue_timeout", {"classes": {"default": {"queue_timeout": "1ms"}}}, HELD, refuses=True),
    Knob("CancelRequests", "state = queued", HELD, refuses=True),
)
