"""The CLIP score: forms of captions, refusals, and what one pass computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.result.evaluation import Evaluation
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY

pytest.importorskip("open_clip", reason="needs open_clip, of the extra 'clip'")
from support.captioned import (
    CUT,
    KEY,
    NAME,
    SPREAD,
    WORDS,
    captions_for,
    configs_restored,
    save_weights,
    write_table,
)

COUNT = 9
EXTRACTOR = f"{NAME}@weights=words.pt"
RUN = (
    "--extractor",
    TINY,
    "--metrics",
    "fid,clip-score",
    "--clip-score-extractor",
    EXTRACTOR,
    "--json",
)


@pytest.fixture
def place(here: Run, tmp_path: Path) -> Iterator[Path]:
    make_pictures(tmp_path / "real", 7, 0)
    make_pictures(tmp_path / "fake", COUNT, 1)
    with configs_restored():
        save_weights(tmp_path / "words.pt")
        yield tmp_path


@pytest.fixture
def captions(place: Path) -> dict[str, str]:
    found = captions_for(sorted(os.listdir(place / "fake")))
    write_table(place / "captions.csv", found)
    return found


def test_every_form_of_captions_gives_the_same_score(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    write_table(place / "captions.tsv", captions, "prompt")
    write_table(
        place / "captions.jsonl", {f"fake/{name}": text for name, text in captions.items()}, "text"
    )
    (place / "captions.txt").write_text("\n".join(captions.values()) + "\n")
    lines = [
        f'{{"file": "{Path(name).stem}.webp", "caption": "{text}"}}'
        for name, text in captions.items()
    ]
    (place / "names.jsonl").write_text("\n".join(lines[::-1]))
    (place / "rows.csv").write_text(
        "\n".join(["prompt,seed", *(f"{text},0" for text in captions.values())])
    )
    for folder in ("beside", "fake"):
        (place / folder).mkdir(exist_ok=True)
        for name, text in captions.items():
            (place / folder / Path(name).with_suffix(".txt")).write_text(f"{text}\n")
    forms = [
        "captions.csv",
        "captions.tsv",
        "captions.jsonl",
        "names.jsonl",
        "rows.csv",
        "captions.txt",
        "beside",
    ]
    found = [
        here("compute", "real", "fake", *RUN, "--captions", form).metrics
        for form in [*forms, "fake"]
    ]
    assert found == [found[0]] * (len(forms) + 1)
    assert found[0][KEY] > 1
    assert found[0][SPREAD] > 0
    shuffled = dict(zip(captions, [*captions.values()][::-1], strict=True))
    other = here(
        "compute", "real", "fake", *RUN, "--captions", write_table(place / "others.csv", shuffled)
    )
    assert other.metrics[KEY] != found[0][KEY]


def test_lists_follow_the_order_of_the_images(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    """That of the lines of a list of paths, of a list in Python, and of an iterable."""
    expected = here("compute", "real", "fake", *RUN, "--captions", "captions.csv").metrics[KEY]
    reverse = [*captions][::-1]
    (place / "list.txt").write_text("".join(f"fake/{name}\n" for name in reverse))
    (place / "captions.txt").write_text("".join(f"{captions[name]}\n" for name in reverse))
    listed = here("compute", "real", "list.txt", *RUN, "--captions", "captions.txt")
    assert listed.metrics[KEY] == pytest.approx(expected, rel=1e-6)
    paths = [f"fake/{name}" for name in reverse]
    for fake in (fidtool.Images(paths), map(Image.open, paths)):
        evaluation = computed(fake, [captions[name] for name in reverse])
        # Captions that pass through the network in another order have other last digits.
        assert evaluation.results[0].metrics[KEY] == pytest.approx(expected, rel=1e-6)
        assert evaluation.run.config["captions"] == "9 captions"


def computed(fake: Any, captions: Any, **settings: Any) -> Evaluation:
    metric = fidtool.CLIPScore(extractor=EXTRACTOR)
    return fidtool.compute(
        "real", fake, metrics=[metric], captions=captions, extractor=TINY, **settings
    )


def test_one_pass_computes_both_and_real_does_not_need_clip(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    fid = here("compute", "real", "fake", "--extractor", TINY, "--no-cache", "--json")
    assert here("stats", "real", "-o", "real.npz", "--extractor", TINY).status == 0
    run = ("fake", *RUN, "--captions", "captions.csv")
    for real, images, options in (
        ("real.npz", COUNT, ()),
        ("real", 0, ()),
        ("real", 7 + COUNT, ("--no-cache",)),
    ):
        found = here("compute", real, *run, *options)
        assert found.json["run"]["images_computed"] == images
        assert found.metrics.items() >= fid.metrics.items()
        assert found.metrics.keys() - fid.metrics.keys() == {KEY, SPREAD, CUT}
    content = found.json
    assert content["layers"]["clip_score"]["resize"] == "pillow-bicubic, shorter edge 56, centre 56"
    assert content["layers"]["clip_score"]["name"] == "openai"
    record = content["settings"]["clip-score"]
    assert record["extractor"] == NAME
    assert record["weights_sha256"] == content["layers"]["clip_score"]["weights_sha256"]
    assert len(record["text_sha256"]) == 64
    assert record["text_sha256"] != record["weights_sha256"]
    again = Evaluation.from_dict(content)
    assert again.settings["clip-score"] == record
    assert {value.key: value.title for value in again.results[0].values}[
        KEY
    ] == f"CLIP score ({NAME})"


def test_a_convention_is_named_and_changes_the_factor_or_the_captions(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    run = ("compute", "real", "fake", *RUN, "--captions", "captions.csv")
    usual = here(*run)
    hessel = here(*run, "--clip-score-weight", 2.5)
    assert hessel.metrics[KEY] == pytest.approx(usual.metrics[KEY] / 40, rel=1e-12)
    assert hessel.metrics[SPREAD] == pytest.approx(usual.metrics[SPREAD] / 40, rel=1e-12)
    prefixed = here(*run, "--clip-score-prefix", "A photo depicts")
    words = {name: f"A photo depicts {text}" for name, text in captions.items()}
    same = here(*run[:-1], write_table(place / "words.csv", words))
    assert prefixed.metrics == same.metrics
    expected = [
        (usual, (100.0, ""), "CLIP score"),
        (hessel, (2.5, ""), "CLIP score of 2.5 × cosine"),
        (
            prefixed,
            (100.0, "A photo depicts"),
            "CLIP score of 100 × cosine with 'A photo depicts'",
        ),
    ]
    for found, convention, title in expected:
        record = found.json["settings"]["clip-score"]
        assert (record["weight"], record["prefix"]) == convention
        number = found.json["values"][KEY]["number"]
        assert number["title"] == title
        assert number["meaning"] == f"mean of {convention[0]:g} × cosine"


def test_captions_that_are_cut_are_counted(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    """For each FAKE, and as 0 if none is."""
    run = ("compute", "real", "fake", *RUN)
    assert here(*run, "--captions", "captions.csv").metrics[CUT] == 0
    long = dict(captions)
    long |= {name: text * 9 for name, text in [*captions.items()][:2]}
    table = write_table(place / "long.csv", long)
    found = here(*run, "--captions", table)
    assert found.metrics[CUT] == 2
    assert (
        "2 of 9 captions have more than the 12 tokens that CLIP reads, and are truncated"
        in found.stderr
    )


def test_the_extractor_is_shared_if_it_is_the_same_network(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    apart = here("compute", "real", "fake", *RUN, "--captions", "captions.csv").metrics[KEY]
    shared = here(
        "compute",
        "real",
        "fake",
        *RUN,
        "--captions",
        "captions.csv",
        "--extractor",
        f"{EXTRACTOR},protocol=openai",
    )
    assert set(shared.json["layers"]) == {NAME.replace(":", "_").replace("-", "_")}
    assert shared.metrics[KEY] == apart


def test_several_sets_use_the_same_captions(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    """Without names of folders in the table, and for a sample."""
    make_pictures(place / "other", COUNT, 2)
    alone = [
        here("compute", "real", name, *RUN, "--captions", "captions.csv").metrics[KEY]
        for name in ("fake", "other")
    ]
    both = here("compute", "real", "fake", "other", *RUN, "--captions", "captions.csv")
    assert [each["metrics"][KEY] for each in both.json["results"]] == alone
    some = here("compute", "real", "fake", *RUN, "--captions", "captions.csv", "--num-fake", 4)
    values = computed("fake", [*captions.values()], num_fake=4).results[0].of_images.values[KEY]
    assert len(values) == 4
    assert some.metrics[KEY] == pytest.approx(np.mean(values), rel=1e-13)


def test_a_skipped_image_loses_its_caption(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    whole = (
        computed("fake", "captions.csv", sample="first", num_fake=COUNT)
        .results[0]
        .of_images.values[KEY]
    )
    (place / "fake" / "00004.png").write_bytes(b"no image")
    skipping = ("--captions", "captions.csv", "--on-error", "skip", "--max-skip", 0.2)
    found = here("compute", "real", "fake", *RUN, *skipping)
    assert "skipped" in found.stderr
    value = found.metrics[KEY]
    left = [np.delete(whole, number).mean() for number in range(COUNT)]
    # Which of these, but for the order of a sum.
    assert sum(np.isclose(value, left, rtol=0, atol=1e-9)) == 1


REFUSED = [
    ((), ["CLIP score needs the captions of the images: pass --captions"]),
    (("--captions", "absent.csv"), ["absent.csv", "No such file"]),
    (
        ("--captions", "captions.doc"),
        ["--captions captions.doc must be a table (.csv, .tsv, .jsonl)", "a folder"],
    ),
    (("--captions", "lacking.csv"), ["has no caption for 2 images of fake (0000", ")"]),
    (("--captions", "blank"), ["has no caption for 1 image of fake (00000.png)"]),
    (
        ("--captions", "foreign.csv"),
        ["--captions foreign.csv names no image in fake, such as fake/0"],
    ),
    (
        ("--captions", "fewer.txt"),
        ["fewer.txt has 2 captions without paths of images, but fake has 9 images"],
    ),
    (("--captions", "real"), ["--captions real names no image in fake"]),
    (
        ("--captions", "captions.csv", "--clip-score-extractor", "dinov2"),
        ["--clip-score-extractor dinov2 has no text"],
    ),
    (
        ("--captions", "captions.csv", "--metrics", "fid"),
        ["--captions applies to the CLIP score", "add clip-score to"],
    ),
]


@pytest.mark.parametrize(
    ("options", "texts"), REFUSED, ids=[" ".join(each[0][1:2]) or "none" for each in REFUSED]
)
def test_mistakes_are_refused_by_name(
    here: Run, place: Path, captions: dict[str, str], options: tuple[str, ...], texts: list[str]
) -> None:
    """Before any image is decoded: none can be."""
    for file in (place / "fake").iterdir():
        file.write_bytes(b"no image")
    write_table(place / "lacking.csv", dict([*captions.items()][2:]))
    write_table(place / "foreign.csv", {f"other/{number}.jpg": "a cat" for number in range(COUNT)})
    (place / "fewer.txt").write_text("one\ntwo\n")
    (place / "captions.doc").touch()
    (place / "blank").mkdir()
    for number in range(COUNT):
        (place / "blank" / f"{number:05}.txt").write_text("a cat\n" if number else "\n")
    outcome = here(
        "compute",
        "real",
        "fake",
        *(("--extractor", TINY) if "--metrics" in options else RUN),
        *options,
    )
    assert outcome.status == 2
    for text in texts:
        assert text in outcome.error


def test_an_order_by_name_that_is_not_that_of_the_numbers_is_refused(
    here: Run, place: Path
) -> None:
    make_pictures(place / "unpadded", 11, 1)
    for file in (place / "unpadded").iterdir():
        file.rename(file.with_name(f"{int(file.stem)}.png"))
    (place / "captions.txt").write_text("a cat\n" * 11)
    outcome = here("compute", "real", "unpadded", *RUN, "--captions", "captions.txt")
    assert outcome.status == 2
    assert (
        "has no paths, and sorted by name 10.png comes before 2.png in unpadded: add a column "
        "named path" in outcome.error
    )
    (place / "list.txt").write_text("".join(f"unpadded/{number}.png\n" for number in range(11)))
    assert here("compute", "real", "list.txt", *RUN, "--captions", "captions.txt").status == 0


def test_statistics_and_iterables_that_have_no_paths_are_refused(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    assert here("stats", "fake", "-o", "fake.npz", *RUN[:-1]).status == 0
    outcome = here("compute", "real", "fake.npz", *RUN, "--captions", "captions.csv")
    assert (
        "images with paths, which fake.npz does not have: pass the images instead" in outcome.error
    )
    for fake, given, text in (
        (
            iter([]),
            "captions.csv",
            "images with paths, which fake does not have: pass the captions as a list in the order "
            "of the images",
        ),
        (
            map(Image.open, [f"fake/{name}" for name in captions]),
            ["a cat"],
            "has 1 caption, but fake has 9 images",
        ),
        ("fake", ["a cat"], "has 1 caption, but fake has 9 images"),
        ("fake", [1, 2], "captions must be a file or a list of strings"),
        ("fake", [], "captions must be a file or a list of strings"),
        ("fake", dict(captions), "captions must be a file or a list of strings"),
        ("fake", {*captions.values()}, "captions must be a file or a list of strings"),
        (
            "fake",
            [*[*captions.values()][:-1], ""],
            r"captions has no caption for 1 image of fake \(",
        ),
    ):
        with pytest.raises(fidtool.InputError, match=text):
            computed(fake, given)
    with pytest.raises(fidtool.InputError, match="has 1 caption, but fake has 4 images"):
        computed(lambda count: [Image.new("RGB", (32, 32))] * count, ["a cat"], num_fake=4)


def test_a_custom_metric_gets_the_captions(
    here: Run, place: Path, captions: dict[str, str]
) -> None:
    run = ("compute", "real", "fake", "--extractor", COLOURS, "--metrics", WORDS, "--json")
    found = here(*run, "--captions", "captions.csv")
    (value,) = found.metrics.values()
    assert value == np.mean([len(text) for text in captions.values()])
    assert "Words needs the captions of the images: pass --captions" in here(*run).error


def test_images_of_an_iterable_have_their_own_values(place: Path, captions: dict[str, str]) -> None:
    """Also without records, in whose order the features are not."""
    files = [f"fake/{name}" for name in captions]
    images = [Image.open(file).convert("RGB") for file in files]
    whole = (
        computed([np.asarray(image) for image in images], [*captions.values()]).results[0].of_images
    )
    assert whole is not None
    wanted = dict(zip(whole.files, whole.values[KEY], strict=True))
    single = computed(iter(images), [*captions.values()], diagnose=False).results[0].of_images
    assert single is not None
    found = dict(zip(single.files, single.values[KEY].tolist(), strict=True))
    assert found == pytest.approx(wanted, rel=1e-6)  # captions are in other batches


def test_without_weights_the_other_metrics_are_computed(
    here: Run, place: Path, captions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The variable is read when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments = (
        "--metrics",
        "fid,clip-score",
        "--extractor",
        TINY,
        "--captions",
        "captions.csv",
        "--json",
    )
    found = here(
        "compute", "real", "fake", *arguments, "--clip-score-extractor", "clip:ViT-L-14-quickgelu"
    )
    assert found.status == 1, found.stderr
    assert [(each["metric"], each["requested"]) for each in found.json["not_computed"]] == [
        ("clip-score", True)
    ]
    assert len(found.json["results"][0]["metrics"]) == 1
