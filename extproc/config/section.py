"""What every part of the file has in common."""

from __future__ import annotations

import math
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_LARGEST = 1e16  # of the numbers in `core.policy_check`


class Section(BaseModel):
    """A part of the file: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    @field_validator("*", mode="before")
    @classmethod
    def _meant(cls, value: object, info: ValidationInfo) -> object:
        """YAML reads yes, no, on and off as true and false, and pydantic would take those for the numbers 1 and 0. And
        it has numbers of any length, which the scheduler refuses without knowing their place in the file."""
        if not isinstance(value, bool):
            if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
                raise ValueError(f"must be a number of at most {_LARGEST:g}")
            return value
        kind = cls.model_fields[info.field_name or ""].annotation
        if kind is bool:
            return value
        word = "on" if value else "off"
        if word in get_args(kind):
            return word
        raise ValueError("this key is no switch; YAML reads yes, no, on and off as such: quote them if they are names")
