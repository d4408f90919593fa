"""scripts/compare: masks, and differences in texts, files and whole versions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.places import ROOT, SCRIPTS
from support.processes import PATIENCE

sys.path.append(str(SCRIPTS))

from compare import facts, masks
from compare.case import Case, Facts, fidtool, other
from compare.cases import table_of, uncovered
from compare.command import compare, unproven

FACTS = Facts(
    ["check", "compute"],
    {"check": {"--json": False, "--newest": True}, "compute": {"--num": True}},
    ["clean"],
    ["fid", "is"],
)


def found_in(first: object, second: object) -> list[str]:
    texts = (json.dumps(each) for each in (first, second))
    return [each.what for each in masks.text_differences(*texts, masks.KEYS)]


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"fid": 1.0}, {"fid": 1.0}, []),
        ({"fid": 1.0}, {"fid": 1.0000000000000002}, ["fid"]),
        ({"fid": 0.0}, {"fid": -0.0}, ["fid"]),
        ({"fid": 1}, {"fid": 1.0}, ["fid"]),
        ({"fid": 1}, {"fid": "1"}, ["fid"]),
        ({"fid": None}, {"fid": False}, ["fid"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["document: keys"]),
        ({"a": {"b": 1}}, {"a": {}}, ["a: keys"]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["a.1.b"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a: length"]),
        ({"run": {"host": "a", "seconds": {"x": 1.5}}}, {"run": {"host": "b", "seconds": {"x": 2.5}}}, []),
        ({"run": {"host": "a"}}, {"run": {"host": None}}, ["run.host"]),
        ({"run": {"seconds": {"x": 1.5}}}, {"run": {"seconds": {"y": 1.5}}}, ["run.seconds: keys"]),
        ({"run": {"versions": {"torch": "2"}}}, {"run": {"versions": {"torch": "3"}}}, ["run.versions.torch"]),
        ({"host": "a"}, {"host": "b"}, ["host"]),
    ],
)
def test_json_is_compared_value_by_value(first: object, second: object, what: list[str]) -> None:
    assert found_in(first, second) == what


def test_the_layout_of_json_must_be_equal() -> None:
    document = {"run": {"host": "a, b"}, "x": -1.5e-7}
    compact, spread = json.dumps(document), json.dumps(document, indent=2)
    assert list(masks.text_differences(spread, spread.replace("a, b", "c"), masks.KEYS)) == []
    assert next(masks.text_differences(compact, spread, masks.KEYS)).what == "line 1"


def test_texts_are_compared_line_by_line() -> None:
    (found,) = masks.text_differences("a\nb\n", "a\nc\n", ())
    assert str(found) == "line 2: 'b' | 'c'"
    assert [str(each) for each in masks.text_differences("a\n", "a", ())] == ["line 2: '' | None"]
    assert len(list(masks.text_differences("\n" * 50, "", ()))) == masks.MOST_LINES


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("48 images through the network, 19.5 images/s (plan 0.0 s)", "48 images through the network, <speed> (plan"),
        ("seconds in all. It took 12 s. 64 pictures", "seconds in all. It took <seconds>. 64 pictures"),
        ("error: rank 1 did not come within 2 s", "error: rank 1 did not come within 2 s"),
        ("rank 1 (process 4711) at 127.0.0.1:29500 ended", "rank 1 (process <pid>) at 127.0.0.1:<port> ended"),
        ("/a/site/fidtool/x.py on 2026-01-31T23:59:59Z", "<site>/fidtool/x.py on <date>"),
        ("FID: 12.3456, 3 sets, s3://bucket", "FID: 12.3456, 3 sets, s3://bucket"),
    ],
)
def test_values_that_differ_between_any_two_runs_are_masked(text: str, left: str) -> None:
    assert masks.masked(text, {"/a/site": "<site>"}).startswith(left)


REPORT = """
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
*****************************************
kept has 24 images
Traceback (most recent call last):
ValueError: a rank's own
error: cannot decode 011.png
E1123 18:24:51.929000 13658 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2)
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
fidtool FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
============================================================
48 images through the network
"""


def test_only_torchruns_own_lines_are_removed() -> None:
    remaining = masks.own_lines(masks.masked(REPORT, {})).splitlines()
    assert remaining == [
        "48 images through the network",
        "Traceback (most recent call last):",
        "ValueError: a rank's own",
        "error: cannot decode 011.png",
        "kept has 24 images",
    ]


def change_bit(arrays: dict[str, np.ndarray]) -> None:
    arrays["sigma"][1, 0] = np.nextafter(arrays["sigma"][1, 0], 9)


def change_dtype(arrays: dict[str, np.ndarray]) -> None:
    arrays["mu"] = arrays["mu"].astype(">f8")


def change_order(arrays: dict[str, np.ndarray]) -> None:
    arrays["mu"] = arrays.pop("mu")


def change_layout(arrays: dict[str, np.ndarray]) -> None:
    arrays["sigma"] = np.asfortranarray(arrays["sigma"])


def change_text(arrays: dict[str, np.ndarray]) -> None:
    arrays["fingerprint"] = np.array('{"dims": 3, "run": {"host": "c"}}')


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda arrays: None, []),
        (change_bit, ["file a.npz: sigma 1 of 9 values, the first at 3"]),
        (change_dtype, ["file a.npz: mu kind"]),
        (change_order, ["file a.npz: arrays"]),
        (change_layout, ["file a.npz: sigma kind"]),
        (change_text, ["file a.npz: fingerprint dims"]),
        (lambda arrays: arrays.update(more=np.zeros(1)), ["file a.npz: arrays"]),
    ],
)
def test_arrays_are_compared_bit_by_bit(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object], what: list[str]
) -> None:
    arrays = {"mu": np.arange(3.0), "sigma": np.ones((3, 3))}
    arrays["fingerprint"] = np.array('{"dims": 2, "run": {"host": "b"}}')
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", **arrays)
        change(arrays)
    folders = tmp_path / "one", tmp_path / "other"
    assert [each.what for each in masks.folder_differences(*folders, masks.KEYS, {})] == what


def test_file_names_are_compared(tmp_path: Path) -> None:
    for name, left in (("one", "a.txt"), ("other", "b.txt")):
        (tmp_path / name / "kept").mkdir(parents=True)
        (tmp_path / name / left).write_text("same")
        (tmp_path / name / f"kept/000-{'5e1f' * 3}-{left[0] * 12}-00000.part").write_bytes(b"same")
    (found,) = masks.folder_differences(tmp_path / "one", tmp_path / "other", (), {})
    assert str(found) == "files: ['a.txt'] | ['b.txt']"
    assert list(masks.folder_differences(tmp_path / "one", tmp_path / "other", (), {}, [r"[ab]\.txt"])) == []


def test_every_flag_and_protocol_has_a_case() -> None:
    table = table_of(FACTS)
    assert {"help/check", "usage/compute --num", "protocols/clean", "metrics/is"} <= set(table)
    assert list(uncovered(table, FACTS)) == ["check --newest"]
    seen = {"a/b": Case("a/b", (fidtool("check x --newest=3 --json"),))}
    assert list(uncovered(seen, FACTS)) == ["compute --num"]


def test_facts_lists_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    facts.main()
    flags = json.loads(capsys.readouterr().out)
    assert {name for name, given in flags.items() if not given} == {"guide", "protocols"}
    assert flags["compute"]["--dims"] is True
    assert flags["compute"]["--json"] is False


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("sources/a", (), [[0], [0, 0], []]),
        ("usage/a", (), [[2], [2, 2], []]),
        ("failures/a", (1,), [[1], [1, 1], []]),
        ("ranks/a", (3, (3, 0), 0), [[3], [3, 0], []]),
        ("ranks/a", (0, -9, 0), [[0], [-9, -9], []]),
    ],
)
def test_each_case_expects_its_exit_statuses(name: str, given: tuple[int, ...], expected: list[list[int]]) -> None:
    steps = fidtool("check a"), fidtool("check b", ranks=2), other("copy", "a", "b")
    case = Case(name, steps, statuses=given)
    assert case.expected == expected
    assert unproven(case, expected) is None


def test_a_case_with_unexpected_statuses_is_inconclusive() -> None:
    case = Case(
        "gates/a", (fidtool("compute a b", ranks=2), other("remove", "a"), fidtool("cache")), statuses=(3, 0, 0)
    )
    assert unproven(case, [[3, 3], [], [0]]) is None
    assert unproven(case, [[3, 0], [], [0]]) == "gates/a (status 3,0 0, expected 3,3 0)"
    assert unproven(case, [[3, 3], [], [None]]) == "gates/a (status 3,3 None, expected 3,3 0)"


class EqualSides:
    """A stand-in for a bench whose two versions are always equal, and exit with the given statuses."""

    sides = (Path("frozen"), Path("tree"))

    def __init__(self, *statuses: int) -> None:
        self.statuses = [[[status] for status in statuses]] * 2

    def facts(self, side: Path) -> Facts:
        return FACTS

    def differences(self, case: Case) -> list[masks.Difference]:
        return []


def test_versions_with_the_same_failure_are_not_equal(capsys: pytest.CaptureFixture[str]) -> None:
    for statuses, equal in (((0, 2, 0), True), ((0, 0, 0), False)):
        bench: Any = EqualSides(*statuses)
        assert compare(bench, ["gates/expect"]) is equal
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note: ")]
    assert printed == [
        "1 cases (1 gates): all equal",
        "1 inconclusive cases: gates/expect (status 0 0 0, expected 0 2 0)",
        "1 cases (1 gates): all equal, 1 INCONCLUSIVE",
    ]


@pytest.mark.parametrize("given", [(0, 1, 2), ((0, 0),)])
def test_wrong_numbers_of_statuses_are_rejected(given: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="statuses"):
        _ = Case("gates/a", (fidtool("cache"), fidtool("cache")), statuses=given).expected


def test_the_frozen_version_is_required() -> None:
    command = [sys.executable, str(SCRIPTS / "compare")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "Missing option '--frozen'" in done.stderr) == (2, True)
    done = subprocess.run([*command, "--masks"], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "run.host" in done.stdout) == (0, True)


def run_script(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPTS / "compare"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.slow
def test_changes_are_reported(tmp_path: Path) -> None:
    """Changes of a flag's help, of a JSON key and of an exit status are found in the cases that show them only."""
    shutil.copytree(ROOT / "fidtool", tmp_path / "fidtool", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    changes = (
        ("2026-11-01, or more", "2026-12-01, or more", "help/cache"),
        ('"passed_over"', '"passed"', "sources/images.zip"),
        ("return 3 if", "return 4 if", "gates/missed"),
    )
    for old, new, _ in changes:
        files = [file for file in (tmp_path / "fidtool").rglob("*.py") if old in file.read_text()]
        assert files, f"{old} no longer exists in the sources: choose another change"
        for file in files:
            file.write_text(file.read_text().replace(old, new))
    cases = [*(case for *_, case in changes), "help/check"]
    status, stdout = run_script(
        "--frozen", "HEAD", "--tree", tmp_path, *(word for case in cases for word in ("--only", case))
    )
    assert status == 1
    for *_, case in changes:
        assert f"DIFFERS {case!r}: " in stdout
    assert stdout.splitlines()[-1] == "4 cases (2 help, 1 sources, 1 gates): 3 DIFFER"
