"""Endpoints from the Kubernetes API, against a fake of it that speaks list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from endpoints_case import Follower, followed, until
from kubernetes_api import KubernetesApi, endpoint_slice, line, pod, port, serving
from structlog.testing import capture_logs

from extproc.config.endpoints import Kubernetes
from extproc.engines.endpoints import cluster
from extproc.engines.endpoints.cluster import Cluster
from extproc.engines.endpoints.kubernetes import KubernetesSource

PAUSE_S = 0.01
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


class Account:
    """How the API is reached; a test may change the token, as the kubelet does."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.token = "first"
        self.reads = 0

    def read(self, _: Kubernetes) -> Cluster:
        self.reads += 1
        return Cluster(self.api.url, "llm", headers={"Authorization": f"Bearer {self.token}"})


def source(api: KubernetesApi, account: Account | None = None, **config: Any) -> KubernetesSource:
    settings = Kubernetes(**({"service": "llama"} | config))
    read = (account or Account(api)).read
    return KubernetesSource(settings, "llama", time.monotonic, read=read, watch_s=60, pause_s=PAUSE_S)


@contextlib.asynccontextmanager
async def following(*slices: Any, **config: Any) -> AsyncIterator[tuple[KubernetesApi, Follower]]:
    async with serving(*slices) as api, followed(source(api, **config)) as follower:
        yield api, follower


# -- slices that come, change and go --------------------------------------------------------------


async def test_from_a_list_and_then_by_its_watch() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1")), endpoint_slice("x", service="qwen")) as (api, follower):
        await follower.until(A)
        assert [each.identity for each in follower.sets[0]] == ["uid-10.0.0.1"]
        await until(lambda: api.watching)
        await api.put(endpoint_slice("b", pod("10.0.0.2")))
        await follower.until(A, B)
        await api.put(endpoint_slice("a", pod("10.0.0.1", ready=False)))
        await follower.until(B)
        await api.delete("b")
        await follower.until()
        assert [entry.split()[0] for entry in api.asked] == ["list", "watch"]


async def test_a_new_pod_behind_an_old_address_has_another_identity() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1", "old"))) as (api, follower):
        await follower.until(A)
        await api.put(endpoint_slice("a", pod("10.0.0.1", "new")))
        await until(lambda: len(follower.sets) == 2)
        assert [each.identity for each in follower.sets[1]] == ["new"]


async def test_a_pod_that_moves_to_another_slice_is_never_gone() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1"), pod("10.0.0.2"))) as (api, follower):
        await follower.until(A, B)
        await until(lambda: api.watching)
        await api.put(endpoint_slice("a", pod("10.0.0.1")))
        await api.put(endpoint_slice("b", pod("10.0.0.2"), pod("10.0.0.3")))
        await follower.until(A, B, C)
        assert len(follower.sets) == 2


async def test_slices_by_a_selector_in_a_namespace() -> None:
    async with following(
        endpoint_slice("a", pod("10.0.0.1")),
        selector="kubernetes.io/service-name=llama",
        service=None,
        namespace="prod",
    ) as (api, follower):
        await follower.until(A)
        api.refuse = 500
        await api.end_watches()
        await follower.until_failed("500 (refused by prod)")


async def test_a_thousand_endpoints_in_pages() -> None:
    slices = [
        endpoint_slice(f"s{part}", *(pod(f"10.{part}.{number // 250}.{number % 250}") for number in range(100)))
        for part in range(10)
    ]
    async with following(*slices) as (api, follower):
        await until(lambda: follower.sets)
        assert len(follower.sets[0]) == 1000
        assert [entry.split(" ")[0] for entry in api.asked[:5]] == ["list"] * 5
        # one event that is longer than a line may be for most readers
        await until(lambda: api.watching)
        await api.put(endpoint_slice("s0", *(pod(f"11.0.{number // 250}.{number % 250}") for number in range(1000))))
        await until(lambda: len(follower.sets[-1]) == 1900)


async def test_slices_that_change_all_the_time() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
        await until(lambda: api.watching)
        for number in range(300):
            await api.put(endpoint_slice("a", pod("10.0.0.1", f"uid-{number}")))
            await asyncio.sleep(0)
        await until(lambda: follower.sets[-1][0].identity == "uid-299")
        assert len(follower.sets) < 300  # put together


async def test_no_such_service_is_the_empty_set_and_is_said() -> None:
    with capture_logs() as logs:
        async with following() as (api, follower):
            await follower.until()
            await api.put(endpoint_slice("a", pod("10.0.0.1", ready=False)))
            await api.put(endpoint_slice("a", pod("10.0.0.1")))
            await follower.until(A)
    told = [each for each in logs if each["log_level"] == "warning"]
    assert [each["note"] for each in told] == ["there is no such Service, or it has no pods"]


# -- watches that end -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_watch_that_ends_goes_on_where_it_was() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
        await follower.until(A)
        for _ in range(3):
            await until(lambda: api.watching)
            await api.end_watches()
            await until(lambda: not api.watching)
            await api.put(endpoint_slice("b", pod("10.0.0.2")))
            await follower.until(A, B)
            await api.delete("b")
            await follower.until(A)
        assert api.asked.count("list") == 1
        assert follower.source.failures == 0


async def test_bookmarks_bring_the_version_forward() -> None:
    async with serving(endpoint_slice("a", pod("10.0.0.1"))) as api:
        watched = source(api)
        async with followed(watched) as follower:
            await until(lambda: api.watching)
            await api.bookmark()
            await until(lambda: watched._version == str(api.version))
            version = api.version
            await api.compact()
            await api.end_watches()
            await until(lambda: f"watch {version}" in api.asked)
            await api.put(endpoint_slice("b", pod("10.0.0.2")))
            await follower.until(A, B)
            assert api.asked.count("list") == 1


async def test_a_version_that_is_gone_is_listed_anew() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1")), endpoint_slice("b", pod("10.0.0.2"))) as (api, follower):
        await follower.until(A, B)
        await until(lambda: api.watching)
        api.no_watch = True  # so that nothing is heard of what happens now
        await api.end_watches()
        await until(lambda: not api.watching)
        await api.delete("a")
        await api.put(endpoint_slice("c", pod("10.0.0.3")))
        await api.compact()
        api.no_watch = False
        await follower.until(B, C)
        assert api.asked.count("list") == 2
        assert follower.source.failures == 0


async def test_a_version_that_goes_while_it_is_watched() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
        await until(lambda: api.watching)
        await api.end_watches(line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))
        await until(lambda: api.asked.count("list") == 2)
        await until(lambda: api.watching)
        await api.put(endpoint_slice("b", pod("10.0.0.2")))
        await follower.until(A, B)
        assert follower.source.failures == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (line("ERROR", {"kind": "Status", "code": 500, "message": "etcd has no leader"}), "etcd has no leader"),
        (b"<html>\n", "an event that is none of the Kubernetes API's came"),
        (b'{"type": "ADDED"}\n', "an event that is none"),
        (line("ADDED", {"metadata": {}}), "an event that is none"),
    ],
)
async def test_events_that_are_none(raw: bytes, words: str) -> None:
    with capture_logs() as logs:
        async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
            await until(lambda: api.watching)
            await api.end_watches(raw)
            await until(lambda: follower.source.failures == 1)
            await follower.until_well()
            await api.put(endpoint_slice("b", pod("10.0.0.2")))
            await follower.until(A, B)
    assert [words in each["cause"] for each in logs if each["log_level"] == "warning"] == [True]


async def test_a_watch_that_breaks_in_the_middle_of_an_event() -> None:
    async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
        await until(lambda: api.watching)
        await api.end_watches(line("DELETED", api.slices["a"])[:40])
        await until(lambda: len(api.asked) >= 3)
        await api.put(endpoint_slice("b", pod("10.0.0.2")))
        await follower.until(A, B)
        assert (api.asked.count("list"), follower.source.failures) == (1, 0)


async def test_a_watch_that_is_silent_for_too_long_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.engines.endpoints.kubernetes._SILENCE_S", 0.05)
    async with serving(endpoint_slice("a", pod("10.0.0.1"))) as api:
        settings = Kubernetes(service="llama")
        read = Account(api).read
        silent = KubernetesSource(settings, "llama", time.monotonic, read=read, watch_s=0, pause_s=PAUSE_S)
        async with followed(silent) as follower:
            await until(lambda: len(api.asked) >= 4)
            assert api.asked.count("list") == 1
            assert follower.source.failures == 0


# -- what fails -----------------------------------------------------------------------------------


async def test_a_token_that_runs_out_is_read_again() -> None:
    async with serving(endpoint_slice("a", pod("10.0.0.1"))) as api:
        account = Account(api)
        async with followed(source(api, account)) as follower:
            await follower.until(A)
            api.token = "second"
            await api.end_watches()
            await follower.until_failed("answers 401 (Unauthorized); the token is not valid, or not any more")
            await api.put(endpoint_slice("b", pod("10.0.0.2")))
            assert follower.addresses == [A]
            account.token = "second"
            await follower.until(A, B)
            assert api.asked.count("list") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "give the service account list and watch of endpointslices.discovery.k8s.io in llm"),
        (404, "are there since Kubernetes 1.21"),
        (400, "see endpoints.kubernetes.selector"),
        (500, "it is tried again"),
        (302, "answers 302"),
    ],
)
async def test_refusals_change_nothing(status: int, words: str) -> None:
    with capture_logs() as logs:
        async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
            await follower.until(A)
            api.refuse = status
            await api.end_watches()
            await follower.until_failed(words)
            await until(lambda: follower.source.failures >= 3)
            assert len(follower.sets) == 1
            api.refuse = None
            await follower.until_well()
    assert sum(each["event"] == "endpoints not read" for each in logs) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"5", b"{}", b'{"metadata": {"resourceVersion": "5"}, "items": [5]}'])
async def test_lists_that_are_none(answer: bytes) -> None:
    async with serving(endpoint_slice("a", pod("10.0.0.1"))) as api:
        api.answer = answer
        async with followed(source(api)) as follower:
            await follower.until_failed("does not answer as the Kubernetes API does: see what runs there")
            assert follower.sets == []
            api.answer = None
            await follower.until(A)


async def test_an_api_that_is_not_there_and_comes() -> None:
    async with serving() as api:
        pass
    async with followed(source(api)) as follower:
        await follower.until_failed(f"the Kubernetes API at {api.url} cannot be reached")
        async with serving(endpoint_slice("a", pod("10.0.0.1"))) as other:
            api.url = other.url
            await follower.until(A)


async def test_an_unclear_port_mends_itself_by_the_next_event() -> None:
    both = [port(8000, "http"), port(9000, "metrics")]
    async with following(endpoint_slice("a", pod("10.0.0.1"))) as (api, follower):
        await follower.until(A)
        await api.put(endpoint_slice("a", pod("10.0.0.1"), ports=both))
        await follower.until_failed("which port is meant?")
        assert len(follower.sets) == 1
        await api.put(endpoint_slice("a", pod("10.0.0.2")))
        await follower.until(B)
        await follower.until_well()
        assert [entry.split()[0] for entry in api.asked] == ["list", "watch"]


def test_pauses_double_up_to_half_a_minute() -> None:
    pauses = [
        KubernetesSource(Kubernetes(service="a"), "p", time.monotonic)._pause_after_failure(n) for n in range(1, 99)
    ]
    for number, pause in enumerate(pauses):
        longest = min(0.5 * 2**number, 30.0)
        assert longest / 2 <= pause <= longest


# -- inside of a cluster, with TLS ----------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("llm")
    return tmp_path


def inside(api: KubernetesApi, account: Path) -> KubernetesSource:
    host, number = api.url.removeprefix("https://").split(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": number}
    return KubernetesSource(
        Kubernetes(service="llama"),
        "llama",
        time.monotonic,
        read=lambda config: cluster.read(config, environment, account),
        pause_s=PAUSE_S,
    )


async def test_by_the_service_account(account: Path) -> None:
    authority = Authority("cluster")
    (account / "ca.crt").write_text(authority.pem)
    async with (
        serving(endpoint_slice("a", pod("10.0.0.1")), tls=authority.server()) as api,
        followed(inside(api, account)) as follower,
    ):
        await follower.until(A)
        api.token = "second"
        await api.end_watches()
        await follower.until_failed("401")
        (account / "token").write_text("second\n")
        await follower.until_well()


async def test_a_certificate_of_another_authority(account: Path) -> None:
    (account / "ca.crt").write_text(Authority("cluster").pem)
    async with (
        serving(endpoint_slice("a", pod("10.0.0.1")), tls=Authority("other").server()) as api,
        followed(inside(api, account)) as follower,
    ):
        await follower.until_failed("cannot be reached", "certificate verify failed")
        assert api.asked == []


async def test_by_a_kubeconfig_with_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority("cluster")
    certificate, key = authority.client()
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    async with serving(endpoint_slice("a", pod("10.0.0.1")), tls=authority.server(ask_client=True)) as api:
        path = tmp_path / "config"
        path.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "llm"}}],
                    "clusters": [{"name": "k", "cluster": {"server": api.url, "certificate-authority": "ca.pem"}}],
                    "users": [
                        {
                            "name": "u",
                            "user": {"client-certificate": "tls.crt", "client-key": "tls.key", "token": "first"},
                        }
                    ],
                }
            )
        )
        settings = Kubernetes(service="llama", kubeconfig=str(path))
        async with followed(KubernetesSource(settings, "llama", time.monotonic)) as follower:
            await follower.until(A)
