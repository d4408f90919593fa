"""Every command and every Python block of the README and the guide is run."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pickle
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.cli.main import cli
from fidtool.features.models.inception import converted_path, load_weights, offline_path
from fidtool.metrics.registry import BUILT_IN
from fidtool.references.catalogue import FD_LOSS, REFERENCES
from support.inside import add_classifier
from support.pages import PAGES, commands, commands_in_text, programs
from support.pictures import make_pictures
from support.places import ROOT
from support.processes import PATIENCE, free_port
from support.ranks import RankServer
from support.source_forms import (
    make_squares,
    names_in,
    pixels_in,
    write_parquet,
    write_saved,
    write_tar,
    write_zip,
)

HERE = {page: text for page, text in PAGES.items() if page.stem != "parts"}
"""The pages whose commands run in one folder; test_parts.py runs those of the other one."""
PROGRAMS = [program for text in HERE.values() for program in programs(text)]
"""Name and content of each Python block."""
FILES = {name: content for name, content in PROGRAMS if name}
"""The blocks with a file name, by name."""
EXAMPLE = next(
    content
    for page, text in PAGES.items()
    if page.stem == "python"
    for _, content in programs(text)
)
SNIPPETS = {
    f"snippet{i}.py": content
    for i, (name, content) in enumerate(PROGRAMS)
    if not name and content != EXAMPLE
}
"""The blocks without a file name."""

SHOWN = list(
    dict.fromkeys(
        each for text in HERE.values() for each in (*commands(text), *commands_in_text(text))
    )
)
"""Each command once, even if several pages show it."""
INSTALL, TEST = (line for line in SHOWN if line.startswith("python3 -m venv"))
NODES = [line for line in SHOWN if "--nnodes" in line]
UV_INSTALL = next(line for line in SHOWN if line.startswith("uv venv"))
COMMANDS = [line for line in SHOWN if line not in (INSTALL, UV_INSTALL, TEST, *NODES)]
BY_THEMSELVES = [
    name for name in FILES if not any(Path(name).stem in command for command in COMMANDS)
]
"""Files that no command runs or imports."""
REST = [*COMMANDS, *(f"python {name}" for name in (*SNIPPETS, *BY_THEMSELVES))]

KID = "--kid-subset-size 4 --kid-subsets 3"
SMALLER = {
    "50000": "4",  # images: the test's folders have that many
    "3/16": "1/1",
    "--nproc-per-node=8": "--nproc-per-node=2",
    "--ntasks=8": "--ntasks=2",
    "--fail-above 20": "--fail-above 2000",
    "fake/ 20": "fake/ 2000",
    "--num 5000": "--num 3",
    "--min-class 50": "--min-class 3",
    "--num-samples 2048": "--num-samples 8 --epochs 2 --feature 64",
    "tune_generator.py real/ --feature 64": "tune_generator.py real/ --feature 64 --steps 2 "
    "--batch 2 --samples 4",
    "--output encoder.pt": "--output encoder.pt --steps 3 --batch 2",
    "compute real/ ": "compute real/ --dims 64 ",
    "compute real/ --dims 64 fake/ --preset": "compute real/ fake/ --preset",
    **{
        f"compute real/ --dims 64 fake/ --metrics fid,{name}": f"compute real/ fake/ --metrics fid,{name}"
        for name in ("is", "sfid", "fdr")
    },
    "--metrics fid,is": "--metrics fid,is --is-splits 2",
    "--metrics fid,cmmd": "--metrics fid,cmmd --cmmd-extractor clip:ViT-S-32-alt@weights=clip.pth",
    "val/ recon/ --metrics psnr,ssim,ms-ssim": "large/ other/ --metrics psnr,ssim,ms-ssim",
    "compute real.zip 'shards": "compute real.zip --dims 64 'shards",
    "-o real_features.npz": "-o real_features.npz --dims 64",
    "inception --extractor dinov2@": "inception,dinov2@",
    "--extractor inception,dinov2@": "--extractor "
    "inception@dims=64,dinov2:vits14@weights=dinov2.pth,",
    "--extractor inception,dinov2": "--extractor "
    "inception@dims=64,dinov2:vits14@weights=dinov2.pth",
    "--extractor dinov2": "--extractor dinov2:vits14 --weights dinov2.pth",
    # The six networks have 1.4 billion parameters.
    "fd-loss:imagenet256 samples.npz": "fd_loss.pkl fd_loss.pkl",
    "ssim,lpips": "ssim,lpips --lpips-weights alexnet.pth",
    "--preset edm2 --extractor inception": "--extractor inception --preset=edm2",
    "--preset edm2": "--preset edm2 --extractor "
    "inception,dinov2:vits14@weights=dinov2.pth,protocol=torch",
    "--extractor clip": "--extractor clip:ViT-S-32-alt --weights clip.pth",
    "--metrics fid,clip-score": "--metrics fid,clip-score --clip-score-extractor "
    "clip:ViT-S-32-alt@weights=clip.pth",
    "--clip-score-extractor clip:ViT-B-32-quickgelu": "--clip-score-extractor "
    "clip:ViT-S-32-alt@weights=clip.pth",
    "--preset coco-gigagan": "--preset coco-gigagan --clip-score-extractor "
    "clip:ViT-S-32-alt@weights=clip.pth",
    "--preset rfid-rae": "--preset rfid-rae --crop-fake adm:256",
    # Features of random weights are large.
    "my_resnet.py:network": "my_resnet.py:network --feature-step 14",
    "--extractor timm:vit_base_patch16_224": "--extractor timm:test_vit --weights test_vit.pth",
    # Which has 300 million parameters.
    "--extractor fdr:mae": "--extractor timm:test_vit --weights test_vit.pth",
}
"""Replacements for what a test machine does not have: two processes for 8 GPUs, four images for
50,000, Inception's first 64 features, and small networks with random weights for the published
ones.
"""
SLOW = re.compile(
    r"adm:imagenet|edm|clean-fid:|VIRTUAL|img512|paper_ref|preset|extractor (clip|dinov2)|verify fid|read_fid"
    r"|extractor inception|both\.npz|lpips|torchrun \S+ (\S*/)?\w+\.py"
)
"""Commands of two to five seconds: published references and networks, what reads their results,
training on ranks.
"""
OUTPUT = re.compile(r" (?:-o|--output|--history) (\S+\.(?:npz|pt|jsonl?))")
MAKERS = {found[1]: line for line in REST if (found := OUTPUT.search(line))}
MAKERS["colours.pt2"] = "python export_network.py"
MAKERS["classes.csv"] = next(line for line in REST if line.endswith("-o classes.csv"))
# `verify` needs a preset.
MAKERS["fid.json"] = next(line for line in REST if line.endswith("--preset edm -o fid.json"))
"""Files that commands read, and the commands that write them."""
PUBLISHED = {
    "dinov2.pth": "timm",
    "test_vit.pth": "timm",
    "clip.pth": "open_clip",
    "hub/checkpoints/resnet50-11ad3fa6.pth": "torchvision",
    "alexnet.pth": "lpips",
    "tuned.pth": "torchvision",
}
"""Files of random weights, and the packages that build their networks. ``TORCH_HOME`` is the folder
of the commands.
"""

SRUN = """#!/usr/bin/env bash
# Replaces SLURM's srun: starts the tasks with the variables that srun sets.
tasks=${1#--ntasks=}; shift
while [[ $1 == --* ]]; do shift; done
for rank in $(seq 0 $((tasks - 1))); do
  SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NTASKS=$tasks SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_NODELIST=localhost \\
    SLURM_STEP_TASKS_PER_NODE=$tasks SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NODEID=0 "$@" &
  pids="${pids:-} $!"
done
status=0; for pid in $pids; do wait "$pid" || status=$?; done; exit $status
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, rank_server: RankServer) -> Path:
    """A folder with everything that the commands need, shared by all of them.

    ``fidtool``, ``python``, ``torchrun`` and its ranks are forks of an interpreter that has already
    imported torch. The test of the installation starts new interpreters.
    """
    root = tmp_path_factory.mktemp("guide")
    make_pictures(root / "real", 4, 1)
    for seed, name in enumerate(("fake", "step1000", "step2000", "val", "recon", "val2014"), 2):
        make_pictures(root / name, 4, seed)
    for seed in range(2):
        make_pictures(root / "classes" / str(seed), 8, 10 + seed)
        for number, name in enumerate(("photos", "generated")):
            make_pictures(root / name / ("daisy", "roses")[seed], 4, 20 + 2 * seed + number)
    for seed, name in enumerate(("large", "other")):
        make_pictures(root / name, 2, seed, sides=(176,))
    (root / "prompts.csv").write_text(
        "path,caption\n" + "".join(f"{number:05}.png,a cat\n" for number in range(4))
    )
    (root / "captions.txt").write_text("a cat\n" * 4)
    _write_sources(root)
    (root / "scripts").symlink_to(ROOT / "scripts")
    (root / "bin").mkdir()
    programs = {"srun": SRUN}
    for name in ("fidtool", "torchrun"):
        programs[name] = f'#!/bin/sh\nexec {shlex.join(rank_server.stand_in(name, []))} "$@"\n'
    for name, text in programs.items():
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
    for name, content in {**FILES, **SNIPPETS, "example.py": EXAMPLE}.items():
        (root / name).write_text(content.replace("50000", "6"))
    return root


def _write_sources(root: Path) -> None:
    """Write the archives and arrays that commands name."""
    squares = make_squares(root / "squares", 8, 7)
    names, pixels = names_in(squares), pixels_in(squares)
    for name in ("real.zip", "fake.zip"):
        write_zip(root / name, squares, names)
    for shard in range(4):
        write_tar(root / f"shards-{shard:03}.tar", squares, names[2 * shard : 2 * shard + 2])
    np.savez(root / "samples.npz", pixels)
    np.save(root / "floats.npy", pixels / np.float32(127.5) - 1)
    write_parquet(root / "train-0.parquet", squares, names)
    write_saved(root / "saved", squares, names)
    statistics = {"mu": np.zeros(2048), "sigma": np.eye(2048)}
    np.savez(root / "reference.npz", **statistics)  # as other tools publish them
    of_dinov2 = {"mu": np.zeros(384), "sigma": np.eye(384)}
    (root / "img512.pkl").write_bytes(
        pickle.dumps({"fid": statistics, "fd_dinov2": of_dinov2, "num_images": 50_000})
    )
    small = {"mu": np.zeros(8), "sigma": np.eye(8)}
    of_six = {entry: small if layer else statistics for entry, layer in FD_LOSS.items()}
    (root / "fd_loss.pkl").write_bytes(pickle.dumps(of_six))
    (root / "paper_ref_stats.pkl").write_bytes(
        pickle.dumps({"jit_in256_stats.npz": statistics, "other": of_dinov2})
    )
    _publish(root / "mirror", statistics, of_dinov2)


def _publish(mirror: Path, statistics: dict[str, Any], of_dinov2: dict[str, Any]) -> None:
    """Write the references that commands name, with a few images in ADM's."""
    spatial = {"mu_s": np.zeros(2023), "sigma_s": np.eye(2023)}
    images = np.random.RandomState(0).randint(0, 256, (8, 16, 16, 3)).astype(np.uint8)
    arrays = {
        "edm:cifar10": statistics,
        "adm:imagenet256": {**statistics, **spatial, "arr_0": images},
        "clean-fid:ffhq-1024-trainval70k": statistics,
        "t2ibenchmark:coco-30k": statistics,
    }
    for name, reference in REFERENCES.items():
        file = mirror / reference.url.partition("://")[2]
        file.parent.mkdir(parents=True, exist_ok=True)
        if name in arrays:
            np.savez(file, **arrays[name])
        if name == "adm:imagenet256":  # also as downloaded by hand
            (mirror.parent / file.name).write_bytes(file.read_bytes())
        if name == "edm2:img512":
            file.write_bytes(
                pickle.dumps({"fid": statistics, "fd_dinov2": of_dinov2, "num_images": 50_000})
            )


@pytest.fixture(scope="module")
def mirror() -> Iterator[str]:
    """A server with the weights instead of GitHub."""
    weights = offline_path()
    assert weights is not None, "the tests need fidtool[offline]"
    handler = partial(SimpleHTTPRequestHandler, directory=str(weights.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{weights.name}"
    server.shutdown()


def random_weights(file: Path) -> None:
    """Write random weights for one of `PUBLISHED`, in the format of the published file."""
    name = file.stem.partition("-")[0]
    if name in ("resnet50", "alexnet"):
        from torchvision.models import get_model

        model = get_model(name, weights=None)
    elif file.name == "tuned.pth":
        from torchvision.models import inception_v3

        model = inception_v3(weights=None, init_weights=False)
    elif file.name == "clip.pth":
        import open_clip

        model = open_clip.create_model("ViT-S-32-alt")
    else:
        import timm

        model = timm.create_model(
            "test_vit" if file.name == "test_vit.pth" else "vit_small_patch14_dinov2"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), file)


@pytest.fixture
def stand_ins(rank_server: RankServer, training_server: RankServer) -> Callable[[str], str]:
    """Return commands of forks: ``fidtool``, or ``script`` for one that has imported the training
    libraries.
    """
    servers = {"fidtool": rank_server, "script": training_server}
    return lambda program: shlex.join(servers[program].stand_in(program, []))


def quick(command: str, stand_ins: Callable[[str], str]) -> str:
    """Return the command with forks instead of Python and of torchrun's ranks."""
    if command.startswith("python "):
        return command.replace("python", stand_ins("script"), 1)
    if not command.startswith("torchrun"):
        return command
    fork = f"--no-python {stand_ins('fidtool')} "
    if "-m fidtool " in command:
        return command.replace("-m fidtool ", fork)
    return re.sub(
        r"(?<= )(\S+\.py)",
        lambda script: f"--no-python {stand_ins('script')} {script[1]}",
        command,
        count=1,
    )


def shell_environment(environment: dict[str, str], clone: Path, mirror: str) -> dict[str, str]:
    path = os.pathsep.join(
        (str(clone / "bin"), str(Path(sys.executable).parent), environment["PATH"])
    )
    mirrors = {"FIDTOOL_WEIGHTS_URL": mirror, "FIDTOOL_REFERENCES_URL": f"file://{clone}/mirror"}
    return {
        **environment,
        **mirrors,
        "TORCH_HOME": str(clone),
        "PATH": path,
        "MASTER_PORT": str(free_port()),
    }


def distance_of(command: str) -> tuple[str, str]:
    """Return the name of the command's first Fréchet distance, and the text after the name of each
    metric.
    """
    if extractor := re.search(r"--extractor (?!inception)(\S+)", command):
        return "FD", f" ({extractor[1]})"
    return "FID", " (64 dimensions)" if re.search(
        r"--dims 64|@dims=64|\breal(64|_features)\.npz", command
    ) else ""


def smaller(command: str) -> str:
    """Return the command with replacements that a test can run."""
    for shown, run in SMALLER.items():
        command = command.replace(shown, run)
    if "--extractor" in command:
        command = command.replace(" --dims 64", "")
    if not (found := re.search(r"\bcompute .*--metrics \S*(kid|prdc|all)", command)):
        return command
    settings = {"prdc|all": " --nearest-k 3", "kid|all": f" {KID}"}
    return command + "".join(
        flags for names, flags in settings.items() if re.search(names, found[0])
    )


def text_of(command: str) -> str:
    """Return all text that may name files that a command reads: the command without its output, and
    its program.
    """
    words = re.split("[ ,:]", command)
    programs = [text for name, text in {**FILES, **SNIPPETS}.items() if name in words]
    return "\n".join([OUTPUT.sub("", command), *programs])


def missing_files(command: str, clone: Path) -> list[str]:
    """Return the files of `MAKERS` that a command reads and that do not exist, or that other
    commands write as well.
    """
    read = text_of(command)
    return [
        file
        for file, maker in MAKERS.items()
        if maker != command
        and re.search(rf"(?<![\w/.]){re.escape(file)}", read)
        and (file.endswith(".json") or not (clone / file).exists())
    ]


@pytest.mark.parametrize(
    "command",
    [pytest.param(line, marks=[pytest.mark.slow] if SLOW.search(line) else []) for line in REST],
)
def test_command(
    command: str,
    clone: Path,
    mirror: str,
    environment: dict[str, str],
    stand_ins: Callable[[str], str],
) -> None:
    """All commands run in one folder. The files that a command reads are written first if
    needed.
    """
    for package in re.findall(r"^import (\w+)", text_of(command), re.MULTILINE):
        pytest.importorskip(package, reason=f"needs {package}, from the extra 'test'")
    read = text_of(command)
    for file in missing_files(command, clone):
        test_command(MAKERS[file], clone, mirror, environment, stand_ins)
    if "--metrics fid,is" in command:
        _provide_classifier(clone / "cache")
    command = smaller(command)
    if command.startswith("torchrun"):
        command = command.replace("torchrun", f"torchrun --master-port={free_port()}", 1)
    for name, package in PUBLISHED.items():
        stated = Path(name).name.partition("-")[0]  # the torch.hub folder has files with a hash
        if stated in command + read and not (clone / name).exists():
            pytest.importorskip(package, reason=f"needs {package}, from the extra 'test'")
            random_weights(clone / name)
    command = quick(command, stand_ins).replace("s3://bucket", place := f"file://{clone}")
    command = command.replace("hf://datasets/OWNER/NAME", place)
    if command.startswith("fidtool stats"):
        (clone / command.split(" -o ")[1].split()[0]).unlink(missing_ok=True)
    env = shell_environment(environment, clone, mirror)
    if (
        command.startswith(("fidtool compute", "scripts/examples/ci_gate", "python "))
        and "--checkpoint" not in command
        and "--on-error" not in command
    ):
        env["FIDTOOL_CACHE"] = str(clone / "cache")  # the first command fills it for the later ones
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=clone,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    missed = 3 if command.startswith("fidtool verify") else 0  # the sets are too small
    assert done.returncode == missed, done.stderr
    check_printed(command, done.stdout)


def _provide_classifier(cache: Path) -> None:
    """Add a random classifier to the weights in a cache. The weights of fidtool[offline] have
    none.
    """
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((1008, 2048), np.float32), np.zeros(1008, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIDTOOL_CACHE", str(cache))
        load_weights(None, print)
        add_classifier(converted_path(), weight / 32, bias)


def check_printed(command: str, stdout: str) -> None:
    """Check that a command has printed the values that it should."""
    if form := re.search("--format (table|latex)", command):
        assert (
            stdout.splitlines()[-2].split()[0]
            == {"table": "step2000", "latex": r"\end{tabular}"}[form[1]]
        )
    elif "--preset fdr6" in command:
        assert re.findall(r"^FDr6: (\S+)$", stdout, re.MULTILINE) == ["0.0000"]
    elif pairs := re.search(r"--preset sr-x4|--metrics (psnr\S*)", command):
        words = " (Y, border 4)" * ("sr-x4" in command)
        assert [line.partition(":")[0] for line in stdout.splitlines()] == [
            f"{name.upper()}{words}" for name in (pairs[1] or "psnr,ssim").split(",")
        ]
    elif re.match(
        r"(fidtool compute|torchrun .* fidtool *compute|srun)(?!.*--(json|dump-config))", command
    ):
        name, words = distance_of(command)
        number = r"-?(\d+\.\d{2,6}|\d(\.\d+)?e-\d+)( ± \d+\.\d{2,6})?(  \S+)?"
        conventional = r"CLIP score of \S+ × cosine with '[\w ]+'( \(clip:ViT-S-32-alt\))?"
        known = [name, "Shift", conventional]
        for metric in BUILT_IN.values():
            known += [re.escape(declared.title) for declared in metric.numbers]
        titles = "|".join(known)
        further = r"| \(dinov2:vits14\)" * ("inception" in command)
        further += r"| \(clip:ViT-S-32-alt\)" * bool(re.search("clip-score|cmmd", command))
        further += r"| \(inception@weights=tuned\.pth\)" * ("tuned" in command)
        number += r"|mean -?\d+\.\d+ over 2 (classes|folders), worst -?\d+\.\d+ \(\w+\)"
        line = rf"({titles}|FD)({re.escape(words)}{further})( per (class|folder))?: ({number})\n"
        third = r"(FID.* of val/: .+\nmemorisation.*: .+\n)" * ("--heldout" in command)
        assert re.fullmatch(rf"({line})+{third}([\w, -]+: not computed: .+\n)*", stdout), stdout
        assert stdout.startswith(f"{name}{words}: ")


@pytest.mark.slow
def test_two_machines(
    clone: Path, mirror: str, environment: dict[str, str], stand_ins: Callable[[str], str]
) -> None:
    """Run the commands of both nodes at once on this machine."""
    assert len(NODES) == 2
    env = shell_environment(environment, clone, mirror)
    port = free_port()
    started = []
    for command in NODES:
        local = command.replace("--nproc-per-node=8", "--nproc-per-node=1").replace(
            "node0", "127.0.0.1"
        )
        local = local.replace("torchrun", f"torchrun --master-port={port}", 1)
        program = shlex.split(quick(local, stand_ins))
        started.append(
            subprocess.Popen(
                program,
                cwd=clone,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=PATIENCE) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    assert re.fullmatch(r"FID: \d+\.\d{4}\n", outputs[0][0])
    assert outputs[1][0] == ""


def test_python_example(
    clone: Path, environment: dict[str, str], stand_ins: Callable[[str], str]
) -> None:
    program = [*shlex.split(stand_ins("script")), "example.py"]
    done = subprocess.run(
        program, cwd=clone, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    measured, copied, found, itself = done.stdout.strip().splitlines()
    assert float(measured.split()[0]) > 1
    assert float(copied) == 0
    assert all(isinstance(message, str) for message in ast.literal_eval(found))
    assert float(itself) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("install", [INSTALL, UV_INSTALL], ids=["pip", "uv"])
def test_install_command(tmp_path: Path, environment: dict[str, str], install: str) -> None:
    """Run an installation command unchanged in a copy of the tracked files, with packages of this
    environment.

    Downloading several gigabytes is left to the second command, with which these tests are run.
    """
    copy = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    # After the new environment's own packages, so that the fidtool that runs is the one it
    # installed.
    lent = next(path for path in sys.path if path.endswith("site-packages"))
    venv_hook = f"&& echo '{lent}' > $(echo .venv/lib/python3*/site-packages)/lent.pth &&"
    command = install.replace("&&", venv_hook, 1)
    uv_settings = tmp_path / "uv.toml"
    uv_settings.write_text("[pip]\nno-deps = true\n")
    env = {
        **environment,
        "PIP_NO_DEPS": "1",
        "UV_CONFIG_FILE": str(uv_settings),
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=copy, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^FID: \d+\.\d{4}$", done.stdout, re.MULTILINE)
    suggested = re.findall(r"^  (\S*(?:fidtool|torchrun) .*)$", done.stdout, re.MULTILINE)
    assert len(suggested) == 3, "the demo suggests three commands"
    assert all(line.startswith(".venv/bin/") for line in suggested), "each can be run as printed"


def test_ci_runs_the_test_command() -> None:
    assert TEST in [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]


def test_every_command_is_documented() -> None:
    for name in cli.commands:
        assert any(f"fidtool {name}" in text for text in PAGES.values()), (
            f"no page shows `fidtool {name}`"
        )


def test_every_extra_exists() -> None:
    extras = importlib.metadata.metadata("fidtool").get_all("Provides-Extra") or []
    named = {
        extra
        for text in PAGES.values()
        for group in re.findall(r"fidtool\[([a-z,0-9]+)\]", text)
        for extra in group.split(",")
    }
    assert {"offline", "report"} <= named <= {*extras}


def test_files_with_the_same_name_are_equal() -> None:
    assert all(FILES[name] == content for name, content in PROGRAMS if name), (
        "they are written to one folder"
    )
