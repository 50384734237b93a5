"""TLS on Fairlane's ports behind the real Envoy: mTLS between the two, new certificates under load, what does not come
together, and the HTTP port for curl and scrapers."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from click.testing import CliRunner
from cryptography import x509
from identity_case import Authority, Pair, few_retries
from rig import FAST_ENGINE, Answer, Rig, chat, log_of, running, until

from extproc.cli.doctor import doctor
from extproc.cli.ports import free_ports
from extproc.wiring.description import FairlaneTls, Wiring
from extproc.wiring.fairlane_tls import transport_socket

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
Json = dict[str, Any]


class Files:
    """Of the ext_proc port, under names that stay."""

    def __init__(self, folder: Path, server: Pair, client_ca: bytes) -> None:
        self._folder = folder
        self.section = {
            "certificate": str(folder / "fairlane.pem"),
            "key": str(folder / "fairlane.key"),
            "client_ca": str(folder / "clients-ca.pem"),
        }
        self.put(server, client_ca)

    def put(self, server: Pair, client_ca: bytes) -> None:
        for key, content in (
            ("certificate", server.cert.read_bytes()),
            ("key", server.key.read_bytes()),
            ("client_ca", client_ca),
        ):
            new = Path(self.section[key] + ".new")
            new.write_bytes(content)
            new.replace(self.section[key])


def fairlane_cluster(config: Json) -> Json:
    found: Json = next(c for c in config["static_resources"]["clusters"] if c["name"] == "fairlane")
    return found


def over_tls(authority: Authority, own: Pair | None, *more: Callable[[Json], None]) -> Callable[[Json], None]:
    """Envoy speaks TLS to Fairlane, and makes a new connection each half second."""

    def patch(config: Json) -> None:
        shown = (None, None) if own is None else (str(own.cert), str(own.key))
        cluster = fairlane_cluster(config)
        cluster["transport_socket"] = transport_socket(FairlaneTls(str(authority.file), *shown), [("127.0.0.1", 1)])
        (options,) = cluster["typed_extension_protocol_options"].values()
        options["common_http_protocol_options"] = {"max_connection_duration": "0.5s"}
        for each in more:
            each(config)

    return patch


@contextlib.asynccontextmanager
async def stack(directory: Path, listen: Json, patch: Callable[[Json], None], **more: Any) -> AsyncIterator[Rig]:
    options = (*FAST_ENGINE, "--scheduling-policy", "priority")
    config = {"listen": listen}
    async with running(directory, engine_args=options, config=config, envoy_patch=patch, **more) as rig:
        yield rig


def put_secret(file: Path, pair: Pair) -> None:
    """Envoy's own certificate, as SDS has it. Envoy looks when the file is replaced."""
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
    files = {"certificate_chain": {"filename": str(pair.cert)}, "private_key": {"filename": str(pair.key)}}
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"resources": [{"@type": kind, "name": "envoy", "tls_certificate": files}]}))
    new.replace(file)


def scheduled(answer: Answer) -> bool:
    return answer.status == 200 and "x-fairlane-queue-ms" in answer.headers


# -- mTLS between Envoy and Fairlane --------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), "ours")


async def test_certificates_change_under_load_and_no_request_fails(
    ours: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The server's; then the clients' authority, with both of them for as long as Envoy has the old certificate. Envoy
    has its own by SDS from a file."""
    folder = tmp_path_factory.mktemp("rotate")
    new_ca = Authority(folder, "new")
    sds = folder / "sds.json"
    put_secret(sds, ours.issue("envoy"))

    def by_sds(config: Json) -> None:
        config["node"] = {"id": "envoy", "cluster": "envoy"}  # SDS wants to know for whom it asks
        common = fairlane_cluster(config)["transport_socket"]["typed_config"]["common_tls_context"]
        source = {"path_config_source": {"path": str(sds)}, "resource_api_version": "V3"}
        common["tls_certificate_sds_secret_configs"] = [{"name": "envoy", "sds_config": source}]

    files = Files(folder, ours.issue("fairlane-1", LOOPBACK, days=3), ours.file.read_bytes())
    answers: list[Answer] = []
    over = asyncio.Event()

    async with stack(folder / "stack", {"ext_proc_tls": files.section}, over_tls(ours, None, by_sds)) as rig:

        async def client(name: str) -> None:
            while not over.is_set():
                answers.append(await rig.post(chat(2), tenant=name))

        async def handshakes() -> float:
            async with rig.http.get(f"http://{rig.stack.addresses.envoy_admin}/stats?filter=fairlane.ssl") as answer:
                text = await answer.text()
            found = dict(line.split(": ") for line in text.splitlines() if line.count(": ") == 1)
            assert found.get("cluster.fairlane.ssl.connection_error", "0") == "0", text
            return float(found.get("cluster.fairlane.ssl.handshake", 0))

        async def secrets() -> float:
            async with rig.http.get(f"http://{rig.stack.addresses.envoy_admin}/stats?filter=sds.envoy") as answer:
                lines = (await answer.text()).splitlines()
            return next(float(line.split(": ")[1]) for line in lines if ".update_success: " in line)

        async def more_handshakes() -> None:
            before = await handshakes()
            await until(handshakes, lambda now: now >= before + 2, "Envoy connects anew")

        async def expiry() -> float:
            return await rig.metric("fairlane_certificate_expiry_timestamp_seconds", port="ext_proc")

        clients = [asyncio.create_task(client(f"tenant-{number}")) for number in range(4)]
        try:
            await more_handshakes()
            first = await expiry()
            files.put(ours.issue("fairlane-2", LOOPBACK, days=5), ours.file.read_bytes())
            await more_handshakes()
            assert 2 * 86_400 - 60 < await expiry() - first < 2 * 86_400 + 60
            server = ours.issue("fairlane-3", LOOPBACK, days=5)
            files.put(server, ours.file.read_bytes() + new_ca.file.read_bytes())
            await more_handshakes()
            put_secret(sds, new_ca.issue("envoy"))
            await until(secrets, lambda count: count == 2, "Envoy has the new certificate")
            await more_handshakes()
            files.put(server, new_ca.file.read_bytes())
            await more_handshakes()
            assert len(answers) > 50
        finally:
            over.set()
            await asyncio.gather(*clients)
        assert all(scheduled(answer) for answer in answers), [a.status for a in answers if not scheduled(a)][:5]
        await rig.books_closed()
        (child,) = (child for child in rig.stack.children if child.name == "fairlane")
        events = [entry["event"] for entry in log_of(child) if entry["event"].startswith("tls")]
        assert set(events) == {"tls_read"}  # one or two for each change: the files come one after the other
        assert sum(entry["event"] == "serving" for entry in log_of(child)) == 1  # nothing was restarted


async def test_held_requests_stay_when_certificates_change(
    ours: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("held")
    files = Files(folder, ours.issue("fairlane-1", LOOPBACK), ours.file.read_bytes())
    one_slot = {"window": {"controller": "fixed", "fixed": 1, "overtake": 0}}
    patch = over_tls(ours, ours.issue("envoy"))
    async with stack(folder / "stack", {"ext_proc_tls": files.section}, patch, pool=one_slot) as rig:
        async with rig.hung_engines():
            requests = [rig.start(chat(), tenant="a")]
            await rig.until_inside(1)
            requests += [rig.start(chat(), tenant="a") for _ in range(3)]
            await rig.until_held(3)
            files.put(ours.issue("fairlane-2", LOOPBACK), ours.file.read_bytes())
            requests.append(rig.start(chat(), tenant="b"))  # over a connection with the new one
            await rig.until_held(4)
        assert all(scheduled(answer) for answer in await asyncio.gather(*requests))
        await rig.books_closed()


@pytest.mark.parametrize("profile", ["standard", "strict"])
@pytest.mark.parametrize("fault", ["authority", "no certificate", "plain text", "another name"])
async def test_envoy_and_fairlane_do_not_come_together(
    fault: str, profile: Any, ours: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As if Fairlane were away: requests pass unscheduled, or are refused, by profile."""
    folder = tmp_path_factory.mktemp("apart")
    evil = Authority(folder, "evil")
    names = [x509.DNSName("another.example")] if fault == "another name" else [LOOPBACK]
    files = Files(folder, ours.issue("fairlane", *names), ours.file.read_bytes())

    def plain(config: Json) -> None:
        if fault == "plain text":
            del fairlane_cluster(config)["transport_socket"]
        if profile == "strict":
            manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
            hold = next(each for each in manager["http_filters"] if each["name"] == "fairlane.hold")
            hold["typed_config"]["grpc_service"]["retry_policy"]["num_retries"] = 2
        else:
            few_retries(config)

    own = None if fault == "no certificate" else ours.issue("envoy")
    patch = over_tls(evil if fault == "authority" else ours, own, plain)
    listen = {"ext_proc_tls": files.section}
    async with stack(folder / "stack", listen, patch, wiring=Wiring(profile=profile)) as rig:
        for _ in range(3):
            answer = await rig.post(chat())
            assert answer.status == (503 if profile == "strict" else 200)
            if profile == "strict":
                assert answer.error["code"] == "fairlane_unavailable"
            assert "x-fairlane-queue-ms" not in answer.headers
        rig.assert_clean_logs()
        (child,) = (child for child in rig.stack.children if child.name == "fairlane")
        lines = child.log.read_bytes().splitlines()
        assert all(line.startswith(b"{") for line in lines)  # nothing but our own lines, and none for a handshake
        assert len(lines) < 20
        found = _doctor(rig)
        expected = {"no certificate": "tls_no_certificate", "plain text": "tls_missing"}.get(fault)
        assert {each for each in found if each.startswith("tls_")} == ({expected} if expected else set())


def _doctor(rig: Rig) -> set[str]:
    """Of what this Envoy runs, and the file of this Fairlane. It reads the names of files, not their contents."""
    envoy = f"http://{rig.stack.addresses.envoy_admin}"
    config = str(rig.stack.directory / "fairlane.yaml")
    result = CliRunner().invoke(doctor, ["--envoy-admin", envoy, "--config", config, "--json"])
    assert result.exit_code in (0, 1), result.output
    return {each["id"] for each in json.loads(result.stdout)["findings"]}


async def test_the_doctor_is_content_with_what_comes_together(
    ours: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("content")
    files = Files(folder, ours.issue("fairlane", LOOPBACK), ours.file.read_bytes())
    patch = over_tls(ours, ours.issue("envoy"))
    async with stack(folder / "stack", {"ext_proc_tls": files.section}, patch) as rig:
        assert scheduled(await rig.post(chat()))
        assert not {each for each in _doctor(rig) if each.startswith("tls_")}


# -- the HTTP port --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(folder: Path, http_tls: Json) -> AsyncIterator[int]:
    """`fairlane serve` with TLS on its HTTP port, whose number is given."""
    ports = free_ports(3)
    listen = {key: f"127.0.0.1:{port}" for key, port in zip(("ext_proc", "admin", "http"), ports, strict=True)}
    pool = {"name": "a", "models": ["*"], "endpoints": ["127.0.0.1:1"]}
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump({"listen": {**listen, "http_tls": http_tls}, "pools": [pool]}))
    command = [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file), "--log-format", "json"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:

        async def told() -> str:
            assert process.returncode is None, (folder / "log").read_text()
            return (folder / "log").read_text()

        await until(told, lambda text: '"serving"' in text, "it serves")
        yield ports[2]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def curl(port: int, *arguments: str, path: str = "/readyz") -> subprocess.CompletedProcess[str]:
    program = shutil.which("curl")
    assert program is not None
    command = [program, "--silent", "--show-error", "--max-time", "10", *arguments, f"https://127.0.0.1:{port}{path}"]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)


async def test_the_http_port_over_tls(ours: Authority, tmp_path: Path) -> None:
    server = ours.issue("http", LOOPBACK)
    async with serving(tmp_path, {"certificate": str(server.cert), "key": str(server.key)}) as port:
        done = await curl(port, "--cacert", str(ours.file))
        assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
        done = await curl(port, "--cacert", str(ours.file), path="/metrics")
        assert 'fairlane_certificate_expiry_timestamp_seconds{port="http"} ' in done.stdout
        assert (await curl(port)).returncode == 60  # it does not know the authority
        assert (await curl(port, "--cacert", str(ours.file), "--tls-max", "1.1")).returncode == 35
        page = await curl(port, "--cacert", str(ours.file), path="/")
        assert page.stdout.startswith("<!doctype html>")


async def test_the_http_port_asks_for_a_certificate(ours: Authority, tmp_path: Path) -> None:
    server, scraper = ours.issue("http", LOOPBACK), ours.issue("scraper")
    tls = {"certificate": str(server.cert), "key": str(server.key), "client_ca": str(ours.file)}
    own = ("--cert", str(scraper.cert), "--key", str(scraper.key))
    async with serving(tmp_path, tls) as port:
        done = await curl(port, "--cacert", str(ours.file), *own)
        assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
        for _ in range(3):
            done = await curl(port, "--cacert", str(ours.file))
            assert done.returncode in (35, 52, 56)  # an alert, or the connection's end
            assert done.stdout == ""
        with contextlib.suppress(OSError):  # as a scraper does it, which asks and waits
            context = ssl.create_default_context(cafile=str(ours.file))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert await reader.read() == b""
    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    refused = [line for line in lines if line["event"] == "http_requests_refused"]
    assert sum(line["no_tls"] for line in refused) == 4
    assert len(refused) == 2  # the first at once, the rest at the end
    assert {line["no_tls_reason"] for line in refused} == {"PEER_DID_NOT_RETURN_A_CERTIFICATE"}
