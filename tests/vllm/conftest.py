"""What the tests against the real vLLM share: its environment, the model, and the figures that they measured.

Run by `make test-vllm`, never by `make test`: the environment is 2.5 GB (`tools/vllm_env.py` makes it).
"""

from __future__ import annotations

import sys
from pathlib import Path

import make_tiny_llama
import orjson
import pytest
from vllm_figures import Figures

_HERE = Path(__file__).parent
_TESTS = _HERE.parent
sys.path.append(str(_TESTS / "e2e"))  # of `rig`

_ENVIRONMENT = _TESTS.parent / ".vllm"
_STAMP = _ENVIRONMENT / ".installed"  # written when it is finished


_FIGURES = pytest.StashKey[Figures]()
_FILE = pytest.StashKey[Path]()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Everything, unless this folder or something in it was asked for."""
    asked = ((config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args)
    return None if any(path == _HERE or _HERE in path.parents for path in asked) else True


@pytest.fixture(scope="session")
def environment() -> Path:
    """The venv with vLLM."""
    if not _STAMP.is_file():
        pytest.fail("vLLM is not installed: run `make test-vllm`, or tools/vllm_env.py before", pytrace=False)
    return _ENVIRONMENT


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama.write(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """To add to. All are printed at the end, and written to a file beside the logs."""
    request.config.stash[_FILE] = tmp_path_factory.mktemp("figures") / "vllm_figures.json"
    return request.config.stash.setdefault(_FIGURES, Figures())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_FIGURES, None)
    if found is None or not found.rows:
        return
    file = config.stash[_FILE]
    file.write_bytes(orjson.dumps(found.rows, option=orjson.OPT_INDENT_2))
    terminalreporter.section("figures of the real vLLM")
    rows = [("what", "measured", "design", "bound"), *(tuple(map(_text, row.values())) for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
    terminalreporter.write_line(f"also in {file}")


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
