"""`fairlane ctl completion`: the script with which a shell completes commands, options and names of pools."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from extproc.cli.ctl.session import Command

_INSTALL = {
    "bash": 'eval "$(fairlane ctl completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(fairlane ctl completion zsh)"    # in ~/.zshrc',
    "fish": "fairlane ctl completion fish > ~/.config/fish/completions/fairlane.fish",
}


@click.command("completion", cls=Command, help="Print the script for a shell.\n\n\b\n" + "\n".join(_INSTALL.values()))
@click.argument("shell", type=click.Choice(tuple(_INSTALL)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    root = ctx.find_root().command
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows the three
    click.echo(made(root, {}, "fairlane", "_FAIRLANE_COMPLETE").source())
