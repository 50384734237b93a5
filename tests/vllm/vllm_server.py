"""The real vLLM as a child process, with the model of `make_tiny_llama`.

    async with VllmServer(environment, model, directory=tmp_path, max_num_seqs=2) as engine:
        ...                                     # requests to engine.url

`environment` is the folder that `tools/vllm_env.py` has made. A start takes most of a minute, nearly all of it imports.
vLLM starts processes of its own (engine core, worker), which stay behind when the first one is killed. They are in its
process group, and that is ended with the block as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until, until_answered

MODEL_NAME = "tiny"
START_S = 400.0  # two engines on a busy machine need a quarter of it
STOP_S = 20.0

_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # the model is so small that a second thread only waits
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class VllmServer:
    """vLLM on a free port of the loopback, ended with the block. `arguments`: more options of `vllm serve`."""

    def __init__(
        self,
        environment: Path,
        model: Path,
        *,
        directory: Path,
        max_num_seqs: int,
        arguments: Sequence[str] = (),
    ) -> None:
        self.at = HostPort("127.0.0.1", free_ports(1)[0])
        self._group: int | None = None
        self.child = Child(
            "vllm",
            [
                str(environment / "bin" / "vllm"),
                *("serve", str(model), "--served-model-name", MODEL_NAME),
                *("--host", self.at.host, "--port", str(self.at.port)),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "8192"),
                *("--scheduling-policy", "priority", "--max-num-seqs", str(max_num_seqs)),
                *arguments,
            ],
            log=directory / "vllm.log",
            directory=directory,
            env={**os.environ, **_CPU},
        )

    @property
    def url(self) -> str:
        return f"http://{self.at}"

    async def __aenter__(self) -> Self:
        self.child.start()
        self._group = self.child.pid  # it leads a session, and so a group, of its own
        answered = asyncio.create_task(until_answered(self.at, "/health"))
        try:
            await until(lambda: answered.done() or not self.child.running, START_S)
            if not answered.done():
                raise RuntimeError(f"vLLM did not start; the last lines of its log:\n{self.child.tail()}")
        except BaseException:
            await self._end()
            raise
        finally:
            answered.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        try:
            await self.child.stop(STOP_S)
        finally:
            self.child.kill()
            if self._group is not None:
                with contextlib.suppress(ProcessLookupError):  # nobody is left, which is the rule
                    os.killpg(self._group, signal.SIGKILL)
