"""The report in a browser: loading, length, keyboard, themes, windows wide and narrow, escaped
names.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from fidtool.report.html import html_report
from fidtool.result.evaluation import Evaluation
from support.processes import PATIENCE
from support.report_samples import METRICS, NASTY, bare, classes, rich, write_image

for _package in ("jinja2", "matplotlib"):
    pytest.importorskip(_package, reason="needs fidtool[report]")
_sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright, which comes with the extra 'test'"
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    # A browser's start and many layouts; the unit tests of the report read its HTML.
    pytest.mark.slow,
    pytest.mark.skipif(_CHROMIUM is None, reason="needs Chromium on the PATH"),
]

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
_PHONE, _DESK = (390, 844), (1280, 900)
_OPEN_ALL = "all => all.forEach(each => each.open = true)"
_TEXTS = (
    "h1, h2, h3, p, li, td, th, a, summary, figcaption, footer, pre, strong, .quiet, .name, "
    ".lost, .high, .medium"
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
    const [a, b] = [light(style.color), light(ground(each))];
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
    """A page in a window, with its requests and console messages."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with _sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=_FLAGS, timeout=1000 * PATIENCE
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one FAKE, of two with hostile names and a missing image, of three, and of five with
    every metric.
    """
    folder = tmp_path_factory.mktemp("pages")
    names = [NASTY.replace("/", "|") + ".png", os.fsdecode(b"no text \xff.png"), "plain.png"]
    images = [write_image(folder, name, (32, 32), seed) for seed, name in enumerate(names)]
    images.append(str(folder / "gone.png"))
    pages = {
        "one": html_report(_with_classes(rich(bare("fake"), images))),
        "several": html_report(
            _with_classes(rich(bare(f"runs/{NASTY}/step1", "runs/step2" + "0" * 90), images))
        ),
        "three": html_report(rich(bare("good", "better", "best"), images)),
        "metrics": _all_metrics(images),
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


def _with_classes(evaluation: Evaluation) -> Evaluation:
    return replace(
        evaluation, results=tuple(replace(each, classes=classes()) for each in evaluation.results)
    )


def _all_metrics(images: list[str]) -> str:
    """Return a page with every metric for five FAKEs, and long values."""
    evaluation = rich(
        bare(*(f"samples/ddpm-cosine-{number}k/seed0" for number in range(1, 6))), images
    )
    wide = {
        "fid": 312.34567,
        "sfid": 298.76543,
        "fid_infinity": 301.2345,
        "kid": 0.31951234,
        "kid_std": 0.00123456,
    }
    results = tuple(replace(result, metrics=METRICS | wide) for result in evaluation.results)
    return html_report(replace(evaluation, results=results))


def opened(browser: Browser, file: Path, size: tuple[int, int] = _DESK, **settings: Any) -> Opened:
    """Open a page; all requests but that for the file itself are blocked."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **settings
    )
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


@pytest.fixture
def desk(browser: Browser, files: dict[str, Path]) -> Iterator[Opened]:
    """The page of two FAKEs in a wide window."""
    found = opened(browser, files["several"])
    yield found
    found.page.context.close()


def test_the_page_loads_without_other_files_or_errors(desk: Opened) -> None:
    page = desk.page
    assert page.evaluate(
        "Promise.all([...document.images].map(image => image.decode().then(() => 0))).then(a => "
        "a.length)"
    )
    assert len(desk.requests) == 1, "the page requests nothing but itself"
    assert desk.complaints == []
    broken = (
        "[...document.images].filter(image => !image.naturalWidth || "
        "!image.hasAttribute('alt')).length"
    )
    assert page.evaluate(broken) == 0
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("'hacked' in window") is False
    assert page.locator("b, main script, [onerror]").count() == 0
    assert page.locator("[aria-label$='gone.png: not found']").count() > 0


@pytest.mark.parametrize("name", ["one", "several"])
def test_the_headings_are_in_order(name: str, browser: Browser, files: dict[str, Path]) -> None:
    page = opened(browser, files[name]).page
    levels = page.eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6", "all => all.map(each => +each.tagName[1])"
    )
    assert (levels.count(1), levels[0]) == (1, 1)
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels)), levels
    page.context.close()


def test_the_structure_is_accessible_to_screen_readers(desk: Opened) -> None:
    page = desk.page
    for role in ("main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    assert page.evaluate("document.documentElement.lang") == "en"
    tables = (
        "table => table.caption?.textContent.trim() && "
        "[...table.querySelectorAll('th')].every(th => th.scope)"
    )
    assert page.evaluate(f"[...document.querySelectorAll('table')].every({tables})")
    title = "FID of 2 sets against real (100 images)"
    assert page.get_by_role("img", name=title, exact=True).count() == 1
    charts = page.locator("#charts img").count()
    assert page.get_by_role("img").count() < charts + 5, "those of closed blocks are not read out"
    missing = (
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => "
        "!document.querySelector(a.hash)).length"
    )
    assert page.evaluate(missing) == 0


def test_the_keyboard_reaches_everything(desk: Opened) -> None:
    page = desk.page
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')].filter(e => "
        "e.checkVisibility()).length"
    )
    reached: list[dict[str, Any]] = []
    while len(reached) < wanted + 50:
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at["body"]:
            break
        reached.append(at)
    assert wanted <= len(reached) < wanted + 50, "boxes that scroll can be reached as well"
    assert [at["name"] for at in reached if not (at["outline"] and at["seen"])] == []
    page.keyboard.press("Home")
    page.locator("details:not([open]) > summary").first.focus()
    before = page.locator("details[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == before + 1


def test_both_themes_have_sufficient_contrast(desk: Opened) -> None:
    page = desk.page
    page.eval_on_selector_all("details", _OPEN_ALL)
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(_CONTRASTS, _TEXTS)
        assert len(contrasts) > 200
        assert [each for each in contrasts if each[0] < 4.5] == [], scheme
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 64) == (scheme == "dark")


@pytest.mark.parametrize("name", ["one", "several", "metrics"])
def test_no_window_needs_horizontal_scrolling(
    name: str, browser: Browser, files: dict[str, Path]
) -> None:
    page = opened(browser, files[name]).page
    page.eval_on_selector_all("details", _OPEN_ALL)
    beyond = """[...document.querySelectorAll('body *')].filter(each => each.getClientRects().length
        && each.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
    scrolls = """[...document.querySelectorAll('body *')].filter(each =>
        each.scrollWidth > each.clientWidth && /auto|scroll/.test(getComputedStyle(each).overflowX)
        ).map(e => e.outerHTML)"""
    for width, height in (_DESK, (800, 900), _PHONE):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(beyond) == []
        assert page.evaluate(scrolls) == [], "no part of the page either"
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.context.close()


def test_the_width_of_a_window_is_used(browser: Browser, files: dict[str, Path]) -> None:
    """The charts are a grid of equal cells; a line of text is not much longer than in a book."""
    page = opened(browser, files["metrics"]).page
    page.eval_on_selector_all("details", _OPEN_ALL)
    (table,) = page.eval_on_selector_all(
        "#values table", "all => all.map(each => each.getBoundingClientRect().width)"
    )
    assert table > 0.9 * _DESK[0]
    lines = page.eval_on_selector_all(
        "p", "all => all.map(each => each.getBoundingClientRect().width)"
    )
    assert max(lines) < 850
    for size, columns in ((_DESK, 4), (_PHONE, 1)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        boxes = page.eval_on_selector_all(
            "#charts img", "all => all.map(each => each.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) > 10
        for side in ("width", "height"):
            assert max(box[side] for box in boxes) - min(box[side] for box in boxes) < 1
        assert len({round(box["left"]) for box in boxes}) == columns
        assert len({round(box["top"]) for box in boxes}) == -(-len(boxes) // columns)
    page.context.close()


def test_a_table_of_classes_is_readable_in_any_window(
    browser: Browser, files: dict[str, Path]
) -> None:
    """On a phone, each row is a block in which a heading is above each number."""
    page = opened(browser, files["one"]).page
    page.eval_on_selector_all("details", _OPEN_ALL)
    table = page.get_by_role("table", name="Values of each class")
    for (width, height), is_block in ((_DESK, False), (_PHONE, True)):
        page.set_viewport_size({"width": width, "height": height})
        assert table.get_by_role("row").count() == 42, "the structure is that of a table"
        row = table.get_by_role("row").nth(1)
        assert row.get_by_role("rowheader").count() == 1
        lefts = row.locator("td[data-label]").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().left)"
        )
        assert len({*lefts}) == (3 if is_block else len(lefts))
        content = row.locator("td[data-label]").evaluate_all(
            "all => all.map(each => getComputedStyle(each, '::before').content)"
        )
        assert ('"FID"' in content) == is_block
        bars = table.locator(".bar span").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().width)"
        )
        assert bars[0] > 80
        assert bars == sorted(bars, reverse=True), "the worst class is first"
    page.context.close()


@pytest.mark.parametrize("name", ["one", "three"])
def test_the_page_is_short(name: str, browser: Browser, files: dict[str, Path]) -> None:
    """What matters is on the first screen: the verdict, the gate and the worst warning, without
    opening anything.
    """
    bottom = "all => all.map(each => each.getBoundingClientRect().bottom)"
    for (width, height), most in ((_DESK, 6000), (_PHONE, 10_000)):
        page = opened(browser, files[name], (width, height)).page
        assert page.evaluate("document.documentElement.scrollHeight") < most
        for seen in ("h1", "#gate", "#warnings > p"):
            (end,) = page.eval_on_selector_all(seen, bottom)
            assert 0 < end < height, seen
        page.context.close()


def test_six_images_are_beside_each_other_on_a_phone(
    browser: Browser, files: dict[str, Path]
) -> None:
    for size, columns in ((_PHONE, {6}), (_DESK, {6, 12})):
        page = opened(browser, files["one"], size).page
        grids = (
            "all => all.map(each => getComputedStyle(each).gridTemplateColumns.split(' ').length)"
        )
        assert {*page.eval_on_selector_all(".sheet", grids)} == columns
        sides = page.eval_on_selector_all(
            ".sheet img", "all => all.map(each => each.getBoundingClientRect().width)"
        )
        assert max(sides) - min(sides) < 6, "all are of one size"
        page.context.close()


@pytest.mark.parametrize(
    ("scheme", "source"), [("dark", "source').srcset"), ("light", "img').src")]
)
def test_the_chart_follows_the_theme(
    scheme: str, source: str, browser: Browser, files: dict[str, Path]
) -> None:
    page = opened(browser, files["several"], color_scheme=scheme).page
    shown = f"all => all.map(each => each.querySelector('img').currentSrc === each.querySelector('{source})"
    followed = page.eval_on_selector_all("#charts picture", shown)
    assert len(followed) > 10
    assert all(followed)
    page.context.close()


def test_the_name_of_a_set_leads_to_its_details(desk: Opened) -> None:
    assert not desk.page.locator("#fake-2-findings").is_visible()
    desk.page.locator("#values a").nth(1).click()
    assert desk.page.locator("#fake-2-findings").is_visible()


def test_the_page_can_be_printed(browser: Browser, files: dict[str, Path]) -> None:
    """Closed blocks are open on paper."""
    page = opened(browser, files["several"]).page
    assert not page.get_by_text("Random images of REAL").first.is_visible()
    page.emulate_media(media="print")
    assert page.get_by_text("Random images of REAL").first.is_visible()
    assert page.locator("#values table").is_visible()
    page.context.close()
