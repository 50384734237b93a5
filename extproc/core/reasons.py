"""The one table of reasons why a request is not served.

Status, error code, metric label, log key and the documentation come from here and nowhere else.
429: others are waiting and this one is too many. 503: there is no capacity for anybody just now.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """code (in `error.code`, `x-fairlane-reason`, metrics and logs), HTTP status, OpenAI error type,
    whether Retry-After is sent, and what it means."""

    QUEUE_FULL = ("queue_full", 429, "rate_limit_error", True, "the pool's or the class's queue is full")
    TENANT_LIMIT = ("tenant_limit", 429, "rate_limit_error", True, "the tenant has too many requests waiting")
    RATE_LIMIT = ("rate_limit", 429, "rate_limit_error", True, "the tenant's rate is used up for longer than it waits")
    SHED = ("shed", 429, "rate_limit_error", True, "the queue is full and the tenant has the most waiting")
    QUEUE_TIMEOUT = ("queue_timeout", 503, "service_unavailable", True, "waited longer than the class allows")
    PREEMPTED = ("preempted", 503, "service_unavailable", True, "made room for a more urgent class")
    PAUSED = ("paused", 503, "service_unavailable", True, "waited for too long in a pool that an operator has paused")
    CANCELLED = ("cancelled", 503, "service_unavailable", True, "an operator has cancelled it")
    DRAINING = ("draining", 503, "service_unavailable", True, "Fairlane or the pool takes nothing more in")
    NO_CAPACITY = ("no_capacity", 503, "service_unavailable", True, "no endpoint of the pool answers")
    BODY_TOO_LARGE = ("body_too_large", 413, "invalid_request_error", False, "the body is larger than allowed")
    INVALID_REQUEST = ("invalid_request_error", 400, "invalid_request_error", False, "not JSON, or no model named")
    MODEL_NOT_FOUND = ("model_not_found", 404, "invalid_request_error", False, "no pool serves the model")
    FAULT = ("fault", 503, "service_unavailable", True, "a fault inside Fairlane, with `on_fault: reject`")

    def __init__(self, code: str, status: int, error_type: str, retry: bool, meaning: str) -> None:
        self.code = code
        self.status = status
        self.error_type = error_type
        self.retry = retry
        self.meaning = meaning
