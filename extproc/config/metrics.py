"""How an engine's metrics page is read."""

from __future__ import annotations

from pydantic import model_validator

from extproc.config.section import Section
from extproc.config.units import Seconds


class Metrics(Section):
    interval: Seconds = 0.25
    idle_interval: Seconds = 2.0
    timeout: Seconds = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Metrics:
        if not 0.02 <= self.interval <= self.idle_interval:
            raise ValueError("interval must be at least 20ms and no longer than idle_interval")
        if not 0 < self.timeout <= 30:
            raise ValueError("timeout must be above 0 and at most 30s")
        return self
