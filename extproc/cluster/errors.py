"""What can be wrong with the store, as it is told to people. No password is ever part of a message."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "unreachable",  # no connection, or one that broke
    "timeout",
    "auth",  # password, account, or a command that the account may not use
    "tls",
    "read_only",
    "wrong_type",  # a key is somebody else's
    "script",
    "full",
    "in_use",  # another process has the id of this replica
    "missing",  # the package `redis` is not installed
    "other",
]


class StoreError(Exception):
    """The store has not done what it was asked. The message names the cause and the cure. Whether something was written
    is not known with `unreachable`, `timeout` and `other`; with every other kind nothing was."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
