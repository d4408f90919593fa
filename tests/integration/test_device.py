"""The calling program's reduced-precision settings, and whole runs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fidtool
from fidtool.training import FrechetInceptionDistance, FrechetLoss
from support.command_line import Run
from support.pictures import make_pictures

NEW_SWITCHES = hasattr(torch.backends.cuda.matmul, "fp32_precision")


@pytest.mark.skipif(not NEW_SWITCHES, reason="needs the precision settings of torch 2.9")
@pytest.mark.parametrize(
    "user",
    [
        "torch.backends.mkldnn.conv.fp32_precision = 'bf16'",
        "torch.set_float32_matmul_precision('high')",
        "torch.backends.cudnn.allow_tf32 = True",
    ],
)
def test_the_callers_reduced_precision_is_restored(user: str, program: Run) -> None:
    """Runs in a separate process, because torch remembers which of its two precision APIs a program
    has used.
    """
    code = f"""
import torch, warnings
from fidtool.features.device import deterministic_mode
warnings.simplefilter("ignore")
generator = torch.Generator().manual_seed(0)
x, weight = torch.randn(1, 64, 16, 16, generator=generator), torch.randn(64, 64, 3, 3, generator=generator)
def convolved():
    return torch.nn.functional.conv2d(x, weight)
def seen():
    found = []
    for read in (
        torch.get_float32_matmul_precision,
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.fp32_precision,
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.backends.mkldnn.conv.fp32_precision,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda: torch.backends.cudnn.conv.fp32_precision,
        lambda: torch.backends.cudnn.rnn.fp32_precision,
    ):
        try:
            found.append(read())
        except RuntimeError as error:
            found.append(str(error))
    return found
with deterministic_mode():
    strictly = convolved()
{user}
before = seen()
with deterministic_mode():
    assert torch.equal(convolved(), strictly)
assert seen() == before, (seen(), before)
torch.backends.fp32_precision = "tf32"
general = seen()
with deterministic_mode():
    pass
assert seen() == general, (seen(), general)
"""
    ended = program(code)
    assert ended.status == 0, ended.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu_equals_training_on_the_cpu(
    environment: dict[str, str], tmp_path: Path
) -> None:
    values = []
    for device in ("cpu", "cuda"):
        metric = FrechetInceptionDistance(192, batch_size=8).to(device)
        for kind, seed in ((True, 1), (False, 2)):
            images = torch.randint(
                0, 256, (20, 3, 40, 40), generator=torch.Generator().manual_seed(seed)
            )
            metric.update(images.to(device, torch.uint8), real=kind)
        values.append(metric.compute())
        assert values[-1].device.type == device
        assert metric.to("cpu").compute() == values[-1].cpu()
    assert float(values[1]) == pytest.approx(float(values[0]), rel=1e-5)
    statistics = fidtool.compute_statistics(make_pictures(tmp_path / "real", 40, 0), dims=64)
    assert statistics is not None
    features = torch.randn(30, 64, generator=torch.Generator().manual_seed(1))
    losses, gradients = [], []
    for device in ("cpu", "cuda"):
        x = features.to(device, copy=True).requires_grad_()
        losses.append(FrechetLoss(statistics).to(device)(x).cpu())
        losses[-1].backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert float(losses[1]) == pytest.approx(float(losses[0]), rel=1e-6)
    # The gradients are float32, and the devices sum in different orders.
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)
