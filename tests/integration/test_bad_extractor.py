"""Errors about custom networks with common mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Run
from support.own_networks import GOOD_FACTORY, GOOD_FORWARD, MODULE, TINY_FILE, make_modules


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_modules(tmp_path)


def refused(here: Run, extractor: str, texts: list[str], status: int = 2) -> None:
    """Check for one error line with all of ``texts``, and an empty stdout."""
    plain = here("compute", "real", "fake", "--extractor", extractor, "--quiet")
    assert (plain.status, plain.stdout, plain.stderr.count("\n")) == (status, "", 1), plain
    assert [text for text in texts if text not in plain.error] == [], plain.error


@pytest.mark.parametrize(
    ("extractor", "texts"),
    [
        (TINY_FILE, ["unknown network", "tiny_network.py", "FILE.py:NAME"]),
        (f"{TINY_FILE}:missing", ["tiny_network.py:missing", "tiny_network.py has no missing"]),
    ],
)
def test_a_factory_that_cannot_be_loaded(
    here: Run, place: Path, extractor: str, texts: list[str]
) -> None:
    refused(here, extractor, texts)


@pytest.mark.parametrize(
    ("factory", "texts"),
    [
        ("raise ValueError('two\\nlines')", ["ValueError: two lines"]),
        ("return Net()", ["returned Net", "fidtool.Network"]),
        ("return fidtool.Network(Net(), input_size=8, mean=0.5)", ["mean", "0.5"]),
        ("syntax error", ["SyntaxError"]),
        # A script that exits with status 0 when it is imported would pass a CI gate.
        ("pass\nraise SystemExit(0)", ["SystemExit"]),
    ],
)
def test_a_factory_that_fails(here: Run, place: Path, factory: str, texts: list[str]) -> None:
    (place / "own.py").write_text(MODULE.format(forward=GOOD_FORWARD, factory=factory))
    refused(here, "own.py:network", ["own.py:network", *texts])


BATCH_NORM = "torch.nn.functional.batch_norm(x, None, None, training=True).abs().amax((2, 3))"
CHANNELS_LAST = "x[:, :1, :5, :5].repeat(1, 9, 1, 1).permute(0, 2, 3, 1)"


@pytest.mark.parametrize(
    ("features", "texts"),
    [
        ("x.reshape(3, 5)", ["1x3x8x8", "RuntimeError"]),
        ("torch.fft.fft(x.mean((2, 3)))", ["returned complex numbers", "torch.view_as_real"]),
        ("torch.fft.fft(x)", ["returned complex numbers"]),
        ("x.mean((2, 3)) / 0.0 - x.mean((2, 3)) / 0.0", ["NaN"]),
        # It fails only on batches larger than the two images of the probe.
        ("x.mean((2, 3))[:, :3 if len(x) < 3 else 2]", ["3", "2"]),
        (
            BATCH_NORM,
            ["own.py:network@", " returns different features for the same image", "model.eval()"],
        ),
        ("x[:, :0].mean((2, 3))", ["no features for one image", "(1, 0)"]),
        # It would be killed when it allocates the sums.
        (
            "x.mean((2, 3))[:, :1].repeat(1, 2_000_000)",
            ["features of 2000000 dimensions need 6 matrices of 32000.0 GB"],
        ),
        (CHANNELS_LAST, ["(1, 5, 5, 9)", "channels first", "(1, D, h, w)"]),
        ("(x.mean((2, 3)) + 2.0) * 1e-30", ["scale the features in the network"]),
        ("(x.mean((2, 3)) + 2.0) * 5e37", ["scale the features in the network"]),
    ],
)
def test_a_network_that_fails(here: Run, place: Path, features: str, texts: list[str]) -> None:
    """A failure of the network at run time is status 1."""
    (place / "own.py").write_text(MODULE.format(forward=f"return {features}", factory=GOOD_FACTORY))
    refused(here, "own.py:network", texts, status=1)


def test_feature_maps_are_averaged(here: Run, place: Path) -> None:
    (place / "own.py").write_text(MODULE.format(forward="return x", factory=GOOD_FACTORY))
    assert here("compute", "real", "fake", "--extractor", "own.py:network", "--quiet").status == 0


def test_the_suggested_feature_step_works(here: Run, place: Path) -> None:
    forward = "return (x.mean((2, 3)) + 2.0) * 1e-3"
    (place / "own.py").write_text(
        MODULE.format(
            forward=forward, factory="return fidtool.Network(Net(), input_size=8, feature_step=18)"
        )
    )
    run = ("compute", "real", "fake", "--extractor", "own.py:network", "--quiet")
    assert "pass --feature-step 29" in here(*run).error
    assert here(*run, "--feature-step", 29).status == 0


ENDINGS = {
    "import os; os._exit(0)": "custom code ended the process with os._exit(0)",
    "raise KeyboardInterrupt": "KeyboardInterrupt was raised by custom code, and no signal was "
    "received",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_custom_code_cannot_end_the_run_as_a_success(
    fidtool: Run, place: Path, ending: str
) -> None:
    """A CI gate would pass without a value; and nobody pressed Ctrl-C."""
    (place / "own.py").write_text(MODULE.format(forward=ending, factory=GOOD_FACTORY))
    outcome = fidtool(
        "compute", "real", "fake", "--extractor", "own.py:network", "--fail-above", 1, "--quiet"
    )
    assert (outcome.status, outcome.stdout, outcome.stderr) == (
        1,
        "",
        f"error: {ENDINGS[ending]}\n",
    )


def test_what_custom_code_prints_is_not_in_the_result(fidtool: Run, place: Path) -> None:
    """Nor what its child processes and libraries in C write to the descriptor. Stdout in a file is
    the same.
    """
    forward = f"print('forward'); os.system('echo child'); os.write(1, b'C\\n'); {GOOD_FORWARD}"
    text = MODULE.format(forward=forward, factory=GOOD_FACTORY)
    (place / "own.py").write_text(f"import os\nprint('import')\n{text}")
    command = ("compute", "real", "fake", "--extractor", "own.py:network", "--quiet")
    for output in (("--json",), ("-o", "/dev/stdout", "--value")):
        outcome = fidtool(*command, *output)
        assert {"import", "forward", "child", "C"} <= set(outcome.stderr.splitlines())
        assert not {"import", "forward", "child", "C"} & set(outcome.stdout.splitlines())
        assert json.loads(outcome.stdout[outcome.stdout.index("{") :])["results"]
    assert fidtool(*command, "--json", "--dump-config").stdout.startswith("[tool.fidtool]\n")
