"""Alternative spellings of names are accepted, or the error suggests the right name."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from fidtool.errors import InputError
from fidtool.features.choice import NetworkChoice, check_extractor
from fidtool.features.protocol import (
    OWN_PROTOCOLS,
    PROTOCOLS,
    OwnProtocolName,
    ProtocolName,
    find_protocol,
)
from fidtool.metrics.kid import KID
from fidtool.metrics.registry import BUILT_IN, find_metric, select_metrics
from fidtool.settings.settings import Settings


@pytest.mark.parametrize(
    ("typed", "meant"),
    {
        "FID": "fid",
        "KID": "kid",
        "Inception-Score": "is",
        "inception_score": "is",
        "fid_infinity": "fid-infinity",
        "FIDinfinity": "fid-infinity",
        "FID∞": "fid-infinity",
        "CMMD": "cmmd",
        "sFID": "sfid",
        "Precision": "prdc",
        "coverage": "prdc",
    }.items(),
)
def test_metrics(typed: str, meant: str) -> None:
    found = find_metric(typed)
    assert found.metric == BUILT_IN[meant]()
    assert [metric.name for metric in Settings(metrics=f"{typed},{meant}").selected_metrics] == [
        meant
    ]


def test_all_metrics() -> None:
    chosen = select_metrics("All")
    assert [each.metric.name for each in chosen] == [
        name for name, kind in BUILT_IN.items() if not kind.by_name
    ]
    assert {"psnr", "ssim", "ms-ssim", "lpips", "clip-score", "fdr"}.isdisjoint(
        each.metric.name for each in chosen
    )
    assert all(each.optional for each in chosen)
    kid = KID(subset_size=9)
    chosen = select_metrics(["all", kid, "fid"])
    assert chosen[1].metric == kid
    assert {each.spec for each in chosen if not each.optional} == {"kid", "fid"}
    with pytest.raises(
        InputError, match=r"all is not a single metric; it selects each of fid, kid, is"
    ):
        find_metric("all")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("kidd", "unknown metric 'kidd'; did you mean kid"),
        ("fidd", r"did you mean fid, sfid, fid-infinity, mifid\? Choose"),
        ("precison", "did you mean precision"),
        ("fid-infinite", "did you mean fid"),
        (
            "dists",
            "unknown metric 'dists'; choose from fid, kid, is, prdc, sfid, fid-infinity, cmmd, "
            "mind, mifid, vendi, authpct, fdr, psnr, ssim, ms-ssim, lpips, clip-score, all, "
            "FILE.py:NAME$",
        ),
        ("none.py", "unknown metric 'none.py'; choose from fid"),
    ],
)
def test_unknown_metrics(typed: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        find_metric(typed)


def test_a_file_without_the_name_of_its_contents(tmp_path: Path) -> None:
    """The file is not run."""
    file = tmp_path / "code.py"
    file.write_text("raise SystemExit")
    for spec in (f"{file}", f"{file}:"):
        with pytest.raises(InputError, match=r"unknown metric .*code.py:?'; .* FILE.py:NAME$"):
            find_metric(spec)
        with pytest.raises(
            InputError, match=r"unknown network .*code.py:?'; .* and FILE.py:NAME or"
        ):
            check_extractor(NetworkChoice(spec))


@pytest.mark.parametrize(
    ("typed", "meant"),
    {
        "pytorch_fid": "pytorch-fid",
        "legacy_pytorch": "pytorch-fid",
        "clean-fid": "clean",
        "cleanfid": "clean",
        "TensorFlow": "tensorflow",
        "torch-fidelity": "tensorflow",
        "StyleGAN3": "stylegan",
        "stylegan2-ada": "stylegan",
        "EDM2": "tensorflow",
    }.items(),
)
def test_protocols(typed: str, meant: str) -> None:
    assert find_protocol(typed).name == meant
    assert Settings(protocol=typed).network.protocol == meant, "the usual name is recorded"


def test_type_checkers_know_the_protocols_that_the_help_lists() -> None:
    listed = {name for each in PROTOCOLS.values() for name in (each.name, *each.other_names)}
    assert {*get_args(ProtocolName)} == listed
    named = {own.name for family in OWN_PROTOCOLS.values() for own in family if own.name}
    assert {*get_args(OwnProtocolName)} == named


@pytest.mark.parametrize(
    ("network", "typed", "own"),
    [
        ("dinov2", "PIL", "pil"),
        ("dinov2:vits14", "torch", "torch"),
        ("clip", "openai", "openai"),
        ("clip", None, None),
    ],
)
def test_protocols_of_other_networks(network: str, typed: str | None, own: str | None) -> None:
    assert Settings(extractor=network, protocol=typed).network.protocol == own


@pytest.mark.parametrize(
    ("network", "protocol", "message"),
    [
        ("dinov2", "clean", "its own transform: .*protocol='pil', or pass protocol='torch'"),
        ("clip", "pil", "its own transform: .*pass protocol='openai'"),
        ("clip", "", "its own transform: .*pass protocol='openai'"),
        ("timm:resnet50", "openai", "with its own transform:"),
        ("fdr:mae", "torch", "with its own transform:"),
        ("inception", "pil", "is a protocol of dinov2, not of Inception: pass extractor='dinov2'"),
    ],
)
def test_protocols_that_a_network_does_not_have(network: str, protocol: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(extractor=network, protocol=protocol)


def test_unknown_protocols() -> None:
    with pytest.raises(InputError, match="unknown protocol 'tenserflow'; did you mean tensorflow"):
        Settings(protocol="tenserflow")
    # In TensorFlow StyleGAN2 divides the covariance by n - 1, in PyTorch (ADA) by n.
    with pytest.raises(
        InputError, match="unknown protocol 'stylegan2'; did you mean stylegan2-ada"
    ):
        Settings(protocol="stylegan2")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("dino", r"did you mean dinov2, dinov3\?"),
        ("timm", r"extractor='timm' needs the name of a model, such as timm:resnet50"),
        (
            "torchvision:resnet50",
            r"extractor='torchvision:resnet50' is not a network: write a file that loads it",
        ),
        ("clip:", "needs the name of a model, such as clip:ViT-L-14-336-quickgelu"),
        (
            "nothing-like-it",
            "unknown network 'nothing-like-it'; choose from inception, timm:NAME",
        ),
        ("none.py", "unknown network 'none.py'; choose from inception"),
    ],
)
def test_unknown_extractors(typed: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(extractor=typed)
