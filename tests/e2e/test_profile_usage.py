"""`requests.include_usage: inject`: streams are counted whose clients did not ask for it, and those do not see it where
the answer passes through Fairlane."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from profile_case import BODY, Case, body_of, started
from rig import chat

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def case(priority_via: str = "header", source: str = "stream", **choices: object) -> Case:
    return Case(Wiring(**choices), frozenset({source}), priority_via)  # type: ignore[arg-type]


CASES = {
    "standard, counted here": case(usage="stream", append=True),
    "standard, counted by Envoy": case(source="usage", append=True),
    "body, counted here": case("both", profile="body", usage="stream"),
    "body, counted by Envoy": replace(BODY, sources=frozenset({"usage"})),
    "duplex, counted here": case(profile="duplex", usage="stream"),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_count_that_nobody_asked_for(name: str, tmp_path: Path) -> None:
    each = CASES[name]
    (source,) = each.sources
    asked = {"stream_options": {"include_usage": True}}
    async with started(each, tmp_path, config={"requests": {"include_usage": "inject"}}) as rig:
        plain = await rig.post(chat(7), tenant="plain")
        silent = await rig.post(chat(7, stream=True), tenant="silent")
        told = await rig.post(chat(7, stream=True, **asked), tenant="told")
        refused = await rig.post(chat(7, stream=True, stream_options={"include_usage": False}), tenant="refused")
        await rig.books_closed()

        assert plain.json["usage"]["completion_tokens"] == 7
        assert b'"usage":{' in told.body.replace(b" ", b"")
        # Its client sees what it would have seen without us, where the answer passes here; else one event more.
        assert (b'"choices":[]' in silent.body.replace(b" ", b"")) is ("counted by Envoy" in name)
        assert silent.body.endswith(b"data: [DONE]\n\n")
        assert silent.body.count(b'"content"') == told.body.count(b'"content"') > 0
        assert b'"choices":[]' not in refused.body.replace(b" ", b"")

        for tenant, options in (
            ("plain", None),
            ("silent", asked["stream_options"]),
            ("told", asked["stream_options"]),
        ):
            (entry,) = await rig.seen(tenant)
            assert orjson.loads(await body_of(rig, entry)).get("stream_options") == options, tenant
        assert await rig.metric("fairlane_settled_requests_total", source=source) == 3
