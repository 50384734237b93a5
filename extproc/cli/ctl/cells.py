"""Values of the API as text in a table. "-" stands for what is not known, not set or not there."""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any

from extproc.cli.ctl.output import whole_numbers, yaml_text

if TYPE_CHECKING:
    from google.protobuf.message import Message

NONE = "-"
_KIB = 1024


def text(value: str) -> str:
    return value or NONE


def count(value: int) -> str:
    return NONE if value < 0 else str(value)


def number(value: float) -> str:
    """Whole from 1000 on, four digits below; -1 and what is no number is not known."""
    if value == -1 or math.isnan(value):
        return NONE
    return f"{value:.0f}" if math.isfinite(value) and abs(value) >= 1000 else f"{value:.4g}"


def size(value: int) -> str:
    """Bytes in the largest unit that leaves a whole digit."""
    if value < 0:
        return NONE
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < _KIB:
            break
        amount, unit = amount / _KIB, larger
    return f"{amount:.0f}{unit}" if amount == int(amount) else f"{amount:.1f}{unit}"


def word(message: Message, field: str) -> str:
    """A value of an enum: the end of its name in small letters, or "-" for the unspecified one."""
    value = getattr(message, field)
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    known = None if enum is None else enum.values_by_number.get(value)
    if known is None:
        return str(value)  # of a service that is newer
    return NONE if value == 0 else known.name.lower()


def optional(message: Message, field: str) -> str:
    """A number that may be missing."""
    return number(getattr(message, field)) if message.HasField(field) else NONE


def duration(message: Message, field: str) -> str:
    return seconds(getattr(message, field).ToNanoseconds() / 1e9) if message.HasField(field) else NONE


def seconds(value: float) -> str:
    """Two units at most: 250ms, 12.3s, 5m12s, 1h05m."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 0.9995:
        return f"{sign}{value * 1000:.0f}ms"
    if value < 59.95:
        return f"{sign}{value:.1f}s"
    whole = round(value)
    if whole < 3600:
        return f"{sign}{whole // 60}m{whole % 60:02d}s"
    return f"{sign}{whole // 3600}h{whole % 3600 // 60:02d}m"


def time(message: Message, field: str) -> str:
    """UTC, to the second."""
    if not message.HasField(field):
        return NONE
    stamp = getattr(message, field)
    try:
        at = datetime.datetime.fromtimestamp(stamp.seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return NONE
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def yes(value: bool) -> str:
    return "yes" if value else "no"


def value(message: Message, field: str) -> str:
    """A part of the configuration, as YAML has it in one line; "-": it is not there."""
    from google.protobuf import json_format

    if not message.HasField(field):
        return NONE
    return flow(json_format.MessageToDict(getattr(message, field)))


def flow(data: Any) -> str:
    """YAML in one line, names in alphabetical order."""
    shown = yaml_text(whole_numbers(data), default_flow_style=True)
    return shown.removesuffix("\n").removesuffix("\n...")
