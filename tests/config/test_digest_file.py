"""Files of digests, whatever an entry stands for. What holds of files of keys in particular is with those."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.digest_file import DigestFile, DigestFileError, FaultError, parsed, watch

Logs = list[MutableMapping[str, Any]]
DIGEST, OTHER = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))


class Numbers(DigestFile[int]):
    secret = "number"
    stands_for = "a number"

    def entry(self, value: object) -> int:
        if not isinstance(value, int):
            raise FaultError("is no number")
        return value


class Words(Numbers):
    secret = "word"
    stands_for = "its length"


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.mark.parametrize("name", ["file.yaml", "file.json", "file"])
def test_what_stands_in_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps({DIGEST: 1}))
    file = Numbers(tmp_path / name)
    assert file.lookup(DIGEST) is None
    assert file.changed()
    file.load()
    assert (file.lookup(DIGEST), file.lookup(OTHER), len(file)) == (1, None, 1)
    assert not file.changed()


def test_messages_name_what_it_is_of(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    for text, words in (
        ("", "expected a mapping of SHA-256 to its length, found nothing ({} is a file without words)"),
        ("s3cret: 1", "entry 1 is no SHA-256 in lower-case hex; make it with: printf %s WORD | sha256sum"),
        (f"{DIGEST}: s3cret", f"entry 1 ({DIGEST[:8]}...): is no number"),
    ):
        path.write_text(text)
        with pytest.raises(DigestFileError) as error:
            Words(path).load()
        assert str(error.value) == f"{path}: {words}"


def test_a_broken_one_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"{DIGEST}: 1")
    file = Numbers(path)
    file.load()
    path.write_text(f"{OTHER}: 2\n{DIGEST}: s3cret\n")
    assert file.changed()
    with pytest.raises(DigestFileError):
        file.load()
    assert (file.lookup(DIGEST), file.lookup(OTHER)) == (1, None)
    assert not file.changed()  # it is not tried again as it is


async def test_several_are_followed_each_by_its_name(tmp_path: Path, logs: Logs) -> None:
    numbers, words = Numbers(tmp_path / "numbers.yaml"), Words(tmp_path / "words.yaml")
    for file in (numbers, words):
        file.path.write_text("{}")
        file.load()
    broken: list[None] = []
    task = asyncio.create_task(watch((numbers, words), lambda: broken.append(None), every_s=0.005))
    try:
        numbers.path.write_text(f"{DIGEST}: 7\n")
        words.path.write_text("s3cret: 1\n")
        deadline = time.monotonic() + 30
        while numbers.lookup(DIGEST) != 7 or not broken:
            assert time.monotonic() < deadline
            assert not task.done()
            await asyncio.sleep(0.002)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    read = [entry for entry in logs if entry["event"] == "number_file_read"]
    refused = [entry for entry in logs if entry["event"] == "word_file_refused"]
    assert read[-1]["numbers"] == 1
    assert refused[-1]["words"] == 0
    assert refused[-1]["note"] == "the words stay as they were"
    assert "s3cret" not in str(logs)


async def test_nothing_to_follow() -> None:
    async with asyncio.timeout(5):
        await watch((), lambda: None)


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet="{}[]:,-&*!?|>'\"# \na0", max_size=30).map(str.encode), st.booleans())
def test_no_text_raises_anything_else(data: bytes, as_json: bool) -> None:
    with contextlib.suppress(FaultError):
        Numbers(Path("file")).entries(parsed(data, as_json=as_json))
