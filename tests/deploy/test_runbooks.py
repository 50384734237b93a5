"""The runbooks name commands that exist, and headings that can be reached."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from promql import ROOT

from extproc.cli.main import main

DOCS = ROOT / "docs"
SECTION = (DOCS / "operations.md").read_text().split("\n## Alerts\n", 1)[1]
COMMANDS = sorted(set(re.findall(r"`(fairlane (?:ctl|top|check-config|doctor)[^`]*)`", SECTION.replace("\n  ", " "))))


def parse(words: list[str]) -> None:
    """As click does it, without running anything. Raises click.ClickException for what does not exist."""
    command: click.Command = main
    context = click.Context(main, info_name="fairlane")
    while isinstance(command, click.Group) and words:
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        if isinstance(found, click.Group):
            # the group's own options, up to its command
            parser = found.make_parser(context)
            parser.allow_interspersed_args = False
            _, words, _ = parser.parse_args(words)
        command = found
        context = click.Context(command, info_name=name, parent=context)
    if not isinstance(command, click.Group):
        command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "..." not in c.split(" --reason")[0].split()])
def test_a_command_exists(command: str) -> None:
    parse(shlex.split(command)[1:])


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 20
    with pytest.raises(click.ClickException):
        parse(["ctl", "flows", "--sort", "tag"])


def test_links_lead_to_headings() -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", SECTION):
        page, _, anchor = target.partition("#")
        file = DOCS / page if page else DOCS / "operations.md"
        assert file.exists(), target
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target
