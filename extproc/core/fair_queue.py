"""Hierarchical start-tag queue with true-up: the fair order of one class in one pool.

Theory
    Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996) gives each
    flow a tag S, serves the smallest, and advances it by cost/weight. The virtual token counter
    (Sheng et al.: "Fairness in Serving Large Language Models", OSDI'24) shows that the cost of a request
    need not be known before it is served: charge an estimate at release, true it up when the engine has
    counted. Both are one tree here: a node's children share its service in proportion to their weights,
    and a release charges every node on its path (Goyal's hierarchical scheduler, section 3 there).

Definitions
    S        `tag` of a node: service received / weight, in cost units.
    V        virtual time of a group: S + credit of the eligible child with the smallest S, else `vlast`.
    vlast    largest S + credit at which the group has served a child.
    eligible something is queued under it, no cap or rate of its own holds it, and, for a group, one of
             its children is eligible. Eligible children are in the `order` of their group.
    backlogged: something is queued under it, eligible or not.
    busy     something is queued, in flight or not yet settled under it; else idle.
    lift     a node that becomes backlogged goes to max(S, V - burst/weight): what it did not use is not
             saved up beyond `burst`, what it owes is not forgiven. A new node has S = -infinity.
             A node that a cap or rate held and holds no more goes to max(S, V - max(burst, its last
             charge)/weight): it keeps its turn, but does not catch up on an hour at its limit.
    credit   V - S at a lift, used up by its charges. With it in V a child that was lifted below the
             others does not pull newcomers down with it, nor a chain of such children each other.
    loose    sum over the children of (charges not yet settled)/weight: by so much, and no more, can
             true-ups still take tags back.
    order    by S; equal: fewer slots in flight; equal: who became backlogged first.

Operations (n siblings, d levels; O(d log n) each)
    put      a request is queued. Nodes on its path that were not backlogged are lifted.
    peek     the smallest S down from the root. None if and only if every queued leaf is held by a cap
             or a rate on its path.
    pop      takes it; on its path vlast = max(vlast, S + credit), S += charge/weight.
    refresh  while it runs the charge may grow.
    settle   S += (cost - charged)/weight, up or down, exactly once.
    free     its slots are free. In any order with settle.
    forget   an idle node may be deleted when S + burst/weight <= min(vlast, V) - loose of its parent.
             This is exact: V does not fall below the right side later. Tags of eligible children start
             at V or have it in their credit, charges only add, true-ups take back no more than `loose`,
             and without an eligible child V is vlast, which only grows. So at its return the node would
             be lifted to V - burst/weight anyway, which is where a new one starts. A node in debt stays
             until V has passed it.
             A busy period ends when a group is idle: Goyal's V then goes to the largest tag, all are
             equal, and what the children owe each other is forgotten. What the group owes its siblings
             is not. With the root all state goes.
             Bound: a group keeps 256 debtors and two more for each busy child. Beyond it those that owe
             least are deleted, which forgives them S - V. Names that come once and never again do not
             move V: without a bound they would stay for as long as anything is busy.

Invariants (`check`), and bounds that the tests prove
    1. peek() is None exactly when every queued leaf is held by a cap or rate on its path.
    2. Siblings that are eligible all the time: largest S - smallest S <= C_max + E. C_max is the largest
       charge or cost / weight; E the sum of |cost - charge|/weight over what was open at a release. Each
       release out of turn (`heads`) adds its slack.
    3. Their service, from the start of a busy period on: |W_f/w_f - W_g/w_g| <= C_max + E, over any
       interval 2 (C_max + E). For at the last release of f its tag was not above that of g, and since
       then g can only have had more.
    4. The books of a group are the sums of its children's; all end at zero.
    5. Every eligible node is in its parent's order under its present tag, and no other is.

A rate (`token_bucket`) belongs to the path of a node and holds for all classes together; caps, tags and
debts are per class.

Left out: the finish tags of weighted fair queueing (they need costs beforehand); preemption; a debt that
outlasts a busy period; weights for requests.

The modules: `node` (books, V, lift), `tree` (structure, who may go, forgetting), `leaf_order` (order
within a leaf), `shedding` (who has the most waiting), `standing` (where a request stands, and why),
`reconfiguration` (a new policy for what is there), `consistency` (the invariants), `sorted_blocks`.
"""

from __future__ import annotations

from extproc.core import consistency, leaf_order, reconfiguration, standing
from extproc.core.model import Order, Request
from extproc.core.node import MAX_COST, Group, Leaf, Node, leave, place
from extproc.core.shedding import Loads
from extproc.core.sorted_blocks import FULL, insert
from extproc.core.standing import Block, Place
from extproc.core.token_bucket import Buckets
from extproc.core.tree import Flows, Tree

__all__ = ["Block", "Buckets", "FairQueue", "Flows", "Place"]


_FIFO, _SHORTEST_FIRST = Order.FIFO, Order.SHORTEST_FIRST  # as globals, for the hot path


class FairQueue(Tree):
    """Requests of one (pool, class), in fair order over tenants.

    `now` is in seconds and the same clock everywhere. Costs are in cost units, see `model.Unit`. What an
    operation asks of its request: `put` one that is not queued, `pop` and `remove` a queued one, the others
    one that was popped; else ValueError. So for a cost that is negative, NaN or absurd; nothing has been
    changed then."""

    def __init__(self, flows: Flows, order: Order = Order.FIFO, buckets: Buckets | None = None) -> None:
        """`buckets` are shared by the queues of all classes of a pool; None: its own."""
        super().__init__(flows, buckets)
        self._order = order

    def __len__(self) -> int:
        """Requests queued."""
        return self.root.queued

    @property
    def in_flight(self) -> int:
        """Slots held by requests of this class."""
        return self.root.in_flight

    @property
    def queued_bytes(self) -> int:
        return self.root.queued_bytes

    @property
    def queued_tokens(self) -> float:
        return self.root.queued_tokens

    @property
    def queued_cost(self) -> float:
        """Estimated cost of all that is queued."""
        return self.root.queued_cost

    # -- the operations of the paper: loops over the path are written out, they are the hot path -----

    def put(self, request: Request, now: float) -> None:
        """Queue a request. Its `cost` is the estimate; `leaf` is set here."""
        cost, tokens, size = request.cost, request.prompt_tokens + request.output_tokens, request.body_bytes
        if not (0.0 <= cost <= MAX_COST and 0.0 <= tokens <= MAX_COST):
            raise ValueError(f"estimates must be from 0 to {MAX_COST:g}: cost {cost!r}, tokens {tokens!r}")
        if self._waking:
            self.tell(now)
        elif now > self._buckets.now:
            self._buckets.now = now
        leaf = self._leaves.get(request.tenant)
        if leaf is None:
            leaf = self.grow(request.tenant)
        if self._order is _FIFO:
            key = (request.arrival, request.seq, request)
            requests = leaf.requests
            if not requests:
                leaf.requests = [[key]]
            elif key > requests[-1][-1] and len(requests[-1]) < FULL:
                requests[-1].append(key)
            else:
                insert(requests, key)
        else:
            leaf_order.add(leaf.requests, request, self._order)
        request.leaf = leaf
        node: Node = leaf
        parent = leaf.parent
        while parent is not None:
            waited = node.queued
            if waited:
                node.queued_cost += cost
                node.queued_tokens += tokens
            else:
                self.revive(parent, node)
                node.queued_cost = cost
                node.queued_tokens = tokens
            node.queued = waited + 1
            node.queued_bytes += size
            if node.key is None:
                if waited:
                    self.admit(node)
                # As `admit`; it has just been lifted. Most have no limit that `may_go` would have to look at.
                elif (node is leaf and node.cap is None and node.bucket is None) or self.may_go(node):
                    place(parent, node)
            if parent.loads is not None:
                parent.loads.grown(node)
            node = parent
            parent = node.parent
        node.queued += 1
        node.queued_cost += cost
        node.queued_tokens += tokens
        node.queued_bytes += size
        if request.slots > 1:
            self.wide += request.slots - 1
        if self.spent is not None:
            self.spent.setdefault(leaf.tenant, 0.0)

    def peek(self, now: float) -> Request | None:
        """The request whose turn it is; None: nothing is queued, or caps and rates hold all of it."""
        if self._waking:
            self.tell(now)
        elif now > self._buckets.now:
            self._buckets.now = now
        node = self.root.first()
        while isinstance(node, Group):
            node = node.first()
        if not isinstance(node, Leaf):
            return None
        if self._order is _SHORTEST_FIRST:
            return leaf_order.first(node.requests, _SHORTEST_FIRST, now)
        return node.requests[0][0][2]

    def heads(self, now: float, slack: float, most: int = 32) -> list[Request]:
        """Next requests of the leaves that are within `slack` (cost/weight) of their turn at each level of
        the tree, at most `most`, in fair order; the first is that of `peek`."""
        self.tell(now)
        found: list[Request] = []
        standing.heads(self.root, self._order, now, slack, most, found)
        return found

    def pop(self, request: Request, charge: float, now: float) -> None:
        """Take a request that `peek` or `heads` has just given and charge its path."""
        if not 0.0 <= charge <= MAX_COST:
            raise ValueError(f"charge must be from 0 to {MAX_COST:g} cost units, not {charge!r}")
        if self._waking:
            self.tell(now)
        elif now > self._buckets.now:
            self._buckets.now = now
        leaf = request.leaf
        if not isinstance(leaf, Leaf):
            raise ValueError(f"it is in no queue: {request.story()}")
        block = leaf.requests[0] if leaf.requests else []
        if block and block[0][2] is request:
            del block[0]
            if not block:
                del leaf.requests[0]
        else:
            leaf_order.discard(leaf.requests, request, self._order)
        request.charged = charge
        cost, tokens, size = request.cost, request.prompt_tokens + request.output_tokens, request.body_bytes
        slots = request.slots
        rated = False
        node: Node = leaf
        parent = leaf.parent
        while parent is not None:
            step = charge / node.weight
            reached = node.tag
            node.tag = reached + step
            if node.credit:
                reached += node.credit
                node.credit = node.credit - step if node.credit > step else 0.0
            if reached > parent.vlast:
                parent.vlast = reached
            node.turn = step
            parent.loose += step
            node.owed += charge
            node.open += 1
            node.in_flight += slots
            queued = node.queued = node.queued - 1
            if queued:
                node.queued_cost -= cost
                node.queued_tokens -= tokens
            else:
                node.queued_cost = node.queued_tokens = 0.0
            node.queued_bytes -= size
            if node.bucket is not None:
                rated = True
            if node.key is not None:
                cap = node.cap
                free = cap is None or node.in_flight + node.elsewhere < cap
                if queued and free and (node is leaf or node.order):  # type: ignore[attr-defined]
                    place(parent, node)
                else:
                    leave(parent, node)
            if parent.debtors and parent.debtors[0][0][0] <= parent.vlast:
                self.forgive(parent, parent.settled_time())
            node = parent
            parent = node.parent
        node.open += 1
        node.in_flight += slots
        node.queued -= 1
        node.queued_cost = node.queued_cost - cost if node.queued else 0.0
        node.queued_tokens = node.queued_tokens - tokens if node.queued else 0.0
        node.queued_bytes -= size
        if slots > 1:
            self.wide -= slots - 1
        if rated:
            self._take(leaf, charge)
        if self.spent is not None:
            self._spend(leaf, charge)
        if node.queued == 0:
            self._drop_loads()

    def remove(self, request: Request) -> None:
        """A queued request leaves without being served."""
        leaf = _leaf_of(request)
        leaf_order.discard(leaf.requests, request, self._order)
        request.leaf = None
        cost, tokens, size = request.cost, request.prompt_tokens + request.output_tokens, request.body_bytes
        node: Node | None = leaf
        while node is not None:
            node.queued -= 1
            node.queued_cost = node.queued_cost - cost if node.queued else 0.0
            node.queued_tokens = node.queued_tokens - tokens if node.queued else 0.0
            node.queued_bytes -= size
            parent = node.parent
            gone = node.queued == 0 or (isinstance(node, Group) and not node.order)
            if parent is not None and gone:
                leave(parent, node)
            node = parent
        if request.slots > 1:
            self.wide -= request.slots - 1
        if self.spent is not None:
            self._spend(leaf, 0.0)
        if leaf.idle:
            self.retire(leaf)
        if self.root.queued == 0:
            self._drop_loads()

    def free(self, request: Request) -> None:
        """The slots of a released request are free again."""
        leaf, slots = request.leaf, request.slots
        if not isinstance(leaf, Leaf) or leaf.in_flight < slots:
            raise ValueError(f"it is in no queue, or its slots are free: {request.story()}")
        node: Node = leaf
        parent = leaf.parent
        while parent is not None:
            node.in_flight -= slots
            key = node.key
            if key is None:
                if node.queued:
                    self.admit(node)
            elif key[1] > node.in_flight:
                place(parent, node, node.in_flight)
            node = parent
            parent = node.parent
        node.in_flight -= slots
        if self.spent is not None:
            self._spend(leaf, 0.0)
        if not (leaf.queued or leaf.in_flight or leaf.open):
            self.retire(leaf)

    def refresh(self, request: Request, cost: float) -> None:
        """A released request has cost `cost` by now, more than it was charged. Less is left to `settle`."""
        if not 0.0 <= cost <= MAX_COST:
            raise ValueError(f"cost must be from 0 to {MAX_COST:g} cost units, not {cost!r}")
        leaf = _leaf_of(request)
        more = cost - request.charged
        if more <= 0.0:
            return
        if leaf.open == 0 or request.settled:
            raise ValueError(f"its cost is final: {request.story()}")
        request.charged = cost
        node: Node = leaf
        parent = leaf.parent
        while parent is not None:
            step = more / node.weight
            node.owed += more
            parent.loose += step
            node.tag += step
            node.credit = max(0.0, node.credit - step)
            if node.key is not None:
                place(parent, node)
            node = parent
            parent = node.parent
        self._take(leaf, more)
        if self.spent is not None:
            self._spend(leaf, more)

    def settle(self, request: Request, cost: float) -> None:
        """True the charge of a released request up, or down, to `cost`. Once."""
        if not 0.0 <= cost <= MAX_COST:
            raise ValueError(f"cost must be from 0 to {MAX_COST:g} cost units, not {cost!r}")
        leaf = request.leaf
        if not isinstance(leaf, Leaf) or leaf.open == 0 or request.settled:
            raise ValueError(f"it is in no queue, or its cost is final: {request.story()}")
        charged = request.charged
        more = cost - charged
        request.charged = cost
        rated = False
        node: Node = leaf
        parent = leaf.parent
        while parent is not None:
            weight = node.weight
            still_open = node.open = node.open - 1
            node.owed = node.owed - charged if still_open else 0.0
            loose = parent.loose - charged / weight
            parent.loose = loose if loose > 0.0 and parent.open > 1 else 0.0
            if more:
                node.tag += more / weight
                if node.credit and more > 0.0:
                    node.credit = max(0.0, node.credit - more / weight)
                if node.key is not None:
                    place(parent, node)
                if node.bucket is not None:
                    rated = True
            node = parent
            parent = node.parent
        node.open -= 1
        if rated:
            self._take(leaf, more)
        if self.spent is not None:
            self._spend(leaf, more)
        if not (leaf.queued or leaf.in_flight or leaf.open):
            self.retire(leaf)

    def _spend(self, leaf: Leaf, cost: float) -> None:
        """For the other replicas: `leaf` has been charged, or something else of it has changed."""
        spent, tenant = self.spent, leaf.tenant
        if spent is not None:
            spent[tenant] = spent.get(tenant, 0.0) + cost

    def _take(self, leaf: Leaf, amount: float) -> None:
        """From the buckets on its path."""
        node: Node | None = leaf
        while node is not None:
            if node.bucket is not None:
                self._buckets.take(node.bucket, amount)
            node = node.parent

    # -- shedding -----------------------------------------------------------------------------------

    def heaviest(self) -> Request | None:
        """The newest request of the heaviest flow, see `shedding`; with `Order.DEADLINE` its least urgent."""
        node: Node = self.root
        if node.queued == 0:
            return None
        while isinstance(node, Group):
            if node.loads is None:
                node.loads = Loads(node.children.values())
            child = node.loads.heaviest()
            if child is None:
                return None
            node = child
        return node.requests[-1][-1][2] if isinstance(node, Leaf) else None

    def _drop_loads(self) -> None:
        if self.root.loads is not None:
            for group in self.groups():
                group.loads = None

    # -- where a request stands; see `standing` -------------------------------------------------------

    def blocked(self, request: Request, now: float) -> Block | None:
        """The nearest node on a queued request's path that a cap or a rate holds; None: nothing does."""
        self.tell(now)
        return standing.blocked(_leaf_of(request), now)

    def place(self, request: Request) -> Place:
        """Of a queued request in its flow, and of its flow among the others."""
        return standing.place(_leaf_of(request), request, self._order, self._buckets.now)

    def cost_ahead(self, request: Request) -> float:
        """Estimated cost that goes before a queued request, itself left out. O(siblings + its flow)."""
        return standing.cost_ahead(_leaf_of(request), request, self._order, self._buckets.now)

    def over_limit(self, tenant: str, tokens: float, path: tuple[str, ...] | None = None) -> Block | None:
        """The first limit on what may wait (`max_queued`, `max_queued_tokens`), from the tenant's own node
        upwards, that one more request of `tokens` would pass. `max_queued_bytes` holds for all classes of
        the pool together, so it is the caller's. `path`: the tenant's, where it is known."""
        return standing.over_limit(self.root, self.flows, path or self.flows.path(tenant), tokens)

    # -- policy and books -----------------------------------------------------------------------------

    def reconfigure(self, flows: Flows, order: Order, now: float) -> None:
        """Another policy from now on, also for what is there, see `reconfiguration`. Raises ValueError, and
        changes nothing, where it is none."""
        self.tell(now)
        reconfiguration.reconfigure(self, flows, self._order, order)
        self._order = order

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. O(all); for tests."""
        consistency.check(self, self._order)


def _leaf_of(request: Request) -> Leaf:
    leaf = request.leaf
    if isinstance(leaf, Leaf):
        return leaf
    raise ValueError(f"it is in no queue: {request.story()}")
