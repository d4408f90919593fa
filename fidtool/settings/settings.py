"""All settings: the keywords of `fidtool.compute` and the options of the command line."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_type_hints

from fidtool.errors import InputError, option, short_repr
from fidtool.features.choice import (
    MODEL_FAMILIES,
    NAMED_EXTRACTORS,
    VALUE_SETTINGS,
    NetworkChoice,
    check_extractor,
    name_other_networks,
    normalize_protocol,
    parse_networks,
)
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURE_STEPS,
    FEATURES,
    NAMED_PROTOCOLS,
    OwnProtocolName,
    ProtocolName,
    find_protocol,
)
from fidtool.metrics.metric import METRICS, Metric, MetricFacts
from fidtool.metrics.pairs import PairMetric
from fidtool.metrics.registry import (
    BUILT_IN,
    BY_NAME,
    METRIC_SETTINGS,
    RequestedMetric,
    select_metrics,
)
from fidtool.names import suggest_name
from fidtool.settings.presets import PRESETS, apply_preset, find_preset
from fidtool.sources.crops import CROPS, EXAMPLE, Crop
from fidtool.sources.labels import check_labels
from fidtool.validation import (
    MAX_PIXELS,
    MAX_SECONDS,
    MAX_SKIP,
    File,
    Setting,
    TorchDevice,
    Validated,
    find_settings,
    max_skipped_files,
    parse_value_range,
)

if TYPE_CHECKING:
    from fidtool.sources.contents import ValueRange
    from fidtool.sources.image_set import Sampling

MEASURE = "What to measure"
DIAGNOSIS = "Diagnosis"
IMAGES = "Images"
MACHINE = "Machine"
RESUME = "Stop and resume"
RANKS = "Several processes"
OUTPUT = "Output"
GATES = "Gates"
GROUPS = (MEASURE, METRICS, DIAGNOSIS, IMAGES, MACHINE, RESUME, RANKS, OUTPUT, GATES)
"""Headings in ``--help``, in their order."""
PYTHON = ""
"""In place of a heading: the setting is a keyword in Python, has no option and is not recorded."""
_GATED = [name for name, kind in BUILT_IN.items() if any(number.gated for number in kind.numbers)]


def _check_progress(progress: object) -> object:
    function = getattr(progress, "func", progress)  # of a partial, such as one of the class tqdm
    if isinstance(progress, bool) or (callable(progress) and not isinstance(function, type)):
        return progress
    raise InputError(
        f"{option('progress')} must be True or a function, not {short_repr(progress)}:",
        f"pass {option('progress', True)} for progress bars",
    )


def _parse_networks(extractor: object) -> tuple[NetworkChoice, ...]:
    """Return the networks of a run, each with the settings in its own value.

    The first is Inception, if that is among them. Of several with the first's extractor, it is the
    one without settings in its value, which has the plain name.
    """
    networks = sorted(
        parse_networks(extractor), key=lambda network: network.extractor != "inception"
    )
    for place, network in enumerate(networks):
        if str(network) == networks[0].extractor:
            networks.insert(0, networks.pop(place))
            break
    return tuple(networks)


def _check_device(device: object) -> str:
    if not isinstance(device, str) and not hasattr(device, "type"):
        raise InputError(
            f"{option('device')} must be a string or a torch.device, not {short_repr(device)}"
        )
    return str(device)


def _check_folder(checkpoint: str) -> str:
    if "://" in checkpoint or not checkpoint:
        raise InputError(
            f"{option('checkpoint')} must be a folder on this machine, not {checkpoint!r}"
        )
    return checkpoint


def _check_captions(captions: object) -> object:
    if isinstance(captions, str | os.PathLike):
        return captions
    texts = tuple(captions) if isinstance(captions, Sequence) else ()
    if texts and all(isinstance(text, str) for text in texts):
        return texts
    raise InputError(f"{option('captions')} must be a file or a list of strings")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CheckSettings(Validated):
    """Keywords of `fidtool.check`: which images of a set are read, and how."""

    # torchrun rejects --num anywhere on its command line as an ambiguous abbreviation of its option
    # --numa-binding.
    num: int | None = Setting(
        None, IMAGES, "N", flag="--num --num-images", least=1, common=True
    ).help("Use a sample of N images from every set.")
    sample: Literal["random", "first"] = Setting("random", IMAGES).help(
        "How a sample is chosen: random draws a reproducible sample; first takes the first images "
        "by name, or as stored in an array or a list."
    )
    seed: int = Setting(0, IMAGES).help("Seed of the random sample and of the order of the images.")
    recursive: bool = Setting(True, IMAGES).help("Search subfolders as well.", default="recursive")
    value_range: tuple[float, float] | None = Setting(
        None, IMAGES, "LOW,HIGH", convert=parse_value_range
    ).help(
        "Values of black and white in arrays and files of floats, such as 0,1 or -1,1. "
        "Integers do not need it."
    )
    float_to_byte: Literal["round", "floor"] | None = Setting(None, IMAGES).help(
        "How floats become bytes. round rounds them, as torchvision's save_image does; floor "
        "truncates them, as (x * 255).to(uint8) does.",
        default="as the protocol's tool does: floor for torchmetrics, round for all others",
    )
    frames: str = Setting("first", IMAGES, choices=("first", "all")).help(
        "Which frames or pages of a GIF, APNG, WebP, AVIF or TIFF file to use: the first, or all, "
        "each as an image of its own."
    )
    max_pixels: int = Setting(MAX_PIXELS, IMAGES, "N", least=1).help(
        "Do not read images with more than N pixels, which may be decompression bombs."
    )
    num_workers: int | None = Setting(None, MACHINE, "N", least=0, common=True, defines=False).help(
        "Number of decoding workers per rank; 0 decodes in the main process.",
        default="on a GPU, one less than the rank's cores, at most 16; on the CPU, one per 16 "
        "cores",
    )
    peer_timeout: float = Setting(
        20.0, RANKS, "SECONDS", least=3, most=MAX_SECONDS, defines=False
    ).help("End the run if a rank sends no heartbeat for this long.")
    timeout: float = Setting(
        1800.0, RANKS, "SECONDS", least=1, most=MAX_SECONDS, defines=False
    ).help(
        "End the run if a rank waits this long for the slowest rank or for its decoding workers. "
        "All ranks must start within the same time, or within 120 s if that is shorter."
    )

    progress: bool | Callable[[str, int, int | None], None] | None = Setting(
        None, PYTHON, convert=_check_progress
    ).help(
        "True shows progress bars, in a notebook as widgets. A function is called with the name of "
        "a set, the number of its images that rank 0 has processed, and the number that it will "
        "process, or None if that is not known."
    )
    alone: bool = Setting(False, PYTHON).help(
        "In a program with several ranks, do all work on this rank, for example under `if rank == "
        "0`. By default, all ranks must make the call, and they share the work."
    )

    def __getstate__(self) -> dict[str, Any]:
        # It may be a function of the program, which other ranks cannot get.
        return {**vars(self), "progress": None}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StatisticsSettings(CheckSettings):
    """Keywords of `fidtool.compute_statistics`: how features are extracted from a set of images.

    A metric's own settings are declared in its class. The settings of a preset must be passed as
    well, see `fidtool.settings.presets.apply_preset`.
    """

    preset: str | None = Setting(
        None,
        MEASURE,
        "NAME",
        common=True,
        defines=False,
        convert=lambda name: find_preset(name).name,
    ).help(
        f"Use the settings with which published values were computed: {', '.join(PRESETS)}. Other "
        "options override them. See `fidtool presets`."
    )
    # No choices: names of protocols are accepted in any spelling.
    protocol: ProtocolName | OwnProtocolName | None = Setting(
        None, MEASURE, "NAME", choices=(), common=True
    ).help(
        f"How images are resized and normalised: {', '.join(NAMED_PROTOCOLS)}; for dinov2: pil or "
        "torch; for clip: openai. See `fidtool protocols`.",
        default="pytorch-fid, or the protocol of a statistics file",
    )
    extractor: str | NetworkChoice | Sequence[Any] | None = Setting(
        None, MEASURE, "NAME,NAME", common=True, convert=_parse_networks
    ).help(
        f"Networks that compute the features: {NAMED_EXTRACTORS}, an exported program FILE.pt2, a "
        "TorchScript program FILE.pt, or a function that returns a custom network (FILE.py:NAME or "
        "package.module:NAME), whose code is executed. NAME@weights=FILE,step=S,size=N,protocol=P "
        "holds settings for one network. inception@weights=FILE is Inception with other weights; "
        "its values are not FIDs.",
        default="inception, or the network of a statistics file",
    )
    dims: int | None = Setting(
        None, MEASURE, choices=("64", "192", "768", "2048"), common=True
    ).help(
        "Number of feature dimensions, which selects a layer of Inception.",
        default="2048, or the dimensions of a statistics file",
    )
    weights: File = Setting(None, MEASURE, "FILE").help(
        "Weights of the network: a file, or the name of weights in open_clip.",
        default="the published weights; for Inception, see `fidtool weights`",
    )
    input_size: int | None = Setting(None, MEASURE, "N", least=1).help(
        "Input height and width, in pixels, of a FILE.pt2 or FILE.pt that does not declare them."
    )
    feature_step: int | None = Setting(
        None, MEASURE, "S", least=FEATURE_STEPS[0], most=FEATURE_STEPS[1]
    ).help(
        "Round the features to multiples of 2^-S. The features must be below 2^(23-S). Does "
        "not apply to Inception.",
        default="the step that the network declares, else one that suits the first images of REAL",
    )
    metrics: str | Sequence[str | Metric] = Setting(
        "fid", METRICS, "NAME,NAME", common=True, convert=select_metrics
    ).help(
        f"Metrics to compute in one pass over the images: {', '.join(BUILT_IN)}, all (each of "
        f"these that can be computed, except {', '.join(BY_NAME)}), or FILE.py:NAME for a custom "
        "metric, whose code is executed. See `fidtool metrics`."
    )
    on_error: Literal["fail", "skip"] = Setting("fail", IMAGES, common=True).help(
        "What to do if a file cannot be read: fail, or skip it with a warning."
    )
    max_skip: float = Setting(MAX_SKIP, IMAGES, "FRACTION", least=0, most=1).help(
        "Maximum fraction of a set's files that may be skipped because they cannot be read."
    )
    crop: str | Crop | None = Setting(
        None, IMAGES, "NAME:SIZE", common=True, convert=Crop.parse
    ).help(
        "Crop and resize the images of REAL, or the set of `stats`, as published code does: a "
        f"name ({', '.join(CROPS)}) and the side of the square in pixels, such as {EXAMPLE}.",
        default="images as they are",
    )
    device: str | TorchDevice | None = Setting(
        None, MACHINE, "NAME", common=True, convert=_check_device
    ).help(
        "Device that runs the network: cpu, cuda, or one GPU such as cuda:0.",
        default="cuda if available",
    )
    batch_size: int | None = Setting(None, MACHINE, "N", least=1, common=True).help(
        "Images per forward pass.", default="8 on the CPU, 64 on a GPU"
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Setting("fp32", MACHINE, common=True).help(
        "Precision of the network. In fp32, a protocol gives the values of its tool; the others "
        "are faster on some devices, but change the values."
    )
    cache: bool = Setting(True, MACHINE, defines=False).help(
        "Use the cache of statistics and add to it.", default="cache"
    )
    diagnose: bool = Setting(True, DIAGNOSIS, flag="--diagnosis").help(
        "Look for duplicates and faulty images, and store records of the images with the "
        "statistics.",
        default="diagnosis",
    )
    checkpoint: File = Setting(
        None, RESUME, "DIR", common=True, defines=False, convert=_check_folder
    ).help(
        "Folder to save finished work in. If the run is killed, the same command resumes from it, "
        "with any number of ranks."
    )

    left_out: Collection[str] = ()
    """Names of metrics that this run cannot compute, as `RequestedMetric.name`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for requested in self.selected_metrics:
            metric = requested.metric
            if metric.own_network not in (None, self.layer_network(requested.layer)):
                raise InputError(
                    f"{metric.name} uses another network for the layer {requested.layer!r} than "
                    f"another metric or {option('extractor')} does:",
                    "choose another layer for its values",
                    setting="metrics",
                )
            if not requested.optional:
                metric.check(self.facts(requested.layer))

    # What a run uses, which follows from the settings and is determined once:

    @property
    def _all_metrics(self) -> Sequence[RequestedMetric]:
        """The setting ``metrics``, also those that are left out."""
        return cast(Sequence[RequestedMetric], self.metrics)

    @cached_property
    def _networks(self) -> tuple[NetworkChoice, ...]:
        """The networks as they are stated in ``extractor``."""
        stated: Any = self.extractor
        return stated or (NetworkChoice("inception"),)

    @cached_property
    def network(self) -> NetworkChoice:
        """Inception if it is among the networks, or else the first.

        The settings ``protocol``, ``dims``, ``weights``, ``input_size`` and ``feature_step`` are
        its own.
        """
        stated = self._networks[0]
        settings = dict[str, Any]()
        for name in VALUE_SETTINGS.values():
            typed = getattr(self, name)
            own = getattr(stated, name)
            if own is not None:
                if typed not in (None, own):
                    raise InputError(
                        f"{option(name, typed)} contradicts {option('extractor', str(stated))}"
                    )
                typed = find_settings(type(self))[name].check(own)
            settings[name] = typed
        first = replace(stated, **settings, apart=stated.is_bare)
        check_extractor(first)
        source = "preset" if self.preset else "protocol"
        return normalize_protocol(first, source)

    @cached_property
    def other_networks(self) -> Mapping[str, NetworkChoice]:
        """Further networks of the run, by the layer of their features."""
        return name_other_networks(self.network, self._networks[1:])

    @property
    def _main_networks(self) -> Mapping[str, NetworkChoice]:
        """The networks through which all images pass, by the layer of their features."""
        return {FEATURES: self.network, **self.other_networks}

    @cached_property
    def networks(self) -> Mapping[str, NetworkChoice]:
        """All networks by the layer of their features, also those of metrics with their own."""
        own = dict[str, NetworkChoice]()
        for requested in self.selected_metrics:
            if requested.metric.own_network is not None:
                own.setdefault(requested.layer, requested.metric.own_network)
        return {**own, **self._main_networks}

    @property
    def shared_protocol(self) -> str | None:
        """``protocol``, for further networks without their own preparation that state none; None if
        the first's value has it.
        """
        is_own = self._networks[0].protocol or self.network.family in MODEL_FAMILIES
        return None if is_own else self.network.protocol

    @property
    def rounding(self) -> str:
        """``float_to_byte``, or how the protocol's tool converts floats to bytes if it is None."""
        own = DEFAULT_PROTOCOL if self.network.family in MODEL_FAMILIES else self.network.protocol
        return self.float_to_byte or find_protocol(own or DEFAULT_PROTOCOL).float_to_byte

    @cached_property
    def selected_metrics(self) -> list[RequestedMetric]:
        """The metrics of each network, in the order in which they are computed and listed: built-in
        ones first.
        """
        names = [*BUILT_IN, *(requested.metric.name for requested in self._all_metrics)]
        metrics = sorted(
            self._all_metrics, key=lambda requested: names.index(requested.metric.name)
        )
        selected = [
            requested._replace(layer=self.metric_layer(requested.metric)) for requested in metrics
        ]
        for layer, network in self.other_networks.items():
            for requested in metrics:
                if requested.metric.per_network:
                    selected.append(requested._replace(layer=layer, network_name=network.subject))
        return [requested for requested in selected if requested.name not in self.left_out]

    @property
    def metrics_as_requested(self) -> list[RequestedMetric]:
        """The metrics in the order in which they were requested."""
        names = {requested.metric.name for requested in self.selected_metrics}
        return [requested for requested in self._all_metrics if requested.metric.name in names]

    @property
    def gated_value(self) -> str:
        """Name of the value that ``fail_above`` limits: the first that can have a gate; empty if
        there is none.
        """
        for requested in self.metrics_as_requested:
            for number in requested.metric.numbers:
                if number.gated:
                    return number.name
        return ""

    @property
    def floats(self) -> "ValueRange | None":
        """How arrays of floats become bytes; None if their values of black and white are not
        specified.
        """
        from fidtool.sources.contents import ValueRange  # lazily, so that --help is fast

        if self.value_range is None:
            return None
        return ValueRange(*self.value_range, self.rounding == "floor")

    def metric_layer(self, metric: Metric) -> str:
        """Return the layer whose features a metric uses: that of the run's network if both have the
        same.
        """
        for layer, network in self._main_networks.items():
            if network == metric.network():
                return layer
        return metric.layer

    def layer_network(self, layer: str) -> NetworkChoice:
        """Return the network that computes a layer."""
        return self.networks.get(layer, self.network)

    def facts(self, layer: str) -> MetricFacts:
        """Return what is known about the features of a layer."""
        network = self.other_networks.get(layer, self.network)
        return MetricFacts(network.extractor, network.dims)

    def too_few_error(
        self, requested: RequestedMetric, images: int, has: str = ""
    ) -> InputError | None:
        """Return why a metric cannot be computed of so few images, for which see `MetricFacts`;
        None if it can.
        """
        try:
            requested.metric.check(replace(self.facts(requested.layer), images=images, has=has))
        except InputError as error:
            return error
        return None

    def max_skipped(self, count: int) -> int:
        """Return how many of ``count`` files may be skipped."""
        return max_skipped_files(self.max_skip, count) if self.on_error == "skip" else 0


@dataclass(frozen=True, kw_only=True)
class Settings(StatisticsSettings):
    """Keywords of `fidtool.compute`. All commands use this class, with defaults for settings they
    do not have.
    """

    allow_mismatch: bool = Setting(False, MEASURE).help(
        "Compare statistics files even if their protocols differ, with a warning."
    )
    per_class: bool = Setting(False, METRICS, common=True).help(
        "Also compute the metrics for each class, against the same class of REAL, from the same "
        "features."
    )
    per_folder: bool = Setting(False, METRICS).help(
        "Also compute the metrics for each subfolder, such as a camera or a test set, against the "
        "subfolder of REAL with the same name."
    )
    min_class: int | None = Setting(None, METRICS, "N", least=1).help(
        "Minimum number of images of a class or folder, in REAL and in FAKE. Smaller classes and "
        "folders are listed without values."
    )
    labels: File | Iterable[Any] = Setting(
        None, IMAGES, "FILE", convert=partial(check_labels, setting="labels")
    ).help(
        "Classes of the images: a .csv, .tsv or .jsonl file with the columns path and label, or a "
        ".txt file with one class per line; in Python also a list, array or tensor with the label "
        "of each image of REAL.",
        default="the labels that are stored with the images, or their folders",
    )
    labels_fake: File | Iterable[Any] = Setting(
        None, IMAGES, "FILE", convert=partial(check_labels, setting="labels_fake")
    ).help(
        "Classes of the images of every FAKE, in the same forms as the setting labels, which then "
        "applies to REAL only."
    )
    num_real: int | None = Setting(None, IMAGES, "N", least=1).help(
        "Size of the sample from REAL. Overrides the sample size for all sets."
    )
    num_fake: int | None = Setting(None, IMAGES, "N", least=1).help(
        "Size of the sample from every FAKE. Overrides the sample size for all sets."
    )
    features: bool = Setting(False, IMAGES).help(
        "Accept features of images as sets: floats of shape (N, D) in FILE.npy, in FILE.pt, or in "
        "the array FILE.npz:NAME."
    )
    captions: File | Sequence[str] = Setting(None, METRICS, "FILE", convert=_check_captions).help(
        "Captions of the images of every FAKE: a table with the columns path and caption, a folder "
        "of .txt files named like the images, or a .txt file with one caption per line, in the "
        "order of the images; in Python also a list."
    )
    crop_fake: str | Crop | None = Setting(
        None, IMAGES, "NAME:SIZE", convert=lambda crop: Crop.parse(crop, "crop_fake")
    ).help(
        "Crop and resize the images of every FAKE: a name and a side as for REAL, such as "
        f"{EXAMPLE}.",
        default="images as they are",
    )
    heldout: Any = Setting(None, IMAGES, "SET", common=True, defines=False).help(
        "Real images that the generator was not trained on, while REAL is its training set. Their "
        "FID is what a perfect generator would reach, and their distances to REAL show whether "
        "FAKE copies REAL."
    )
    pairs: str | None = Setting(None, IMAGES, "HOW", defines=False).help(
        "How images are paired for PSNR, SSIM, MS-SSIM and LPIPS: by name (the relative path "
        "without suffix), by position, by number (the last number in the name), sorted (by the "
        "natural order of the names), or suffix:_recon (a_recon.png of one set belongs to a.png of "
        "the other).",
        default="position for arrays and lists, else name",
    )
    expect: int | None = Setting(None, IMAGES, "N", least=1).help(
        "Fail if a FAKE does not have exactly N images before a sample is taken."
    )
    uncertainty: bool = Setting(False, DIAGNOSIS, common=True).help(
        "Compute error bars for the metric fid: its bias, the bias-corrected value with a 95 % "
        "interval, and which FAKE is better."
    )
    influence: bool = Setting(False, DIAGNOSIS).help(
        "List the images that raise the metric fid most."
    )
    report: File = Setting(None, OUTPUT, "FILE.html", common=True).help(
        "Write an HTML page with the values, charts and images (needs fidtool[report])."
    )
    plot: File = Setting(None, OUTPUT, "FILE.png").help(
        "Write a plot of the metric fid for all FAKEs (needs fidtool[report])."
    )
    pairs_output: File = Setting(None, OUTPUT, "FILE.csv").help(
        "Write the values of single pairs of images, or of single images, for the metrics that "
        "have such values."
    )
    # torchrun rejects --log as well.
    log: str | Sequence[str] = Setting(
        (), OUTPUT, "KIND:PLACE", flag="--log --log-to", common=True
    ).help(
        "Log the values with tensorboard:DIR, wandb:PROJECT, mlflow:EXPERIMENT or trackio:PROJECT."
    )
    step: int | None = Setting(None, OUTPUT, "N", least=0).help(
        "Training step at which the values are logged.",
        default="with several FAKEs, the numbers in their names, if they have any",
    )
    history: File = Setting(None, OUTPUT, "FILE.jsonl").help(
        "Append one line per FAKE to a file, which `fidtool history` shows."
    )
    fail_above: float | None = Setting(None, GATES, "X", least=0, common=True).help(
        f"The gate is missed if the first requested metric among {', '.join(_GATED)} is above X."
    )
    fail_worse_than: File = Setting(None, GATES, "FILE").help(
        "The gate is missed if a FAKE is worse than in FILE (the JSON of a result, or a history) "
        "by the 95 % interval of the difference. Both results need error bars."
    )
    max_duplicates: float | None = Setting(None, GATES, "FRACTION", least=0, most=1).help(
        "The gate is missed if more than this fraction of the images of a FAKE are duplicates of "
        "other images in it."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample == "first" and not (self.num or self.num_real or self.num_fake):
            raise InputError(
                f"{option('sample', 'first')} needs the number of images:",
                f"pass {option('num', ...)}",
            )
        metrics = [requested.metric for requested in self._all_metrics]
        has_pairs = any(isinstance(metric, PairMetric) for metric in metrics)
        has_captions = any(metric.captions for metric in metrics)
        has_bars = any(
            number.error_bars
            for requested in self.selected_metrics
            for number in requested.metric.numbers
        )
        to_metrics = f"to {option('metrics')}"

        def require(is_met: object, name: str, problem: str, remedy: str) -> None:
            if not is_met and getattr(self, name) not in (None, False):
                raise InputError(f"{option(name)} {problem}:", remedy)

        require(
            self.gated_value,
            "fail_above",
            "limits none of the requested metrics",
            f"add {', '.join(_GATED[:-1])} or {_GATED[-1]} {to_metrics}",
        )
        require(
            self.uncertainty,
            "fail_worse_than",
            "compares error bars, which are not requested",
            f"add {option('uncertainty', True)}",
        )
        for name in ("max_duplicates", "uncertainty"):
            require(
                self.diagnose,
                name,
                "needs the diagnosis, which looks for duplicates",
                f"omit {option('diagnose', False)}",
            )
        for name in ("uncertainty", "influence", "plot"):
            require(
                has_bars,
                name,
                "applies to the metric fid, which is not requested",
                f"add fid {to_metrics}",
            )
        require(
            has_pairs,
            "pairs",
            "applies to metrics of pairs, and none is requested",
            f"add psnr {to_metrics}",
        )
        require(
            has_pairs or has_captions,
            "pairs_output",
            "writes the values of single images or pairs, which no requested metric has",
            f"add psnr or clip-score {to_metrics}",
        )
        require(
            has_captions,
            "captions",
            "applies to the CLIP score, which is not requested",
            f"add clip-score {to_metrics}",
        )
        require(
            self.grouped_by,
            "min_class",
            "applies to the values of classes, which are not requested",
            f"add {option('per_class', True)}",
        )
        require(
            not self.per_class,
            "per_folder",
            f"cannot be combined with {option('per_class', True)}",
            "omit one of them",
        )

    @property
    def grouped_by(self) -> Literal["", "class", "folder"]:
        """By what the metrics are computed as well; empty for whole sets alone."""
        if self.per_class:
            return "class"
        return "folder" if self.per_folder else ""

    def sampling(self, setting: str = "num") -> "Sampling":
        """Return which images of a set are used; ``setting`` is ``num_real`` for REAL and
        ``num_fake`` for a FAKE.
        """
        from fidtool.sources.image_set import Sampling  # lazily, so that --help is fast

        other = ""
        if getattr(self, setting) is None:
            other = {"num_real": "num_fake", "num_fake": "num_real"}.get(setting, "")
            setting = "num"
        return Sampling(getattr(self, setting), self.seed, self.sample == "first", setting, other)


ALL_SETTINGS = {
    **find_settings(Settings),
    **{key: setting for key, (_, setting) in METRIC_SETTINGS.items()},
}
"""The settings by name, and those of the built-in metrics by
`fidtool.metrics.registry.setting_key`.
"""

P = ParamSpec("P")
T = TypeVar("T")


def with_arguments_of(
    kind: Callable[P, CheckSettings],
) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorator that replaces a function's last argument, a `Settings`, by the settings of ``kind``
    as keywords.

    Type checkers see the fields of ``kind`` as the arguments, and `inspect.signature` sees
    ``__signature__``. The docstring gets a description of each keyword.
    """
    types = get_type_hints(kind)
    settings = find_settings(cast(type, kind))

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        original = inspect.signature(function)
        *sets, _ = original.parameters.values()
        keywords = [
            parameter.replace(annotation=inspect.formatannotation(types[parameter.name]))
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.name in settings
        ]
        signature = original.replace(parameters=[*sets, *keywords])

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                hint = _suggest_keyword(kwargs, signature.parameters)
                raise TypeError(f"{function.__name__}() {error}{hint}") from None
            chosen = apply_preset({name: given.pop(name) for name in settings if name in given})
            return function(**given, settings=Settings(**chosen))

        call.__signature__ = signature  # type: ignore[attr-defined]
        lines = [f"        {name}: {setting.described}" for name, setting in settings.items()]
        call.__doc__ = "\n".join([f"{function.__doc__}", "    Settings:", *lines, ""])
        return call

    return decorate


def _suggest_keyword(keywords: Mapping[str, Any], known: Collection[str]) -> str:
    """Return what to write instead of unknown keywords: a metric with a setting, or similar
    keywords.
    """
    unknown = [name for name in keywords if name not in known]
    for name in unknown:
        if name in METRIC_SETTINGS and "metrics" in known:
            kind, own = METRIC_SETTINGS[name]
            return f"; write metrics=[fidtool.{kind.__name__}({own.name}=...)]"
        if name in (find_settings(Settings)["precision"].choices or ()):
            return f"; write precision={name!r}"
        for setting in find_settings(Settings).values():
            flag = setting.flag.removeprefix("--").replace("-", "_")
            if setting.kind is bool and name == f"no_{flag}":
                return f"; write {setting.name}=False"
    return "".join(suggest_name(name, known, 0.75) for name in unknown)
