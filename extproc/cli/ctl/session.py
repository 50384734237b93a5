"""What all commands of `fairlane ctl` share: the options that say where the service is, and how they end.

The options stand before the command or after it; after it wins. Settings from the environment count where no option is
given. Nothing is connected before a command calls.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from google.protobuf.message import Message

from extproc.cli.ctl.connection import Connection, Target, checked_token, read_token
from extproc.cli.ctl.failure import INTERRUPTED, READER_GONE, Failure
from extproc.cli.ctl.notation import DURATION
from extproc.cli.ctl.output import FORMATS, Printer

DEFAULT_ADDRESS = "127.0.0.1:50052"
_DEFAULT_TIMEOUT_S = 10.0
_SETTINGS = "fairlane.ctl.settings"
_FILE = click.Path(path_type=Path)


class Session:
    """One run of a command. `settings`: what the options say, by their names."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._connection: Connection | None = None

    @property
    def printer(self) -> Printer:
        return Printer(self._settings.get("output") or "table")

    def call(self, method: str, request: Message, *, changes: bool = False) -> Any:
        """See `Connection.call`."""
        return self._connected().call(method, request, changes=changes)

    def stream(self, method: str, request: Message) -> Iterable[Any]:
        """See `Connection.stream`."""
        return self._connected().stream(method, request)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def target(self) -> Target:
        """Raises click.UsageError where files or options do not fit."""
        of = self._settings.get
        timeout_s: float | None = of("timeout")
        return Target(
            address=of("address") or DEFAULT_ADDRESS,
            token=self._token(),
            tls=bool(of("tls")),
            ca=of("ca"),
            certificate=of("certificate"),
            key=of("key"),
            server_name=of("server_name"),
            insecure_token=bool(of("insecure_token")),
            timeout_s=_DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
        )

    def _token(self) -> str | None:
        """Of --token-file, else of FAIRLANE_TOKEN, else of FAIRLANE_TOKEN_FILE."""
        if self._settings.get("token_file"):
            return read_token(self._settings["token_file"])
        if os.environ.get("FAIRLANE_TOKEN"):
            return checked_token(os.environ["FAIRLANE_TOKEN"], "FAIRLANE_TOKEN")
        if os.environ.get("FAIRLANE_TOKEN_FILE"):
            return read_token(Path(os.environ["FAIRLANE_TOKEN_FILE"]))
        return None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.target())
        return self._connection


pass_session = click.make_pass_decorator(Session)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """An option after the command takes the place of the one before it, and of the environment."""
    assert param.name is not None  # noqa: S101 - click gives every option one
    source = ctx.get_parameter_source(param.name)
    settings = ctx.meta.setdefault(_SETTINGS, {})
    if source is ParameterSource.COMMANDLINE or (source is ParameterSource.ENVIRONMENT and value not in ("", None)):
        settings[param.name] = value
    return value


def connection_options(*, of_group: bool) -> list[click.Parameter]:
    """Of the group `ctl`, with what the environment says, or of a command, without help: they are told once."""

    def option(*names: str, help: str, envvar: str | None = None, **more: Any) -> click.Option:  # noqa: A002 - click's
        return click.Option(
            names,
            help=help,
            envvar=envvar if of_group else None,
            show_envvar=True,
            hidden=not of_group,
            callback=_keep,
            expose_value=False,
            **more,
        )

    return [
        option(
            "--address",
            envvar="FAIRLANE_ADDRESS",
            metavar="HOST:PORT|unix:PATH",
            help=f"The service's admin port.  [default: {DEFAULT_ADDRESS}]",
        ),
        option("--token-file", type=_FILE, help="File of a token; or FAIRLANE_TOKEN_FILE, or FAIRLANE_TOKEN itself."),
        option("--ca", type=_FILE, envvar="FAIRLANE_CA", help="Authorities of the service's certificate; means TLS."),
        option("--certificate", type=_FILE, envvar="FAIRLANE_CERTIFICATE", help="Certificate to show; means TLS."),
        option("--key", type=_FILE, envvar="FAIRLANE_KEY", help="Its private key."),
        option("--tls", is_flag=True, envvar="FAIRLANE_TLS", help="TLS, with the authorities that gRPC knows."),
        option("--server-name", envvar="FAIRLANE_SERVER_NAME", help="Name in the service's certificate."),
        option("--insecure-token", is_flag=True, help="Send the token to another machine in plain text."),
        option("--timeout", type=DURATION, envvar="FAIRLANE_TIMEOUT", help="For an answer.  [default: 10s]"),
        option("--output", "-o", type=click.Choice(FORMATS), envvar="FAIRLANE_OUTPUT", help="[default: table]"),
    ]


class Command(click.Command):
    """A command of `fairlane ctl`. Whatever happens ends in a message and an exit code."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params += connection_options(of_group=False)
        self.epilog = "Options of `fairlane ctl` (see its --help) may stand here, too."

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.find_object(Session)
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _reader_gone()
        except UnicodeEncodeError:  # of what was typed; the names of files may be so
            raise click.UsageError("an argument is not UTF-8") from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from None
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:  # a fault of ours, and a traceback would not help who reads it
            raise Failure(f"this is a fault of Fairlane's own: {type(error).__name__}: {error}") from error
        finally:
            if session is not None:
                with contextlib.suppress(Exception):
                    session.close()


class Group(click.Group):
    """Commands by name, each "module:attribute" below this package, imported when it is called."""

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = dict(places or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command


def settings_of(ctx: click.Context) -> dict[str, Any]:
    """What the options of this run say so far; later ones are seen, too."""
    settings: dict[str, Any] = ctx.meta.setdefault(_SETTINGS, {})
    return settings


def completing(ask: Callable[[Session], Iterable[str]]) -> Callable[..., list[str]]:
    """For an argument's `shell_complete`: names that the service is asked for. Failing that there are none."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        session = Session({**settings_of(ctx), "timeout": 1.0})
        try:
            # what a terminal acts on is no name to complete
            return sorted({n for n in ask(session) if n.startswith(incomplete) and n.isprintable() and " " not in n})
        except Exception:  # the shell shows what it gets, and a person is typing
            return []
        finally:
            session.close()

    return complete


def _reader_gone() -> NoReturn:
    """As `| head` does it. What is buffered has no reader either, and would fail at the interpreter's end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(READER_GONE)
