"""`fairlane ctl mode`, `pause`, `resume`, `drain` and `boost`."""

from __future__ import annotations

import click

from extproc.cli.ctl.change import Terms, make, terms
from extproc.cli.ctl.pools import complete_pool, complete_tenant
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2


@click.command("mode", cls=Command)
@click.argument("pool", shell_complete=complete_pool)
@click.argument("mode", type=click.Choice(["enforce", "observe", "off"]))
@click.option(
    "--percentage", type=float, help="Of those that --of says, 0 to 100; for the others it is the next weaker."
)
@click.option("--of", "of", type=click.Choice(["tenants", "requests"]), help="What --percentage is of.")
@terms()
@pass_session
def mode(session: Session, pool: str, mode: str, percentage: float | None, of: str | None, terms: Terms) -> None:
    """How a pool treats requests: they wait their turn (enforce); they pass, and it is reported what would have become
    of them (observe); they pass (off)."""
    request = admin_pb2.SetPoolRequest(
        pool=pool, mode=mode.upper(), percentage=percentage, percentage_of=of.upper() if of else None
    )
    make(session, "SetPool", request, terms)


@click.command("pause", cls=Command)
@click.argument("pool", shell_complete=complete_pool)
@terms()
@pass_session
def pause(session: Session, pool: str, terms: Terms) -> None:
    """Release nothing of a pool; what comes waits."""
    make(session, "SetPool", admin_pb2.SetPoolRequest(pool=pool, traffic=admin_pb2.PAUSED), terms)


@click.command("resume", cls=Command)
@click.argument("pool", shell_complete=complete_pool)
@terms()
@pass_session
def resume(session: Session, pool: str, terms: Terms) -> None:
    """End a pause, or a drain."""
    make(session, "SetPool", admin_pb2.SetPoolRequest(pool=pool, traffic=admin_pb2.OPEN), terms)


@click.command("drain", cls=Command)
@click.argument("pool", shell_complete=complete_pool)
@terms()
@pass_session
def drain(session: Session, pool: str, terms: Terms) -> None:
    """Take nothing more in for a pool; what waits gets its turn."""
    make(session, "SetPool", admin_pb2.SetPoolRequest(pool=pool, traffic=admin_pb2.DRAINING), terms)


@click.command("boost", cls=Command)
@click.argument("tenant", shell_complete=complete_tenant)
@click.argument("factor", type=float)
@terms(ttl="required")
@pass_session
def boost(session: Session, tenant: str, factor: float, terms: Terms) -> None:
    """A tenant's weight times FACTOR, for a while."""
    make(session, "BoostTenant", admin_pb2.BoostTenantRequest(tenant=tenant, factor=factor), terms)
