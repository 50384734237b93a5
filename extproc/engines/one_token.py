"""Asks an engine for one token, to see whether it still makes any.

An engine that hangs answers `/health` with 200 and keeps its gauges, so nothing that asks its HTTP server tells. Only a
token that it has made does, and its next page shows that: the counters move. Nothing else is concluded here; the answer
is read only for what to tell the operator.

The prompt is one word and the answer one token, so an engine that does well is hardly kept from its work; and it is
sent only to one that has stood still for half a minute.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp

_PATHS: Final = ("/v1/completions", "/v1/embeddings")  # a pooling model has no completions
_MOST_BYTES: Final = 64 * 1024


async def ask_for_a_token(
    base_url: str, session: aiohttp.ClientSession, *, model: str | None, timeout_s: float
) -> str | None:
    """`model`: as the engine serves it; None: its default. Returns what went wrong, with the cure where there is one;
    None: it has answered."""
    told = "it does not know the ways to ask it for a token"
    for path in _PATHS:
        body: dict[str, Any] = {"prompt": "a", "max_tokens": 1} if path == _PATHS[0] else {"input": "a"}
        if model is not None:
            body["model"] = model
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.post(base_url.rstrip("/") + path, json=body, allow_redirects=False) as response,
            ):
                await response.content.read(_MOST_BYTES)
                status = response.status
        except TimeoutError:
            return f"no token within {timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        if status < 300:
            return None
        told = f"{path} answered {status}"
        if status in (401, 403):
            return f"{told}: it wants an API key, or another one; set `metrics.token_file` of the pool"
        if status not in (400, 404, 405, 422, 501):
            return told
    return told
