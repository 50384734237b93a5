"""Writes the files in deploy/kubernetes that are made of others. Tests compare them with what is made now.

    python tools/gen_kubernetes.py

- components/monitoring/rules.yaml: the alert rules, as an object of the Prometheus operator.
- examples/envoy/envoy.yaml: an Envoy for overlays/single, by `fairlane envoy-config`.
- examples/envoy-three/envoy.yaml: the same for overlays/standby and overlays/shared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
RULES = FOLDER / "components" / "monitoring" / "rules.yaml"
ENVOY = FOLDER / "examples" / "envoy" / "envoy.yaml"
ENVOY_FOR_THREE = FOLDER / "examples" / "envoy-three" / "envoy.yaml"
_PODS = "fairlane-pods.fairlane.svc.cluster.local:50051"


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay as they are written."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def rules() -> str:
    """The PrometheusRule, whose spec is the file of rules as it stands."""
    spec = yaml.safe_load((ROOT / "deploy" / "prometheus" / "fairlane.rules.yaml").read_text(encoding="utf-8"))
    rule: dict[str, Any] = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "fairlane", "namespace": "fairlane", "labels": {"app.kubernetes.io/name": "fairlane"}},
        "spec": spec,
    }
    head = "# Made of deploy/prometheus/fairlane.rules.yaml by tools/gen_kubernetes.py: change that file.\n"
    return head + yaml.dump(rule, Dumper=_Dumper, sort_keys=False, width=120)


def envoy() -> str:
    """Envoy's configuration for one pod. Raises CalledProcessError: the message is on standard error."""
    return _envoy("single", [_PODS])


def envoy_for_three() -> str:
    """The same for three, of which each has a name."""
    return _envoy("shared", [f"fairlane-{number}.{_PODS}" for number in range(3)])


def _envoy(overlay: str, ext_proc: Sequence[str]) -> str:
    options = [
        f"--config=deploy/kubernetes/overlays/{overlay}/fairlane.yaml",
        "--listener=0.0.0.0:10000",
        "--envoy-admin=127.0.0.1:9901",
        *(f"--ext-proc={each}" for each in ext_proc),
        "--format=yaml",
    ]
    made = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "extproc.cli.main", "envoy-config", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return f"# Made by tools/gen_kubernetes.py. ../../../../envoy/envoy.yaml says why each setting is there.\n{made}"


FILES: dict[Path, Callable[[], str]] = {RULES: rules, ENVOY: envoy, ENVOY_FOR_THREE: envoy_for_three}


if __name__ == "__main__":
    for path, make in FILES.items():
        path.write_text(make(), encoding="utf-8")
