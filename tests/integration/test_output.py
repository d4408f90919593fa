"""Output on stdout and stderr, JSON, and the equivalent result of the Python API."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fidtool as package
from fidtool.cli.main import main
from fidtool.cli.output import print_lines, publish
from fidtool.errors import ResultWarning, RunError
from fidtool.run.opening import open_set
from support.command_line import Run, assert_rendered, frechet
from support.documents import checked, read_document
from support.pictures import make_pictures
from support.places import FD, TINY
from support.processes import PATIENCE
from support.ranks import RankServer


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path]:
    """REAL and two FAKEs."""
    return tuple(
        make_pictures(tmp_path / name, 40, seed)
        for seed, name in enumerate(("real", "fake", "other"))
    )  # type: ignore[return-value]


def test_quiet_leaves_the_warnings(here: Run, sets: tuple[Path, Path, Path]) -> None:
    real, fake, _ = sets
    run = here("compute", real, fake, "--extractor", TINY, "--quiet")
    assert run.stderr == ""
    few = here("compute", real, fake, "--extractor", TINY, "--quiet", "--num", 10)
    (line,) = few.stderr.splitlines()
    assert line.startswith("warning: ")
    assert "(only 10 images)" in line
    judged = here("compute", real, fake, "--extractor", TINY, "--quiet", "--preset", "stylegan")
    (line,) = judged.stderr.splitlines()
    assert line.startswith(f"{fake}: not comparable with published values of stylegan: ")


def test_the_command_line_prints_warnings_only(here: Run, sets: tuple[Path, Path, Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", package.FidtoolWarning)
        few = here("compute", *sets[:2], "--extractor", TINY, "--num", 10)
    assert few.stderr.count("(only 10 images): ") == 1


def test_settings_are_written_as_arguments_in_python(
    sets: tuple[Path, Path, Path],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In results, JSON, pages, warnings, logs and errors with their causes."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    real, fake, _ = sets
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "green")]
    frames[0].save(fake / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (500, 500)).save(fake / "large.png")
    page, settings = tmp_path / "page.html", {"extractor": TINY, "max_pixels": 10_000}
    with warnings.catch_warnings(record=True) as caught, caplog.at_level("INFO", "fidtool"):
        warnings.simplefilter("always")
        found = package.compute(
            real, fake, on_error="skip", max_skip=0.1, metrics="fid,kid", report=page, **settings
        )
        health = package.check(fake, max_pixels=10_000)
        statistics = package.compute_statistics(fake, on_error="skip", max_skip=0.1, **settings)
    said = "\n".join([str(each.message) for each in caught] + caplog.messages)
    for text in (
        repr(found.to_dict()),
        repr(found),
        page.read_text(),
        repr(health.to_dict()),
        repr(statistics),
        said,
    ):
        assert_rendered(text)
    assert "pass frames='all'" in said
    assert "; max_pixels raises it" in f"{found.results[0].skipped}"
    with pytest.raises(
        package.InputError, match=r"; max_pixels raises it; .* pass on_error='skip'"
    ) as refused:
        package.compute(real, fake, **settings)
    assert_rendered("".join(traceback.format_exception(refused.value)))


def test_python_issues_each_warning(
    sets: tuple[Path, Path, Path], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the program's line, and after the run: a filter that raises them leaves nothing open."""
    real, fake, other = sets
    (real / "text.png").write_text("no image")
    settings = {"extractor": TINY, "on_error": "skip", "max_skip": 0.1}
    with pytest.warns(package.FidtoolWarning) as caught:
        evaluation = package.compute(real, [fake, other], num=20, **settings)
    said = [str(each.message) for each in caught]
    of_results = {
        str(line).partition("): ")[2] for result in evaluation.results for line in result.warnings
    } - {""}
    assert [line for line in of_results if not any(each.endswith(line) for each in said)] == []
    assert {*map(str, evaluation.run.warnings)} <= {*said}
    assert len(said) == len({*said})
    assert {each.filename for each in caught} == {__file__}
    with pytest.warns(package.FidtoolWarning, match=f"skipped {real}/text.png: ") as caught:
        package.compute_statistics(real, **settings)
    assert {each.filename for each in caught} == {__file__}

    def open_oddly(path: str, *arguments: Any) -> Any:
        return open_set(path, *arguments)._replace(warning=ResultWarning("", f"{path} is odd"))

    monkeypatch.setattr("fidtool.run.check.open_set", open_oddly)
    with pytest.warns(package.FidtoolWarning, match=" is odd") as caught:
        package.check(fake)
    assert {each.filename for each in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error", package.FidtoolWarning)
        with pytest.raises(package.FidtoolWarning, match="only 10 images"):
            package.compute(fake, other, extractor=TINY, num=10)
        assert package.compute(fake, other, extractor=TINY).frechet_distance > 0


def test_python_says_what_is_not_comparable_and_what_was_left_out(
    sets: tuple[Path, Path, Path], environment: dict[str, str]
) -> None:
    real, fake, _ = sets
    with pytest.warns(package.FidtoolWarning) as caught:
        evaluation = package.compute(real, fake, extractor=TINY, preset="stylegan", metrics="all")
    judged = [
        each
        for each in caught
        if "not comparable with published values of stylegan" in str(each.message)
    ]
    assert [each.filename for each in judged] == [__file__]
    assert str(judged[0].message) in evaluation.run.notes
    _, *lines = repr(evaluation).splitlines()
    assert len(lines) == len({missing.reason for missing in evaluation.not_computed}) > 0
    assert lines[-1].endswith(f": not computed: {evaluation.not_computed[-1].reason}")
    assert evaluation._repr_html_().count(": not computed: ") == len(lines)


def test_python_api_gives_the_same_evaluation(here: Run, sets: tuple[Path, Path, Path]) -> None:
    real, fake, other = sets
    ours = package.compute(real, [fake, other], extractor=TINY, num=30, seed=5)
    run = here(
        "compute", real, fake, other, "--extractor", TINY, "--num", 30, "--seed", 5, "--json"
    )
    theirs = [frechet(result) for result in run.json["results"]]
    assert [result.frechet_distance for result in ours.results] == theirs
    assert checked(ours.to_dict())["protocol"] == run.json["protocol"]
    with pytest.raises(ValueError, match="2 results"):
        _ = ours.fid


def test_a_signal_before_the_rendezvous_is_named_in_the_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fidtool.distributed.signals.received", [signal.SIGTERM])
    monkeypatch.setattr(
        "fidtool.run.opening.check_paths", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(SystemExit) as ended:
        main(["compute", "real", "fake", "--json"])
    printed = capsys.readouterr()
    assert ended.value.code == 143
    assert json.loads(printed.out)["exit"] == {"code": 143, "reason": "stopped by SIGTERM"}
    assert printed.err.strip() == "error: stopped by SIGTERM"


def test_a_partial_write_of_the_result_is_reported(
    sets: tuple[Path, Path, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    """With PYTHONUNBUFFERED, Python itself does not check how many bytes were written."""
    real, fake, _ = sets
    command = [
        sys.executable,
        "-m",
        "fidtool",
        "compute",
        str(real),
        str(fake),
        "--extractor",
        TINY,
        "--json",
    ]
    with open(tmp_path / "result.json", "w") as result:
        ended = subprocess.run(
            ["sh", "-c", 'ulimit -f 1 && exec "$0" "$@"', *command, "--no-cache"],
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=result,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (tmp_path / "result.json").stat().st_size in (512, 1024), (
        "the file has the size of the limit, one block"
    )
    assert ended.returncode == 1
    assert "error: the result could not be written to stdout (File too large)" in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_or_closed_stdout_does_not_lose_the_result(
    sets: tuple[Path, Path, Path],
    environment: dict[str, str],
    tmp_path: Path,
    rank_server: RankServer,
) -> None:
    """The record is in the --output file; the error is one line."""
    real, fake, _ = sets
    command = rank_server.stand_in(
        "fidtool", ["compute", real, fake, "--extractor", TINY, "--quiet"]
    )
    reader, gone = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:
        for number, stdout in enumerate((full, gone)):
            written = tmp_path / f"{number}.json"
            written.write_text("{}")
            ended = subprocess.run(
                [*command, "--output", str(written)],
                env=environment,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert ended.returncode == 1
            errors = [
                line for line in ended.stderr.splitlines() if not line.startswith("warning: ")
            ]
            assert len(errors) == 1, ended.stderr
            assert errors[0].startswith("error: the result could not be written to stdout")
            assert frechet(read_document(written)["results"][0]) > 0
    os.close(gone)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "command",
    [
        "metrics",
        "presets",
        "protocols",
        "guide",
        "guide ci",
        "refs",
        "weights",
        "--help",
        "stats --help",
    ],
)
def test_a_full_or_closed_stdout_of_a_list(environment: dict[str, str], command: str) -> None:
    """An error in one line; none if the reader has enough, as `head` does."""
    line = [sys.executable, "-m", "fidtool", *command.split()]
    reader, gone = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:
        ended = [
            subprocess.run(line, env=environment, stdout=each, stderr=subprocess.PIPE)
            for each in (full, gone)
        ]
    os.close(gone)
    assert [each.returncode for each in ended] == [1, 1]
    messages = [
        [line for line in each.stderr.splitlines() if line.startswith(b"error")] for each in ended
    ]
    problem = b"the result could not be written to stdout (No space left on device)"
    if command.endswith("--help"):
        problem = b"the command failed ([Errno 28] No space left on device)"
    assert messages == [[b"error: " + problem], []]
    assert not any(b"Traceback" in each.stderr for each in ended)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_or_unread_stderr_does_not_lose_the_result(
    sets: tuple[Path, Path, Path],
    environment: dict[str, str],
    tmp_path: Path,
    rank_server: RankServer,
) -> None:
    """As of `2>&1 >fid.txt | head`, and of a log on a full disk."""
    real, fake, _ = sets
    written = tmp_path / "fid.json"
    line = ["compute", real, fake, "--extractor", TINY, "--num", "10", "--output", written]
    reader, gone = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:
        for stderr in (full, gone):
            command = rank_server.stand_in("fidtool", line)
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
            assert (ended.returncode, ended.stdout[: len(FD)]) == (0, FD)
            assert frechet(read_document(written)["results"][0]) > 0
            written.unlink()
    os.close(gone)


def test_a_stderr_that_the_shell_closed(environment: dict[str, str]) -> None:
    """What other code prints is lost, and neither in the result nor in a file that got the number
    of stderr.
    """
    text = (
        "import os\n"
        "from fidtool.cli import output\n"
        "output.keep_running_without_stderr()\n"
        "file = os.open(os.devnull, os.O_RDONLY)\n"
        "with output.redirect_prints():\n"
        "    print('print')\n"
        "    os.system('echo child')\n"
        "    output.print_lines([f'result, {file > 2}'])\n"
    )
    line = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, text]
    ended = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, "result, True\n")


def test_characters_that_the_locale_lacks_are_replaced(environment: dict[str, str]) -> None:
    """The result would be lost. Names of files that are not valid text are printed as their
    bytes.
    """
    text = (
        "from fidtool.cli import output; output.print_lines(['1 \\xb1 2']); "
        "output.print_lines(['\\udcff'])"
    )
    ascii_locale = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run([sys.executable, "-c", text], env=ascii_locale, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (0, b"1 ? 2\n\xff\n")


def test_a_stdout_that_a_program_replaced() -> None:
    """Such as a notebook's, which takes text."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        print_lines(["FID: 1.0000"])
    assert said.getvalue() == "FID: 1.0000\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_a_stdout_that_the_shell_closed(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], tmp_path: Path
) -> None:
    """The result would be lost with the status 0."""
    line = ["sh", "-c", 'exec "$0" -m fidtool presets >&-', sys.executable]
    ended = subprocess.run(line, env=environment, stderr=subprocess.PIPE, text=True)
    problem = "the result could not be written to stdout (it is closed)"
    assert (ended.returncode, ended.stderr) == (1, f"error: {problem}\n")
    monkeypatch.setattr(sys, "stdout", None)
    file = tmp_path / "fid.json"
    with pytest.raises(RunError, match=re.escape(problem)):
        publish(["FID: 1.0000"], {file: lambda place: place.write_text("written")})
    assert file.read_text() == "written"


def test_progress_is_a_bar_on_a_terminal(
    sets: tuple[Path, Path, Path], environment: dict[str, str], rank_server: RankServer
) -> None:
    import fcntl
    import pty
    import struct
    import termios

    real, fake, _ = sets
    reading, writing = pty.openpty()
    # Tqdm adapts the bar to the width.
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = rank_server.stand_in("fidtool", ["compute", real, fake, "--extractor", TINY])
    done = subprocess.run(
        command, stderr=writing, stdout=subprocess.PIPE, env=environment, timeout=PATIENCE
    )
    os.close(writing)
    shown = os.read(reading, 65536).decode()
    os.close(reading)
    assert done.returncode == 0
    assert "/40 [" in shown, shown
    assert done.stdout.startswith(f"{FD}: ".encode())


def test_exit_is_fast_but_runs_exit_handlers(environment: dict[str, str], tmp_path: Path) -> None:
    """Registered exit handlers run and output is flushed, but objects are not finalised."""
    program = tmp_path / "program.py"
    program.write_text(
        "import atexit, sys\n"
        "class Kept:\n"
        "    def __del__(self): print('taken down')\n"
        "kept = Kept()\n"
        "atexit.register(print, 'at exit')\n"
        "sys.argv = ['fidtool', '--version']\n"
        "from fidtool.cli.main import process\n"
        "process()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "at exit"


def test_output_does_not_overwrite_files_of_the_sets(
    here: Run, sets: tuple[Path, Path, Path]
) -> None:
    real, fake, other = sets
    kept, listed = real.parent / "kept.npz", real.parent / "listed.txt"
    assert here("stats", real, "--extractor", TINY, "-o", kept).status == 0
    listed.write_text("".join(f"{file}\n" for file in sorted(other.iterdir())))
    sets_of = {fake / "00000.png": fake, kept: fake, listed: listed, other / "00001.png": listed}
    sets_of |= {
        fake / "00002.png": f"file://{fake}",
        other / "00003.png": f"{real.parent}/{{fake,other}}/*.png",
    }
    for file, path in sets_of.items():
        before = file.read_bytes()
        refused = here("compute", kept, path, "--extractor", TINY, "-o", file)
        assert (refused.status, refused.stdout) == (2, "")
        listed = (
            f"--output {file}: the name must end in .json, .csv, .md, .tex: choose "
            f"{file.with_suffix('.json')}"
        )
        assert listed in refused.error
        plain = file.rename(file.with_suffix(""))
        refused = here("compute", kept, path, "--extractor", TINY, "-o", plain)
        assert (
            f"--output {plain} exists and is not JSON: choose another name, or delete the file"
            in refused.error
        )
        assert plain.rename(file).read_bytes() == before


def test_commands_without_images_print_once_per_machine(fidtool: Run) -> None:
    variables = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    runs = [
        fidtool("metrics", **variables, RANK=f"{rank}", LOCAL_RANK=f"{rank % 2}")
        for rank in range(1, 4)
    ]
    assert [run.status for run in runs] == [0, 0, 0]
    assert [bool(run.stdout) for run in runs] == [False, True, False], "only local rank zero prints"
    assert "the demo runs in a single process" in fidtool("demo", **variables, RANK="0").error


def test_a_misspelt_keyword_gets_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"^compute\(\) .*'fail_abov'; did you mean fail_above\?$"):
        package.compute("real", "fake", fail_abov=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'no_diagnosis'; write diagnose=False$"):
        package.compute("real", "fake", no_diagnosis=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'fp16'; write precision='fp16'$"):
        package.compute("real", "fake", fp16=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^check\(\) got an unexpected keyword argument 'dims'$"):
        package.check("real", dims=64)  # type: ignore[call-arg]
