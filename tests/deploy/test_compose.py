"""compose.yaml: valid by the Compose specification, its commands are commands that exist, and what it says in several
places agrees.

No container engine is needed, and none is used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from compose_file import FILE, ROOT, docker_compose, of_profile, read
from compose_pydantic import ComposeSpecification
from promql import promtool
from pydantic import TypeAdapter

from extproc.cli.main import main
from extproc.config.load import load
from extproc.config.units import Seconds, split_host_port

OURS = ("engine-1", "engine-2", "fairlane", "wiring")
PROFILES = {
    "sim": {"engine-1", "engine-2", "fairlane", "wiring", "envoy", "prometheus", "grafana"},
    "vllm": {"vllm", "fairlane", "wiring", "envoy", "prometheus", "grafana"},
}
CONFIG = ROOT / "deploy" / "compose" / "fairlane.yaml"


@pytest.fixture
def services() -> dict[str, Any]:
    found = read()["services"]
    assert isinstance(found, dict)
    return found


def configured(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`docker-compose config`, without what the caller's environment may say."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "CI") if key in os.environ}
    return subprocess.run(
        [docker_compose(), "--file", str(FILE), *arguments],
        cwd=ROOT, env=kept | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_follows_the_specification() -> None:
    # `x-...` keys are free by the specification; the model generated from its schema does not know that.
    parsed = ComposeSpecification.model_validate({k: v for k, v in read().items() if not k.startswith("x-")})
    assert set(parsed.services or {}) == PROFILES["sim"] | PROFILES["vllm"]


def test_the_check_finds_a_wrong_key() -> None:
    wrong = {"services": {"x": {"image": "x", "comand": ["serve"]}}}
    with pytest.raises(ValueError, match="comand"):
        ComposeSpecification.model_validate(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_docker_compose_takes_it(profile: str) -> None:
    done = configured("--profile", profile, "config", "--quiet")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_the_readme_stops_the_engines_of_either_kind() -> None:
    """A service with a profile is stopped only while its profile is active."""
    told = (ROOT / "deploy" / "compose" / "README.md").read_text()
    used = {profile for service in read()["services"].values() for profile in service.get("profiles", [])}
    stops = re.findall(r"^docker compose (.*)down\b", told, re.MULTILINE)
    assert stops
    for options in stops:
        assert set(re.findall(r"--profile (\S+)", options)) == used
        done = configured(*options.split(), "config", "--quiet")
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_profile_that_nobody_knows_starts_no_engine() -> None:
    assert set(of_profile("vlm")) == PROFILES["sim"] & PROFILES["vllm"]


def test_the_health_check_with_tls_is_a_command() -> None:
    told = (ROOT / "deploy" / "compose" / "README.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", told, re.MULTILINE | re.DOTALL)
    how, program, *arguments = yaml.safe_load(block)["healthcheck"]["test"]
    assert (how, program) == ("CMD", "fairlane")
    exists(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"VLLM_MODEL": "org/other", "ENVOY_PORT": "11000", "GRAFANA_PASSWORD": "x"}])
def test_variables_are_filled_in_as_docker_compose_does(variables: dict[str, str]) -> None:
    done = configured("config", **variables)
    assert done.returncode == 0, done.stderr
    theirs, ours = yaml.safe_load(done.stdout)["services"], read(variables)["services"]
    for name, service in ours.items():
        for key in ("command", "entrypoint"):
            # It writes `$` as `$$`, so that what it prints is a file again.
            assert [str(a).replace("$$", "$") for a in theirs[name].get(key) or []] == service.get(key, [])
        published = [f"{p['host_ip']}:{p['published']}:{p['target']}" if isinstance(p, dict) else p.removesuffix("/tcp")
                     for p in theirs[name].get("ports", [])]  # fmt: skip
        assert published == service.get("ports", [])
        assert (theirs[name].get("environment") or {}) == service.get("environment", {})


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_its_engines_and_all_the_rest(profile: str) -> None:
    running = of_profile(profile)
    assert set(running) == PROFILES[profile]
    for service in running.values():
        assert set(service.get("depends_on", {})) <= set(running)  # else it would not start


def test_the_simulated_engines_are_the_default() -> None:
    variables = dict(
        line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if line[:1] not in ("", "#")
    )
    assert variables == {"COMPOSE_PROJECT_NAME": "fairlane", "COMPOSE_PROFILES": "sim"}


@pytest.mark.parametrize("name", OURS)
def test_each_command_exists_with_its_options(services: dict[str, Any], name: str) -> None:
    exists([*services[name]["command"]])


@pytest.mark.parametrize("name", OURS)
def test_each_health_check_of_ours_exists(services: dict[str, Any], name: str) -> None:
    if "healthcheck" in services[name]:
        how, program, *arguments = services[name]["healthcheck"]["test"]
        assert (how, program) == ("CMD", "fairlane")
        exists(arguments)
    else:
        assert services[name]["restart"] == "no"


def exists(arguments: list[str]) -> None:
    """Whether `fairlane` takes these arguments; raises a click error on an unknown option or a bad value."""
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), arguments.pop(0))
        assert found is not None
        command = found
    command.make_context("test", arguments)


@pytest.mark.slow
def test_what_a_service_waits_for_tells_when_it_is_ready(services: dict[str, Any]) -> None:
    for service in services.values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[other]["restart"] == "no"


def test_what_runs_for_long_is_looked_at_and_started_again(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name != "wiring":
            check = service["healthcheck"]
            assert check.keys() == {"test", "interval", "timeout", "retries", "start_period"}
            assert service["restart"] == "unless-stopped"


def test_nothing_is_root_or_can_become_it_or_write_where_it_should_not(services: dict[str, Any]) -> None:
    for service in services.values():
        assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert "cap_add" not in service
        for volume in service.get("volumes", []):
            source, _, mode = volume.split(":")[0], volume.split(":")[1], volume.split(":")[2:]
            assert mode == ["ro"] or not source.startswith((".", "/"))


def test_each_has_limits(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["pids_limit"] > 0
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
        if name != "vllm":  # has the GPU for itself, and the memory that the model needs
            assert service["cpus"] > 0
            assert service["mem_limit"]


def test_ports_are_on_the_loopback_alone(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 4
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert len({port.split(":")[1] for port in published}) == 4


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for service in services.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])


def test_the_stop_is_given_the_time_that_it_takes(services: dict[str, Any]) -> None:
    given = TypeAdapter(Seconds).validate_python(services["fairlane"]["stop_grace_period"])
    assert given > load(CONFIG).shutdown.grace


def test_all_find_the_engines_by_one_name(services: dict[str, Any]) -> None:
    """Fairlane, Envoy and Prometheus, whatever engines there are."""
    alias = {
        name: service["networks"]["mesh"]["aliases"]
        for name, service in services.items()
        if isinstance(service.get("networks"), dict)
    }
    assert alias == {name: ["engines"] for name in ("engine-1", "engine-2", "vllm")}
    for name in alias:
        assert "--port=8000" in services[name]["command"]
        assert "--host=0.0.0.0" in services[name]["command"]
    (pool,) = load(CONFIG).pools
    assert pool.endpoints.dns is not None
    assert (pool.endpoints.dns.name, pool.endpoints.dns.port) == ("engines", 8000)
    jobs = {job["job_name"]: job for job in prometheus()["scrape_configs"]}
    (lookup,) = jobs["engine"]["dns_sd_configs"]
    assert (lookup["names"], lookup["type"], lookup["port"]) == (["engines"], "A", 8000)


def prometheus() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_prometheus_takes_its_files_as_they_are_mounted(services: dict[str, Any], tmp_path: Path) -> None:
    for source, target, _ in (volume.split(":") for volume in services["prometheus"]["volumes"][:2]):
        assert target.rpartition("/")[0] == "/etc/prometheus"
        shutil.copy(ROOT / source, tmp_path / target.rpartition("/")[2])
    done = subprocess.run(
        [promtool(), "check", "config", tmp_path / "prometheus.yaml"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_prometheus_asks_where_they_listen(services: dict[str, Any]) -> None:
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in prometheus()["scrape_configs"]
        if "static_configs" in job
    }
    assert targets == {"fairlane": ["fairlane:9090"], "envoy": ["envoy:9901"]}
    assert load(CONFIG).listen.http == "0.0.0.0:9090"
    assert "--envoy-admin=0.0.0.0:9901" in services["wiring"]["command"]
    # The same query of Envoy as in the example for everybody.
    example = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    for mine, its in zip(prometheus()["scrape_configs"], example, strict=False):
        assert {k: v for k, v in mine.items() if k != "static_configs"} == {
            k: v for k, v in its.items() if k != "static_configs"
        }


def test_envoys_wiring_is_what_it_should_be(services: dict[str, Any]) -> None:
    """Made as the service `wiring` makes it, from Fairlane's own configuration."""
    arguments = [a.replace("/etc/fairlane/fairlane.yaml", str(CONFIG)) for a in services["wiring"]["command"]]
    arguments = [a for a in arguments if not a.startswith("--output")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    clusters = {c["name"]: c for c in made["static_resources"]["clusters"]}
    assert clusters["vllm"]["cluster_type"]["name"] == "envoy.clusters.dns"

    def of(name: str) -> list[str]:
        endpoints = clusters[name]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        at = [each["endpoint"]["address"]["socket_address"] for each in endpoints]
        return [f"{each['address']}:{each['port_value']}" for each in at]

    assert of("vllm") == ["engines:8000"]
    assert of("fairlane") == [f"fairlane:{split_host_port(load(CONFIG).listen.ext_proc)[1]}"]
    assert clusters["fairlane"]["type"] == "STRICT_DNS"


def test_what_is_mounted_is_there_and_is_declared(services: dict[str, Any]) -> None:
    declared = set(read()["volumes"])
    used = set()
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists()
            else:
                used.add(source)
    assert used == declared


def test_grafana_has_no_password_that_everybody_knows(services: dict[str, Any]) -> None:
    """The command as it stands, with a program in place of Grafana that says what it was given."""
    service = services["grafana"]

    def password(given: str) -> str:
        done = subprocess.run(
            [*service["entrypoint"], "sh", "-c", 'echo "$GF_SECURITY_ADMIN_PASSWORD/${GRAFANA_PASSWORD-gone}"'],
            env={"PATH": os.environ["PATH"], "GRAFANA_PASSWORD": given}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        word, _, left = done.stdout.strip().rpartition("/")
        assert left == "gone"
        return word

    assert password("said so") == "said so"
    unknown = {password("") for _ in range(3)}
    assert len(unknown) == 3
    assert min(len(each) for each in unknown) == 32  # base64 of 24 bytes
    assert service["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_grafana_reads_our_dashboard_and_our_prometheus(services: dict[str, Any]) -> None:
    service = services["grafana"]
    mounted = {target: source for source, target, *_ in (v.split(":") for v in service["volumes"])}
    provisioning = ROOT / mounted["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "fairlane.yaml").read_text())["providers"]
    board = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert board.startswith(provider["options"]["path"] + "/")
    assert (ROOT / mounted[board]).is_file()
    dashboard = json.loads((ROOT / mounted[board]).read_text())
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    # The dashboard leaves the choice to a variable, which takes the default one of this type.
    (variable,) = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    assert (variable["query"], source["type"], source["isDefault"]) == ("prometheus", "prometheus", True)
    assert source["url"] == "$PROMETHEUS_URL"
    at = service["environment"]["PROMETHEUS_URL"].removeprefix("http://")
    assert f"--web.listen-address=0.0.0.0:{at.rpartition(':')[2]}" in services[at.rpartition(":")[0]]["command"]
    assert source["jsonData"]["timeInterval"] == prometheus()["global"]["scrape_interval"]
