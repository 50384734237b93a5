"""A watched file: how it may change, and what may be wrong with it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from endpoints_case import Follower, followed, until
from structlog.testing import capture_logs

from extproc.config.endpoints import File
from extproc.engines.endpoints.file import FileSource

POLL_S = 0.01
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def source(path: Path, cluster: str | None = None, poll_s: float = POLL_S) -> FileSource:
    return FileSource(File(path=str(path), cluster=cluster), "llama", time.monotonic, poll_s)


def listed(*addresses: str) -> str:
    return json.dumps({"endpoints": addresses})


def put(path: Path, text: str) -> None:
    """As it should be done: a new file, renamed."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)


def write(path: Path, text: str) -> None:
    """In place."""
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


def allow(path: Path, mode: int) -> None:
    path.chmod(mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines.yaml"


async def test_a_file_that_is_renamed_to_its_place(path: Path) -> None:
    put(path, listed(A, B))
    async with followed(source(path)) as follower:
        await follower.until(A, B)
        put(path, listed(B, C))
        await follower.until(B, C)
        put(path, listed())
        await follower.until()


async def test_a_file_that_is_written_in_place(path: Path) -> None:
    write(path, listed(A))
    async with followed(source(path)) as follower:
        await follower.until(A)
        write(path, listed(A, B))
        await follower.until(A, B)


async def test_the_changed_link_of_a_config_map(tmp_path: Path) -> None:
    # as the kubelet does it: engines.yaml -> ..data/engines.yaml, ..data -> a directory, which is exchanged
    def version(name: str, *addresses: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines.yaml").write_text(listed(*addresses))
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    version("..1", A)
    path = tmp_path / "engines.yaml"
    path.symlink_to("..data/engines.yaml")
    async with followed(source(path)) as follower:
        await follower.until(A)
        version("..2", B)
        await follower.until(B)


async def test_the_same_content_again_changes_nothing(path: Path) -> None:
    put(path, listed(A))
    async with followed(source(path)) as follower:
        await follower.until(A)
        put(path, listed(A, A))
        known = follower.source.last_success_at or 0
        await until(lambda: (follower.source.last_success_at or 0) > known)
        put(path, listed(A, B))
        await follower.until(A, B)
        assert len(follower.sets) == 2


async def test_a_file_in_the_middle_of_being_written_is_left_alone(path: Path) -> None:
    put(path, listed(A, B, C))
    follower_source = source(path)
    follower = Follower(follower_source)
    follower_source._on_change = follower.sets.append
    await follower_source._round()
    # half a list that is a good list: a program writes line by line
    with path.open("w") as file:
        file.write(f"- {A}\n")
        file.flush()
        await follower_source._round()
        assert follower.addresses == [A, B, C]
        file.write(f"- {C}\n")
        file.flush()
        await follower_source._round()
        assert follower.addresses == [A, B, C]
    await follower_source._round()
    assert follower.addresses == [A, C]


async def test_a_file_that_is_never_still_is_read_all_the_same(path: Path) -> None:
    put(path, listed(A))
    restless = source(path)
    follower = Follower(restless)
    restless._on_change = follower.sets.append
    await restless._round()
    for number in range(6):
        write(path, listed(A, *[B] * number, C))
        await restless._round()
    assert follower.addresses == [A, B, C]


@pytest.mark.parametrize("text", ["", '{"endpoints": ["10.0', "endpoints: [vllm-0:8000]", "[" * 5000, "\x00"])
async def test_what_is_broken_changes_nothing_and_is_said_once(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, listed(A))
    with capture_logs() as logs:
        watched = source(path)
        async with followed(watched) as follower:
            await follower.until(A)
            put(path, text)
            message = await follower.until_failed(str(path))
            known = follower.source.last_success_at
            looks: list[int] = []
            look = watched._look
            monkeypatch.setattr(watched, "_look", lambda: (looks.append(1), look())[1])
            await until(lambda: len(looks) >= 3, "more looks at what is broken")
            assert follower.source.failures == 1
            assert follower.source.last_success_at == known
            put(path, listed(B))
            await follower.until(B)
            await follower.until_well()
    told = [each for each in logs if each["log_level"] == "warning"]
    assert [(each["cause"], each["note"]) for each in told] == [(message, "the endpoints stay as they were")]


async def test_what_breaks_again_is_said_a_minute_later(path: Path) -> None:
    now = 0.0
    watched = FileSource(File(path=str(path)), "llama", lambda: now, POLL_S)
    with capture_logs() as logs:
        async with followed(watched) as follower:

            def told() -> list[str]:
                return [each["cause"] for each in logs if each["log_level"] == "warning"]

            put(path, "{")
            await follower.until_failed("is neither YAML nor JSON")
            put(path, listed(A))
            await follower.until_well()
            put(path, "hello")
            await follower.until_failed("found text")
            assert len(told()) == 1
            now = 60.0
            await until(lambda: len(told()) == 2)
            assert told()[1] == follower.source.last_error


async def test_a_file_that_goes_changes_nothing(path: Path) -> None:
    put(path, listed(A))
    async with followed(source(path)) as follower:
        await follower.until(A)
        remove(path)
        await follower.until_failed("cannot be read: No such file or directory; it is looked for each second")
        put(path, listed(B))
        await follower.until(B)
        assert len(follower.sets) == 2


async def test_a_file_that_is_not_there_yet_is_waited_for(path: Path) -> None:
    with capture_logs() as logs:
        async with followed(source(path)) as follower:
            await follower.until_failed("No such file or directory")
            assert follower.sets == []
            assert follower.source.last_success_at is None
            write(path, listed(A))
            await follower.until(A)
    assert [each["note"] for each in logs if each["log_level"] == "warning"] == [
        "the pool has no endpoints until this is mended"
    ]


async def test_a_directory(tmp_path: Path) -> None:
    async with followed(source(tmp_path)) as follower:
        await follower.until_failed("is a directory or another thing that is no file: name the file")


async def test_a_pipe_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    async with followed(source(path)) as follower:
        await follower.until_failed("is a directory or another thing that is no file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read(path: Path) -> None:
    put(path, listed(A))
    allow(path, 0)
    async with followed(source(path)) as follower:
        await follower.until_failed("Permission denied")
        allow(path, 0o600)
        await follower.until(A)


async def test_a_path_that_is_none() -> None:
    async with followed(source(Path("a\0b"))) as follower:
        await follower.until_failed("cannot be read")


async def test_ten_megabytes(path: Path) -> None:
    put(path, listed(A))
    async with followed(source(path)) as follower:
        await follower.until(A)
        put(path, f"- {A}\n" * (10 * 1024**2 // 16))
        await follower.until_failed("is larger than 4 MiB: is it the right file?")
        put(path, listed(B))
        await follower.until(B)


async def test_envoys_file_of_one_cluster(path: Path) -> None:
    def resource(cluster: str, ip: str) -> dict[str, object]:
        socket_address = {"address": ip, "port_value": 8000}
        return {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": cluster,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": socket_address}}}]}],
        }

    put(path, json.dumps({"resources": [resource("qwen", "10.0.0.2")]}))
    async with followed(source(path, "qwen")) as follower:
        await follower.until(B)
        put(path, json.dumps({"resources": [resource("llama", "10.0.0.1")]}))
        await follower.until_failed("is an assignment of the cluster llama, and endpoints.file.cluster is qwen")
        assert follower.addresses == [B]
