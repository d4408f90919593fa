"""Statistics of other tools: every layout gives the values of its plain mean and covariance."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.npyio import NpzFile

import fidtool
from fidtool.errors import InputError
from fidtool.features.choice import NetworkChoice
from fidtool.features.protocol import FEATURES, SPATIAL, SPATIAL_DIMS
from fidtool.sources.contents import Files
from fidtool.sources.image_set import canonical_order
from fidtool.statistics.foreign import detect_layout
from support.layouts import (
    DDOF_0,
    LAYOUTS,
    WITH_FEATURES,
    edm2,
    features,
    gaussian,
    pickled,
    stylegan,
    write_layout,
)

ROWS = features()
OTHER = gaussian(features(50, seed=1, shift=0.3))
FID_DIMS = 2048


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_distance_of_its_plain_form(tmp_path: Path, layout: str) -> None:
    """Whatever the name of the file."""
    found = fidtool.read_statistics(write_layout(layout, tmp_path / "stats", ROWS))
    wanted = gaussian(ROWS, ddof=0 if layout in DDOF_0 else 1)
    # Values are near 1: a few units in the last place of float64, since the sums are formed in
    # another order.
    np.testing.assert_allclose(found.mu, wanted["mu"], rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.sigma, wanted["sigma"], rtol=0, atol=2e-15)
    np.savez(tmp_path / "plain.npz", **wanted)
    plain = fidtool.read_statistics(tmp_path / "plain.npz")
    one, other = (
        fidtool.frechet_distance(each.mu, each.sigma, OTHER["mu"], OTHER["sigma"])
        for each in (found, plain)
    )
    assert one == pytest.approx(other, rel=1e-12)
    assert other > 0.1
    assert found.definition is None, "features of 8 dimensions are not Inception's"
    assert found.count == COUNTS.get(layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_per_image_features_are_kept_in_canonical_order(tmp_path: Path, layout: str) -> None:
    file = write_layout(layout, tmp_path / "stats", ROWS)
    found, without = fidtool.read_statistics(file), fidtool.read_statistics(file, features_of=())
    assert (without.features, without.order) == (None, None)
    np.testing.assert_array_equal(without.sigma, found.sigma)
    if layout not in WITH_FEATURES:
        assert (found.features, found.order) == (None, None)
        return
    assert found.features is not None
    assert found.order is not None
    assert (found.count, found.features.dtype, found.order.dtype) == (
        len(ROWS),
        np.float32,
        np.int64,
    )
    np.testing.assert_array_equal(found.order, canonical_order(len(ROWS)))
    np.testing.assert_array_equal(found.features, ROWS[found.order])


@pytest.mark.parametrize("layout", WITH_FEATURES)
def test_large_features_are_read_in_parts(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored in an unnamed file of the cache."""
    file = write_layout(layout, tmp_path / "stats", ROWS)
    whole = fidtool.read_statistics(file)
    monkeypatch.setenv("FIDTOOL_FEATURE_BYTES", "64")
    monkeypatch.setenv("FIDTOOL_CACHE", str(tmp_path / "cache"))
    found = fidtool.read_statistics(file)
    assert isinstance(found.features, np.memmap)
    np.testing.assert_array_equal(np.asarray(found.features), whole.features)
    np.testing.assert_array_equal(found.sigma, whole.sigma)


def test_features_that_are_stored_by_column(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", feats=ROWS)
    np.savez(tmp_path / "columns.npz", feats=np.asfortranarray(ROWS))
    rows, columns = (
        fidtool.read_statistics(tmp_path / f"{name}.npz") for name in ("rows", "columns")
    )
    assert columns.features is not None
    np.testing.assert_array_equal(columns.features, rows.features)
    np.testing.assert_array_equal(columns.sigma, rows.sigma)


COUNTS = {
    "EDM2": len(ROWS),
    "EDM2 of Inception": len(ROWS),
    **dict.fromkeys((*DDOF_0, *WITH_FEATURES), len(ROWS)),
}
# --- the protocol that follows from the origin ----------------------------------------------------


def wide(dims: int = FID_DIMS) -> dict[str, Any]:
    """Returns a mean and a covariance that are quickly written and read."""
    return {"mu": np.linspace(0, 1, dims), "sigma": np.diag(np.linspace(0.5, 1, dims))}


def adm() -> dict[str, Any]:
    return {**wide(), **{f"{name}_s": each for name, each in wide(SPATIAL_DIMS).items()}}


def of_stylegan(dims: int = FID_DIMS) -> dict[str, Any]:
    return stylegan(features(4, 2)) | {
        "raw_mean": np.ones(dims),
        "raw_cov": np.eye(dims),
        "num_features": dims,
    }


PROTOCOLS: dict[str, tuple[Any, str | None]] = {
    "ADM": (adm(), "tensorflow"),
    "EDM2": ({"fid": wide(), "num_images": 50_000}, "tensorflow"),
    "EDM2 of another network": ({"fid": wide(64)}, None),
    "EDM2 of another scale": ({"fid": wide(2048) | {"mu": np.full(2048, 9.0)}}, None),
    "StyleGAN": (of_stylegan(), "stylegan"),
    "StyleGAN's VGG": (of_stylegan(512), None),
    "ref_mu": ({f"ref_{name}": each for name, each in wide().items()}, None),
}


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_protocol_follows_from_the_origin(tmp_path: Path, kind: str) -> None:
    value, protocol = PROTOCOLS[kind]
    pickled(value)(tmp_path / "stats")
    found = fidtool.read_statistics(tmp_path / "stats")
    if protocol is None:
        assert {layer.definition for layer in found.layers.values()} == {None}
        return
    definition = found.definition
    assert definition is not None
    assert (definition.protocol_name, definition.standard, definition.dims) == (
        protocol,
        True,
        FID_DIMS,
    )
    assert definition.ddof == (0 if protocol == "stylegan" else 1)
    if SPATIAL in found.layers:
        spatial = found.layers[SPATIAL].definition
        assert spatial is not None
        assert (spatial.protocol_name, spatial.dims) == (protocol, SPATIAL_DIMS)


def test_a_definition_in_the_file_takes_precedence(tmp_path: Path) -> None:
    """fidtool's own files may have the arrays of ADM's."""
    pickled(adm())(tmp_path / "adm.pkl")
    found = fidtool.read_statistics(tmp_path / "adm.pkl")
    assert found.definition is not None
    clean = replace(found.definition, resize="bicubic-antialias")
    layers = {**found.layers, FEATURES: replace(found.layers[FEATURES], definition=clean)}
    fidtool.write_statistics(tmp_path / "own.npz", replace(found, layers=layers))
    again = fidtool.read_statistics(tmp_path / "own.npz")
    assert (again.definition, again.origin) == (clean, "")


# --- several statistics in one file ---------------------------------------------------------------

DINO = features(40, 5, seed=3)
BUNDLE = {
    "jit_in256_stats.npz": gaussian(ROWS),
    "clip_in256_stats.npz": gaussian(DINO),
    "note": "x",
}


def test_an_entry_is_chosen_by_the_network(tmp_path: Path) -> None:
    pickled(edm2(ROWS, DINO))(tmp_path / "img512.pkl")
    every = fidtool.read_statistics(tmp_path / "img512.pkl")
    for extractor, layer, rows, entry in (
        ("inception", FEATURES, ROWS, "fid"),
        ("dinov2", "dinov2", DINO, "fd_dinov2"),
    ):
        of_network = {FEATURES: NetworkChoice(extractor)}
        of_file = "EDM2 (it has fid)"  # the network of its first statistics
        for found, origin in (
            (fidtool.read_statistics(tmp_path / "img512.pkl", networks=of_network), of_file),
            (fidtool.read_statistics(f"{tmp_path}/img512.pkl:{entry}"), f"EDM2 (it has {entry})"),
            (fidtool.read_statistics(tmp_path / "img512.pkl", key=entry), f"EDM2 (it has {entry})"),
        ):
            np.testing.assert_array_equal(found.mu, gaussian(rows)["mu"])
            assert (found.count, found.origin) == (len(ROWS), origin)
        np.testing.assert_array_equal(every.layers[layer].mu, gaussian(rows)["mu"])
    pickled({"fd_dinov2": gaussian(DINO)})(tmp_path / "dino.pkl")
    with pytest.raises(
        InputError,
        match=r"no statistics of inception; it has statistics of dinov2: pass extractor='dinov2'",
    ):
        fidtool.read_statistics(
            tmp_path / "dino.pkl", networks={FEATURES: NetworkChoice("inception")}
        )


def test_an_entry_is_chosen_by_its_name(tmp_path: Path) -> None:
    pickled(BUNDLE)(tmp_path / "paper_ref_stats.pkl")
    path = f"{tmp_path}/paper_ref_stats.pkl"
    assert fidtool.read_statistics(f"{path}:clip_in256_stats.npz").dims == DINO.shape[1]
    assert fidtool.read_statistics(path, key="jit_in256_stats.npz").dims == ROWS.shape[1]
    with pytest.raises(
        InputError, match=r"jit_in256_stats.npz, clip_in256_stats.npz: name one, .*_stats.pkl:NAME$"
    ):
        fidtool.read_statistics(path)
    with pytest.raises(InputError, match="no statistics named none; it has jit_in256_stats"):
        fidtool.read_statistics(f"{path}:none")


def test_the_tool_follows_from_the_name_of_an_entry(tmp_path: Path) -> None:
    name = "guided_diffusion_stats.npz"
    pickled({name: wide(), "vit_large_patch16_224_mae_in256_t224_stats.npz": wide(64)})(
        tmp_path / "stats.pkl"
    )
    for found in (
        fidtool.read_statistics(tmp_path / "stats.pkl"),
        fidtool.read_statistics(f"{tmp_path}/stats.pkl:{name}"),
    ):
        assert found.origin == "FD-Loss (it has guided_diffusion_stats.npz)"
        assert found.definition is not None
        assert found.definition.protocol_name == "tensorflow"


def test_a_name_needs_several_statistics(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **gaussian(ROWS))
    pickled(gaussian(ROWS))(tmp_path / "plain.pkl")
    with pytest.raises(InputError, match="omit :x"):
        fidtool.read_statistics(tmp_path / "plain.npz", key="x")
    with pytest.raises(InputError, match="no statistics named x; it has none with a name"):
        fidtool.read_statistics(tmp_path / "plain.pkl", key="x")


# --- what a file holds ----------------------------------------------------------------------------


def layout(file: Path) -> tuple[str, bool, str]:
    return detect_layout(Files([str(file)]))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_files_are_recognised_without_reading_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_layout(kind, tmp_path / "stats", ROWS)
    monkeypatch.delattr(NpzFile, "__getitem__")
    assert layout(file) == ("npz" if file.read_bytes().startswith(b"PK") else "pickle", True, "")


IMAGES = np.zeros((3, 8, 8, 3), np.uint8)
HOLDING: dict[str, tuple[dict[str, Any], bool, str]] = {
    "images": ({"arr_0": IMAGES}, False, "arr_0"),
    "images of another name": ({"samples": IMAGES, "labels": np.arange(3)}, False, "samples"),
    "both": ({**gaussian(ROWS), "arr_0": IMAGES}, True, "arr_0"),
    "features and images": ({"feats": ROWS, "images": IMAGES}, True, "images"),
    "images named like features": ({"reps": IMAGES}, False, "reps"),
    "half of the statistics": ({"mu": np.zeros(3), "arr_0": IMAGES}, True, "arr_0"),
    "neither": ({"labels": np.arange(3)}, False, ""),
}


@pytest.mark.parametrize("kind", HOLDING)
def test_archives_may_have_statistics_and_images(tmp_path: Path, kind: str) -> None:
    arrays, statistics, images = HOLDING[kind]
    np.savez(tmp_path / "made.npz", **arrays)
    found = layout((tmp_path / "made.npz").rename(tmp_path / "x"))
    assert found == ("npz", statistics, images)


@pytest.mark.parametrize(
    "data", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04", b"\x80\x04broken"]
)
def test_other_files_hold_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert layout(tmp_path / "x")[1:] == (False, "")
    assert layout(tmp_path / "missing") == ("", False, "")


# --- malformed files ------------------------------------------------------------------------------


def changed(**items: Any) -> Callable[[Path], object]:
    """Writes StyleGAN's statistics with changes; None leaves an item out."""
    value = {**stylegan(ROWS, kept=True), **items}
    return pickled({name: each for name, each in value.items() if each is not None})


def archived(**arrays: Any) -> Callable[[Path], object]:
    def write(file: Path) -> None:
        with open(file, "wb") as handle:
            np.savez(handle, **arrays)

    return write


def spoiled(rows: Any, value: float) -> Any:
    found = rows.copy()
    found.flat[3] = value
    return found


def torch_saved(place: bytes, before: int, after: bytes) -> Callable[[Path], object]:
    """Writes the archive of ``torch.save`` with ``after`` in place of the bytes that are ``before``
    after ``place``.
    """

    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("stats/data.pkl", pickle.dumps(gaussian(ROWS)))
        data = bytearray(file.read_bytes())
        start = data.rindex(place) + before
        data[start : start + len(after)] = after
        file.write_bytes(data)

    return write


MALFORMED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no images": (changed(num_items=0), "has a num_items that cannot be a number"),
    "too many images": (changed(num_items=1 << 31), "has a num_items that cannot be a number"),
    "sums of other dims": (
        changed(raw_mean=np.zeros(3)),
        r"has raw_mean of shape \(3,\) and raw_cov of shape \(8, 8\)",
    ),
    "sums that are not symmetric": (
        changed(raw_cov=np.triu(np.ones((8, 8)))),
        "raw_cov is not a covariance",
    ),
    "a mean that is too large": (changed(raw_mean=np.full(8, 1e6)), "sigma is not a covariance"),
    "neither sums nor features": (
        changed(capture_mean_cov=False, all_features=[]),
        "neither sums nor features of its 60 images",
    ),
    "features of fewer images": (
        changed(all_features=[ROWS[:7]]),
        r"shape \(7, 8\), but sums of 60 images and 8 dims",
    ),
    "features of other dims": (
        changed(all_features=[ROWS[:, :5]]),
        r"shape \(60, 5\), but sums of 60 images and 8 di",
    ),
    "features of two lengths": (
        changed(all_features=[ROWS[:7], ROWS[7:, :5]]),
        "bad cannot be read: all the input array dimensions .* must match",
    ),
    "one row of features": (archived(feats=np.zeros(8)), r"feats has shape \(8,\)"),
    "features with NaN": (
        archived(reps=spoiled(ROWS, np.nan)),
        "reps contains NaN or infinite values",
    ),
    "integers for features": (archived(feats=ROWS.astype(int)), "it should contain floats"),
    "half of MeanFlow's": (
        archived(ref_mu=np.zeros(2)),
        "has no mu and no sigma; it contains ref_mu",
    ),
    "a pickled list": (pickled([1, 2]), "is a pickled list; .*: write images or features as one"),
    "a pickled array": (
        pickled(ROWS),
        "is a pickled ndarray; .*: write images or features as one array with numpy.save",
    ),
    "a pickled object": (
        pickled(Path("x")),
        "write mu and sigma .*, or write images or features as one array with nump",
    ),
    "a record of torch that inflates": (
        torch_saved(b"PK\1\2", 24, (2**30 + 1).to_bytes(4, "little")),
        "bad cannot be read: it has 1073741825 bytes; copy or create it again",
    ),
    "another byte in a record of torch": (
        torch_saved(gaussian(ROWS)["mu"].tobytes(), 2, b"\0"),
        "Bad CRC-32",
    ),
    "a text": (
        lambda file: file.write_text("mu, sigma"),
        "is plain text: download or create the file again",
    ),
    "other bytes": (
        lambda file: file.write_bytes(b"mu\0sigma"),
        "neither an .npz archive nor a pickle of arrays",
    ),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_statistics_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write, words = MALFORMED[kind]
    write(Path("bad"))
    with pytest.raises(InputError, match=words) as error:
        fidtool.read_statistics("bad")
    assert "bad" in str(error.value)
    assert "\n" not in str(error.value)


def test_rounding_does_not_make_a_variance_negative(tmp_path: Path) -> None:
    rows = features(999)
    rows[:, 2] = 1 / 3
    pickled(stylegan(rows))(tmp_path / "stats.pkl")
    assert fidtool.read_statistics(tmp_path / "stats.pkl").sigma[2, 2] == 0


def test_statistics_of_another_tool_can_be_written_again(tmp_path: Path) -> None:
    """The features stay in canonical order."""
    found = fidtool.read_statistics(write_layout("clean-fid for KID", tmp_path / "kid.npz", ROWS))
    fidtool.write_statistics(tmp_path / "own.npz", found)
    again = fidtool.read_statistics(tmp_path / "own.npz")
    np.testing.assert_array_equal(again.features, found.features)
    np.testing.assert_array_equal(again.sigma, found.sigma)
    np.testing.assert_array_equal(again.order, found.order)


def test_other_items_of_a_pickle_need_not_be_arrays(tmp_path: Path) -> None:
    """A list of arrays of different shapes is none."""
    others = {"shapes": [np.zeros(3), np.zeros((2, 2))], "numbers": [np.zeros(()), np.zeros(())]}
    (tmp_path / "real.pkl").write_bytes(
        pickle.dumps({"mu": np.zeros(3), "sigma": np.eye(3), **others})
    )
    assert fidtool.read_statistics(tmp_path / "real.pkl").dims == 3
