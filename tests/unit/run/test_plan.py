"""The plan of a run: a pure function of settings, opened sets and definitions."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import fidtool
from fidtool.features.protocol import FEATURES, find_protocol, inception_definition
from fidtool.run.opening import OpenedInputs, open_sets
from fidtool.run.plan import Plan, make_plan, select_computable
from fidtool.run.sets import FAKE, HELDOUT, REAL, STORED, name_sets, set_needs
from fidtool.settings.settings import Settings
from fidtool.sources.crops import Crop
from fidtool.system.console import Console
from fidtool.system.json_fields import to_json_value
from support.pictures import make_pictures

DEFINITION = inception_definition(find_protocol("pytorch-fid"), 2048)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", 6, 0), make_pictures(tmp_path / "fake", 4, 1)


def planned(*sources: object, alone: bool = False, **settings: object) -> tuple[Plan, OpenedInputs]:
    """Return the plan of a run of sets, without building networks."""
    console, sets = Console(), name_sets(*((source, "set") for source in sources))
    opening = open_sets(sets, Settings(**settings), console, alone)  # type: ignore[arg-type]
    opening = select_computable(opening, console)
    return make_plan(opening, {FEATURES: DEFINITION} if opening.images else {}, 8), opening


def statistics(dims: int = 2048) -> fidtool.Statistics:
    return fidtool.Statistics.of(
        np.zeros(dims), np.eye(dims), 100, DEFINITION if dims == 2048 else None
    )


def test_a_set_is_one_object_wherever_it_occurs(folders: tuple[Path, Path]) -> None:
    real, fake = folders
    plan, _ = planned(real, fake, fake, f"{real}/")
    assert plan.sets[1] is plan.sets[2]
    assert plan.sets[0] is plan.sets[3], "another spelling of REAL"
    assert [each.roles for each in plan.sets] == [
        (REAL, FAKE),
        (FAKE, FAKE),
        (FAKE, FAKE),
        (REAL, FAKE),
    ]
    assert len(plan.distinct) == 2
    other = pickle.loads(pickle.dumps(plan))  # as the other ranks receive it
    assert other.sets[1] is other.sets[2]
    assert other.sets[0] is not other.sets[1]


@pytest.mark.parametrize(
    "settings", [{"crop": "adm:8"}, {"crop_fake": "adm:8"}, {"num_real": 3}, {"num_fake": 3}]
)
def test_a_path_with_two_crops_or_samples_is_two_sets(
    folders: tuple[Path, Path], settings: dict[str, object]
) -> None:
    real = folders[0]
    plan, opening = planned(real, real, **settings)
    assert plan.sets[0] is not plan.sets[1]
    assert [to_json_value(each.crop) for each in plan.sets] == [
        settings.get("crop"),
        settings.get("crop_fake"),
    ]
    assert [each.count for each in plan.sets] == [
        settings.get("num_real", 6),
        settings.get("num_fake", 6),
    ]
    assert [each.roles for each in opening.sets] == [(REAL,), (FAKE,)]
    assert len({*planned(real, real, crop="adm:8", crop_fake="adm:8")[0].sets}) == 1


def test_needs_follow_from_roles_and_metrics(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where its weights are.
    monkeypatch.setattr(fidtool.InceptionScore, "obtain", lambda *_: None)
    plan, _ = planned(*folders, metrics=["fid", fidtool.InceptionScore(splits=2)])
    assert [each.needs.features for each in plan.sets] == [frozenset(), {FEATURES}]
    plan, _ = planned(*folders, metrics="kid")
    assert [each.needs.features for each in plan.sets] == [{FEATURES}, {FEATURES}]
    assert [(each.name, each.layer) for each in plan.settings.selected_metrics] == [
        ("kid", FEATURES)
    ]


def test_a_held_out_set_is_a_third_role(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """It comes last, is framed like REAL, and only the layers of FIDs are computed of it."""
    real, fake = folders
    val = str(make_pictures(tmp_path / "val", 3, 2))
    metrics = ["fid", fidtool.PRDC(nearest_k=3)]
    settings = {
        "heldout": val,
        "crop": "adm:8",
        "num_real": 5,
        "num_fake": 4,
        "num": 2,
        "metrics": metrics,
    }
    plan, opening = planned(real, fake, fake, val, **settings)
    (third,) = (each for each in plan.distinct if HELDOUT in each.roles)
    assert [each.path for each in plan.sets] == [str(real), str(fake), str(fake)]
    assert [*plan.distinct] == [*opening.contents] == [plan.sets[0], plan.sets[1], third]
    assert [each.roles for each in plan.distinct] == [(REAL,), (FAKE, FAKE), (HELDOUT,)]
    assert (third.request, third.crop, third.count) == (3, Crop("adm", 8), 2)
    spatial = Settings(metrics=["fid", "sfid"], heldout=val)
    assert set_needs(spatial, HELDOUT).layers == (FEATURES,)
    plan, _ = planned(real, fake, val, heldout=val)
    assert [each.needs.features for each in plan.distinct] == [{FEATURES}] * 3, (
        "for the distances to REAL"
    )
    plan, _ = planned(real, val, fake, val, heldout=val)
    assert (plan.sets[1].roles, plan.sets[1].request) == ((FAKE, HELDOUT), 1)
    plan, _ = planned(real, val, fake, val, heldout=val, num_fake=2)
    assert [each.roles for each in plan.sets] == [(REAL,), (FAKE,), (FAKE,)]
    other = pickle.loads(pickle.dumps(plan))
    assert [HELDOUT in each.roles for each in other.distinct] == [False, False, False, True]
    assert not any(HELDOUT in each.roles for each in planned(real, fake)[0].distinct)


def test_facts_of_statistics_and_streams(folders: tuple[Path, Path]) -> None:
    plan, opening = planned(statistics(), statistics())
    assert [each.holds for each in plan.sets] == ["statistics", "statistics"]
    assert not opening.images
    assert plan.definitions == {FEATURES: DEFINITION}
    stream = fidtool.Images(iter([np.zeros((8, 8, 3), np.uint8)]))
    plan, opening = planned(folders[0], stream)
    assert [each.holds for each in plan.sets] == ["images", "stream"]
    assert [each.request for each in plan.sets] == [0, 1]
    assert plan.sets[1].count is None
    assert opening.images


def test_settings_are_completed_once_and_metrics_left_out(folders: tuple[Path, Path]) -> None:
    plan, opening = planned(statistics(64), statistics(64))
    assert plan.settings.dims is None, "a run without images only says what its files have"
    assert [line for line in opening.notes if "dims 64" in line]
    plan, opening = planned(*folders, metrics="all", extractor="mine.py:network")
    assert {"is", "sfid", "prdc", "fid-infinity"} <= {metric.metric for metric in opening.left_out}
    assert [each.name for each in plan.settings.selected_metrics] == [
        "fid",
        "kid",
        "mind",
        "mifid",
        "vendi",
        "authpct",
    ]
    assert plan.settings is opening.settings
    assert plan.left_out == opening.left_out


def test_refusals(folders: tuple[Path, Path]) -> None:
    with pytest.raises(fidtool.InputError, match="has features of 64"):
        planned(statistics(), statistics(64))
    with pytest.raises(fidtool.InputError, match="only a mean and a covariance"):
        planned(statistics(), folders[1], metrics="kid")
    with pytest.raises(fidtool.InputError, match="use 5 neighbours"):
        planned(*folders, metrics="prdc")
    with pytest.raises(fidtool.InputError, match="is REAL, which is the training set"):
        planned(*folders, f"{folders[0]}/", heldout=f"{folders[0]}/")


def test_the_set_of_stats_stands_alone(folders: tuple[Path, Path]) -> None:
    plan, opening = planned(folders[0], alone=True, metrics="kid", crop="adm:8", num=4)
    (only,) = plan.sets
    assert (only.crop, only.count) == (Crop("adm", 8), 4)
    assert only.needs.features == {FEATURES}
    assert opening.sets[0].roles == (STORED,)
