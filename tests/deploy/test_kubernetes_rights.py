"""The rights of Fairlane's service account are those that it uses: it watches engines at an API that grants only what
the Role says, and uses all that the Role says."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes_case import REPLICATED, built, fairlane, file, of_kind, one, pod
from promql import ROOT

sys.path.append(str(ROOT / "tests" / "engines"))  # a Kubernetes API

from endpoints_case import followed, until
from kubernetes_api import PATH, KubernetesApi, endpoint_slice, status
from kubernetes_api import pod as pod_of

from extproc.config.endpoints import Kubernetes
from extproc.config.model import Config
from extproc.engines.endpoints.cluster import Cluster
from extproc.engines.endpoints.kubernetes import KubernetesSource

pytestmark = pytest.mark.slow

_COLLECTION = re.compile(r"/apis/(?P<group>[^/]+)/[^/]+/namespaces/(?P<space>[^/]+)/(?P<resource>[^/]+)\Z")
Right = tuple[str, str, str, str]  # namespace, group, resource, verb


def granted(objects: list[dict[str, Any]]) -> set[Right]:
    """To the service account of the pods."""
    account = {"kind": "ServiceAccount", "name": pod(fairlane(objects))["serviceAccountName"], "namespace": "fairlane"}
    rights: set[Right] = set()
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [account]
        role = one(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        space = binding["metadata"]["namespace"]
        assert role["metadata"]["namespace"] == space
        rights |= {
            (space, group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    return rights


def right(request: web.Request) -> Right:
    """As the API server names what is asked for: a GET of a collection is a list, or a watch."""
    found = _COLLECTION.fullmatch(request.path)
    assert found is not None, request.path
    assert request.method == "GET"
    return found["space"], found["group"], found["resource"], "watch" if request.query.get("watch") else "list"


def settings(objects: list[dict[str, Any]]) -> Kubernetes:
    first = Config.model_validate(yaml.safe_load(file(objects))).pools[0].endpoints.kubernetes
    assert first is not None
    return first


@pytest.mark.parametrize("name", ["overlays/single", "overlays/partition"])
async def test_what_is_granted_is_what_is_used(name: str) -> None:
    objects = built(name)
    may, used = granted(objects), set()
    wanted = settings(objects)
    assert wanted.service is not None

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        asked = right(request)
        if asked not in may:
            return status(403, f"forbidden: {asked}")
        used.add(asked)
        return await handler(request)

    api = KubernetesApi()
    await api.put(endpoint_slice("a", pod_of("10.0.0.1"), service=wanted.service))
    app = web.Application(middlewares=[guard])
    app.router.add_get(PATH, api.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    source = KubernetesSource(
        wanted,
        "llama",
        time.monotonic,
        read=lambda _: Cluster(url, "fairlane", headers={"Authorization": f"Bearer {api.token}"}),
        pause_s=0.01,
    )
    try:
        async with followed(source) as follower:
            await follower.until("10.0.0.1:8000")
            await until(lambda: api.watching, f"a watch; last error: {source.last_error}")
            await api.put(endpoint_slice("b", pod_of("10.0.0.2"), service=wanted.service))
            await follower.until("10.0.0.1:8000", "10.0.0.2:8000")
            await api.compact()  # a new list
            await api.end_watches()
            await api.put(endpoint_slice("b", pod_of("10.0.0.3"), service=wanted.service))
            await follower.until("10.0.0.1:8000", "10.0.0.3:8000")
    finally:
        api.no_watch = True
        await api.end_watches()
        await runner.cleanup()
    assert used == may


@pytest.mark.parametrize("name", ["overlays/single", *REPLICATED])
def test_rights_are_where_the_engines_are(name: str) -> None:
    objects = built(name)
    pools = Config.model_validate(yaml.safe_load(file(objects))).pools
    spaces = {pool.endpoints.kubernetes.namespace for pool in pools if pool.endpoints.kubernetes}
    assert {space for space, *_ in granted(objects)} == spaces


def test_without_endpoint_slices_there_are_none() -> None:
    objects = built("base")
    assert granted(objects) == set()
    assert of_kind(objects, "Role") == []
    assert pod(fairlane(objects))["automountServiceAccountToken"] is False
