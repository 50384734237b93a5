"""Answers in the shapes that vLLM 0.32 sends, plain and as server-sent events.

What is the same in each chunk of a stream is rendered once; a token then costs one join of a few byte strings. The text
is made of a fixed list of words, entered at a place that follows from the prompt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Row
from typing import Any, Final

import orjson

from extproc.sim.call import Call
from extproc.sim.engine import Event

_TEXT: Final = (
    "the river runs past old mills and under nine low stone bridges before it meets a wider one ; boats carry grain , "
    "salt , letters to towns that lie along both banks while herons stand still in shallow water waiting for small "
    "fish which come when evening light turns gold over every quiet field , then fly home to reeds beside a slow bend"
)
WORDS: Final = tuple(f" {word}" for word in _TEXT.split()[:64])
"""Texts of one token each; as many as a power of two."""
_JSON_WORDS: Final = tuple(orjson.dumps(word) for word in WORDS)
_MASK: Final = len(WORDS) - 1
DONE: Final = b"data: [DONE]\n\n"


def sse(data: object, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n" if event else ""
    return head.encode() + b"data: " + orjson.dumps(data) + b"\n\n"


def text_of(salt: int, tokens: int) -> str:
    """The output of a sequence."""
    return "".join([WORDS[(salt + i) & _MASK] for i in range(tokens)])


class Answer(ABC):
    """Renders one call's answer.

    name      what follows the prefix in the answer's id: the X-Request-Id, or a random one
    created   Unix seconds
    """

    def __init__(self, call: Call, model: str, name: str, created: int) -> None:
        self.call: Final = call
        self.model: Final = model
        self.created: Final = created
        self.id: Final = self.prefix + name
        self._salts: Final = tuple(call.salt(i) for i in range(call.size))

    prefix: str

    @abstractmethod
    def plain(self, ends: Row[Event]) -> dict[str, Any]:
        """The JSON answer. ``ends`` are the FINISHED events in the order of the sequences."""

    @abstractmethod
    def opening(self) -> bytes:
        """What a stream sends before the first token."""

    @abstractmethod
    def token(self, event: Event) -> bytes:
        """What a stream sends for a token; never empty."""

    @abstractmethod
    def closing(self, completion_tokens: int) -> bytes:
        """What a stream sends after the last token."""

    def usage(self, completion_tokens: int, prompt_tokens: int | None = None) -> dict[str, Any]:
        prompt = self.call.prompt_tokens if prompt_tokens is None else prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def _word(self, event: Event) -> bytes:
        return _JSON_WORDS[(self._salts[event.sequence] + event.tokens - 1) & _MASK]

    def _text(self, end: Event) -> str:
        return text_of(self._salts[end.sequence], end.tokens)


class _OpenAiAnswer(Answer):
    """Chat and completions: chunks of one shape, usage on demand, [DONE] at the end."""

    chunk_object: str
    # a choice of a chunk, around the word: the last chunk names its reason
    _before: bytes
    _after: bytes
    _after_last: bytes

    def __init__(self, call: Call, model: str, name: str, created: int) -> None:
        super().__init__(call, model, name, created)
        base = {"id": self.id, "object": self.chunk_object, "created": created, "model": model}
        self._base: Final = base
        self._head: Final = b"data: " + orjson.dumps(base)[:-1] + b',"choices":[{"index":'

    def token(self, event: Event) -> bytes:
        tail = self._after if event.reason is None else self._after_last % event.reason.value.encode()
        end = b"}]}\n\n"
        if self.call.usage_everywhere:
            prompt = self.call.prompts[event.sequence // self.call.n].tokens
            end = b'}],"usage":' + orjson.dumps(self.usage(event.tokens, prompt)) + b"}\n\n"
        return b"".join((self._head, b"%d" % event.sequence, self._before, self._word(event), tail, end))

    def closing(self, completion_tokens: int) -> bytes:
        if not self.call.usage_at_end:
            return DONE
        return sse({**self._base, "choices": [], "usage": self.usage(completion_tokens)}) + DONE

    def _plain(self, kind: str, choices: list[dict[str, Any]], ends: Row[Event]) -> dict[str, Any]:
        return {
            **self._base,
            "object": kind,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**self.usage(sum(e.tokens for e in ends)), "prompt_tokens_details": None},
            "kv_transfer_params": None,
        }


class ChatAnswer(_OpenAiAnswer):
    prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    _before = b',"delta":{"content":'
    _after = b'},"logprobs":null,"finish_reason":null,"token_ids":null'
    _after_last = b'},"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null'

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        usage = {"usage": self.usage(0)} if self.call.usage_everywhere else {}
        return b"".join(
            sse(
                {
                    **self._base,
                    "choices": [{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}],
                    **usage,
                    "prompt_token_ids": None,
                }
            )
            for i in range(self.call.size)
        )

    def plain(self, ends: Row[Event]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {
                "index": end.sequence,
                "message": {
                    "role": "assistant",
                    "content": self._text(end),
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": [],
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": end.reason.value if end.reason else None,
                "stop_reason": None,
                "token_ids": None,
            }
            for end in ends
        ]
        return self._plain("chat.completion", choices, ends)


class CompletionAnswer(_OpenAiAnswer):
    prefix = "cmpl-"
    chunk_object = "text_completion"
    _before = b',"text":'
    _after = b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null'
    _after_last = b',"logprobs":null,"finish_reason":"%b","stop_reason":null,"token_ids":null'

    def opening(self) -> bytes:
        return b""

    def plain(self, ends: Row[Event]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {
                "index": end.sequence,
                "text": self._text(end),
                "logprobs": None,
                "finish_reason": end.reason.value if end.reason else None,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
            for end in ends
        ]
        return self._plain("text_completion", choices, ends)
