"""The live page in a real Chromium, and what it must never do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, async_playwright

sys.path.append(str(Path(__file__).resolve().parent.parent / "live"))  # the scenes

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
WITHIN_S = 20

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def chromium_path() -> str:
    """Skips the test where there is no Chromium, but for continuous integration."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        words = "needs Chromium on the PATH (Debian: apt install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return found


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """It ends with the context, whatever happens."""
    path = chromium_path()
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, args=_FLAGS, headless=True)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """One page, and all that it complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.strangers: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.strangers.append(request.url)

    async def open(self) -> None:
        await self.page.goto(self.url)
        await self.page.wait_for_selector("section.pool", timeout=1000 * WITHIN_S)

    async def until(self, condition: str) -> None:
        """`condition`: JavaScript. (`wait_for_function` evaluates a text inside the page, which its policy forbids.)"""
        deadline = time.monotonic() + WITHIN_S
        while not await self._holds(condition):
            if time.monotonic() > deadline:
                text = await self.page.inner_text("body")
                raise AssertionError(f"not within {WITHIN_S} s: {condition}; the page says:\n{text[:3000]}")
            await asyncio.sleep(0.02)

    async def _holds(self, condition: str) -> bool:
        try:
            return bool(await self.page.evaluate(condition))
        except Error as error:
            if "context was destroyed" not in error.message:
                raise
            return False  # the page is being loaded anew

    async def until_updated(self) -> None:
        """What came after this call is shown."""
        await self.page.evaluate("window.before = document.getElementById('clock').textContent")
        await self.until("document.getElementById('clock').textContent !== window.before")

    async def text(self, selector: str) -> str:
        return await self.page.inner_text(selector)

    async def texts(self, selector: str) -> list[str]:
        return await self.page.locator(selector).all_inner_texts()

    async def fits(self) -> None:
        """The page as such does not scroll sideways, and no cell hangs over its table."""
        wide, view = await self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= view, (wide, view)

    async def picture(self, name: str) -> None:
        """A screenshot for people, where FAIRLANE_PICTURES names a folder."""
        folder = os.environ.get("FAIRLANE_PICTURES")
        if folder:
            await self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    async def accessible(self) -> None:
        results = await Axe().run(self.page)
        assert results.violations_count == 0, results.generate_report()

    def clean(self, *, lost: bool = False) -> None:
        """`lost`: the service was away for a while, which a browser complains of."""
        faults = [each for each in self.faults if not (lost and "net::ERR_" in each)]
        assert faults == []
        assert self.strangers == []


@contextlib.asynccontextmanager
async def page_of(browser: Browser, url: str, **context: Any) -> AsyncIterator[Watched]:
    """An opened page; at its end it must have been clean, unless it failed before."""
    options: dict[str, Any] = {"viewport": DESKTOP, "color_scheme": "light", **context}
    made = await browser.new_context(**options)
    try:
        watched = Watched(await made.new_page(), url)
        await watched.open()
        yield watched
    finally:
        await made.close()
