"""Statistics of a set in parts, and of a set that grows: the bits of a single run."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.errors import InputError
from fidtool.features.passes import ForwardPasses
from fidtool.reading import records
from fidtool.reading.loader import Piece
from fidtool.statistics import file as statistics_file
from fidtool.training import FrechetInceptionDistance, FrechetLoss
from support.command_line import Run, changed
from support.old_files import FILES
from support.pictures import make_pictures
from support.places import COLOURS, TINY
from support.small_sets import SMALL
from support.source_forms import names_in, write_tar

OF_EACH = ("--extractor", TINY, "--metrics", "fid,kid", "--batch-size", 2, "--no-cache")
"""Settings with which files have the features of each image."""


def arrays(file: str | Path) -> dict[str, Any]:
    with np.load(file) as archive:
        return {
            name: (array.dtype.str, array.shape, array.tobytes()) for name, array in archive.items()
        }


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Images of which one is damaged and two are equal."""
    folder = make_pictures(tmp_path / "fake", 40, 1)
    (folder / "00011.png").write_bytes(b"damaged")
    shutil.copy(folder / "00003.png", folder / "00030.png")
    return folder


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each forward pass, without those of the probe."""
    counts: list[int] = []
    run = ForwardPasses.run

    def counting(self: Any, pieces: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for piece, features in run(self, pieces):
            if isinstance(piece, Piece):
                count += len(next(iter(features[0].values()))) if features else 0
                if piece.last and count:
                    counts.append(count)
                    count = 0
            yield piece, features

    monkeypatch.setattr(ForwardPasses, "run", counting)
    return counts


@pytest.mark.parametrize("of", [1, 2, 7, 16])
def test_parts_merge_to_a_single_run(
    here: Run, fake: Path, passed: list[int], of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every array of the file, with features, records and a file that is skipped."""
    monkeypatch.setattr(records, "DETAILED", 30)
    settings = (*OF_EACH, "--on-error", "skip", "--max-skip", 0.5)
    assert here("stats", fake, "-o", "whole.npz", *settings).status == 0
    whole, files = [*passed], []
    passed.clear()
    for number in range(1, of + 1):
        files.append(f"{number}.npz")
        done = here("stats", fake, "-o", files[-1], "--part", f"{number}/{of}", *settings)
        assert done.status == 0, done.stderr
        assert f"part {number}/{of} of 40 images" in done.stderr
    assert sorted(passed) == sorted(whole), "the same forward passes"
    random.shuffle(files)
    done = here("merge", *files, "-o", "merged.npz")
    assert done.status == 0, done.stderr
    assert "skipped" in done.stderr
    assert "wrote merged.npz: 39 images, 16 dimensions" in done.stderr
    assert arrays("merged.npz") == arrays("whole.npz")
    if of > 1:
        taken = files.pop()
        name = taken.removesuffix(".npz")
        refused = here("merge", *files, "-o", "x.npz")
        assert f"of the set's 40: part {name}/{of}: pass all parts" in refused.error
        shutil.copy(taken, "copy.npz")
        refused = here("merge", *files, "copy.npz", taken, "-o", "x.npz")
        assert f"{taken} ({name}/{of}) and copy.npz ({name}/{of}) have " in refused.error
        assert not Path("x.npz").exists()


def test_merged_statistics_serve_every_command(here: Run, tmp_path: Path) -> None:
    """Metrics, error bars and diagnosis have the values of the folder."""
    real, fake = make_pictures(tmp_path / "real", 44, 0), make_pictures(tmp_path / "fake", 40, 1)
    for number in range(1, 4):
        here("stats", fake, "-o", f"{number}.npz", "--part", f"{number}/3", *OF_EACH)
    assert here("merge", "1.npz", "3.npz", "2.npz", "-o", "fake.npz").status == 0
    settings = (*OF_EACH, *SMALL, "--uncertainty", "--json")
    of_file, of_folder = (
        here("compute", real, each, *settings).json["results"][0] for each in ("fake.npz", fake)
    )
    for key in ("metrics", "uncertainties", "count", "diagnosis"):
        assert of_file[key] == of_folder[key], key
    assert here("check", "fake.npz", "--against", real).status == 0


@pytest.mark.parametrize("form", ["tar.gz", "array", "list"])
def test_parts_of_other_sources(here: Run, tmp_path: Path, form: str) -> None:
    """A packed archive, which is read sequentially, an array, and images in memory; a sample of
    each.
    """
    folder = make_pictures(tmp_path / "fake", 23, 1, sides=(16, 16, 16))
    source: Any = "fake.tar.gz"
    if form == "tar.gz":
        write_tar(tmp_path / source, folder, names_in(folder), "w:gz")
    else:
        rows = np.random.RandomState(0).randint(0, 256, (23, 16, 16, 3)).astype(np.uint8)
        source = rows if form == "array" else [*rows]
    settings: dict[str, Any] = {
        "extractor": TINY,
        "metrics": "kid",
        "batch_size": 2,
        "num": 20,
        "cache": False,
    }
    found = [
        fidtool.compute_statistics(source, part=f"{number}/3", **settings) for number in (3, 1, 2)
    ]
    parts = pickle.loads(pickle.dumps(found))
    whole = fidtool.compute_statistics(source, **settings)
    assert whole is not None
    fidtool.write_statistics("merged.npz", fidtool.merge_statistics(parts))
    fidtool.write_statistics("whole.npz", whole)
    merged, expected = arrays("merged.npz"), arrays("whole.npz")
    assert merged == expected


def test_what_is_no_part_is_refused(here: Run, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 12, 1)
    assert here("stats", fake, "-o", "whole.npz", *OF_EACH).status == 0
    for number, place in enumerate((fake, make_pictures(tmp_path / "other", 12, 2)), 1):
        assert (
            here("stats", place, "-o", f"{number}.npz", "--part", f"{number}/2", *OF_EACH).status
            == 0
        )
    with np.load("1.npz") as archive:
        older = {name: archive[name] for name in archive.files}
    older["run"] = np.array(str(older["run"]).replace('"torch": "', '"torch": "0.'))
    np.savez("2c.npz", **older)
    shutil.copytree(fake, "elsewhere")
    assert here("stats", "elsewhere", "-o", "2b.npz", "--part", "2/2", *OF_EACH).status == 0
    assert here("merge", "2b.npz", "1.npz", "-o", "copies.npz").status == 0, (
        "copies of a set are one set"
    )
    refused = {
        (
            "merge",
            "1.npz",
            "2.npz",
        ): "2.npz and 1.npz come from different sets: the names, sizes or contents",
        (
            "merge",
            "2c.npz",
            "2b.npz",
        ): f"(torch {torch.__version__} against 0.{torch.__version__}): compute one of them",
        ("merge", "1.npz", "whole.npz"): "whole.npz has statistics of a whole set",
        ("merge", FILES / "pytorch_fid.npz"): "pytorch_fid.npz has no exact sums",
        ("merge", "missing.npz"): "no statistics file missing.npz",
        ("stats", fake, "--part", "3/2", *OF_EACH): "there is no part '3/2': pass its number",
        ("stats", fake, "--part", "1", *OF_EACH): "there is no part '1'",
        (
            "stats",
            fake,
            "--part",
            "7/8",
            *OF_EACH,
        ): "which has 12 images in 6 batches of 2: pass at most 6",
        (
            "stats",
            fake,
            "--part",
            "1/2",
            "--since",
            "whole.npz",
            *OF_EACH,
        ): "adding new images, computing a part and adding networks cannot be combined",
        (
            "stats",
            fake,
            "--part",
            "1/2",
            "--layout",
            "adm",
        ): "--layout cannot be combined with --part or --since",
    }
    for arguments, message in refused.items():
        done = here(*arguments, "-o", "x.npz")
        assert done.status == 2
        assert message in done.error
    assert (
        "x.npz exists" in here("merge", "1.npz", "2.npz", "-o", shutil.copy("1.npz", "x.npz")).error
    )
    assert (
        "-o 1.npz cannot be written: it would replace"
        in here("merge", "1.npz", "-o", "1.npz", "--force").error
    )
    for arguments in (
        ("compute", fake, "1.npz"),
        ("compute", "1.npz", fake),
        ("check", fake, "--against", "1.npz"),
    ):
        assert (
            "1.npz has statistics of a part of a set, 1/2: merge all parts"
            in here(*arguments).error
        )


def test_a_file_that_another_run_wrote_meanwhile(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept, and the status says that this run's statistics are not there."""
    (whole := tmp_path / "whole.npz").write_bytes(b"of the other run")
    whole.rename(hidden := tmp_path / "hidden.npz")
    fake = make_pictures(tmp_path / "fake", 4, 1)
    write = statistics_file.write_statistics

    def late(*arguments: Any, **settings: Any) -> None:
        hidden.rename(whole)
        write(*arguments, **settings)

    monkeypatch.setattr(statistics_file, "write_statistics", late)
    done = here("stats", fake, "-o", "whole.npz", *OF_EACH)
    assert (done.status, whole.read_bytes()) == (1, b"of the other run")
    assert "the statistics could not be written to whole.npz: File exists" in done.error


def test_a_part_is_completed_as_the_same_part(here: Run, tmp_path: Path) -> None:
    """With a further network, by the same division."""
    fake = make_pictures(tmp_path / "fake", 12, 1)
    both = ("--extractor", f"{TINY},{COLOURS}", "--batch-size", 2, "--no-cache")
    for number in (1, 2):
        here(
            "stats",
            fake,
            "-o",
            f"{number}.npz",
            "--part",
            f"{number}/2",
            "--extractor",
            TINY,
            *both[2:],
        )
        completed = ("stats", fake, "-o", f"both{number}.npz", "--complete", f"{number}.npz", *both)
        assert "have part" in here(*completed).error
        assert here(*completed, "--part", f"{number}/2").status == 0
    assert here("merge", "both1.npz", "both2.npz", "-o", "merged.npz").status == 0
    assert here("stats", fake, "-o", "whole.npz", *both).status == 0
    assert arrays("merged.npz") == arrays("whole.npz")


def test_parts_are_no_references_in_training(here: Run, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 12, 1)
    part = fidtool.compute_statistics(str(fake), part="1/2", dims=64, batch_size=4)
    assert part is not None
    with pytest.raises(InputError, match="of a part of a set, 1/2"):
        FrechetInceptionDistance(64, real_statistics=part)
    with pytest.raises(InputError, match="of a part of a set, 1/2"):
        FrechetLoss(part)


def test_iterables_have_no_parts(environment: dict[str, str]) -> None:
    images = [np.zeros((16, 16, 3), dtype=np.uint8)] * 4
    whole = fidtool.compute_statistics(images, extractor=TINY)
    for given in ({"part": "1/2"}, {"since": whole}):
        with pytest.raises(InputError, match=r"is an iterable, .*: pass a sequence of images"):
            fidtool.compute_statistics(iter(images), extractor=TINY, **given)


def test_a_checkpoint_is_of_one_part(here: Run, tmp_path: Path) -> None:
    """The same folder for all jobs of an array is refused with what differs."""
    fake = make_pictures(tmp_path / "fake", 12, 1)
    settings = (*OF_EACH, "--checkpoint", "kept")
    assert here("stats", fake, "-o", "1.npz", "--part", "1/3", *settings).status == 0
    refused = here("stats", fake, "-o", "2.npz", "--part", "2/3", *settings)
    assert "belongs to a different run: part was 1/3 and is now 2/3" in refused.error


# --- a set that grows -----------------------------------------------------------------------------


def test_only_new_images_pass_the_network(
    here: Run, tmp_path: Path, passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1,000 images to 1,300, with detail of about 300 of them."""
    monkeypatch.setattr(records, "DETAILED", 300)
    more = make_pictures(tmp_path / "more", 1300, 1, sides=(16,))
    (tmp_path / "fake").mkdir()
    for file in sorted(more.iterdir(), key=lambda file: hash(file.name))[:1000]:
        shutil.copy2(file, tmp_path / "fake")
    settings = (*OF_EACH[:4], "--no-cache")
    assert here("stats", "fake", "-o", "old.npz", *settings).status == 0
    assert sum(passed) == 1000
    shutil.copytree(more, "fake", dirs_exist_ok=True)
    passed.clear()
    grown = here("stats", "fake", "-o", "old.npz", "--since", "old.npz", "--force", *settings)
    assert grown.status == 0, grown.stderr
    assert "fake: 1000 images are already in old.npz, 300 are new" in grown.stderr
    assert sum(passed) == 300
    assert here("stats", "fake", "-o", "fresh.npz", *settings).status == 0
    assert arrays("old.npz") == arrays("fresh.npz")
    with np.load("fresh.npz") as archive:
        assert 200 < np.count_nonzero(archive["details"].any(axis=1)) < 400
    passed.clear()
    assert (
        "0 are new"
        in here("stats", "fake", "-o", "same.npz", "--since", "old.npz", *settings).stderr
    )
    assert passed == []
    assert arrays("same.npz") == arrays("fresh.npz")


def test_images_that_changed_are_noticed(here: Run, tmp_path: Path, passed: list[int]) -> None:
    """Files with another mtime are decoded and compared; the same pixels are not computed again."""
    fake = make_pictures(tmp_path / "fake", 12, 1)
    assert here("stats", "fake", "-o", "old.npz", *OF_EACH).status == 0
    make_pictures(tmp_path / "fake", 13, 1)  # written again, with one more
    passed.clear()
    assert here("stats", "fake", "-o", "new.npz", "--since", "old.npz", *OF_EACH).status == 0
    assert passed == [1]
    here("stats", "fake", "-o", "fresh.npz", *OF_EACH)
    assert arrays("new.npz") == arrays("fresh.npz")
    make_pictures(tmp_path / "other", 2, 2)
    shutil.copy(tmp_path / "other" / "00001.png", fake / "00007.png")
    refused = {
        (): "1 image of fake changed after new.npz was computed (00007.png): compute the "
        "statistics of all",
        (
            "--protocol",
            "tensorflow",
        ): "new.npz and this run were not computed in the same way (resize",
        ("--metrics", "fid"): "(features of each image True against False)",
        ("--no-diagnosis", "--quiet"): "(diagnosis True against False)",
        (
            "--extractor",
            COLOURS,
        ): "(networks tiny_network.py:network against tiny_network.py:colours)",
        ("--complete", "new.npz"): "cannot be combined",
    }
    for more, message in refused.items():
        arguments = changed(["stats", "fake", "-o", "x.npz", "--since", "new.npz", *OF_EACH], *more)
        assert message in here(*arguments).error
    (fake / "00007.png").unlink()
    assert (
        "fake no longer has 1 image of new.npz (00007.png)"
        in here("stats", "fake", "-o", "x.npz", "--since", "new.npz", *OF_EACH).error
    )
    for file, message in {
        FILES / "pytorch_fid.npz": "has no exact sums",
        "none.npz": "no statistics file",
    }.items():
        assert message in here("stats", "fake", "-o", "x.npz", "--since", file, *OF_EACH).error


def test_gaps_are_found_where_files_are_skipped(here: Run, fake: Path) -> None:
    """Parts of two divisions, of which both have the damaged file, and neither another image."""
    settings = (
        *OF_EACH[:4],
        "--batch-size",
        1,
        "--no-cache",
        "--on-error",
        "skip",
        "--max-skip",
        0.1,
    )
    for of in (20, 13):
        for number in range(1, of + 1):
            assert (
                here(
                    "stats",
                    fake,
                    "-o",
                    f"{number}of{of}.npz",
                    "--part",
                    f"{number}/{of}",
                    *settings,
                ).status
                == 0
            )
    parts = {name: fidtool.read_statistics(name) for name in map(str, Path().glob("*of*.npz"))}
    (damaged,) = (
        name for name, each in parts.items() if each.skipped and name.endswith("of13.npz")
    )
    others = [
        name for name, each in parts.items() if not each.skipped and name.endswith("of20.npz")
    ]
    refused = here("merge", *others, damaged, "-o", "x.npz")
    assert "in common" in refused.error or "the files lack " in refused.error
    (same,) = (name for name, each in parts.items() if each.skipped and name.endswith("of20.npz"))
    assert here("merge", *others, same, "-o", "merged.npz").status == 0
    doubled = here("merge", *others, same, damaged, "-o", "x.npz")
    assert "in common" in doubled.error


def test_skipped_files_count_for_the_whole_set(here: Run, fake: Path) -> None:
    """A part may have more than its share, or nothing else, if the set has not."""
    settings = (*OF_EACH[:4], "--batch-size", 1, "--no-cache", "--on-error", "skip", "--max-skip")
    files = [f"{number}.npz" for number in range(1, 41)]
    for number, file in enumerate(files, 1):
        assert (
            here("stats", fake, "-o", file, "--part", f"{number}/40", *settings, 0.025).status == 0
        )
    assert here("merge", *files, "-o", "merged.npz").status == 0
    assert here("stats", fake, "-o", "whole.npz", *settings, 0.025).status == 0
    assert arrays("merged.npz") == arrays("whole.npz")
    assert "1 of 40 files" in here("stats", fake, "-o", "x.npz", *settings, 0.02).error
    (fake / "00012.png").write_bytes(b"damaged")
    for number, file in enumerate(files, 1):
        assert (
            here(
                "stats", fake, "-o", file, "--part", f"{number}/40", "--force", *settings, 0.025
            ).status
            == 0
        )
    refused = here("merge", *files, "-o", "x.npz")
    assert "2 of 40 files cannot be used, but --max-skip allows 1 (" in refused.error


@pytest.mark.parametrize("other", ["all", "mtime"])
def test_another_set_of_equal_names_and_sizes(
    here: Run, tmp_path: Path, passed: list[int], other: str
) -> None:
    """Of images without compression: parts compare a sample of the contents, and --since also times
    and some pixels.
    """
    for seed in (1, 2):
        make_pictures(tmp_path / str(seed), 30, seed, suffix=".bmp")
        for file in (tmp_path / str(seed)).iterdir():
            os.utime(file, ns=(0, seed * 10**9 if other == "mtime" else 0))
    for number, seed in enumerate((1, 2), 1):
        assert (
            here(
                "stats", str(seed), "-o", f"p{number}.npz", "--part", f"{number}/2", *OF_EACH
            ).status
            == 0
        )
    assert "come from different sets" in here("merge", "p1.npz", "p2.npz", "-o", "x.npz").error
    assert here("stats", "1", "-o", "old.npz", *OF_EACH).status == 0
    refused = here("stats", "2", "-o", "x.npz", "--since", "old.npz", *OF_EACH)
    assert (
        f"{30 if other == 'mtime' else 16} images of 2 changed after old.npz was computed"
        in refused.error
    )


def test_a_part_is_not_written_for_other_tools(here: Run, tmp_path: Path) -> None:
    part = fidtool.compute_statistics(
        str(make_pictures(tmp_path / "fake", 12, 1)), part="1/2", batch_size=4
    )
    assert part is not None
    with pytest.raises(InputError, match="of a part of a set, 1/2"):
        fidtool.write_statistics("x.npz", part, layout="pytorch-fid")


def test_files_that_are_damaged_stay_out(here: Run, fake: Path, passed: list[int]) -> None:
    """A sampler may still be writing one: it is tried each time, and counts as one of the whole
    set.
    """
    settings = (*OF_EACH, "--on-error", "skip", "--max-skip", 0.03)
    assert here("stats", "fake", "-o", "old.npz", *settings).status == 0
    passed.clear()
    done = here("stats", "fake", "-o", "new.npz", "--since", "old.npz", *settings)
    assert done.status == 0, done.stderr
    assert passed == []
    assert arrays("new.npz") == arrays("old.npz")


def test_files_that_were_skipped_are_tried_again(here: Run, fake: Path) -> None:
    settings = (*OF_EACH, "--on-error", "skip", "--max-skip", 0.5)
    assert here("stats", "fake", "-o", "old.npz", *settings).status == 0
    shutil.copy(fake / "00001.png", fake / "00011.png")
    done = here("stats", "fake", "-o", "new.npz", "--since", "old.npz", *settings)
    assert "39 images are already in old.npz, 1 are new" in done.stderr
    here("stats", "fake", "-o", "fresh.npz", *settings)
    assert arrays("new.npz") == arrays("fresh.npz")


def test_a_list_in_memory_grows(environment: dict[str, str], passed: list[int]) -> None:
    """Its images have no files: they are compared by their pixels."""
    rows = [*np.random.RandomState(0).randint(0, 256, (9, 16, 16, 3)).astype(np.uint8)]
    settings: dict[str, Any] = {"extractor": TINY, "cache": False}
    before = fidtool.compute_statistics(rows[:6], **settings)
    passed.clear()
    after = fidtool.compute_statistics(rows, since=before, **settings)
    assert sum(passed) == 3
    fresh = fidtool.compute_statistics(rows, **settings)
    assert after is not None
    assert fresh is not None
    assert after.sigma.tobytes() == fresh.sigma.tobytes()
    with pytest.raises(
        InputError, match=r"1 image of images changed after since was computed \(\[2\]\)"
    ):
        fidtool.compute_statistics([*rows[:2], rows[5], *rows[3:]], since=before, **settings)


def test_a_part_is_named_by_its_number_and_how_many_there_are() -> None:
    images = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    with pytest.raises(fidtool.InputError, match="there is no part 3: pass its number and how"):
        fidtool.compute_statistics(images, part=3)  # type: ignore[arg-type]
