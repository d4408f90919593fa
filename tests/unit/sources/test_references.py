"""The references: their names, how they are looked up, and what is known of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fidtool.errors import InputError
from fidtool.features.protocol import PROTOCOLS
from fidtool.names import fold
from fidtool.references.catalogue import FEATURES, IMAGES, REFERENCES, find_reference
from fidtool.sources.kinds import PROJECTS, is_reference


def test_facts_are_complete() -> None:
    for reference in REFERENCES.values():
        assert re.fullmatch(r"[a-z0-9-]+:[a-z0-9_-]+", reference.name)
        assert re.fullmatch(r"https://[^?#@]+\.(npz|pkl)", reference.url)
        assert reference.protocol in {*PROTOCOLS, ""}
        assert reference.fakes > 0
        assert reference.real_images is None or reference.real_images > 0
        assert reference.source
        assert reference.statistics
        assert not {IMAGES, FEATURES} & {*reference.statistics}
        assert (FEATURES in reference.arrays) == bool(reference.features_url)


def test_names_remain_distinct_without_case_and_hyphens() -> None:
    assert len({fold(name) for name in REFERENCES}) == len(REFERENCES) == 70
    assert len({reference.url for reference in REFERENCES.values()}) == len(REFERENCES)
    assert tuple(dict.fromkeys(name.partition(":")[0] for name in REFERENCES)) == PROJECTS


CLEAN_FID = "https://www.cs.cmu.edu/~clean-fid/stats"
ADM = "https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches"
ADDRESSES = {
    "adm:imagenet256": f"{ADM}/imagenet/256/VIRTUAL_imagenet256_labeled.npz",
    "ADM:LSUN_Bedroom": f"{ADM}/lsun/bedroom/VIRTUAL_lsun_bedroom256.npz",
    "adm:VIRTUAL_imagenet64_labeled": f"{ADM}/imagenet/64/VIRTUAL_imagenet64_labeled.npz",
    "edm:cifar-10": "https://nvlabs-fi-cdn.nvidia.com/edm/fid-refs/cifar10-32x32.npz",
    "edm2:img512": "https://nvlabs-fi-cdn.nvidia.com/edm2/dataset-refs/img512.pkl",
    "cleanfid:FFHQ-1024-trainval70k": f"{CLEAN_FID}/ffhq_clean_trainval70k_1024.npz",
    "clean-fid:lsun-cat-256-train-legacy-tensorflow": f"{CLEAN_FID}/lsun_cat_legacy_tensorflow_train_256.npz",
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_address(name: str) -> None:
    reference, array = find_reference(name)
    assert (reference.url, array) == (ADDRESSES[name], "")
    assert is_reference(name)


def test_an_array_may_be_named() -> None:
    assert find_reference("adm:imagenet256:arr_0")[1] == IMAGES
    assert find_reference("adm:imagenet256:ARR0")[1] == IMAGES
    with pytest.raises(
        InputError, match="has no array 'arr_1'; it has mu, sigma, mu_s, sigma_s, arr_0"
    ):
        find_reference("adm:imagenet256:arr_1")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("edm:cifr10", "did you mean edm:cifar10?"),
        (
            "adm:imagenet",
            "did you mean adm:imagenet64, adm:imagenet128, adm:imagenet256, adm:imagenet512?",
        ),
        ("adm:?", "choose from the names that `fidtool refs` lists"),
    ],
)
def test_unknown_names_have_suggestions(name: str, meant: str) -> None:
    assert is_reference(name)
    with pytest.raises(InputError) as caught:
        find_reference(name)
    assert str(caught.value).startswith(f"unknown reference '{name}'; {meant}")


def test_paths_are_no_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (
        "real/",
        "adm",
        "samples.npz:arr_0",
        "s3://bucket/adm",
        "edm://host/x",
        "C:\\images",
        "imagenet:adm",
    ):
        assert not is_reference(path)
    assert is_reference("edm:cifar10")
    Path("edm:cifar10").mkdir()
    assert not is_reference("edm:cifar10")
