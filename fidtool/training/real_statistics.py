"""Statistics in place of a metric's real images."""

from __future__ import annotations

import os
from dataclasses import replace

from fidtool.errors import InputError, ResultWarning, rename_setting, warn_program
from fidtool.features.protocol import FEATURES
from fidtool.statistics.file import read_statistics
from fidtool.statistics.foreign import check_inception
from fidtool.statistics.set_statistics import MeasuredSet, Statistics
from fidtool.training.feature_extractor import PathLike, SharedExtractor
from fidtool.training.state import check_same_settings


def load_real_set(
    given: PathLike | Statistics, network: SharedExtractor, per_image: bool
) -> MeasuredSet:
    """Return statistics, of a file of several networks those of ``network``, as a set.

    Its path is that of the file, or ``real_statistics``.

    Raises:
        fidtool.InputError: if they are of another network, or features are needed ``per_image`` and
            missing.
    """
    networks = {FEATURES: network.choice}
    if isinstance(given, Statistics):
        path = "real_statistics"
        statistics = replace(given, layers=given.layers_of(networks))
    else:
        path = os.fspath(given)
        statistics = read_statistics(path, (FEATURES,) if per_image else (), networks=networks)
    own = network.definition
    stated = statistics.whole(path).definition
    if own.dims and statistics.dims != own.dims:
        raise InputError(
            f"{path} has features of {statistics.dims} dimensions, but the features of this metric "
            f"have {own.dims}"
        )
    if stated is not None:
        # The length that a plain module returns is not known yet.
        alike = replace(stated.round_like(own), dims=own.dims or 0)
        check_same_settings(
            {
                path: {"definition": alike.to_json()},
                "this metric": {"definition": own.to_json()},
            }
        )
    if not per_image:
        return MeasuredSet(path, statistics, {})
    if statistics.features is None:
        remedy = "write the file with `fidtool stats REAL --metrics fid,kid -o FILE`"
        if layer := network.choice.dims:
            remedy = (
                "write the file with `fidtool stats REAL --dims D --metrics fid,kid -o FILE`, "
                f"where D is {layer}"
            )
        raise InputError(f"{path} has no per-image features, which this metric needs:", remedy)
    return MeasuredSet(path, statistics, {FEATURES: statistics.features})


def warn_of_mismatch(
    real: MeasuredSet, network: SharedExtractor, stated: str | None, rounding: str
) -> list[ResultWarning]:
    """Warn about statistics that may not fit to a metric, which converts floats as ``rounding``
    says.

    Returns these warnings.
    """
    with rename_setting("extractor", "feature"):
        doubts = check_inception(
            real.path, real.statistics.layers[FEATURES], network.choice.extractor
        )
    if stated not in (None, rounding):
        text = (
            f"{real.path} was computed with float_to_byte={stated!r}, but this metric uses "
            f"{rounding!r}"
        )
        doubts.append(ResultWarning("", text))
    for doubt in doubts:
        warn_program(str(doubt))
    return doubts
