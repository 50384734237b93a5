"""Write the metric pages of the real vLLM as they are, for the tests that have no vLLM.

    python tests/vllm/capture_pages.py tests/engines/pages [WHICH ...]    # some minutes

Idle and under load, filtered, of two API servers, of two data-parallel engines, with adapters. Each file is a page byte
by byte. The folder must be there. Needs the environment of `make test-vllm`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import make_tiny_llama
from vllm_server import MODEL_NAME, VllmServer

from extproc.engines.dialects import VLLM

ENVIRONMENT = Path(__file__).parents[2] / ".vllm"
VERSION = "0.32"
WHICH = {
    "one": (),
    "api2": ("--api-server-count", "2"),
    "dp2": ("--data-parallel-size", "2"),
    "lora": ("--enable-lora", "--max-loras", "2", "--max-lora-rank", str(make_tiny_llama.RANK)),
}
ADAPTERS = ("sql", "chat", "legal")
SLOTS = 2
INSIDE = 8  # requests under load: more than there are slots, in each of two engines
_LOADED_S = 3.0  # until there is something to see in each histogram


async def capture(folder: Path, which: str, work: Path) -> list[Path]:
    """Start vLLM with these arguments, and write its pages. Returns the files."""
    written: list[Path] = []
    model = make_tiny_llama.write(work / "tiny-llama")
    arguments, models = WHICH[which], [MODEL_NAME]
    if which == "lora":
        models += ADAPTERS
        folders = [make_tiny_llama.write_adapter(work / name, seed) for seed, name in enumerate(ADAPTERS)]
        modules = [f"{name}={folder}" for name, folder in zip(ADAPTERS, folders, strict=True)]
        arguments = (*arguments, "--lora-modules", *modules)
    async with (
        VllmServer(ENVIRONMENT, model, directory=work, max_num_seqs=SLOTS, arguments=arguments) as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):

        async def write(name: str, path: str = "/metrics") -> None:
            async with http.get(path) as answer:
                page = await answer.read()
            file = folder / f"vllm_{VERSION}_{name}.txt"
            file.write_bytes(page)
            written.append(file)

        filtered = "/metrics/?" + "&".join(f"name[]={name}" for name in sorted(VLLM.sample_names))
        for _ in range(2):
            async with http.post("/v1/completions", json=_body(MODEL_NAME, 16)) as answer:
                assert answer.status == 200, await answer.text()
        if which == "one":
            await write("idle")
            await write("idle_filtered", filtered)
            async with _busy(http, models):
                await write("load")
                await write("load_filtered", filtered)
        else:
            async with _busy(http, models):
                await write(which)
    return written


def _body(model: str, tokens: int) -> dict[str, object]:
    return {"model": model, "prompt": "once upon a time in the west", "max_tokens": tokens, "temperature": 0}


@contextlib.asynccontextmanager
async def _busy(http: aiohttp.ClientSession, models: list[str]) -> AsyncIterator[None]:
    """Short and long answers of all models, more than there is room for."""

    async def client(number: int) -> None:
        body = _body(models[number % len(models)], 16 + 16 * number)
        while True:
            async with http.post("/v1/completions", json=body) as answer:
                await answer.read()

    clients = [asyncio.create_task(client(number)) for number in range(INSIDE)]
    try:
        await asyncio.sleep(_LOADED_S)
        yield
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def main(folder: Path, which: list[str]) -> None:
    for each in which or WHICH:
        with tempfile.TemporaryDirectory() as work:
            for file in await capture(folder, each, Path(work)):
                print(f"{file}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= WHICH.keys():
        sys.exit(f"usage: capture_pages.py FOLDER [{' '.join(WHICH)}]")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
