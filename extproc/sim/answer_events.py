"""Answers whose streams are typed events: /v1/messages and /v1/responses. One sequence each."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import Any

import orjson

from extproc.sim.answer import Answer, ChatAnswer, CompletionAnswer, sse
from extproc.sim.call import Api, Call
from extproc.sim.engine import Event
from extproc.sim.sequence import FinishReason


class MessagesAnswer(Answer):
    """Anthropic's shape: usage in message_start and message_delta, no [DONE]."""

    prefix = "msg_"
    _end: Event | None = None

    def _message(self, content: list[Any], reason: str | None, output_tokens: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": self.call.prompt_tokens, "output_tokens": output_tokens},
        }

    def plain(self, ends: Row[Event]) -> dict[str, Any]:
        (end,) = ends
        return self._message([{"type": "text", "text": self._text(end)}], _anthropic_reason(end), end.tokens)

    def opening(self) -> bytes:
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        start = {"type": "message_start", "message": self._message([], None, 0)}
        return sse(start, "message_start") + sse(block, "content_block_start")

    def token(self, event: Event) -> bytes:
        if event.reason is not None:
            self._end = event
        return b"".join(
            (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,',
                b'"delta":{"type":"text_delta","text":',
                self._word(event),
                b"}}\n\n",
            )
        )

    def closing(self, completion_tokens: int) -> bytes:
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": _anthropic_reason(self._end)},
            "usage": {"input_tokens": self.call.prompt_tokens, "output_tokens": completion_tokens},
        }
        return b"".join(
            (
                sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
                sse(delta, "message_delta"),
                sse({"type": "message_stop"}, "message_stop"),
            )
        )


def _anthropic_reason(end: Event | None) -> str:
    return "end_turn" if end is not None and end.reason is FinishReason.STOP else "max_tokens"


class ResponsesAnswer(Answer):
    """OpenAI's /v1/responses: numbered events, usage in response.completed, no [DONE]."""

    prefix = "resp_"

    def __init__(self, call: Call, model: str, name: str, created: int) -> None:
        super().__init__(call, model, name, created)
        self._number = -1
        self._item_id = f"msg_{name}"
        self._end: Event | None = None

    def _response(self, status: str, end: Event | None) -> dict[str, Any]:
        usage = None
        if end is not None:
            prompt = self.call.prompt_tokens
            usage = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": end.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + end.tokens,
            }
        cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": None,
            "model": self.model,
            "output": [self._item(end)] if end is not None else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "max_output_tokens": self.call.max_tokens,
            "usage": usage,
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _item(self, end: Event | None) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": "completed" if end is not None else "in_progress",
            "content": [self._part(self._text(end))] if end is not None else [],
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def plain(self, ends: Row[Event]) -> dict[str, Any]:
        (end,) = ends
        return self._response(_status(end), end)

    def opening(self) -> bytes:
        started = self._response("in_progress", None)
        return b"".join(
            (
                self._event("response.created", response=started),
                self._event("response.in_progress", response=started),
                self._event("response.output_item.added", output_index=0, item=self._item(None)),
                self._event("response.content_part.added", **self._place(), part=self._part("")),
            )
        )

    def token(self, event: Event) -> bytes:
        if event.reason is not None:
            self._end = event
        self._number += 1
        kind = b"response.output_text.delta"
        head = b'event: %b\ndata: {"type":"%b","sequence_number":%d,"item_id":%b,'
        return b"".join(
            (
                head % (kind, kind, self._number, orjson.dumps(self._item_id)),
                b'"output_index":0,"content_index":0,"logprobs":[],"delta":',
                self._word(event),
                b"}\n\n",
            )
        )

    def closing(self, completion_tokens: int) -> bytes:  # noqa: ARG002 - one sequence: its last event knows
        end = self._end
        if end is None:
            raise RuntimeError(f"{self.id}: closed before its last token")
        text = self._text(end)
        return b"".join(
            (
                self._event("response.output_text.done", **self._place(), text=text, logprobs=[]),
                self._event("response.content_part.done", **self._place(), part=self._part(text)),
                self._event("response.output_item.done", output_index=0, item=self._item(end)),
                self._event("response.completed", response=self._response(_status(end), end)),
            )
        )


def _status(end: Event) -> str:
    return "completed" if end.reason is FinishReason.STOP else "incomplete"


ANSWERS: dict[Api, type[Answer]] = {
    Api.CHAT: ChatAnswer,
    Api.COMPLETIONS: CompletionAnswer,
    Api.MESSAGES: MessagesAnswer,
    Api.RESPONSES: ResponsesAnswer,
}
