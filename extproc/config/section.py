"""What every part of the file has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """A part of the file: immutable, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object) -> object:
        if isinstance(value, bool):
            # pydantic would take it for 1 or 0
            raise ValueError(
                "no key here is a switch; YAML reads yes, no, on and off as such: quote them if they are names"
            )
        return value
