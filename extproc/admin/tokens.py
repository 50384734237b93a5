"""Tokens of the admin port: SHA-256 of a token -> who has it, and what that one may do.

    # openssl rand -hex 32 > token; printf %s "$(cat token)" | sha256sum
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08: {name: alice, role: admin}
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752: {name: dashboard, role: viewer}

Two tokens may have one name, which is how a token is replaced. How the file is read, when again, and why a digest is
safe to look up: see `config.digest_file`.

One way to show a token: `authorization: Bearer TOKEN`, once. Two values would leave it to chance whose the call is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.config.administration import ROLES, Role
from extproc.config.digest_file import DigestFile, FaultError
from extproc.config.identity import LONGEST_NAME, usable

LOCAL = "local"  # name of those who need show nothing
_RESERVED = (LOCAL, "fairlane")  # the second is the service itself, in what is kept of changes
LONGEST_TOKEN = 4096  # characters


class BearerError(Exception):
    """What is wrong with the way a token is shown. Without a word of it."""


@dataclass(frozen=True, slots=True)
class Holder:
    name: str
    role: Role


class TokenFile(DigestFile[Holder]):
    """One file of tokens."""

    secret = "token"  # noqa: S105
    stands_for = "{name, role}"

    def entry(self, value: object) -> Holder:
        if not isinstance(value, dict) or value.keys() != {"name", "role"}:
            raise FaultError("expected {name, role}")
        name, role = value["name"], value["role"]
        if not isinstance(name, str) or usable(name) != name:
            raise FaultError(f"its name must be printable text of at most {LONGEST_NAME} characters")
        if name in _RESERVED:
            raise FaultError(f"its name may not be {' or '.join(_RESERVED)}, which stand for others in the audit")
        if role not in ROLES:
            raise FaultError(f"its role must be one of {', '.join(ROLES)}")
        return Holder(name, role)


def digest_of(values: Sequence[str | bytes]) -> str | None:
    """Of the token in the values of `authorization`; None where there is none. Raises BearerError."""
    if not values:
        return None
    if len(values) > 1:
        raise BearerError("more than one authorization")
    value = values[0]
    if len(value) > LONGEST_TOKEN + len("Bearer "):
        raise BearerError(f"a token of more than {LONGEST_TOKEN} characters")
    scheme, _, token = value.partition(" ") if isinstance(value, str) else ("", "", "")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token or " " in token:
        raise BearerError("no authorization of the form: Bearer TOKEN")
    return hashlib.sha256(token.encode()).hexdigest()
