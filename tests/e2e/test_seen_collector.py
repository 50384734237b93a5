"""A collector that takes connections and never answers costs requests nothing, is said once, and holds up no stop."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from rig import Rig, chat, log_of, running, until

from extproc.cli.stack import FAIRLANE

sys.path.append(str(Path(__file__).resolve().parent.parent / "telemetry"))  # collectors of spans

from otlp_collector import silent_listener  # isort: skip

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

REQUESTS = 300
TOGETHER = 30
SPANS = 2  # of each request
GROWTH_MIB = 20  # of the service; what it keeps of 300 requests is far below one, and the allocator's is some
GRACE_S = 10
SHUT_S = 3  # for the exporter, at the end


async def flow(rig: Rig) -> Counter[int]:
    """The requests, so many at a time; their status codes."""
    turns = asyncio.Semaphore(TOGETHER)

    async def one(number: int) -> int:
        async with turns:
            return (await rig.post(chat(), tenant=f"team-{number % 3}")).status

    return Counter(await asyncio.gather(*(one(number) for number in range(REQUESTS))))


def resident_mib(rig: Rig) -> float:
    pid = rig.stack.child(FAIRLANE).pid
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(kib) / 1024


async def counts(rig: Rig) -> dict[str, float]:
    """What became of the requests."""
    names = ("released_requests", "settled_requests", "refused_requests", "passed_requests", "cancelled_requests")
    return {name: await rig.metric(f"fairlane_{name}_total") for name in names}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_collector_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")  # seconds for one batch; 10 without it
    with silent_listener() as address:
        traces = {"otlp": address, "protocol": protocol, "sample": 1.0}
        config = {"telemetry": {"traces": traces}, "shutdown": {"grace": f"{GRACE_S}s"}}
        async with running(tmp_path, config=config, stop_timeout_s=30) as rig:
            assert await flow(rig) == {200: REQUESTS}  # also what is loaded with the first of each
            await rig.books_closed()
            before = resident_mib(rig)
            assert await flow(rig) == {200: REQUESTS}
            await rig.books_closed()
            assert await counts(rig) == {
                "released_requests": 2 * REQUESTS,
                "settled_requests": 2 * REQUESTS,
                "refused_requests": 0,
                "passed_requests": 0,
                "cancelled_requests": 0,
            }
            assert resident_mib(rig) - before < GROWTH_MIB

            lost = await until(
                lambda: rig.metric("fairlane_spans_dropped_total", reason="export_failed"),
                lambda spans: spans > 0,
                "spans are lost",
            )
            assert lost <= 2 * REQUESTS * SPANS
            assert await rig.metric("fairlane_spans_dropped_total", reason="queue_full") == 0  # it has room for 2,048
            (line,) = (each for each in log_of(rig.stack.child(FAIRLANE)) if each["event"] == "spans_lost")
            assert (line["level"], line["collector"]) == ("warning", address)
            assert "telemetry.traces" in line["cure"]

            # the rest of the queue is still there; nobody waits for it
            service = rig.stack.child(FAIRLANE)
            began = time.monotonic()
            assert await service.stop(timeout_s=30)  # not killed
            assert time.monotonic() - began < GRACE_S + SHUT_S
            assert service.exit_code == 0
            rig.assert_clean_logs()
