"""llama.cpp's own HTTP server, from the wheel `xllamacpp`, as a child process.

    async with LlamaServer(model, directory=tmp_path, slots=2) as engine:
        ...                                     # requests to engine.url

As a script it is that child: `python serve.py MODEL PORT SLOTS`, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until, until_answered

MODEL_NAME = "tiny"
_CONTEXT_PER_SLOT = 8_192
_START_S = 30.0
_STOP_S = 5.0


class LlamaServer:
    """The server on a free port of the loopback, ended with the block."""

    def __init__(self, model: Path, *, directory: Path, slots: int = 2, port: int | None = None) -> None:
        self.at = HostPort("127.0.0.1", port or free_ports(1)[0])
        self.child = Child(
            "llama.cpp",
            [sys.executable, str(Path(__file__)), str(model), str(self.at.port), str(slots)],
            log=directory / "llamacpp.log",
            directory=directory,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )

    @property
    def url(self) -> str:
        return f"http://{self.at}"

    async def __aenter__(self) -> Self:
        self.child.start()
        answered = asyncio.create_task(until_answered(self.at, "/health"))
        try:
            await until(lambda: answered.done() or not self.child.running, _START_S)
            if not answered.done():
                raise RuntimeError(f"llama.cpp did not start; the last lines of its log:\n{self.child.tail()}")
        except BaseException:
            self.child.kill()
            raise
        finally:
            answered.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.child.stop(_STOP_S)
        finally:
            self.child.kill()


def main(model: str, port: int, slots: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    import xllamacpp

    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the server starts its threads, which inherit it
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * _CONTEXT_PER_SLOT
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1  # the model is so small that a second thread only waits
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    server = xllamacpp.Server(params)
    print(f"llama.cpp on {server.listening_address}", flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
