"""A fake of the Kubernetes API: list and watch of EndpointSlices of one namespace, and nothing else of it.

What it has of the real one, by the API's documents: labels (equality only) and pages in lists; resourceVersions that
count all changes; watches from a version, each event in a line of its own; bookmarks when asked for; 410 for versions
that were compacted; 401 for another token; Status objects with every error. A test exchanges the slices while it runs,
and may end watches, also in the middle of a line, and fail requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

Json = dict[str, Any]
PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
SERVICE = "kubernetes.io/service-name"


def pod(ip: str, uid: str = "", **conditions: bool | None) -> Json:
    """An endpoint of a slice. Ready, unless `conditions` say else."""
    return {
        "addresses": [ip],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "namespace": "llm", "name": f"pod-{ip}", "uid": uid or f"uid-{ip}"},
    }


def port(number: int | None, name: str = "http", protocol: str = "TCP") -> Json:
    return {"name": name, "port": number, "protocol": protocol}


def endpoint_slice(
    name: str, *pods: Json, ports: list[Json] | None = None, service: str = "llama", kind: str = "IPv4"
) -> Json:
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": {SERVICE: service}},
        "addressType": kind,
        "endpoints": list(pods),
        "ports": [port(8000)] if ports is None else ports,
    }


class KubernetesApi:
    def __init__(self) -> None:
        self.token = "first"
        self.version = 100
        self.slices: dict[str, Json] = {}
        self.asked: list[str] = []  # "list", "list more" or "watch VERSION", answered or refused
        self.page = 2
        self.refuse: int | None = None  # status of all answers
        self.answer: bytes | None = None  # of all lists
        self.no_watch = False  # watches are ended at once
        self.url = ""
        self._compacted = 0  # versions up to this one are gone
        self._history: list[tuple[int, str, Json]] = []
        self._changed = asyncio.Condition()
        self._generation = 0  # watches of older ones end
        self._raw: dict[int, list[bytes]] = {}  # lines that are no events, by generation
        self.watching = 0

    # -- what a test does -------------------------------------------------------------------------

    async def put(self, *slices: Json) -> None:
        async with self._changed:
            for each in slices:
                name = each["metadata"]["name"]
                self._event("MODIFIED" if name in self.slices else "ADDED", copy.deepcopy(each))
            self._changed.notify_all()

    async def delete(self, name: str) -> None:
        async with self._changed:
            self._event("DELETED", self.slices[name])
            self._changed.notify_all()

    async def bookmark(self) -> None:
        """What happens elsewhere counts versions too."""
        async with self._changed:
            self.version += 10
            self._history.append((self.version, "BOOKMARK", {"metadata": {}}))
            self._changed.notify_all()

    async def compact(self) -> None:
        """All versions so far are too old from now on, except the newest."""
        async with self._changed:
            self.version += 1
            self._compacted = self.version - 1
            self._history.clear()

    async def end_watches(self, *lines: bytes) -> None:
        """After these lines, as they are."""
        async with self._changed:
            self._raw[self._generation] = list(lines)
            self._generation += 1
            self._changed.notify_all()

    def _event(self, kind: str, content: Json) -> None:
        self.version += 1
        content["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.slices[content["metadata"]["name"]]
        else:
            self.slices[content["metadata"]["name"]] = content
        self._history.append((self.version, kind, content))

    # -- what it answers --------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        watch = query.get("watch") == "1"
        more = " more" if "continue" in query else ""
        self.asked.append(f"watch {query['resourceVersion']}" if watch else f"list{more}")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        if self.refuse is not None:
            return status(self.refuse, f"refused by {request.match_info['namespace']}")
        key, _, value = query["labelSelector"].partition("=")
        if watch:
            return await self._watch(request, key, value)
        if self.answer is not None:
            return web.Response(body=self.answer, content_type="application/json")
        found = [each for _, each in sorted(self.slices.items()) if each["metadata"]["labels"].get(key) == value]
        start = int(query.get("continue", "0"))
        size = min(int(query["limit"]), self.page)
        metadata: Json = {"resourceVersion": str(self.version)}
        if start + size < len(found):
            metadata["continue"] = str(start + size)
        return web.json_response({"metadata": metadata, "items": found[start : start + size]})

    async def _watch(self, request: web.Request, key: str, value: str) -> web.StreamResponse:
        sent = int(request.query["resourceVersion"])
        if sent < self._compacted:
            return status(410, f"too old resource version: {sent} ({self._compacted})")
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        generation = self._generation
        self.watching += 1
        try:
            while not self.no_watch:
                for version, kind, content in [each for each in self._history if each[0] > sent]:
                    sent = version
                    if kind == "BOOKMARK":
                        if bookmarks:
                            await response.write(line(kind, {"metadata": {"resourceVersion": str(version)}}))
                    elif content["metadata"]["labels"].get(key) == value:
                        await response.write(line(kind, content))
                if generation != self._generation:
                    for raw in self._raw.get(generation, ()):
                        await response.write(raw)
                    break
                async with self._changed:
                    if generation == self._generation and not any(each[0] > sent for each in self._history):
                        await self._changed.wait()
            return response
        finally:
            self.watching -= 1


def line(kind: str, content: Json) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)


@contextlib.asynccontextmanager
async def serving(*slices: Json, tls: ssl.SSLContext | None = None) -> AsyncIterator[KubernetesApi]:
    api = KubernetesApi()
    await api.put(*slices)
    app = web.Application()
    app.router.add_get(PATH, api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert site._server is not None
    port_ = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{port_}"
    try:
        yield api
    finally:
        api.no_watch = True
        await api.end_watches()
        await runner.cleanup()
