"""The published models of Envoy Gateway and of the Gateway API, as the npm package @kubernetes-models/envoy-gateway has
them: made from the sources of Envoy Gateway's API. They know types, required members, patterns and enumerations.
Members that do not exist are passed by; tools/check_manifests.py finds these, with the CRDs of a release."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

_PACKAGE = "@kubernetes-models/envoy-gateway@2.0.0"
_PROGRAM = """
import { readFileSync } from "fs";
import * as eg from "@kubernetes-models/envoy-gateway/gateway.envoyproxy.io/v1alpha1";
import * as v1 from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import * as v1beta1 from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1beta1";
const groups = {
  "gateway.envoyproxy.io/v1alpha1": eg,
  "gateway.networking.k8s.io/v1": v1,
  "gateway.networking.k8s.io/v1beta1": v1beta1,
};
for (const each of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new groups[each.apiVersion][each.kind](each).validate();
  } catch (error) {
    console.log(JSON.stringify(`${each.kind} ${each.metadata.name}: ${error.message}`));
  }
}
"""


@functools.lru_cache(maxsize=1)
def _folder() -> Path:
    """With the package in it. Skips where there is none to be had, fails in CI."""
    folder = Path(tempfile.mkdtemp(prefix="fairlane-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise FileNotFoundError("npm and node are not installed (Debian: apt install npm)")
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", _PACKAGE]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=110)
        (folder / "validate.mjs").write_text(_PROGRAM, encoding="utf-8")
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the published models are not here: {error}")
    return folder


def validated(text: str) -> list[str]:
    """What is wrong with these objects (YAML), a line for each."""
    done = subprocess.run(
        ["node", "validate.mjs"],
        cwd=_folder(),
        input=json.dumps(list(yaml.safe_load_all(text))),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
