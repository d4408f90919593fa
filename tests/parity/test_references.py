"""The addresses of clean-fid's statistics are those that its own code asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fidtool.references.catalogue import REFERENCES, Reference

OF_CLEAN_FID = [each for each in REFERENCES.values() if each.name.startswith("clean-fid:")]
MODES = {"clean": "clean", "tensorflow": "legacy_tensorflow", "pytorch-fid": "legacy_pytorch"}


@pytest.mark.parametrize("reference", OF_CLEAN_FID, ids=lambda each: each.name)
def test_clean_fid_asks_for_the_same_address(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = pytest.importorskip(
        "cleanfid.features", reason="needs clean-fid, from the extra 'test'"
    )
    asked: list[str] = []
    np.savez(tmp_path / "any.npz", mu=0, sigma=0, feats=0)

    def download(local_folder: str, url: str) -> str:
        asked.append(url.replace("stats//", "stats/"))
        return str(tmp_path / "any.npz")

    monkeypatch.setattr(features, "check_download_url", download)
    data_set, size, split, *_ = reference.name.partition(":")[2].split("-")
    for metric in ("FID", "KID")[: 2 if reference.features_url else 1]:
        features.get_reference_statistics(
            data_set, int(size), MODES[reference.protocol], split=split, metric=metric
        )
    assert asked == [each for each in (reference.url, reference.features_url) if each]
