"""The two versions: built from their sources, installed in separate folders, and run on the same cases."""

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
"""Sources of the wheel."""
SERVER = Path(__file__).with_name("server.py")
SECONDS = 600.0
"""Time limit of each process."""
_DROPPED = ("SLURM_", "FIDTOOL_", "TORCHELASTIC", "OMP_NUM_THREADS", "PYTHON", "HF_", "XDG_")
_OF_LAUNCHERS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Step:
    """One command of a case.

    Attributes:
        words: arguments of ``python``, or ``copy FROM TO`` or ``remove PATTERN``. ``{rank}`` is replaced by the rank,
            ``{web}`` by the address that serves the inputs, ``{site}`` by the folder of the installed version.
        ranks: number of processes, which find each other by environment variables.
        fresh: whether to start a new interpreter instead of a fork of one that has imported torch.
        stdin: standard input of each process.
        environment: additional variables. ``{rank}`` is replaced by the rank, ``{port}`` by a free port.
    """

    words: tuple[str, ...]
    ranks: int = 1
    fresh: bool = False
    stdin: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arranges(self) -> bool:
        """Whether the step only copies or removes files."""
        return self.words[0] in ("copy", "remove")

    @property
    def text(self) -> str:
        """The command for messages."""
        return " ".join(self.words)


def run_quietly(command: Sequence[str | os.PathLike[str]], folder: Path | None = None) -> str:
    """Run a command and return its stdout.

    Raises:
        click.ClickException: if the command fails.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def export_sources(version: str, repository: Path, target: Path) -> None:
    """Copy the sources of the wheel to a new folder.

    Args:
        version: a folder with the package, or a revision of the repository.
        repository: the clone that contains the revision.
        target: the new folder.
    """
    target.mkdir(parents=True)
    if Path(version).is_dir():
        for name in SOURCES:
            source = Path(version) / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, target / name)
        return
    archive = target / "sources.tar"
    run_quietly(["git", "-C", repository, "archive", "-o", archive, version, *SOURCES])
    with tarfile.open(archive) as opened:
        # Python before 3.10.12 and 3.11.4 has no filter. The archive is safe: git has just written it.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(target)
    archive.unlink()


def install(sources: Path, site: Path) -> None:
    """Build the wheel and install it, without its dependencies, into the folder ``site``.

    Raises:
        click.ClickException: if this fails, or if Python would import another fidtool.
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
    """Check that fidtool is imported from ``site``.

    Args:
        file: path of the imported package's ``__init__.py``.
        site: folder in which the version is installed.

    Raises:
        click.ClickException: if it is imported from elsewhere.
    """
    if Path(file).resolve() != (site / "fidtool" / "__init__.py").resolve():
        raise click.ClickException(f"Python imports fidtool from {file} instead of {site}")


class Side:
    """One version of fidtool.

    Args:
        name: ``frozen`` or ``tree``.
        site: folder in which the version is installed.
        place: folder that contains ``inputs``. Steps run in its subfolder ``work``.
        web: address that serves the inputs, for ``{web}``.
    """

    def __init__(self, name: str, site: Path, place: Path, web: str) -> None:
        self.name, self.site, self._place, self._web = name, site, place, web
        self._server: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of all processes: without the user's settings, and with a separate cache."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_LAUNCHERS and not name.startswith(_DROPPED)
        }
        home = self._place / "home"
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(self.site), str(self._place / "inputs" / "modules")]),
            "PYTHONDONTWRITEBYTECODE": "1",  # folders are compared
            "COLUMNS": "100",
            "HOME": str(home),
            "MPLCONFIGDIR": str(home / "matplotlib"),
            "FIDTOOL_CACHE": "cache",
            "FIDTOOL_WEIGHTS_URL": "http://127.0.0.1:9/none.pth",  # downloads must fail
            "HF_HUB_OFFLINE": "1",
        }

    def run(self, step: Step, outputs: Path) -> list[int | None]:
        """Run a step in ``work``.

        Args:
            step: the command.
            outputs: stdout and stderr of the ranks go to ``OUTPUTS-RANK.out`` and ``OUTPUTS-RANK.err``.

        Returns:
            The exit status of each rank; None for a rank that timed out.
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
        """Stop the server."""
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
            raise click.ClickException(f"the server of the version {self.name} has exited")
        return json.loads(answer)


def _fresh(words: Sequence[str], environment: Mapping[str, str], folder: str, stdin: str, output: str) -> int | None:
    """Run ``python WORDS`` in a new interpreter."""
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
