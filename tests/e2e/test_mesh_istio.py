"""The EnvoyFilter for Istio, applied by Istio's semantics to a gateway as Istio makes it, run on the real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import istio_case
import pytest
from doctor_run import faults
from replicas import ROOMY
from rig import Json, Rig, chat, running

from extproc.cli.stack import envoy_binary
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import NEWEST, OLDEST, Profile, Wiring
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.mesh.place import Place
from extproc.wiring.text import as_json

pytestmark = pytest.mark.e2e

FORGED = {
    "x-vllm-priority": "-5",
    "x-fairlane-class": "interactive",
    "x-fairlane-ticket": "1",
    "x-envoy-max-retries": "9",
}


def patched(plain: Json, wiring: Wiring) -> Json:
    """What the gateway's Envoy gets."""
    place = Place(engines=istio_case.ENGINES, fairlane=istio_case.FAIRLANE)
    (envoy_filter,) = FORMS["istio"](wiring, Addresses(), place)
    return istio_case.apply(envoy_filter, istio_case.gateway(plain))


@contextlib.asynccontextmanager
async def scene(directory: Path, wiring: Wiring | None = None) -> AsyncIterator[Rig]:
    wiring = wiring or Wiring()

    def patch(config: Json) -> None:
        made = patched(config, wiring)
        config.clear()
        config.update(made)

    config = {"classes": {"default": {"max_in_flight": 1}}}
    async with running(directory, wiring=wiring, envoy_patch=patch, config=config, pool=ROOMY, engines=2) as rig:
        yield rig


@pytest.mark.parametrize("profile", ["standard", "strict", "body", "duplex"])
async def test_held_released_counted_and_forged_headers_gone(tmp_path: Path, profile: Profile) -> None:
    async with scene(tmp_path, Wiring(profile=profile)) as rig:
        async with rig.hung_engines():
            tasks = [rig.start(chat(), tenant=f"t{number}", headers=FORGED) for number in range(3)]
            await rig.until(lambda pool: (pool["in_flight"], pool["queued"]) == (1, 2), "one inside, two held")
        answers = await asyncio.gather(*tasks)
        assert [answer.status for answer in answers] == [200] * 3
        assert all("x-fairlane-queue-ms" in answer.headers for answer in answers)
        told = {answer.headers["x-fairlane-endpoint"] for answer in answers}
        seen = await rig.seen()
        assert len(seen) == 3
        assert told <= {str(engine) for engine in rig.engines}
        for entry in seen:
            assert int(entry["headers"]["x-vllm-priority"]) > 0
            assert entry["headers"]["x-fairlane-ticket"] != "1"
            assert "x-envoy-max-retries" not in entry["headers"]
        await rig.books_closed()
        assert await rig.metric("fairlane_settled_requests_total", source="usage") == 3
        assert await rig.metric("fairlane_ignored_choices_total") == 0


async def test_other_routes_and_hosts_pass_by(tmp_path: Path) -> None:
    async with scene(tmp_path) as rig:
        assert (await rig.get("/v1/models")).status == 200
        other = await rig.post(chat(), headers={"host": istio_case.OTHER, **FORGED})
        assert (other.status, "x-fairlane-queue-ms" in other.headers) == (200, False)
        assert await rig.metric("fairlane_released_requests_total") == 0
        (entry,) = await rig.seen()
        assert not set(FORGED) & set(entry["headers"])
        await rig.books_closed()


async def test_killed_while_it_holds_and_started_again(tmp_path: Path) -> None:
    async with scene(tmp_path) as rig:
        async with rig.hung_engines():
            tasks = [rig.start(chat(), tenant=f"t{number}") for number in range(3)]
            await rig.until(lambda pool: (pool["in_flight"], pool["queued"]) == (1, 2), "one inside, two held")
            await rig.stack.kill("fairlane")
            assert not any(task.done() for task in tasks)
            await rig.stack.start_child("fairlane")
            await rig.until(lambda pool: pool["queued"] + pool["in_flight"] == 2, "the held ones are back")
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
        await rig.books_closed()


async def test_the_doctor_finds_nothing_but_the_other_host(tmp_path: Path) -> None:
    """Which leads to the same engines, and is not patched."""
    async with scene(tmp_path) as rig:
        found = await faults(rig)
    assert [each["id"] for each in found] == ["queue_bypassed"], found
    assert "virtual_hosts[1]" in found[0]["where"]


@pytest.mark.parametrize("profile", ["standard", "strict", "body", "duplex"])
def test_envoy_takes_it(tmp_path: Path, profile: Profile) -> None:
    version = subprocess.run([envoy_binary(), "--version"], capture_output=True, text=True, check=True, timeout=60)
    minor = int(re.findall(r"/1\.(\d+)\.", version.stdout)[0])
    assert OLDEST <= minor <= NEWEST
    file = tmp_path / "gateway.json"
    wiring = Wiring(profile=profile, facts="lua" if profile == "standard" else None, envoy=minor)
    file.write_text(as_json(patched(build(wiring, Addresses()).config, wiring)))
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", file], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
