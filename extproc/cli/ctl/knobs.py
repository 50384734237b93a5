"""`fairlane ctl tenant` and `class`: an option for each setting, with the names and notation of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from google.protobuf import duration_pb2, field_mask_pb2

from extproc.cli.ctl.change import Terms, make, terms
from extproc.cli.ctl.notation import DURATION, SIZE
from extproc.cli.ctl.pools import complete_class, complete_tenant
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Knob:
    """One setting. `words`: what the file's words are in the API, where those are not the same."""

    option: str  # as the key in the file, with gates.x as gate-x
    field: str  # of the message, with dots to those inside others
    kind: Any = None  # click's type; None: text
    help: str = ""
    words: dict[str, bool] | None = None
    many: bool = False

    @property
    def key(self) -> str:
        return self.option.replace("-", "_")


TENANT = (
    Knob("weight", "weight", float, "Share of the engines, against other tenants of the same class."),
    Knob("max-queued", "max_queued_requests", int, "Requests waiting, in each class."),
    Knob("max-queued-bytes", "max_queued_bytes", SIZE, "Of waiting bodies, like 512MiB."),
    Knob("max-queued-tokens", "max_queued_tokens", int, "Estimated, in each class."),
    Knob("max-in-flight", "max_in_flight_slots", int, "Slots inside the engines, in each class."),
    Knob("rate", "rate_cost_per_second", float, "Cost units a second."),
    Knob("rate-burst", "rate_burst_cost", float, "Cost units that may go at once before the rate holds."),
    Knob("burst", "burst_cost", float, "Cost units that may be saved up while nothing waits."),
    Knob("parent", "parent", None, "Tenant under which it hangs."),
    Knob("default-class", "default_class", None, "Of requests that name none."),
    Knob("class", "classes", None, "That it may use; repeat it.", many=True),
)

CLASS = (
    Knob("rank", "rank", int, "A lower one goes first."),
    Knob("priority", "priority", int, "Base of what the engine is told."),
    Knob("queue-timeout", "queue_timeout", DURATION, "Then 503; like 5m."),
    Knob("max-waiting", "max_waiting_requests", int, "Standing queue inside each engine."),
    Knob("max-queued", "max_queued_requests", int, "Requests; then 429."),
    Knob("max-queued-bytes", "max_queued_bytes", SIZE, "Of their bodies, like 1GiB."),
    Knob("max-queued-tokens", "max_queued_tokens", int, "Estimated."),
    Knob("max-in-flight", "max_in_flight_slots", int, "Slots inside the engines."),
    Knob("min-share", "min_share_ratio", float, "Of the work done, even while others wait: 0 to 1."),
    Knob("overflow", "overflow", click.Choice(["shed_heaviest", "reject_newest"]), "What becomes of it when full."),
    Knob("order", "order", click.Choice(["fifo", "shortest_first", "deadline"]), "Of one tenant's requests."),
    Knob("promote-after", "promote_after", DURATION, "One that has waited so long counts one class up."),
    Knob("wait-objective", "wait_objective", DURATION, "For metrics and alerts alone; like 5s."),
    Knob("headroom", "headroom_probability", float, "How often a higher class's arrival may find no slot."),
    Knob(
        "when",
        "idle_only",
        click.Choice(["always", "idle"]),
        "idle: only while nothing waits in the engine.",
        words={"always": False, "idle": True},
    ),
    Knob(
        "hopeless",
        "refuse_hopeless",
        click.Choice(["wait", "refuse"]),
        "What would wait for longer than its timeout.",
        words={"wait": False, "refuse": True},
    ),
    Knob("gate-max-waiting", "gates.max_waiting_requests", int, "Beyond this many waiting nothing is sent."),
    Knob("gate-max-tpot", "gates.max_time_per_output_token", DURATION, "Beyond it nothing is sent."),
    Knob("gate-max-kv-usage", "gates.max_kv_usage_ratio", float, "Beyond it nothing is sent: 0 to 1."),
    Knob("gate-max-ttft", "gates.max_time_to_first_token", DURATION, "Beyond it nothing is sent."),
    Knob("preemptible", "preemptible", bool, "true: its requests may be evicted for a higher class."),
    Knob("preempt-after", "preempt_after", DURATION, "One that has waited so long may have one evicted."),
)


def _options(knobs: Sequence[Knob]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        decorated = click.option(
            "--unset", multiple=True, metavar="KEY", help="Give this one back to the file, like max-queued; repeat it."
        )(command)
        for knob in reversed(knobs):
            decorated = click.option(
                f"--{knob.option}", f"knob_{knob.key}", type=knob.kind, multiple=knob.many, help=knob.help
            )(decorated)
        return decorated

    return decorate


@click.command("tenant", cls=Command)
@click.argument("name", shell_complete=complete_tenant)
@_options(TENANT)
@terms()
@pass_session
def tenant(session: Session, /, name: str, unset: tuple[str, ...], terms: Terms, **given: Any) -> None:
    """Change a tenant's settings. One that has none of its own begins with those that it has now."""
    request = admin_pb2.SetTenantRequest(tenant=admin_pb2.Tenant(name=name))
    request.update_mask.CopyFrom(_fill(request.tenant, TENANT, given, unset))
    make(session, "SetTenant", request, terms)


@click.command("class", cls=Command)
@click.argument("name", shell_complete=complete_class)
@_options(CLASS)
@terms()
@pass_session
def class_(session: Session, /, name: str, unset: tuple[str, ...], terms: Terms, **given: Any) -> None:
    """Change a class's settings, also for what waits already."""
    request = admin_pb2.SetClassRequest()
    message = getattr(request, "class")  # a word of Python
    message.name = name
    request.update_mask.CopyFrom(_fill(message, CLASS, given, unset))
    make(session, "SetClass", request, terms)


def _fill(
    message: Any, knobs: Sequence[Knob], given: dict[str, Any], unset: tuple[str, ...]
) -> field_mask_pb2.FieldMask:
    """Put what is given into the message. The mask names that, and what is given back. Raises click.UsageError."""
    by_key = {knob.key: knob for knob in knobs}
    mask = []
    for knob in knobs:
        value = given[f"knob_{knob.key}"]
        if value is not None and value != ():
            _put(message, knob, value)
            mask.append(knob.field)
    for name in unset:
        found = by_key.get(name.removeprefix("--").replace("-", "_"))
        if found is None:
            raise click.UsageError(f"--unset: there is no {name!r}; there are {', '.join(k.option for k in knobs)}")
        if found.field in mask:
            raise click.UsageError(f"--{found.option} is given, and taken back by --unset (or twice)")
        mask.append(found.field)
    if not mask:
        raise click.UsageError("nothing to change: give an option, like --" + knobs[0].option)
    return field_mask_pb2.FieldMask(paths=mask)


def _put(message: Any, knob: Knob, value: Any) -> None:
    *above, field = knob.field.split(".")
    for name in above:
        message = getattr(message, name)
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    try:
        if knob.many:
            getattr(message, field).extend(value)
        elif descriptor.message_type is not None:
            duration = duration_pb2.Duration()
            duration.FromNanoseconds(round(value * 1e9))
            getattr(message, field).CopyFrom(duration)
        elif descriptor.enum_type is not None:
            setattr(message, field, descriptor.enum_type.values_by_name[value.upper()].number)
        else:
            setattr(message, field, value if knob.words is None else knob.words[value])
    except ValueError:  # more than 32 or 64 bits; or no UTF-8
        raise click.UsageError(f"--{knob.option}: {value!r} is out of range") from None
