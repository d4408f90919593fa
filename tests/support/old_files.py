"""Files of earlier releases, in ``tests/goldens/files``. Later versions must be able to read them.

Version 0.1.0 wrote them, and they are never written again: ``pytest --write-goldens`` does not touch them, `SHA256`
has their hashes, and `make_files` rejects a folder that contains files. Code that reads them may change; the files may
not. If a release writes different files, write those of that release to a second folder, with

    PYTHONPATH=.:tests python -m support.old_files tests/goldens/files-of-1.0

and keep both. No file contains the name of a machine or its hardware.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fidtool
from support.exact_sets import NETWORK, bells, beside_network, make_exact_pictures, mixed, pixels
from support.goldens import FOLDER
from support.light_training import Model, Trainer

FILES = FOLDER / "files"
REAL, FAKE = 21, 18
"""Numbers of images in the two sets, whose seeds are 1 and 2."""
BATCH = 4
ANYWHERE = "/data/real"
"""Path of the images in the files."""
SHA256 = {
    "adm.npz": "33bc87b4454d2d912d95d2faddeeeece15d3feeac113fd52d5852a025d30994f",
    "bare.npz": "53aa0912ff8388b67d3598c9e1a714f9e28ecf8009193a418f8289260d6ce865",
    "cache_entry.npz": "739627207f6a6249a570653d62674f66fc2a68cf5a46718a22ce48beca88a013",
    "callback_state.pt": "5ce04f74cfce153f222e867a2db0617990cfeeeffaeb7442e91b535ce40715fb",
    "checkpoint/000-run-writer.features.rows": "b74ea942458cc8084da5ac97f9c34424749ddaf3d172dec94b31214c88f92440",
    "checkpoint/000-run-writer.part.npz": "5f2de419d7a38ed517e9a53db0bc0c044db33bab14634632c4c73a9d58a1e108",
    "checkpoint/000-run-writer.records.rows": "f2c3f219e682050b360bce77f0599ac79b769da6d4c18513354d8e559ecca1a9",
    "checkpoint/001-run-writer.features.rows": "a787af8037cf5ccfe6ce7cd055cb497e468e7a113d4abf0d2042fdf5a616bbc2",
    "checkpoint/001-run-writer.part.npz": "f2f6f47830ddc28d757019fd0c7e95d77b382bf6ab825bb498745f2888f60e03",
    "checkpoint/001-run-writer.records.rows": "d0c2f3edc24900cffac787f9a404754647fd5e8ac121ac571d490d514962e4ec",
    "checkpoint/fidtool-checkpoint.json": "57f1ec2e71010b32010fc9381a365d0858f5897db130beb4a8ce36bf6f744fc4",
    "features.npz": "873f8c4abcfdc0601b2603765a5735d50d1ad94a32c5bc37589c8632e8bfde73",
    "layers.npz": "c2a215e7d98ed399709610bb4f731be942ef6c437ddf278461cc1fc984c006dc",
    "metric_state.pt": "e64a5b706d2f959eb34b444adcd0854ba6b7ad5f7e73c56697748b07f809a38f",
    "own.npz": "022fd843dfefab4b93987f65668c84dc814a62100c8e224a261f791a252729ad",
    "pytorch_fid.npz": "865ca6a99e267a93716f094b53060d885c99a966847007b7b94a9a604846537a",
    "skipped.npz": "48d16bf94edd375809b72f0a64edf9584e745ee8ffdc1a6b4bb49ec5d59ca6df",
}


def make_sets(folder: Path) -> tuple[Path, Path]:
    """Write the images behind all files: ``real``, and ``fake``, which is lighter and has two exact duplicates."""
    real, fake = make_exact_pictures(folder / "real", REAL, 1), make_exact_pictures(folder / "fake", FAKE, 2, 40)
    shutil.copy(fake / "00003.png", fake / "00004.png")
    return real, fake


def statistics(path: str = "real", **settings: Any) -> fidtool.Statistics:
    """Return the statistics of a set in the current folder, without properties of this machine."""
    settings = {"num": 20, "seed": 3, "device": "cpu", **settings}
    found = fidtool.compute_statistics(path, extractor=NETWORK, cache=False, **settings)
    assert found is not None
    assert found.pictures is not None
    assert found.arithmetic is not None
    return replace(
        found, arithmetic=_of_nowhere(found.arithmetic), pictures=replace(found.pictures, prefix=f"{ANYWHERE}/")
    )


def _of_nowhere(arithmetic: dict[str, Any]) -> dict[str, Any]:
    """Remove the properties of this machine from the arithmetic."""
    kept = ("precision", "batch_size")
    return {name: value if name in kept else "" for name, value in arithmetic.items()}


def of_layers(definition: Any) -> fidtool.Statistics:
    """Return statistics of three layers, like those of a run with sFID and CMMD."""

    def layer(seed: int, dims: int, extractor: str, kept: bool) -> fidtool.LayerStatistics:
        features = mixed(20, dims, seed)
        wholes = features.astype(np.float64)
        sigma = np.cov(wholes.T)
        defined = replace(definition, extractor=extractor, dims=dims)
        return fidtool.LayerStatistics(wholes.mean(0), sigma, defined, features if kept else None)

    layers = {"spatial": layer(2, 5, "spatial", False), "embedding": layer(3, 4, "embedding", True)}
    return fidtool.Statistics({"features": layer(1, 3, "main", True), **layers}, 20)


def images_of_training() -> tuple[torch.Tensor, torch.Tensor]:
    """Return real and fake images for the metric."""
    real, fake = (torch.from_numpy(pixels(9, seed, light)).permute(0, 3, 1, 2) for seed, light in ((1, 0), (2, 40)))
    return real.contiguous(), fake.contiguous()


def trained_metric(network: str = NETWORK) -> Any:
    """Return the training metric after updates with these images."""
    from fidtool.training import FrechetInceptionDistance

    metric = FrechetInceptionDistance(network)
    real, fake = images_of_training()
    metric.update(real, real=True)
    metric.update(fake[:5], real=False)
    metric.update(fake[5:], real=False)
    return metric


def trained_callback(reference: Path) -> Any:
    """Return FIDCallback after the fourth epoch of a training, with a statistics file as reference."""
    from fidtool.training import FIDCallback

    callback = FIDCallback("generate", reference, num_samples=REAL, feature=NETWORK)
    callback.on_train_epoch_end(Trainer(current_epoch=3), Model())
    return callback


def checkpointed() -> subprocess.CompletedProcess[str]:
    """Run the command whose checkpoint is stored."""
    command = ["compute", "real", "fake", "--extractor", NETWORK, "--device", "cpu"]
    further = ["--metrics", "fid,kid", "--kid-subset-size", "9", "--batch-size", str(BATCH), "--no-cache"]
    whole = [sys.executable, "-m", "fidtool", *command, *further, "--checkpoint", "checkpoint"]
    return subprocess.run(whole, capture_output=True, text=True)


def make_files(folder: Path) -> None:
    """Write all files to an empty folder."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} has files, which are never made again: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder.resolve()
    with tempfile.TemporaryDirectory() as place:
        os.environ["FIDTOOL_CACHE"] = str(Path(place) / "cache")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        os.chdir(beside_network(Path(place)))
        make_sets(Path(place))
        _make_statistics(target)
        _make_entry(target)
        torch.save(trained_metric().state_dict(), target / "metric_state.pt")
        callback = trained_callback(target / "own.npz")
        torch.save({callback.state_key: callback.state_dict()}, target / "callback_state.pt")
        # An unreadable file ends the run; the checkpoint contains the work before it.
        damaged = Path("fake/00009.png")
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:100])
        ended = checkpointed()
        assert ended.returncode == 2, ended.stderr
        _make_checkpoint(target)
        os.chdir("/")
    for file in sorted(target.rglob("*.*")):
        if file.is_file():
            print(f'    "{file.relative_to(target)}": "{hashlib.sha256(file.read_bytes()).hexdigest()}",')


def _make_statistics(target: Path) -> None:
    own = statistics()
    fidtool.write_statistics(target / "own.npz", own)
    fidtool.write_statistics(target / "features.npz", statistics(metrics="fid,kid"))
    shutil.copytree("real", "skipping")
    Path("skipping/broken.png").write_bytes(b"no image")
    fidtool.write_statistics(target / "skipped.npz", statistics("skipping", num=None, on_error="skip", max_skip=0.1))
    fidtool.write_statistics(target / "layers.npz", of_layers(own.definition))
    fidtool.write_statistics(target / "bare.npz", fidtool.Statistics.of(own.mu, own.sigma, own.count))
    # In the formats of pytorch-fid and of ADM's evaluator.
    np.savez_compressed(target / "pytorch_fid.npz", mu=own.mu, sigma=own.sigma)
    spatial = bells(20, 6, 5).astype(np.float64)
    further = {"mu_s": spatial.mean(0), "sigma_s": np.cov(spatial.T)}
    np.savez(target / "adm.npz", mu=own.mu.astype(np.float32), sigma=own.sigma.astype(np.float32), **further)


def _make_entry(target: Path) -> None:
    """Write a cache entry."""
    fidtool.compute_statistics("real", extractor=NETWORK, device="cpu")
    (entry,) = (Path(os.environ["FIDTOOL_CACHE"]) / "statistics").glob("*.npz")
    with np.load(entry) as archive:
        arrays = {name: archive[name] for name in archive.files}
    run = json.loads(str(arrays["run"]))
    arrays["run"] = np.array(json.dumps(run | {"arithmetic": _of_nowhere(run["arithmetic"])}, sort_keys=True))
    texts = {"source": ANYWHERE.encode(), "folder": f"{ANYWHERE}/".encode()}
    arrays |= {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    np.savez(target / "cache_entry.npz", **arrays)


def _make_checkpoint(target: Path) -> None:
    """Write the checkpoint of a run that was stopped. Its names do not depend on the machine."""
    (target / "checkpoint").mkdir()
    for file in sorted(Path("checkpoint").iterdir()):
        if file.suffix == ".json":
            manifest = json.loads(file.read_text())
            identity = manifest["identity"]
            identity["arithmetic"] = _of_nowhere(identity["arithmetic"])
            for number, entry in enumerate(identity["sets"]):
                entry |= {"path": f"/data/{number}", "identity": ""}
            (target / "checkpoint" / file.name).write_text(json.dumps(manifest, indent=1))
        else:
            number, _, rest = file.name.split("-", 2)
            kind = rest.partition(".")[2]
            shutil.copy(file, target / "checkpoint" / f"{number}-run-writer.{kind}")


if __name__ == "__main__":
    make_files(Path(sys.argv[1]))
