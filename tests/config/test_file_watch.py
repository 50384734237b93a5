"""Which changes of a file are seen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from extproc.config.file_watch import FileWatch


def test_a_change_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a")
    watch = FileWatch(file)
    assert [watch.changed(), watch.changed()] == [True, False]  # whoever watches has read it before that
    file.write_text("ab")
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_renamed_copy_of_the_same_size_and_time(tmp_path: Path) -> None:
    file, other = tmp_path / "f.yaml", tmp_path / "new"
    file.write_text("a")
    watch = FileWatch(file)
    watch.changed()
    other.write_text("b")
    stat = file.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(file)
    assert watch.changed()


def test_the_link_of_a_mounted_config_map(tmp_path: Path) -> None:
    """Kubernetes: f.yaml -> ..data/f.yaml, and ..data is renamed to point to another folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.yaml").write_text("a")
        os.utime(tmp_path / name / "f.yaml", ns=(0, 0))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "f.yaml").symlink_to("..data/f.yaml")
    watch = FileWatch(tmp_path / "f.yaml")
    watch.changed()
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_file_that_goes_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    watch = FileWatch(file)
    assert [watch.changed(), watch.changed()] == [True, False]
    file.write_text("a")
    assert [watch.changed(), watch.changed()] == [True, False]
    file.unlink()
    assert [watch.changed(), watch.changed()] == [True, False]
    assert [FileWatch(Path("a\0b")).changed()] == [True]


async def test_watching(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a")
    seen: list[str] = []
    told = asyncio.Event()

    async def on_change() -> None:
        seen.append(file.read_text())
        told.set()

    task = asyncio.create_task(FileWatch(file).watch(on_change, every_s=0.001))
    try:
        for text in ("a", "bc", "def"):
            file.write_text(text)
            await asyncio.wait_for(_until(lambda text=text: seen[-1:] == [text], told), 10)  # type: ignore[misc]
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _until(reached: object, told: asyncio.Event) -> None:
    assert callable(reached)
    while not reached():
        told.clear()
        await told.wait()


async def test_what_the_reader_raises_ends_the_watch(tmp_path: Path) -> None:
    async def on_change() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await asyncio.wait_for(FileWatch(tmp_path / "f").watch(on_change), 10)
