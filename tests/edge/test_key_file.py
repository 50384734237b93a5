"""Files of API keys: what may stand in one, reading it again when it changes, and no key in what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from envoy_by_messages import a_config
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.digest_file import FaultError, parsed
from extproc.config.model import Config
from extproc.edge.key_file import Key, KeyFile, KeyFileError, Keys

SECRET = "sk-my-secret-key"
Logs = list[MutableMapping[str, Any]]


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


DIGEST, OTHER = sha256("sk-1"), sha256("sk-2")
TENANTS = {"team-b": {"classes": ["default"]}}


def config_of(*files: Path) -> Config:
    sources = [{"api_key": {"file": str(file)}} for file in files]
    return a_config(identity={"tenant": sources}, tenants=TENANTS)


def keys_of(file: Path) -> KeyFile:
    return Keys(config_of(file)).file(str(file))


def error_of(file: Path) -> str:
    with pytest.raises(KeyFileError) as error:
        keys_of(file)
    message = str(error.value)
    assert message.startswith(f"{file}: ")
    assert "secret" not in message
    return message.removeprefix(f"{file}: ")


# -- what may stand in one ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json", "keys"])
def test_a_file_of_either_form(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(json.dumps({DIGEST: "team-a", OTHER: {"tenant": "team-b", "class": "default"}}))
    keys = keys_of(file)
    assert len(keys) == 2
    assert keys.lookup(DIGEST) == Key("team-a")
    assert keys.lookup(OTHER) == Key("team-b", "default")
    assert keys.lookup(sha256("sk-3")) is None


def test_classes_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"{DIGEST}: {{tenant: team-a, class: urgent, classes: [urgent, default]}}\n")
    assert keys_of(file).lookup(DIGEST) == Key("team-a", "urgent", frozenset({"urgent", "default"}))


def test_a_file_without_keys_is_not_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("{}\n")
    assert len(keys_of(file)) == 0
    file.write_text("")
    assert error_of(file) == "expected a mapping of SHA-256 to tenant, found nothing ({} is a file without keys)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"- {SECRET}", "expected a mapping of SHA-256 to tenant, found list"),
        (SECRET, "found str"),
        (f"{SECRET}: team-a", "entry 1 is no SHA-256 in lower-case hex; make it with: printf %s KEY | sha256sum"),
        (f"{DIGEST}: a\n{SECRET}: b", "entry 2 is no SHA-256"),
        (f"{DIGEST.upper()}: a", "entry 1 is no SHA-256 in lower-case hex"),
        (f"{DIGEST}: a\n{DIGEST}: b", "entry 2 of a mapping stands there twice"),
        (f"{SECRET}: a\n{SECRET}: b", "entry 2 of a mapping stands there twice"),
        (f"{DIGEST}: {{tenant: a, tenant: b}}", "entry 2 of a mapping stands there twice"),
        ("7: a", "entry 1 of a mapping is not named by text"),
        (f"? [{SECRET}]\n: a", "entry 1 of a mapping is not named by text"),
        (f"{DIGEST}: a\n{SECRET}: [", "is not YAML: line 2"),
        (f"{DIGEST}: !!python/name:{SECRET} a", "is not YAML: line 1"),
        (f"{DIGEST}: 2026-99-99", "is not YAML"),
        (f"{DIGEST}: !!int ''", "is not YAML"),
        (f"{DIGEST}: &x {{tenant: *x}}", "its tenant must be printable text"),
        (f"{DIGEST}: a\n\x00", "is not YAML"),
        ("[" * 5000, "is nested too deeply"),
        (f"{DIGEST}:", "expected the name of a tenant, or {tenant, class, classes}"),
        (f"{DIGEST}: {{class: urgent}}", "of which tenant is a must"),
        (f"{DIGEST}: {{tenant: a, key: {SECRET}}}", "expected the name of a tenant"),
        (f"{DIGEST}: {{tenant: 7}}", "its tenant must be printable text of at most 128 characters"),
        (f'{DIGEST}: ""', "its tenant must be printable text"),
        (f'{DIGEST}: " a"', "its tenant must be printable text"),
        (f"{DIGEST}: {'a' * 129}", "at most 128"),
        (f"{DIGEST}: {{tenant: a, classes: []}}", "its classes must be a list of at least one"),
        (f"{DIGEST}: {{tenant: a, classes: urgent}}", "its classes must be a list"),
        (f"{DIGEST}: {{tenant: a, classes: [vip]}}", "its classes must be among those of its tenant: default, urgent"),
        (f"{DIGEST}: {{tenant: team-b, classes: [urgent]}}", "among those of its tenant: default"),
        (f"{DIGEST}: {{tenant: a, classes: [[]]}}", "among those of its tenant"),
        (f"{DIGEST}: {{tenant: a, class: vip}}", "its class must be one that it may use: default, urgent"),
        (f"{DIGEST}: {{tenant: a, class: urgent, classes: [default]}}", "one that it may use: default"),
        (f"{DIGEST}: {{tenant: a, class: [urgent]}}", "its class must be one that it may use"),
    ],
)
@pytest.mark.slow
def test_what_may_not_stand_in_one(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    message = error_of(file)
    assert words in message
    if words.startswith(("its", "expected the name", "of which")):
        assert f"entry 1 ({DIGEST[:8]}...): " in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{{"{DIGEST}": "a",\n"{SECRET}"', "is not JSON: line 2"),
        (f'{{"{DIGEST}": "a", "{DIGEST}": "b"}}', "entry 2 of a mapping stands there twice"),
        (f'{{"{SECRET}": "a"}}', "entry 1 is no SHA-256"),
        ("1" * 5000, "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        (f"{DIGEST}: a", "is not JSON: line 1"),
    ],
)
def test_what_may_not_stand_in_one_of_json(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    assert words in error_of(file)


def test_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_bytes(b"\xff\xfe")
    assert error_of(file) == "is not UTF-8"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(64 * 1024**2 + 1)
    assert error_of(file) == "is larger than 64 MiB"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none.yaml") == "cannot be read: No such file or directory"
    assert error_of(tmp_path) == "is no regular file"
    os.mkfifo(tmp_path / "pipe")
    assert error_of(tmp_path / "pipe") == "is no regular file"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert error_of(tmp_path / "loop").startswith("cannot be read: ")


def test_no_key_is_in_a_repr(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"{sha256(SECRET)}: team-a\n")
    keys = keys_of(file)
    for thing in (keys, config_of(file), keys.lookup(sha256(SECRET))):
        assert SECRET not in repr(thing)


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet="{}[]:,-&*!?|>'\"# \na0", max_size=30).map(str.encode), st.booleans())
def test_no_text_of_a_file_raises_anything_else(data: bytes, as_json: bool) -> None:
    with contextlib.suppress(FaultError):
        KeyFile(Path("keys.yaml"), a_config()).entries(parsed(data, as_json=as_json))


# -- reading it again -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watching(keys: Keys) -> AsyncIterator[list[None]]:
    """Gives a list that grows with each broken file."""
    broken: list[None] = []
    task = asyncio.create_task(keys.watch(lambda: broken.append(None), every_s=0.005))
    try:
        yield broken
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while True:
        if wanted():
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def in_place(file: Path, text: str) -> None:
    """In one write, so that nobody sees half of it."""
    with file.open("r+") as opened:
        opened.write(text + "# longer than before\n")


def renamed(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))  # the same time, and perhaps the same size
    new.replace(file)


@pytest.mark.parametrize("write", [in_place, renamed])
async def test_a_changed_file_is_read_again(write: Callable[[Path, str], None], tmp_path: Path, logs: Logs) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"{DIGEST}: team-a\n")
    keys = Keys(config_of(file))
    found = keys.file(str(file))
    async with watching(keys) as broken:
        write(file, f"{OTHER}: team-c\n")
        await until(lambda: found.lookup(OTHER) is not None)
    assert found.lookup(DIGEST) is None
    assert not broken
    assert [(entry["event"], entry["keys"]) for entry in logs] == [("key_file_read", 1)]


async def test_the_changed_link_of_a_mounted_secret(tmp_path: Path) -> None:
    """As Kubernetes does it: keys.yaml -> ..data/keys.yaml, and ..data is a link that is replaced."""
    for version, digest in (("v1", DIGEST), ("v2", OTHER)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.yaml").write_text(f"{digest}: team-a\n")
    (tmp_path / "..data").symlink_to("v1")
    file = tmp_path / "keys.yaml"
    file.symlink_to("..data/keys.yaml")
    keys = Keys(config_of(file))
    async with watching(keys):
        (tmp_path / "next").symlink_to("v2")
        (tmp_path / "next").replace(tmp_path / "..data")
        await until(lambda: keys.file(str(file)).lookup(OTHER) is not None)


@pytest.mark.parametrize("how", ["broken", "gone", "empty"])
async def test_a_broken_one_leaves_the_keys_and_is_told_once(how: str, tmp_path: Path, logs: Logs) -> None:
    file, other = tmp_path / "keys.yaml", tmp_path / "other.yaml"
    file.write_text(f"{DIGEST}: team-a\n")
    other.write_text("{}")
    keys = Keys(config_of(file, other))
    found, turns = keys.file(str(file)), keys.file(str(other))
    async with watching(keys) as broken:
        if how == "gone":
            file.unlink()
        else:
            renamed(file, "" if how == "empty" else f"{SECRET}: team-a\n")
        await until(lambda: bool(broken))
        for count in range(1, 4):  # several rounds later
            renamed(other, json.dumps({sha256(str(n)): "x" for n in range(count)}))
            await until(lambda count=count: len(turns) == count)  # type: ignore[misc]
        assert len(broken) == 1
        assert found.lookup(DIGEST) == Key("team-a")
        new = tmp_path / "good"
        new.write_text(f"{OTHER}: team-c\n")
        new.replace(file)
        await until(lambda: found.lookup(OTHER) is not None)
    (refused,) = [entry for entry in logs if entry["event"] == "key_file_refused"]
    assert refused["keys"] == 1
    assert SECRET not in str(logs)


async def test_nothing_to_watch() -> None:
    async with asyncio.timeout(5):
        await Keys(a_config()).watch(lambda: None)


def test_a_file_that_is_written_to_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning may be of one version and its end of another. The next look finds it settled."""
    file = tmp_path / "keys.yaml"
    file.write_text(f"{DIGEST}: team-a\n")
    keys = keys_of(file)
    real, calls = os.fstat, []

    def written_to(descriptor: int) -> os.stat_result:
        calls.append(descriptor)
        if len(calls) == 2:  # after the reading
            file.write_text(f"{OTHER}: team-c\n{DIGEST}: team-a\n")
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", written_to)
        with pytest.raises(KeyFileError, match="was written to while it was read"):
            keys.load()
    assert len(keys) == 1
    assert keys.changed()
    keys.load()
    assert len(keys) == 2
    assert not keys.changed()
