"""Several Fairlanes for `fairlane up`, and the store by which they meet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

from extproc.cli.cluster_rig import store_server
from extproc.cli.ports import HostPort
from extproc.cli.stack import ServiceAddresses, StackOptions
from extproc.wiring.description import Wiring

Mode = Literal["shared", "standby", "partition"]
MODES: tuple[Mode, ...] = ("shared", "standby", "partition")


@dataclass(frozen=True, slots=True)
class Replicas:
    """`store`: one that runs already; None: one is started here, where the mode needs it."""

    count: int
    mode: Mode
    store: HostPort | None = None


@contextlib.asynccontextmanager
async def replicated(options: StackOptions, replicas: Replicas) -> AsyncIterator[StackOptions]:
    """The options of a stack with so many services: the first one is where `options` have it, the others are at ports
    that are free. The store runs as long as the block, and its address is printed. Raises StackError."""
    at = options.addresses
    services = (ServiceAddresses(at.ext_proc, at.admin, at.http), *ServiceAddresses.free(replicas.count - 1))
    async with contextlib.AsyncExitStack() as open_:
        store = replicas.store
        if store is None and replicas.mode != "partition":
            directory = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-store-")))
            store = (await open_.enter_async_context(store_server(directory))).at
        if store is not None:
            click.echo(f"Store       {store}  ({'started here' if replicas.store is None else 'yours'})")
        cluster = {
            "mode": replicas.mode,
            "replicas": replicas.count,
            "store": store and {"addresses": [str(store)]},
        }
        yield replace(
            options,
            replicas=services,
            config={**options.config, "cluster": cluster},
            wiring=Wiring(mode=replicas.mode),
        )
