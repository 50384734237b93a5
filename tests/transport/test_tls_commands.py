"""What the commands say of TLS in fairlane.yaml."""

from __future__ import annotations

import datetime
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from pki import Authority, Pair, replace, written

from extproc.cli.check_config import check_config
from extproc.cli.stack import Addresses
from extproc.cli.up import _of_file
from extproc.config.faults import ConfigError
from extproc.config.load import from_data
from extproc.config.tls import Tls

OURS = Authority()
POOL = {"name": "a", "models": ["*"], "endpoints": ["127.0.0.1:8001"]}


def a_file(folder: Path, **listen: Tls | str) -> Path:
    file = folder / "f.yaml"
    given = {key: each if isinstance(each, str) else each.model_dump() for key, each in listen.items()}
    file.write_text(yaml.safe_dump({"pools": [POOL], "listen": given}))
    return file


def check(file: Path) -> Result:
    return CliRunner().invoke(check_config, [str(file)])


@pytest.mark.parametrize("key", ["ext_proc_tls", "http_tls"])
def test_the_files_are_read(key: str, tmp_path: Path) -> None:
    file = a_file(tmp_path, **{key: written(tmp_path, OURS.issue(), OURS.pem)})
    assert (check(file).exit_code, check(file).stderr) == (0, "")
    replace(tmp_path / "ca.crt", b"")
    result = check(file)
    assert result.exit_code == 2
    assert f"listen.{key}.client_ca: {tmp_path}/ca.crt: holds no CA certificate" in result.stderr


def test_one_that_has_expired_is_warned_of(tmp_path: Path) -> None:
    over: Pair = OURS.issue(lasts=datetime.timedelta(hours=-1))
    result = check(a_file(tmp_path, http_tls=written(tmp_path, over)))
    assert result.exit_code == 0
    assert "warning: listen.http_tls.certificate: has expired" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("asks", [True, False])
def test_the_page_is_for_everybody_unless_clients_show_a_certificate(asks: bool, tmp_path: Path) -> None:
    tls = written(tmp_path, OURS.issue(), OURS.pem if asks else None)
    result = check(a_file(tmp_path, http="0.0.0.0:9090", http_tls=tls))
    assert result.exit_code == 0
    assert ("telemetry.page" in result.stderr) is not asks


@pytest.mark.parametrize("key", ["ext_proc_tls", "http_tls"])
def test_up_speaks_plain_text_and_says_so(key: str, tmp_path: Path) -> None:
    file = a_file(tmp_path, **{key: written(tmp_path, OURS.issue())})
    with pytest.raises(click.ClickException, match=rf"listen\.{key} is set"):
        _of_file(file, Addresses(), simulate=True)


@pytest.mark.parametrize("tls", [{"certificate": "c"}, {"certificate": "", "key": "k"}, {"key": "k"}, "on", []])
def test_sections_that_say_nothing(tls: object) -> None:
    with pytest.raises(ConfigError, match=r"listen\.ext_proc_tls"):
        from_data({"pools": [POOL], "listen": {"ext_proc_tls": tls}})
