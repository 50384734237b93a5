"""The page's files: plain HTML, CSS and JavaScript modules, served as they lie here. There is no build step.

The page may load nothing but these, and may run no script that is written into a document: what a tenant is called
stays a text, whatever it says.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of everything that belongs to the page."""


class Asset(NamedTuple):
    content_type: str
    body: bytes


def assets() -> dict[str, Asset]:
    """By path; "/" is the page."""
    found = {}
    for file in files("extproc.telemetry.live").joinpath("page").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = Asset(_TYPES[ending], file.read_bytes())
    return found
