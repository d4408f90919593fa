"""Results of a run, ready to be printed, saved or checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from fidtool.diagnose.diagnosis import Diagnosis
from fidtool.diagnose.duplicates import Duplicates
from fidtool.errors import (
    InputError,
    ResultWarning,
    merge_warnings,
    prefix_errors,
    redact,
    redact_json,
    worst_first,
)
from fidtool.features.protocol import FEATURES, PIXELS, Definition
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import BUILT_IN
from fidtool.names import command_line, format_count
from fidtool.result.explanations import (
    Classes,
    Difference,
    Exhibit,
    Heldout,
    ImageValues,
    Influence,
    Interval,
    NotComputed,
    Uncertainty,
)
from fidtool.result.values import Value, find_distance
from fidtool.settings.record import RunRecord
from fidtool.sources.crops import Crop
from fidtool.sources.kinds import IgnoredFiles
from fidtool.system.json_fields import (
    NOT_IN_JSON,
    from_json_fields,
    from_json_value,
    to_json_fields,
    to_json_value,
)
from fidtool.system.local_files import StrPath, read_file
from fidtool.validation import find_settings

SCHEMA = 3
"""Version of the result JSON. Version 2 renamed the Fréchet distances of features that are not
Inception's 2048, which were ``fid`` in version 1. Version 3 describes the values. Within a version
keys can be added, but not renamed or removed.
"""
ALL_IMAGES = "(all)"
"""What `Comparison.rows` call the whole sets in place of a class."""
# More digits after the decimal point than a float has.
_MAX_DIGITS = 30


@dataclass(frozen=True)
class SkippedFile:
    """A file that was skipped because it cannot be read.

    Attributes:
        set: path of its set, as passed by the caller.
        file: path of the file.
        reason: why it cannot be read.
    """

    set: str
    file: str
    reason: str


@dataclass(frozen=True)
class SetResult:
    """A set of images or a statistics file as it was used.

    Attributes:
        name: path as passed by the caller.
        count: number of images used; None if a statistics file does not state it.
        found: number of images before ``num`` took a sample; None if a statistics file does not
            state it, and for an iterable of which ``num`` took the first images.
        passed_over: files of the source that were ignored; None for statistics files and iterables.
        framing: how the images were cropped and resized before anything else, such as ``adm:256``;
            None if they were not, or if a statistics file does not state it.
        made_with: settings with which a statistics file was made, as in ``RunRecord.config``; None
            if the file does not state them, and for images.
        origin: the program that wrote its statistics file; empty if unknown, and for images.
        reference: name of the published reference, such as ``adm:imagenet256``; empty if the set is
            not one.
        sha256: SHA-256 of each array of the published reference, by its name.
        stated: whether its statistics state or imply their protocol; True for images.
        precision: precision in which its statistics were computed; None if a statistics file does
            not state it.
        with_features: number of images whose per-image features were used; None if no per-image
            features were used.
        formats: number of images by file format; None if the images were not inspected.
        sizes: number of images by width and height, such as ``256x256``: the most frequent sizes.
            None if the images were not inspected.
        pixels: SHA-256 of the digests of the images, in any order; the same for equal pixels. Empty
            if the images were not inspected.
    """

    name: str
    count: int | None
    found: int | None = None
    passed_over: IgnoredFiles | None = None
    framing: Crop | None = None
    made_with: Mapping[str, Any] | None = None
    origin: str = ""
    reference: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    stated: bool = False
    precision: str | None = None
    with_features: int | None = None
    formats: Mapping[str, int] | None = None
    sizes: Mapping[str, int] | None = None
    pixels: str = ""

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SetResult:
        """Return the set that an entry in ``sets`` of the JSON describes. A KeyError names a
        missing key.
        """
        image_set = cls(**from_json_fields(cls, content, complete=True))
        for size in image_set.sizes or ():
            if not re.fullmatch("[0-9]+x[0-9]+", size):
                raise ValueError(f"{size!r} is not a size")
        return image_set

    @property
    def path(self) -> str:
        """The name as `normalize_path` returns it."""
        return normalize_path(self.name)


def normalize_path(name: str) -> str:
    """Return the path of a set without secrets in URLs, the same for ``real``, ``real/`` and
    ``./real``.
    """
    return redact(name) if "://" in name else os.path.normpath(name)


@dataclass(frozen=True)
class Comparison:
    """Results of one FAKE compared with REAL.

    Attributes:
        real, fake: the two sets.
        metrics: the requested metric values, by key: ``fid`` (the squared Fréchet distance, finite
            and at least 0), ``kid`` and ``kid_std`` (missing if every subset is the whole of both
            sets, since there is no spread) and ``kid_subset_size`` (if a set has fewer images than
            the setting), ``is``, ``is_std`` and ``is_order`` (ratio of the score of splits in
            stored order to that of random splits; with ``is_split_size`` only), ``precision``,
            ``recall``, ``density``, ``coverage``, ``f_score``, ``sfid``, ``fid_infinity`` and
            ``fid_infinity_error`` (one standard error), ``cmmd``, ``mind``, ``mifid`` and
            ``mifid_distance`` (mean cosine distance of the real images to the nearest generated
            one), ``vendi``, ``authpct``, ``clip_score``, ``clip_score_std`` and ``clip_score_cut``
            (number of captions that were cut). Values from features other than Inception's 2048
            have other keys: ``fid_64``, ``fd_dinov2``; see ``values``.
        warnings: warnings about these values, the worst first.
        skipped: files of the sets that were skipped, REAL's first.
        diagnosis: findings about the images; None if not requested.
        known: the values of the run that have a title, in the order in which they are listed. See
            `values`.
        uncertainties: uncertainty of the Fréchet distance of each network, by key; empty if not
            requested.
        influence: images that raise the Fréchet distance; None if not requested.
        exhibit: what else a page shows; None unless a page was requested.
        missed: one sentence per missed gate.
        of_images: values of single images in FAKE; None without metrics that have them, and if the
            result was read from a file.
        heldout: comparison with a held-out set; None without one.
        classes: number of images in each class in both sets, and values per class if they were
            requested; None if the classes of a set are not known, or the sets have fewer than two
            classes in common.
    """

    real: SetResult
    fake: SetResult
    metrics: Mapping[str, float]
    known: tuple[Value, ...] = field(metadata=NOT_IN_JSON)
    warnings: tuple[ResultWarning, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    diagnosis: Diagnosis | None = None
    uncertainties: Mapping[str, Uncertainty] = field(default_factory=dict)
    influence: Influence | None = None
    exhibit: Exhibit | None = None
    missed: tuple[str, ...] = ()
    of_images: ImageValues | None = field(
        default=None, repr=False, compare=False, metadata=NOT_IN_JSON
    )
    heldout: Heldout | None = None
    classes: Classes | None = None

    @property
    def fid(self) -> float | None:
        """The FID; None if it was not requested or the features are not Inception's 2048."""
        return self.metrics.get("fid")

    @property
    def values(self) -> list[Value]:
        """What is known of the numbers in ``metrics``, in the order in which they are listed."""
        return [value for value in self.known if value.key in self.metrics]

    @property
    def titles(self) -> dict[str, str]:
        """Titles of the numbers in ``metrics`` in text, by key, in the order in which they are
        listed.
        """
        return {value.key: value.title for value in self.values}

    @property
    def distance(self) -> Value | None:
        """The Fréchet distance of the extractor's features, see `Number.error_bars`; None if not
        requested.
        """
        return find_distance(self.values)

    @property
    def frechet_distance(self) -> float | None:
        """The Fréchet distance of the extractor's features, for any network; None if not
        requested.
        """
        return None if self.distance is None else self.metrics[self.distance.key]

    def valued(self, name: str) -> Value | None:
        """Return the value of this name, such as ``kid``, of the first network; None if not
        requested.
        """
        return next((value for value in self.values if value.number.name == name), None)

    def value(self, name: str) -> float | None:
        """Return the number of this name, such as ``kid_std``, of the first network; None if not
        requested.
        """
        for value in self.values:
            if value.key_for(name) in self.metrics:
                return self.metrics[value.key_for(name)]
        return None

    @property
    def uncertainty(self) -> Uncertainty | None:
        """Uncertainty of `frechet_distance`; None if not requested."""
        return None if self.distance is None else self.uncertainties.get(self.distance.key)

    @property
    def corrected(self) -> Interval | None:
        """The bias-corrected Fréchet distance of this network with its interval; None if
        unknown.
        """
        return None if self.distance is None else self.corrected_of(self.distance)

    def corrected_of(self, value: Value) -> Interval | None:
        """Return a bias-corrected distance with its interval; None if it has none."""
        uncertainty = self.uncertainties.get(value.key)
        return None if uncertainty is None else uncertainty.corrected

    def __repr__(self) -> str:
        values = ", ".join(f"{value.title} {self.metrics[value.key]:.6g}" for value in self.values)
        fake = f"{self.fake.count or '?'} images of {self.fake.name}"
        real = f"{self.real.count or '?'} images of {self.real.name}"
        return f"<{values}: {fake} against {real}; {format_count(len(self.warnings), 'warning')}>"

    @property
    def duplicates(self) -> Duplicates | None:
        """Duplicates in FAKE; None if its images were not checked."""
        return None if self.diagnosis is None else self.diagnosis.fake

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every number of the whole sets, whose class is `ALL_IMAGES`, and of each class or folder
        as a dict with the keys ``set``, ``class``, ``metric`` and ``value``, as for pandas.

        A metric is called as in ``metrics``, or by the keys that lead to it in the JSON:
        ``count.fake``, ``uncertainties.fid.corrected.low``, ``heldout.floors.fid``.
        """
        whole = {**_count_numbers(self.real.count, self.fake.count), **self.metrics}
        for key, uncertainty in self.uncertainties.items():
            whole |= _corrected_numbers(key, uncertainty.corrected)
        if self.heldout is not None:
            for key, floor in self.heldout.floors.items():
                whole[f"heldout.floors.{key}"] = floor
        groups = [(ALL_IMAGES, whole)]
        if self.classes is not None:
            for part in self.classes.classes:
                numbers = {**_count_numbers(part.real, part.fake), **part.metrics}
                if self.distance is not None:
                    numbers |= _corrected_numbers(self.distance.key, part.corrected)
                groups.append((part.name, numbers))
        rows = []
        for name, numbers in groups:
            for metric, value in numbers.items():
                rows.append(
                    {"set": self.fake.name, "class": name, "metric": metric, "value": value}
                )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the entry in the JSON's ``results``."""
        first = {
            "real": self.real.name,
            "fake": self.fake.name,
            "metrics": dict(self.metrics),
            "count": {"real": self.real.count, "fake": self.fake.count},
            "sets": {"real": to_json_value(self.real), "fake": to_json_value(self.fake)},
        }
        return first | to_json_fields(self) | first

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], values: tuple[Value, ...]) -> Comparison:
        """Return the comparison that an entry of the JSON's ``results`` describes.

        ``values`` are the values of the run.
        """
        return cls(
            **from_json_fields(cls, {**content, **content["sets"]}, complete=True), known=values
        )


def _count_numbers(real: int | None, fake: int | None) -> dict[str, float]:
    """Return the numbers of images that are known, for `Comparison.rows`."""
    counts = {"count.real": real, "count.fake": fake}
    return {key: count for key, count in counts.items() if count is not None}


def _corrected_numbers(key: str, interval: Interval | None) -> dict[str, float]:
    """Return the bias-corrected distance of this key, for `Comparison.rows`."""
    if interval is None:
        return {}
    return {f"uncertainties.{key}.corrected.{end}": x for end, x in asdict(interval).items()}


@dataclass(frozen=True)
class Evaluation:
    """Result of a run, the same on all ranks.

    Attributes:
        definitions: definitions of the features, by layer; None if only files of unknown protocol
            were compared.
        results: one entry per FAKE, in the order of the arguments.
        run: see `fidtool.settings.record.RunRecord`.
        settings: settings of the metrics that affect their values, by metric.
        differences: differences of all pairs of FAKEs that have error bars, in the order of the
            arguments.
        gated: name in ``metrics`` of the value that a gate limits; empty if there is no such gate.
        not_computed: the requested metrics that could not be computed for some or all FAKEs.
    """

    definitions: Mapping[str, Definition | None] = field(metadata=NOT_IN_JSON)
    results: tuple[Comparison, ...]
    run: RunRecord
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    gated: str = field(default="", metadata=NOT_IN_JSON)
    not_computed: tuple[NotComputed, ...] = ()

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.results), *self.not_computed_lines])

    def _repr_html_(self) -> str:
        """Return a table for notebooks, one row per FAKE and per metric that could not be
        computed.
        """
        heading = ["", *(value.title for value in self.values), "images", "warnings"]
        rows = [heading]
        for result in self.results:
            row = [result.fake.name]
            for value in self.values:
                row.append(f"{result.metrics[value.key]:.6g}" if value in result.values else "")
            row += [f"{result.fake.count or ''}", f"{len(result.warnings)}"]
            rows.append(row)
        html = ""
        for row in rows:
            cells = "".join(f"<td>{escape(redact(cell))}</td>" for cell in row)
            html += f"<tr>{cells}</tr>"
        for line in self.not_computed_lines:
            html += f'<tr><td colspan="{len(heading)}">{escape(line)}</td></tr>'
        return f"<table>{html}</table>"

    @property
    def by_name(self) -> dict[str, Comparison]:
        """The results by the names of the FAKEs: paths, or the keys of the dict that was passed."""
        return {result.fake.name: result for result in self.results}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all FAKEs, see `Comparison.rows`."""
        return [row for result in self.results for row in result.rows]

    @property
    def values(self) -> list[Value]:
        """The values of all FAKEs, in the order in which they are listed."""
        return list(dict.fromkeys(value for result in self.results for value in result.values))

    @property
    def alerts(self) -> list[ResultWarning]:
        """All warnings, also about the whole run, the worst first. A warning about several sets is
        listed once and names all of them.
        """
        of_results = merge_warnings(
            warning for result in self.results for warning in result.warnings
        )
        return worst_first([*of_results, *self.run.warnings])

    @property
    def not_computed_lines(self) -> list[str]:
        """One line per reason why metrics could not be computed: their values and the reason."""
        titles: dict[str, list[str]] = {}
        for missing in self.not_computed:
            titles.setdefault(missing.reason, []).append(missing.title)
        return [f"{', '.join(names)}: not computed: {reason}" for reason, names in titles.items()]

    @property
    def definition(self) -> Definition | None:
        """Definition of the extractor's features."""
        return self.definitions[FEATURES]

    @property
    def complete_settings(self) -> dict[str, dict[str, Any]]:
        """``settings``, with the defaults of settings that an older version did not have."""
        complete = {name: dict(own) for name, own in self.settings.items()}
        for value in self.values:
            usual = find_settings(BUILT_IN.get(value.metric, Metric))
            defaults = {key: usual[key].default for key in usual}
            complete[value.metric] = defaults | complete.get(value.metric, {})
        return complete

    def basis(self, value: Value) -> str:
        """Return a description of the features of a value, such as ``Inception, 2048 dimensions,
        protocol pytorch-fid``.
        """
        if value.features.layer == PIXELS:
            return PIXELS
        definition = self.definitions.get(value.features.layer)
        if definition is None:
            return f"{value.features}, unknown protocol"
        protocol = definition.protocol_name
        preparation = f"protocol {protocol}" if protocol else "the network's own preparation"
        return f"{value.features}, {preparation}"

    @property
    def fid(self) -> float | None:
        """The FID of the only FAKE; None if it was not requested or the features are not
        Inception's 2048.

        Raises:
            ValueError: if there are several FAKEs; use ``results``.
        """
        return self._only("fid").fid

    @property
    def frechet_distance(self) -> float | None:
        """The Fréchet distance of the only FAKE, see `Comparison.frechet_distance`.

        Raises:
            ValueError: if there are several FAKEs; use ``results``.
        """
        return self._only("frechet_distance").frechet_distance

    def _only(self, wanted: str) -> Comparison:
        if len(self.results) != 1:
            raise ValueError(f"there are {len(self.results)} results: read .results[i].{wanted}")
        return self.results[0]

    @property
    def missed(self) -> tuple[str, ...]:
        """One sentence per FAKE and missed gate."""
        return tuple(line for result in self.results for line in result.missed)

    @property
    def exit_code(self) -> int:
        """Exit status: 3 if a gate is missed, 1 if a metric that was requested by name is not
        computed, else 0.
        """
        if self.missed:
            return 3
        return 1 if self.lacking else 0

    @property
    def lacking(self) -> tuple[str, ...]:
        """Names of the metrics that were requested by name and are not computed."""
        return tuple(missing.metric for missing in self.not_computed if missing.requested)

    @property
    def exit_reason(self) -> str:
        """``done``, or which gates are missed and which metrics are not computed."""
        reasons = []
        if self.missed:
            reasons.append(f"gate missed: {'; '.join(self.missed)}")
        if self.lacking:
            reasons.append(f"not computed: {', '.join(self.lacking)}")
        return "; ".join(reasons) or "done"

    def to_dict(self) -> dict[str, Any]:
        """Return the result JSON: plain dictionaries, lists, numbers and strings; floats at full
        precision.

        Secrets in URLs are removed, see `fidtool.errors.redact`.
        """
        layers = {
            name: protocol_to_dict(definition) for name, definition in self.definitions.items()
        }
        outcome: dict[str, Any] = {"code": self.exit_code, "reason": self.exit_reason}
        if self.gated:
            outcome["gated"] = self.gated
        if self.lacking:
            outcome["lacking"] = self.lacking
        content = {
            "schema": SCHEMA,
            "protocol": layers.pop(FEATURES),
            "layers": layers,
            "values": {value.key: to_json_value(value) for value in self.values},
            **to_json_fields(self),
            "exit": outcome,
        }
        return redact_json(content)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation whose `to_dict` gave ``content``, except for secrets in URLs.

        Raises:
            InputError: if the content is not a result, belongs to a failed run, or is incomplete.
        """
        _check_result(content, "the result")
        _check_schema(content)
        try:
            layers = {FEATURES: content["protocol"], **content["layers"]}
            values = from_json_value(dict[str, Value], content["values"])
            known = (*values.values(),)
            results = tuple(Comparison.from_dict(entry, known) for entry in content["results"])
            evaluation = cls(
                definitions={
                    layer: parse_definition(protocol) for layer, protocol in layers.items()
                },
                gated=content["exit"].get("gated", ""),
                **from_json_fields(cls, {**content, "results": []}, complete=True)
                | {"results": results},
            )
            _check_agreement(evaluation, values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"the result is incomplete or was changed ({type(error).__name__}: {error}):",
                "compute it again",
            ) from None
        return evaluation


def _check_agreement(evaluation: Evaluation, values: Mapping[str, Value]) -> None:
    """Check that the parts of a result from a file are about the same values and sets."""
    layers = {PIXELS, *evaluation.definitions}
    agree = all(key == value.key for key, value in values.items())
    for value in values.values():
        agree &= value.features.layer in layers and value.number.digits <= _MAX_DIGITS
    keys = [pair.key for pair in evaluation.differences]
    for result in evaluation.results:
        agree &= len(result.values) > 0
        for value in result.values:
            agree &= not value.number.error_bars or result.metrics[value.key] >= 0.0
        if result.exhibit is not None:
            keys += [pair.key for pair in result.exhibit.worst_pairs]
    fakes = {result.fake.name for result in evaluation.results}
    for pair in evaluation.differences:
        agree &= {pair.first, pair.second} <= fakes
    if not agree or not values.keys() >= {*keys}:
        raise ValueError("its parts contradict each other")


def _check_schema(content: Mapping[str, Any]) -> None:
    """Refuse the result of another version, with the command that made it."""
    schema = content.get("schema")
    if schema != SCHEMA:
        remedy = "compute it again"
        command = content["run"].get("command")
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            remedy += f", `{command_line(command)}`"
        raise InputError(
            f"the result has schema {schema}, and this version reads schema {SCHEMA}:", remedy
        )


def read_evaluation(file: StrPath) -> Evaluation:
    """Return the evaluation of a file that ``fidtool compute -o`` wrote; ``-`` is stdin.

    Raises:
        InputError: if the file cannot be read, and as `Evaluation.from_dict` does.
    """
    try:
        content = json.loads(read_file("/dev/stdin" if file == "-" else file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise InputError(f"{file} cannot be read: {reason}") from None
    _check_result(content, str(file))
    with prefix_errors(str(file)):
        return Evaluation.from_dict(content)


def _check_result(content: Any, named: str) -> None:
    """Check that ``content`` is a result with values; ``named`` begins the problem."""
    is_result = (
        isinstance(content, Mapping)
        and isinstance(content.get("results"), list)
        and isinstance(content.get("run"), Mapping)
    )
    if not is_result:
        raise InputError(
            f"{named} is not the JSON of `fidtool compute`, which has results and run:",
            "pass the file that its option -o wrote",
        )
    if not content["results"]:
        outcome = content.get("exit")
        reason = "for an unknown reason"
        if isinstance(outcome, Mapping):
            reason = outcome.get("reason", "")
        raise InputError(f"{named} has no values: the run failed ({reason})")


def parse_definition(protocol: Mapping[str, Any]) -> Definition | None:
    """Return the definition of which `protocol_to_dict` gave ``protocol``."""
    if protocol["fingerprint"] is None:
        return None
    return Definition(**from_json_fields(Definition, protocol))


def protocol_to_dict(definition: Definition | None) -> dict[str, Any]:
    """Return the JSON's ``protocol``: name, fingerprint, and all values that are part of the
    fingerprint.
    """
    if definition is None:
        return {"name": None, "fingerprint": None}
    return {
        "name": definition.protocol_name,
        "fingerprint": definition.fingerprint,
        **asdict(definition),
    }
