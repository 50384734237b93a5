"""Engines that are told no priority, and finding out which engine it is. Why none: see the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from extproc.engines.identify.facts import DISPLAY, NO_WAY, EngineFacts
from extproc.engines.identify.question import Questions

AUTO: Final = "auto"

_OWNERS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt_llm",
    "llamacpp": "llamacpp",
    "nvidia": "dynamo",
}


@dataclass(frozen=True, slots=True)
class _Page:
    """Where an engine tells its version, and members that tell it from other engines."""

    path: str
    version: str
    signs: tuple[str, ...] = ()


_PAGES: Final = {
    "tgi": _Page("/info", "version", signs=("model_id", "version")),
    "llamacpp": _Page("/props", "build_info", signs=("default_generation_settings",)),
    "tensorrt_llm": _Page("/version", "version"),
    "triton": _Page("/v2", "version", signs=("name", "extensions")),
}
_ASKED: Final = ("tgi", "triton", "llamacpp")  # in this order, where /v1/models says nothing

_REFUSES: Final = {
    "tensorrt_llm": "refuses a priority that is not from 0 to 1",
}


async def find_engine(ask: Questions) -> tuple[str | None, str | None, str | None]:
    """The engine and the first model that it names; both None, and why, where nothing tells them."""
    models = await ask.get("/v1/models")
    if models.status is None:
        return None, None, models.problem  # nobody there: no further questions
    served = None
    data = models.get("data")
    for card in data if isinstance(data, list) else ():
        if isinstance(card, dict):
            served = served or (card["id"] if isinstance(card.get("id"), str) else None)
            if isinstance(owner := card.get("owned_by"), str) and owner in _OWNERS:
                return _OWNERS[owner], served, None
    version = await ask.get("/version")
    if isinstance(version.value, dict) and len(version.value) == 1 and version.text("version") is not None:
        return "vllm", served, None
    for engine in _ASKED:
        page = _PAGES[engine]
        answer = await ask.get(page.path)
        if all(answer.get(sign) is not None for sign in page.signs):
            return engine, served, None
    return None, served, models.problem or "no `owned_by` at /v1/models that is known"


async def identify_other(ask: Questions, engine: str, problem: str | None) -> EngineFacts:
    """`engine`: `auto` where it was not found, for the reason in `problem`."""
    if engine == AUTO:
        return EngineFacts(
            engine=None,
            version=None,
            way=NO_WAY,
            told="not known which engine answers, so no priority is told",
            warning=f"which engine answers could not be seen ({problem}); say it with `engine` in this pool",
        )
    version = None
    if (page := _PAGES.get(engine)) is not None:
        version = (await ask.get(page.path)).text(page.version)
    name = DISPLAY.get(engine, engine)
    told = f"{name} {version or '(version not known)'}: takes no priority that Fairlane could tell"
    return EngineFacts(engine, version, NO_WAY, told, refuses=_REFUSES.get(engine))
