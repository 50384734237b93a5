"""What a client gets that is not served: an OpenAI-shaped error that says why, and when to come back."""

from __future__ import annotations

import orjson

from extproc.core.reasons import Reason
from extproc.edge.wire import immediate_answer


def refuse(reason: Reason, message: str, retry_after_s: int | None = None, param: str | None = None) -> bytes:
    """The serialised immediate response for `reason`."""
    body = orjson.dumps({"error": {"message": message, "type": reason.error_type, "param": param, "code": reason.code}})
    headers = {"content-type": "application/json", "x-fairlane-reason": reason.code}
    if reason.retry and retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return immediate_answer(reason.status, body, headers, f"fairlane_{reason.code}")
