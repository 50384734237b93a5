"""An eviction in virtual time: the engine loses the request, and its client is told."""

from __future__ import annotations

import pytest

from extproc.core import invariants
from extproc.core.model import Controller, WindowPolicy
from extproc.sim.engine import EngineOptions
from extproc.sim.jobs import Fate, Job
from extproc.sim.scene import Engines
from extproc.sim.virtual import run
from extproc.sim.workloads.workload import a_class, a_pool

# One slot; a step takes 100 ms; one token at most each step.
SLOW = Engines(EngineOptions(max_num_seqs=1, step_base=0.1, step_per_seq=0.0, step_per_prefill_token=0.0))
ONE = WindowPolicy(controller=Controller.FIXED, fixed=1, overtake=0)
CLASSES = a_class(preempt_after_s=1.0), a_class("batch", 2, preemptible=True)
# 100 tokens, 10 s, from 1 s on; and one of 2 tokens at 2 s.
JOBS = [Job(1.0, "b", 10, 100, cls="batch"), Job(2.0, "a", 10, 2)]


def test_the_engine_drops_it_and_the_other_goes() -> None:
    """At 3 s, with the end of a step: the first token of the other comes one or two steps later, and its second."""
    policy = a_pool(*CLASSES, window=ONE, preempt_after_first_byte=True)
    done = run(JOBS, policy, SLOW, 30.0, until_done=True, check=invariants.check)
    batch, other = done.records
    assert (batch.fate, batch.reason, batch.status, batch.ended) == (Fate.ABORTED, "preempted", 503, 3.0)
    assert batch.charged == 0.0
    assert batch.retry_after is not None and batch.retry_after >= 1
    assert other.fate is Fate.SERVED
    assert other.released == 3.0
    assert other.ended == pytest.approx(3.25, abs=0.06)


def test_not_after_its_first_token() -> None:
    done = run(JOBS, a_pool(*CLASSES, window=ONE), SLOW, 30.0, until_done=True, check=invariants.check)
    batch, other = done.records
    assert (batch.fate, other.fate) == (Fate.SERVED, Fate.SERVED)
    assert other.released == batch.ended
