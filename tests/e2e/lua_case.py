"""A real Envoy that runs some of our HTTP filters in front of a recorded upstream, and what it logged of each request.

Nothing else of Fairlane takes part. Two ways in: `url` (HTTP/1.1), and `url_http2`, by which the filters get the
request over HTTP/2. The environment variable FAIRLANE_TEST_ENVOY names another Envoy than the wheel's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, ClientTimeout
from recorded import Received, Upstream, serving
from rig import DEADLINE_S, until

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until as until_holds
from extproc.cli.probe import until_answered
from extproc.cli.stack import envoy_binary
from extproc.wiring import base_file

Json = dict[str, Any]

LUA = Path(__file__).parents[2] / "envoy" / "lua"
LARGEST_BODY = 64 * 1024 * 1024
JSON = {"content-type": "application/json"}
CASE = "x-case"  # the header that names a request

_TYPES = "type.googleapis.com/envoy.extensions"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ACCESS_LOG = "access.log"
_ACTIVE = "cluster.upstream.upstream_rq_active"


def lua(source: str) -> Json:
    """A Lua filter: a file of ours by its name, or source text."""
    text = (LUA / source).read_text(encoding="utf-8") if source.endswith(".lua") else source
    config = {"@type": f"{_TYPES}.filters.http.lua.v3.Lua", "default_source_code": {"inline_string": text}}
    return {"name": "test.lua", "typed_config": config}


def shipped(name: str) -> Json:
    """A filter of the shipped envoy.yaml."""
    (listener,) = base_file.load()["static_resources"]["listeners"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    found: Json = next(f for f in filters if f["name"] == name)
    return found


class Case:
    """The started Envoy. Each request has a name, by which the upstream's and the access log's record is found."""

    def __init__(
        self, plain: HostPort, http2: HostPort, admin: HostPort, upstream: Upstream, http: ClientSession, envoy: Child
    ) -> None:
        self.url, self.url_http2 = f"http://{plain}", f"http://{http2}"
        self.upstream = upstream
        self.http = http
        self.envoy = envoy
        self._admin = admin
        self._names = (f"case-{number}" for number in itertools.count())
        self._received: dict[str, Received] = {}
        self._log = envoy.log.parent / _ACCESS_LOG

    async def post(
        self,
        body: bytes | AsyncIterable[bytes] | None,
        headers: Mapping[str, str] = JSON,
        *,
        http2: bool = False,
    ) -> str:
        """Send a body; the request's name. The client must get a 200 with the bytes that the upstream gave."""
        name, answer = next(self._names), self.upstream.answer
        url = self.url_http2 if http2 else self.url
        async with self.http.post(url, data=body, headers={**headers, CASE: name}) as response:
            assert response.status == 200, await response.text()
            assert await response.read() == answer.body
        return name

    def received(self, name: str) -> Received:
        """What the upstream got. Raises KeyError where it got nothing."""
        for request in self.upstream.received:
            (key,) = request.values(CASE)
            self._received[key] = request
        self.upstream.received.clear()
        return self._received[name]

    async def logged(self, *names: str) -> list[Json]:
        """The access log's entries: {"request": fairlane.request, "usage": fairlane.usage}; None: not set."""

        async def entries() -> dict[str, Json]:
            lines = self._log.read_bytes().split(b"\n")[:-1] if self._log.exists() else []
            return {entry["case"]: entry for entry in map(orjson.loads, lines)}

        found = await until(entries, lambda found: found.keys() >= set(names), "the access log's entries")
        return [found[name] for name in names]

    async def metadata(self, name: str, key: str) -> Json:
        """One namespace of one request's metadata, as the access log has it."""
        (entry,) = await self.logged(name)
        return entry[key] or {}

    async def active_upstream(self) -> int:
        """Requests that are on their way to the upstream now."""
        async with self.http.get(f"http://{self._admin}/stats?format=json&filter={_ACTIVE}") as answer:
            found = {stat.get("name"): stat.get("value") for stat in (await answer.json())["stats"]}
        return int(found[_ACTIVE])

    def script_errors(self) -> list[str]:
        """What the filters' scripts have raised."""
        return [line for line in self.envoy.log.read_text(errors="replace").splitlines() if "script log" in line]

    def cpu_s(self) -> float:
        """CPU time that Envoy has used so far, in ticks of 10 ms."""
        fields = Path(f"/proc/{self.envoy.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.envoy.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.asynccontextmanager
async def filtering(directory: Path, filters: Sequence[Json]) -> AsyncIterator[Case]:
    """Envoy with these HTTP filters on free ports, an upstream and a client."""
    plain, http2, admin = (HostPort("127.0.0.1", port) for port in free_ports(3))
    async with serving() as upstream, ClientSession(timeout=ClientTimeout(total=100)) as http:
        file = directory / "envoy.json"
        file.write_bytes(orjson.dumps(_config(plain, http2, admin, upstream.at, filters, directory / _ACCESS_LOG)))
        argv = [os.environ.get("FAIRLANE_TEST_ENVOY") or str(envoy_binary()), "--config-path", str(file)]
        argv += ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        argv += ["--file-flush-interval-msec", "20"]
        envoy = Child("envoy", argv, log=directory / "envoy.log", directory=directory, env=os.environ)
        envoy.start()
        try:
            await _until_ready(admin, envoy)
            yield Case(plain, http2, admin, upstream, http, envoy)
        finally:
            envoy.kill()


async def _until_ready(admin: HostPort, envoy: Child) -> None:
    waited = asyncio.create_task(until_answered(admin, "/ready"))
    try:
        await until_holds(lambda: waited.done() or envoy.failed, DEADLINE_S)
        assert waited.done(), envoy.tail()
    finally:
        waited.cancel()
        await asyncio.gather(waited, return_exceptions=True)


def _config(
    plain: HostPort, http2: HostPort, admin: HostPort, upstream: HostPort, filters: Sequence[Json], log: Path
) -> Json:
    written = {"case": f"%REQ({CASE})%"}
    written |= {key: f"%DYNAMIC_METADATA(fairlane.{key})%" for key in ("request", "usage")}
    access_log = {
        "name": "test.log",
        "typed_config": {
            "@type": f"{_TYPES}.access_loggers.file.v3.FileAccessLog",
            "path": str(log),
            "log_format": {"json_format": written},
        },
    }
    listeners = [
        _listener(plain, "upstream", filters, access_log=[access_log]),
        _listener(http2, "this-by-http2", []),
    ]
    clusters = [_cluster("upstream", upstream), _cluster("this-by-http2", plain, http2_protocol_options={})]
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }


def _listener(at: HostPort, cluster: str, filters: Sequence[Json], **options: Any) -> Json:
    route = {"match": {"prefix": "/"}, "request_body_buffer_limit": LARGEST_BODY}
    route["route"] = {"cluster": cluster, "timeout": "0s"}
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": cluster,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [*filters, router],
        # 1.36 does not heed the route's limit: it takes this over HTTP/2, and the listener's over HTTP/1.1.
        "http2_protocol_options": {"initial_stream_window_size": LARGEST_BODY},
        **options,
    }
    name = "envoy.filters.network.http_connection_manager"
    return {
        "name": cluster,
        "address": _address(at),
        "per_connection_buffer_limit_bytes": LARGEST_BODY,
        "filter_chains": [{"filters": [{"name": name, "typed_config": manager}]}],
    }


def _cluster(name: str, at: HostPort, **protocol: Any) -> Json:
    endpoint = {"endpoint": {"address": _address(at)}}
    http = {"@type": f"type.googleapis.com/{_HTTP}", "explicit_http_config": protocol or {"http_protocol_options": {}}}
    return {
        "name": name,
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {_HTTP: http},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _address(at: HostPort) -> Json:
    return {"socket_address": {"address": at.host, "port_value": at.port}}
