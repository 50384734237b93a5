"""What the client library and the store say went wrong, as StoreError."""

from __future__ import annotations

import re
import ssl
from typing import Final

from redis import exceptions as redis

from extproc.cluster.errors import Kind, StoreError
from extproc.cluster.scripts import COMMANDS

# A script's error comes within another one's text in older versions.
_CODE: Final = re.compile(r"(?:^|[\s-])(READONLY|OOM|WRONGTYPE|NOPERM|NOREPLICAS|MISCONF|SCRIPT|CROSSSLOT)\b")
_KEY: Final = re.compile(r"\([A-Z]+ (\{fairlane:[^ ]*)\)")
_LONGEST: Final = 300  # characters of what the store says
_OF_A_KEY: Final = re.compile(r"\baccess\b[^(]*\bkeys?\b")  # what `scripts` says of it comes in brackets
_KEYS: Final = "~{fairlane:NAME}:*"
_RIGHTS: Final = f"+{' +'.join(COMMANDS)}, +select for a database other than 0"
_CURES: Final[dict[str, tuple[Kind, str]]] = {
    "READONLY": (
        "read_only",
        "takes no writes: it is the replica of another one. Name the one that takes writes in "
        "cluster.store.addresses, or let Sentinel find it (kind: sentinel)",
    ),
    "OOM": (
        "full",
        "has no memory left: give it more (maxmemory), or look what else fills it. Fairlane needs a few MiB of its own",
    ),
    "NOREPLICAS": (
        "read_only",
        "takes no writes while too few of its replicas follow (min-replicas-to-write): bring them back, or ask for "
        "fewer; what Fairlane keeps there needs none",
    ),
    "MISCONF": (
        "read_only",
        "takes no writes because it cannot save to its disk: mend that, or turn saving off (CONFIG SET "
        "stop-writes-on-bgsave-error no); what Fairlane keeps there need not be saved",
    ),
    "CROSSSLOT": ("other", "does not have all keys of a cluster in one slot, which a cluster of Redis or Valkey does"),
    "SCRIPT": ("script", "cannot run the script: it must be Valkey, or Redis from 6.2 on"),
}


def told(error: BaseException, where: str) -> StoreError:
    """`where`: the address."""
    if isinstance(error, StoreError):
        return error
    text = _said(error)
    if (reason := _tls(error)) is not None:
        return StoreError("tls", f"no TLS with the store at {where}: {reason}")
    if isinstance(error, redis.AuthenticationError) or "unauthenticated" in text:
        return StoreError(
            "auth",
            f"the store at {where} does not take the login: {text}. Check cluster.store.username and password_file "
            "(sentinel_password_file for a Sentinel)",
        )
    if isinstance(error, redis.NoPermissionError) or "user executing the script" in text or "NOPERM" in text:
        if _OF_A_KEY.search(text):
            return StoreError(
                "auth",
                f"the account needs the keys {_KEYS} (NAME is cluster.name) in the store at {where}, and may not use "
                f"them: {text}. The commands that it needs there are {_RIGHTS}",
            )
        return StoreError(
            "auth",
            f"the account may not do that in the store at {where}: {text}. It needs {_RIGHTS}, and the keys {_KEYS}",
        )
    if isinstance(error, redis.BusyLoadingError):
        return StoreError("unreachable", f"the store at {where} is loading its data: it is over when that is done")
    if isinstance(error, redis.ConnectionError | OSError):
        return StoreError(
            "unreachable",
            f"no connection to the store at {where}: {text}. Is it running, is cluster.store.addresses right, does "
            "the network let us through, and does it speak TLS (cluster.store.tls)?",
        )
    if isinstance(error, redis.InvalidResponse):
        return StoreError("unreachable", f"what answers at {where} is neither Valkey nor Redis: {text}")
    return _answered(error, text, where)


def odd(error: Exception, where: str) -> StoreError:
    """An answer that is not what was asked for. `error`: of who has read it."""
    return StoreError(
        "other",
        f"what answers at {where} is no store that ran our script: {type(error).__name__}: {_said(error)}; look "
        "whether cluster.store.addresses names Valkey or Redis",
    )


def is_of_address(error: BaseException) -> bool:
    """Whether another connection, or another address, may do better."""
    if isinstance(error, redis.AuthenticationError) or _tls(error) is not None:
        return False
    if isinstance(error, redis.ConnectionError | OSError | redis.ClusterDownError | redis.MasterDownError):
        return True
    return _code(error, str(error)) == "READONLY"


def _answered(error: BaseException, text: str, where: str) -> StoreError:
    code = _code(error, text)
    if code == "WRONGTYPE":
        return _of_another_type(text, where)
    if code in _CURES:
        kind, cure = _CURES[code]
        return StoreError(kind, f"the store at {where} {cure}. It says: {text}")
    if isinstance(error, redis.MovedError | redis.AskError | redis.TryAgainError):
        return StoreError(
            "other",
            f"the store at {where} is a node of a cluster that sends us elsewhere: say cluster.store.kind: cluster. "
            f"Where it says that already, slots are being moved, and it is over when they are. It says: {text}",
        )
    if isinstance(error, redis.ClusterDownError | redis.MasterDownError):
        return StoreError("unreachable", f"the cluster of which {where} is a node is down: {text}")
    return StoreError("other", f"the store at {where} refuses: {text}")


def _of_another_type(text: str, where: str) -> StoreError:
    found = _KEY.search(text)
    key = found[1] if found else "one of the keys of this cluster"
    return StoreError(
        "wrong_type",
        f"in the store at {where} the key {key} is of another type: another program uses it. Take another "
        f"cluster.name, another cluster.store.database, or delete the key. It says: {text}",
    )


def _code(error: BaseException, text: str) -> str | None:
    if isinstance(error, redis.ReadOnlyError):
        return "READONLY"
    if isinstance(error, redis.OutOfMemoryError):
        return "OOM"
    if isinstance(error, redis.ClusterCrossSlotError):
        return "CROSSSLOT"
    found = _CODE.search(text)
    return found[1] if found else None


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _tls(error: BaseException) -> str | None:
    """The cause and the cure, where it is about TLS."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return None
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate does not count ({cause.verify_message or cause.reason}): cluster.store.tls.ca must "
                "be of who has signed it, and tls.name what it carries, where that is not the host of the address"
            )
        if isinstance(cause, ssl.SSLError):
            return (
                f"{cause.reason or cause}. Does that port speak TLS, and does it ask for a certificate of ours "
                "(cluster.store.tls.certificate and key)?"
            )
        cause = cause.__cause__ or cause.__context__
    return None
