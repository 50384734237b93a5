"""Fairlane away for good: requests pass unscheduled once Envoy's retries are used up, and forgery stays without effect.

Two minutes of retries are too long for a test, so this Envoy tries a few times only. All else is as shipped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from rig import FAST_ENGINE, Rig, chat, running

from extproc.cli.stack import ENVOY, FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

DEFAULT = 1_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def away(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    options = (*FAST_ENGINE, "--scheduling-policy", "priority")
    async with running(tmp_path_factory.mktemp("stack"), engine_args=options) as rig:
        await rig.stack.stop_child(ENVOY)
        file = rig.stack.directory / "envoy.json"
        config = json.loads(file.read_text())
        _ext_proc(config)["grpc_service"]["retry_policy"]["num_retries"] = 2
        file.write_text(json.dumps(config))
        await rig.stack.start_child(ENVOY)
        await rig.stack.kill(FAIRLANE)
        yield rig


def _ext_proc(config: dict[str, Any]) -> dict[str, Any]:
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: dict[str, Any] = next(f for f in manager["http_filters"] if f["name"].endswith("ext_proc"))["typed_config"]
    return found


@pytest.mark.parametrize(
    "headers",
    [{}, {"X-Vllm-Priority": "-9999", "x-fairlane-ticket": "forged", "X-FAIRLANE-INVENTED": "forged"}],
    ids=["plain", "forged headers"],
)
@pytest.mark.parametrize("body", [{}, {"priority": -9999}], ids=["", "priority in the body"])
async def test_requests_pass_and_no_client_has_a_priority(
    headers: dict[str, str], body: dict[str, Any], away: Rig, request: pytest.FixtureRequest
) -> None:
    tenant = request.node.name.encode().hex()
    answer = await away.post(chat(**body), tenant=tenant, headers=headers)
    assert answer.status == 200
    assert not [name for name in answer.headers if name.lower().startswith("x-fairlane-")]
    (entry,) = await away.seen(tenant)
    assert not [name for name in entry["headers"] if name.startswith("x-fairlane-")]
    assert "-9999" not in entry["headers"].values()
    assert entry["priority"] == DEFAULT  # of the class `default`, the same for all


async def test_a_stream_passes(away: Rig) -> None:
    async with away.stream(3) as answer:
        assert (await answer.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
async def test_other_routes_do_not_notice(path: str, away: Rig) -> None:
    assert (await away.get(path)).status == 200
