"""What part of a class's service is due to what waits here, had all replicas one queue.

At each level of the tree of tenants service is split by weight among those siblings that have something waiting, at
whichever replica (Goyal's hierarchical order as a fluid, see `extproc.core.fair_queue`). What is due to a tenant that
waits at several replicas is split by what it has waiting at each.

    under     of a group: the weights of its children that wait
    mine      of a group: the weights of its tenants that wait here, each times the part of it that is here
    part      of the root 1; of a group: its parent's part * its weight / under of its parent
    due here  the sum over the groups of part * mine / under

The sums are kept: a tenant that begins or ceases to wait, or whose backlog has changed, costs O(depth), and `due_here`
O(groups), whatever the number of tenants.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.tree import Flows

_OWN = 1.0  # weight of a name's own requests beside the names under it, see `extproc.core.tree`
_ROOT = ""


@dataclass(slots=True)
class _Group:
    above: str  # path of its parent
    weight: float
    count: int = 0  # tenants that wait under it
    under: float = 0.0
    mine: float = 0.0


@dataclass(slots=True)
class _Tenant:
    groups: tuple[str, ...]  # above it, from the top down
    weight: float
    here: float  # cost that it has waiting
    elsewhere: float

    @property
    def mine(self) -> float:
        return self.weight * self.here / (self.here + self.elsewhere)


class Entitlement:
    """Of one class."""

    def __init__(self, flows: Flows) -> None:
        self._begin(flows)

    def _begin(self, flows: Flows) -> None:
        """With nobody waiting."""
        self._flows = flows
        self._groups: dict[str, _Group] = {_ROOT: _Group(_ROOT, _OWN)}
        self._tenants: dict[str, _Tenant] = {}
        self._plain: dict[str, str] = {}  # path -> tenant that waits and has no names under it

    def __len__(self) -> int:
        """Tenants that wait, here or elsewhere."""
        return len(self._tenants)

    @property
    def groups(self) -> int:
        return len(self._groups)

    def follow(self, flows: Flows) -> None:
        """Weights and paths are as `flows` has them from now on. O(tenants), where it is another."""
        if flows is not self._flows:
            before = self._tenants
            self._begin(flows)
            for tenant, known in before.items():
                self.waits(tenant, known.here, known.elsewhere)

    def waits(self, tenant: str, here: float, elsewhere: float) -> None:
        """What a tenant has waiting, as estimated cost."""
        known = self._tenants.get(tenant)
        if known is not None and here + elsewhere > 0.0:
            group = self._groups[known.groups[-1] if known.groups else _ROOT]
            group.mine -= known.mine
            known.here, known.elsewhere = here, elsewhere
            group.mine += known.mine
            return
        if known is not None:
            self._leave(tenant)
        if here + elsewhere > 0.0:
            self._enter(tenant, here, elsewhere)

    def due_here(self) -> float:
        """0..1."""
        parts = {_ROOT: 1.0}
        due = 0.0
        for name, group in self._groups.items():
            if group.mine > 0.0 and group.under > 0.0:
                due += self._part(name, parts) * group.mine / group.under
        return min(due, 1.0)

    def _part(self, name: str, parts: dict[str, float]) -> float:
        part = parts.get(name)
        if part is None:
            group = self._groups[name]
            part = self._part(group.above, parts) * group.weight / self._groups[group.above].under
            parts[name] = part
        return part

    def _enter(self, tenant: str, here: float, elsewhere: float) -> None:
        *above, own = self._flows.path(tenant)
        if own in self._groups and own != _ROOT:
            above.append(own)
            weight = _OWN
        else:
            weight = self._flows.tenant(own).weight
            self._plain[own] = tenant
        known = self._tenants[tenant] = _Tenant(tuple(above), weight, here, elsewhere)
        parent = _ROOT
        self._groups[_ROOT].count += 1
        for name in above:
            if name not in self._groups:
                self._open(name, parent)
            self._groups[name].count += 1
            parent = name
        group = self._groups[parent]
        group.under += weight
        group.mine += known.mine

    def _open(self, name: str, parent: str) -> None:
        """A name that has others under it. Its own requests go into it."""
        plain = self._plain.get(name)
        known = None if plain is None else self._tenants[plain]
        if plain is not None:
            self._leave(plain)
        group = self._groups[name] = _Group(parent, self._flows.tenant(name).weight)
        self._groups[parent].under += group.weight
        if plain is not None and known is not None:
            self._enter(plain, known.here, known.elsewhere)

    def _leave(self, tenant: str) -> None:
        known = self._tenants.pop(tenant)
        own = self._flows.path(tenant)[-1]
        if self._plain.get(own) == tenant:
            del self._plain[own]
        names = (_ROOT, *known.groups)
        group = self._groups[names[-1]]
        group.under -= known.weight
        group.mine -= known.mine
        for name in reversed(names):
            group = self._groups[name]
            group.count -= 1
            if not group.count:
                group.under = group.mine = 0.0  # and not what rounding has left
                if name != _ROOT:
                    del self._groups[name]
                    self._groups[group.above].under -= group.weight
