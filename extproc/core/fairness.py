"""How fairly the tenants of a class have been served, from the tags of its fair queue.

A tag is service / weight (`fair_queue`). So of siblings that have something waiting all the time, how far their tags
have moved says what each has got, and no account of single requests is needed. Looked at are the children of the root:
tenants, or the nodes at the top of a tree of tenants; only there is everybody everybody's sibling.

    competing   it had something waiting at every look of the last `SPAN_S`, or since it began to, two looks at least.
                `Node.seq` is renewed when a node becomes backlogged, so a pause between two looks is seen
    rate        what its tag has moved / the time between its first and its last look, cost units / weight / second
    jain        (sum of rates)^2 / (n * sum of rates^2), after Jain, Chiu and Hawe, "A Quantitative Measure of Fairness"
                (DEC TR-301, 1984): 1 for equal service, 1/n where one has it all. A tag that went back (a true-up)
                counts as 0
    spread      largest tag - smallest tag of those that compete, at the last look

Left out: service within a node of the tree, whose siblings are fewer; what a tenant got before it competed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of one class, over the last minute."""

    tenants: int  # that compete, 2 at least
    jain: float  # 0..1
    spread: float  # cost units / weight
