"""What a run found out, ready to be printed, kept or tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fidtool.diagnose.diagnosis import Diagnosis, Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.distances.jackknife import Interval
from fidtool.features.definition import Definition
from fidtool.features.protocol import FEATURES
from fidtool.labels import Labels
from fidtool.redaction import without_secrets
from fidtool.sources.census import PassedOver

SCHEMA = 2
"""Version of the result JSON. Version 2 renamed the distances of features other than Inception's 2048, which were
``fid`` in version 1. Within a version keys are added, and none is renamed or removed."""
_PLAIN = Labels()
MOST_RANDOM = 48
"""Random images of one FAKE that a report shows at most."""
MOST_NEIGHBOURS = 24
"""Images of one FAKE that a report shows at most beside their nearest real ones."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out.

    Attributes:
        set: path of its set, as given.
        file: its own path.
        reason: why it cannot be read.
    """

    set: str
    file: str
    reason: str


@dataclass(frozen=True)
class Uncertainty:
    """How sure a Fréchet distance is. REAL is taken as it is: the interval is about what was generated alone.

    Attributes:
        bias: how much the distance of so many images lies above that of infinitely many, estimated; None if withheld.
        corrected: the distance without it, an estimate for infinitely many images, with its standard error and its
            95 % interval; None if withheld.
        withheld: why there is no interval; empty where there is one.
        curve: the distance against the number of images: pairs, ascending, the last one of all images.
    """

    bias: float | None
    corrected: Interval | None
    withheld: str
    curve: tuple[tuple[int, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """The uncertainty as JSON has it."""
        return asdict(self) | {"real": "fixed", "level": 0.95}


@dataclass(frozen=True)
class Difference:
    """How much better one FAKE is than another.

    Attributes:
        first, second: paths of the two, as given.
        interval: the bias-corrected Fréchet distance of the first less that of the second, with its 95 % interval;
            negative where the first is better.
    """

    first: str
    second: str
    interval: Interval

    @property
    def verdict(self) -> str:
        """In words: whether one is better."""
        if self.interval.low <= 0.0 <= self.interval.high:
            return f"{self.first} and {self.second} cannot be told apart"
        better, worse = (self.first, self.second) if self.interval.high < 0.0 else (self.second, self.first)
        return f"{better} is better than {worse}"

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON has it."""
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True)
class HarmfulImage:
    """An image of FAKE and what it does.

    Attributes:
        file: its path.
        effect: how much the Fréchet distance would fall without it, to first order; negative where it would rise.
    """

    file: str
    effect: float


@dataclass(frozen=True)
class Removal:
    """What leaving out the most harmful images would do.

    Attributes:
        fraction: of FAKE.
        images: how many that are.
        predicted: the Fréchet distance of the others by the images' effects, to first order.
        distance: that of the others, computed.
    """

    fraction: float
    images: int
    predicted: float
    distance: float


@dataclass(frozen=True)
class Influence:
    """Which images of FAKE raise its Fréchet distance.

    Attributes:
        most_harmful: those that raise it most, the worst first: 2 % of FAKE, at least 20 and at most 1000.
        least_harmful: those without which it would rise most, the best first: as many as 20.
        removals: what leaving out the worst 0.5, 1 and 2 % would do.
        doubt: why the effects are rough; empty where they are not.
    """

    most_harmful: tuple[HarmfulImage, ...]
    least_harmful: tuple[HarmfulImage, ...]
    removals: tuple[Removal, ...]
    doubt: str = ""

    def to_dict(self, labels: Labels) -> dict[str, Any]:
        """The influence as JSON has it, with what its distances are called."""
        found = asdict(self)
        for removal in found["removals"]:
            removal[labels.key("fid")] = removal.pop("distance")
        return found


@dataclass(frozen=True)
class Neighbour:
    """A generated image and the real one that is nearest to it.

    Attributes:
        fake, real: their paths; the real one's is empty where only its features are known.
        distance: Euclidean, between their features.
    """

    fake: str
    real: str
    distance: float


@dataclass(frozen=True)
class Exhibit:
    """What there is to be seen of one FAKE beside REAL. On rank zero.

    Attributes:
        fake, real: what the sets are made of; None where their images were not looked at.
        random: files of some images of FAKE, the first of its pseudo-random order.
        neighbours: some images of FAKE, each with its nearest real one; empty where a set's features are not known.
        curve: the distance against the number of images, as of `Uncertainty`; empty likewise.
    """

    fake: Health | None
    real: Health | None
    random: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One FAKE against REAL.

    Attributes:
        real, fake: paths as they were given.
        metrics: the numbers that were asked for, by name: ``fid`` (the squared Fréchet distance, finite and at least
            0), ``kid`` and ``kid_std``, ``is`` and ``is_std``, ``precision``, ``recall``, ``density``, ``coverage``,
            ``sfid``, ``fid_infinity`` and ``fid_infinity_error`` (one standard error), ``cmmd``. Of features other than
            Inception's 2048 the names say so: ``fid_64``, ``kid_64``, ``fd_dinov2``, ``kid_dinov2``; see ``labels``.
            ``kid_std`` is missing if every subset is the whole of both sets, since there is no spread.
        count_real, count_fake: numbers of images used; None where a statistics file does not say.
        found_real, found_fake: numbers of images there were, before ``num`` took its share; None where a statistics
            file does not say, and of an iterable of which ``num`` took the first.
        made_real, made_fake: of a statistics file, the settings with which it was made, as ``RunRecord.config``; None
            where it does not say, and of images.
        warnings: what may be wrong with this number, a sentence each.
        skipped: files of either set that were left out, REAL's first.
        diagnosis: what is wrong with the images; None where nobody asked.
        uncertainty: how sure the Fréchet distance is; None where nobody asked.
        influence: which images raise it; None where nobody asked.
        passed_over_real, passed_over_fake: what the sources hold beside their images; None of statistics files and of
            iterables.
        labels: what the numbers are called.
    """

    real: str
    fake: str
    metrics: Mapping[str, float]
    count_real: int | None
    count_fake: int | None
    warnings: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    diagnosis: Diagnosis | None = None
    uncertainty: Uncertainty | None = None
    influence: Influence | None = None
    passed_over_real: PassedOver | None = None
    passed_over_fake: PassedOver | None = None
    found_real: int | None = None
    found_fake: int | None = None
    made_real: Mapping[str, Any] | None = None
    made_fake: Mapping[str, Any] | None = None
    labels: Labels = _PLAIN

    @property
    def fid(self) -> float | None:
        """The FID; None where it was not asked for, or the features are not Inception's 2048."""
        return self.metrics.get("fid")

    @property
    def frechet_distance(self) -> float | None:
        """The Fréchet distance of the extractor's features, whatever network that is; None where nobody asked."""
        return self.value("fid")

    def value(self, name: str) -> float | None:
        """A number by its plain name, such as ``kid``, whatever network it is of; None where nobody asked."""
        return self.metrics.get(self.labels.key(name))

    @property
    def titles(self) -> dict[str, str]:
        """What the metrics are called in text, by their plain names, in the order in which they are listed."""
        return {name: self.labels.title(name) for name in self.labels.numbers if self.value(name) is not None}

    @property
    def duplicates(self) -> Duplicates | None:
        """The copies in FAKE; None where its images were not looked at."""
        return None if self.diagnosis is None else self.diagnosis.fake

    def to_dict(self) -> dict[str, Any]:
        """One entry of the JSON's ``results``."""
        return {
            "real": self.real,
            "fake": self.fake,
            "metrics": dict(self.metrics),
            "count": {"real": self.count_real, "fake": self.count_fake},
            "passed_over": {
                name: None if passed_over is None else passed_over.to_dict()
                for name, passed_over in (("real", self.passed_over_real), ("fake", self.passed_over_fake))
            },
            "found": {"real": self.found_real, "fake": self.found_fake},
            "made_with": {"real": self.made_real, "fake": self.made_fake},
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "warnings": list(self.warnings),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_dict(self.labels),
            "uncertainty": None if self.uncertainty is None else self.uncertainty.to_dict(),
            "influence": None if self.influence is None else self.influence.to_dict(self.labels),
        }


@dataclass(frozen=True)
class RunRecord:
    """Where and how the numbers were made.

    Attributes:
        world_size: number of ranks.
        device: hardware of rank zero's network.
        backend: what moved the statistics: none, gloo or nccl.
        precision: arithmetic of the network; empty where both sets came as statistics, whose own is in them.
        kernels: whose convolutions it ran: ``torch``, ``inductor`` or ``oneDNN, packed``; empty likewise.
        batch_size: images in a full forward pass.
        num_workers: decoding processes a rank.
        images_computed: images that went through the network in this run, over all ranks.
        forward_passes: batches that did.
        images_resumed: images whose work was in the checkpoint.
        cached: sets whose statistics came from the cache.
        probe: SHA-256 of the features of a fixed batch; equal wherever the same bits are computed.
        linear_algebra_threads: threads of the distance on rank zero.
        seconds: wall time of the phases, on rank zero.
        extraction: what of the phase ``extract`` was spent on decoding (or on waiting for the processes that do), on
            bringing pixels to the device, in the network (on a GPU: on launching it and waiting for it) and on the
            moments; these overlap.
        images_per_second: images_computed over the seconds of extraction; None without.
        versions: of Python and of the libraries that touch the numbers.
        command, host, date: see `fidtool.record.Origin`.
        config: the settings that are not at their defaults, by their names in `fidtool.settings.Settings`.
        warnings: what may be wrong with the run as a whole.
        notes: what is no warning and good to know, such as which settings were taken from a statistics file.
    """

    world_size: int
    device: str
    backend: str
    precision: str
    kernels: str
    batch_size: int
    num_workers: int
    images_computed: int
    forward_passes: int
    images_resumed: int
    cached: tuple[str, ...]
    probe: str | None
    linear_algebra_threads: int
    seconds: dict[str, float]
    extraction: dict[str, float]
    images_per_second: float | None
    versions: dict[str, str]
    command: tuple[str, ...] | str
    host: str
    date: str
    config: dict[str, Any]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The outcome of a run; equal on every rank.

    Attributes:
        definitions: what defines the features, by layer; None where only files of unknown protocol were compared.
        results: one entry a FAKE, in the order given.
        run: see `RunRecord`.
        fail_above: the gate on a Fréchet distance, or None.
        max_duplicates: the gate on the share of copies in a FAKE, or None.
        settings: what decides the metrics' numbers beside the features, by metric.
        differences: of each pair of FAKEs whose error bars are known, in the order given.
        gated: plain name of the metric that ``fail_above`` is about.
    """

    definitions: Mapping[str, Definition | None]
    results: tuple[Comparison, ...]
    run: RunRecord
    fail_above: float | None = None
    max_duplicates: float | None = None
    settings: Mapping[str, Mapping[str, int | bool | str]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    gated: str = "fid"

    @property
    def definition(self) -> Definition | None:
        """What defines the extractor's features."""
        return self.definitions[FEATURES]

    @property
    def labels(self) -> Labels:
        """What the numbers are called."""
        return self.results[0].labels

    def basis(self, name: str) -> str:
        """What a metric was measured with: ``Inception, 2048 dimensions, protocol pytorch-fid``.

        Args:
            name: plain name of the metric.
        """
        layer = self.labels.numbers[name].layer
        definition = self.definitions.get(layer, self.definition)  # an extractor may be CMMD's network
        dims, protocol = self.labels.dims, "unknown protocol"
        if definition is not None:
            named = definition.protocol_name
            dims, protocol = definition.dims, f"protocol {named}" if named else "the network's own preparation"
        return f"{self.labels.network_of(name)}, {dims} dimensions, {protocol}"

    @property
    def fid(self) -> float | None:
        """The FID of the only FAKE; None where it was not asked for, or the features are not Inception's 2048.

        Raises:
            ValueError: there are several, see ``results``.
        """
        return self._only("fid").fid

    @property
    def frechet_distance(self) -> float | None:
        """That of the only FAKE, see `Comparison.frechet_distance`.

        Raises:
            ValueError: there are several, see ``results``.
        """
        return self._only("frechet_distance").frechet_distance

    def _only(self, wanted: str) -> Comparison:
        if len(self.results) != 1:
            raise ValueError(f"there are {len(self.results)} results: read .results[i].{wanted}")
        return self.results[0]

    @property
    def differences_to_best(self) -> tuple[Difference, ...]:
        """Those of the FAKE whose Fréchet distance without its bias is the lowest."""
        bars = {result.fake: result.uncertainty.corrected for result in self.results if result.uncertainty}
        values = {fake: interval.value for fake, interval in bars.items() if interval is not None}
        best = min(values, key=lambda fake: values[fake], default=None)
        return tuple(each for each in self.differences if best in (each.first, each.second))

    @property
    def exit_code(self) -> int:
        """The exit policy: 3 if a gate is missed, else 0."""
        return 3 if self._missed() else 0

    @property
    def exit_reason(self) -> str:
        """Why the exit code is what it is, a sentence."""
        missed = self._missed()
        return f"gate missed: {'; '.join(missed)}" if missed else "done"

    def _missed(self) -> list[str]:
        missed = []
        if self.fail_above is not None:
            title = self.labels.title(self.gated)
            above = [
                f"{each.fake} has {title} {value:.6g}"
                for each in self.results
                if (value := each.value(self.gated)) is not None and value > self.fail_above
            ]
            missed += [f"{', '.join(above)}, above {self.fail_above:g}"] if above else []
        if self.max_duplicates is not None:
            many = [
                f"{copies.share:.2%} of {each.fake} are copies"
                for each in self.results
                if (copies := each.duplicates) is not None and copies.share > self.max_duplicates
            ]
            missed += [f"{', '.join(many)}, above {self.max_duplicates:.2%}"] if many else []
        return missed

    def to_dict(self) -> dict[str, Any]:
        """The result JSON: plain dictionaries, lists, numbers and texts; floats at full precision.

        What may be secret in addresses is left out, see `fidtool.redaction.redacted`.
        """
        gated = {} if self.fail_above is None else {"gated": self.labels.key(self.gated)}
        found = {
            "schema": SCHEMA,
            "protocol": protocol_to_dict(self.definition),
            "layers": {
                name: protocol_to_dict(definition) for name, definition in self.definitions.items() if name != FEATURES
            },
            "settings": {name: dict(settings) for name, settings in self.settings.items()},
            "results": [result.to_dict() for result in self.results],
            "differences": [difference.to_dict() for difference in self.differences],
            "run": asdict(self.run),
            "exit": {"code": self.exit_code, "reason": self.exit_reason, **gated},
        }
        return without_secrets(found)


def protocol_to_dict(definition: Definition | None) -> dict[str, Any]:
    """The JSON's ``protocol``: name, fingerprint, and everything that went into the fingerprint."""
    if definition is None:
        return {"name": None, "fingerprint": None}
    return {"name": definition.protocol_name, "fingerprint": definition.fingerprint, **asdict(definition)}
