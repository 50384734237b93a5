"""The way to a service's admin port: over TCP or a Unix socket, with or without TLS, with or without a token.

A token is read from a file or the environment. It has no option: the command line of a process can be read by all
users of a machine, and stays in the shell's history. It is not sent unprotected to another machine unless that is
asked for. Calls are made once: a change that may have arrived is not sent again.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc import __version__
from extproc.cli.ctl.failure import Exit, Failure
from extproc.cli.ports import HostPort

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

UNIX = "unix:"
_MOST_BYTES = 64 * 1024**2  # of one answer
_LONGEST_TOKEN = 4096


@dataclass(frozen=True)
class Target:
    """Where the service is, and how it is reached. Files are read when the connection is made."""

    address: str  # host:port or unix:PATH
    token: str | None = None
    tls: bool = False
    ca: Path | None = None  # None: the authorities that gRPC brings
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    insecure_token: bool = False
    timeout_s: float = 10.0  # for each answer

    def check(self) -> None:
        """Raises click.UsageError for what does not go together."""
        if not self.address.startswith(UNIX):
            try:
                HostPort.parse(self.address)
            except ValueError as error:
                raise click.UsageError(f"--address: {error}, or unix:PATH") from None
        elif self.address == UNIX:
            raise click.UsageError("--address: unix: needs the path of a socket, like unix:/run/fairlane/admin.sock")
        if (self.certificate is None) != (self.key is None):
            raise click.UsageError("--certificate and --key go together: give both or none")
        if self.server_name is not None and not self.encrypted:
            raise click.UsageError("--server-name is what the service's certificate is checked for: give --ca or --tls")
        if self.token is not None and not (self.encrypted or self.local or self.insecure_token):
            raise click.UsageError(
                f"the token would go to {self.address} in plain text, for anybody on the way to read and to use: give "
                "--ca or --tls, or --insecure-token if the way is safe"
            )

    @property
    def encrypted(self) -> bool:
        return self.tls or self.ca is not None or self.certificate is not None

    @property
    def local(self) -> bool:
        """On this machine."""
        if self.address.startswith(UNIX):
            return True
        host = HostPort.parse(self.address).host
        if host == "localhost":
            return True
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return False
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


class Connection:
    """Calls of one service's admin API. Not made before the first call; to be closed."""

    def __init__(self, target: Target) -> None:
        target.check()
        self.target = target
        # What gRPC's core logs of a failed connection is in the error as well, and better.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        import grpc  # late: for --help nobody should wait

        from extproc.pb.admin.v1 import admin_pb2_grpc

        self._grpc = grpc
        self._metadata = [] if target.token is None else [("authorization", f"Bearer {target.token}")]
        self._channel = self._open()
        stub: Any = admin_pb2_grpc.AdminStub  # generated without types
        self._stub = stub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Message, *, changes: bool = False) -> Any:
        """The answer. `changes`: so that a call without an answer may have done something. Raises Failure."""
        try:
            return getattr(self._stub, method)(request, timeout=self.target.timeout_s, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._failure(error, method, changes=changes) from None

    def stream(self, method: str, request: Message) -> Iterator[Any]:
        """The answers, for as long as they come. Raises Failure."""
        from extproc.pb.admin.v1 import admin_pb2

        # A stream has no deadline, so that the service is there is found out by a call that has one.
        self.call("GetStatus", admin_pb2.GetStatusRequest())
        answers = getattr(self._stub, method)(request, metadata=self._metadata)
        try:
            yield from answers
        except self._grpc.RpcError as error:
            raise self._failure(error, method) from None
        finally:
            answers.cancel()

    def _open(self) -> grpc.Channel:
        target, grpc = self.target, self._grpc
        at = target.address
        if at.startswith(UNIX):  # gRPC takes it for a URI
            at = UNIX + urllib.parse.quote(at.removeprefix(UNIX))
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", _MOST_BYTES),
            ("grpc.enable_retries", 0),
            ("grpc.primary_user_agent", f"fairlane-ctl/{__version__}"),
        ]
        if target.local:  # gRPC would take even this through a proxy that the environment names
            options.append(("grpc.enable_http_proxy", 0))
        if not target.encrypted:
            return grpc.insecure_channel(at, options)
        if target.server_name is not None:
            options.append(("grpc.ssl_target_name_override", target.server_name))
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_content(target.ca, "--ca"),
            private_key=_content(target.key, "--key"),
            certificate_chain=_content(target.certificate, "--certificate"),
        )
        return grpc.secure_channel(at, credentials, options)

    def _failure(self, error: Any, method: str, *, changes: bool = False) -> Failure:
        code, said, at = error.code(), error.details() or "", self.target.address
        codes = self._grpc.StatusCode
        maybe = ["It may have been done all the same: `fairlane ctl history` says."] if changes else []
        if code is codes.UNAVAILABLE:
            details = ["Does Fairlane run there? --address or FAIRLANE_ADDRESS names another place."]
            if self.target.encrypted:
                details = ["Is TLS spoken there, by a certificate of --ca for that name (--server-name)?"]
            elif "Connection refused" not in said and not at.startswith(UNIX):
                details.append("If it wants TLS: --ca or --tls.")
            return Failure(f"cannot reach {at}: {said}", Exit.UNREACHABLE, details + maybe)
        if code is codes.DEADLINE_EXCEEDED:
            seconds = f"{self.target.timeout_s:g}s"
            return Failure(f"{at} has not answered within {seconds} (--timeout)", Exit.UNREACHABLE, maybe)
        if code is codes.UNIMPLEMENTED:
            return Failure(
                f"{at} has no {method}: it is older than this `fairlane ctl`, or that is not its admin port ({said})"
            )
        exits = {
            codes.UNAUTHENTICATED: Exit.NOT_ALLOWED,
            codes.PERMISSION_DENIED: Exit.NOT_ALLOWED,
            codes.ABORTED: Exit.CHANGED,
        }
        details = [
            f"{field}: {what}" if field else what
            for field, what in _violations(error)
            if what not in said or (field and what == said)  # else the message has it, and its place as well
        ]
        return Failure(said or code.name, exits.get(code, Exit.REFUSED), details)


def read_token(file: Path) -> str:
    """The token that a file holds, and nothing else. Raises click.UsageError, which does not show it."""
    content = _content(file, "--token-file", most=_LONGEST_TOKEN + 2)
    return checked_token((content or b"").decode("ascii", "replace"), str(file))


def checked_token(text: str, source: str) -> str:
    """Without blanks around it. Raises click.UsageError, which does not show it."""
    token = text.strip()
    if not token:
        raise click.UsageError(f"{source} has no token: it is empty")
    if len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise click.UsageError(
            f"{source} has no token: one has up to {_LONGEST_TOKEN} letters, digits and signs, without blanks"
        )
    return token


def _content(file: Path | None, option: str, most: int = 4 * 1024**2) -> bytes | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        raise click.UsageError(f"{option}: {file} cannot be read: {error.strerror or error}") from None


def _violations(error: Any) -> list[tuple[str, str]]:
    """Fields, and what is wrong with each, as `google.rpc.BadRequest` has it."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    try:
        status = rpc_status.from_call(error)
    except (ValueError, AttributeError):  # its details are of another call, or not there
        return []
    found = []
    for packed in () if status is None else status.details:
        bad = error_details_pb2.BadRequest()
        if packed.Unpack(bad):
            found += [(each.field, each.description) for each in bad.field_violations]
    return found
