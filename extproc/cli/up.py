"""`fairlane up`: the whole stack in the foreground, for a first look and for development.

Ctrl-C (or SIGTERM) stops everything in order; a second one does not wait. Whatever goes wrong is one message and
exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from extproc.cli.ports import HostPort
from extproc.cli.stack import DEFAULT_ADMIN, Addresses, Stack, StackError, StackOptions, UnixSocket, laid_aside
from extproc.cli.up_replicas import MODES, Mode, Replicas, replicated

if TYPE_CHECKING:
    from extproc.cli.child import Child

_DEFAULTS = Addresses()
_PORT = click.IntRange(1, 65_535)
# With --config these come from the file: two places that say different things help nobody.
_IN_THE_FILE = ("grpc_port", "admin_port", "http_port", "engine_port")
_ECHO_S = 0.1
_UNIX = "unix:"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - compared with, not listened on


@click.command("up")
@click.option("--envoy-port", default=_DEFAULTS.envoy.port, type=_PORT, show_default=True, help="Where clients go.")
@click.option("--envoy-admin-port", default=_DEFAULTS.envoy_admin.port, type=_PORT, show_default=True)
@click.option("--grpc-port", default=_DEFAULTS.ext_proc.port, type=_PORT, show_default=True, help="ext_proc.")
@click.option("--admin-port", default=DEFAULT_ADMIN.port, type=_PORT, show_default=True, help="Admin gRPC.")
@click.option("--http-port", default=_DEFAULTS.http.port, type=_PORT, show_default=True, help="Metrics and health.")
@click.option(
    "--engine-port",
    multiple=True,
    type=_PORT,
    help="One for each engine; repeat it.  [default: " + ", ".join(str(e.port) for e in _DEFAULTS.engines) + "]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your own fairlane.yaml; it then says where Fairlane listens and where the engines are.",
)
@click.option("--no-sim", is_flag=True, help="Start no simulated engines: real ones listen there already.")
@click.option(
    "--max-num-seqs", default=8, type=click.IntRange(1), show_default=True, help="Slots of each simulated engine."
)
@click.option(
    "--replicas", default=1, type=click.IntRange(1, 8), show_default=True, help="Fairlanes behind this Envoy."
)
@click.option("--mode", type=click.Choice(MODES), help="What several of them are to each other.  [default: shared]")
@click.option("--store", help="host:port of their Valkey or Redis, if it is not to be started here.")
@click.option(
    "--envoy-binary", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An Envoy of your own."
)
@click.pass_context
def up(
    context: click.Context,
    envoy_port: int,
    envoy_admin_port: int,
    grpc_port: int,
    admin_port: int,
    http_port: int,
    engine_port: tuple[int, ...],
    config_file: Path | None,
    no_sim: bool,
    max_num_seqs: int,
    replicas: int,
    mode: Mode | None,
    store: str | None,
    envoy_binary: Path | None,
) -> None:
    """Run Envoy, Fairlane and two simulated engines here, until Ctrl-C."""
    several = _several(replicas, mode, store, config_file)
    addresses = _DEFAULTS._replace(envoy=_local(envoy_port), envoy_admin=_local(envoy_admin_port))
    if config_file is None:
        addresses = addresses._replace(
            ext_proc=_local(grpc_port),
            admin=_local(admin_port),
            http=_local(http_port),
            engines=tuple(map(_local, engine_port)) or _DEFAULTS.engines,
        )
    else:
        for name in _IN_THE_FILE:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"{option} cannot be given with --config: {config_file} says it")
        addresses = _of_file(config_file, addresses, simulate=not no_sim)
    options = StackOptions(
        addresses=addresses,
        simulate=not no_sim,
        engine_args=("--max-num-seqs", str(max_num_seqs), "--scheduling-policy", "priority"),
        serve_args=("--log-format", "console"),
        config_file=config_file.absolute() if config_file else None,
        envoy_binary=envoy_binary,
    )
    try:
        asyncio.run(_run_all(options, several))
    except StackError as error:
        raise click.ClickException(str(error)) from None


def _local(port: int) -> HostPort:
    return HostPort("127.0.0.1", port)


def _several(count: int, mode: Mode | None, store: str | None, config_file: Path | None) -> Replicas | None:
    """None: one. Raises click.UsageError."""
    if count == 1:
        for option, value in (("--mode", mode), ("--store", store)):
            if value is not None:
                raise click.UsageError(f"{option} is for several Fairlanes: give --replicas 2, or leave it out")
        return None
    if config_file is not None:
        raise click.UsageError("--replicas cannot be given with --config: the file says where one Fairlane listens")
    try:
        return Replicas(count, mode or MODES[0], HostPort.parse(store) if store is not None else None)
    except ValueError as error:
        raise click.UsageError(f"--store: {error}") from None


def _of_file(file: Path, addresses: Addresses, *, simulate: bool) -> Addresses:
    """Where the user's file lets Fairlane listen and looks for engines. Raises click.ClickException."""
    from extproc.config.load import ConfigError, load  # late: pydantic takes longer to import than all of this

    try:
        config = load(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for key in ("ext_proc_tls", "http_tls"):
        if getattr(config.listen, key) is not None:
            raise click.ClickException(
                f"{file}: listen.{key} is set, and `fairlane up` speaks plain text to its Fairlane: leave it out here, "
                "or run `fairlane serve` behind an Envoy made by `fairlane envoy-config --fairlane-ca FILE`"
            )
    engines = tuple(dict.fromkeys(HostPort.parse(e) for pool in config.pools for e in pool.endpoints.known))
    found = [pool for pool in config.pools if pool.endpoints.static is None]
    if found:
        raise click.ClickException(
            f"{file}: pool {found[0].name!r} has {found[0].endpoints.told}, and `fairlane up` needs their addresses "
            "for its Envoy: name them, or run `fairlane serve` behind an Envoy made by `fairlane envoy-config`"
        )
    away = [str(engine) for engine in engines if not _is_local(engine.host)]
    if simulate and away:
        raise click.ClickException(
            f"{file} names engines on other machines ({', '.join(away)}): "
            "give --no-sim to use them, or name addresses on 127.0.0.1 for simulated ones"
        )
    return addresses._replace(
        ext_proc=_reachable(config.listen.ext_proc),
        admin=_admin(config.listen.admin),
        http=_reachable(config.listen.http),
        engines=engines,
    )


def _reachable(listen: str) -> HostPort:
    at = HostPort.parse(listen)
    return at._replace(host=_WILDCARDS.get(at.host, at.host))


def _admin(listen: str) -> HostPort | UnixSocket:
    return UnixSocket(listen.removeprefix(_UNIX)) if listen.startswith(_UNIX) else _reachable(listen)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _run_all(options: StackOptions, several: Replicas | None) -> None:
    if several is None:
        await _run(Stack(options))
    else:
        async with replicated(options, several) as options:
            await _run(Stack(options))


async def _run(stack: Stack) -> None:
    """Start, tell, wait for a signal or for the end of a part, stop. Raises StackError."""
    asked, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    running = asyncio.create_task(_start_and_watch(stack))
    try:
        await _first(running, asyncio.create_task(asked.wait()))
        if running.done():
            await running  # raises what happened
        click.echo("\nStopping ...", err=True)
    finally:
        running.cancel()
        stopping = asyncio.create_task(_stop(stack, running))
        await _first(stopping, asyncio.create_task(hurry.wait()))
        if not stopping.done():
            stack.kill_all()
        await stopping


async def _start_and_watch(stack: Stack) -> None:
    for name in laid_aside():
        click.echo(
            f"Warning: {_printable(name)} has no effect: what `fairlane up` starts goes by a file alone. Write it into "
            "yours and give --config FILE",
            err=True,
        )
    click.echo("Starting Envoy, Fairlane and the engines ...", err=True)
    await stack.start()
    click.echo(_welcome(stack))
    echoing = asyncio.create_task(_echo_logs(stack.children))
    try:
        await stack.wait(lambda told: click.echo(told, err=True))
    finally:
        echoing.cancel()


def _printable(name: str) -> str:
    from extproc.config.environment import shown_name  # late, as above

    return shown_name(name)


async def _stop(stack: Stack, running: asyncio.Task[None]) -> None:
    await asyncio.gather(running, return_exceptions=True)  # a start that was interrupted stops what it had started
    await stack.stop()


async def _first(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Until one is done; the second and later ones are given up."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for waiting in tasks[1:]:
        waiting.cancel()


async def _echo_logs(children: Sequence[Child]) -> None:
    """Copy what the parts log from now on to standard error, with their names before it."""
    with contextlib.ExitStack() as files:
        logs = []
        for child in children:
            log = files.enter_context(child.log.open("rb"))
            log.seek(0, 2)
            logs.append((child.name, log))
        while True:
            for name, log in logs:
                for line in log.read().decode(errors="replace").splitlines():
                    click.echo(f"{name:>10} | {line}", err=True)
            await asyncio.sleep(_ECHO_S)


def _welcome(stack: Stack) -> str:
    at = stack.addresses
    engines = ", ".join(f"http://{engine}" for engine in at.engines)
    kind = "simulated engines" if stack.options.simulate else "engines"
    model = "sim-7b" if stack.options.simulate else "YOUR-MODEL"
    ctl = _called("ctl", stack)
    others = "".join(
        f"\n            ext_proc {each.ext_proc}, admin gRPC {each.admin}, http://{each.http}/metrics"
        for each in stack.options.replicas[1:]
    )
    return f"""
Envoy       {stack.url}  (send requests here; its admin page: http://{at.envoy_admin})
Fairlane    ext_proc {at.ext_proc}, admin gRPC {at.admin}, http://{at.http}/metrics{others}
Engines     {engines}  ({kind})
See it      http://{at.http}/  (the live page; in a terminal: {_called("top", stack)})
Operate     {ctl} status  (or watch, requests, set, rollback ...: see its --help)
Logs        {stack.directory}

Try it:

curl -N {stack.url}/v1/chat/completions -H 'content-type: application/json' -H 'x-tenant: team-a' \\
  -d '{{"model": "{model}", "stream": true, "max_tokens": 32, "messages": [{{"role": "user", "content": "Hello"}}]}}'

or with the openai package:

from openai import OpenAI

client = OpenAI(base_url="{stack.url}/v1", api_key="none", default_headers={{"x-tenant": "team-a"}})
for chunk in client.chat.completions.create(
    model="{model}", stream=True, max_tokens=32, messages=[{{"role": "user", "content": "Hello"}}]
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)

Ctrl-C stops everything.
"""


def _called(command: str, stack: Stack) -> str:
    """`fairlane ctl`, or `top`, as it is called for this stack from the folder in which it was started. What the
    service asks of its callers (a token, a certificate) is for those who asked for it."""
    called = f"{_program()} {command}"
    at = stack.addresses.admin
    if at == DEFAULT_ADMIN:
        return called
    if isinstance(at, UnixSocket):
        at = UnixSocket(str(stack.directory.absolute() / at.path))
    return f"{called} --address {shlex.quote(str(at))}"


def _program() -> str:
    """How this program is called from this folder: by its path when it lies below, since `make up` runs the one of
    .venv, which is on nobody's PATH."""
    # Not resolve(): it follows links, and .venv may be one.
    started = Path(os.path.abspath(sys.argv[0]))  # noqa: PTH100
    if started.name == "fairlane" and started.is_relative_to(Path.cwd()):
        return shlex.quote(str(started.relative_to(Path.cwd())))
    return "fairlane"
