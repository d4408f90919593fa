"""The workflows on GitHub run what the README and the guide say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.places import ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML, from the extra 'test'")
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))


def steps(file: Path) -> list[dict[str, str]]:
    """Return the steps of all jobs of a workflow."""
    jobs = yaml.safe_load(file.read_text("utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def commands(file: Path) -> list[str]:
    """Return the lines of all commands of a workflow."""
    return [line.strip() for step in steps(file) for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_to_a_commit(file: Path) -> None:
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action


def test_the_recipe_for_the_oldest_versions_is_the_guides() -> None:
    page = (ROOT / "fidtool" / "guide" / "contributing.md").read_text("utf-8")
    recipe = re.search(r"```text\n(pip install uv\n.*?)```", page, re.DOTALL)
    assert recipe
    run = commands(FOLDER / "workflows" / "ci.yml")
    for line in recipe[1].splitlines():
        assert line.strip() in run, line


def test_all_supported_versions_of_python_are_tested() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    workflow = yaml.safe_load((FOLDER / "workflows" / "ci.yml").read_text("utf-8"))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == supported
