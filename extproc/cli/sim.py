"""``fairlane sim``: things that behave like the real ones, for trials and tests without a GPU."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import click

from extproc.sim.engine import EngineOptions, Policy
from extproc.sim.server import ServerOptions, SimServer, serve

_BODY_BYTES = 128 * 2**20


@click.group()
def sim() -> None:
    """Simulated parts, for trials and tests without a GPU."""


@sim.command("engine", context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8001, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option("--model", default="sim-7b", help="Name of the only model.")
@click.option("--max-model-len", default=32_768, type=click.IntRange(2), help="Tokens of prompt and output together.")
@click.option("--max-num-seqs", default=8, type=click.IntRange(1), help="Slots: sequences that run at once.")
@click.option(
    "--max-num-batched-tokens", default=2048, type=click.IntRange(1), help="Tokens computed in one step at most."
)
@click.option(
    "--scheduling-policy",
    default=Policy.FCFS.value,
    type=click.Choice([p.value for p in Policy]),
    help="Order of the engine's own queue. fcfs accepts priorities and ignores them, as vLLM does.",
)
@click.option(
    "--max-num-queued-reqs",
    default=None,
    type=click.IntRange(0),
    help="Answer 503 when more sequences than this would be running or waiting.  [default: no limit]",
)
@click.option("--block-size", default=16, type=click.IntRange(1), help="Tokens in a KV block.")
@click.option(
    "--kv-cache-tokens", default=1_048_576, type=click.IntRange(1), help="Tokens that the KV cache holds (not vLLM's)."
)
@click.option(
    "--enable-force-include-usage", is_flag=True, help="Usage in every chunk of every stream, asked for or not."
)
@click.option("--step-base-ms", default=22.0, type=click.FloatRange(0), help="Time of a step, without its work.")
@click.option("--step-per-seq-ms", default=0.6, type=click.FloatRange(0), help="More for each sequence that decodes.")
@click.option(
    "--step-per-prefill-token-ms", default=0.12, type=click.FloatRange(0), help="More for each prompt token computed."
)
@click.option(
    "--step-per-context-token-us",
    default=0.0,
    type=click.FloatRange(0),
    help="More for each token in the cache of the sequences that decode; in microseconds.",
)
@click.option("--seed", default=0, type=click.IntRange(0, 2**32 - 1), help="Changes texts and lengths of answers.")
@click.option(
    "--record-requests", default=10_000, type=click.IntRange(0), help="Requests that GET /sim/requests remembers."
)
@click.option(
    "--record-bodies",
    is_flag=True,
    help="Keep raw bodies (the last 128 MiB) for GET /sim/requests/SEQ/body.",
)
def engine(
    host: str,
    port: int,
    model: str,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    scheduling_policy: str,
    max_num_queued_reqs: int | None,
    block_size: int,
    kv_cache_tokens: int,
    enable_force_include_usage: bool,
    step_base_ms: float,
    step_per_seq_ms: float,
    step_per_prefill_token_ms: float,
    step_per_context_token_us: float,
    seed: int,
    record_requests: int,
    record_bodies: bool,
) -> None:
    """A vLLM engine without a model: its API, its scheduler, its metrics page, at an adjustable speed.

    Options are named as vLLM's where vLLM has them. GET /sim/requests shows what the engine was sent; PUT /sim/faults
    breaks the metrics page or hangs the engine: {"metrics": "ok|down|html|empty|half|slow", "seconds": 1.0,
    "hang": false, "shed": "status|stream"}.
    """
    try:
        options = ServerOptions(
            engine=EngineOptions(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                policy=Policy(scheduling_policy),
                block_size=block_size,
                kv_blocks=kv_cache_tokens // block_size,
                step_base=step_base_ms / 1e3,
                step_per_seq=step_per_seq_ms / 1e3,
                step_per_prefill_token=step_per_prefill_token_ms / 1e3,
                step_per_context_token=step_per_context_token_us / 1e6,
            ),
            model=model,
            max_model_len=max_model_len,
            max_num_queued_reqs=max_num_queued_reqs,
            force_usage=enable_force_include_usage,
            record_requests=record_requests,
            record_body_bytes=_BODY_BYTES if record_bodies else 0,
            seed=seed,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    def ready(bound: int) -> None:
        click.echo(
            f"simulated engine {model} on http://{_url_host(host)}:{bound} "
            f"({max_num_seqs} slots, {scheduling_policy}, {kv_cache_tokens} KV tokens)"
        )

    try:
        _run(_serve(options, host, port, ready))
    except OSError as error:
        # asyncio puts the address and a reason of its own into the text
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise click.ClickException(f"cannot listen on {_url_host(host)}:{port}: {reason}") from None


async def _serve(options: ServerOptions, host: str, port: int, ready: Callable[[int], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await serve(SimServer(options), host, port, stop, ready)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed: less CPU per request."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
