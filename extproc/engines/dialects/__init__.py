"""What each engine calls its signals. An engine's names change from version to version, so a dialect lists for each
signal the names it has gone by, and takes the first that is on the page. Which one it was is part of the reading.

`series` is the notation of names and how series are added up, `dialect` makes a `Sample` of a page, and each engine has
its table, with what is peculiar to it, in a module of its own (NVIDIA's three share one).

An engine is told by its names: no two have one in common. A Dynamo worker's page has those of the engine inside it, and
so the engines come before Dynamo.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from extproc.engines.dialects.dialect import SIGNALS, Dialect, MissingSignalError, Reading
from extproc.engines.dialects.llamacpp import LLAMACPP
from extproc.engines.dialects.nvidia import DYNAMO, TENSORRT_LLM, TRITON
from extproc.engines.dialects.sglang import SGLANG
from extproc.engines.dialects.tgi import TGI
from extproc.engines.dialects.vllm import VLLM
from extproc.engines.exposition import Samples

__all__ = [
    "ALL_SAMPLE_NAMES",
    "DIALECTS",
    "DYNAMO",
    "LLAMACPP",
    "PATHS",
    "SGLANG",
    "SIGNALS",
    "TENSORRT_LLM",
    "TGI",
    "TRITON",
    "VLLM",
    "Dialect",
    "MissingSignalError",
    "Reading",
    "detect",
]

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {dialect.name: dialect for dialect in (VLLM, SGLANG, TGI, LLAMACPP, TENSORRT_LLM, TRITON, DYNAMO)}
)
ALL_SAMPLE_NAMES: Final = frozenset().union(*(dialect.sample_names for dialect in DIALECTS.values()))
PATHS: Final = tuple(dict.fromkeys(dialect.path for dialect in DIALECTS.values()))
"""Where an engine's page may be, for an engine that is not known yet."""


def detect(page: Samples) -> Dialect | None:
    """The dialect of a page that was parsed for `ALL_SAMPLE_NAMES`; None when it is of no known engine."""
    return next((dialect for dialect in DIALECTS.values() if dialect.speaks(page)), None)
