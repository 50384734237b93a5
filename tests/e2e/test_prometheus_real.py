"""The real Prometheus scrapes a real Fairlane and its Envoy under load, with the shipped rules and the example of its
configuration: each query of the dashboard has an answer, and each rule can be evaluated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig import Rig, chat, running, until

from extproc.cli.ports import free_ports

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = {
    "classes": {
        "interactive": {
            "rank": 0, "wait_objective": "1s", "max_waiting": 1, "max_queued_bytes": "1GiB",
            "max_queued_tokens": 1_000_000,
            "gates": {"max_waiting": 50},
        },
        "default": {"rank": 1},
        "batch": {"rank": 2, "max_in_flight": 4, "min_share": 0.1},
    },
    "tenants": {"*": {"weight": 1}, "greedy": {"max_queued": 1}},
    "telemetry": {"tenants": {"top": 5, "names": ["team-a", "team-b"]}},
}  # fmt: skip

# Queries that have no answer here, by what they are about, and why that is right.
MAY_BE_EMPTY = {
    "fairlane_observed_": "only pools in mode observe have it",
    "fairlane_evicted_requests_total": "no class is preemptible",
    "fairlane_handed_over_requests_total": "nothing has been shut down",
    "fairlane_passed_requests_total": "every request was scheduled",
    "fairlane_certificate_expiry_timestamp_seconds": "no port has TLS",
    "fairlane_body_edits_total": "no body is edited: the engine is told priorities in a header",
    "fairlane_config_changes_total": "nothing was changed live",
    "fairlane_spans_dropped_total": "traces are off",
    "fairlane_scrape_failures_total": "every page was read",
    "fairlane_endpoint_tpot_window_slots": "latency sets no limit",
    "fairlane_ignored_choices_total": "Envoy sends each request where it is told to",
    "fairlane_cluster_": "there is one replica",
    "fairlane_endpoint_claim_slots": "there is one replica",
    "fairlane_endpoint_others_slots": "there is one replica",
    "changes(": "nothing has been changed or restarted",
}


@contextlib.asynccontextmanager
async def prometheus(directory: Path, rig: Rig) -> AsyncIterator[str]:
    """Its address. Its configuration is the shipped example, with other addresses and shorter intervals."""
    binary = shutil.which("prometheus")
    if binary is None:
        reason = "prometheus is not installed (Debian: apt install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    targets = {"fairlane": rig.service_at, "envoy": rig.stack.addresses.envoy_admin}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [str(targets[job["job_name"]])]}]
    file = directory / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address={address}",
            stdout=log,
            stderr=log,
        )
        try:
            yield address
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def ask(rig: Rig, address: str, path: str, **params: str) -> Any:
    """What Prometheus' API says; None while it does not answer."""
    try:
        async with rig.http.get(f"http://{address}/api/v1/{path}", params=params) as answer:
            if answer.status == 503:  # it still starts
                return None
            body = await answer.json()
    except OSError:
        return None
    assert body["status"] == "success", (params, body)
    return body["data"]


@contextlib.asynccontextmanager
async def load(rig: Rig) -> AsyncIterator[None]:
    """Two tenants in each of three classes that always have something waiting; one that is refused; one that leaves."""

    async def client(tenant: str, cls: str) -> None:
        while True:
            answer = await rig.post(chat(20), tenant=tenant, headers={"x-class": cls})
            await asyncio.sleep(0.0 if answer.status == 200 else 0.1)

    async def leaves() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rig.post(chat(20), tenant="hasty", headers={"x-class": "batch"}), 0.5)

    tasks = [asyncio.create_task(client("greedy", "default")) for _ in range(6)] + [asyncio.create_task(leaves())]
    tasks += [
        asyncio.create_task(client(tenant, cls))
        for tenant in ("team-a", "team-b")
        for cls in ("interactive", "default", "batch")
        for _ in range(12)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def queries() -> dict[str, str]:
    """Each query of the dashboard as Grafana sends it with everything chosen -> the panel's title."""
    board = json.loads((DEPLOY / "grafana" / "fairlane.json").read_text())
    panels = [inner for panel in board["panels"] for inner in panel.get("panels") or [panel]]
    found = {target["expr"]: panel["title"] for panel in panels for target in panel.get("targets", ())}
    found |= {event["expr"]: event["name"] for event in board["annotations"]["list"]}
    return {
        re.sub(r"\$(job|instance|pool|class|endpoint)\b", ".*", expr).replace("$__rate_interval", "1m"): title
        for expr, title in found.items()
    }


async def test_queries_are_answered_and_rules_are_evaluated(tmp_path: Path) -> None:
    engine = ("--step-base-ms", "10", "--max-num-seqs", "4")
    async with (
        running(tmp_path / "stack", config=CONFIG, engines=2, engine_args=engine) as rig,
        prometheus(tmp_path, rig) as address,
        load(rig),
    ):
        open_queries = {
            expr: title for expr, title in queries().items() if not any(part in expr for part in MAY_BE_EMPTY)
        }

        async def unanswered() -> dict[str, str]:
            for expr in list(open_queries):
                found = await ask(rig, address, "query", query=expr)
                if found and found["result"]:
                    del open_queries[expr]
            return open_queries

        await until(unanswered, lambda left: not left, "all queries have an answer", within_s=90.0)
        for expr in queries():
            assert await ask(rig, address, "query", query=expr) is not None, expr

        rules = [rule for group in (await ask(rig, address, "rules"))["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}, [r["lastError"] for r in rules if r["health"] != "ok"]
        assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
        for name in ("envoy_http_ext_proc_failure_mode_allowed", "envoy_cluster_upstream_rq_pending_overflow"):
            assert (await ask(rig, address, "query", query=name))["result"], name
        for job in ("fairlane", "envoy"):
            (up,) = (await ask(rig, address, "query", query=f'up{{job="{job}"}}'))["result"]
            assert up["value"][1] == "1", job


async def test_alerts_of_an_engine_that_is_down_come_and_go(tmp_path: Path) -> None:
    """Pending is enough: `for` is a matter of time, and the unit tests have it."""
    async with running(tmp_path / "stack", engines=1) as rig, prometheus(tmp_path, rig) as address:
        await rig.post(chat())

        async def pending() -> set[str]:
            found = await ask(rig, address, "alerts")
            return {alert["labels"]["alertname"] for alert in found["alerts"]} if found else set()

        await until(lambda: ask(rig, address, "query", query="fairlane_build_info"), lambda f: bool(f and f["result"]))
        await until(pending, lambda names: not names)  # FairlaneAbsent, until the first scrape
        await rig.stack.kill("engine-1")
        await rig.until(lambda pool: pool["endpoints"][0]["stance"] == "down")
        held = rig.start(chat())
        await until(pending, lambda names: names == {"FairlaneNoEndpoint", "FairlaneEndpointDown"})
        await rig.stack.start_child("engine-1")
        assert (await held).status == 200
        await until(pending, lambda names: not names)
        await rig.books_closed()
