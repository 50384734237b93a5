"""The command: what it prints, how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from extproc.cli.sim import sim

pytestmark = pytest.mark.slow


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(sim, ["engine", *arguments])
    return result.exit_code, result.output


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("--port", str(port)) == (1, f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-cache-tokens", "1000"], "max_model_len (32768) is more than the KV cache holds"),
        (["--max-num-batched-tokens", "4"], "max_num_batched_tokens must be at least max_num_seqs (8)"),
        (["--step-base-ms", "0", "--step-per-seq-ms", "0"], "a decoding step must take time"),
        (["--scheduling-policy", "lottery"], "is not one of"),
        (["--max-num-seqs", "0"], "not in the range"),
    ],
)
def test_options_are_checked(arguments: list[str], message: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert message in output


def test_it_serves_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-c", "from extproc.cli.sim import sim; sim()", "engine", "--port", "0", "--model", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(
                r"simulated engine m on (http://127\.0\.0\.1:\d+) \(8 slots, fcfs, 1048576 KV tokens\)$", line
            )
            assert found
            body = b'{"prompt":"a","max_tokens":30000,"stream":true}'
            request = urllib.request.Request(f"{found[1]}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=5) as answer:
                assert answer.readline().startswith(b"data: {")  # under way, and far from its end
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=3) == 0
            rest, errors = process.communicate()
            assert (rest, errors) == ("", "")
        finally:
            process.kill()
