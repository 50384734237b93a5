"""What is known of an engine, and what follows from it together with the configuration.

`auto` tells a priority by the header. The member of the body would have to be put in by Envoy, whose configuration says
beforehand whether bodies are edited (`priority_via: body` or `both`, or `engine: sglang`); and an engine that does not
know the member, or has it switched off, may refuse the request for it. The header is ignored by whoever does not know
it. So by the body `auto` tells only engines that have said that they read it, where bodies are edited; elsewhere it
tells such an engine none, and `mismatch` says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from extproc.core.priority import PriorityWay

NO_WAY: Final = PriorityWay()

DISPLAY: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tgi": "TGI",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "TensorRT-LLM",
    "triton": "Triton",
    "dynamo": "Dynamo",
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine answered when it was asked who it is."""

    engine: str | None  # a word of `pools.engine`; None: not known
    version: str | None  # in its own words
    way: PriorityWay  # what it reads. With neither way `high_first` is what it would go by
    told: str  # a sentence for the log: what was found, and from what
    warning: str | None = None  # cause and cure
    refuses: str | None = None  # what becomes of a request with our priority in its body; None: nothing bad is known

    @property
    def name(self) -> str:
        """As in a sentence."""
        engine = "an unknown engine" if self.engine is None else DISPLAY.get(self.engine, self.engine)
        return engine if self.version is None else f"{engine} {self.version}"


def way_of(priority_via: str, priority_order: str, facts: EngineFacts, *, edited: bool = False) -> PriorityWay:
    """How this engine is told a priority. Words of the configuration other than `auto` win over what was found.
    `edited`: Envoy puts into bodies what Fairlane asks for."""
    header = facts.way.header if priority_via == "auto" else priority_via in ("header", "both")
    body = priority_via in ("body", "both") or (
        priority_via == "auto" and edited and facts.way.body and not facts.way.header
    )
    if not (header or body):
        return NO_WAY
    high_first = facts.way.high_first if priority_order == "auto" else priority_order == "high_first"
    return PriorityWay(header=header, body=body, high_first=high_first)


def mismatch(priority_via: str, priority_order: str, facts: EngineFacts, *, edited: bool = False) -> str | None:
    """A sentence for the log where the configuration does not go with the engine: cause and cure. None: it does.
    `edited`: as in `way_of`."""
    found, used = facts.way, way_of(priority_via, priority_order, facts, edited=edited)
    if used.body and facts.refuses is not None:
        return (
            f"{facts.name} {facts.refuses}, and `priority_via: {priority_via}` puts one into every body; "
            "set `priority_via: auto` or `off` for this pool"
        )
    if found.body and not found.header and not used.body and priority_via != "off":
        return (
            f"{facts.name} reads a priority only in the body, so with `priority_via: {priority_via}` it has no effect; "
            "set `priority_via: body` for this pool and make Envoy's configuration anew (`fairlane envoy-config`)"
        )
    takes_none = facts.engine is not None and facts.warning is None and not (found.header or found.body)
    if takes_none and (used.header or used.body):
        return f"{facts.name} takes no priorities, so `priority_via: {priority_via}` has no effect; set `auto` or `off`"
    if (found.header or found.body) and (used.header or used.body) and used.high_first != found.high_first:
        order = "highest" if found.high_first else "lowest"
        return (
            f"{facts.name} runs the {order} number first, and `priority_order: {priority_order}` says the opposite, "
            "so what is urgent would run last; set `priority_order: auto`"
        )
    return None
