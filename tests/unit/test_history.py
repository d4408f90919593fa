"""What changed between two results, histories of them, and the gate that compares with them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, nct, norm

from fidtool.distances.error_bars import interval
from fidtool.errors import InputError
from fidtool.report.text import dumps
from fidtool.result.changes import (
    append_history,
    compare_results,
    difference_lines,
    read_history,
    split_by_fake,
)
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Interval, Uncertainty
from fidtool.run.gates import check_gates, find_baselines
from fidtool.settings.settings import Settings
from fidtool.sources.crops import Crop
from fidtool.statistics.set_statistics import Gaussian
from support.report_samples import bare, rich
from support.simulations import distances_of_parts

T = 2.093024054408263
DRAWS = 200


def barred(value: float | None, *fakes: str, error: float = 1.0, real: str = "real") -> Evaluation:
    """Return an evaluation whose FAKEs have this bias-corrected FID; None: its error bars are
    withheld.
    """
    bar = None if value is None else Interval(value, error, value - T * error, value + T * error)
    bars = Uncertainty(
        None if bar is None else 1.0, bar, "too few images" if bar is None else "", ()
    )
    found = bare(*(fakes or ("fake",)), real=real)
    return replace(
        found, results=tuple(replace(each, uncertainties={"fid": bars}) for each in found.results)
    )


# --- the difference -------------------------------------------------------------------------------


def test_errors_of_independent_results_add_up_as_squares() -> None:
    one, other = (
        Interval(10.0, 3.0, 10 - 3 * T, 10 + 3 * T),
        Interval(8.0, 4.0, 8 - 4 * T, 8 + 4 * T),
    )
    found = one - other
    assert (found.value, found.error) == (2.0, 5.0)
    assert (found.low, found.high) == pytest.approx((2 - 5 * T, 2 + 5 * T))
    assert (one - other).low == pytest.approx(-(other - one).high)


def test_each_end_is_from_the_ends_towards_each_other() -> None:
    """The upper end of an interval is further away than the lower one."""
    found = Interval(10.0, 1.0, 9.0, 13.0) - Interval(4.0, 1.0, 3.0, 8.0)
    assert (found.low, found.high) == (6 - math.hypot(1, 4), 6 + math.hypot(3, 1))


def test_an_interval_as_text() -> None:
    """With the digits to the second one of its error, or with a number of decimals."""
    found = Interval(1.23456, 0.12345, 0.98, 1.5)
    assert found.texts() == ("1.23", "0.12", "0.98 to 1.50")
    assert found.texts("+", 4) == ("+1.2346", "0.1235", "+0.9800 to +1.5000")
    assert Interval(123.4, 12.3, 99.0, 150.0).texts() == ("123", "12", "99 to 150")
    assert Interval(0.5, 1e-9, 0.5, 0.5).texts("+") == ("+0.5000", "0.0000", "+0.5000 to +0.5000")
    assert found.signed == "+1.2346 (95 %: +0.9800 to +1.5000)"


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(4.0, "worse"), (-4.0, "better"), (2.0, "cannot be distinguished"), (None, "cannot tell")],
)
def test_verdicts(value: float | None, verdict: str) -> None:
    (change,) = compare_results(barred(10.0), barred(None if value is None else 10 + value))
    assert change.verdict == verdict
    if value is None:
        assert change.reason == "no error bars (too few images)"
    else:
        low, high = value - T * math.sqrt(2), value + T * math.sqrt(2)
        assert change.reason == f"bias-corrected FID {value:+.4f} (95 %: {low:+.4f} to {high:+.4f})"


def test_verdicts_are_as_often_right_as_promised() -> None:
    """Runs of two generators that differ by 0, 0.5, 1 and 3 standard errors of the difference; REAL
    is fixed.

    Without a true difference at most 5 % of the verdicts are worse or better. With one, worse is as
    frequent as in a t test at 5 % (with 19 degrees of freedom, and an interval that may be 5 %
    wider) to a z test. Bounds: 99.8 % of the binomial distribution.
    """
    rng, dims, images, error = np.random.default_rng(0), 16, 800, 0.107
    real = Gaussian(np.zeros(dims), np.eye(dims), 100_000)

    def runs(distance: float) -> list[Interval]:
        rows = rng.standard_normal((DRAWS, images, dims))
        rows[..., 0] += math.sqrt(distance)
        return [Interval(*interval(parts)) for parts in distances_of_parts(real, rows)]

    before = runs(1.0)
    for effect in (0.0, 0.5, 1.0, 3.0):
        found = [after - one for after, one in zip(runs(1.0 + effect * error), before, strict=True)]
        actual = float(np.std([each.value for each in found], ddof=1))
        assert actual == pytest.approx(error, rel=0.15)
        worse, better = ([each.sign for each in found].count(sign) for sign in (1, -1))
        print(f"{effect} standard errors: {worse} worse, {better} better of {DRAWS}")
        assert better <= binom.ppf(0.999, DRAWS, norm.cdf(-1.96 - effect))
        least, most = (
            nct.sf(1.05 * T, 19, effect * error / actual),
            norm.cdf(effect * error / actual - 1.96),
        )
        assert binom.ppf(0.001, DRAWS, least) <= worse <= binom.ppf(0.999, DRAWS, most)


@pytest.mark.parametrize("role", ["real", "fake"])
def test_values_of_two_precisions_are_not_compared(role: str) -> None:
    before, (result,) = barred(10.0), barred(30.0).results
    of_role = getattr(result, role)
    other = replace(of_role, precision="bf16")
    (change,) = compare_results(
        before, replace(before, results=(replace(result, **{role: other}),))
    )
    assert change.verdict == "not comparable"
    assert change.reason == f"{role.upper()}.precision: - -> bf16"


# --- two results ----------------------------------------------------------------------------------


def test_what_differs_besides_is_listed() -> None:
    before, after = barred(10.0), barred(10.0)
    run = replace(
        after.run,
        versions={**after.run.versions, "torch": "3.0"},
        config={"metrics": ["fid"]},
        host="x",
    )
    real = replace(after.results[0].real, formats={"PNG": 100})
    (change,) = compare_results(
        before, replace(after, run=run, results=(replace(after.results[0], real=real),))
    )
    assert change.besides == {
        ("settings", "batch_size"): (50, None),
        ("settings", "metrics"): (["fid", "kid"], ["fid"]),
        ("settings", "exhibits"): (True, None),
        ("REAL", "formats"): (None, {"PNG": 100}),
        ("environment", "host"): ("node7", "x"),
        ("environment", "versions", "torch"): ("2.9", "3.0"),
    }
    assert change.verdict == "cannot be distinguished"


def test_a_difference_is_said_once_in_plain_words() -> None:
    """Without Python's dictionaries, and without the number of images again."""
    before, (result,) = barred(10.0), barred(10.0).results
    facts = {"formats": {"PNG": 100}, "sizes": {"8x8": 90, "9x9": 10}, "pixels": "ab" * 32}
    real = replace(result.real, found=100, **facts)
    fewer = {
        "with_features": 99,
        "formats": {"PNG": 99},
        "sizes": {"8x8": 89, "9x9": 10},
        "pixels": "cd" * 32,
    }
    run = replace(
        before.run, config={"batch_size": 50, "exhibits": False, "metrics": ["fid"], "seed": 1}
    )
    old = replace(
        before, results=(replace(result, real=real),), settings={"kid": {"subsets": 5, "seed": 0}}
    )
    new = replace(
        before, results=(replace(result, real=replace(real, count=99, found=99, **fewer)),), run=run
    )
    (change,) = compare_results(old, new)
    assert change.reason == "REAL.count: 100 -> 99"
    assert difference_lines(change.besides) == [
        "settings.metrics: fid, kid -> fid",
        "settings.exhibits: true -> false",
        "settings.kid: subsets: 5, seed: 0 -> -",
        "settings.seed: - -> 1",
        "REAL.count: 100 -> 99",
        "REAL.images with features: - -> 99",
        "REAL.sizes.8x8: 90 -> 89",
    ]


def test_long_values_are_cut_between_words() -> None:
    parts = {f"setting_{number}": None for number in range(9)}
    assert difference_lines({("REAL", "made_with"): (None, parts)}) == [
        "REAL.settings of its file: - -> setting_0: null, setting_1: null, …"
    ]
    (line,) = difference_lines({("REAL", "name"): ("a", "b" * 50)})
    assert line == f"REAL.name: a -> {'b' * 13}…{'b' * 26}"


def test_a_crop_says_that_pixels_differ() -> None:
    before, (result,) = barred(10.0), barred(10.0).results
    for framing, lines in (
        (None, ["REAL.pixels: a -> b"]),
        (Crop("adm", 256), ["REAL.framing: - -> adm:256"]),
    ):
        old, new = (replace(result.real, pixels=each) for each in "ab")
        results = (replace(result, real=replace(new, framing=framing)),)
        (change,) = compare_results(
            replace(before, results=(replace(result, real=old),)), replace(before, results=results)
        )
        assert difference_lines(change.besides) == lines
        assert change.reason == lines[0]


def test_values_of_other_images_or_features_are_not_comparable() -> None:
    before, (result,) = barred(10.0), barred(20.0).results
    definition = before.definition
    assert definition is not None
    other = [
        replace(before, definitions={"features": replace(definition, resize="bicubic")}),
        barred(20.0, real="another"),
        replace(before, results=(replace(result, real=replace(result.real, count=99)),)),
        replace(
            before, results=(replace(result, fake=replace(result.fake, framing=Crop("adm", 256))),)
        ),
    ]
    words = [
        "protocol.features.resize",
        "REAL.name: real -> another",
        "REAL.count: 100 -> 99",
        "FAKE.framing",
    ]
    for after, word in zip(other, words, strict=True):
        (change,) = compare_results(before, after)
        assert (change.verdict, change.difference) == ("not comparable", None)
        assert word in change.reason
    (change,) = compare_results(before, barred(20.0, "fake/", real="./real"))
    assert change.verdict == "worse"
    seen, others = (replace(result.real, pixels=each * 32) for each in ("ab", "cd"))
    known, changed = (
        replace(before, results=(replace(result, real=each),)) for each in (seen, others)
    )
    assert compare_results(before, known)[0].verdict == "worse", (
        "what is unknown without the diagnosis is no other REAL"
    )
    assert compare_results(known, changed)[0].verdict == "not comparable"
    moved = replace(before, results=(replace(result, real=replace(seen, name="/data/real")),))
    assert compare_results(known, moved)[0].verdict == "cannot be distinguished", (
        "the same images at another path"
    )
    assert compare_results(before, moved)[0].verdict == "not comparable", (
        "it is unknown whether they are"
    )


def test_fakes_are_compared_by_name_or_if_there_is_only_one() -> None:
    both, third = barred(10.0, "a", "b"), barred(10.0, "c")
    changes = compare_results(both, barred(11.0, "b", "a", "d"))
    assert [(each.fake, each.metrics["fid"]) for each in changes] == [
        ("b", (13.3456, 12.3456)),
        ("a", (12.3456, 13.3456)),
        ("d", (None, 14.3456)),
    ]
    assert [each.fake for each in compare_results(third, barred(11.0, "d"))] == ["c -> d"]
    reasons = {
        each.fake: (each.verdict, each.reason, each.besides)
        for each in compare_results(both, third)
    }
    assert reasons == {
        "a": ("cannot tell", "only result A has this FAKE", {("FAKE", "name"): ("a", None)}),
        "b": ("cannot tell", "only result A has this FAKE", {("FAKE", "name"): ("b", None)}),
        "c": ("cannot tell", "only result B has this FAKE", {("FAKE", "name"): (None, "c")}),
    }


# --- histories ------------------------------------------------------------------------------------


def test_a_line_per_fake_without_single_images(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    full = rich(bare("a", "b"), ["x.png", "y.png", "z.png"])
    for _ in range(2):
        append_history(full, file)
    lines = file.read_text().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) < 10_000
    assert "x.png" not in file.read_text()
    found, problems = read_history(file)
    assert problems == []
    assert [each.results[0].fake.name for each in found] == ["a", "b", "a", "b"]
    assert found[0].results[0].metrics == full.results[0].metrics
    assert found[0].results[0].corrected == full.results[0].corrected


def test_secrets_and_control_characters_stay_out_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    append_history(bare("https://bob:hunter2@host/fake.zip?sig=SECRET", "a\nb\x1b[2J"), file)
    text = file.read_text()
    assert "hunter2" not in text
    assert "SECRET" not in text
    assert text.count("\n") == 2
    assert "\x1b" not in text


def test_broken_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    append_history(bare("a"), file)
    wrong = json.loads(file.read_text())
    wrong["results"][0]["metrics"]["fid"] = "12"
    lines = [
        b"{",
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"fid": 3}',
        json.dumps(wrong).encode(),
        b'{"cut": "sh',
    ]
    file.write_bytes(file.read_bytes() + b"\r\n".join(lines))
    append_history(bare("b"), file)
    found, problems = read_history(file)
    assert [each.results[0].fake.name for each in found] == ["a", "b"]
    assert [each.text.split(": line ")[1].split()[0] for each in problems] == [
        "2",
        "4",
        "5",
        "6",
        "7",
        "8",
    ]
    assert all(len(each.text) < 300 for each in problems)


def test_a_file_without_any_result_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "fid.json").write_text(dumps(bare("a").to_dict()))
    with pytest.raises(
        InputError,
        match=r"line 1 is left out.*; all other lines are left out as well: pass the file of "
        "history",
    ):
        read_history(tmp_path / "fid.json")
    (tmp_path / "empty.jsonl").touch()
    assert read_history(tmp_path / "empty.jsonl") == ([], [])


def test_the_oldest_comes_first(tmp_path: Path) -> None:
    for date in ("2025-02-01T00:00:00Z", "2025-01-01T00:00:00Z"):
        evaluation = bare(date)
        append_history(
            replace(evaluation, run=replace(evaluation.run, date=date)), tmp_path / "h.jsonl"
        )
    found, _ = read_history(tmp_path / "h.jsonl")
    assert [each.results[0].fake.name for each in found] == [
        "2025-01-01T00:00:00Z",
        "2025-02-01T00:00:00Z",
    ]


# --- the gate -------------------------------------------------------------------------------------


def missed(now: Evaluation, file: Path) -> list[str]:
    """Return the missed gates of a run, and the lines of the history that it cannot read."""
    settings = Settings(uncertainty=True, fail_worse_than=file)
    paths = [now.results[0].real.name, *(each.fake.name for each in now.results)]
    baselines, unread = find_baselines(settings, paths, now.definition)
    alone = zip(split_by_fake(now), baselines, strict=True)
    return [
        *(line for each, baseline in alone for line in check_gates(each, settings, baseline)),
        *map(str, unread),
    ]


def gated(evaluation: Evaluation) -> Evaluation:
    results = (replace(each, missed=("it is worse than yesterday",)) for each in evaluation.results)
    return replace(evaluation, results=tuple(results))


def saved(evaluation: Evaluation, file: Path) -> Path:
    file.write_text(dumps(evaluation.to_dict()))
    return file


def test_the_gate_is_missed_if_worse_and_if_undecided(tmp_path: Path) -> None:
    file = saved(barred(10.0), tmp_path / "b.json")
    assert missed(barred(12.0), file) == missed(barred(5.0), file) == []
    (line,) = missed(barred(14.0), file)
    assert (
        line
        == f"fake is worse than in {file}: bias-corrected FID +4.0000 (95 %: +1.0400 to +6.9600)"
    )
    (line,) = missed(barred(None), file)
    assert line == f"fake cannot be compared with {file}: no error bars (too few images)"
    fewer = barred(5.0)
    real = replace(fewer.results[0].real, count=50)
    (line,) = missed(replace(fewer, results=(replace(fewer.results[0], real=real),)), file)
    assert line == f"fake is not comparable with {file}: REAL.count: 100 -> 50"


def test_the_baseline_is_of_the_same_fake_or_the_only_one(tmp_path: Path) -> None:
    two = split_by_fake(barred(10.0, "a")) + split_by_fake(barred(20.0, "b"))
    both = saved(
        replace(two[0], results=(two[0].results[0], two[1].results[0])), tmp_path / "two.json"
    )
    (line,) = missed(barred(16.0, "a", "b"), both)
    assert line.startswith("a is worse")
    assert len(missed(barred(16.0, "c", "d"), saved(barred(10.0), tmp_path / "one.json"))) == 2
    with pytest.raises(InputError, match="has no result of c against real with error bars"):
        missed(barred(16.0, "c"), both)


def test_the_latest_of_a_history_that_missed_no_gate(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    for evaluation in (
        barred(5.0),
        barred(10.0),
        gated(barred(99.0)),
        barred(90.0, "other"),
        barred(90.0, real="another"),
        barred(None),
    ):
        append_history(evaluation, file)
    with file.open("a") as handle:
        handle.write("{\n")
    line, unread = missed(barred(15.0), file)
    assert "FID +5.0000" in line
    assert "line 7 is left out" in unread
    with pytest.raises(
        InputError, match=r"has no result of third .* that missed no gate: compute one"
    ):
        missed(barred(15.0, "third"), file)


def test_the_first_result_of_a_history_needs_no_baseline(tmp_path: Path) -> None:
    """Only if the same run appends to it, and nothing is in it yet."""
    file, other, now = tmp_path / "h.jsonl", tmp_path / "other.jsonl", barred(10.0, "a", "b")
    settings = Settings(uncertainty=True, fail_worse_than=file, history=tmp_path / "." / "h.jsonl")
    for _ in range(2):
        baselines, (warning,) = find_baselines(settings, ["real", "a", "b"], now.definition)
        assert (baselines, str(warning)) == (
            (None, None),
            f"{file} has no baseline yet: this result becomes the first",
        )
        with pytest.raises(InputError):
            find_baselines(replace(settings, history=other), ["real", "a", "b"], now.definition)
        file.touch()
    append_history(gated(now), file)
    with pytest.raises(InputError, match=r"has no result of a .* that missed no gate"):
        find_baselines(settings, ["real", "a", "b"], now.definition)
    append_history(now, file)
    with pytest.raises(InputError, match="has no result of c "):
        find_baselines(settings, ["real", "c"], now.definition)
    assert all(find_baselines(settings, ["real", "a", "b"], now.definition)[0])


def test_a_baseline_must_fit_before_any_work(tmp_path: Path) -> None:
    now = barred(10.0)
    definition = now.definition
    assert definition is not None
    other = replace(now, definitions={"features": replace(definition, resize="bicubic")})
    for before, problem in (
        (bare("fake"), "with error bars and features of inception, pytorch-fid"),
        (barred(10.0, real="another"), "against real"),
        (
            other,
            r"of inception, pytorch-fid \(the latest has resize bicubic against bilinear\): compute one",
        ),
    ):
        with pytest.raises(InputError, match=problem) as caught:
            missed(now, saved(before, tmp_path / "b.json"))
        assert caught.value.setting == "fail_worse_than"
    for name, content in (
        ("none.json", None),
        ("empty.jsonl", b""),
        ("bad.json", b"{"),
        (".", None),
    ):
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(
            InputError, match=name.replace(".", r"\.") if name != "." else "directory"
        ):
            missed(now, file)


def test_settings_that_contradict() -> None:
    with pytest.raises(
        InputError,
        match="fail_worse_than compares error bars, which are not requested: add uncertainty=True",
    ):
        Settings(fail_worse_than="b.json")
