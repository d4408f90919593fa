"""Sources of the Inception weights: each gives the same network, and each fault is reported."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
import torch
from torchvision.models.inception import Inception3

from fidtool.errors import InputError
from fidtool.features.models import inception as weights
from support.command_line import Outcome, Run
from support.http_store import kept
from support.offline import ORIGINAL, digest, needs_weights
from support.pictures import make_pictures
from support.places import TESTS
from support.processes import PATIENCE
from support.ranks import RankServer

pytestmark = needs_weights
CONVERTED = "inception-2015-12-05.pt"


def refuse(line: str) -> None:
    """Listener that fails on any message."""
    raise AssertionError(line)


@pytest.mark.parametrize(
    ("by", "fault"), [("--weights", "wrong hash"), ("FIDTOOL_WEIGHTS", "missing")]
)
def test_an_invalid_weights_file_is_named(
    here: Run,
    empty_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    fault: str,
) -> None:
    """It is never silently replaced by another source."""
    folder, file = make_pictures(tmp_path / "set", 2), tmp_path / "mine.pth"
    if fault == "wrong hash":
        file.write_bytes(b"other weights\0")
    if by == "FIDTOOL_WEIGHTS":
        monkeypatch.setenv(by, str(file))
    outcome = here(
        "compute", folder, folder, "--quiet", *(["--weights", file] if by == "--weights" else [])
    )
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    error = outcome.error
    assert str(file) in error
    if fault == "wrong hash":
        assert hashlib.sha256(b"other weights\0").hexdigest() in error
    else:
        assert by in error
    assert kept(empty_cache) == []


def test_an_explicit_file_takes_precedence(
    empty_cache: Path,
    converted_weights: tuple[bytes, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = tmp_path / "mine.pt"
    assert ORIGINAL is not None
    mine.write_bytes(ORIGINAL.read_bytes())
    empty_cache.joinpath("weights").mkdir(parents=True)
    weights.converted_path().write_bytes(b"damaged, and not looked at")
    monkeypatch.setenv("FIDTOOL_WEIGHTS", str(mine))
    loaded = weights.load_weights(None, refuse)
    assert (loaded.origin, digest(loaded.state)) == (str(mine), converted_weights[1])
    monkeypatch.setenv("FIDTOOL_WEIGHTS", str(tmp_path / "missing"))
    assert weights.load_weights(str(mine), refuse).origin == str(mine)
    assert kept(empty_cache) == [CONVERTED]


def _other_tensor(data: bytes, folder: Path) -> bytes:
    file = folder / "tensors.pt"
    file.write_bytes(data)
    payload = torch.load(file, weights_only=True)
    payload["state"]["Conv2d_1a_3x3.conv.weight"][0, 0, 0, 0] += 1e-3
    torch.save(payload, file)
    return file.read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "another tensor"])
def test_damaged_and_different_weights_in_the_cache_are_replaced(
    empty_cache: Path, converted_weights: tuple[bytes, str], tmp_path: Path, damage: str
) -> None:
    """A cache folder may come from another machine."""
    data, sha256 = converted_weights
    assert sha256 == weights.INCEPTION_SHA256
    bad = data[: len(data) // 2] if damage == "truncated" else _other_tensor(data, tmp_path)
    empty_cache.joinpath("weights").mkdir(parents=True)
    weights.converted_path().write_bytes(bad)
    with pytest.raises(InputError, match="damaged"):
        weights.check_hash(weights.converted_path())
    news: list[str] = []
    assert digest(weights.load_weights(None, news.append).state) == sha256
    assert ["damaged" in line and str(weights.converted_path()) in line for line in news] == [True]
    assert digest(weights.load_weights(None, refuse).state) == sha256


@pytest.mark.slow
def test_the_official_file_has_the_same_network(
    empty_cache: Path,
    converted_weights: tuple[bytes, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uses a file in the official format: torchvision's names, counters, and a classifier that the
    digest excludes.
    """
    state = Inception3(num_classes=1008, aux_logits=False, init_weights=False).state_dict()
    assert {"fc.weight", "fc.bias", "Mixed_7c.branch_pool.bn.num_batches_tracked"} <= set(state)
    assert len(state["fc.bias"]) == 1008
    state |= {
        name: tensor
        for name, tensor in weights.load_weights(None, print).state.items()
        if name[:3] != "fc."
    }
    state["fc.weight"], state["fc.bias"] = torch.randn(1008, 2048), torch.randn(1008)
    file = tmp_path / "pt_inception.pth"
    torch.save(state, file)
    monkeypatch.setattr(weights, "OFFICIAL_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    hub = weights.hub_path()
    hub.parent.mkdir(parents=True)
    hub.symlink_to(file)
    found = weights.load_weights(None, refuse, classifier=True)
    assert (found.origin, found.has_classifier, digest(found.state)) == (
        str(hub),
        True,
        converted_weights[1],
    )
    assert kept(empty_cache) == [CONVERTED]
    assert weights.has_local_classifier(None)
    # As torch-fidelity names it.
    theirs = hub.rename(hub.with_name(hub.name.replace("pt_", "weights-")))
    assert weights.hub_path() == theirs
    loaded = weights.load_weights(str(file), refuse)
    assert digest(loaded.state) == converted_weights[1]
    assert torch.equal(loaded.state["fc.weight"], state["fc.weight"])
    assert "with the classifier" in weights.check_hash(file)


def test_another_file_in_torch_hubs_folder_is_passed_over(
    here: Run, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the official file's name, but not the SHA-256 whose beginning is in the name."""
    hub, folder = weights.hub_path(), make_pictures(tmp_path / "set", 2)
    hub.parent.mkdir(parents=True)
    hub.write_bytes(b"other weights\0")
    monkeypatch.setattr(weights, "offline_path", lambda: None)
    monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", "http://127.0.0.1:9/none.pth")
    outcome = here("compute", folder, folder)
    assert outcome.status == 1
    assert (
        f"torch hub: weights not used: the weights file {hub} has the wrong hash" in outcome.stderr
    )
    assert "the download from http://127.0.0.1:9/none.pth failed" in outcome.error
    assert here("weights", "--verify").status == 0, "no run uses it"


def test_a_cache_that_cannot_be_written_gives_a_message(
    empty_cache: Path, converted_weights: tuple[bytes, str]
) -> None:
    empty_cache.write_text("a file where the folder should be")
    news: list[str] = []
    assert digest(weights.load_weights(None, news.append).state) == converted_weights[1]
    assert [str(empty_cache) in line for line in news] == [True]


def test_two_processes_fill_one_cache_simultaneously(
    empty_cache: Path,
    environment: dict[str, str],
    converted_weights: tuple[bytes, str],
    tmp_path: Path,
    rank_server: RankServer,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.append({str(TESTS)!r})\n"
        "from fidtool.features.models.inception import load_weights\n"
        "from support.offline import digest\n"
        "print(digest(load_weights(None, print).state))"
    )
    arguments = rank_server.stand_in("script", [program])
    pair = [
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=PATIENCE)[0] for process in pair] == [
        f"{converted_weights[1]}\n"
    ] * 2
    assert kept(empty_cache) == [CONVERTED]


# --- fidtool weights ------------------------------------------------------------------------------


def lines_of(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Return state, source, and path or note of each line."""
    assert outcome.status == 0, outcome.stderr
    return [
        (line[:14].strip(), line[14:32].strip(), line[32:]) for line in outcome.stdout.splitlines()
    ]


ORDER = ["FIDTOOL_WEIGHTS", "cache", "fidtool[offline]", "torch hub", "download"]


@pytest.mark.parametrize(
    ("there", "states"),
    [
        (set(), ["not there", "not there", "not there", "not there", "would be used"]),
        ({"cache", "offline"}, ["not there", "used", "found", "not there", "if needed"]),
        (
            {"option", "named", "offline", "hub"},
            ["used", "not there", "found", "found", "if needed"],
        ),
    ],
)
def test_sources_are_listed_in_search_order(
    here: Run,
    empty_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: set[str],
    states: list[str],
) -> None:
    """No file is opened, so empty files are sufficient."""
    files = {name: tmp_path / name for name in ("offline", "named", "option")}
    files |= {"cache": weights.converted_path(), "hub": weights.hub_path()}
    empty_cache.joinpath("weights").mkdir(parents=True)
    weights.hub_path().parent.mkdir(parents=True)
    for name in there:
        files[name].write_bytes(b"")
    monkeypatch.setattr(
        weights, "offline_path", lambda: files["offline"] if "offline" in there else None
    )
    monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", "http://mirror/weights.pth")
    if "named" in there:
        monkeypatch.setenv("FIDTOOL_WEIGHTS", str(files["named"]))
    listed = lines_of(
        here("weights", *(["--weights", files["option"]] if "option" in there else []))
    )
    assert [state for state, _, _ in listed] == states
    assert [label for _, label, _ in listed] == (
        ["--weights"] if "option" in there else ORDER[:1]
    ) + ORDER[1:]
    assert (
        listed[0][2] == str(files["option" if "option" in there else "named"])
        or listed[0][2] == "not set"
    )
    assert listed[1][2] == str(files["cache"])
    assert listed[4][2] == "http://mirror/weights.pth"
