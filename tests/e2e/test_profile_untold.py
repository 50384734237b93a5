"""A pool whose engines are told no priority, behind an Envoy that gives the default one to what passes unscheduled: as
with several pools, of which others go by the header."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from profile_case import binary, minor
from rig import MODEL, Answer, Json, Rig, chat, running

from extproc.cli.stack import FAIRLANE
from extproc.wiring.description import Profile, Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

DEFAULT = "1000000"  # of the class `default`
FORGED = {"X-Vllm-Priority": "-9999", "x-fairlane-ticket": "forged"}
PROFILES: tuple[Profile, ...] = ("standard", "strict", "body")


def _few_attempts(envoy: dict[str, Any]) -> None:
    """The shipped two minutes are long for a test."""
    manager = envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    for each in manager["http_filters"]:
        policy = each["typed_config"].get("grpc_service", {}).get("retry_policy")
        if policy is not None:
            policy["num_retries"] = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=PROFILES)
async def untold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    wiring = Wiring(profile=request.param, envoy=minor())
    pool = {"models": [MODEL], "priority_via": "off"}
    directory = tmp_path_factory.mktemp("stack")
    this: Json = {"wiring": wiring, "envoy_patch": _few_attempts, "envoy_binary": binary()}
    async with running(directory, pool=pool, **this) as rig:
        yield rig


async def told(rig: Rig, tenant: str, **more: Any) -> tuple[Answer, str | None]:
    """The answer to a request with forged headers, and the priority that the engine got in its header."""
    answer = await rig.post(chat(**more), tenant=tenant, headers=FORGED)
    (entry,) = await rig.seen(tenant)
    return answer, entry["headers"].get("x-vllm-priority")


async def test_a_released_request_has_none(untold: Rig) -> None:
    answer, priority = await told(untold, "released")
    assert answer.headers["x-fairlane-class"] == "default"
    assert priority is None


async def test_what_fairlane_lets_pass_has_the_default(untold: Rig) -> None:
    """No pool serves that model. The engine's answer is 404."""
    answer, priority = await told(untold, "passed", model="another")
    assert "x-fairlane-class" not in answer.headers
    assert priority == DEFAULT
    await untold.books_closed()


async def test_what_passes_while_fairlane_is_away_has_the_default(untold: Rig) -> None:
    await untold.stack.kill(FAIRLANE)
    if untold.stack.options.wiring.profile == "strict":  # there nothing does
        assert (await untold.post(chat(), tenant="away", headers=FORGED)).status == 503
        assert await untold.seen("away") == []
        return
    answer, priority = await told(untold, "away")
    assert answer.status == 200
    assert priority == DEFAULT
