"""The composite action in scripts/examples: its steps run as GitHub's runner does it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.command_line import Run
from support.documents import read_document
from support.pages import PAGES, blocks
from support.pictures import make_pictures
from support.places import EXAMPLES, TINY
from support.processes import PATIENCE
from support.ranks import RankServer

yaml = pytest.importorskip("yaml", reason="needs PyYAML, from the extra 'test'")

ACTION = yaml.safe_load((EXAMPLES / "github-action" / "action.yml").read_text())
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
MEASURE = f"--extractor {TINY} --quiet"
CACHES = {f"actions/cache/{name}@v4": name for name in ("restore", "save")}

PYTHON = f"""#!/bin/sh
# Records what would be installed, and is Python otherwise.
if [ "$1 $2 $3" = "-m pip install" ]; then printf '%s\\n' "$@" > "$RUNNER_TEMP/installed"; exit; fi
exec {shlex.quote(sys.executable)} "$@"
"""


class Job(NamedTuple):
    """What a job with the action left: the names of its steps, its exit status, summary, outputs
    and messages.
    """

    steps: list[str]
    status: int
    summary: str
    outputs: dict[str, str]
    stderr: str


def holds(condition: str, succeeded: bool) -> bool:
    """Whether a step with this condition runs; its expressions are already values in quotes."""
    terms = [term for term in condition.split(" && ") if term not in ("", "always()")]
    comparisons = [re.fullmatch("'(.*)' (==|!=) '(.*)'", term) for term in terms]
    assert None not in comparisons, condition
    return (succeeded or "always()" in condition) and all(
        (found[1] == found[3]) == (found[2] == "==") for found in comparisons if found
    )


class Runner:
    """GitHub's runner on one machine, with an entry of the cache as a folder below ``cache``."""

    def __init__(self, folder: Path, environment: dict[str, str], fidtool: str) -> None:
        self.folder, self.cache, self.jobs = folder, folder / "cache", 0
        (folder / "bin").mkdir()
        for name, text in {"fidtool": fidtool, "python": PYTHON}.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
        self.environment = {
            key: value for key, value in environment.items() if key != "FIDTOOL_CACHE"
        } | {"PATH": path}

    def __call__(self, **given: str) -> Job:
        """Run a job on a new machine."""
        self.jobs += 1
        temporary = self.folder / f"runner {self.jobs}"
        temporary.mkdir()
        inputs = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        values = {"runner.temp": str(temporary)} | {
            f"inputs.{name}": text for name, text in inputs.items()
        }
        values |= {f"inputs.{name.replace('_', '-')}": text for name, text in given.items()}
        files = {
            name: temporary / name
            for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
        }
        for file in files.values():
            file.touch()
        environment = {**self.environment, "RUNNER_TEMP": str(temporary)} | {
            k: str(v) for k, v in files.items()
        }
        names, status, stderr = [], 0, ""

        def filled(text: str) -> str:
            return EXPRESSION.sub(lambda found: values.get(found[1], ""), text)

        def quoted(condition: str) -> str:
            return re.sub(
                r"steps\.[\w.-]+", lambda found: f"'{values.get(found[0], '')}'", condition
            )

        for step in ACTION["runs"]["steps"]:
            if not holds(quoted(step.get("if", "")), status == 0):
                continue
            names.append(step["name"])
            files["GITHUB_OUTPUT"].write_text("")
            if "uses" in step:
                found = self._cached(
                    CACHES[step["uses"]], *map(filled, (step["with"]["path"], step["with"]["key"]))
                )
                files["GITHUB_OUTPUT"].write_text(found)
            else:
                own = {name: filled(text) for name, text in step.get("env", {}).items()}
                done = self._shell(step["run"], {**environment, **own})
                status, stderr = status or done.returncode, stderr + done.stderr
                environment |= read_pairs(files["GITHUB_ENV"])
            outputs = read_pairs(files["GITHUB_OUTPUT"])
            values |= {
                f"steps.{step['id']}.outputs.{key}": text
                for key, text in outputs.items()
                if "id" in step
            }
        outputs = {name: filled(each["value"]) for name, each in ACTION["outputs"].items()}
        return Job(names, status, files["GITHUB_STEP_SUMMARY"].read_text(), outputs, stderr)

    def _shell(self, program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        script = self.folder / "step.sh"
        script.write_text(program)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def _cached(self, action: str, path: str, key: str) -> str:
        assert re.fullmatch(r"[\w-]+", key), "GitHub refuses commas and long keys"
        entry = self.cache / key
        if action == "save":
            assert not entry.exists(), "entries of the cache are never overwritten"
            shutil.copytree(path, entry)
            return ""
        if entry.exists():
            shutil.copytree(entry, path, dirs_exist_ok=True)
        return f"cache-hit={str(entry.exists()).lower()}\n"


def read_pairs(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


@pytest.fixture
def runner(tmp_path: Path, environment: dict[str, str], rank_server: RankServer) -> Runner:
    """The action in a folder with two different sets, whose names need quoting."""
    make_pictures(tmp_path / "real ones", 20, seed=1)
    make_pictures(tmp_path / "$(fake)", 20, seed=2)
    make_pictures(tmp_path / "more", 20, seed=3)
    fork = f'#!/bin/sh\nexec {shlex.join(rank_server.stand_in("fidtool", []))} "$@"\n'
    return Runner(tmp_path, environment, fork)


def test_passing_job_measures_real_once(runner: Runner) -> None:
    """The second job, in which all time stamps differ, takes the statistics of REAL from the
    cache.
    """
    settings = {
        "real": "real ones",
        "measure": MEASURE,
        "install": "--pre\n fidtool[offline] pyyaml",
    }
    first = runner(**settings, fake="$(fake)\nmore\n", fail_above="1000", options="--uncertainty")
    assert first.status == 0, first.stderr
    assert (runner.folder / "runner 1" / "installed").read_text().split()[-3:] == [
        "--pre",
        "fidtool[offline]",
        "pyyaml",
    ]
    assert first.summary.startswith("### fidtool: passed\n\n<!-- fidtool -->\n")
    assert re.findall(r"^\| (\S+) \| \S+ \|$", first.summary, re.MULTILINE)[-2:] == [
        r"\$(fake)",
        "more",
    ]
    document = read_document(Path(first.outputs["result"]))
    assert json.loads(first.outputs["values"]) == [
        result["metrics"] for result in document["results"]
    ]
    assert (first.outputs["status"], json.loads(first.outputs["reason"])) == (
        "0",
        document["exit"]["reason"],
    )

    for file in (runner.folder / "real ones").iterdir():
        os.utime(file, (1, 1))
    again = runner(**settings, fake="more", fail_above="1000")
    assert (again.status, "Measure REAL" in again.steps) == (0, False), again.stderr
    assert json.loads(again.outputs["values"]) == json.loads(first.outputs["values"])[1:]
    assert {"Measure REAL", "Save the statistics of REAL", "Save the networks"} == {
        *first.steps
    } - {*again.steps}

    (runner.folder / "real ones" / "00003.png").unlink()
    changed = runner(**settings, fake="more")
    assert "Measure REAL" in changed.steps
    assert changed.outputs["values"] != again.outputs["values"]


def test_missed_gate_fails_with_the_table(runner: Runner) -> None:
    job = runner(real="real ones", fake="more", measure=MEASURE, fail_above="0", cache_key="v1")
    assert job.status == 3, job.stderr
    reason = json.loads(job.outputs["reason"])
    assert job.summary.startswith(f"### fidtool: gate missed\n\n    {reason}\n\n<!-- fidtool -->\n")
    assert re.search(r"^\| more \| \S+ \|$", job.summary, re.MULTILINE)
    assert job.outputs["status"] == "3"
    assert "above 0" in reason
    assert len(list(runner.cache.glob("fidtool-real-*/real.npz"))) == 1, (
        "REAL is saved nevertheless"
    )
    assert job.steps[-1] == "Save the networks"
    worse = {"fail_worse_than": job.outputs["result"], "options": "--uncertainty"}
    refused = runner(real="real ones", fake="more", measure=MEASURE, cache_key="v1", **worse)
    assert refused.status == 2
    assert "error bars" in json.loads(refused.outputs["reason"])


def test_run_that_fails_has_no_verdict(runner: Runner) -> None:
    (runner.folder / "more" / "00003.png").write_bytes(b"not an image")
    job = runner(real="real ones", fake="more", measure=MEASURE, fail_above="1000")
    assert job.status == 2
    reason = json.loads(job.outputs["reason"])
    assert job.summary == f"### fidtool: no verdict (status 2)\n\n    {reason}\n\n"
    assert job.outputs["values"] == "[]"
    assert "00003.png" in reason


def test_wrong_option_ends_the_job_before_any_work(runner: Runner) -> None:
    job = runner(real="real ones", fake="more", measure="--extractr inception")
    assert (job.status, job.steps) == (2, ["Install fidtool", "Name the entries of the cache"])


@pytest.mark.parametrize("real", ["real.npz", "real.txt", "real.zip"])
def test_only_folders_and_archives_are_measured_and_kept(
    runner: Runner, here: Run, real: str
) -> None:
    """The files of a list may change while the list stays the same."""
    images = runner.folder / "real ones"
    (runner.folder / "real.txt").write_text("".join(f"{file}\n" for file in images.iterdir()))
    shutil.make_archive(str(runner.folder / "real"), "zip", images)
    assert here("stats", images, "-o", "real.npz", *MEASURE.split()).status == 0
    job = runner(real=real, fake="more", measure=MEASURE)
    assert (job.status, len(json.loads(job.outputs["values"]))) == (0, 1), job.stderr
    assert ("Measure REAL" in job.steps) == (real == "real.zip")


def test_inputs_never_become_code() -> None:
    """An expression inside a shell program would run what a pull request writes into an input."""
    for step in ACTION["runs"]["steps"]:
        assert not EXPRESSION.search(step.get("run", ""))
        assert ("run" in step) == ("shell" in step)
        named = re.findall(r"inputs\.([\w-]+)", str(step))
        assert {*named} <= {*ACTION["inputs"]}


def test_workflow_of_the_guide_uses_inputs_that_exist() -> None:
    (page,) = (text for path, text in PAGES.items() if path.name == "ci.md")
    (shown,) = (content for language, content in blocks(page) if language == "yaml")
    workflow = yaml.safe_load(shown)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    (used,) = (step["with"] for step in steps if step.get("uses") == "./.github/actions/fid")
    required = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert required <= {*used} <= {*ACTION["inputs"]}
    named = {*re.findall(r"steps\.fid\.outputs\.(\w+)", page)}
    assert named
    assert named <= {*ACTION["outputs"]}
