"""Names that people choose, as the configuration takes them.

A name is a key in files, logs, metrics and tables. One that cannot be seen, breaks a line or turns the direction of
writing makes those say something else than they hold; and no request has such a name, see `identity.usable`.
"""

from __future__ import annotations

LONGEST_NAME = 256  # characters


def name_fault(name: str) -> str:
    """What is wrong with the name of a tenant, to be said behind it; empty: nothing."""
    if not name.strip():
        return "must not be empty or blank"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters, and may have {LONGEST_NAME}"
    if not name.isprintable():
        return "has what cannot be printed: control characters, or such as turn the direction of writing"
    return ""
