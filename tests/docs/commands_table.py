"""How each command of the pages is tested. A new command in a page needs a line here, unless it is one of `HERE`.

Commands are named as `Command.one_line` writes them. `test_commands.py` holds the tables to the pages and to the tests.
"""

from __future__ import annotations

from typing import NamedTuple

# -- run here ----------------------------------------------------------------------------------------

# Programs whose commands run here, in the order of the page.
HERE = {"fairlane", "cd", "curl", "openssl", "printf"}

# Pages whose commands are for a pool `llama` with requests waiting; all others are run beside `fairlane up`.
OF_LLAMA = ("docs/admin.md", "docs/observability.md", "docs/operations.md", "docs/tuning.md")

# What a page takes as given, in the words of its commands -> what it is here.
GIVEN = {
    "envoy/istio/README.md": {"--config fairlane.yaml": "--config deploy/kubernetes/overlays/single/fairlane.yaml"},
    "envoy/kgateway/README.md": {"--config fairlane.yaml": "--config by-envoy.yaml"},
}

# Commands that go on until they are stopped, by how they begin -> what they say first.
ENDLESS = {
    "fairlane ctl watch": r"llama|\{",
}

# Exit codes of those that show no error and do not end with 0.
CODES: dict[str, int] = {}

# What is made so before a command, as a name of `Operators`: it is shown in a moment that the page tells of.
BEFORE = {
    "fairlane ctl config diff": "changed",
    'fairlane ctl record start --name before --hash-tenants --for 1h --reason "try a smaller window"': "enforced",
    "fairlane ctl record status": "served",
    "fairlane ctl requests --filter 'observed = true AND state = queued' --limit 1": "observed",
    'fairlane ctl cancel --filter \'tenant = "team-b" AND waited > 1s\' --reason "runaway job" --dry-run': "held",
    "fairlane ctl audit --limit 2": "refused",
}

# Words of a page's output that another run need not have: of that moment, of that machine.
OTHER_WORDS = {
    "fairlane ctl explain 04909f4a-llama~-18b": {"class", "interactive"},  # what it would wait for
    "fairlane ctl audit --limit 2": {"unix", "gates", "max_tpot"},  # where the caller was, what was taken back
}

# -- run by another test -----------------------------------------------------------------------------


class Elsewhere(NamedTuple):
    where: str  # file, or file::test
    words: tuple[str, ...]  # of the command, that stand in that test


_GRPCURL = "tests/e2e/test_admin_grpcurl.py"  # by the same calls: the program is not to be had here
_SCRIPT = ".ci/run"

ELSEWHERE = {
    "envoy -c /etc/envoy/xds/bootstrap.yaml --drain-time-s 7200": Elsewhere(
        "tests/e2e/test_mesh_xds.py", ("--drain-time-s",)
    ),
    "envoy -c envoy/envoy.yaml": Elsewhere("tests/wiring/test_envoy_files.py", ("envoy.yaml",)),
    "make up": Elsewhere("tests/e2e/test_fairlane_up.py::test_its_snippet_works_and_ctrl_c_leaves_nothing", ("up",)),
    "make demo": Elsewhere("tests/docs/test_commands.py::test_the_long_ones_shortened", ("demo",)),
    "make test": Elsewhere(_SCRIPT, ("make test",)),
    "make test-fast": Elsewhere(_SCRIPT, ("make test",)),  # a part of it
    "make test-envoys": Elsewhere(_SCRIPT, ("make test-envoys",)),
    "make lint types contracts": Elsewhere(_SCRIPT, ("make lint types contracts",)),
    "make plots": Elsewhere("tests/docs/test_tuning.py::test_the_runs_give_the_figures_of_the_file", ("plots",)),
    ".venv/bin/fairlane bench fairness": Elsewhere("tests/cli/test_bench_fairness.py", ("bench", "fairness")),
    ".venv/bin/fairlane bench core": Elsewhere(
        "tests/docs/test_commands.py::test_the_long_ones_shortened", ("bench core",)
    ),
    ".venv/bin/fairlane bench affinity": Elsewhere(
        "tests/docs/test_commands.py::test_the_long_ones_shortened", ("bench affinity",)
    ),
    ".venv/bin/fairlane bench scrape": Elsewhere("tests/cli/test_bench_scrape.py", ("bench", "scrape")),
    ".venv/bin/fairlane bench metrics": Elsewhere("tests/cli/test_bench_metrics.py", ("bench", "metrics")),
    ".venv/bin/fairlane bench wire": Elsewhere("tests/cli/test_bench_wire.py", ("bench", "wire")),
    ".venv/bin/fairlane bench fairness --json fairness.json": Elsewhere(
        "tests/cli/test_bench_fairness.py", ("bench", "fairness", "--json")
    ),
    ".venv/bin/fairlane bench core --json core.json": Elsewhere(
        "tests/docs/test_commands.py::test_the_long_ones_shortened", ("bench core", "--json")
    ),
    ".venv/bin/fairlane bench wire --json wire.json": Elsewhere(
        "tests/cli/test_bench_wire.py", ("bench", "wire", "--json")
    ),
    ".venv/bin/fairlane bench scrape --json scrape.json": Elsewhere(
        "tests/cli/test_bench_scrape.py", ("bench", "scrape", "--json")
    ),
    ".venv/bin/fairlane bench metrics --json metrics.json": Elsewhere(
        "tests/cli/test_bench_metrics.py", ("bench", "metrics", "--json")
    ),
    ".venv/bin/fairlane bench wire --only telemetry --json telemetry.json": Elsewhere(
        "tests/cli/test_bench_wire.py", ("bench", "wire", "--only", "telemetry", "--json")
    ),
    ".venv/bin/fairlane bench wire --only instructions --json instructions.json": Elsewhere(
        "tests/cli/test_bench_instructions.py", ("bench", "wire", "--only", "instructions", "--json")
    ),
    ".venv/bin/fairlane bench cluster --json cluster.json": Elsewhere(
        "tests/cli/test_bench_cluster_real.py", ("cluster", "--json")
    ),
    ".venv/bin/fairlane bench cluster --virtual --json cluster.json": Elsewhere(
        "tests/docs/test_commands.py::test_the_long_ones_shortened", ("bench cluster", "--virtual", "--json")
    ),
    ".venv/bin/fairlane bench affinity --json affinity.json": Elsewhere(
        "tests/docs/test_commands.py::test_the_long_ones_shortened", ("bench affinity", "--json")
    ),
    ".venv/bin/fairlane bench admin --json admin.json": Elsewhere(
        "tests/cli/test_bench_admin.py", ("bench", "admin", "--json")
    ),
    "grpcurl -plaintext 127.0.0.1:50052 list": Elsewhere(_GRPCURL, ("list",)),
    'grpcurl -plaintext -d \'{"tenant": "team-a", "factor": 3, "ttl": "600s", "reason": "deadline"}\' '
    "127.0.0.1:50052 fairlane.admin.v1.Admin/BoostTenant": Elsewhere(
        "tests/docs/test_commands.py::test_what_grpcurl_would_send", ("grpcurl",)
    ),
    "grpcurl -plaintext -unix /run/fairlane/admin.sock fairlane.admin.v1.Admin/GetStatus": Elsewhere(
        _GRPCURL, ("fairlane.admin.v1.Admin", "GetStatus")
    ),
    'grpcurl -cacert ca.pem -H "authorization: Bearer $(cat token)" fairlane.example:50052 '
    "fairlane.admin.v1.Admin/GetStatus": Elsewhere(_GRPCURL, ("fairlane.admin.v1.Admin", "GetStatus")),
    'grpcurl -plaintext -d \'{"config": {"classes": {"batch": {"queue_timout": "20m"}}}, "reason": "a try"}\' '
    "127.0.0.1:50052 fairlane.admin.v1.Admin/UpdateConfig": Elsewhere(
        "tests/docs/test_commands.py::test_what_grpcurl_would_send", ("grpcurl",)
    ),
}

# Pages whose commands are all held to something by a test of their own.
PAGES_ELSEWHERE = {
    "deploy/kubernetes/README.md": "tests/deploy/test_kubernetes_readme.py",
}

# -- not run -----------------------------------------------------------------------------------------

# Programs -> why. Their commands are read by `bash -n` alone.
NOT_HERE = {
    "apt": "changes the machine",
    "chown": "changes the machine, as root",
    "docker": "there is no container engine; tests/deploy/test_compose.py and tests/e2e/test_compose_commands.py",
    "helm": "there is no cluster",
    "install": "changes the machine, as root",
    "istioctl": "there is no cluster",
    "kubectl": "there is no cluster; tests/deploy/test_kubernetes_*.py",
    "pip": "takes what an index has; .ci/run installs with the same extras, by make",
    "python3": "makes a folder in /opt, as root",
    "ssh": "needs another machine",
    "systemctl": "systemd does not run here; tests/deploy/test_systemd.py",
    "useradd": "changes the machine, as root",
    "prometheus": "tests/e2e/test_prometheus_real.py runs the same file with another port",
}
# Single commands -> why.
NOT_HERE_ALONE = {
    "make test-vllm": "installs 3 GB; it is what tests/vllm is for",
    ".venv/bin/python tests/sim/replica_pages.py": "five minutes of a core",
}
