"""Endpoints from the Kubernetes API: the EndpointSlices of a Service, or those that a selector of labels finds.

No client library: kubernetes_asyncio 36.1 has 48 MB of generated code for all of the API (`du -sh` of its folder) and
takes 0.7 s of CPU to import, and here one list and one watch of one kind of object are needed. They are made with the
HTTP client that is there anyway, so there is nothing to install.

Theory, from the API's documents ("efficient detection of changes"):

- List (in pages), take the list's resourceVersion, watch from there. Each event carries the next version; bookmarks
  carry it where nothing changes.
- 410 Gone, as status or as an event: the version is too old. List anew; the new list replaces all, so that what was
  deleted in between is gone.
- A watch ends regularly: the server is asked to end it after two minutes, and one that is silent for longer is taken
  for dead. A watch that breaks is no failure by itself: the next one goes on from the same version, and misses nothing.
- What else fails (no connection, 401, 403, 5xx, what is no JSON) is, and is tried again after a pause that doubles.
  The endpoints stay as they were. Token and certificates are read anew each time: a 401 mends itself when the kubelet
  has written the next token.

Events of 0.1 s are put together: the controller moves a pod from one slice to another by two events, between which the
pod is nowhere. A rollout is fewer changes then, too. With many endpoints it is up to 1 s, since each look takes all.

Whoever answers is not trusted to be the API, or to be well. All that it can send is bounded: bytes of a page, of an
event and of all slices together, pages, slices, endpoints, and the time of a list. What is compressed is refused:
identity is asked for, and the API compresses nothing that was not asked to be. What goes over a bound is an error that
names it, and changes nothing. Watches that end at once are no way around: there is a pause between two.

Fairlane needs `list` and `watch` of `endpointslices` in `discovery.k8s.io`, in that namespace.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
import orjson

from extproc.config.endpoints import Kubernetes
from extproc.engines.endpoints import cluster, slices
from extproc.engines.endpoints.cluster import Cluster
from extproc.engines.endpoints.source import Source, SourceError

SETTLE_S: Final = 0.1
WATCH_S: Final = 120
LIST_S: Final = 60.0  # all pages
_AGAIN_S: Final = 0.5  # until the next watch, or list, after one that ended as it may
_SILENCE_S: Final = 15.0  # more than WATCH_S, and the server or the way to it is dead
_PAGE: Final = 50  # slices
# A slice has at most 1000 endpoints of some 500 bytes (100 unless the controller is told otherwise), and no object of
# the API is larger than the 1.5 MiB that etcd takes. 10,000 endpoints have some 6 MB; in memory it is eight times that.
MOST_PAGES: Final = 200
MOST_SLICES: Final = 10_000
_LARGEST_EVENT: Final = 4 * 1024**2  # bytes
_LARGEST_PAGE: Final = 8 * 1024**2
MOST_BYTES: Final = 16 * 1024**2  # of all slices, as they came
_LARGEST_REFUSAL: Final = 64 * 1024
_REFUSAL_S: Final = 10.0
_SETTLE_S_EACH: Final = 1e-4  # for each endpoint known
_LONGEST_PAUSE_S: Final = 30.0
_OF_SERVICE: Final = "kubernetes.io/service-name"


class _GoneError(Exception):
    """The version is too old to watch from."""


class KubernetesSource(Source):
    """The EndpointSlices of one namespace that match. `read`: how the API is reached, asked before each connection."""

    def __init__(
        self,
        config: Kubernetes,
        pool: str,
        clock: Callable[[], float],
        *,
        read: Callable[[Kubernetes], Cluster] = cluster.read,
        watch_s: int = WATCH_S,
        pause_s: float = _AGAIN_S,
    ) -> None:
        self._selector = f"{_OF_SERVICE}={config.service}" if config.service else config.selector or ""
        super().__init__(
            f"kubernetes service {config.service}" if config.service else f"kubernetes {config.selector}", pool, clock
        )
        self._config = config
        self._read = read
        self._watch_s = watch_s
        self._pause_s = pause_s
        self._slices: dict[str, slices.Slice] = {}
        self._sizes: dict[str, int] = {}  # of each slice, bytes
        self._size = 0  # of all
        self._version: str | None = None  # None: to be listed
        self._told_empty = False

    async def _round(self) -> float:
        """A list if one is needed, and a watch to its end."""
        way = await asyncio.to_thread(self._read, self._config)
        namespace = self._config.namespace or way.namespace
        url = f"{way.url}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=self._watch_s + _SILENCE_S)
        connector = aiohttp.TCPConnector(ssl=way.tls if way.tls is not None else True, limit=1)
        try:
            async with aiohttp.ClientSession(
                connector=connector,
                headers={**way.headers, "Accept-Encoding": "identity"},
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            ) as session:
                api = _Api(session, url, self._selector, way.server_name, namespace)
                if self._version is None:
                    listed, self._version = await api.list()
                    self._slices = {name: content for name, (content, _) in listed.items()}
                    self._sizes = {name: size for name, (_, size) in listed.items()}
                    self._size = sum(self._sizes.values())
                    self._publish()
                await self._watch(api, self._version)
        except _GoneError:
            self._version = None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SourceError(
                f"the Kubernetes API at {way.url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        return self._pause_s

    def _pause_after_failure(self, in_row: int) -> float:
        spread = random.uniform(0.5, 1.0)  # noqa: S311  no secret; replicas should not march in step
        return min(self._pause_s * 2.0 ** min(in_row - 1, 16), _LONGEST_PAUSE_S) * spread

    async def _watch(self, api: _Api, version: str) -> None:
        """Returns at its end, also when the connection broke. Raises what `_round` does and _GoneError."""
        async with api.watch(version, self._watch_s) as response:
            await api.check(response)
            self._publish()
            loop = asyncio.get_running_loop()
            lines = _Lines()
            publish_at: float | None = None
            while True:
                if publish_at is not None and loop.time() >= publish_at:
                    publish_at = None
                    self._publish()
                try:
                    async with asyncio.timeout_at(publish_at):
                        chunk = await response.content.readany()
                except aiohttp.ClientError:  # first, since silence for too long is a TimeoutError too
                    chunk = b""
                except TimeoutError:
                    continue
                except OSError:
                    chunk = b""
                if not chunk:
                    self._publish()
                    return
                for line in lines.feed(chunk):
                    self._apply(line)
                    publish_at = publish_at or loop.time() + self._settle_s()

    def _apply(self, line: bytes) -> None:
        """Take in one event. Raises SourceError, _GoneError."""
        try:
            event = orjson.loads(line)
            kind, content = event["type"], event["object"]
            if kind == "ERROR":
                code = content.get("code")
                self._version = None
                if code == 410:
                    raise _GoneError
                raise SourceError(f"the Kubernetes API ended the watch: {content.get('message') or code}")
            version = content["metadata"]["resourceVersion"]
            name = None if kind == "BOOKMARK" else _name(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._version = None
            raise SourceError(f"an event that is none of the Kubernetes API's came: {error!r}") from error
        self._version = str(version)
        if name is None:
            return
        self._size -= self._sizes.pop(name, 0)
        self._slices.pop(name, None)
        if kind != "DELETED":
            self._slices[name], self._sizes[name] = content, len(line)
            self._size += len(line)
        try:
            _check_bounds(len(self._slices), self._size)
        except SourceError:
            self._version = None  # what comes next would be taken in without this event
            raise

    def _settle_s(self) -> float:
        return min(max(SETTLE_S, _SETTLE_S_EACH * len(self.endpoints or ())), 1.0)

    def _publish(self) -> None:
        """A fault in the slices is no end of the watch: the next event may mend it."""
        try:
            found = slices.endpoints(self._slices.values(), self._config.port)
        except SourceError as error:
            self._failed(str(error))
            return
        if not found and not self._told_empty:
            why = "all pods are unready or ending" if self._slices else "there is no such Service, or it has no pods"
            self._log.warning("Kubernetes has no endpoints: the pool has none", slices=len(self._slices), note=why)
        self._told_empty = not found
        self._found(found)


class _Api:
    """The two requests."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, selector: str, server_name: str | None, namespace: str
    ) -> None:
        self._session = session
        self._url = url
        self._selector = selector
        self._server_name = server_name
        self._namespace = namespace

    async def list(self) -> tuple[dict[str, tuple[slices.Slice, int]], str]:
        """All slices and about how many bytes each has, by name, and the version of the list. Raises SourceError,
        _GoneError."""
        try:
            async with asyncio.timeout(LIST_S) as limit:
                return await self._pages()
        except TimeoutError:
            if not limit.expired():
                raise
            raise SourceError(f"the Kubernetes API did not list all EndpointSlices within {LIST_S:g} s") from None

    async def _pages(self) -> tuple[dict[str, tuple[slices.Slice, int]], str]:
        found: dict[str, tuple[slices.Slice, int]] = {}
        size = 0
        query = {"limit": str(_PAGE)}
        for _ in range(MOST_PAGES):
            async with self._get(query) as response:
                await self.check(response)
                body = await _read(response, _LARGEST_PAGE)
            try:
                content = orjson.loads(body)
                meta = content["metadata"]
                page = {_name(each): each for each in content.get("items") or ()}
                version = str(meta["resourceVersion"])
                more = meta.get("continue")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise SourceError(
                    f"{self._url} does not answer as the Kubernetes API does: see what runs there"
                ) from error
            size += len(body)
            found |= {name: (each, len(body) // len(page)) for name, each in page.items()}
            _check_bounds(len(found), size)
            if not more:
                return found, version
            query = {"limit": str(_PAGE), "continue": str(more)}
        raise SourceError(f"the Kubernetes API's list has more than {MOST_PAGES} pages: see what runs at {self._url}")

    def watch(self, version: str, seconds: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._get(
            {
                "watch": "1",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(seconds),
            }
        )

    def _get(self, query: dict[str, str]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.get(
            self._url,
            params={"labelSelector": self._selector, **query},
            server_hostname=self._server_name,
            allow_redirects=False,
        )

    async def check(self, response: aiohttp.ClientResponse) -> None:
        """Raises SourceError, _GoneError."""
        status = response.status
        if status == 200:
            coding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if coding not in ("identity", ""):
                raise SourceError(
                    f"the Kubernetes API's answer is compressed ({coding[:40]}), though it was not asked to be: does a "
                    "proxy do it?"
                )
            return
        if status == 410:
            raise _GoneError
        raise SourceError(f"the Kubernetes API answers {status}{await _message(response)}{self._cure(status)}")

    def _cure(self, status: int) -> str:
        cures = {
            400: "; see endpoints.kubernetes.selector",
            401: "; the token is not valid, or not any more: it is read anew and tried again",
            403: f"; give the service account list and watch of endpointslices.discovery.k8s.io in {self._namespace}",
            404: "; EndpointSlices (discovery.k8s.io/v1) are there since Kubernetes 1.21",
        }
        return cures.get(status, "; it is tried again")


class _Lines:
    """Takes a stream apart at its line ends; the reader of aiohttp knows shorter lines only."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole now. Raises SourceError."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._size = [], 0
        self._rest.append(rest)
        self._size += len(rest)
        if self._size > _LARGEST_EVENT:
            raise SourceError(
                f"an event of more than {_LARGEST_EVENT // 1024**2} MiB came: is that the Kubernetes API?"
            )
        return [line for line in lines if line.strip()]


async def _message(response: aiohttp.ClientResponse) -> str:
    """What the API says of it, where it says it as the API does."""
    try:
        async with asyncio.timeout(_REFUSAL_S):
            message = orjson.loads(await _read(response, _LARGEST_REFUSAL))["message"]
    except (SourceError, ValueError, TypeError, KeyError, aiohttp.ClientError, OSError, TimeoutError):
        return ""
    return f" ({str(message)[:300]})"


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Raises SourceError as soon as there are more bytes."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > most:
            raise SourceError(
                f"the Kubernetes API answers with more than {most // 1024} KiB at once: see what runs there"
            )
        pieces.append(piece)
    return b"".join(pieces)


def _check_bounds(count: int, size: int) -> None:
    """Raises SourceError."""
    if count > MOST_SLICES:
        raise SourceError(f"there are more than {MOST_SLICES} EndpointSlices; give a selector that finds fewer")
    if size > MOST_BYTES:
        raise SourceError(
            f"the EndpointSlices have more than {MOST_BYTES // 1024**2} MiB; give a selector that finds fewer"
        )


def _name(slice_: slices.Slice) -> str:
    return str(slice_["metadata"]["name"])
