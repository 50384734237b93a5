"""The fields of the messages that change something: which key of the file each stands for, and how it is read.

The messages say what they mean in their own terms (`max_in_flight_slots`, a Duration, an enum), the file in its own
(`max_in_flight`, "5m", a word). One table for each message leads from the one to the other, and back: what the
configuration finds wrong with `tenants.acme.rate` is told as `tenant.rate_cost_per_second`. Limits are the
configuration's; here is refused only what cannot be written in the file at all: what is not finite, is negative
where the file has a unit, or is an enum's number that this server does not know.

A field that is set is a change. One that is not set, and is named by the `update_mask`, is given back to the file. What
is neither is left alone. null, which takes away a limit that the file has, can only be said with UpdateConfig: no
message has a field for it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import duration_pb2, unknown_fields
from google.protobuf.message import Message

from extproc.admin.errors import AdminError, Violation, invalid
from extproc.config.names import LONGEST_NAME, name_fault
from extproc.pb.admin.v1 import admin_pb2

Path = tuple[str, ...]
ALL = "*"
_LONGEST_S = 315_576_000_000  # of a google.protobuf.Duration, in seconds
_NANOS = 10**9
_OURS = admin_pb2.DESCRIPTOR.package


@dataclass(frozen=True, slots=True)
class Field:
    """What a field stands for."""

    key: Path  # in the file, below the element: ("gates", "max_tpot")
    plain: Callable[[Any], Any]  # its value as the file has it; raises ValueError


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a message asks for, below one element of the file."""

    patch: dict[str, Any]
    keys: tuple[Path, ...]  # all that it is about; one that `patch` does not have is given back to the file


def number(value: float) -> float | int:
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, not {value}")
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def whole(value: int) -> int:
    return value


def size(value: int) -> str:
    if value < 0:
        raise ValueError(f"must not be negative, and is {value}")
    for unit, one in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if value and value % one == 0:
            return f"{value // one}{unit}"
    return f"{value}B"


def duration(value: duration_pb2.Duration) -> str:
    """In the unit that needs no fraction, if there is one: "250ms", "90s", "5m", "1h"."""
    nanos = nanoseconds(value)
    if nanos < 0:
        raise ValueError(f"must not be negative, and is {nanos / _NANOS:g} s")
    for unit, one in (("h", 3600 * _NANOS), ("m", 60 * _NANOS), ("s", _NANOS), ("ms", 10**6)):
        if nanos and nanos % one == 0:
            return f"{nanos // one}{unit}"
    return f"{nanos // _NANOS}.{nanos % _NANOS:09d}".rstrip("0").rstrip(".") + "s"


def nanoseconds(value: duration_pb2.Duration) -> int:
    """Raises ValueError for what is no duration by its own definition."""
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > _LONGEST_S or abs(nanos) >= _NANOS or seconds * nanos < 0:
        raise ValueError(f"is no duration: {seconds} s and {nanos} ns")
    return seconds * _NANOS + nanos


def word(enum: Any) -> Callable[[int], str]:
    """Of an enum whose names are the file's words in capitals."""
    # 0 says nothing: a field that has it is not set
    words: dict[int, str] = {value.number: value.name.lower() for value in enum.DESCRIPTOR.values if value.number}

    def plain(value: int) -> str:
        if value not in words:
            raise ValueError(f"this server knows no number {value} of it; it knows {', '.join(words.values())}")
        return words[value]

    return plain


def either(yes: str, no: str) -> Callable[[bool], str]:
    return lambda value: yes if value else no


def text(value: str) -> str:
    if fault := name_fault(value):
        raise ValueError(fault)
    return value


def texts(values: Iterable[str]) -> list[str]:
    return [text(value) for value in values]


TENANT: Mapping[str, Field] = {
    "weight": Field(("weight",), number),
    "max_queued_requests": Field(("max_queued",), whole),
    "max_queued_bytes": Field(("max_queued_bytes",), size),
    "max_queued_tokens": Field(("max_queued_tokens",), whole),
    "max_in_flight_slots": Field(("max_in_flight",), whole),
    "rate_cost_per_second": Field(("rate",), number),
    "rate_burst_cost": Field(("rate_burst",), number),
    "burst_cost": Field(("burst",), number),
    "parent": Field(("parent",), text),
    "default_class": Field(("default_class",), text),
    "classes": Field(("classes",), texts),
}
CLASS: Mapping[str, Field] = {
    "rank": Field(("rank",), whole),
    "priority": Field(("priority",), whole),
    "queue_timeout": Field(("queue_timeout",), duration),
    "max_waiting_requests": Field(("max_waiting",), whole),
    "max_queued_requests": Field(("max_queued",), whole),
    "max_queued_bytes": Field(("max_queued_bytes",), size),
    "max_queued_tokens": Field(("max_queued_tokens",), whole),
    "max_in_flight_slots": Field(("max_in_flight",), whole),
    "min_share_ratio": Field(("min_share",), number),
    "overflow": Field(("overflow",), word(admin_pb2.Overflow)),
    "order": Field(("order",), word(admin_pb2.QueueOrder)),
    "promote_after": Field(("promote_after",), duration),
    "headroom_probability": Field(("headroom",), number),
    "idle_only": Field(("when",), either("idle", "always")),
    "refuse_hopeless": Field(("hopeless",), either("refuse", "wait")),
    "gates.max_waiting_requests": Field(("gates", "max_waiting"), whole),
    "gates.max_time_per_output_token": Field(("gates", "max_tpot"), duration),
    "gates.max_kv_usage_ratio": Field(("gates", "max_kv_usage"), number),
    "gates.max_time_to_first_token": Field(("gates", "max_ttft"), duration),
    "preemptible": Field(("preemptible",), bool),
    "preempt_after": Field(("preempt_after",), duration),
    "wait_objective": Field(("wait_objective",), duration),
}
POOL: Mapping[str, Field] = {  # of SetPoolRequest
    "mode": Field(("mode",), word(admin_pb2.PoolMode)),
    "percentage": Field(("percentage",), number),
    "percentage_of": Field(("percentage_of",), word(admin_pb2.PercentageOf)),
    "traffic": Field(("traffic",), word(admin_pb2.Traffic)),
}


def choose(message: Message, table: Mapping[str, Field], mask: Sequence[str] = (), *, where: str = "") -> Chosen:
    """What `message` asks for. `mask`: names of fields, "*" for all; empty: the fields that are set. `where`: the
    message in its request. Raises AdminError, with all that is wrong."""
    names, violations = _masked(table, mask) if mask else ([name for name in table if is_set(message, name)], [])
    patch: dict[str, Any] = {}
    for name in names:
        if not is_set(message, name):
            continue
        try:
            _put(patch, table[name].key, table[name].plain(_value(message, name)))
        except ValueError as error:
            violations.append(Violation(f"{where}.{name}" if where else name, str(error)))
    if violations:
        raise refused(violations)
    return Chosen(patch, tuple(table[name].key for name in names))


def refused(violations: Sequence[Violation]) -> AdminError:
    """INVALID_ARGUMENT for all of them."""
    told = "\n".join(f"{each.field}: {each.description}" for each in violations)
    return AdminError(grpc.StatusCode.INVALID_ARGUMENT, told, violations)


def is_set(message: Any, name: str) -> bool:
    """Whether a field is set: it is there, or, where that cannot be told, it is not what it would be without."""
    *above, last = name.split(".")
    for part in above:
        if not message.HasField(part):
            return False
        message = getattr(message, part)
    if message.DESCRIPTOR.fields_by_name[last].has_presence:
        return bool(message.HasField(last))
    return bool(getattr(message, last))


def checked_name(name: str, field: str) -> str:
    """Raises AdminError."""
    if fault := name_fault(name):
        raise invalid(field, fault)
    return name


def seconds_of(message: Any, field: str) -> float | None:
    """A field that is a Duration; None: it is not set. Raises AdminError."""
    if not message.HasField(field):
        return None
    try:
        return nanoseconds(getattr(message, field)) / _NANOS
    except ValueError as error:
        raise invalid(field, str(error)) from None


def check_known(message: Message) -> None:
    """Raise AdminError where a message, or one inside it, has a field that this server does not know: to change all but
    that would be another change than was asked for."""
    for each in _messages(message):
        found = unknown_fields.UnknownFieldSet(each)
        if len(found):
            number_ = next(iter(found)).field_number
            raise invalid(
                "",
                f"this server does not know field number {number_} of {each.DESCRIPTOR.full_name}; is the client newer "
                "than the server?",
            )


def _messages(message: Message) -> Iterator[Message]:
    """A message of ours and those inside it. Google's own have no fields to come."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.file.package != _OURS:
            continue
        for each in value if field.is_repeated else (value,):
            yield from _messages(each)


def _masked(table: Mapping[str, Field], mask: Sequence[str]) -> tuple[list[str], list[Violation]]:
    """(the fields that a mask names, each once; what is wrong with it)."""
    names: dict[str, None] = {}
    violations = []
    for path in mask:
        found = [name for name in table if path in (ALL, name) or name.startswith(f"{path}.")]
        if not found:
            close = difflib.get_close_matches(path, table, n=1, cutoff=0.5)
            meant = f"did you mean {close[0]}?" if close else f"known here: {', '.join(table)}"
            violations.append(Violation("update_mask", f"there is no field {path[:LONGEST_NAME]!r} to set; {meant}"))
        names |= dict.fromkeys(found)
    return list(names), violations


def _value(message: Any, name: str) -> Any:
    for part in name.split("."):
        message = getattr(message, part)
    return message


def _put(patch: dict[str, Any], key: Path, value: Any) -> None:
    for part in key[:-1]:
        patch = patch.setdefault(part, {})
    patch[key[-1]] = value
