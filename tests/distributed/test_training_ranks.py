"""Ranks of training programs under torchrun; the programs in programs/ have most of the checks."""

from __future__ import annotations

import re
from pathlib import Path

from support.command_line import Run
from support.goldens import Golden
from support.rank_lines import refusals
from support.reconstructions import write_backbone


def lines_of(output: str) -> dict[str, set[str]]:
    """Lines ``0 what: value`` of all ranks, as the set of values for each ``what``."""
    found: dict[str, set[str]] = {}
    for line in output.splitlines():
        if match := re.fullmatch(r"\d (.*?): (.*)", line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def test_gather_with_grad(programs: Run, golden: Golden) -> None:
    """Sizes 3, 5, 0, 2 on four ranks: every mode and every kind of failure."""
    run = programs(4, "gathers.py")
    assert run.status == 0, run.stderr
    assert run.stdout.count("check_absence ") == 4, "the last check"
    golden("training/refused_gathers", refusals(run.stderr))


def test_the_metric_has_the_same_bits_at_any_world_size(programs: Run) -> None:
    """For any distribution over ranks, batching, saving and restoring of the images; also with
    Inception.
    """
    seen: dict[str, set[str]] = {}
    for ranks in (1, 3):
        run = programs(
            ranks,
            "metric_values.py",
            "dealing",
            "of_each_image",
            "plain",
            "inception",
            "saved",
            "seeds",
        )
        assert run.status == 0, run.stderr
        found = lines_of(run.stdout)
        assert len(found) == (15 if ranks == 1 else 16), run.stdout
        for what, values in found.items():
            assert len(values) == 1 or what in ("one seed", "own seeds"), (
                f"the ranks disagree: {what} {values}"
            )
            seen.setdefault(what, set()).update(
                value.split(" of ")[0].split(" by ")[0] for value in values
            )
            if "57+53" in str(values):
                scope = "this process" if ranks == 1 else f"all {ranks} ranks"
                assert values == {f"{next(iter(values)).split()[0]} of 57+53 by {scope}"}
        warned = [line for line in run.stdout.splitlines() if "warned 1" in line]
        if ranks == 3:  # once, on one rank, if the ranks share a seed
            (line,) = warned
            assert line.startswith("0 one seed:")
            assert "24 of 24 generated images are on more than one rank (ranks 0, 1, 2)" in line
            assert "fidtool.sample_seed" in line
        assert len(warned) == (ranks > 1)
    exact = {what: {value.split(" warned")[0] for value in values} for what, values in seen.items()}
    same = ("last rank has nearly all", "shuffled", "real ones kept")
    assert len(set.union(*(exact[what] for what in same))) == 1, exact
    of_each_image = ("KID", "the Inception Score", "MIFID", "PRDC")
    for what in (
        "inception",
        "inference mode",
        "own",
        "whole",
        "unsynced",
        "own seeds",
        "plain",
        *of_each_image,
    ):
        assert len(exact[what]) == 1, (what, exact[what])
    assert len(exact["one seed"]) > 1, (
        "one seed on every rank gives a different value at each world size"
    )


def test_ranks_that_disagree(programs: Run, golden: Golden) -> None:
    """Different features, protocols or statistics, absent ranks, a failed rank; values of one rank
    or group only.
    """
    run = programs(3, "metric_values.py", "more_on_one", "disagreement", "alone", "out_of_range")
    assert run.status == 0, run.stderr
    found = lines_of(run.stdout)
    (more,) = found["more on one"]
    assert more.endswith("of 12+12 by all 3 ranks")
    assert found["disagreement"] == {"refused"}
    golden("training/refused_metrics", refusals(run.stderr))
    (alone,) = found["alone"]
    assert alone.endswith("of 4+4 by rank 1 of 3 alone")
    (half,) = found["half"]
    assert half.endswith("of 8+8 by all 2 ranks")


def test_ranks_of_which_one_failed_connect_again(programs: Run) -> None:
    """Those that waited for it have closed their connections, it has not."""
    run = programs(2, "metric_values.py", "lost_group")
    assert run.status == 0, run.stderr
    assert len(lines_of(run.stdout)["lost group"]) == 1


def test_a_rank_outside_the_group_saves_its_model(programs: Run) -> None:
    run = programs(2, "metric_values.py", "outside")
    assert run.status == 0, run.stderr
    assert run.stdout.count("outside: 4") == 2


def test_pairs_have_the_same_bits_at_any_world_size(programs: Run, tmp_path: Path) -> None:
    """PSNR, SSIM and LPIPS of uneven ranks, one without pairs; a sample that a sampler repeats
    counts once.
    """
    weights, exact, padded = (
        write_backbone(tmp_path / "alexnet.pth"),
        dict[str, set[str]](),
        list[str](),
    )
    moved = set[str]()
    for ranks in (1, 2, 3):
        checks = [
            "dealing",
            "padded",
            "moved",
            *["disagreement"] * (ranks == 3),
            *["lightning"] * (ranks == 2),
        ]
        run = programs(ranks, "pair_values.py", weights, *checks)
        assert run.status == 0, run.stderr
        found = lines_of(run.stdout)
        (said,) = found.pop("padded")
        padded.append(said)
        moved |= found.pop("moved")
        assert found.pop("warned") == {
            f"{rank} {int(ranks > 1 and rank == 0)}" for rank in range(ranks)
        }
        assert found.pop("disagreement", {"refused"}) == {"refused"}
        for title in ("PSNR", "SSIM"):
            for logged in found.pop(f"{title} logged", ()):
                assert next(iter(found[title])).startswith(logged.replace(" of 17", ","))
        assert found.keys() == {"PSNR", "SSIM", "LPIPS", "indexed"}
        for what, values in found.items():
            (value,) = values
            scope = "this process" if ranks == 1 else f"all {ranks} ranks"
            assert value.endswith(f"of 17 by {scope}, 0 warnings")
            exact.setdefault("PSNR" if what == "indexed" else what, set()).add(
                value.partition(" ")[0]
            )
    assert {what: len(values) for what, values in exact.items()} == {
        "PSNR": 1,
        "SSIM": 1,
        "LPIPS": 1,
    }
    (words,) = moved
    assert " of 17 sampled preds fit the target of another pair better" in words
    alone, of_two, of_three = padded
    assert alone == "17 ()"
    for text, last in ((of_two, 1), (of_three, 2)):
        words = (
            f"2 of 18 pairs are on more than one rank (ranks 0, {last}) and count more than once. Probably "
            "a sampler"
        )
        assert text.startswith(f'18 ("{words}'), text


def test_copies_in_sync(programs: Run, golden: Golden) -> None:
    """Differences are named; ArcFace's W diverges unless wrapped; gradients equal those of the
    joined batch.
    """
    run = programs(3, "in_sync.py")
    assert run.status == 0, run.stderr
    assert run.stdout.count("check_loss ") == 3, "the last check"
    golden("training/refused_replicas", refusals(run.stderr))


def test_ranks_that_only_see_a_closed_connection(programs: Run) -> None:
    """The rank that waits in torch's own collective says why the other one gave up."""
    # torchrun ends this rank as well, on a busy machine before it has printed the report.
    runs = (programs(2, "rank_zero_only.py") for _ in range(10))
    assert any(
        "fidtool: rank 0 ended its wait: FrechetInceptionDistance.compute()" in run.stderr
        for run in runs
    )
    run = programs(2, "rank_zero_only.py", "recover")
    assert run.status == 1
    assert "another failure" in run.stderr
    assert "fidtool: rank 0 ended its wait" not in run.stderr, "the program went on after that"
