"""Sample pages: small ones of our own in `pages/`, and captures of real engines beside the repository, if present."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

OWN = Path(__file__).parent / "pages"
CAPTURED = Path(__file__).resolve().parents[3] / "shared" / "engines"


@pytest.fixture
def page() -> Callable[[str], bytes]:
    """Reads a page by name; skips the test when a captured one is not there."""

    def read(name: str) -> bytes:
        if (OWN / name).exists():
            return (OWN / name).read_bytes()
        if not (CAPTURED / name).exists():
            pytest.skip(f"no captured page {name}")
        return (CAPTURED / name).read_bytes()

    return read


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`any_page` runs a test on every page there is."""
    if "any_page" in metafunc.fixturenames:
        names = sorted(path.name for folder in (OWN, CAPTURED) if folder.is_dir() for path in folder.glob("*.txt"))
        metafunc.parametrize("any_page", names)
