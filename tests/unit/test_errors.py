"""Errors as data, and how they name settings: flags on the command line, arguments in Python."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import threading
from collections.abc import Iterator

import click
import pytest

from fidtool import InputError, RunError, StoppedError
from fidtool.cli.compute import compute
from fidtool.cli.output import format_flag
from fidtool.distributed.rendezvous import AbsentRanksError
from fidtool.errors import (
    FidtoolError,
    SettingPart,
    TooFewImagesError,
    option,
    rename_setting,
    render,
)
from fidtool.metrics.kid import KID
from fidtool.metrics.prdc import PRDC
from fidtool.settings.settings import PYTHON, Settings
from fidtool.validation import find_settings
from support.places import ROOT

SPELLINGS = [
    (("on_error", "skip"), "--on-error skip", "on_error='skip'"),
    (("num",), "--num", "num"),
    (("feature_step", -4), "--feature-step -4", "feature_step=-4"),
    (("value_range", (0, 1)), "--value-range 0,1", "value_range=(0, 1)"),
    (("weights", ...), "--weights FILE", "weights=..."),
    (("diagnose",), "--diagnosis", "diagnose"),
    (("diagnose", False), "--no-diagnosis", "diagnose=False"),
    ((KID.named("subset_size"), 5), "--kid-subset-size 5", "KID(subset_size=5)"),
    ((PRDC.named("nearest_k"),), "--nearest-k", "nearest_k of PRDC(...)"),
    (("feature", 64), "feature=64", "feature=64"),
    (
        (SettingPart("extractor", "dinov2@step"), 9),
        "--extractor dinov2@step=9",
        "extractor='dinov2@step=9'",
    ),
    ((SettingPart(KID.named("kernel"), "a"), 9), "--kid-kernel a=9", "KID(kernel='a=9')"),
]


@pytest.mark.parametrize(("given", "flag", "argument"), SPELLINGS)
def test_a_setting_is_named_as_users_pass_it(
    given: tuple[str, object], flag: str, argument: str
) -> None:
    assert render(option(*given)) == argument
    assert render(f"pass {option(*given)} or x", format_flag) == f"pass {flag} or x"


def test_what_only_looks_like_a_setting_does_no_harm() -> None:
    assert render("\x01a\x02(\x03 \x01b\x02 \x03") == "a='(' b=' '"


def test_a_setting_can_have_another_name_in_the_errors_of_a_block() -> None:
    with (
        pytest.raises(InputError, match=r"^no file x \(from other\): pass other='y'$"),
        rename_setting("weights", "other"),
    ):
        raise InputError(f"no file x (from {option('weights')}):", f"pass {option('weights', 'y')}")


def test_a_setting_of_a_metric_can_have_another_name_as_well() -> None:
    setting = KID.named("subset_size")
    with (
        pytest.raises(InputError, match=r"^size is 0: pass size=2$") as caught,
        rename_setting(setting, "size"),
    ):
        raise InputError(f"{option(setting)} is 0:", f"pass {option(setting, 2)}", setting=setting)
    assert caught.value.setting == "size"


def test_remedies_and_a_note_can_be_added() -> None:
    error = InputError("a is not b:", "give c")
    error.advise("leave d out")
    error.note += " (from e)"
    assert str(error) == "a is not b: give c, or leave d out (from e)"


def test_every_setting_has_a_flag_that_click_accepts() -> None:
    flags = {
        flag for each in compute.params if isinstance(each, click.Option) for flag in each.opts
    }
    assert {
        format_flag(name) for name, each in find_settings(Settings).items() if each.group != PYTHON
    } <= flags


def test_a_message_is_composed_of_its_parts() -> None:
    error = InputError("a is not b:", "give c", "leave d out", setting="num")
    assert (error.problem, error.remedies, error.setting) == (
        "a is not b",
        ("give c", "leave d out"),
        "num",
    )
    assert str(error) == "a is not b: give c, or leave d out"
    assert str(InputError("a is not b", "give c")) == "a is not b; give c"
    assert str(InputError("a is not b:")) == "a is not b:"


def test_the_parts_of_an_error_are_as_python_writes_them() -> None:
    error = InputError(
        f"{option('num')} is 3:",
        f"omit {option('diagnose', False)}",
        setting=PRDC.named("nearest_k"),
    )
    assert (error.problem, error.remedies, error.setting) == (
        "num is 3",
        ("omit diagnose=False",),
        "nearest_k",
    )
    assert repr(error) == "InputError('num is 3: omit diagnose=False')"


@pytest.mark.parametrize("way", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copied_error_has_all_attributes(way: object) -> None:
    error = RunError("a:", "b", "c", setting="num")
    error.location, error.note = " (rank 1 on x)", "; d"
    other = way(error)  # type: ignore[operator]
    assert (type(other), str(other), other.setting) == (
        RunError,
        "a: b, or c (rank 1 on x); d",
        "num",
    )
    assert way(StoppedError("f", 143)).exit_code == 143  # type: ignore[operator]


def test_an_error_of_a_programs_own_class_reaches_other_ranks() -> None:
    class OwnError(InputError):  # a class that other processes cannot import, with other arguments
        def __init__(self, code: int, place: str) -> None:
            super().__init__(f"code {code}:", f"look at {place}", setting="num")
            self.lock = threading.Lock()

    error = OwnError(3, "x")
    error.note += "; d"
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), other.setting) == (InputError, "code 3: look at x; d", "num")
    assert other.exit_code == 2


def test_errors_are_pythons_errors_as_well() -> None:
    """Programs for torchmetrics or other tools catch these."""
    few = TooFewImagesError("FID needs at least 2 real images", setting="num")
    for error, kinds in (
        (InputError("a"), [ValueError]),
        (RunError("a"), [RuntimeError]),
        (few, [InputError, ValueError, RuntimeError]),
        (AbsentRanksError("a", [3]), [RunError, RuntimeError]),
    ):
        for other in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert all(isinstance(other, kind) for kind in kinds)
            assert other.__dict__.keys() >= error.__dict__.keys()
    assert not isinstance(InputError("a"), RuntimeError)
    assert not isinstance(RunError("a"), ValueError)


# --- the source -----------------------------------------------------------------------------------

PACKAGE = ROOT / "fidtool"
FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"`[^`]*`|\(pip install [^)]*\)")
OTHERS_FLAGS = {
    "run/extract.py": "of `fidtool stats --layout`, the only caller",
    "sources/archives.py": "of tar",
}


def sources(words: re.Pattern[str]) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the package that have some words, except those of the command line."""
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        text = file.read_text("utf-8")
        if words.search(text) and not name.startswith("cli/"):
            yield name, ast.parse(text)


def strings(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module except docstrings and those in declarations of settings."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        name = ast.unparse(node.func).partition("(")[0] if isinstance(node, ast.Call) else ""
        if name in ("Setting", "setting"):  # or setting(...).help(...)
            left_out |= {id(each) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in left_out
        ):
            yield node.value


def test_only_the_command_line_names_flags() -> None:
    """All other code names settings with `option`. Commands for users are in backticks."""
    found = {
        name: text
        for name, tree in sources(FLAG)
        for text in strings(tree)
        if FLAG.search(COMMAND.sub("", text)) and name not in OTHERS_FLAGS
    }
    assert found == {}


def test_settings_named_in_messages_exist() -> None:
    known = {
        *find_settings(Settings),
        "feature",
        "num_samples",
        "real",
        "fake",
        "index",
        "data_range",
    }
    named = [
        (name, each.value)
        for name, tree in sources(re.compile(r"\boption\(|\bsetting="))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for each in [
            *(
                call.args[:1]
                if isinstance(call.func, ast.Name) and call.func.id == "option"
                else []
            ),
            *(word.value for word in call.keywords if word.arg == "setting"),
        ]
        if isinstance(each, ast.Constant)
    ]
    assert len(named) > 50
    assert [each for each in named if each[1] not in known] == []


def test_an_error_about_one_setting_names_it() -> None:
    """The error has the setting as an attribute, and its message begins with the setting's name."""
    for name, value in [
        ("num", 0),
        ("seed", 1.5),
        ("device", 0),
        ("checkpoint", ""),
        ("value_range", (1, 0)),
    ]:
        with pytest.raises(FidtoolError) as refused:
            Settings(**{name: value})  # type: ignore[arg-type]
        assert (refused.value.setting, str(refused.value).split()[0]) == (name, name)
        assert render(refused.value.text, format_flag).split()[0] == format_flag(name)


def test_the_setting_is_the_first_that_the_problem_names() -> None:
    of_metric = option(KID.named("subset_size"), 5)
    remedy = f"pass {option('seed')}"
    problem = f"{option('num')} and {option('crop')} contradict each other:"
    assert InputError(problem, remedy).setting == "num"
    assert InputError(problem, remedy, setting="crop").setting == "crop"
    assert InputError(f"{of_metric} is large:", remedy).setting == "subset_size"
    assert InputError("a is not b:", remedy).setting is None


def test_a_long_value_is_not_printed_whole() -> None:
    with pytest.raises(
        InputError, match=r"^report must be a string, not \[0, 1, 2, .*…$"
    ) as caught:
        Settings(report=[*range(50_000)])  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300
