"""`fairlane bench`: the benchmarks. Each is a module of its own, imported when it is called."""

from __future__ import annotations

import importlib
import importlib.util

import click

_COMMANDS = {
    "admin": "extproc.cli.bench_admin:admin",
    "affinity": "extproc.cli.bench_affinity:affinity",
    "cluster": "extproc.cli.bench_cluster:cluster",
    "core": "extproc.cli.bench_core:core",
    "fairness": "extproc.cli.bench_fairness:fairness",
    "metrics": "extproc.cli.bench_metrics:metrics",
    "scrape": "extproc.cli.bench_scrape:scrape",
    "wire": "extproc.cli.bench_wire:wire",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(name for name, place in _COMMANDS.items() if importlib.util.find_spec(place.partition(":")[0]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command


@click.group("bench", cls=_Lazy)
def bench() -> None:
    """Benchmarks: fairness in virtual time, the speed of the core, reading of metrics, a scrape of Fairlane's own, the
    gateway on the wire, live changes, several replicas."""
