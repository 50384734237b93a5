"""Questions to an engine's HTTP side, with whatever comes back made into an `Answer`.

An engine is asked at the start of serving and when another one answers behind its address, so nothing here may cost
much or fail loudly: one deadline covers the whole answer (a server that sends a byte a second included), an answer is
read up to a bound, redirects are not followed (a key would go with them), and compression is refused rather than
undone, so that a small answer cannot become a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024  # SGLang's /server_info has 30 to 170 KB
_CHUNK_BYTES: Final = 65_536
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "fairlane"}
_SHOWN: Final = 200  # characters of an engine's own words in a sentence


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `value`: the JSON, also of an error; None where there is none."""

    path: str
    status: int | None  # None: no answer
    value: object
    problem: str | None  # cause, and cure where one is known; None: status 200 and JSON

    @property
    def ok(self) -> bool:
        return self.problem is None

    def get(self, *names: str) -> object:
        """The member under these names, one inside the other; None where there is none, or no good answer."""
        value = self.value if self.ok else None
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def text(self, name: str) -> str | None:
        """A member that is a text, fit to be shown."""
        value = self.get(name)
        return shown(value) if isinstance(value, str) and value.strip() else None

    @property
    def complaint(self) -> str:
        """The engine's own words of an error, in either of the two shapes that are in use; may be empty."""
        value = self.value if isinstance(self.value, dict) else {}
        inner = value.get("error")
        message = inner.get("message") if isinstance(inner, dict) else value.get("message", inner)
        return shown(message) if isinstance(message, str) else ""


class Questions:
    """To one engine. `timeout_s`: seconds for one answer, all of it."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, timeout_s: float) -> None:
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path)

    async def post(self, path: str, body: Mapping[str, object]) -> Answer:
        return await self._ask("POST", path, data=orjson.dumps(body), headers={"Content-Type": "application/json"})

    async def _ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
        """Raises nothing but CancelledError."""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.request(
                    method,
                    self._base_url + path,
                    headers={**_HEADERS, **(headers or {})},
                    allow_redirects=False,
                    auto_decompress=False,
                    **more,
                ) as response,
            ):
                body = await _read(response)
        except TimeoutError:
            return Answer(path, None, None, f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(path, None, None, shown(str(error) or type(error).__name__))
        value = None if body is None else _json(body)
        return Answer(path, response.status, value, _problem(response, body, value))


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """None: too much of it."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)


def _json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _problem(response: aiohttp.ClientResponse, body: bytes | None, value: object) -> str | None:
    status = response.status
    if status in (401, 403):
        return f"HTTP status {status}: it wants an API key, or another one; set `metrics.token_file` of the pool"
    if 300 <= status < 400:
        return f"HTTP status {status}, to {shown(response.headers.get('Location', 'nowhere'))}; not followed"
    if status != 200:
        return f"HTTP status {status}"
    if body is None:
        return f"an answer of more than {MAX_ANSWER_BYTES} bytes"
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "a compressed answer, though none was asked for"
    return "an answer that is no JSON" if value is None else None


def shown(text: str, most: int = _SHOWN) -> str:
    """An engine's words as they may stand in a log: one line, not long."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(char if char.isprintable() else " " for char in short).strip()
