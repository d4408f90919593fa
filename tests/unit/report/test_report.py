"""The report and the plot as text and files; what a browser makes of the page: test_report_page."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fidtool.errors import InputError
from fidtool.images.lookup import ImageLookup
from fidtool.report.charts import sweep_of
from fidtool.report.files import check_shown, require_report_extra, write_plot
from fidtool.report.html import html_report
from fidtool.report.names import command_line, legible, numbers_of, short_names, shortened
from fidtool.report.sheets import LONG_SIDE, MOST_BYTES, MOST_IMAGES, Thumbnail, quota_for, thumbnail_of
from support.report_samples import COMMAND, NASTY, bare, rich, write_image

pytest.importorskip("jinja2", reason="needs fidtool[report]")
pytest.importorskip("matplotlib", reason="needs fidtool[report]")


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element of a kind."""
        return [attributes for kind, attributes in self.elements if kind == tag]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Noise with awful names, one of them no text; and a file that has gone."""
    folder = tmp_path_factory.mktemp("images")
    names = [NASTY.replace("/", "|") + ".png", os.fsdecode(b"no text \xff\xfe.png"), "plain.png", "\U0001f339猫.png"]
    return [*(write_image(folder, name, seed=seed) for seed, name in enumerate(names)), str(folder / "gone.png")]


def test_a_bare_result_leaves_out_what_there_is_not() -> None:
    page = Page(html_report(bare("some/fake"), [None]))
    assert page.text.count("12.3456") >= 2
    headings = [attributes["id"] for attributes in page.all("section")]
    assert headings == ["fake-metrics", "measured"]
    assert not page.all("img")
    assert not page.all("script")
    for setting in ("uncertainty=True", "influence=True", "diagnose=False"):
        assert setting in page.text, "it says how to get the rest"
    assert "fidtool compute real fake --report report.html" in page.text


def test_everything_has_its_place(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("run/step100", "run/step200"), files)
    page = Page(html_report(evaluation, exhibits))
    sections = {attributes["id"] for attributes in page.all("section")}
    parts = ["metrics", "curve", "sets", "findings", "copies", "shared", "harmful", "neighbours", "random", "skipped"]
    assert sections == {"warnings", "overview", "measured", "fake-1", "fake-2"} | {
        f"fake-{place}-{part}" for place in (1, 2) for part in parts
    }
    for words in (
        "Gate missed",
        "95 %: 10.85 to 11.85",
        "withheld: too few images",
        "0.012300 ±\u00a00.001000",
        "step100 is better than step200",
        "14.3456",
        "3 images look like noise",
        "20 images of this set equal images of REAL",
        "100 images for 2048 dimensions",
        "subsets" if evaluation.settings else "bilinear",
        evaluation.definitions["features"].fingerprint,  # type: ignore[union-attr]
        "And 50 more",
    ):
        assert words in page.text, words
    assert page.text.count("about every set") == 1, "once, not once a FAKE"


def test_names_are_text_and_nothing_else(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(f"sets/{NASTY}", os.fsdecode(b"sets/\xff"), real=NASTY), files)
    command = (*COMMAND, NASTY, os.fsdecode(b"\xff"))
    evaluation = replace(evaluation, run=replace(evaluation.run, warnings=(f"{NASTY}\x00\ud800",), command=command))
    html = html_report(evaluation, exhibits)
    html.encode("utf-8")
    page = Page(html)
    assert not page.all("script")
    assert not page.all("b")
    assert "<b>&\"quotes'<script>window.hacked=1</script>\\n" in page.text
    assert "\u202e" not in html
    assert "sets/\ufffd" in page.text
    assert r"$'\xff'" in page.text, "the command can be copied"
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_same_input_same_page(files: list[str], tmp_path: Path) -> None:
    evaluation, exhibits = rich(bare("a", "b"), files)
    assert html_report(evaluation, exhibits) == html_report(evaluation, exhibits)
    for name in ("one.png", "two.png"):
        write_plot(evaluation, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.slow  # it draws 40 charts
def test_twenty_sets_of_noise_stay_below_ten_megabytes(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(*(f"/a/long/path/to/the/run/step{number:06}" for number in range(20))), files[:4])
    html = html_report(evaluation, exhibits)
    shown = len(Page(html).all("img"))
    assert MOST_IMAGES / 2 < shown <= MOST_IMAGES
    assert len(html.encode()) < 10e6
    assert MOST_IMAGES * MOST_BYTES * 4 / 3 < 7e6, "the images' part of it, whatever they show"


def test_a_set_with_reals_own_images_is_not_the_best(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("a", "b", "c"), files)
    assert "lowest FID" not in html_report(evaluation, exhibits)
    first, *others = evaluation.results
    page = html_report(replace(evaluation, results=(replace(first, diagnosis=None), *others)), exhibits)
    assert page.count("lowest FID") == 1
    assert ">a<" in page[: page.index("lowest FID")].rsplit("<tr", 1)[1]


@pytest.mark.slow  # it draws 120 charts
def test_of_many_pairs_those_with_the_best_are_shown(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(*(f"step{number:03}" for number in range(60))), files[:4])
    html = html_report(evaluation, exhibits)
    assert len(html.encode()) < 10e6
    assert html.count('<tr><th scope="row"><span class="path">step000</span></th><td class="words">') == 59
    assert html.count('<tr><th scope="row"><span class="path">step001</span></th><td class="words">') == 0
    assert "each beside the best one" in html


def test_no_id_comes_twice(files: list[str]) -> None:
    html = html_report(*rich(bare("a", "b", "c"), files))
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = re.findall(r'(?:href|aria-\w+)="#?([\w-]+)"|url\(#([\w-]+)\)', html)
    links = {one or other for one, other in wanted} - {"true"}
    assert links <= set(ids)


@pytest.mark.parametrize("fakes", [1, 4, 20, 1000])
def test_a_quota_is_kept(fakes: int) -> None:
    assert quota_for(fakes).images * fakes <= MOST_IMAGES


# --- thumbnails ------------------------------------------------------------------------------------------------------


def thumbnail(file: str) -> Thumbnail:
    return thumbnail_of(file, ImageLookup().read(file))


def test_thumbnails_show_the_pixels_that_were_measured(tmp_path: Path) -> None:
    small = thumbnail(write_image(tmp_path, "small.png", (32, 24)))
    assert (small.width, small.height, small.small) == (32, 24, True)
    assert small.uri.startswith("data:image/png;base64,")
    wide = thumbnail(write_image(tmp_path, "wide.png", (4000, 3)))
    assert (wide.width, wide.height) == (LONG_SIDE, 1)
    noise = thumbnail(write_image(tmp_path, "noise.png", (500, 500)))
    assert len(noise.uri) < MOST_BYTES * 4 / 3 + 100


def test_what_cannot_be_shown_says_why(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    os.mkfifo(tmp_path / "pipe.png")
    wanted = {
        str(tmp_path / "gone.png"): "not found",
        str(tmp_path / "text.png"): "not an image",
        str(tmp_path / "pipe.png"): "not found",
        str(tmp_path): "not found",
        "nul\0.png": "null",
        "x" * 5000: "too long",
    }
    for file, reason in wanted.items():
        assert thumbnail(file).uri == ""
        assert reason in thumbnail(file).problem
    evaluation, exhibits = rich(bare("fake"), list(wanted))
    page = Page(html_report(evaluation, exhibits))
    assert not page.all("img")
    assert "None of these images could be read" in page.text


# --- names and numbers -----------------------------------------------------------------------------------------------


def test_names_are_made_legible_and_short() -> None:
    assert legible("a\nb\x7f\udcff\u2028é猫") == r"a\nb\x7f" + "\ufffd\ufffdé猫"
    assert shortened("x" * 500, 10) == "xxx…xxxxxx"
    assert short_names(["runs/a/step1/", "runs/a/step2"]) == ["step1", "step2"]
    assert short_names(["runs/1/out", "runs/2/out"]) == ["1/out", "2/out"]
    assert short_names(["some/fake"]) == ["fake"]
    assert short_names(["a/b", "a/b"]) == ["a/b", "a/b"]
    assert short_names(["/"]) == ["/"]
    assert command_line(["a b", "it's\n", os.fsdecode(b"\xe9x")]) == r"'a b' $'it\'s\x0a' $'\xe9x'"


def test_numbers_in_names_order_a_sweep() -> None:
    assert numbers_of(["r3/step1000", "r3/step200"]) == ([1000.0, 200.0], "step")
    assert numbers_of(["a1.5.npz", "b2.5.npz"]) == ([1.5, 2.5], "number in the name")
    assert numbers_of(["a1", "b1"]) is None
    assert numbers_of(["out/step100/fid50k", "out/step200/fid50k"]) == ([100.0, 200.0], "step")
    assert numbers_of(["a/ckpt-1000-seed0", "a/ckpt-500-seed0"]) == ([1000.0, 500.0], "ckpt")
    assert numbers_of(["ema0.99_model-0100", "ema0.99_model-0200"]) == ([100.0, 200.0], "model")
    assert numbers_of(["run2/step100", "run2/last5/step300"]) == ([100.0, 300.0], "step")
    assert numbers_of(["a1", "b"]) is None
    sweep = sweep_of(bare("step1000", "step200").results)
    assert sweep is not None
    assert [(point.x, point.name) for point in sweep.points] == [(200, "step200"), (1000, "step1000")]
    named = sweep_of(bare("good", "bad").results)
    assert named is not None
    assert ([point.name for point in named.points], named.axis) == (["good", "bad"], "")


# --- the plot, and what both need ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fakes", [("fake",), ("step1", "step2", "step4"), ("$a_b^c$ 猫", "<b>", "x" * 300)])
def test_plot_is_a_picture(fakes: tuple[str, ...], files: list[str], tmp_path: Path) -> None:
    write_plot(rich(bare(*fakes), files)[0], tmp_path / "plot.png")
    with Image.open(io.BytesIO((tmp_path / "plot.png").read_bytes())) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (1440, 720)
        assert len(set(image.convert("L").tobytes())) > 20, "there is something in it"


def test_plot_needs_an_fid(tmp_path: Path) -> None:
    evaluation = bare("fake")
    result = replace(evaluation.results[0], metrics={"kid": 0.1, "kid_std": 0.01})
    evaluation = replace(evaluation, results=(result,))
    with pytest.raises(InputError, match="not among metrics"):
        write_plot(evaluation, tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []
    page = Page(html_report(evaluation, [None]))
    assert "KID 0.100000 ± 0.010000" in " ".join(page.text.split())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_report_extra("report")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"^report needs the package jinja2: pip install 'fidtool\[report\]'$"):
        require_report_extra("report")
    require_report_extra("plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"^report needs the packages jinja2 and matplotlib: "):
        require_report_extra("report")
    with pytest.raises(InputError, match=r"^plot needs the package matplotlib: "):
        require_report_extra("plot")


NAMES = (
    "a.html",
    "a.htm",
    "a.HTML",
    "a.Htm",
    "a.png",
    "A.PNG",
    "a.htm.png",
    "a.xhtml",
    "a.pdf",
    "a.html.gz",
    "html",
    "a",
)


@pytest.mark.parametrize(
    ("flag", "taken"),
    [
        ("report", ["a.html", "a.htm", "a.HTML", "a.Htm"]),
        ("plot", ["a.png", "A.PNG", "a.htm.png"]),
    ],
)
def test_what_the_names_of_files_end_in(tmp_path: Path, flag: str, taken: list[str]) -> None:
    """Others are refused before any work is done."""
    for name in taken:
        check_shown(flag, tmp_path / name)
    for name in set(NAMES) - set(taken):
        with pytest.raises(InputError, match=r"the name must end in \.(html|png)$"):
            check_shown(flag, tmp_path / name)
