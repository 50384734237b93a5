"""`fairlane serve` with a counter of what it keeps, for the soak.

`python -m extproc.cli.wire_service OPTIONS OF SERVE`. On SIGUSR1 it writes one line of JSON to standard output:

    {"tasks": asyncio tasks, "objects": what the garbage collector knows}

The service itself is the shipped one; nobody but a test or a benchmark needs to send it signals.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys

from extproc.cli.serve import serve
from extproc.service import Service

_run = Service.run


def counts() -> dict[str, int]:
    """Of this process, from inside its event loop."""
    gc.collect()
    return {"tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}


async def _run_counted(self: Service, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    def tell() -> None:
        sys.stdout.write(json.dumps(counts()) + "\n")
        sys.stdout.flush()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    await _run(self, stop, hurry)


if __name__ == "__main__":
    Service.run = _run_counted  # type: ignore[method-assign]
    serve.main(sys.argv[1:], prog_name="fairlane serve")
