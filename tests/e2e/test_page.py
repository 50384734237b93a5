"""The live page as people see it: real schedulers behind a real port, in Chromium; at the end with the whole stack."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from page_case import DESKTOP, PHONE, WITHIN_S, Watched, chromium, page_of
from playwright.async_api import Browser
from rig import FAST_ENGINE, chat, running, until

from extproc import live

from live_case import Place, Scene, a_config, serving, worked  # isort: skip  # found through page_case

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

VIEWS = [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)]
NAMES = ["light-desktop", "dark-desktop", "light-phone", "dark-phone"]
MARKUP = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
HOSTILE = [
    MARKUP,
    "\"quotes' &amp; <b>bold</b>",
    "line\nbreak\ttab",
    "x" * 10_000,
    "👩‍💻🚀🚀",
    "\u202egnirts evil",
    "\x1b[31mred\x07",
    "مرحبا بالعالم",
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def busy() -> AsyncIterator[Place]:
    """Four engines under load for some minutes, one of which is down by now."""
    scene = Scene(a_config())
    async with serving(scene, began=time.time() - 160) as place:
        worked(scene, place, 160)
        # which ends in a quiet part: more has come
        for number in range(120):
            scene.arrive("batch/embeddings" if number % 2 else "batch/evals", "batch")
        scene.down[scene.engines[2]] = "refused: nothing listens at 10.0.0.3:8000"
        scene.step({}, 0)
        place.refresh()
        yield place


def held(count: int) -> str:
    return f"document.querySelector('.summary').textContent.startsWith('{count:,} held')"


# -- what it shows ------------------------------------------------------------------------------------


async def test_at_rest(browser: Browser) -> None:
    async with serving(Scene(a_config())) as place, page_of(browser, place.url) as page:
        assert await page.text(".waiting caption") == "Nothing waits."
        assert await page.texts(".classes .holds .why") == ["Nothing waits."] * 3
        assert await page.texts(".endpoints .stance") == ["● fresh"] * 4
        assert await page.text(".summary") == "0 held · 0 of 32 slots in flight · 0 released/s (30 s average)"
        assert (await page.text("#facts")).split("\n")[:4] == ["State", "serving", "Held", "0"]
        assert await page.page.title() == "Fairlane"
        assert not await page.page.locator("#connection").inner_text()
        await page.fits()
        await page.picture("at-rest")
        page.clean()


async def test_under_load(browser: Browser, busy: Place) -> None:
    scheduler = busy.scenes[0].scheduler
    async with page_of(browser, busy.url) as page:
        assert (await page.text(".summary")).startswith(f"{scheduler.queued} held · ")
        batch = await page.texts(".classes tbody tr:nth-child(3) > *")
        assert batch[0].strip() == "batch rank 2"
        assert batch[1] == str(scheduler.queued)
        flows = await page.texts(".waiting tbody th")
        assert set(flows) >= {"batch/embeddings", "batch/evals"}
        # a chart of each kind has lines, and says in words what they show
        assert await page.page.locator(".plot path.line").count() >= 6
        labels = [await plot.get_attribute("aria-label") for plot in await page.page.locator(".plot").all()]
        assert [str(label).split(",")[0] for label in labels] == ["Held", "In flight", "Released/s", "Wait"]
        # what the bar of a window shows is what it says
        bar = page.page.locator(".endpoints tbody tr").nth(1)
        words = await bar.locator(".bar-words").inner_text()
        ours = await bar.locator("rect.ours").get_attribute("width")
        windows = scheduler.windows.values()
        views = [each.view(busy.scenes[0].now, scheduler.q_max) for each in windows]
        scale = max(max(each.limit, each.in_flight + each.foreign, each.capacity) for each in views)
        assert words.startswith(f"{views[0].in_flight} ours of ")
        assert ours == f"{98 * views[0].in_flight / scale:.2f}%"
        await page.picture("under-load")
        page.clean()


async def test_an_engine_that_is_down_stands_first_and_says_why(browser: Browser, busy: Place) -> None:
    async with page_of(browser, busy.url) as page:
        first = page.page.locator(".endpoints tbody tr").first
        assert "10.0.0.3:8000" in await first.inner_text()
        assert await first.locator(".stance").inner_text() == "✕ down"
        assert await first.locator(".error").inner_text() == "refused: nothing listens at 10.0.0.3:8000"
        assert await page.texts(".tags .tag") == ["1 of 4 endpoints down"]
        await page.picture("engine-down")
        page.clean()


async def test_a_thousand_tenants_and_fifty_endpoints(browser: Browser) -> None:
    scene = Scene(a_config(), engines=50)
    for number in range(1500):
        scene.arrive(f"tenant-{number:04}", ("interactive", "batch")[number % 2])
    waiting = scene.scheduler.queued
    assert waiting > 1000 - 1
    async with serving(scene) as place, page_of(browser, place.url) as page:
        await page.until(held(waiting))
        assert await page.page.locator(".waiting tbody").count() == 20
        assert await page.text(".waiting caption") == f"Who waits and why: the 20 longest of {waiting:,} flows"
        assert await page.page.locator(".endpoints tbody tr").count() == 8
        await page.page.get_by_role("button", name="Show all 50 endpoints").click()
        assert await page.page.locator(".endpoints tbody tr").count() == 50
        await page.until_updated()
        assert await page.page.locator(".endpoints tbody tr").count() == 50
        await page.page.get_by_role("button", name="Show the first 8 endpoints").click()
        assert await page.page.locator(".endpoints tbody tr").count() == 8
        await page.fits()
        await page.picture("thousand-tenants")
        page.clean()


# -- what it does -------------------------------------------------------------------------------------


async def test_it_follows_what_happens(browser: Browser) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    async with serving(scene) as place, page_of(browser, place.url) as page:
        for _ in range(3):
            scene.arrive()
        await page.until(held(2))
        assert await page.page.title() == "2 held – Fairlane"
        scene.end(3)
        await page.until(held(0))
        scene.end(3)
        await page.until("document.querySelector('.waiting caption').textContent === 'Nothing waits.'")
        page.clean()


async def test_the_keyboard_opens_an_explanation_which_stays(browser: Browser) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    for tenant in ("first", "one", "two", "three"):
        scene.arrive(tenant)
        scene.now += 1.0
    async with serving(scene) as place, page_of(browser, place.url) as page:
        for _ in range(40):
            await page.page.keyboard.press("Tab")
            if (
                await page.page.evaluate("document.activeElement.getAttribute('aria-label')")
                == "Explain two, interactive"
            ):
                break
        else:
            raise AssertionError("the button cannot be reached")
        await page.page.keyboard.press("Enter")
        await page.until("document.activeElement.getAttribute('aria-expanded') === 'true'")
        await page.until("document.querySelector('.told .sentence') !== null")
        assert "Tenant 'one' has had less service" in await page.text(".told .sentence")
        assert "Goes on when" in await page.text(".detail:not([hidden]) .told")
        # others go, its row moves up, and then none of it waits: it stays open, and keeps the focus
        scene.end()
        await page.until(held(2))
        await page.until("document.querySelector('.waiting tbody th').textContent === 'two'")
        scene.end()
        await page.until(held(1))
        focus = "document.activeElement.getAttribute('aria-label') === 'Explain two, interactive'"
        assert await page.page.evaluate(focus)
        row = page.page.locator("tbody", has=page.page.get_by_role("button", name="Explain two, interactive"))
        assert "not among those that wait for longest any more" in await row.inner_text()
        await page.page.keyboard.press("Space")
        await page.until("document.querySelectorAll('.waiting tbody').length === 1")  # it was kept for that only
        page.clean()


async def test_a_pause_holds_the_figures(browser: Browser) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    async with serving(scene) as place, page_of(browser, place.url) as page:
        await page.page.get_by_role("button", name="Pause").click()
        scene.arrive()
        scene.arrive()
        assert place.http is not None
        async with aiohttp.ClientSession() as session, session.get(f"{place.url}/events") as answer:
            async with asyncio.timeout(20):
                while b'"held":1' not in await answer.content.readline():
                    pass
        assert (await page.text(".summary")).startswith("0 held")
        assert (await page.text(".clock")).startswith("Paused at ")
        await page.page.get_by_role("button", name="Go on").click()
        await page.until(held(1))
        assert (await page.text(".clock")).startswith("As of ")
        page.clean()


async def test_the_scheme_is_chosen_and_remembered(browser: Browser, busy: Place) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    async with page_of(browser, busy.url) as page:
        light = await page.page.evaluate(ground)
        await page.page.get_by_role("button", name="Dark").click()
        dark = await page.page.evaluate(ground)
        assert light != dark
        await page.open()
        assert await page.page.evaluate(ground) == dark
        page.clean()


async def test_the_service_goes_and_comes_back(browser: Browser) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    scene.arrive()
    scene.arrive()
    async with serving(scene) as place, page_of(browser, place.url) as page:
        await page.until(held(1))
        await place.stop()
        await page.until("document.body.classList.contains('old')")
        banner = await page.text("#connection")
        assert banner.startswith("No connection to Fairlane since ")
        assert "The figures are those of then." in banner
        assert (await page.text(".clock")).startswith("Old: as of ")
        await page.picture("server-gone")
        await page.accessible()
        scene.end()
        await place.start()
        await page.until("!document.body.classList.contains('old')")
        await page.until(held(0))
        assert await page.text("#connection") == ""
        page.clean(lost=True)


async def test_a_page_that_nobody_looks_at_has_no_stream(browser: Browser) -> None:
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    told = "document.dispatchEvent(new Event('visibilitychange'))"
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    async with serving(scene) as place, page_of(browser, place.url) as page:
        http = place.http
        assert http is not None
        await page.page.evaluate(hide % "true" + told)
        await until(_value(lambda: http.watchers), lambda count: count == 0, "it has left")
        scene.arrive()
        scene.arrive()
        await page.page.evaluate(hide % "false" + told)
        await page.until(held(1))
        await page.until("!document.body.classList.contains('old')")
        page.clean()


def _value(get: Callable[[], int]) -> Callable[[], Awaitable[int]]:
    async def asked() -> int:
        return get()

    return asked


async def test_a_service_that_is_silent_is_not_shown_as_fresh(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(a_config())
    async with serving(scene) as place, page_of(browser, place.url) as page:
        go_on, snapshot = asyncio.Event(), place.live.snapshot

        async def hanging() -> dict[str, object]:
            await go_on.wait()
            return await snapshot()

        monkeypatch.setattr(place.live, "snapshot", hanging)
        await page.until("document.body.classList.contains('old')")
        assert (await page.text("#connection")).startswith("Fairlane is silent since ")
        go_on.set()
        await page.until("!document.body.classList.contains('old')")
        page.clean()


async def test_what_it_cannot_read_is_not_shown_as_live(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    async with serving(scene) as place, page_of(browser, place.url) as page:
        await page.until_updated()
        page.clean()
        snapshot = place.live.snapshot

        async def of_another_kind() -> dict[str, object]:
            return {**await snapshot(), "pools": [{"name": "llama-70b"}]}

        with monkeypatch.context() as patched:
            patched.setattr(place.live, "snapshot", of_another_kind)
            await page.until("document.body.classList.contains('old')")
            assert (await page.text("#connection")).startswith("What Fairlane tells cannot be read by this page since ")
            clock = await page.text(".clock")
            assert clock.startswith("Old: as of ")
            told = len(page.faults)
            while len(page.faults) < told + 2:  # more of it has come
                await page.until("true")
            assert await page.text(".clock") == clock
            assert await page.text("#connection")
        scene.arrive()
        scene.arrive()
        await page.until(held(1))
        await page.until("!document.body.classList.contains('old')")
        assert await page.text("#connection") == ""
        # the same of what the charts show
        history = place.live.history
        with monkeypatch.context() as patched:
            patched.setattr(
                place.live, "history", lambda: {**history(), "pools": {"llama-70b": {"t": [], "held": None}}}
            )
            await page.until("document.body.classList.contains('old')")
        assert page.strangers == []


async def test_the_page_of_another_version_is_loaded_once(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Scene(a_config())) as place, page_of(browser, place.url) as page:
        first = await page.text("#version")
        shows = "document.getElementById('version').textContent === '%s'"
        for version in ("99.0", first):  # two that answer in turn
            async with page.page.expect_event("load", timeout=1000 * WITHIN_S):
                monkeypatch.setattr(live, "__version__", version)
            await page.until(shows % version)
        await page.page.evaluate("window.before = true")
        monkeypatch.setattr(live, "__version__", "99.0")
        await page.until(shows % "99.0")
        await page.until_updated()
        assert await page.page.evaluate("window.before")
        assert not await page.page.evaluate("document.body.classList.contains('old')")
        page.clean()


async def test_a_pool_that_observes_says_what_would_be(browser: Browser) -> None:
    scene = Scene(a_config(mode="observe", controller="fixed", fixed=1, overtake=0), engines=1)
    for tenant in ("a", "b", "c"):
        scene.arrive(tenant)
    async with serving(scene) as place, page_of(browser, place.url) as page:
        assert (await page.text(".summary")).startswith("2 would be held · 1 of 1 slots would be in flight")
        assert (await page.text("#facts")).split("\n")[2:4] == ["Held", "0"]
        assert await page.text(".endpoints caption") == "Endpoints (1), as they would be"
        assert await page.text(".classes caption") == "Classes, as they would be: nothing is held"
        assert await page.text(".waiting caption") == "Who would wait and why (2 flows)"
        await page.accessible()
        await page.fits()
        page.clean()


async def test_too_many_pages_is_said(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Scene(a_config())) as place:
        assert place.http is not None
        feed = place.http._feed
        assert feed is not None
        async with page_of(browser, place.url) as first:
            monkeypatch.setattr(feed, "_most", 1)
            made = await browser.new_context()
            try:
                second = Watched(await made.new_page(), place.url)
                await second.page.goto(place.url)
                await second.until("document.getElementById('connection').textContent.includes('as many live pages')")
            finally:
                await made.close()
            first.clean()


# -- whatever clients are called ----------------------------------------------------------------------


@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_names_are_texts(browser: Browser, view: dict[str, int]) -> None:
    scene = Scene(a_config(controller="fixed", fixed=1, overtake=0), engines=1)
    scene.arrive("first")
    for name in HOSTILE:
        scene.arrive(name, "batch")
    async with serving(scene) as place, page_of(browser, place.url, viewport=view) as page:
        names = await page.texts(".waiting tbody th bdi")
        assert len(names) == len(HOSTILE)
        assert MARKUP in names
        assert {"line\\nbreak\\ttab", "\\u202egnirts evil", "\\x1b[31mred\\x07", "x" * 127 + "…"} <= set(names)
        for button in await page.page.get_by_role("button", name="Explain").all():
            await button.click()
        await page.until(f"document.querySelectorAll('.told .sentence').length === {len(HOSTILE)}")
        await page.until_updated()
        assert await page.page.evaluate("window.hit") is None
        assert await page.page.locator("main script, main img, main b b").count() == 0
        await page.fits()
        await page.accessible()
        page.clean()


# -- for everybody ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "view"), VIEWS, ids=NAMES)
async def test_it_can_be_used_by_all(
    browser: Browser, busy: Place, scheme: str, view: dict[str, int], request: pytest.FixtureRequest
) -> None:
    async with page_of(browser, busy.url, color_scheme=scheme, viewport=view, reduced_motion="reduce") as page:
        await page.page.locator(".waiting button").first.click()
        await page.until("document.querySelector('.told .sentence') !== null")
        await page.page.locator(".classes button.plain:visible").first.click()
        await page.picture(f"explained-{request.node.callspec.id}")
        await page.accessible()
        await page.fits()
        # tables stay tables, also where their rows are laid out in another way
        assert await page.page.get_by_role("table", name="Classes").get_by_role("row").count() >= 3
        assert await page.page.get_by_role("heading", name="llama-70b").count() == 1
        page.clean()


# -- the whole stack ----------------------------------------------------------------------------------


async def test_the_real_service_under_load(browser: Browser, tmp_path: Path) -> None:
    window = {"controller": "fixed", "fixed": 2, "overtake": 0}
    async with running(tmp_path, engines=2, engine_args=FAST_ENGINE, pool={"window": window}) as rig:
        async with rig.hung_engines():
            tasks = [rig.start(chat(), tenant=f"team-{number % 3}") for number in range(10)]
            await rig.until_held(6)
            async with page_of(browser, f"http://{rig.service_at}") as page:
                await page.until(held(6))
                assert set(await page.texts(".waiting tbody th")) <= {"team-0", "team-1", "team-2"}
                assert await page.texts(".endpoints tbody tr .bar-words") == [
                    "2 ours of 2, free slots 0 (R 2, q 3)",
                    "2 ours of 2, free slots 0 (R 2, q 3)",
                ]
                await page.page.locator(".waiting button").first.click()
                await page.until("document.querySelector('.told .sentence') !== null")
                # a hundred more, who read; and requests that go on
                async with contextlib.AsyncExitStack() as stack:
                    url = f"http://{rig.service_at}/events"
                    readers = [await stack.enter_async_context(rig.http.get(url)) for _ in range(100)]
                    assert {reader.status for reader in readers} == {200}
                    await asyncio.gather(*(_snapshots(reader, 3) for reader in readers))
                    assert await rig.metric("fairlane_page_watchers") == 101
                page.clean()
        answers = await asyncio.gather(*tasks)
        assert {answer.status for answer in answers} == {200}
        await until(lambda: rig.metric("fairlane_page_watchers"), lambda count: count == 0, "all pages have gone")
        await rig.books_closed()


async def _snapshots(reader: aiohttp.ClientResponse, count: int) -> None:
    async with asyncio.timeout(30):
        while count:
            count -= (await reader.content.readline()).startswith(b"event: snapshot")
