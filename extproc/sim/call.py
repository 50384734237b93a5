"""A call: what an API request asks of the engine, read from its body and headers.

Tokens are counted by a rule, not by a tokenizer: four bytes of UTF-8 are one token, each chat message costs four more.
A prompt given as token ids counts them.

Output length: ``max_tokens`` when it is given (completions: 16 when not), all of the context with ``ignore_eos``, and
otherwise a length between 16 and 256 that follows from the prompt. ``stop`` and ``min_tokens`` are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Final

import orjson

from extproc.sim.fields import (
    INT64_MAX,
    INT64_MIN,
    ApiError,
    JsonObject,
    boolean,
    integer,
    invalid,
    optional_integer,
    string,
)
from extproc.sim.sequence import Request

MAX_SEQUENCES: Final = 16_384
"""Most sequences of one request."""
_BYTES_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 4
_SHORTEST, _LONGEST = 16, 256


@unique
class Api(Enum):
    """The generating endpoints; the value is the path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Length in tokens, and a checksum from which output text and length follow."""

    tokens: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request."""

    api: Api
    prompts: tuple[Prompt, ...]
    max_tokens: int
    n: int
    own_length: bool
    """Each sequence stops by itself, at a length that follows from its prompt."""
    priority: int
    stream: bool
    usage_at_end: bool
    usage_everywhere: bool

    @property
    def size(self) -> int:
        """Number of sequences."""
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        return sum(p.tokens for p in self.prompts)

    def salt(self, index: int) -> int:
        """A number that differs by prompt and choice; index 0 to size - 1."""
        prompt, choice = divmod(index, self.n)
        return zlib.crc32(b"%d" % choice, self.prompts[prompt].checksum)

    def to_request(self, request_id: str) -> Request:
        """The same for the engine."""
        stop_at: tuple[int, ...] = ()
        if self.own_length:
            stop_at = tuple(_SHORTEST + self.salt(i) % (_LONGEST - _SHORTEST + 1) for i in range(self.size))
        tokens = tuple(p.tokens for p in self.prompts)
        return Request(request_id, tokens, self.max_tokens, self.n, self.priority, stop_at)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows, and what it forces."""

    model: str
    max_model_len: int
    force_usage: bool = False
    seed: int = 0


def read_call(api: Api, raw: bytes, headers: Mapping[str, str], limits: Limits) -> Call:
    """Read and check a request. ``headers`` must ignore case. Raises ApiError with the error to answer."""
    body = _parse(raw, headers)
    if (model := string(body, "model")) and model != limits.model:
        raise ApiError(404, f"The model `{model[:200]}` does not exist.", "NotFoundError", "model")
    stream = boolean(body, "stream")
    usage_at_end, usage_everywhere = _stream_usage(body, stream, limits)
    n = integer(body, "n", 1) if api in (Api.CHAT, Api.COMPLETIONS) else 1
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.", param="n")
    prompts = _PROMPTS[api](body, limits.seed)
    if n * len(prompts) > MAX_SEQUENCES:
        raise ApiError(400, f"n x prompts must be at most {MAX_SEQUENCES}.", param="n")
    asked = _asked_tokens(api, body)
    return Call(
        api=api,
        prompts=prompts,
        max_tokens=_max_tokens(asked, prompts, limits),
        n=n,
        own_length=asked is None and not boolean(body, "ignore_eos"),
        priority=_priority(api, body, headers),
        stream=stream,
        usage_at_end=usage_at_end,
        usage_everywhere=usage_everywhere,
    )


def _parse(raw: bytes, headers: Mapping[str, str]) -> JsonObject:
    media_type = headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, message, "Bad Request")
    if not raw:
        raise invalid("missing", None, "Field required")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid("json_invalid", None, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise invalid("model_attributes_type", None, "Input should be a valid dictionary", body)
    return body


def _stream_usage(body: JsonObject, stream: bool, limits: Limits) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        options = {}
    elif not isinstance(options, dict):
        raise invalid("model_attributes_type", "stream_options", "Input should be a valid dictionary", options)
    elif not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    at_end = boolean(options, "include_usage") or limits.force_usage
    return at_end, at_end and (boolean(options, "continuous_usage_stats") or limits.force_usage)


def _asked_tokens(api: Api, body: JsonObject) -> int | None:
    if api is Api.CHAT:
        newer = optional_integer(body, "max_completion_tokens")
        return newer if newer is not None else optional_integer(body, "max_tokens")
    if api is Api.COMPLETIONS:
        asked = optional_integer(body, "max_tokens")
        return 16 if asked is None else asked
    if api is Api.RESPONSES:
        return optional_integer(body, "max_output_tokens")
    if "max_tokens" not in body:
        raise invalid("missing", "max_tokens", "Field required")
    return integer(body, "max_tokens", 0)


def _max_tokens(asked: int | None, prompts: tuple[Prompt, ...], limits: Limits) -> int:
    context, longest = limits.max_model_len, max(p.tokens for p in prompts)
    length = f"This model's maximum context length is {context} tokens"
    if longest >= context:
        message = f"{length}. However, your request has {longest} input tokens. Please reduce the length of the input."
        raise ApiError(400, message, param="input_tokens")
    if asked is None:
        return context - longest
    if asked < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if longest + asked > context:
        message = (
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. {length} and your request has "
            f"{longest} input tokens ({asked} > {context} - {longest})."
        )
        raise ApiError(400, message, param="max_tokens")
    return asked


def _priority(api: Api, body: JsonObject, headers: Mapping[str, str]) -> int:
    """The header wins over the body; one that is no integer counts as absent. Messages have no such field."""
    priority = 0 if api is Api.MESSAGES else integer(body, "priority", 0)
    if not INT64_MIN <= priority <= INT64_MAX:
        raise invalid("int_range", "priority", "Input should fit into 64 bits", priority)
    try:
        header = int(headers.get("x-vllm-priority", ""))
    except ValueError:
        return priority
    if not INT64_MIN <= header <= INT64_MAX:
        # vLLM fails while it packs the message to its engine, and answers so.
        raise ApiError(500, "", "InternalServerError")
    return header


def _prompt(text: str, seed: int, extra_tokens: int = 0) -> Prompt:
    data = text.encode()
    return Prompt(-(-len(data) // _BYTES_PER_TOKEN) + extra_tokens, zlib.crc32(data, seed))


def _completion_prompts(body: JsonObject, seed: int) -> tuple[Prompt, ...]:
    given = body.get("prompt")
    if isinstance(given, str) or (isinstance(given, list) and given and all(type(i) is int for i in given)):
        given = [given]
    elif given is not None and not isinstance(given, list):
        raise invalid("string_type", "prompt", "Input should be a valid string", given)
    if not given:
        raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if len(given) > MAX_SEQUENCES:
        raise ApiError(400, f"n x prompts must be at most {MAX_SEQUENCES}.", param="prompt")
    prompts = []
    for item in given:
        if isinstance(item, str):
            prompts.append(_prompt(item, seed))
        elif isinstance(item, list) and all(type(i) is int for i in item):
            prompts.append(Prompt(len(item), zlib.crc32(orjson.dumps(item), seed)))
        else:
            raise invalid("string_type", "prompt", "Input should be a valid string", item)
    if not all(p.tokens for p in prompts):
        raise ApiError(400, "The decoder prompt cannot be empty.", param="prompt")
    return tuple(prompts)


def _text_of(content: Any, name: str) -> str:
    """The text in a message's content: a string, a list of parts, or null."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise invalid("string_type", name, "Input should be a valid string", content)
    return "".join(text for part in content if isinstance(text := part.get("text"), str))


def _conversation(messages: Any, name: str, seed: int, first: str = "") -> tuple[Prompt, ...]:
    if not isinstance(messages, list):
        raise invalid("list_type", name, "Input should be a valid list", messages)
    if not messages:
        raise ApiError(400, f"{name} must not be empty.", param=name)
    texts = [first] if first else []
    for message in messages:
        if not isinstance(message, dict):
            raise invalid("model_attributes_type", name, "Input should be a valid dictionary", message)
        texts.append(_text_of(message.get("content"), f"{name}.content"))
    # Tokens per message, so that the split into messages counts; 0 separates them in the checksum.
    tokens = sum(_prompt(text, 0, _TOKENS_PER_MESSAGE).tokens for text in texts)
    return (Prompt(tokens, zlib.crc32("\0".join(texts).encode(), seed)),)


def _chat_prompts(body: JsonObject, seed: int) -> tuple[Prompt, ...]:
    if "messages" not in body:
        raise invalid("missing", "messages", "Field required")
    return _conversation(body["messages"], "messages", seed)


def _messages_prompts(body: JsonObject, seed: int) -> tuple[Prompt, ...]:
    if "messages" not in body:
        raise invalid("missing", "messages", "Field required")
    return _conversation(body["messages"], "messages", seed, first=_text_of(body.get("system"), "system"))


def _responses_prompts(body: JsonObject, seed: int) -> tuple[Prompt, ...]:
    if "input" not in body:
        raise invalid("missing", "input", "Field required")
    given = body["input"]
    messages = [{"content": given}] if isinstance(given, str) else given
    return _conversation(messages, "input", seed, first=string(body, "instructions") or "")


_PROMPTS: Final = {
    Api.CHAT: _chat_prompts,
    Api.COMPLETIONS: _completion_prompts,
    Api.RESPONSES: _responses_prompts,
    Api.MESSAGES: _messages_prompts,
}
