"""`fairlane doctor` at the admin interface of a real Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_run import doctor
from rig import running

pytestmark = pytest.mark.e2e


async def test_the_shipped_configuration_is_clean(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as rig:
        code, report = await doctor(rig)
    assert (code, report["clean"]) == (0, True), report["findings"]
    assert {each["severity"] for each in report["findings"]} <= {"note"}
    assert report["envoy_version"].startswith("1.")


async def test_two_wrong_time_outs_are_found(tmp_path: Path) -> None:
    def spoil(config: dict[str, Any]) -> None:
        chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
        manager = chain["filters"][0]["typed_config"]
        processor = next(each for each in manager["http_filters"] if each["name"] == "envoy.filters.http.ext_proc")
        processor["typed_config"]["message_timeout"] = "10s"
        manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"] = {
            **manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"],
            "timeout": "30s",
        }

    async with running(tmp_path, envoy_patch=spoil) as rig:
        code, report = await doctor(rig)
    found = [each for each in report["findings"] if each["severity"] != "note"]
    assert code == 1
    assert [each["id"] for each in found] == ["message_timeout", "route_timeout"]
    assert [each["what"].partition(",")[0] for each in found] == ["message_timeout is 10s", "timeout is 30s"]
    assert found[0]["where"].startswith("configs[")
