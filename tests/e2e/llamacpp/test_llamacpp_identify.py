"""Who answers, asked of the real llama.cpp: what it says of itself is what `extproc.engines.identify` goes by."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from extproc.core.priority import PriorityWay
from extproc.engines.identify import identify, way_of

from . import make_tiny_gguf
from .serve import MODEL_NAME, LlamaServer

pytestmark = pytest.mark.e2e


async def test_it_is_found_out_and_told_no_priority(tmp_path: Path) -> None:
    model = make_tiny_gguf.write(tmp_path / "tiny.gguf")
    async with LlamaServer(model, directory=tmp_path) as engine, aiohttp.ClientSession() as session:
        for word in ("auto", "llamacpp"):
            facts = await identify(engine.url, session, engine=word, model=None, timeout_s=10.0)
            assert (facts.engine, facts.warning) == ("llamacpp", None)
            assert facts.version  # its build, from /props
            assert way_of("auto", "auto", facts) == PriorityWay()

        # taken for a vLLM it is told by header, which it ignores; and nothing was generated to find that out
        facts = await identify(engine.url, session, engine="vllm", model=MODEL_NAME, timeout_s=10.0)
        assert (facts.version, way_of("auto", "auto", facts)) == (None, PriorityWay(header=True))
        async with session.get(engine.url + "/metrics") as answer:
            assert "llamacpp:tokens_predicted_total 0\n" in await answer.text()
