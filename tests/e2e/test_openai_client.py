"""The `openai` package, as a user has it, through Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from rig import MODEL, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 12


@pytest_asyncio.fixture(loop_scope="session")
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    headers = {"x-tenant": "openai"}
    url = f"{rig.stack.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client:
        yield client


async def test_chat_streams_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert len(text.split()) == TOKENS  # the simulated engine writes one word for each token
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS
    whole = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=TOKENS
    )
    assert whole.choices[0].message.content == text


async def test_completion_streams_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert len(text.split()) == TOKENS
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS


async def test_response_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="hello", max_output_tokens=TOKENS, stream=True)
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert len(text.split()) == TOKENS


async def test_models_and_errors_of_the_engine(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.completions.create(model="another", prompt="hello")


async def test_the_synchronous_client_streams(rig: Rig) -> None:
    def read() -> str:
        with openai.OpenAI(base_url=f"{rig.stack.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=TOKENS, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    assert len((await asyncio.to_thread(read)).split()) == TOKENS
