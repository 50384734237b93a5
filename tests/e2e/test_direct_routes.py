"""What does not generate is not queued: it goes straight to an engine and Fairlane never hears of it."""

from __future__ import annotations

import pytest
from rig import CHAT, COMPLETIONS, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ROUTES = [
    ("GET", "/v1/models", 200),
    ("GET", "/health", 200),
    ("GET", "/version", 200),
    ("GET", CHAT, 405),
    ("DELETE", COMPLETIONS, 405),
    ("POST", "/tokenize", 404),
    ("POST", "/v1/completions/", 404),
    ("GET", "/", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
async def test_passes_untouched(method: str, path: str, status: int, rig: Rig) -> None:
    entries = await rig.metric("fairlane_access_log_entries_total")
    released = await rig.metric("fairlane_released_requests_total")
    data = b'{"model":"sim-7b","prompt":"a"}' if method == "POST" else None
    async with rig.http.request(method, f"http://{rig.engines[0]}{path}", data=data) as answer:
        direct, wanted = answer.status, await answer.read()
    async with rig.http.request(method, rig.stack.url + path, data=data) as answer:
        assert answer.status == direct == status
        if path != "/v1/models":  # it tells when its engine was started
            assert await answer.read() == wanted
        assert not [name for name in answer.headers if name.lower().startswith("x-fairlane-")]
    assert await rig.metric("fairlane_released_requests_total") == released
    assert await rig.metric("fairlane_access_log_entries_total") == entries
