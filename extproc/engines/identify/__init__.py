"""Which engine answers at an address, and how it is told a priority.

    facts = await identify("http://10.0.0.1:8000", session, engine="auto", model=None, timeout_s=2.0)
    way = way_of(pool.priority_via, pool.priority_order, facts)

Asked once per endpoint and again when another engine answers there. `identify` never raises (but CancelledError): what
cannot be found out is None, and a warning names cause and cure. Nothing is logged here; the caller does, once for each
endpoint and change.

Which engine it is: the word of the configuration or the dialect of its metrics, if the caller knows one. Else
`owned_by` at /v1/models, where engines write their own name (vllm, sglang, tensorrt_llm, llamacpp; Dynamo writes
nvidia, TGI the model), else who answers where: /version of one member is vLLM's.

Engines other than vLLM and SGLang are told nothing:
- TGI and llama.cpp run in order of arrival and ignore the member.
- TensorRT-LLM reads a member `priority` from 0 to 1, highest first, since mid-2026 (its pull request 15329), and
  answers any other number, ours among them, with an error; before, it refused the member itself.
- Triton's priority is a parameter of its own protocol, not of the OpenAI one.
- Dynamo reads `nvext.agent_hints.priority` and the header x-dynamo-request-priority, highest first. To its router the
  number is no rank but a shift of the time of arrival, and below 0 nothing; engines behind it get it in their own
  order. Fairlane's numbers, lowest first and a million apart, would have to be scaled by guess.
"""

from __future__ import annotations

import aiohttp

from extproc.engines.identify.facts import NO_WAY, EngineFacts, mismatch, way_of
from extproc.engines.identify.others import AUTO, find_engine, identify_other
from extproc.engines.identify.question import Questions
from extproc.engines.identify.sglang import identify_sglang
from extproc.engines.identify.vllm import identify_vllm

__all__ = ["EngineFacts", "identify", "mismatch", "way_of"]


async def identify(
    base_url: str, session: aiohttp.ClientSession, *, engine: str, model: str | None, timeout_s: float
) -> EngineFacts:
    """Ask an engine who it is; at most six questions.

    `base_url`: of its OpenAI routes, without a path. `session`: with the API key, if one is needed. `engine`: a word
    of `pools.engine`, or a dialect's name. `model`: a name that the engine serves, for the probe of old vLLMs.
    `timeout_s`: seconds for each answer."""
    try:
        return await _identify(Questions(session, base_url, timeout_s), engine, model)
    except Exception as error:  # a help to serving, never a reason not to serve
        name = None if engine == AUTO else engine
        warning = f"asking the engine who it is failed ({error!r}); say what it does with `engine` and `priority_via`"
        return EngineFacts(name, None, NO_WAY, "not known which engine answers", warning)


async def _identify(ask: Questions, engine: str, model: str | None) -> EngineFacts:
    problem = None
    if engine == AUTO:
        found, served, problem = await find_engine(ask)
        engine, model = found or AUTO, model or served
    match engine:
        case "vllm":
            return await identify_vllm(ask, model)
        case "sglang":
            return await identify_sglang(ask)
        case _:
            return await identify_other(ask, engine, problem)
