"""The two versions: built from their sources, installed side by side, and run on the same cases. Imports no torch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "fidtool")
"""What a wheel is made of."""
SERVER = Path(__file__).with_name("server.py")
SECONDS = 600.0
"""No process of a case may take longer."""
_DROPPED = ("SLURM_", "FIDTOOL_", "TORCHELASTIC", "OMP_NUM_THREADS", "PYTHON", "HF_", "XDG_")
_OF_LAUNCHERS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Step:
    """One command of a case.

    Attributes:
        words: what follows ``python``; or ``copy FROM TO`` and ``remove PATTERN`` by themselves. ``{rank}`` in them is
            the rank, ``{web}`` the address that serves the inputs, ``{site}`` where the version is installed.
        ranks: so many processes, which find each other by variables.
        fresh: in an interpreter of its own instead of a fork of one that has imported torch.
        stdin: of each.
        environment: variables beside the usual ones; ``{rank}`` in them is the rank, ``{port}`` a free port.
    """

    words: tuple[str, ...]
    ranks: int = 1
    fresh: bool = False
    stdin: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arranges(self) -> bool:
        """Whether it starts no process, but copies or removes files."""
        return self.words[0] in ("copy", "remove")

    @property
    def text(self) -> str:
        """As one would type it, roughly."""
        return " ".join(self.words)


def run_quietly(command: Sequence[str | os.PathLike[str]], folder: Path | None = None) -> str:
    """A command's stdout.

    Raises:
        click.ClickException: it ended with another status than 0.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def export_sources(version: str, repository: Path, target: Path) -> None:
    """Puts what a wheel is made of into a new folder.

    Args:
        version: a folder with the package in it, as it is now; or a revision of the repository.
        repository: the clone that knows the revision.
        target: the new folder.
    """
    target.mkdir(parents=True)
    if Path(version).is_dir():
        for name in SOURCES:
            place = Path(version) / name
            if place.is_dir():
                shutil.copytree(place, target / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif place.exists():
                shutil.copy(place, target / name)
        return
    archive = target / "sources.tar"
    run_quietly(["git", "-C", repository, "archive", "-o", archive, version, *SOURCES])
    with tarfile.open(archive) as opened:
        # Pythons before 3.10.12 and 3.11.4 have no filter; git wrote this archive a moment ago.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(target)
    archive.unlink()


def install(sources: Path, site: Path) -> None:
    """Builds the wheel and installs it, without its dependencies, into a folder of its own.

    Raises:
        click.ClickException: it fails, or Python would import another fidtool.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = sources.parent / f"{sources.name}-wheel"
    run_quietly([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, sources])
    (wheel,) = wheels.glob("*.whl")
    run_quietly([*pip, "install", "--no-deps", "--target", site, wheel])
    command = [sys.executable, "-c", "import fidtool; print(fidtool.__file__)"]
    asked = subprocess.run(
        command, cwd=site.parent, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(site)}
    )
    require_ours(asked.stdout.strip() or asked.stderr, site)


def require_ours(file: str, site: Path) -> None:
    """Refuses a version of fidtool that lies elsewhere.

    Raises:
        click.ClickException: it does.
    """
    if Path(file).resolve() != (site / "fidtool" / "__init__.py").resolve():
        raise click.ClickException(f"Python imports fidtool from {file}, and not from {site}")


class Side:
    """One version, which runs steps.

    Args:
        name: ``frozen`` or ``tree``.
        site: where it is installed.
        place: the folder with ``inputs``; steps run in its subfolder ``work``.
        web: address that serves the inputs, ``{web}`` in words.
    """

    def __init__(self, name: str, site: Path, place: Path, web: str) -> None:
        self.name, self.site, self._place, self._web = name, site, place, web
        self._server: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """What every process of this version gets: none of the user's settings, a cache of its own."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_LAUNCHERS and not name.startswith(_DROPPED)
        }
        home = self._place / "home"
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(self.site), str(self._place / "inputs" / "modules")]),
            "PYTHONDONTWRITEBYTECODE": "1",  # in folders that are compared
            "COLUMNS": "100",
            "HOME": str(home),
            "MPLCONFIGDIR": str(home / "matplotlib"),
            "FIDTOOL_CACHE": "cache",
            "FIDTOOL_WEIGHTS_URL": "http://127.0.0.1:9/none.pth",  # nothing is downloaded
            "HF_HUB_OFFLINE": "1",
        }

    def run(self, step: Step, outputs: Path) -> list[int | None]:
        """Runs a step in ``work``.

        Args:
            step: the command.
            outputs: what the ranks print goes to ``OUTPUTS-RANK.out`` and ``.err``.

        Returns:
            Each rank's exit status; None of those that had to be killed.
        """
        if step.arranges:
            return self._arrange(*step.words)
        stdin = Path(f"{outputs}.in")
        stdin.write_text(step.stdin)
        processes: list[dict[str, Any]] = [
            {
                "words": [self._filled(word, rank) for word in step.words],
                "environment": self._environment_of(step, rank),
                "folder": str(self._place / "work"),
                "stdin": str(stdin),
                "output": f"{outputs}-{rank}",
            }
            for rank in range(step.ranks)
        ]
        if step.fresh:
            return [_fresh(**each) for each in processes]
        return self._ask({"processes": processes, "seconds": SECONDS})

    def _filled(self, word: str, rank: int) -> str:
        for name, value in (("{web}", self._web), ("{rank}", str(rank)), ("{site}", str(self.site))):
            word = word.replace(name, value)
        return word

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()
            self._server.wait()
            self._server = None

    def _environment_of(self, step: Step, rank: int) -> dict[str, str]:
        found = {**self.environment(), **step.environment}
        if step.ranks > 1:
            found |= {"RANK": "{rank}", "WORLD_SIZE": str(step.ranks), "MASTER_ADDR": "127.0.0.1"}
            found["MASTER_PORT"] = str(self._port(rank))
        if "{port}" in found.values():
            found = {name: value.replace("{port}", str(self._port(0))) for name, value in found.items()}
        return {name: value.replace("{rank}", str(rank)) for name, value in found.items()}

    def _port(self, rank: int) -> int:
        if rank == 0:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._last_port = int(probe.getsockname()[1])
        return self._last_port

    def _arrange(self, what: str, *names: str) -> list[int | None]:
        work = self._place / "work"
        if what == "copy":
            source, target = (work / name for name in names)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        else:
            for file in work.glob(names[0]):
                file.unlink()
        return []

    def _ask(self, order: Mapping[str, Any]) -> list[int | None]:
        if self._server is None:
            command = [sys.executable, str(SERVER)]
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment()
            )
            require_ours(self._answer(self._server), self.site)
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        found: list[int | None] = self._answer(self._server)
        return found

    def _answer(self, server: subprocess.Popen[str]) -> Any:
        assert server.stdout is not None
        answer = server.stdout.readline()
        if not answer:
            raise click.ClickException(f"the server of the version {self.name} has ended")
        return json.loads(answer)


def _fresh(words: Sequence[str], environment: Mapping[str, str], folder: str, stdin: str, output: str) -> int | None:
    """Runs ``python WORDS`` in an interpreter of its own."""
    with open(stdin) as given, open(f"{output}.out", "w") as out, open(f"{output}.err", "w") as err:
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                stdin=given,
                stdout=out,
                stderr=err,
                env=environment,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return None
    return done.returncode
