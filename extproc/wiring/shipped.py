"""The files in `envoy/` that are made from the base file.

    python -m extproc.wiring.shipped [folder]

writes them; a test compares them with what is made now.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from extproc.wiring.build import Addresses, Built, build
from extproc.wiring.description import NEWEST, Wiring
from extproc.wiring.text import as_yaml

# Name and what makes it: options of `fairlane envoy-config`, and the same as a description.
SHIPPED: dict[str, tuple[str, Wiring]] = {
    "strict.yaml": ("--profile strict", Wiring(profile="strict")),
    "body.yaml": ("--profile body", Wiring(profile="body")),
    "duplex.yaml": ("--profile duplex", Wiring(profile="duplex")),
    "standard-stream.yaml": ("--usage stream", Wiring(usage="stream")),
    "standard-estimate.yaml": ("--usage estimate", Wiring(usage="estimate")),
    "standard-lua.yaml": (
        "--facts lua --append",
        Wiring(facts="lua", append=True, unscheduled_priority=Wiring().default_priority),
    ),
    "standard-1.36.yaml": ("--envoy-version 1.36", Wiring(envoy=36)),
}
_ENGINES = "--engine 127.0.0.1:8001 --engine 127.0.0.1:8002"


def head(wiring: Wiring, built: Built, command: str) -> list[str]:
    """The comment at the head of a generated file, in paragraphs."""
    return [
        f"Envoy for Fairlane: profile {wiring.profile}, usage {wiring.usage}, facts {wiring.facts_used}; "
        f"for Envoy 1.{wiring.oldest_envoy} to 1.{NEWEST}.",
        f"Written by: {command}",
        "It is envoy.yaml, which says why each setting is there, with these differences:"
        if built.differs or built.degraded
        else "It is envoy.yaml, which says why each setting is there.",
        *(f"- {each}" for each in (*built.differs, *built.degraded)),
    ]


def text(name: str) -> str:
    """What stands in the file of that name. Raises KeyError and EnvoyFileError."""
    options, wiring = SHIPPED[name]
    built = build(wiring, Addresses())
    command = f"fairlane envoy-config {options} {_ENGINES} --output envoy/{name}"
    return as_yaml(built.config, head(wiring, built, command))


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path("envoy")
    for name in SHIPPED:
        (folder / name).write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
