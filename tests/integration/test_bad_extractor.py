"""Errors about custom networks with common mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run
from support.own_networks import GOOD_FACTORY, GOOD_FORWARD, MODULE, TINY_FILE, make_modules


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_modules(environment, tmp_path)


def refused(here: Run, extractor: str, texts: list[str], status: int = 2) -> None:
    """Check for one error line with all of ``texts``, and an empty stdout."""
    plain = here("compute", "real", "fake", "--extractor", extractor, "--quiet")
    assert (plain.status, plain.stdout, plain.stderr.count("\n")) == (status, "", 1), plain
    assert [text for text in texts if text not in plain.error] == [], plain.error


@pytest.mark.parametrize(
    ("extractor", "texts"),
    [
        (TINY_FILE, ["needs the name of a function", "tiny_network.py:NAME"]),
        (f"{TINY_FILE}:missing", ["tiny_network.py:missing", "tiny_network.py has no missing"]),
    ],
)
def test_a_factory_that_cannot_be_loaded(here: Run, place: Path, extractor: str, texts: list[str]) -> None:
    refused(here, extractor, texts)


@pytest.mark.parametrize(
    ("factory", "texts"),
    [
        ("raise ValueError('two\\nlines')", ["ValueError: two lines"]),
        ("return Net()", ["returned Net", "fidtool.Network"]),
        ("return fidtool.Network(Net(), input_size=8, mean=0.5)", ["mean", "0.5"]),
        ("syntax error", ["SyntaxError"]),
    ],
)
def test_a_factory_that_fails(here: Run, place: Path, factory: str, texts: list[str]) -> None:
    (place / "own.py").write_text(MODULE.format(forward=GOOD_FORWARD, factory=factory))
    refused(here, "own.py:network", ["own.py:network", *texts])


def test_a_script_that_exits_is_an_error(here: Run, place: Path) -> None:
    """A training script without a __main__ guard may exit with status 0, which a CI gate would take as a pass."""
    (place / "own.py").write_text("import sys\nsys.exit(0)\n")
    refused(here, "own.py:network", ["own.py:network", "SystemExit"])


@pytest.mark.parametrize(
    ("forward", "texts"),
    [
        ("return x.reshape(3, 5)", ["1x3x8x8", "RuntimeError"]),
        ("return x", []),  # (1, 3, 8, 8) is averaged over the last two dimensions
        ("return x.mean((2, 3)) / 0.0 - x.mean((2, 3)) / 0.0", ["NaN"]),
        # It fails only on batches larger than the two images of the probe.
        ("return x.mean((2, 3))[:, :3 if len(x) < 3 else 2]", ["3", "2"]),
    ],
)
def test_a_network_that_fails(here: Run, place: Path, forward: str, texts: list[str]) -> None:
    """A failure of the network at run time is status 1."""
    (place / "own.py").write_text(MODULE.format(forward=forward, factory=GOOD_FACTORY))
    if texts:
        refused(here, "own.py:network", texts, status=1)
    else:
        assert here("compute", "real", "fake", "--extractor", "own.py:network", "--quiet").status == 0


def test_features_that_depend_on_the_batch_are_refused(here: Run, place: Path) -> None:
    forward = "return torch.nn.functional.batch_norm(x, None, None, training=True).abs().amax((2, 3))"
    (place / "net.py").write_text(MODULE.format(forward=forward, factory=GOOD_FACTORY))
    texts = ["net.py:network@", " returns different features for the same image", "model.eval()"]
    refused(here, "net.py:network", texts, 1)


def test_channels_last_feature_maps_are_refused(here: Run, place: Path) -> None:
    forward = "return x[:, :1, :5, :5].repeat(1, 9, 1, 1).permute(0, 2, 3, 1)"
    (place / "net.py").write_text(MODULE.format(forward=forward, factory=GOOD_FACTORY))
    refused(here, "net.py:network", ["(1, 5, 5, 9)", "channels last", "(1, D, h, w)"], 1)


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        ("1e-3", "pass --feature-step 29"),
        ("5e37", "scale it in the network"),
    ],
)
def test_the_suggested_feature_step_works(here: Run, place: Path, factor: str, text: str) -> None:
    """Where no step that the flag accepts works, the message suggests scaling instead."""
    forward = f"return (x.mean((2, 3)) + 2.0) * {factor}"
    (place / "net.py").write_text(MODULE.format(forward=forward, factory=GOOD_FACTORY))
    plain = here("compute", "real", "fake", "--extractor", "net.py:network", "--quiet")
    assert text in plain.error
    step = plain.error.rpartition("--feature-step ")[2]
    if "pass" in text:
        again = here("compute", "real", "fake", "--extractor", "net.py:network", "--feature-step", step, "--quiet")
        assert again.status == 0, again.stderr
