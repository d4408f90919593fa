"""What a browser makes of the report: loading, keyboard, themes, narrow windows, names that are not markup."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fidtool.report.html import html_report
from support.processes import PATIENCE
from support.report_samples import NASTY, bare, rich, write_image

for _package in ("jinja2", "matplotlib"):
    pytest.importorskip(_package, reason="needs fidtool[report]")
_sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which comes with the extra 'test'")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="needs Chromium on the PATH")

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_PHONE, _DESK = (360, 740), (1280, 900)
_TEXTS = (
    "h1, h2, h3, p, li, td, th, caption, a, summary, figcaption, .remark, .tag, .alert, .about, .lost, pre code, dt, "
    "dd, .figure, .chart svg text"
)
_CONTRASTS = """selector => {
  const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = rgb(colour).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((rgb(colour)[3] ?? 1) === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll(selector)].filter(each => each.getClientRects().length).map(each => {
    const style = getComputedStyle(each);
    const [a, b] = [light(each.closest('svg') ? style.fill : style.color), light(ground(each))];
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), each.tagName + '.' + each.className];
  });
}"""
_FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  return {
    name: at.tagName + ' ' + (at.getAttribute('href') ?? at.getAttribute('aria-label') ?? at.textContent.trim()),
    body: at === document.body,
    outline: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,
    seen: at.getBoundingClientRect().bottom > 0 && at.getBoundingClientRect().top < innerHeight,
  };
}"""


@dataclass
class Opened:
    """A page in a window, and what happened while it was loaded."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests here."""
    with _sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_CHROMIUM, args=_FLAGS, timeout=1000 * PATIENCE)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of two FAKEs with everything, awful names and a lost image; and a page of one."""
    folder = tmp_path_factory.mktemp("pages")
    names = [NASTY.replace("/", "|") + ".png", os.fsdecode(b"no text \xff.png"), "plain.png"]
    images = [write_image(folder, name, (32, 32), seed) for seed, name in enumerate(names)]
    images.append(str(folder / "gone.png"))
    pages = {
        "several": html_report(*rich(bare(f"runs/{NASTY}/step1", "runs/step2" + "0" * 90), images)),
        "single": html_report(*rich(bare("runs/fake"), images)),
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


def opened(browser: Browser, file: Path, size: tuple[int, int] = _DESK, **settings: Any) -> Opened:
    """Opens a page; nothing but the file itself is given to it."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **settings)
    context.set_default_timeout(1000 * PATIENCE)
    found = Opened(context.new_page())

    def answer(route: Any) -> None:
        found.requests.append(route.request.url)
        if route.request.url == file.as_uri():
            route.continue_()
        else:
            route.abort()

    context.route("**/*", answer)
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.goto(file.as_uri())
    return found


@pytest.fixture(params=["several", "single"])
def desk(request: pytest.FixtureRequest, browser: Browser, files: dict[str, Path]) -> Iterator[Opened]:
    """Each page in a wide window."""
    found = opened(browser, files[request.param])
    yield found
    found.page.context.close()


def test_it_loads_alone_and_without_complaint(desk: Opened) -> None:
    page = desk.page
    assert page.evaluate(
        "Promise.all([...document.images].map(image => image.decode().then(() => 0))).then(a => a.length)"
    )
    assert len(desk.requests) == 1, "the file, and nothing else"
    assert desk.complaints == []
    broken = "[...document.images].filter(image => !image.naturalWidth || !image.alt.includes('png')).length"
    assert page.evaluate(broken) == 0
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("'hacked' in window") is False
    assert page.locator("b, main script, [onerror]").count() == 0
    assert page.get_by_role("img", name="gone.png: not found").count() > 0


def test_names_are_seen_as_they_are(browser: Browser, files: dict[str, Path]) -> None:
    page = opened(browser, files["several"]).page
    assert "<b>&\"quotes'<script>window.hacked=1</script>\\n" in page.locator("#fake-1-name").inner_text()
    assert page.get_by_alt_text("<script>window.hacked=1<|script>").count() > 0
    assert page.get_by_alt_text("no text \ufffd.png").count() > 0
    page.context.close()


def test_its_structure_can_be_heard(desk: Opened) -> None:
    page = desk.page
    for role in ("main", "navigation", "banner", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    levels = page.eval_on_selector_all("h1, h2, h3, h4, h5, h6", "all => all.map(each => +each.tagName[1])")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels)), levels
    assert page.evaluate("document.documentElement.lang") == "en"
    tables = "table => table.caption?.textContent.trim() && [...table.querySelectorAll('th')].every(th => th.scope)"
    assert page.evaluate(f"[...document.querySelectorAll('table')].every({tables})")
    charts = page.locator(".chart:visible svg")
    assert charts.count() >= 2
    heard = page.locator("main").aria_snapshot()
    assert len(re.findall(r'img "(?:FID of|Pixel values)', heard)) == charts.count()
    missing = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    assert page.evaluate(missing) == 0


def test_the_keyboard_reaches_everything(desk: Opened) -> None:
    page = desk.page
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')].filter(e => e.checkVisibility()).length"
    )
    reached: list[dict[str, Any]] = []
    while len(reached) < 200:
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at["body"]:
            break
        reached.append(at)
    assert wanted <= len(reached) < 200, "scrolling boxes take part where they scroll"
    assert reached[0]["name"] == "A #main", "the way past the contents comes first"
    assert [at["name"] for at in reached if not (at["outline"] and at["seen"])] == []
    page.keyboard.press("Home")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(scheme: str, browser: Browser, files: dict[str, Path]) -> None:
    page = opened(browser, files["several"], color_scheme=scheme).page
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    contrasts = page.evaluate(_CONTRASTS, _TEXTS)
    assert len(contrasts) > 300
    assert [each for each in contrasts if each[0] < 4.5] == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 64) == (scheme == "dark")
    page.context.close()


@pytest.mark.parametrize("name", ["several", "single"])
def test_a_phone_needs_no_sideways_scrolling(name: str, browser: Browser, files: dict[str, Path]) -> None:
    page = opened(browser, files[name], _PHONE).page
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    beyond = """[...document.querySelectorAll('body *')].filter(each => !each.closest('.scroll, .skip, svg')
        && each.getClientRects().length && each.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
    assert page.evaluate(beyond) == []
    assert page.evaluate("document.documentElement.scrollWidth") == _PHONE[0]
    sizes = page.eval_on_selector_all(
        ".chart svg text", "all => all.map(each => each.getBoundingClientRect().height).filter(Boolean)"
    )
    assert min(sizes) > 9, "the charts' words too"
    page.context.close()
