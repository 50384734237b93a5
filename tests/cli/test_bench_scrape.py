"""`fairlane bench scrape`: its page, its engine, its verdicts and exit codes; and its measures, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import bench_scrape
from extproc.cli.bench_scrape import Reading, Scraping, checks_of
from extproc.cli.main import main
from extproc.cli.scrape_pages import Pages, filtered, vllm_page
from extproc.engines.dialects import VLLM
from extproc.engines.exposition import parse


def test_the_page_that_is_made_is_one_of_vllm_and_as_long_as_asked() -> None:
    page = vllm_page(60_000)
    assert 60_000 <= len(page) < 62_000
    reading = VLLM.read(parse(page, VLLM.sample_names), 0.0)
    part = filtered(page, sorted(VLLM.sample_names))
    assert len(part) < 2_000
    assert VLLM.read(parse(part, VLLM.sample_names), 0.0) == reading


def test_the_engine_answers_as_vllm_does() -> None:
    page = b'# HELP a A.\na 1\na_sum 2\nb{x="1"} 3\n'
    target = b"/metrics/?name[]=a&name%5B%5D=b"

    def body(pages: Pages, target: bytes) -> bytes:
        head, _, body = pages.answer(target).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        return body

    still = Pages(page, moves=False, filters=True)
    assert body(still, b"/metrics") == page
    assert body(still, target) == b'a 1\nb{x="1"} 3\n'
    assert body(Pages(page, moves=False, filters=False), target) == b""
    moving = Pages(page, moves=True, filters=True)
    assert [body(moving, b"/metrics") for _ in range(2)] == [b"# 1\n" + page, b"# 2\n" + page]


def reading(parse_ms: float) -> Reading:
    return Reading("full page", 60_000, parse_ms, 2 * parse_ms, 10.0, 10.0 / parse_ms)


def idle(percent: float) -> Scraping:
    return Scraping("idle, filtered page", 100, 4.0, 25.0, 0.4, percent)


def test_bounds() -> None:
    assert [check.ok for check in checks_of([reading(1.0)], [idle(2.0)])] == [True, True]
    assert [check.ok for check in checks_of([reading(1.1)], [idle(2.1)])] == [False, False]


@pytest.mark.slow
async def test_a_small_measure() -> None:
    async with bench_scrape._engine(vllm_page(1_000), ("moves", "filter")) as url:
        found = await bench_scrape._scraping("busy", url, 3, 0.05, True, rounds=3, round_s=0.2)
    assert found.scrapes_per_s > 0 and found.each_ms > 0 and found.percent > 0


@pytest.mark.slow
async def test_no_page_is_an_error_and_no_figure() -> None:
    async with bench_scrape._engine(b"up 1\n", ("still", "filter")) as url:
        with pytest.raises(RuntimeError, match="busy: no page came; vllm:num_requests_running is not on the page"):
            await bench_scrape._scraping("busy", url, 2, 0.02, True, rounds=1, round_s=0.2)


@pytest.mark.slow
def test_what_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: Any) -> list[Scraping]:
        return [idle(3.0)]

    monkeypatch.setattr(bench_scrape, "_scrapings", measured)
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(main, ["bench", "scrape", "--quick", "--json", str(file)])
    assert result.exit_code == 1
    assert "FALLS SHORT" in result.output
    data = json.loads(file.read_text())
    assert [each["what"] for each in data["readings"]] == ["full page", "filtered page"]
    assert data["checks"][1]["ok"] is False


def test_a_page_that_cannot_be_read(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text("<html></html>")
    result = CliRunner().invoke(main, ["bench", "scrape", "--page", str(page)])
    assert result.exit_code == 1
    assert "cannot be measured" in result.output and "HTML" in result.output
