"""What the pods would run: the configuration with the components' variables, the process as the container starts it,
and the Envoy of the example."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes_case import FOLDER, OF_FAIRLANE, ROOT, built, container, environment, file, one, pod
from kubernetes_case import fairlane as workload

sys.path.append(str(ROOT / "tests" / "engines"))  # certificates

import gen_kubernetes
from certificates import Authority, _pem

from extproc.cli.child import Child
from extproc.cli.ports import free_ports
from extproc.cli.probe import until
from extproc.cli.stack import envoy_binary

pytestmark = pytest.mark.slow

TOKEN = "of-a-test"
NAME = "fairlane.fairlane.svc"


@dataclass(frozen=True)
class Mounted:
    """The container's folders, in one of the test's; the configuration as the kubelet writes it, with links."""

    place: Path
    authority: Authority

    def map(self, text: str) -> str:
        for each in ("/etc/fairlane", "/var/lib/fairlane"):
            text = text.replace(each, f"{self.place}{each}")
        return text

    def write(self, text: str, version: str) -> None:
        folder = self.place / "etc/fairlane"
        (folder / f"..{version}").mkdir(parents=True)
        (folder / f"..{version}" / "fairlane.yaml").write_text(text)
        (folder / "..data_tmp").symlink_to(f"..{version}")
        (folder / "..data_tmp").rename(folder / "..data")
        if not (folder / "fairlane.yaml").is_symlink():
            (folder / "fairlane.yaml").symlink_to("..data/fairlane.yaml")

    def secrets(self) -> None:
        tls, admin = self.place / "etc/fairlane-tls", self.place / "etc/fairlane-admin"
        tls.mkdir(parents=True)
        admin.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        names = one(built("single, all"), "Certificate", "fairlane")["spec"]["dnsNames"]
        names = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        certificate = self.authority._sign(x509.Name([]), key, names)
        for name, content in zip(("tls.crt", "tls.key"), _pem(certificate, key), strict=True):
            (tls / name).write_bytes(content)
        (tls / "ca.crt").write_text(self.authority.pem)
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        (admin / "tokens.yaml").write_text(f"{digest}: {{name: alice, role: operator}}\n")


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    found = Mounted(tmp_path, Authority("of a test"))
    (tmp_path / "var/lib/fairlane").mkdir(parents=True)
    found.secrets()
    return found


def variables(objects: list[dict[str, Any]], mounted: Mounted) -> dict[str, str]:
    """Of the container, as a pod would have them."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLANE")}
    return plain | {key: mounted.map(value) for key, value in environment(objects).items()}


@pytest.mark.parametrize("name", OF_FAIRLANE)
def test_the_configuration_is_good(name: str, mounted: Mounted) -> None:
    objects = built(name)
    mounted.write(mounted.map(file(objects)), "first")
    done = subprocess.run(
        [sys.executable, "-m", "extproc.cli.main", "check-config", mounted.map("/etc/fairlane/fairlane.yaml")],
        env=variables(objects, mounted),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "warning: " in line]
    assert [line.split("warning: ")[1].split(":")[0] for line in told] == ["telemetry.page"], (
        "who may see the page is said by the network policy; nothing else is doubtful"
    )
    for each in environment(objects):
        assert each in done.stdout, "a variable that is taken is named"


# -- the container's process --------------------------------------------------------------------------


@asynccontextmanager
async def running(
    name: str, mounted: Mounted, more: dict[str, str] | None = None
) -> AsyncIterator[tuple[Child, dict[str, int], list[dict[str, Any]]]]:
    """The command of the container, with the ConfigMap's file but for its folders; on ports of loopback. `more`:
    variables."""
    objects = built(name)
    mounted.write(mounted.map(file(objects)), "first")
    ports = dict(zip(("grpc-ext-proc", "grpc-admin", "http"), free_ports(3), strict=True))
    at = {
        "FAIRLANE__LISTEN__EXT_PROC": f"127.0.0.1:{ports['grpc-ext-proc']}",
        "FAIRLANE__LISTEN__ADMIN": f"127.0.0.1:{ports['grpc-admin']}",
        "FAIRLANE__LISTEN__HTTP": f"127.0.0.1:{ports['http']}",
    }
    command = [sys.executable, "-m", "extproc.cli.main", *(mounted.map(each) for each in container(objects)["args"])]
    child = Child(
        "fairlane",
        command,
        log=mounted.place / "log",
        directory=ROOT,
        env=variables(objects, mounted) | at | (more or {}),
    )
    child.start()
    try:
        startup = container(objects)["startupProbe"]
        await until(lambda: child.failed or answers(startup, ports), 60.0)
        assert answers(startup, ports), child.tail()
        yield child, ports, objects
    finally:
        child.kill()


def answers(probe: dict[str, Any], ports: dict[str, int]) -> bool:
    """As the kubelet asks."""
    asked = probe["httpGet"]
    try:
        url = f"http://127.0.0.1:{ports[asked['port']]}{asked['path']}"
        with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as response:
            return 200 <= response.status < 400
    except OSError:
        return False


def metric(ports: dict[str, int], name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def ctl(ports: dict[str, int], *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "extproc.cli.main",
        "ctl",
        *options,
        "--address",
        f"localhost:{ports['grpc-admin']}",
    ]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLANE")}
    return subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.e2e
async def test_as_the_container_starts_it_probes_answer_a_new_file_is_taken_and_a_pod_ends(mounted: Mounted) -> None:
    async with running("overlays/single", mounted) as (child, ports, objects):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert answers(container(objects)[probe], ports), probe
        assert ctl(ports, "status").returncode == 0
        before = metric(ports, "fairlane_config_revision")
        mounted.write(mounted.map(file(objects)) + "  max_queued: 7\n", "second")  # of the last pool
        assert await until(lambda: metric(ports, "fairlane_config_revision") > before, 30.0), child.tail()
        assert "max_queued: 7\n" in ctl(ports, "config", "get").stdout
        revision = metric(ports, "fairlane_config_revision")
        mounted.write("pools: [", "third")
        assert await until(lambda: metric(ports, "fairlane_config_file_good") == 0, 30.0), child.tail()
        assert metric(ports, "fairlane_config_revision") == revision
        assert answers(container(objects)["readinessProbe"], ports), "it goes on with the file before"
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
        assert await until(lambda: not child.running, pod(workload(objects))["terminationGracePeriodSeconds"])
        assert child.exit_code == 0


@pytest.mark.e2e
async def test_with_tls_and_tokens(mounted: Mounted, tmp_path: Path) -> None:
    async with running("single, all", mounted) as (_, ports, objects):
        assert answers(container(objects)["readinessProbe"], ports), "probes need no certificate"
        certificate, key = mounted.authority.client()
        (tmp_path / "client.pem").write_bytes(certificate + key)
        shown = ssl.create_default_context(cadata=mounted.authority.pem)
        shown.load_cert_chain(tmp_path / "client.pem")
        shown.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", ports["grpc-ext-proc"], ssl=shown, server_hostname=NAME)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
        ca = tmp_path / "ca.pem"
        ca.write_text(mounted.authority.pem)
        token = tmp_path / "token"
        token.write_text(TOKEN)
        assert ctl(ports, "status", "--ca", str(ca), "--token-file", str(token)).returncode == 0
        assert ctl(ports, "status", "--ca", str(ca)).returncode == 4
        asked = ssl.create_default_context(cadata=mounted.authority.pem)
        asked.set_alpn_protocols(["h2"])
        with pytest.raises(OSError):  # at the handshake, or at the first byte
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", ports["grpc-ext-proc"], ssl=asked, server_hostname=NAME
            )
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            if await reader.read(1) == b"":
                raise ConnectionResetError


# -- files that are made of others --------------------------------------------------------------------


@pytest.mark.parametrize("path", gen_kubernetes.FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_made_file_is_what_is_made_now(path: Path) -> None:
    assert path.read_text() == gen_kubernetes.FILES[path](), "run `make kubernetes`"


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["envoy", "envoy-three"])
def test_the_envoy_of_the_example_takes_its_configuration(name: str, tmp_path: Path) -> None:
    given = one(
        [each for each in built(f"examples/{name}") if each["metadata"]["name"].startswith("envoy-")], "ConfigMap"
    )
    (tmp_path / "envoy.yaml").write_text(given["data"]["envoy.yaml"])
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "--config-path", str(tmp_path / "envoy.yaml"), "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_envoy_asks_the_service_that_is_there() -> None:
    text = (FOLDER / "examples" / "envoy" / "envoy.yaml").read_text()
    service = one(built("overlays/single"), "Service", "fairlane-pods")
    name, space = service["metadata"]["name"], service["metadata"]["namespace"]
    (port,) = service["spec"]["ports"]
    assert f"address: {name}.{space}.svc.cluster.local\n" in text
    assert f"port_value: {port['port']}\n" in text


@pytest.mark.parametrize("overlay", ["standby", "shared"])
def test_the_example_envoy_for_three_asks_each_of_them(overlay: str) -> None:
    made = yaml.safe_load(gen_kubernetes.ENVOY_FOR_THREE.read_text())["static_resources"]["clusters"]
    objects = built(f"overlays/{overlay}")
    replicas, service = workload(objects), one(objects, "Service", "fairlane-pods")["metadata"]
    names = [
        f"{replicas['metadata']['name']}-{number}.{service['name']}.{service['namespace']}.svc.cluster.local"
        for number in range(replicas["spec"]["replicas"])
    ]
    asked = {
        each["name"]: [
            endpoint["endpoint"]["address"]["socket_address"]["address"]
            for endpoint in each["load_assignment"]["endpoints"][0]["lb_endpoints"]
        ]
        for each in made
        if each["name"].startswith("fairlane")
    }
    assert asked == {"fairlane": names, **{f"fairlane-log-{number}": [at] for number, at in enumerate(names, 1)}}


@pytest.mark.parametrize("component", ["tls"])
def test_the_certificate_is_for_the_names_that_gateways_use(component: str) -> None:
    certificate = one(built("partition, all"), "Certificate", "fairlane")["spec"]
    services = [each["metadata"]["name"] for each in built("partition, all") if each["kind"] == "Service"]
    for each in services:
        assert f"{each}.fairlane.svc.cluster.local" in certificate["dnsNames"]
    stateful = workload(built("partition, all"))["spec"]["serviceName"]
    assert f"*.{stateful}.fairlane.svc.cluster.local" in certificate["dnsNames"]
    mounted = {each["name"]: each for each in pod(workload(built("partition, all")))["volumes"]}
    assert mounted[component]["secret"]["secretName"] == certificate["secretName"]
